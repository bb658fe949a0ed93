"""Concurrent branches of a model: equal values and gradients, no race, and streams only if they are faster.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import sidestream
import torch

pytestmark = pytest.mark.torch


def trained(mode: Any, device: str = "cuda") -> tuple[list[Any], list[float]]:
    """Train a stem, three branches and a head for five steps with one optimizer. Return the parameters and
    the losses.
    """
    torch.manual_seed(3)

    def mlp(width: int) -> Any:
        return torch.nn.Sequential(
            torch.nn.Linear(32, width), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(width, 16)
        )

    branches = sidestream.parallel(mlp(64), mlp(48), mlp(32), mode=mode)
    model = torch.nn.ModuleDict(
        {"stem": torch.nn.Linear(8, 32), "branches": branches, "head": torch.nn.Linear(48, 1)}
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        x = torch.randn(16, 8).to(device)
        optimizer.zero_grad()
        out = model["head"](torch.cat(model["branches"](model["stem"](x)), dim=1))
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(sidestream.fetch(loss))
    return [value.detach().cpu() for value in model.parameters()], [loss.result().item() for loss in losses]


def test_training_through_branches_is_that_of_one_stream_and_has_no_race(
    found: sidestream.CheckedRun,
) -> None:
    serial, streams = trained("serial"), trained("streams")
    assert serial[1] == streams[1] and len(serial[0]) == 16
    assert all(torch.equal(one, other) for one, other in zip(serial[0], streams[0]))
    assert len(found.streams) >= 4, found.streams
    assert found.is_clean, str(found)


def test_inference_leaves_memory_in_order(found: sidestream.CheckedRun) -> None:
    both = sidestream.parallel(torch.sin, lambda x: (x * 2, {"more": x + 1}), mode="streams")
    with torch.no_grad():
        for step in range(10):
            one, (twice, rest) = both(torch.full((1 << 14,), float(step), device="cuda"))
            total = one.sum() + twice.sum() + rest["more"].sum()
            del one, twice, rest
    assert total.item() > 0
    assert found.is_clean, str(found)


def test_branches_may_hold_branches_and_be_called_on_other_streams(found: sidestream.CheckedRun) -> None:
    inner = sidestream.parallel(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), mode="streams")
    outer = sidestream.parallel(inner, lambda x: x * 3, inner, mode="streams").cuda()
    mine = torch.cuda.Stream()
    x = torch.ones(4, 8, device="cuda", requires_grad=True)
    mine.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(mine):
        (a, b), c, (d, e) = outer(x)
        (a + b + c + d + e).sum().backward()
    torch.cuda.current_stream().wait_stream(mine)
    assert x.grad is not None and x.grad.shape == (4, 8) and len(list(outer.parameters())) == 4
    x.grad.sum().item()
    assert found.is_clean, str(found)


def test_a_branch_that_writes_what_another_reads_is_found(found: sidestream.CheckedRun) -> None:
    sidestream.parallel(lambda x: x * 2, lambda x: x.add_(1), mode="streams")(
        torch.ones(1 << 14, device="cuda")
    )
    assert [race.kind for race in found.races] == ["WAR"], str(found)


def test_a_branch_that_fails_leaves_nothing_behind(found: sidestream.CheckedRun) -> None:
    def failing(x: Any) -> Any:
        x * 2
        raise KeyError("gone")

    x = torch.ones(1 << 14, device="cuda")
    with pytest.raises(KeyError, match="gone"):
        sidestream.parallel(torch.sin, failing, torch.cos, mode="streams")(x)
    x.add_(1)
    assert sidestream.parallel(torch.neg, torch.abs, mode="streams")(x)[0].sum().item() < 0
    assert found.is_clean, str(found)


def test_the_first_calls_are_measured_and_both_ways_are_right(found: sidestream.CheckedRun) -> None:
    both = sidestream.parallel(torch.sin, torch.cos)
    assert both.choice.reason == "not called so far"
    x = torch.ones(64, device="cuda")
    calls = 0
    while both.choice.reason.startswith(("not", "being")):
        one, other = both(x)
        calls += 1
        assert torch.equal(one, x.sin()) and torch.equal(other, x.cos())
        # The device completes work at once: segments end by the clock, and each has at least ten calls.
        assert calls < 10_000_000
    choice = both.choice
    assert (
        choice.measured
        and set(choice.seconds_per_item) == {"serial", "streams"}
        and choice.mode in choice.seconds_per_item
    )
    assert sum(choice.segments.values()) <= 10 < calls
    both.remeasure()
    assert not both.choice.measured
    assert found.is_clean, str(found)


def test_it_is_a_module_like_others() -> None:
    linear = torch.nn.Linear(3, 2)
    both = sidestream.parallel(linear, torch.relu)
    assert list(both.state_dict()) == ["0.weight", "0.bias"] and "relu" in repr(both)
    again = pickle.loads(pickle.dumps(copy.deepcopy(both)))
    x = torch.ones(1, 3)
    assert torch.equal(again(x)[0], linear(x)) and torch.equal(both(x)[1], x)
    assert both.choice.mode == "serial" and both.choice.reason == "no argument is on a CUDA device"
    assert trained("auto", "cpu")[1] == trained("streams", "cpu")[1]


def test_an_object_that_is_not_a_branch_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no branch"):
        sidestream.parallel()  # type: ignore[call-overload]
    with pytest.raises(
        TypeError, match=r"branch 0 is list, which cannot be called; give the branches one by one"
    ):
        sidestream.parallel([abs])  # type: ignore[call-overload]
    with pytest.raises(
        ValueError, match='mode is "both"|mode is \'both\'; give "auto", "serial" or "streams"'
    ):
        sidestream.parallel(abs, mode="both")  # type: ignore[call-overload]


def test_branches_that_share_weights_do_not_share_their_half_precision(found: sidestream.CheckedRun) -> None:
    shared = torch.nn.Linear(64, 64)
    both = sidestream.parallel(shared, torch.nn.Sequential(shared, torch.nn.ReLU()), mode="streams").cuda()
    x = torch.randn(16, 64, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        one, other = both(x)
    assert one.dtype == torch.bfloat16 and torch.is_autocast_cache_enabled()
    (one.float().sum() + other.float().sum()).backward()
    assert x.grad is not None
    x.grad.sum().item()
    assert found.is_clean, str(found)
