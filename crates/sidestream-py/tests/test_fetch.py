"""Downloads of values while the GPU works, and a mean of losses that does not stall the GPU."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import namedtuple
from typing import Any

import pytest
import sidestream
import torch

pytestmark = pytest.mark.torch

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Scores:
    """The result of a step."""

    loss: Any
    top: list[Any]
    name: str


def training(found: sidestream.CheckedRun) -> Any:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        x = torch.randn(32, 64).pin_memory().to("cuda", non_blocking=True)
        optimizer.zero_grad()
        loss = model(x).square().mean() + step
        loss.backward()
        optimizer.step()
        yield loss, model


def test_the_values_are_those_of_the_call(found: sidestream.CheckedRun) -> None:
    x = torch.arange(1000.0, device="cuda")
    fetched = sidestream.fetch(x)
    x.zero_()
    result = fetched.result()
    assert fetched.done() and repr(fetched) == "<Fetched: there>"
    assert result.device.type == "cpu" and result.is_pinned() and torch.equal(result, torch.arange(1000.0))
    assert found.is_clean, str(found)


def test_structures_come_out_as_they_went_in(found: sidestream.CheckedRun) -> None:
    one = torch.ones(3, device="cuda", requires_grad=True)
    other = torch.ones(2, device="cuda:1")
    values = {
        "a": (one, [other * 2]),
        "pair": Pair(one * 3, "text"),
        "scores": Scores(one.sum(), [one.t(), 7], "x"),
        "host": torch.ones(1),
    }
    result = sidestream.fetch(values).result()
    assert (
        result["a"][1][0].tolist() == [2, 2]
        and result["pair"].left.tolist() == [3, 3, 3]
        and result["pair"].right == "text"
    )
    assert result["scores"].loss.item() == 3 and result["scores"].top[1] == 7 and result["scores"].name == "x"
    tensors = [result["a"][0], result["a"][1][0], result["pair"].left, result["scores"].loss, result["host"]]
    assert all(tensor.device.type == "cpu" and not tensor.requires_grad for tensor in tensors)
    assert sidestream.fetch([1, "a"]).result() == [1, "a"]
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, device="cuda"), torch.ones(1, device="cuda")])
    assert packed.is_cuda and sidestream.fetch(packed).result().data.tolist() == [1, 1, 1]
    assert found.is_clean, str(found)


def test_small_tensors_of_a_type_come_in_one_download(found: sidestream.CheckedRun) -> None:
    pieces = [torch.arange(12.0, device="cuda").view(3, 4) + at for at in range(10)]
    counts = [torch.tensor(at, device="cuda") for at in range(4)]
    large, turned, empty = (
        torch.ones(1 << 14, device="cuda"),
        torch.arange(6.0, device="cuda").view(2, 3).t(),
        torch.empty(0, 5, device="cuda"),
    )
    fetched = sidestream.fetch((pieces, counts, large, turned, empty))
    for piece in pieces:
        piece.zero_()
    got, numbers, whole, swapped, nothing = fetched.result()
    assert all(
        torch.equal(one, torch.arange(12.0).view(3, 4) + at) and one.is_pinned() for at, one in enumerate(got)
    )
    assert [number.item() for number in numbers] == [0, 1, 2, 3] and numbers[0].dtype == torch.int64
    assert (
        whole.sum().item() == 1 << 14
        and swapped.tolist() == [[0, 3], [1, 4], [2, 5]]
        and nothing.shape == (0, 5)
    )
    assert len({one.untyped_storage().data_ptr() for one in got}) == 1
    assert found.is_clean, str(found)


def test_the_current_stream_and_device_stay(found: sidestream.CheckedRun) -> None:
    side, other = torch.cuda.Stream(), torch.cuda.Stream("cuda:1")
    x = torch.full((3,), 2.0, device="cuda:1")
    with torch.cuda.stream(side):
        with torch.cuda.device(1):
            torch.cuda.set_stream(other)
        torch.cuda.set_device(0)
        # The tensor is allocated on the default stream of the other device, for which no stream waits.
        other.wait_stream(torch.cuda.default_stream(1))
        fetched = sidestream.fetch((x * 2, torch.ones(2, device="cuda")))
        assert torch.cuda.current_device() == 0
        assert torch.cuda.current_stream() == side and torch.cuda.current_stream(1) == other
    assert fetched.result()[0].tolist() == [4, 4, 4]
    with torch.cuda.device(1):
        torch.cuda.set_stream(torch.cuda.default_stream(1))
    assert found.is_clean, str(found)


def test_the_checker_finds_what_is_written_before_it_was_read(found: sidestream.CheckedRun) -> None:
    x = torch.ones(1 << 16, device="cuda")
    fetched = sidestream.fetch(x, snapshot=False)
    x.add_(1)
    fetched.result()
    assert [race.kind for race in found.races] == ["WAR"], str(found)


def test_what_is_let_go_is_not_used_again_too_early(found: sidestream.CheckedRun) -> None:
    futures = []
    for step in range(20):
        # Each tensor is dropped before the host waits for its download, and the next tensor takes memory of
        # equal size.
        futures.append(
            sidestream.fetch(torch.full((1 << 16,), float(step), device="cuda"), snapshot=step % 2 == 0)
        )
    assert [future.result()[7].item() for future in futures] == list(range(20))
    assert found.is_clean, str(found)


def test_losses_of_a_loop_are_fetched_without_a_race(found: sidestream.CheckedRun) -> None:
    losses, mean, exact = [], sidestream.RunningMean(), []
    for loss, _ in training(found):
        losses.append(sidestream.fetch(loss))
        mean.update(loss)
        exact.append(loss.detach())
    assert found.lints == (), str(found)
    got = [loss.result().item() for loss in losses]
    assert math.isclose(mean.result(), sum(got) / 8, rel_tol=1e-6)
    assert got == [loss.item() for loss in exact]
    assert found.is_clean, str(found)


def test_a_copy_of_a_model_is_fetched_while_it_trains_on(found: sidestream.CheckedRun) -> None:
    saved = exact = None
    for _, model in training(found):
        if saved is None:
            saved = sidestream.fetch(model.state_dict())
            exact = {name: value.cpu() for name, value in model.state_dict().items()}
    assert saved is not None and exact is not None
    assert all(torch.equal(value, exact[name]) for name, value in saved.result().items())
    assert found.is_clean, str(found)


def test_it_can_be_awaited(found: sidestream.CheckedRun) -> None:
    async def both() -> list[float]:
        first, second = (sidestream.fetch(torch.full((), value, device="cuda")) for value in (1.0, 2.0))
        return [(await second).item(), (await first).item(), (await first).item()]

    assert asyncio.run(both()) == [2.0, 1.0, 1.0]


def test_a_running_mean_weighs_and_begins_anew(found: sidestream.CheckedRun) -> None:
    mean = sidestream.RunningMean()
    assert math.isnan(mean.value()) and math.isnan(mean.result())
    mean.update(1.0)
    assert mean.value() == float(mean) == 1.0
    mean.update(torch.tensor([2.0, 3.0], device="cuda"), weight=2)
    mean.update(torch.tensor(4.0, device="cuda:1", dtype=torch.float16))
    mean.update(torch.tensor(6.0))
    assert mean.result() == mean.value() == (1 + 2 * 5 + 4 + 6) / 7
    mean.reset()
    assert math.isnan(mean.value())
    with pytest.raises(TypeError, match="loss is str; give a tensor or a number"):
        mean.update("1")
    with pytest.raises(ValueError, match="weight is 0"):
        mean.update(1.0, weight=0)
    assert found.is_clean, str(found)


def test_a_running_mean_may_change_streams(found: sidestream.CheckedRun) -> None:
    mean, side = sidestream.RunningMean(), torch.cuda.Stream()
    for step in range(6):
        with torch.cuda.stream(side if step % 2 else torch.cuda.current_stream()):
            mean.update(torch.full((), float(step), device="cuda"))
    assert mean.result() == 2.5
    assert found.is_clean, str(found)


def test_what_cannot_be_fetched_is_refused(found: sidestream.CheckedRun) -> None:
    with pytest.raises(TypeError, match="sparse, nested or quantized"):
        sidestream.fetch(torch.ones(2, 2).to_sparse())
    with pytest.raises(TypeError, match="snapshot is 1; give True or False"):
        sidestream.fetch(torch.ones(2), snapshot=1)  # type: ignore[arg-type]
    x = torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="fetch after the replay"), torch.cuda.graph(graph):
        sidestream.fetch(x)


def test_a_running_mean_may_begin_where_nothing_is_recorded(found: sidestream.CheckedRun) -> None:
    mean = sidestream.RunningMean()
    with torch.inference_mode():
        mean.update(torch.full((), 1.0, device="cuda"))
        assert mean.result() == 1.0
    mean.update(torch.full((), 2.0, device="cuda", requires_grad=True) * 1)
    assert mean.result() == 1.5
