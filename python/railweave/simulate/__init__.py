"""Predictions: how long a matrix takes on a fabric under a policy, how busy each link is, and who waits for what."""

from railweave.simulate.prediction import LastFlow, LinkUse, Policy, PolicyError, Prediction, Study, parse_policy, study

__all__ = ["LastFlow", "LinkUse", "Policy", "PolicyError", "Prediction", "Study", "parse_policy", "study"]
