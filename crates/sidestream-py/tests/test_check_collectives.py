"""Collectives under a check, with Gloo on a simulated GPU: until the program waits for the work, its buffers
are in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sidestream
import torch
import torch.distributed as dist
from torch import nn

pytestmark = pytest.mark.torch


@pytest.fixture
def found() -> Iterator[sidestream.CheckedRun]:
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this PyTorch has no Gloo")
    with sidestream.check(simulate=1) as run:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield run
        finally:
            dist.destroy_process_group()


def reduced(dist: Any, x: Any, out: Any) -> Any:
    return dist.all_reduce(x, async_op=True)


def sent(dist: Any, x: Any, out: Any) -> Any:
    return dist.broadcast(x, 0, async_op=True)


def gathered(dist: Any, x: Any, out: Any) -> Any:
    return dist.all_gather([out], x, async_op=True)


def gathered_into_one(dist: Any, x: Any, out: Any) -> Any:
    return dist.all_gather_into_tensor(out, x, async_op=True)


def exchanged(dist: Any, x: Any, out: Any) -> Any:
    return dist.all_to_all_single(out, x, async_op=True)


def reduced_to_one(dist: Any, x: Any, out: Any) -> Any:
    return dist.reduce(x, 0, async_op=True)


#: The collective, the later use of a buffer, and whether it conflicts.
CASES: list[tuple[Callable[..., Any], str, bool]] = [
    (reduced, "load x", True),
    (reduced, "store x", True),
    (reduced_to_one, "load x", True),
    (sent, "load x", False),
    (sent, "store x", True),
    (gathered, "load out", True),
    (gathered, "load x", False),
    (gathered, "store x", True),
    (gathered_into_one, "load out", True),
    (gathered_into_one, "store x", True),
    (exchanged, "load out", True),
    (exchanged, "store out", True),
]


@pytest.mark.parametrize("waits", [False, True], ids=["racy", "repaired"])
@pytest.mark.parametrize(
    ("collective", "use", "conflicts"), CASES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_buffer_is_in_use_until_the_work_was_waited_for(
    collective: Callable[..., Any], use: str, conflicts: bool, waits: bool, found: sidestream.CheckedRun
) -> None:
    x, out = torch.ones(1024, device="cuda"), torch.zeros(1024, device="cuda")
    work = collective(dist, x, out)
    if waits:
        work.wait()
    what = x if use.endswith("x") else out
    what.sum() if use.startswith("load") else what.zero_()
    assert bool(found.races) is (conflicts and not waits), str(found)
    for race in found.races:
        assert race.severity == "error" and race.first.stream.startswith("collectives"), str(race)
        assert race.fix.startswith("call `wait()` on the work that "), race.fix
    assert [fix.call for fix in found.mends] == ["work.wait()"] * len(found.mends)
    assert not found.races or "which variable holds the work" in found.patch()
    assert found.streams[-1].name == "default", found.streams


def test_what_the_collective_needs_was_there_when_it_was_called(found: sidestream.CheckedRun) -> None:
    x, side = torch.ones(1024, device="cuda"), torch.cuda.Stream()
    for turn in range(3):
        x.add_(1)
        # Without `async_op` the current stream waits for the collective.
        dist.all_reduce(x)
        x.mul_(2)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work = dist.all_reduce(x, async_op=True)
            if turn % 2:
                work.wait()
        if turn % 2:
            torch.cuda.current_stream().wait_stream(side)
        else:
            work.wait()
    assert found.races == () and found.ended is None, str(found)


def test_another_stream_than_the_one_that_waited_has_to_wait_too(found: sidestream.CheckedRun) -> None:
    x, side = torch.ones(1024, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(x)
    x.sum()
    assert [race.kind for race in found.races] == ["RAW"], str(found)


def test_memory_of_a_collective_that_was_not_waited_for_is_kept(found: sidestream.CheckedRun) -> None:
    for _ in range(5):
        dist.all_reduce(torch.ones(1024, device="cuda"), async_op=True)
    torch.ones(1024, device="cuda").sum()
    assert found.races == (), str(found)


def test_a_caller_that_takes_the_future_counts_as_waiting_for_it(found: sidestream.CheckedRun) -> None:
    x = torch.ones(1024, device="cuda")
    dist.all_reduce(x, async_op=True).get_future().wait()
    x.sum()
    assert found.races == (), str(found)


def test_work_of_the_processor_is_not_checked(found: sidestream.CheckedRun) -> None:
    x = torch.ones(1024)
    dist.all_reduce(x, async_op=True)
    dist.barrier()
    assert found.operations == 0 and x.sum().item() == 1024


def test_sends_between_two_ranks_are_observed(found: sidestream.CheckedRun) -> None:
    class Work:
        pass

    # A single process has no peer, so only what a call tells the check is examined.
    from sidestream import _check_collectives

    heard = _check_collectives._Collectives(found._recorder)
    x, y, group = torch.ones(1024, device="cuda"), torch.ones(1024, device="cuda"), dist.group.WORLD
    works = [Work(), Work()]
    heard.called("send", works[0], group, [x], 1, 0)
    heard.called("recv", works[1], group, [y], 1, 0)
    x.sum()
    assert not found.races, str(found)
    y.sum()
    assert [(race.kind, race.first.operator) for race in found.races] == [("RAW", "recv")], str(found)
    for work in works:
        heard.waited(True, work)
    x.zero_()
    y.zero_()
    assert len(found.races) == 1, str(found)


def test_the_host_reads_after_a_work_that_was_found_complete(found: sidestream.CheckedRun) -> None:
    x = torch.ones(1024, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.sum()
    assert found.races == (), str(found)


@pytest.mark.parametrize("right", [False, True])
def test_training_with_fully_sharded_parameters_is_followed(
    right: bool, found: sidestream.CheckedRun
) -> None:
    import torch

    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this PyTorch has no FSDP2")
    mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (1,))
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
    for layer in (*model, model):
        fsdp.fully_shard(layer, mesh=mesh)
    optimizer, side = torch.optim.SGD(model.parameters()), torch.cuda.Stream()
    for _ in range(2):
        with torch.cuda.stream(side):
            x = torch.ones(1024, 64).pin_memory().to("cuda", non_blocking=True)
        if right:
            torch.cuda.current_stream().wait_stream(side)
            x.record_stream(torch.cuda.current_stream())
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert found.operations > 50 and {race.kind for race in found.races} == (set() if right else {"RAW"}), (
        str(found)
    )


def test_the_library_is_put_back() -> None:
    before = dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))
    with sidestream.check(simulate=1):
        pass
    assert (dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))) == before


def test_each_collective_of_a_pytorch_group_is_observed() -> None:
    import re

    from sidestream._check_collectives import _BETWEEN_TWO, _FROM_TO, _IN_PLACE

    collective = re.compile("gather|reduce|scatter|all|send|recv|broadcast|barrier")
    has = [name for name in dir(dist.ProcessGroup) if collective.search(name)]
    # This collective waits on the host for the other ranks, and touches no device memory.
    heard = {*_IN_PLACE, *_FROM_TO, *_BETWEEN_TWO, "monitored_barrier"}
    assert [name for name in has if not name.startswith("__") and name not in heard] == []
