"""``Pipeline.sweep``: tables over batch sizes, for the user's own stages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sidestream
import torch
from sidestream import Choice, Pipeline, StageError, Sweep, SweepRow
from test_pipeline_order import Gpu, clock as clock, gpu as gpu

pytestmark = pytest.mark.torch


def choice(mode: str, reason: str, notes: tuple[str, ...] = (), **seconds: float) -> Choice:
    by_mode = {name.replace("_", "-"): taken for name, taken in seconds.items()}
    return Choice(mode, len(seconds) > 1, reason, by_mode, dict.fromkeys(by_mode, 2), notes)


SWEEP = Sweep(
    "encode > train",
    "cuda:0 (a GPU)",
    (
        SweepRow(2, choice("graphs", "fast", serial=4e-3, streams=5e-3, serial_graphs=2e-3, graphs=1e-3)),
        SweepRow(8, choice("serial", "not faster", ("it <is> a note",), serial=5e-3, streams=6e-3)),
        SweepRow(32, choice("serial", "1 % is little", serial=1e-2, streams=9.9e-3)),
        SweepRow(128, None, "stage `train` ran out of the device's memory"),
    ),
)


def test_a_sweep_has_a_verdict_for_each_size() -> None:
    assert str(SWEEP).splitlines() == [
        "encode > train on cuda:0 (a GPU): steps a second after warm-up, by the size of a batch",
        "  batch  serial  streams  serial-graphs  graphs      gain  samples/s  verdict",
        "      2   250.0    200.0          500.0  1000.0  +300.0 %       2000  "
        "worth it: 4.00 times as fast with graphs",
        "      8   200.0    166.7              -       -   -16.7 %       1600  do not bother: not faster",
        "     32   100.0    101.0              -       -    +1.0 %       3200  do not bother: 1 % is little",
        "    128       -        -              -       -         -          -  "
        "no figures: stage `train` ran out of the device's memory",
        "  note: batch 8: it <is> a note",
    ]


def test_a_sweep_exports_its_figures_and_shows_itself_in_a_notebook() -> None:
    assert json.loads(SWEEP.json()) == SWEEP.to_dict()
    assert SWEEP.to_dict()["schema"] == "sidestream.pipeline.sweep/1"
    first, *_, last = SWEEP.to_dict()["rows"]
    assert (first["size"], first["samples_per_s"], first["gain"]) == (2, 2000.0, 3.0)
    assert first["steps_per_s"]["serial"] == 250.0 and first["choice"]["mode"] == "graphs"
    assert last["steps_per_s"] == {} and last["choice"] is last["gain"] is last["samples_per_s"] is None
    page = SWEEP._repr_html_()
    assert page.count("<tr>") == 5 and "<td>1000.0</td>" in page
    assert "<li>batch 8: it &lt;is&gt; a note</li>" in page


def test_two_stages_are_compared_at_each_size_and_a_pipeline_knows_it(
    gpu: Gpu, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")

    class Stages:
        """Run concurrently, the stages take half as long if a batch is small, and otherwise as long as
        serially.
        """

        def encode(self, batch: Any) -> Any:
            clock.now += 0.01 if gpu.current != (0, 0, 1) and batch.shape[0] < 16 else 0.02
            return batch

        def train(self, batch: Any) -> Any:
            return self.encode(batch)

    stages, made = Stages(), []

    def make_batch(size: int) -> Any:
        made.append(size)
        return torch.zeros(size, 3, device="meta")

    steps = [stages.encode, stages.train]
    sweep = Pipeline.sweep(iter(steps), make_batch, (8, 64), device="cuda:0")
    assert made == [8] * 4 + [64] * 4
    assert (sweep.stages, sweep.device) == ("encode > train", "cuda:0 (a GPU)")
    small, large = sweep.rows
    assert small.steps_per_s == {"serial": pytest.approx(25), "streams": pytest.approx(50)}
    assert small.verdict == "worth it: 2.00 times as fast with streams"
    assert small.samples_per_s == pytest.approx(400)
    assert large.steps_per_s == {"serial": pytest.approx(25), "streams": pytest.approx(25)}
    assert large.verdict.startswith("do not bother: ") and large.samples_per_s == pytest.approx(64 * 25)
    # A pipeline of these stages needs no measurement at these sizes.
    for size, mode, measured in ((8, "streams", True), (64, "serial", True), (9, "serial", False)):
        pipe = Pipeline(steps, device="cuda:0")
        assert len(list(pipe([make_batch(size)] * 12))) == 12
        assert (pipe.choice.mode, pipe.choice.measured) == (mode, measured)


def test_without_cuda_a_sweep_has_the_serial_figures_and_compares_nothing() -> None:
    layer = torch.nn.Linear(3, 3)
    before = layer.weight.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def train(x: Any) -> Any:
        loss = layer(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    sweep = Pipeline.sweep([abs, train], lambda size: torch.ones(size, 3), sizes=[1, 2], device="cpu")
    assert (sweep.stages, sweep.device) == ("abs > train", "cpu")
    for row in sweep.rows:
        assert set(row.steps_per_s) == {"serial"} and row.gain is None
        assert row.samples_per_s == row.size * row.steps_per_s["serial"] > 0
        why = "the device is cpu, so the stages run one after another on the CPU"
        assert row.verdict == f"nothing was compared: {why}"
    # The model was trained.
    assert not torch.equal(layer.weight, before)


def test_a_size_that_does_not_fit_has_no_figures_and_any_other_error_is_raised() -> None:
    class OutOfMemoryError(RuntimeError):
        """The error's class has the name of PyTorch's class."""

    def step(size: int) -> int:
        if size > 8:
            raise OutOfMemoryError
        return size

    sweep = Pipeline.sweep([step], lambda size: size, (8, 16), device="cpu")
    assert [row.verdict for row in sweep.rows][1] == "no figures: stage `step` ran out of the device's memory"
    assert sweep.rows[0].steps_per_s["serial"] > 0
    with pytest.raises(StageError, match="ZeroDivisionError"):
        Pipeline.sweep([lambda size: 1 // (size - 16)], lambda size: size, (8, 16), device="cpu")


@pytest.mark.parametrize(
    ("make_batch", "sizes", "error", "why"),
    [
        ([1, 2], (8,), TypeError, r"make_batch is \[1, 2\]; give a function that is given a size"),
        (abs, (), ValueError, r"sizes is empty; give sizes of a batch, as in \(8, 32, 128\)"),
        (abs, 8, TypeError, "sizes is 8; give sizes of a batch"),
        (abs, "8", TypeError, "sizes is '8'; give sizes of a batch"),
        (abs, (0,), ValueError, "one of sizes is 0; give how many samples a batch has, 1 or more"),
        (abs, (2.5,), TypeError, "one of sizes is 2.5; give how many samples a batch has"),
    ],
)
def test_what_makes_no_sweep_is_refused_with_the_remedy(
    make_batch: Any, sizes: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        Pipeline.sweep([abs], make_batch, sizes, device="cpu")


def test_the_sweep_that_the_page_shows_runs_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = "docs/guide/pipelines.md"
    text = (Path(__file__).parents[3] / page).read_text()
    # The block uses the stages of earlier blocks, and the setup that the page does not show.
    blocks = re.findall(r"^(?:```python|<!-- python)\n(.*?)^(?:```|-->)$", text, re.M | re.S)
    (last,) = [index for index, block in enumerate(blocks) if "Pipeline.sweep(" in block]
    exec(compile("\n".join(blocks[: last + 1]), page, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    while not printed[0].startswith("encode > train on "):
        del printed[0]
    assert printed[1].split()[:2] == ["batch", "serial"]
    assert [line.split()[0] for line in printed[2:5]] == ["8", "32", "128"]


def test_graphs_that_were_found_faster_are_known_to_the_next_pipeline_and_compute_the_same(
    clock: Any,
) -> None:
    def double(x: Any) -> Any:
        # A graph replays the launched work, but not this line.
        clock.now += 0.01
        return x * 2

    def plus(x: Any) -> Any:
        clock.now += 0.01
        return x + 1

    def items(count: int) -> Iterator[Any]:
        for number in range(count):
            clock.now += 0.001
            yield torch.full((3,), float(number), device="cuda")

    expected = [2.0 * number + 1 for number in range(24)]
    with sidestream.check(simulate=1) as found:
        pipe = Pipeline([double, plus], capture=True)
        for _ in range(8):
            assert [float(result[0]) for result in pipe(items(24))] == expected
            if pipe.choice.measured:
                break
        before = clock.now
        known = Pipeline([double, plus], capture=True)
        assert [float(result[0]) for result in known(items(24))] == expected
    assert known.choice.mode in ("graphs", "serial-graphs") and known.choice.measured
    # The stage warms up, captures a graph for each slot, and replays the graphs.
    assert clock.now - before < 24 * 0.001 + (3 + 3 + 0.5) * 0.02
    assert not found.races, str(found)
