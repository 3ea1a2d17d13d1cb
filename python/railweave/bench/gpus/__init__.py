"""Benchmarks on real GPUs: PyTorch over NCCL and over Railweave, in turns, one process a GPU. Needs PyTorch with CUDA."""
