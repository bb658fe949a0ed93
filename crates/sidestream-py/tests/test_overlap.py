"""What overlap is worth, and the command from the wheel."""

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
    """Run the command of the wheel."""
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
    assert result.verdict.startswith("Worth it:") and result.verdict in repr(result)
    assert "<- best" in result._repr_html_() or "&lt;- best" in result._repr_html_()
    assert result == pickle.loads(pickle.dumps(result))


def test_a_batch_may_be_a_number_of_bytes() -> None:
    assert sidestream.overlap("sim:h200", batch=1 << 20).rows == sidestream.overlap("sim:h200", batch="1MiB").rows


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"count": 0}, "count is 0; give the number of batches, 1 or more"),
        ({"count": 100_001}, "count is 100001: 100001 is not in 1..=100000"),
        ({"count": "a"}, "count is 'a'; give the number"),
        ({"work": -1}, "work is -1; give"),
        ({"batch": "much"}, 'batch is much: "much" is no size'),
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
        sidestream.overlap(**{"device": "sim:h200", **figures})  # type: ignore[arg-type]
    assert why in str(raised.value)
    assert "\n" not in str(raised.value) and not str(raised.value).startswith("error")


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
    # More than a pipe holds: once it is written, the command is reading, and waits for the rest.
    running.stdin.write(b"# A comment of a program that does not go on.\n" * 10_000)
    running.stdin.flush()
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=300) == -signal.SIGINT
    running.stdin.close()


def test_the_entry_point_is_the_command() -> None:
    from importlib.metadata import entry_points

    (script,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "sidestream"]
    assert script.value == "sidestream.__main__:main"


def test_auto_is_what_streams_have_and_says_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    device = sidestream.Stream("auto").device
    capfd.readouterr()
    by_name = sidestream.overlap("auto", count=1).to_dict()["device"]
    assert by_name == sidestream.overlap(device, count=1).to_dict()["device"]
    assert capfd.readouterr() == ("", "")
