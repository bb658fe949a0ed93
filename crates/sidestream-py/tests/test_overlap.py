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
    with pytest.raises(ValueError, match="measures on a PyTorch GPU, and there is none here"):
        sidestream.overlap(train, batches)
    with pytest.raises(TypeError, match="there are no batches; give some that the loader gave"):
        sidestream.overlap(train)
    with pytest.raises(TypeError, match="batches belong to a function"):
        sidestream.overlap("sim:h200", batches)  # type: ignore[call-overload]


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
