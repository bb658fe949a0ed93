"""``python -m sidestream.mcp``: a server through which an agent checks programs and diagnoses traces.

It speaks the Model Context Protocol on standard input and output, and needs the package ``mcp``. Paths are
relative to the folder in which the server was started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import Annotated, Any, NoReturn, TypedDict

import sidestream
from sidestream._arguments import positive
from sidestream._system import kill_group
from sidestream._units import time

if __name__ == "__main__" and sys.path[0] == os.getcwd():
    # `python -m` searches the working folder first, where a file may have the name of a module used below.
    del sys.path[0]

try:
    import anyio
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
except ImportError as error:
    NEEDS = f'sidestream.mcp needs the package mcp: pip install "mcp>=2,<3" ({error})'
    if __name__ == "__main__":
        print(NEEDS, file=sys.stderr)
        sys.exit(2)
    raise ImportError(NEEDS) from error

#: The size of a result that an agent can still read: characters of its JSON and of its text, entries of its
#: lists (fewer if the JSON would be too long), characters of a string in it, bytes of a program's output.
JSON_CHARACTERS = 40_000
TEXT_CHARACTERS = 8_000
ENTRIES = (100, 30, 10, 3)
STRING_CHARACTERS = 1_000
OUTPUT_BYTES = 6_000
#: Seconds in which a program may still write its report after its time has passed.
GRACE_S = 10.0
#: The programs that run now.
_running: set[Popen[bytes]] = set()


class Report(TypedDict):
    """A report, and for each of its lists that was shortened the number of entries that were left out."""

    report: dict[str, Any]
    left_out: dict[str, int]


class Change(Report):
    """Also by how many percent a step takes longer than in the baseline (negative: less), and the verdict of
    the gate, as the command gives it; null without ``gate_percent``.
    """

    slowdown_percent: float
    verdict: str | None


class Checked(TypedDict):
    """The report, null if the program ended without one; the end of the program's output, after which the
    report follows as text; and the number of bytes of output before that.
    """

    report: dict[str, Any] | None
    left_out: dict[str, int]
    exit_code: int
    timed_out: bool
    output: str
    output_left_out_bytes: int


async def check(
    script: str,
    arguments: Sequence[str] = (),
    simulate: bool = False,
    module: bool = False,
    provoke: int = 0,
    timeout_s: float = 300.0,
) -> Annotated[CallToolResult, Checked]:
    """Run a PyTorch program in a process of its own, and report its races: pairs of accesses that nothing
    orders, each with the call that fixes it.

    exit_code: 1 a race, or the check ended early; 3 no race, but the simulated GPU refused something;
    otherwise the program's own.

    Args:
        script: The path of the script, or with ``module`` the name of a module.
        arguments: The program's own arguments.
        simulate: Whether to simulate the GPU, so that none is needed.
        module: Whether ``script`` is the name of a module.
        provoke: How often to run the program again for each race, with a delay that provokes it; with
            ``simulate`` any number above 0 runs each race in up to 10,000 schedules.
        timeout_s: The seconds after which the program and all its processes are ended.
    """
    with tempfile.TemporaryDirectory() as folder, _raised_as_tool_error():
        file = Path(folder, "report.json")
        command = [sys.executable, "-m", "sidestream.check", f"--json={file}"]
        command += ["--simulate"] * simulate + [f"--provoke={provoke}"] * bool(provoke)
        command += ["-m" if module else "--", script, *arguments]
        ended = await _run(command, positive("timeout_s", timeout_s, "the seconds for the program"))
        if not file.exists() and not ended["timed_out"]:
            _refused(ended["output"])
        report = None
        # A program that was killed may have left it empty.
        with contextlib.suppress(OSError, ValueError):
            report = json.loads(file.read_text(encoding="utf-8"))
    first = f"exit code {ended['exit_code']}"
    if ended["timed_out"]:
        first = f"ended after {timeout_s:g} s (timeout_s), with all its processes; {first}"
    return _answer(f"{first}\n\n{ended['output']}", report, **ended)


def diagnose(trace: str, what_if: Sequence[str] = ()) -> Annotated[CallToolResult, Report]:
    """Say why a GPU idled, from a trace of PyTorch's profiler, Nsight Systems or Sidestream, and predict what
    each change would save.

    Args:
        trace: The path of a trace, or of a folder with the traces of all ranks.
        what_if: Changes to predict, such as ``prefetch=2`` or ``pinned,no-sync`` (both together). By default
            the usual ones.
    """
    with _raised_as_tool_error():
        found = sidestream.diagnose(trace, what_if=list(what_if) or None)
        return _answer(str(found), found.to_dict())


async def compare(
    trace: str, against: str, gate_percent: float | None = None
) -> Annotated[CallToolResult, Change]:
    """Say what changed in a step from an earlier trace to a new one.

    Args:
        trace: The path of the new trace.
        against: The path of the earlier trace, the baseline.
        gate_percent: The slowdown that fails the gate, if it is more than chance.
    """
    if Path(trace).is_dir():
        raise ToolError(f"{trace} is a folder; give one trace")
    command = [sys.executable, "-m", "sidestream", "diagnose", "--json", f"--against={against}"]
    command += [] if gate_percent is None else [f"--gate={gate_percent}"]
    # What follows `--` is a program, so a name that begins like an option is written as a path.
    command.append(f"./{trace}" if trace.startswith("-") else trace)
    ran = await anyio.run_process(command, stdin=DEVNULL, check=False)
    if not ran.stdout:
        _refused(ran.stderr.decode(errors="replace"))
    found = json.loads(ran.stdout)
    # Without a ratio the traces were not compared; with a gate, 1 and 3 are verdicts.
    if "ratio" not in found:
        raise ToolError(found.get("error") or found["gate"]["why"])
    slowdown = 100 * (found["ratio"] - 1)
    now, before = (time(found[which]["time_ns"]) for which in ("now", "baseline"))
    text = f"a {found['per']} takes {now} instead of {before} ({slowdown:+.1f} %)"
    gate = found.get("gate") or {"verdict": None}
    if gate["verdict"] is not None:
        text += f"; gate {gate['verdict']}: {gate['why']}" + (f"; {gate['cause']}" if gate["cause"] else "")
    return _answer(text, found, slowdown_percent=slowdown, verdict=gate["verdict"])


def overlap(
    device: str = "sim:h200",
    batch: int | str | None = None,
    count: int = 32,
    work: int | None = None,
    kernel_ms: float | None = None,
    upload_ms: float | None = None,
    download_ms: float | None = None,
) -> Annotated[CallToolResult, Report]:
    """Predict what overlapping copies with kernels gains for a job, from times or sizes, without a program.

    Args:
        device: ``sim:h200``, ``sim:a100`` and so on; ``cuda:0`` measures on a GPU.
        batch: The size of a batch in bytes, or as in ``4MiB``.
        count: Number of batches.
        work: Multiplications and additions for each four bytes of ``batch``.
        kernel_ms: Milliseconds of kernels for a batch, instead of ``batch`` and ``work``.
        upload_ms: Milliseconds of its upload from pinned memory.
        download_ms: Milliseconds of its download.
    """
    job: dict[str, Any] = {"batch": batch, "count": count, "work": work, "kernel_ms": kernel_ms}
    with _raised_as_tool_error():
        found = sidestream.overlap(device, **job, upload_ms=upload_ms, download_ms=download_ms)
        return _answer(str(found), found.to_dict())


@contextlib.contextmanager
def _raised_as_tool_error() -> Iterator[None]:
    """Pass on what an error says. The client learns nothing of any other error than ``ToolError``."""
    try:
        yield
    except Exception as error:
        raise ToolError(str(error)) from error


def _refused(output: str) -> NoReturn:
    """Raise what a command said last."""
    lines = [line for line in output.strip().splitlines() if line and not line.startswith("For more")]
    last = (lines or ["the command ended without a word"])[-1]
    raise ToolError(last.partition("error: ")[2] or last.removeprefix("sidestream: "))


async def _run(command: list[str], timeout_s: float) -> dict[str, Any]:
    """Run a command, and return how it ended. Its processes end with it, also if the client cancels."""
    process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True)
    assert process.stdout is not None
    pipe, kept, written = process.stdout, bytearray(), 0

    def read() -> None:
        nonlocal written
        while piece := os.read(pipe.fileno(), 1 << 16):
            written += len(piece)
            kept.extend(piece)
            del kept[:-OUTPUT_BYTES]

    async def has_ended() -> None:
        # The event loop's own wait also waits for the pipe, which the program's children may hold open.
        while process.poll() is None:
            await anyio.sleep(0.05)

    _running.add(process)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        with anyio.move_on_after(timeout_s):
            await has_ended()
        timed_out = process.poll() is None
        if timed_out:
            process.terminate()
            with anyio.move_on_after(GRACE_S):
                await has_ended()
    finally:
        kill_group(process)
        process.wait()
        _running.discard(process)
    # A process that left the group may keep the pipe open.
    reader.join(1)
    ended = {"exit_code": process.returncode, "timed_out": timed_out, "output": kept.decode(errors="replace")}
    return {**ended, "output_left_out_bytes": written - len(kept)}


def _answer(text: str, report: dict[str, Any] | None, **more: Any) -> CallToolResult:
    """Return a result of which no part is too large."""
    for entries in ENTRIES:
        left_out: Counter[str] = Counter()
        shortened = _shortened(report, entries, "", left_out)
        if len(json.dumps(shortened)) <= JSON_CHARACTERS:
            break
    if len(text) > TEXT_CHARACTERS:
        text = f"{text[:TEXT_CHARACTERS]}\n… {len(text) - TEXT_CHARACTERS} characters were left out"
    if left_out:
        text += f"\nleft out of the data: {', '.join(f'{count} {path}' for path, count in left_out.items())}"
    data = {"report": shortened, "left_out": dict(left_out), **more}
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=data)


def _shortened(value: Any, entries: int, path: str, left_out: Counter[str]) -> Any:
    if isinstance(value, dict):
        below = f"{path}." if path else ""
        return {key: _shortened(one, entries, below + key, left_out) for key, one in value.items()}
    if isinstance(value, list):
        # The numbers of a shape or a range belong together.
        most = ENTRIES[0] if value and isinstance(value[0], (int, float)) else entries
        if len(value) > most:
            left_out[path] += len(value) - most
        return [_shortened(one, entries, path, left_out) for one in value[:most]]
    if isinstance(value, str) and len(value) > STRING_CHARACTERS:
        return value[:STRING_CHARACTERS] + "…"
    return value


def _end(number: int, _: object) -> None:
    """End the server by a signal, with the programs that it runs."""
    for process in list(_running):
        kill_group(process)
    os._exit(128 + number)


def main() -> None:
    """Serve the client on standard input and output until it closes them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    server = MCPServer(
        "sidestream",
        version=sidestream.__version__,
        instructions="Find races of PyTorch programs on GPUs, and why a GPU idles. Paths are relative to "
        f"{os.getcwd()}.",
        log_level="WARNING",
    )
    server.add_tool(check)
    for tool in (diagnose, compare, overlap):
        server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True))
    server.run()


if __name__ == "__main__":
    main()
