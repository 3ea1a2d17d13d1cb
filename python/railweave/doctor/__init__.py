"""Doctor: what is wrong with a machine, with evidence, effect, fix and source. `examine` judges a `Machine`; see docs/doctor.md."""
