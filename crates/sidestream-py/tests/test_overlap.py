"""``overlap``: the gain of overlapping, and the command from the wheel."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sidestream

COMMAND = [sys.executable, "-m", "sidestream"]


def command(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command from the wheel."""
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, check=False)


def test_overlap_says_what_the_command_says() -> None:
    result = sidestream.overlap("sim:h200", batch="1MiB", count=8, work=1000)
    args = ["overlap", "--device", "sim:h200", "--batch", "1MiB", "--count", "8", "--work", "1000"]
    assert str(result) + "\n" == command(*args).stdout
    assert result.json() + "\n" == command(*args, "--json").stdout
    assert result.to_dict()["schema"] == "sidestream.overlap/1"


def test_its_rows_are_those_of_the_table() -> None:
    result = sidestream.overlap("sim:h200")
    assert result.rows[0].layout == "streams" and result.rows[0].k == 1
    assert result.rows[-1].layout == "pipeline"
    assert all(row.share == result.limit_ns / row.time_ns for row in result.rows)
    both_ways = 2 * 32 * (4 << 20)
    assert all(row.gb_per_s == pytest.approx(both_ways / row.time_ns) for row in result.rows)
    assert result.verdict.startswith("Worth it:") and result.verdict in repr(result)
    assert "<- best" in result._repr_html_() or "&lt;- best" in result._repr_html_()
    assert result == pickle.loads(pickle.dumps(result))


def test_a_batch_may_be_a_number_of_bytes() -> None:
    assert (
        sidestream.overlap("sim:h200", batch=1 << 20).rows
        == sidestream.overlap("sim:h200", batch="1MiB").rows
    )


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"count": 0}, "count is 0; give the number of batches, 1 or more"),
        ({"count": 100_001}, "count is 100001: 100001 is not in 1..=100000"),
        ({"count": "a"}, "count is 'a'; give the number"),
        ({"work": -1}, "work is -1; give"),
        ({"batch": "much"}, 'batch is much: "much" is not a size'),
        ({"batch": "-4MiB"}, "batch is -4MiB"),
        ({"batch": "--help"}, "batch is --help"),
        ({"count": 10**25}, "count is 10000000000000000000000000"),
        ({"batch": 2}, "batch is 2; give its bytes"),
        ({"batch": "1TiB"}, "do not fit into the 139 GiB of NVIDIA H200; give 17792MiB or less"),
        ({"device": "tpu"}, "which names no device"),
        ({"device": "sim:none"}, "which names no device"),
    ],
)
def test_what_cannot_be_is_refused(figures: dict[str, int | str | None], why: str) -> None:
    kind: type[Exception] = ValueError
    if "device" in figures:
        kind = sidestream.DeviceError
    elif figures.get("count") == "a":
        kind = TypeError
    with pytest.raises(kind) as raised:
        sidestream.overlap(**{"device": "sim:h200", **figures})  # type: ignore[call-overload]
    assert why in str(raised.value)
    assert "\n" not in str(raised.value) and not str(raised.value).startswith("error")


def test_own_stages_say_what_they_would_gain() -> None:
    result = sidestream.overlap("sim:h200", kernel_ms=8, upload_ms=3)
    assert 1.374 < result.to_dict()["long_run"] <= 1.376
    assert "Worth it: " in result.verdict and "1.36 times as fast" in result.verdict
    assert "upload 3.000 ms, kernel 8.000 ms, no download" in str(result)
    assert result.to_dict()["batch_bytes"] is None and "pipeline" not in {row.layout for row in result.rows}
    both = sidestream.overlap("sim:h200", kernel_ms=3, upload_ms=3, download_ms=3).to_dict()
    assert 2.5 < both["rows"][0]["time_ns"] / min(row["time_ns"] for row in both["rows"]) < 3.0
    with pytest.raises(ValueError, match="a kernel alone has nothing to .*; give upload_ms, download_ms or"):
        sidestream.overlap("sim:h200", kernel_ms=8)
    # No time is no copy.
    assert str(sidestream.overlap("sim:h200", kernel_ms=8, upload_ms=3, download_ms=0)) == str(result)
    with pytest.raises(ValueError, match="less than the 0.0015 ms that a copy of 4 bytes takes"):
        sidestream.overlap("sim:h200", kernel_ms=8, download_ms=0.001)
    with pytest.raises(ValueError, match="kernel_ms is -1; give the milliseconds of a batch"):
        sidestream.overlap("sim:h200", kernel_ms=-1)
    with pytest.raises(ValueError):
        sidestream.overlap("sim:h200", kernel_ms=8, upload_ms=1, batch="1MiB")


