"""Paths and fixtures that the tests share."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import sidestream
from forked import python

EXAMPLES = Path(__file__).parents[3] / "examples"

# Tests and benchmarks share the planted programs.
sys.path.append(str(Path(__file__).parents[1] / "benches"))


def needs_torch(file: Path) -> bool:
    """Whether all tests of a file need PyTorch: then its first import is PyTorch."""
    head, marks, _ = file.read_text(encoding="utf-8").partition("\npytestmark = ")
    return bool(marks) and "\nimport torch\n" in head


if importlib.util.find_spec("torch") is None:
    collect_ignore = [str(file) for file in Path(__file__).parent.glob("test_*.py") if needs_torch(file)]


def run_pytest(folder: Path, *options: str) -> str:
    """Run the tests of a folder, which may request the package's fixture; return what pytest prints."""
    # If the package is installed, pytest finds the plugin without an option.
    is_installed = any(point.name == "sidestream" for point in entry_points(group="pytest11"))
    plugin = [] if is_installed else ["-p", "sidestream._pytest"]
    # The process from which these tests are forked has already imported the package.
    plugin += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    ran = python("-m", "pytest", *plugin, "-p", "no:cacheprovider", "-q", *options, folder, cwd=folder)
    return ran.stdout + ran.stderr


@pytest.fixture
def traces() -> Path:
    """Traces of an H200."""
    return EXAMPLES / "traces"


@pytest.fixture
def programs() -> Path:
    """Stream programs, each racy one with its fixed twin."""
    return EXAMPLES / "streams"


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """A folder with the traces of three of four ranks: rank 1 computes longest, and the others wait for it.
    """
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank, compute_us in enumerate([300, 700, 320]):
        (folder / f"rank{rank}.json").write_text(trace_of_rank(rank, 4, compute_us))
    return folder


def trace_of_rank(rank: int, world: int, compute_us: int) -> str:
    """Six steps of a millisecond each. Rank `rank` computes for the given time, then waits in a collective
    until 0.91 ms."""
    events = []

    def event(category: str, name: str, start_us: int, duration_us: int, **args: int) -> None:
        thread = args.get("stream", 1)
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread}
            | {"ts": start_us, "dur": duration_us, "args": args}
        )

    for step in range(6):
        start_us = 1_000_000 + 1_000 * step
        event("user_annotation", f"ProfilerStep#{step}", start_us, 1_000)
        work = [("compute", 7, 10, compute_us)]
        work.append(("ncclDevKernel_AllReduce", 8, 10 + compute_us, 900 - compute_us))
        for at, (name, stream, after_us, duration_us) in enumerate(work):
            call = 1 + 2 * step + at
            event("cuda_runtime", "cudaLaunchKernel", start_us + after_us - 5, 3, correlation=call)
            of = {"device": 0, "context": 1, "stream": stream, "correlation": call}
            event("kernel", name, start_us + after_us, duration_us, **of)
    return json.dumps(
        {
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
            "traceEvents": events,
        }
    )


@pytest.fixture
def found() -> Iterator[sidestream.CheckedRun]:
    """Two simulated GPUs, and the check that observes them."""
    with sidestream.check(simulate=2) as run:
        yield run


@pytest.fixture
def silent() -> Iterator[sidestream.CheckedRun]:
    """A simulated GPU, for tests in which no race may be found."""
    with sidestream.check(simulate=1) as run:
        yield run
    assert not run.races, str(run)


@pytest.fixture
def feeders() -> Callable[[], list[threading.Thread]]:
    """Return the prefetcher threads that this test itself started and that still run. Threads of other tests
    may still be ending."""
    before = set(threading.enumerate())

    def running() -> list[threading.Thread]:
        return [
            thread for thread in set(threading.enumerate()) - before if thread.name == "sidestream-feeder"
        ]

    return running


@pytest.fixture(scope="session")
def on_stand_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Run a program on a driver without a GPU, and return what it prints.

    The driver is the crate `stand-in`. `cargo xtask python` builds it and passes its path.
    """
    library = os.environ.get("SIDESTREAM_STAND_IN")
    if library is None:
        pytest.fail(
            "SIDESTREAM_STAND_IN names no library: `cargo xtask python` builds it and runs these tests"
        )
    folder = tmp_path_factory.mktemp("driver")
    # The library is also the stand-in for nvJPEG.
    for name in ("libcuda.so.1", "libnvjpeg.so.13"):
        (folder / name).symlink_to(library)

    def run(code: str) -> str:
        start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        ran = python(
            "-c",
            start + code,
            env={**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert ran.returncode == 0 and not ran.stderr, ran.stderr
        return ran.stdout

    return run
