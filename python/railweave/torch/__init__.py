"""All-to-all of PyTorch tensors over all paths of the fabric: `all_to_all_single` with autograd, for CPU and CUDA tensors.

Needs PyTorch, which is not a dependency of Railweave. A process group of any backend brings the ranks together; it carries no tensor.
"""

from __future__ import annotations

from railweave.torch.all_to_all import Work, all_to_all_single, close, deregister, register

__all__ = ["Work", "all_to_all_single", "close", "deregister", "register"]
