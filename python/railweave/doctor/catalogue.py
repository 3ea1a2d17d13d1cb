"""All checks, in the order in which reports show them."""

from __future__ import annotations

from railweave.doctor.check import Check
from railweave.doctor.checks import gpudirect, gpus, host, job, nccl, nics, pcie

CHECKS: tuple[Check, ...] = (*pcie.CHECKS, *gpudirect.CHECKS, *gpus.CHECKS, *nics.CHECKS, *host.CHECKS, *job.CHECKS, *nccl.CHECKS)
