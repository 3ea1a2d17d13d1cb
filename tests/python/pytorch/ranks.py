"""What the ranks of test_all_to_all.py do; started as `python ranks.py RANK WORLD STORE-FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from railweave.errors import Error
from railweave.torch import all_to_all_single, close, deregister, register
from railweave.torch.ranks import made_ranks_of


def sizes(source: int, destination: int) -> int:
    """Rows, a hot pair and none for some."""
    return 5000 if (source, destination) == (0, 1) else (source + 2 * destination) % 3


def rows(source: int, destination: int, dtype: torch.dtype) -> torch.Tensor:
    count = sizes(source, destination)
    return (torch.arange(count * 7).reshape(count, 7) % 50 + 60 * source + 7 * destination).to(dtype)


def check_values(rank: int, world: int, async_op: bool, group: dist.ProcessGroup | None) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int16):
        input_ = torch.cat([rows(rank, peer, dtype) for peer in range(world)])
        wanted = torch.cat([rows(peer, rank, dtype) for peer in range(world)])
        output = torch.empty_like(wanted)
        out_rows, in_rows = [sizes(peer, rank) for peer in range(world)], [sizes(rank, peer) for peer in range(world)]
        result = all_to_all_single(output, input_, out_rows, in_rows, group=group, async_op=async_op)
        result = result.wait() if async_op else result
        assert torch.equal(result, wanted)
        assert result.data_ptr() == output.data_ptr(), "the output is written in place"


def check_gradients(rank: int, world: int, async_op: bool) -> None:
    in_rows, out_rows = [sizes(rank, peer) for peer in range(world)], [sizes(peer, rank) for peer in range(world)]
    input_ = torch.randn(sum(in_rows), 3, dtype=torch.float64, requires_grad=True)
    result = all_to_all_single(torch.empty(sum(out_rows), 3, dtype=torch.float64), input_, out_rows, in_rows, async_op=async_op)
    result = result.wait() if async_op else result
    (result * (rank + 1)).sum().backward()
    # Each row's gradient is the factor of the rank that it went to.
    wanted = torch.cat([torch.full((count, 3), peer + 1.0, dtype=torch.float64) for peer, count in enumerate(in_rows)])
    assert input_.grad is not None and torch.equal(input_.grad, wanted)


def check_gradients_through_views(world: int) -> None:
    """Outputs that are parts of a larger tensor: gradients of all that was written, and of what was not."""
    parts = [torch.ones(world, 3, requires_grad=True) for _ in range(3)]
    big = torch.empty(3, world, 3)
    for i, part in enumerate(parts):
        all_to_all_single(big[i], part)
    big.sum().backward()
    for part in parts:
        assert part.grad is not None and torch.equal(part.grad, torch.ones(world, 3))
    before = torch.ones(3 * world, 3, requires_grad=True)
    input_ = torch.ones(world, 3, requires_grad=True)
    big = before.clone()
    all_to_all_single(big[world : 2 * world], input_)
    (2 * big).sum().backward()
    kept = torch.full((3, world, 3), 2.0)
    kept[1] = 0  # as Tensor.copy_ has it
    assert before.grad is not None and torch.equal(before.grad, kept.reshape(3 * world, 3))
    assert input_.grad is not None and torch.equal(input_.grad, torch.full((world, 3), 2.0))


def check_second_gradients(rank: int, world: int) -> None:
    """Of a gradient penalty, against torch.distributed's own function."""
    import torch.distributed.nn.functional as differentiable

    def penalty(over: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        input_ = torch.arange(2.0 * world, dtype=torch.float64).reshape(world, 2).requires_grad_()
        output = over(torch.empty(world, 2, dtype=torch.float64), input_)
        loss = (output**3).sum() * (rank + 1)
        (gradient,) = torch.autograd.grad(loss, input_, create_graph=True)
        (loss + (gradient**2).sum()).backward()
        assert input_.grad is not None
        return input_.grad

    wanted = penalty(lambda output, input_: differentiable.all_to_all_single(output, input_))
    assert torch.equal(penalty(lambda output, input_: all_to_all_single(output, input_)), wanted)
    assert torch.equal(penalty(lambda output, input_: all_to_all_single(output, input_, async_op=True).wait()), wanted)


def check_without_gradients(world: int) -> None:
    """What autograd is owed where no gradient flows through the exchange."""
    factor, rows_ = torch.ones(world, 2, requires_grad=True), torch.ones(world, 2)
    loss = (factor * rows_).sum()  # keeps the rows for its gradient
    assert not all_to_all_single(rows_, torch.zeros(world, 2)).requires_grad
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
    else:
        raise AssertionError("a gradient was made of what the exchange had overwritten")
    with torch.no_grad():
        assert torch.equal(all_to_all_single(torch.empty(world, 2), factor), torch.ones(world, 2))
    with torch.inference_mode():
        assert torch.equal(all_to_all_single(torch.empty(world, 2), torch.ones(world, 2)), torch.ones(world, 2))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(world, 2), torch.ones(world, 2))
        try:
            all_to_all_single(torch.empty(world, 2), dual)
        except (NotImplementedError, RuntimeError) as error:
            assert "jvp" in str(error), error
        else:
            raise AssertionError("a forward gradient was dropped")


