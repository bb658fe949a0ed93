"""What ``offload`` and ``offload_activations`` tell: predictions, measured times, and pictures of them."""

from __future__ import annotations

import copy
import itertools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sidestream
import torch
from sidestream._offload_plan import Work, planned
from torch import nn

pytestmark = pytest.mark.torch
TOLD: Any = {"name": "", "passes": 3}


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """A simulated GPU."""
    with sidestream.simulate("sim:h200"):
        yield


def linear(width: int, count: int = 6) -> nn.Sequential:
    """Return layers that take turns."""
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(count)])


def forward(model: nn.Module, *args: Any) -> torch.Tensor:
    """Run a model without gradients."""
    with torch.no_grad():
        out: torch.Tensor = model(*args)
    return out


def busy(spans: Any) -> float:
    """Return the sum of some spans, which must not overlap."""
    assert all(first[1] <= second[0] + 1e-6 for first, second in itertools.pairwise(spans))
    return float(sum(end - begin for begin, end in spans))


@pytest.mark.parametrize(("width", "rows", "limit"), [(1536, 2, "the link"), (512, 1200, "the rest")])
def test_the_time_of_a_pass_is_predicted_and_drawn(width: int, rows: int, limit: str) -> None:
    model = linear(width)
    offloaded = sidestream.offload(model, "cuda", budget=2 * width * width * 4)
    assert "predicted" not in str(offloaded)
    x = torch.randn(rows, width).cuda()
    for _ in range(6):
        forward(model, x)
    torch.cuda.synchronize()
    plan = offloaded.plan
    assert plan is not None and plan.measured_ms is not None
    assert plan.moved_bytes == offloaded.moved_bytes == 6 * width * width * 4
    assert plan.limit_ms == max(plan.link_ms, plan.own_ms) < 1.001 * plan.predicted_ms < 1.1 * plan.limit_ms
    assert 0.9 * plan.predicted_ms < plan.measured_ms < 1.1 * plan.predicted_ms
    assert busy(plan.lanes["upload"]) == pytest.approx(plan.link_ms, rel=0.05)
    assert busy(plan.lanes["compute"]) == pytest.approx(plan.own_ms, rel=0.02)
    upload, compute = plan.timeline(60).split("\n")
    assert len(upload) == len(compute) == 60 and upload.startswith("  upload  |")
    full = {"the link": upload, "the rest": compute}[limit]
    assert set(full[11:-1]) <= {"U", "u", "C", "c"}
    assert f"limited by {limit}" in str(offloaded) and compute in plan.timeline(60)
    with pytest.raises(TypeError, match="columns is 'x'; give a number of characters, 1 or more"):
        plan.timeline("x")  # type: ignore[arg-type]
    assert plan.svg().startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert plan.svg().count("<rect") == 2 + sum(map(len, plan.lanes.values()))
    assert plan.svg().split("<rect")[1] in offloaded._repr_html_()


def test_a_step_with_gradients_is_predicted_with_their_copies() -> None:
    model = linear(512)
    offloaded = sidestream.offload(model, "cuda", budget=2 * 512 * 512 * 4)
    x = torch.randn(900, 512).cuda()
    for step in range(4):
        model(x).sum().backward()
        assert (offloaded.plan is not None) == (step >= 2)
    plan = offloaded.plan
    assert plan is not None and plan.measured_ms is not None
    # The weight of the first layer is not needed in backward, and the last two are still there.
    assert plan.moved_bytes == 9 * 512 * 512 * 4
    assert len(plan.lanes["gradients"]) == 6 and busy(plan.lanes["gradients"]) > 0
    assert plan.lanes["upload"][0][0] == 0
    assert 0.8 * plan.predicted_ms < plan.measured_ms < 1.25 * plan.predicted_ms
    assert "gradients |" in str(offloaded)


