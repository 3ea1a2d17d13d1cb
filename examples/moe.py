"""An expert-parallel mixture-of-experts layer over torch.distributed: one expert a rank, top-1 routing, skew as real gates have it.

    torchrun --nproc-per-node 4 examples/moe.py --over railweave     # or --over torch, for torch.distributed.all_to_all_single

Dispatch and combine are all-to-all exchanges whose sizes follow the gate, so that popular experts get many tokens. With CUDA GPUs it
runs on them (backend nccl), else on the CPU (gloo).
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Exchange = Callable[[torch.Tensor, torch.Tensor, list[int], list[int]], torch.Tensor]


def over_torch(output: torch.Tensor, input_: torch.Tensor, output_rows: list[int], input_rows: list[int]) -> torch.Tensor:
    """The same exchange by torch.distributed, with its autograd."""
    from torch.distributed.nn.functional import all_to_all_single

    return all_to_all_single(output, input_, output_rows, input_rows)


def over_railweave(output: torch.Tensor, input_: torch.Tensor, output_rows: list[int], input_rows: list[int]) -> torch.Tensor:
    """Over all paths of the fabric."""
    from railweave.torch import all_to_all_single

    return all_to_all_single(output, input_, output_rows, input_rows)


class MixtureOfExperts(torch.nn.Module):
    """Tokens go to the rank of the expert that the gate likes best, through its feed-forward network, and back."""

    def __init__(self, width: int, hidden: int, exchange: Exchange) -> None:
        super().__init__()
        self.world = dist.get_world_size()
        self.gate = torch.nn.Linear(width, self.world)
        self.expert = torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, width))
        self.exchange = exchange

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens of this rank, in and out: (count, width)."""
        weights, experts = self.gate(tokens).softmax(dim=-1).max(dim=-1)
        order = torch.argsort(experts, stable=True)
        counts = torch.bincount(experts, minlength=self.world)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent, received = counts.tolist(), theirs.tolist()
        dispatched = self.exchange(tokens.new_empty(sum(received), tokens.shape[1]), tokens[order], received, sent)
        done = self.expert(dispatched)
        combined = self.exchange(tokens.new_empty(tokens.shape), done, sent, received)
        return torch.zeros_like(tokens).index_copy(0, order, combined) * weights.unsqueeze(1)


def main() -> None:
    """Trains the layer for some steps on random tokens and prints the loss and the time of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--over", choices=("railweave", "torch"), default="railweave")
    parser.add_argument("--tokens", type=int, default=2048, help="a rank")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(7)  # the same gate everywhere, other tokens on each rank
    layer = MixtureOfExperts(arguments.width, arguments.hidden, over_railweave if arguments.over == "railweave" else over_torch).to(device)
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    for step in range(arguments.steps):
        tokens = torch.randn(arguments.tokens, arguments.width, device=device)
        begin = time.perf_counter()
        loss: Any = ((layer(tokens) - tokens) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in layer.gate.parameters():  # the gate is the same on all ranks, experts are not
            dist.all_reduce(parameter.grad)
        optimizer.step()
        value = loss.item()
        if rank == 0:
            print(f"step {step}: loss {value:.6f}, {(time.perf_counter() - begin) * 1e3:.1f} ms")
    if arguments.over == "railweave":
        from railweave.torch import close

        close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
