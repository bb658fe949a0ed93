"""``sidestream.ray.diagnose`` with Ray on this machine, and without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# Ray starts processes of its own. The test runs in a separate process with a time limit, with which they end.
BEGIN = """
import os, sys
import ray
import sidestream
import sidestream.ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
"""


def with_ray(code: str, *args: object) -> str:
    """Run code with Ray on this machine, and return its output."""
    # Ray's sockets are in this folder, and their names must be short.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ran = subprocess.run(
            [sys.executable, "-c", BEGIN + code + "\nray.shutdown()", folder, *map(str, args)],
            env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.ray
def test_ranks_are_diagnosed_as_tasks_with_the_same_result(ranks: Path) -> None:
    code = """
by_ray = sidestream.ray.diagnose(sys.argv[2], link_gbps=10, what_if=iter(["second-stream"]))
alone = sidestream.diagnose(sys.argv[2], link_gbps=10, what_if="second-stream")
assert by_ray.reports == alone.reports and by_ray.ranks == alone.ranks and by_ray.failed == ()
assert len(by_ray.reports) == 3 and by_ray.ranks.straggler == 1
short = sidestream.ray.diagnose(sys.argv[2], reports=False)
assert short.reports == () and short.ranks == sidestream.diagnose(sys.argv[2]).ranks
assert short.ranks.to_dict() == sidestream.ray.diagnose(sys.argv[2], on_each_machine=True).ranks.to_dict()
try:
    sidestream.ray.diagnose(sys.argv[2] + "/gone", on_each_machine=True)
except sidestream.TraceError as error:
    print(error)
print(by_ray)
"""
    said = with_ray(code, ranks)
    assert f"{ranks}/gone: no machine of the cluster has traces there" in said
    assert "waiting: rank 0, 2, up to 400.0 µs a step in exchanges of data" in said


@pytest.mark.ray
def test_a_rank_that_fails_is_named_and_the_others_stay(ranks: Path) -> None:
    # One file is not a trace. The process that reads another one dies, as if out of memory.
    (ranks / "rank0.json").write_text("no trace")
    code = """
import sidestream._together as together
import sidestream.ray as by_ray
def dies(path, link_gbps, what_if, of=together.diagnosis_or_failure):
    if path.endswith("rank2.json"):
        os._exit(1)
    return of(path, link_gbps, what_if)
by_ray.diagnosis_or_failure = dies
report = by_ray.diagnose(sys.argv[2], options={"max_retries": 0})
assert [one.rank for one in report.reports] == [1]
assert [os.path.basename(one.file) for one in report.failed] == ["rank0.json", "rank2.json"], report.failed
assert isinstance(report.failed[0].error, sidestream.TraceError)
assert isinstance(report.failed[1].error, ray.exceptions.WorkerCrashedError), report.failed
print(report.failed[1].why.splitlines()[0])
"""
    # Ray itself sometimes prints something, too.
    assert "its task failed: " in with_ray(code, ranks)


@pytest.mark.ray
def test_a_wrong_argument_is_raised_before_a_task_begins(ranks: Path) -> None:
    code = """
ray.shutdown()
try:
    sidestream.ray.diagnose(sys.argv[2], what_if="faster")
except ValueError as error:
    assert type(error) is ValueError
    print(error)
try:
    sidestream.ray.diagnose(sys.argv[2], options=5)
except TypeError as error:
    print(error)
assert not ray.is_initialized(), "a task was begun"
"""
    said = with_ray(code, ranks)
    assert "what_if: there is no change `faster`; there are pinned," in said
    assert "options is 5; give what a task needs as a dictionary" in said


@pytest.mark.ray
def test_after_an_interruption_no_other_task_is_handed_over(ranks: Path) -> None:
    # Ctrl-C comes while the caller waits. Of 40 traces, two are being read, and two more tasks are queued.
    code = """
import sidestream.ray as by_ray
waits = ray.wait
def is_interrupted(running, **named):
    waits(running, **named)
    print(len(running), "were handed over")
    raise KeyboardInterrupt
ray.wait = is_interrupted
try:
    by_ray.diagnose([f"/traces/{rank}.json" for rank in range(40)])
except KeyboardInterrupt:
    print("and no other")
"""
    assert with_ray(code, ranks).splitlines()[-2:] == ["4 were handed over", "and no other"]


def test_without_ray_the_remedy_is_named(ranks: Path) -> None:
    code = """
import sys
sys.modules["ray"] = None
import sidestream.ray
assert sidestream.ray.diagnose.__doc__
try:
    sidestream.ray.diagnose(sys.argv[1])
except ImportError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(ranks)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout.startswith("sidestream.ray needs Ray, which is not installed; pip install ray, or use")
