"""Measurements on the CPU, and on a double of PyTorch whose device takes a given time."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sidestream
import torch_double
from sidestream import Benchmark, Roofline, _benchmark, _far_off


def add_up(n: int) -> int:
    """Do something that takes longer than an empty call."""
    return sum(range(n))


def test_a_function_is_measured_on_the_processor() -> None:
    result = sidestream.benchmark(add_up, 1000, repeat=5, device="cpu")
    assert (result.name, result.device, result.count) == ("add_up", "cpu", 5)
    low, high = result.quartiles_ns
    assert 0 < low <= result.median_ns <= high
    assert result.host_ns == result.median_ns and not result.is_launch_bound
    assert result.calls > 1
    assert str(result).startswith("add_up on cpu: ")


def test_it_calls_what_it_says_and_nothing_more() -> None:
    calls: list[int] = []

    def slow(value: int) -> None:
        # Takes longer than the minimum duration of a sample.
        sum(range(200_000))
        calls.append(value)

    result = sidestream.benchmark(slow, 7, warmup=2, repeat=4, device="cpu")
    # Three calls determine the number of calls in a sample.
    assert len(calls) == 2 + 3 + 4 * result.calls and set(calls) == {7}


def test_a_function_that_does_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no more than an empty call"):
        sidestream.benchmark(lambda: None, repeat=3, device="cpu")


def test_the_error_of_the_function_is_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        sidestream.benchmark(lambda: 1 / 0, device="cpu")


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"repeat": 0}, "repeat is 0; give the number of samples, 1 or more"),
        ({"warmup": -1}, "warmup is -1; give the number of calls before the first sample, 0 or more"),
        ({"flops": -1.0}, "flops is -1.0"),
        ({"bytes": float("inf")}, "bytes is inf"),
    ],
)
def test_what_cannot_be_is_refused(figures: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sidestream.benchmark(add_up, 10, **figures)  # type: ignore[arg-type]


def test_without_torch_a_gpu_is_asked_for_in_vain() -> None:
    code = """
import sys
sys.modules["torch"] = None
import sidestream
try:
    sidestream.benchmark(print, device="cuda")