def test_more_streams_and_no_download() -> None:
    rows = sidestream.overlap("sim:h200", streams=16, count=64, batch="64KiB").rows
    assert [row.k for row in rows if row.layout == "streams"] == [1, 2, 3, 4, 8, 16]
    text = str(sidestream.overlap("sim:h200", download=False))
    assert "no download" in text and "pipeline" not in text
    assert "1 stream, pageable memory" in text and "uploads at 15.8 GB/s; pinned 5" in text


def test_a_page_draws_the_arrangements() -> None:
    page = sidestream.overlap("sim:h200")._repr_html_()
    assert (
        page.count("<rect") == 8
        and page.count("<line") == 1
        and "pipeline, 4 slots" in page
        and "<script" not in page
    )


@pytest.mark.torch
def test_a_loop_of_ones_own_is_measured() -> None:
    import torch

    with sidestream.check(simulate=True) as found:
        weight = torch.ones(64, 64, device="cuda")
        batches = [{"x": torch.randn(16, 64), "id": f"batch {at}"} for at in range(3)]

        def train(batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return (batch["x"] @ weight).relu().sum()

        result = sidestream.overlap(train, batches, rounds=1)
        assert found.is_clean, str(found)
        with pytest.raises(ValueError, match="the batches contain no CPU tensors"):
            sidestream.overlap(train, [1, 2])
    assert (
        result.name == "train"
        and result.batch_bytes == 4096
        and set(result.loop_ns) == {"pageable", "pinned", "prefetch"}
    )
    assert result.limit_ns >= result.step_ns and result.to_dict()["schema"] == "sidestream.overlap.loop/1"
    assert result.verdict == "No verdict: times are the processor's: the simulated GPU has none."
    assert "GB/s" in str(result) and "<- best" in str(result) and "<svg" in result._repr_html_()
    with pytest.raises(TypeError, match="there are no batches; give some that the loader gave"):
        sidestream.overlap(train)
    with pytest.raises(TypeError, match="batches belong to a function"):
        sidestream.overlap("sim:h200", batches)  # type: ignore[call-overload]


@pytest.mark.torch
def test_a_simulated_loop_changes_nothing_of_the_program() -> None:
    import copy
    import random

    import torch

    class Trainer:
        device = "cpu"

        def __init__(self) -> None:
            self.model = torch.nn.Sequential(
                torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout()
            )
            self.optimizer = torch.optim.AdamW(self.model.parameters())
            self.rate = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
            self.losses: list[float] = []

        def step(self, batch: torch.Tensor) -> None:
            self.model.train()
            self.optimizer.zero_grad()
            loss = self.model(batch.to(self.device) * random.random()).square().mean()
            loss.backward()
            self.optimizer.step()
            self.rate.step()
            self.losses.append(loss.item())

    trainer = Trainer()
    batches = [torch.randn(16, 32) for _ in range(2)]
    trainer.step(batches[0])
    trainer.model.eval()
    parameters = list(trainer.model.parameters())

    def state() -> object:
        of = trainer.optimizer
        grads = [parameter.grad for parameter in parameters]
        held = of.state_dict(), trainer.rate.state_dict(), trainer.model.state_dict(), grads
        modes = trainer.model.training, trainer.losses, random.getstate()
        return copy.deepcopy((held, modes, torch.get_rng_state()))

    addresses = [each.data_ptr() for parameter in parameters for each in (parameter, parameter.grad)]
    before = state()
    found = sidestream.overlap(trainer.step, batches, device="sim:h100")
    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    assert addresses == [each.data_ptr() for parameter in parameters for each in (parameter, parameter.grad)]
    assert list(trainer.model.parameters()) == parameters and Trainer.device == "cpu"
    assert "the values that the program asks for are 0" in found.notes[0]
    assert found.limited_by == "host" and found.step_ns > (found.kernels_ns or 0) > 0
    trainer.step(batches[0])
    assert len(trainer.losses) == 2 and trainer.losses[1] > 0

    def fails(batch: torch.Tensor) -> None:
        trainer.step(batch)
        raise ZeroDivisionError

    before = state()
    with pytest.raises(ZeroDivisionError):
        sidestream.overlap(fails, batches, device="sim:h100")
    torch.testing.assert_close(state(), before, rtol=0, atol=0)


@pytest.mark.torch
def test_a_simulated_loop_has_verdict_ranges_and_trace(tmp_path: Path) -> None:
    import json

    import torch

    with torch.device("meta"):
        large = torch.nn.Sequential(*(torch.nn.Linear(60_000, 60_000, bias=False) for _ in range(6)))
    batches = [torch.zeros(256, 60_000)]
    uploads = sidestream.overlap(lambda batch: batch.mul_(2), batches, device="sim:h100")
    assert uploads.limited_by == "uploads" and uploads.verdict.startswith("Worth it: ")
    assert "The remaining time is set by the uploads" in uploads.verdict
    assert uploads.simulated == "sim:h100" and uploads.host and uploads.host in str(uploads).split("\n")[0]
    low, likely, high = uploads.gains
    assert low <= likely <= high and f"{low:.2f} to {high:.2f} times as fast" in uploads.verdict
    least, most = uploads.to_dict()["ranges"]["upload_pinned"]
    assert least <= uploads.upload_ns["pinned"] <= most

    trace = tmp_path / "trace.json"
    with torch.no_grad():
        step = sidestream.overlap(lambda batch: large(batch), batches, device="sim:h100", trace=trace)
    assert step.limited_by == "kernels" and "Do not bother: " in step.verdict
    assert step.verdict.startswith("Does not fit: the loop needs 8") and "Does not fit" in step._repr_html_()
    assert next(large.parameters()).is_meta and json.loads(trace.read_text())["traceEvents"]
    assert " GB of 84.8 GB" in str(step)


@pytest.mark.torch
def test_a_simulated_loop_computes_values_only_where_it_has_to() -> None:
    import torch

    net = torch.nn.Linear(8, 8)
    batches = [torch.ones(4, 8)]

    def step(batch: torch.Tensor, device: torch.device = torch.device("cpu")) -> torch.Tensor:
        return net(batch)[torch.nonzero(batch.to(device).sum(1))]

    found = sidestream.overlap(step, batches, device="sim:h100")
    assert (
        "computed with values" in found.notes[0]
        and "nonzero" in found.notes[0]
        and found.notes[0] in str(found)
    )
    net.to("meta")
    with pytest.raises(RuntimeError, match="nonzero.* a model on meta has no values: build it on the CPU"):
        sidestream.overlap(step, batches, device="sim:h100")


@pytest.mark.torch
def test_the_device_of_a_loop() -> None:
    import torch

    batches = [torch.zeros(64, 64)]

    def step(batch: torch.Tensor) -> torch.Tensor:
        return batch @ batch

    if not torch.cuda.is_available():
        found = sidestream.overlap(step, batches)
        assert found.simulated is not None and ", simulated: " in str(found).split("\n")[0]
        with pytest.raises(ValueError, match="PyTorch finds no GPU here; leave out device, or give"):
            sidestream.overlap(step, batches, device="cuda")
        with pytest.raises(ValueError, match="host and trace are for a simulated GPU"):
            sidestream.overlap(step, batches, device="cuda", host="host.json")
    with sidestream.simulate("sim:h100", shapes=True) as entered:
        assert sidestream.overlap(step, batches).simulated == entered.device
        with pytest.raises(ValueError, match="a simulation of sim:h100 is entered; leave out device"):
            sidestream.overlap(step, batches, device="sim:h200")
    with pytest.raises(sidestream.DeviceError, match="no times .* for sim:a100 .*devices --measure"):
        sidestream.overlap(step, batches, device="sim:a100")
    with pytest.raises(ValueError, match="the CPU has no streams"):
        sidestream.overlap(step, batches, device="cpu")
    with pytest.raises(TypeError, match="are of a job without a function; leave them out"):
        sidestream.overlap(step, batches, kernel_ms=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="host and trace belong to a function"):
        sidestream.overlap("sim:h200", trace="trace.json")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="the device is given twice, as 'sim:h200' and 'sim:h100'"):
        sidestream.overlap("sim:h200", device="sim:h100")
    assert sidestream.overlap("sim:h200") == sidestream.overlap(device="sim:h200")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            (19.0, 21.0),
            (9.0, 11.0),
            "Worth it: with prefetch the loop is 2.00 times as fast. By the ranges of the",
        ),
        ((10.2, 11.4), (9.8, 10.2), "This is not sure: the loop becomes 1.04 to 1.12 times as fast."),
        ((8.0, 30.0), (9.8, 10.2), "Cannot be told: the loop becomes 1.00 to 2.94 times as fast."),
    ],
)
def test_how_sure_a_simulated_verdict_is(
    before: tuple[float, float], after: tuple[float, float], says: str
) -> None:
    loop = {"pageable": sum(before) / 2, "pinned": sum(before) / 2, "prefetch": sum(after) / 2}
    others = dict.fromkeys(("step", "upload_pinned", "upload_pageable"), (8.0, 9.0))
    made = sidestream.LoopOverlap(
        "f", "GPU, simulated", 2, 1000, 8.5, {"pinned": 8.5, "pageable": 8.5}, loop, 1, "sim:h100", "a host",
        ranges={**others, "pageable": before, "pinned": before, "prefetch": after}, unknown=("fft_r2c",),
    )  # fmt: skip
    assert says in made.verdict and "Not known are the times of fft_r2c." in made.verdict
    is_told = before[1] < 25
    assert ("Not told to 25 %: loop with .to(); loop, pinned, non_blocking." in made.verdict) is not is_told
    assert ("cannot be told  (8 ns to 30 ns)" in str(made)) is not is_told