class Ordered(nn.Module):  # type: ignore[misc]
    """Layers in an order that each call gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = linear(512)

    def forward(self, x: torch.Tensor, order: range) -> torch.Tensor:
        """Call them."""
        for at in order:
            x = self.layers[at](x)
        return x


def test_phases_that_alternate_begin_beside_each_other_without_needless_copies() -> None:
    model = Ordered()
    resident = copy.deepcopy(model).cuda()
    offloaded = sidestream.offload(model, "cuda", budget=2 * 512 * 512 * 4)
    # Prefill and two steps of decoding, whose layers come in other orders; two have one shape.
    turns = [(900, range(6)), (2, range(5, -1, -1)), (2, range(1, 6)), (2, range(5, -1, -1))]
    assert offloaded.ring is not None
    copied: list[Any] = []
    copied_by = offloaded.ring.copy

    def copy_it(layer: Any) -> None:
        copied.append(layer)
        copied_by(layer)

    offloaded.ring.copy = copy_it  # type: ignore[method-assign]
    for step in range(24):
        rows, order = turns[step % 4]
        x = torch.randn(rows, 512).cuda()
        copied.clear()
        out = forward(model, x, order)
        assert torch.equal(out, forward(resident, x, order))
        if step >= 5:
            following = turns[(step + 1) % 4][1]
            there = [layer for layer in offloaded.layers if layer.at is not None]
            assert {id(layer) for layer in there} == {id(offloaded.layers[at]) for at in following[:2]}, step
        if step >= 6:
            # Where the next pass begins with the layers with which this one ended, they are not copied.
            assert len(copied) == {0: 4, 1: 5, 2: 3, 3: 4}[step % 4], step
    torch.cuda.synchronize()
    plans = offloaded.plans
    assert [(plan.name, plan.passes) for plan in plans] == [
        ("input [900, 512]", 6),
        ("input [2, 512]", 6),
        ("input [2, 512]", 12),
    ]


def test_phases_with_one_order_are_told_side_by_side() -> None:
    model = linear(1536)
    offloaded = sidestream.offload(model, "cuda", budget=2 * 1536 * 1536 * 4)
    many, few = torch.ones(2500, 1536), torch.ones(2, 1536)
    for _ in range(4):
        for x in (many, few, few):
            forward(model, x.cuda())
    torch.cuda.synchronize()
    prefill, decode = sorted(offloaded.plans, key=lambda plan: -plan.own_ms)
    assert (prefill.limited_by, decode.limited_by) == ("the rest", "the link")
    for plan in (prefill, decode):
        assert plan.measured_ms is not None
        assert 0.85 * plan.predicted_ms < plan.measured_ms < 1.15 * plan.predicted_ms
    lines = str(offloaded).split("\n")
    assert [line.split()[:3] for line in lines[2:4]] == [
        ["input", "[2500,", "1536]"],
        ["input", "[2,", "1536]"],
    ]
    assert lines[2].endswith("the rest") and lines[3].endswith("the link")
    assert lines[4:6] == ["  input [2500, 1536]:", prefill.timeline().split("\n")[0]]


def test_reads_of_files_are_a_lane_and_may_be_the_limit() -> None:
    # Ten layers with a computation of 1 ms, a copy of 2 ms, and a read of 3 ms each.
    layers: Any = [types.SimpleNamespace(size=6000, pages=object()) for _ in range(10)]
    work = Work(layers, [0.0] + [1.0] * 10, [1.0] * 10, [])
    plan = planned([work] * 6, 4, 12_000, 3e6, (2e6, 2), measured_ms=None, **TOLD)
    assert plan.link_ms == pytest.approx(20) and plan.read_ms == pytest.approx(30, rel=0.01)
    assert plan.limited_by == "the files" and list(plan.lanes) == ["read", "upload", "compute"]
    assert plan.predicted_ms == pytest.approx(30)
    # With one slab, a read begins when the copy before it is complete.
    plan = planned([work] * 6, 4, 12_000, 3e6, (2e6, 1), measured_ms=None, **TOLD)
    assert plan.predicted_ms == pytest.approx(50)


def test_activations_are_drawn_too() -> None:
    model = nn.Sequential(*[part for _ in range(6) for part in (nn.Linear(64, 64), nn.GELU())]).cuda()
    activations = sidestream.offload_activations("6 MiB")
    for _ in range(4):
        with activations:
            loss = model(torch.randn(4096, 64).cuda()).square().mean()
        loss.backward()
    told = activations.report()
    assert list(told.lanes) == ["download", "compute", "upload"]
    assert len(told.lanes["download"]) == len(told.moves) > 0
    assert busy(told.lanes["compute"]) == pytest.approx(told.compute_ms)
    assert busy(told.lanes["upload"]) == pytest.approx(told.back_ms)
    assert str(told).endswith(told.timeline()) and told.timeline().count("\n") == 2
    assert "step, predicted" in told.svg() and told.svg().count("<line") == 1


def test_the_picture_in_the_guide_is_drawn_from_the_figures_of_an_h100() -> None:
    # 24 layers of 8192² in bf16 with room for two, and 12,288 rows: docs/benchmarks/offload.csv.
    size = 8192 * 8192 * 2
    layers: Any = [types.SimpleNamespace(size=size, pages=None) for _ in range(24)]
    work = Work(layers, [0.0] + [56.782 / 24] * 24, [56.782 / 24] * 24, [])
    plan = planned([work] * 4, 2, 2 * size, 24 * size / 58.8e-3, (0.0, 1), measured_ms=60.054, **TOLD)
    assert plan.limit_ms == pytest.approx(58.8) == plan.predicted_ms
    kept = Path(__file__).parents[3] / "docs/pictures/offload.svg"
    assert plan.svg() == kept.read_text(encoding="utf-8").strip()