except ImportError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "PyTorch is needed, which is not installed; pip install torch" in ran.stdout


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replaces PyTorch with its double during one test."""
    # Both modules are restored afterwards.
    for name in ("torch", "torch.cuda"):
        monkeypatch.setitem(sys.modules, name, None)
    torch_double.install()
    yield


@pytest.mark.usefixtures("double")
def test_the_devices_time_does_not_contain_the_hosts() -> None:
    def launch_bound() -> None:
        sum(range(20_000))  # The host is busy for much longer than the device.
        torch_double.work(5_000)

    result = sidestream.benchmark(launch_bound, repeat=25, device="cuda")
    assert (result.device, result.device_name, result.includes_host) == ("cuda:0", "NVIDIA H200", False)
    assert result.median_ns < 50_000 < result.host_ns and result.is_launch_bound


@pytest.mark.usefixtures("double")
def test_long_work_takes_what_the_device_says() -> None:
    result = sidestream.benchmark(torch_double.work, 3_000_000, repeat=9, bytes=4.8e9)
    assert result.calls == 1 and not result.is_launch_bound
    # On this device an event takes no time.
    assert result.median_ns == pytest.approx(3_000_000, rel=1e-6)
    assert result.roofline is not None and result.roofline.bound == "memory"
    assert result.roofline.share == pytest.approx(1 / 3, rel=1e-6)


@pytest.mark.usefixtures("double")
def test_a_function_that_waits_for_the_device_is_not_made_to_wait_longer() -> None:
    def waits() -> None:
        event = torch_double.Event()
        torch_double.work(200_000)
        event.record()
        event.synchronize()

    result = sidestream.benchmark(waits, repeat=5)
    assert result.includes_host and not result.is_launch_bound
    assert "its time contains the host's" in str(result)
    assert result.median_ns >= 200_000


@pytest.mark.usefixtures("double")
def test_a_host_that_is_busy_with_something_else_is_not_taken_for_one_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # For its first fifty calls in samples, the function is resumed only long after the device was released.
    preemptions = 0

    def preempted() -> None:
        nonlocal preemptions
        torch_double.work(200_000)
        if 3 <= preemptions < 53:
            now = torch_double.work(0)
            while time.perf_counter_ns() < now:
                pass
        preemptions += 1

    monkeypatch.setattr(_benchmark, "_preemptions", lambda: preemptions)
    result = sidestream.benchmark(preempted, warmup=0, repeat=25, device="cuda")
    assert preemptions > 53 and not result.includes_host
    assert result.median_ns == pytest.approx(200_000, rel=1e-6)


@pytest.mark.usefixtures("double")
def test_a_function_that_puts_nothing_on_the_device_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"took no time on the current stream of cuda:0.*let the current one wait"
    ):
        sidestream.benchmark(add_up, 1000, repeat=15)


def on_h200(median_ns: float, host_ns: float, roofline: Roofline | None = None) -> Benchmark:
    """The result that a GPU would have given."""
    samples = (median_ns - 100.0, median_ns, median_ns + 100.0)
    return Benchmark("step", "cuda:0", "NVIDIA H200", 10, samples, (host_ns,) * 3, False, roofline, None)


def test_a_call_that_the_host_makes_too_slowly_is_said_to_be_bound_by_launches() -> None:
    bound = on_h200(10_000.0, 25_000.0)
    assert bound.is_launch_bound
    assert "the host takes 25 µs to submit a call, longer than the device to do it" in str(bound)
    free = on_h200(25_000.0, 10_000.0)
    assert not free.is_launch_bound and "longer than the device" not in str(free)


def test_it_is_exported_whole_and_shown_in_a_notebook() -> None:
    result = on_h200(
        10_000.0, 5_000.0, Roofline(8_000.0, "memory", 0.8, 67e12, 4.8e12, 2.0, 67 / 4.8, "fp32")
    )
    exported = json.loads(result.json())
    assert exported == result.to_dict() and exported["schema"] == "sidestream.benchmark/1"
    assert (exported["median_ns"], exported["quartiles_ns"]) == (10_000.0, [9_950.0, 10_050.0])
    assert "at least 8 µs by memory, 80 % reached" in str(result)
    assert "2.0 operations per byte; at 14.0 or more, arithmetic is the limit in fp32" in str(result)
    page = result._repr_html_()
    assert page.count("<rect") == 3 and "80 % reached" in page and "http" not in page
    assert pickle.loads(pickle.dumps(result)) == result


def test_peaks_come_from_the_profiles_and_unknown_is_said() -> None:
    from sidestream import _sidestream

    assert _sidestream.peaks("NVIDIA H200", "fp32") == (67e12, 4.8e12)
    assert _sidestream.peaks("NVIDIA H200", "bfloat16") == (989.4e12, 4.8e12)
    assert _sidestream.peaks("NVIDIA A100 80GB PCIe", "half") == (312e12, 1.935e12)
    assert _sidestream.peaks("NVIDIA A10G", "fp8") is None
    assert _sidestream.peaks("NVIDIA H200 NVL", "fp32") is None
    result = sidestream.benchmark(add_up, 1000, repeat=3, bytes=100.0, device="cpu")
    assert result.roofline is None
    assert "share of the roofline unknown: there are no figures for the CPU" in str(result)
    with pytest.raises(ValueError, match="peak_flops says nothing without flops"):
        sidestream.benchmark(add_up, 1000, repeat=3, peak_flops=1e9, device="cpu")
    told = sidestream.benchmark(add_up, 1000, repeat=3, flops=1000.0, peak_flops=1e9, device="cpu")
    assert told.roofline is not None and told.roofline.floor_ns == pytest.approx(1000.0)


def test_the_function_is_given_its_arguments_by_name() -> None:
    seen = []

    def work(count: int, *, repeat: int = 0) -> int:
        seen.append((count, repeat))
        return sum(range(count))

    result = sidestream.benchmark(work, 1000, repeat=2, device="cpu", kwargs={"repeat": 7})
    assert result.name == "work" and set(seen) == {(1000, 7)}
    for wrong in ({1: 2}, [("a", 1)], "ab"):
        with pytest.raises(TypeError, match="kwargs is .*; give a dictionary of arguments by their names"):
            sidestream.benchmark(work, 1000, device="cpu", kwargs=wrong)  # type: ignore[arg-type]


H200 = {
    "id": 0,
    "computeMajor": 9,
    "maxThreadsPerMultiprocessor": 2048,
    "warpSize": 32,
    "numSms": 132,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerMultiprocessor": 233472,
}


@pytest.mark.parametrize(
    ("grid", "block", "registers", "shared", "says"),
    [
        (44, 1024, 32, 0, "its 44 blocks leave 88 of 132 multiprocessors without work"),
        (1, 32, 32, 0, "its 1 block leaves"),
        (
            1100,
            256,
            32,
            0,
            "its 1,100 blocks are 1.04 times as many as fit at once: while the last ones run, "
            "96 % of the room is empty",
        ),
        (5000, 256, 128, 0, "its 128 registers a thread leave room for 16 of 64 warps on a multiprocessor"),
        (5000, 128, 40, 100 << 10, "its 102.4 kB of shared memory a block leave room for 8 of 64 warps"),
        (5000, 256, 32, 0, "its launch gives no reason (5,000 blocks of 256 threads, 32 registers each)"),
    ],
)
def test_what_is_far_off_the_roofline_is_told_by_its_launch(
    grid: int, block: int, registers: int, shared: int, says: str
) -> None:
    given = {
        "device": 0,
        "grid": [grid, 1, 1],
        "block": [block, 1, 1],
        "registers per thread": registers,
        "shared memory": shared,
    }
    events = [
        {
            "cat": "kernel",
            "name": "void (anonymous namespace)::long_one<float>(int)",
            "dur": 90.0,
            "args": given,
        }
    ]
    events.append({"cat": "kernel", "name": "short", "dur": 10.0, "args": given})
    events.append({"cat": "gpu_memcpy", "name": "Memcpy", "dur": 500.0, "args": {}})
    first, second, *more = _far_off.sentences(events, [H200])
    assert first == "a call is 2 kernels of 100 µs in all; long_one<float> takes 90 % of it"
    assert second.startswith(says) and not more
    result = dataclasses.replace(on_h200(100_000.0, 5_000.0), far_off=(first, second))
    assert second in str(result) and result.to_dict()["far_off"] == [first, second]


def test_where_half_of_the_warps_fit_the_profiler_says_so_too(traces: Path) -> None:
    """The occupancy that is computed from registers is the one that PyTorch's profiler estimated on an H200.
    """
    trace = json.loads(gzip.decompress((traces / "copy_bound.before.json.gz").read_bytes()))
    longest = max(
        (event for event in trace["traceEvents"] if event.get("cat") == "kernel"),
        key=lambda event: event["dur"],
    )
    assert longest["args"]["est. achieved occupancy %"] == 50
    said = _far_off.sentences([longest], trace["deviceProperties"])
    assert said[1].startswith("its 64 registers a thread leave room for 32 of 64 warps on a multiprocessor")
    assert _far_off.sentences([], []) == []