def check_compiled(rank: int, world: int, group: Any) -> None:
    """torch.compile leaves the exchange as it is, also the first one, which makes the communicator."""
    weight = torch.full((2,), 2.0, requires_grad=True)

    def layer(input_: torch.Tensor, async_op: bool) -> torch.Tensor:
        output = all_to_all_single(torch.empty(world, 2), input_ * weight, group=group, async_op=async_op)
        return (output.wait() if async_op else output) * weight

    compiled = torch.compile(layer, backend="eager")
    for async_op in (False, True):
        result = compiled(torch.full((world, 2), rank + 1.0), async_op)
        assert torch.equal(result, 4 * torch.arange(1.0, world + 1).unsqueeze(1).expand(world, 2))
        result.sum().backward()
    # Of each exchange: what comes, and what a rank sends, which goes to as many ranks; each times the weight, for each of two exchanges.
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((2,), 2 * 2 * (world * (world + 1) / 2 + world * (rank + 1))))


def check_refusals_alone(group: Any) -> None:
    """By one of two ranks: the other would be waited for if anything were made before arguments are looked at."""
    good, leaf = torch.zeros(2, 2), torch.zeros(2, 2, requires_grad=True)
    for arguments, text in [
        ((torch.zeros(3, 2), good), "multiple"),
        ((good, good, [1, 1], [2, 2]), "add up"),
        ((good.t().contiguous().t(), good), "not contiguous"),
        ((good.double(), good), "expected the same"),
        ((good, good), "overlap"),
        ((good.cfloat().clone(), good.cfloat().conj()), "conjugate"),
        ((good.clone(), good, [1.0, 1.0]), "whole numbers"),
        ((good.clone(), good, None, [0, 2]), "sends itself 0 bytes"),
        ((good.clone(), good.to_sparse()), "dense"),
        ((good.numpy(), good), "is a ndarray"),
        ((good.to("meta"), good.to("meta")), "expected cpu or cuda"),
        ((good.clone(), FakeTensorMode().from_tensor(good)), "input is a FakeTensor on cpu without memory"),
        ((FakeTensorMode().from_tensor(good), good), "output is a FakeTensor on cpu without memory"),
        ((leaf, good), "output is a leaf"),
        ((leaf[:], good), "or a view of one"),
    ]:
        check_refused(lambda arguments=arguments: all_to_all_single(*arguments, group=group), text)
    with torch.inference_mode():
        inference = torch.zeros(2, 2)
    for output in (torch.zeros(2, 2, 2).unbind()[0], inference):  # by autograd, which may not see them written
        check_refused(lambda output=output: all_to_all_single(output, leaf, group=group), "nplace", RuntimeError)
    for transform in (torch.func.vmap, torch.func.functionalize):  # they pass tensors whose values lie elsewhere
        over = transform(lambda rows: all_to_all_single(torch.empty(2), rows, group=group))
        check_refused(lambda over=over: over(good), "without memory")
    for wrong in ("foo", 5, [group], good):
        check_refused(lambda wrong=wrong: all_to_all_single(good.clone(), good, group=wrong), "expected a process group")
    assert made_ranks_of(group, torch.device("cpu")) is None


def check_refused(call: Callable[[], object], text: str, kind: type[Exception] = Error) -> None:
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"accepted what it should refuse as '{text}'")


def check_forgotten(world: int) -> None:
    """Exchanges that nobody waits for, of tensors that nobody else holds."""
    rows = 300_000 * world
    for _ in range(20):
        all_to_all_single(torch.empty(rows), torch.ones(rows), async_op=True)
    output = all_to_all_single(torch.empty(rows), torch.ones(rows))
    assert bool((output == 1).all())


def check_registering_alone(group: Any) -> None:
    """As check_refusals_alone(), without a GPU."""
    check_refused(lambda: register(torch.zeros(4), group), "only CUDA tensors")
    check_refused(lambda: register([0.0], group), "is a list")
    with FakeTensorMode():
        there = torch.empty(4, 2, device="cuda:0")
        check_refused(lambda: register(there.t(), group), "not contiguous")
        check_refused(lambda: register(there[:0], group), "no bytes")
        check_refused(lambda: register(there, [group]), "group is a list")
    check_refused(lambda: deregister(1, torch.device("cpu"), group), "only CUDA tensors")
    for device in ("bogus", "cuda:x", None, 1.5):
        check_refused(lambda device=device: deregister(1, device, group), f"device is {device!r}; expected")
    check_refused(lambda: deregister(1, "cuda", "foo"), "group is a str")
    check_refused(lambda: deregister("1", "cuda", group), "registration is a str")
    for device in (torch.device("cuda", 0), torch.device("cuda"), "cuda"):
        deregister(1, device, group)  # nothing is there to end
    assert not torch.cuda.is_initialized()
    assert made_ranks_of(group, torch.device("cpu")) is None


def check_outside(group: Any) -> None:
    """By a rank that is not in the group."""
    even = torch.zeros(2, 2)
    check_refused(lambda: all_to_all_single(even.clone(), even, group=group), "not in the group")
    with FakeTensorMode():
        check_refused(lambda: register(torch.empty(4, device="cuda:0"), group), "not in the group")


def main() -> None:
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world)
    check_compiled(rank, world, dist.new_group())
    for async_op in (False, True):
        check_values(rank, world, async_op, None)
        check_gradients(rank, world, async_op)
    even = torch.full((world, 4), float(rank))
    for no_sizes in (None, []):
        result = all_to_all_single(torch.empty_like(even), even, no_sizes, no_sizes)
        assert torch.equal(result, torch.arange(world).float().unsqueeze(1).expand(world, 4))
    check_gradients_through_views(world)
    check_second_gradients(rank, world)
    check_without_gradients(world)
    untouched = dist.new_group([0, 1])
    if rank == 0:
        check_refusals_alone(untouched)
        check_registering_alone(untouched)
    some = dist.new_group([0, 2])
    if rank in (0, 2):
        check_values(rank // 2, 2, False, some)
    else:
        check_outside(some)
    check_forgotten(world)
    close()
    dist.destroy_process_group()


main()