@pytest.mark.parametrize(
    ("pageable", "pinned", "prefetch", "says"),
    [
        (
            10.0,
            9.9,
            9.8,
            "Do not bother: no form of the loop takes 5 % less time, as the step takes nearly all of it.",
        ),
        (20.0, 19.0, 10.0, "Worth it: with prefetch the loop is 2.00 times as fast."),
        (
            20.0,
            10.0,
            10.1,
            "Worth it: pinned memory alone makes the loop 2.00 times as fast; prefetch adds nothing here.",
        ),
    ],
)
def test_the_verdict_of_a_loop(pageable: float, pinned: float, prefetch: float, says: str) -> None:
    loop = {"pageable": pageable, "pinned": pinned, "prefetch": prefetch}
    made = sidestream.LoopOverlap("f", "GPU", 2, 1000, 9.5, {"pinned": 1.0, "pageable": 3.0}, loop, 5)
    assert made.verdict == says
    assert made.to_dict()["gb_per_s"] == made.gb_per_s == {form: 1000 / ns for form, ns in loop.items()}
    assert f"% of the limit, {1000 / prefetch:.1f} GB/s" in str(made)


def test_the_command_runs_from_the_wheel_with_its_exit_codes(traces: Path, programs: Path) -> None:
    trace = traces / "copy_bound.before.json.gz"
    ran = command("diagnose", trace)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"{trace}: pytorch trace, 692 events\n")
    assert command("check", programs / "hello_race.yaml").returncode == 1
    missing = command("diagnose", "gone.json")
    assert missing.returncode == 2 and "gone.json" in missing.stderr
    unknown = command("dance")
    assert unknown.returncode == 2 and "unrecognized subcommand 'dance'" in unknown.stderr
    version = command("--version")
    assert (version.returncode, version.stdout) == (0, f"sidestream {sidestream.__version__}\n")


def test_a_reader_that_went_away_ends_the_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run([*COMMAND, "overlap"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_ctrl_c_ends_the_command() -> None:
    running = subprocess.Popen([*COMMAND, "check", "-"], stdin=subprocess.PIPE)
    assert running.stdin is not None
    # This is more than a pipe's buffer: once it is written, the command is reading, and waits for the rest.
    running.stdin.write(b"# A comment of a program that does not go on.\n" * 10_000)
    running.stdin.flush()
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=300) == -signal.SIGINT
    running.stdin.close()


def test_the_entry_point_is_the_command() -> None:
    from importlib.metadata import entry_points

    (script,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "sidestream"]
    assert script.value == "sidestream.__main__:main"


def test_auto_is_what_streams_have_and_says_nothing_to_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    device = sidestream.Stream("auto").device
    capfd.readouterr()
    by_name = sidestream.overlap("auto", count=1).to_dict()["device"]
    assert by_name == sidestream.overlap(device, count=1).to_dict()["device"]
    assert capfd.readouterr() == ("", "")
