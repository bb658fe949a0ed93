"""``python -m sidestream.mcp``, driven over standard input and output by a client that others wrote."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

#: Holds a lock, as does its child, and never ends. It waits until `started` is read.
ENDLESS = """
import fcntl, subprocess, sys, time
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], pass_fds=[lock.fileno()])
open("started", "w").close()
time.sleep(100)
"""


@contextlib.asynccontextmanager
async def client(folder: Path) -> AsyncIterator[Any]:
    """A client of a server that runs in a folder and must print no traceback."""
    import mcp

    said = folder / "said"
    parameters = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "sidestream.mcp"], cwd=folder, env=dict(os.environ)
    )
    with said.open("w") as errors:
        async with mcp.Client(mcp.stdio_client(parameters, errors)) as connected:
            yield connected
    assert "Traceback" not in said.read_text()


async def refusal(connected: Any, tool: str, **arguments: Any) -> str:
    """What a call that must fail says."""
    answer = await connected.call_tool(tool, arguments)
    assert answer.is_error and answer.structured_content is None
    said: str = answer.content[0].text
    return said.removeprefix(f"Error executing tool {tool}: ")


def seconds_until_all_have_ended(folder: Path) -> float:
    """Seconds until no process holds the lock of `ENDLESS`."""
    start = time.monotonic()
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    return time.monotonic() - start


@pytest.mark.torch
def test_an_agent_gets_the_races_of_a_program_as_data(tmp_path: Path) -> None:
    # The program prints and reads where the server has its protocol, and its folder has a module `mcp`.
    head = "import sys\nprint('{' * 100_000, sys.argv[1:], repr(sys.stdin.read()))\n"
    racy = Path(__file__).parents[3] / "examples/python/racy_copy.py"
    (tmp_path / "racy.py").write_text(head + racy.read_text())
    (tmp_path / "mcp.py").write_text("raise ImportError('not this one')")

    async def main() -> None:
        async with client(tmp_path) as connected:
            tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
            assert set(tools) == {"check", "diagnose", "compare", "overlap"}
            assert all("report" in tool.output_schema["properties"] for tool in tools.values())
            asked = {"script": "racy.py", "arguments": ["--epochs", "1"], "simulate": True}
            answer = await connected.call_tool("check", asked)
            data = answer.structured_content
            assert (data["exit_code"], data["timed_out"], data["left_out"]) == (1, False, {})
            assert [race["kind"] for race in data["report"]["races"]] == ["RAW", "RAW", "UAF"]
            assert "{ ['--epochs', '1'] ''\n3 races in 52 operations" in data["output"]
            assert data["output_left_out_bytes"] > 90_000 and "3 races" in answer.content[0].text
            said = await refusal(connected, "check", script="gone.py")
            assert said == "there is no file gone.py; name a script, or a module with -m"
            said = await refusal(connected, "check", script="racy.py", timeout_s=0)
            assert said.startswith("timeout_s is 0.0; give the seconds for the program")

    asyncio.run(main())


@pytest.mark.torch
def test_a_program_ends_with_its_processes_after_its_time_or_when_the_client_cancels(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    (tmp_path / "lock").touch()
    os.mkfifo(tmp_path / "started")

    async def main() -> None:
        async with client(tmp_path) as connected:
            asked = {"script": "endless.py", "simulate": True}
            answer = await connected.call_tool("check", {**asked, "timeout_s": 6})
            assert answer.structured_content["timed_out"]
            assert answer.content[0].text.startswith("ended after 6 s (timeout_s), with all its processes")
            assert seconds_until_all_have_ended(tmp_path) < 20
            call = asyncio.ensure_future(connected.call_tool("check", asked))
            await asyncio.to_thread((tmp_path / "started").read_text)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
            # The server goes on.
            assert not (await connected.call_tool("overlap", {"kernel_ms": 8, "upload_ms": 3})).is_error
            assert seconds_until_all_have_ended(tmp_path) < 20

    asyncio.run(main())


@pytest.mark.torch
def test_an_agent_gets_diagnoses_and_predictions_as_data(traces: Path, tmp_path: Path) -> None:
    for name in ("both_ways.before", "both_ways.after"):
        (tmp_path / f"{name}.json.gz").symlink_to(traces / f"{name}.json.gz")

    async def main() -> None:
        async with client(tmp_path) as connected:
            before, after = "both_ways.before.json.gz", "both_ways.after.json.gz"
            asked = {"trace": before, "what_if": ["prefetch=2"]}
            answer = await connected.call_tool("diagnose", asked)
            report = answer.structured_content["report"]
            assert report["findings"][0]["code"] == "COPY_ON_COMPUTE_STREAM"
            assert [one["changes"] for one in report["what_if"]] == [["prefetch=2"]]
            assert "what-if prefetch=2" in answer.content[0].text
            assert "there is no change `faster`" in await refusal(
                connected, "diagnose", trace=before, what_if=["faster"]
            )

            for trace, against, passed in ((after, before, True), (before, after, False)):
                pair = {"trace": trace, "against": against, "gate_percent": 5}
                data = (await connected.call_tool("compare", pair)).structured_content
                assert data["verdict"] == ("passed" if passed else "failed")
                assert (data["slowdown_percent"] < 5) is passed
                assert data["report"]["schema"] == "sidestream.diagnose.compare/1"
            said = await refusal(connected, "compare", trace="gone.json", against=before)
            assert said.startswith("gone.json: the file cannot be read")
            assert "is a folder; give one trace" in await refusal(
                connected, "compare", trace=".", against=before
            )

            answer = await connected.call_tool("overlap", {"kernel_ms": 8, "upload_ms": 3})
            assert answer.structured_content["report"]["limit_ns"] == 259_000_000
            said = await refusal(connected, "overlap", kernel_ms=-8)
            assert said.startswith("kernel_ms is -8.0; give the milliseconds of a batch")

    asyncio.run(main())


@pytest.mark.torch
def test_a_large_result_is_shortened_and_says_by_how_much(traces: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with client(tmp_path) as connected:
            answer = await connected.call_tool("diagnose", {"trace": str(traces)})
            data = answer.structured_content
            left_out = data["left_out"]["reports"]
            assert len(data["report"]["reports"]) + left_out == len(list(traces.glob("*.json.gz")))
            assert f"{left_out} reports" in answer.content[0].text and len(answer.content[0].text) < 9_000
            assert len(str(data)) < 50_000

    asyncio.run(main())


def test_without_the_package_mcp_the_remedy_is_named() -> None:
    run = "runpy.run_module('sidestream.mcp', run_name='__main__')"
    code = f"import runpy, sys; sys.modules['mcp'] = None; {run}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
    assert ran.stderr.startswith('sidestream.mcp needs the package mcp: pip install "mcp>=2,<3" (')
