"""``_sidestream.Timeline``: the times of a simulated program."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import sidestream
from sidestream._sidestream import Timeline

#: A copy of 64 MiB takes 1.2 ms on the link of an H200, and 4.2 ms from pageable memory.
BYTES = 64 << 20


def spread(ns: float) -> tuple[float, float, float]:
    return 0.9 * ns, ns, 1.2 * ns


class Program:
    """A program of one thread, with a compute stream and a copy stream."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.line = Timeline("sim:h200", keeps)
        self.host = self.line.thread("main")
        self.compute, self.copies = self.line.stream(7, 0), self.line.stream(13, 0)

    def launch(self, kernel_ns: float, host_ns: float = 5e3) -> int:
        ns = spread(host_ns), spread(kernel_ns)
        return self.line.launch(self.host, self.compute, "aten::mm", ns[0], "gemm", ns[1])

    def copy(self, kind: str, *, size: int = BYTES, waits: bool = False, on: int | None = None) -> int:
        stream = self.copies if on is None else on
        return self.line.copy(self.host, stream, "aten::copy_", spread(4e3), kind, size, waits)

    def finish(self) -> tuple[int, int, int]:
        self.line.synchronize(self.host, None, None)
        return self.line.now(self.host)


def test_an_upload_runs_beside_a_kernel_of_another_stream() -> None:
    beside, behind = Program(), Program()
    for program, stream in (beside, beside.copies), (behind, behind.compute):
        program.launch(2e6)
        program.copy("upload", on=stream)
    assert beside.finish()[1] == pytest.approx(2.01e6, rel=0.01)
    assert behind.finish()[1] == pytest.approx(3.23e6, rel=0.01)


def test_a_wait_orders_streams() -> None:
    program = Program()
    line, host = program.line, program.host
    program.copy("upload")
    uploaded = line.record(host, program.copies)
    line.wait(host, program.compute, uploaded)
    kernel = program.launch(1e6)
    assert not line.query(host, uploaded)
    line.synchronize(host, uploaded, None)
    assert line.query(host, uploaded) and not line.query(host, kernel)
    for now, copied, computed in zip(line.now(host), line.end(uploaded), line.end(kernel), strict=True):
        assert copied < now < copied + 10_000 and computed > copied + 890_000


def test_many_small_kernels_take_the_time_of_their_launches() -> None:
    program = Program()
    for _ in range(500):
        program.launch(2e3, host_ns=8e3)
    assert program.finish()[1] == pytest.approx(500 * 8e3, rel=0.01)
    # Larger ones take their own, which includes the gap before each.
    program = Program()
    for _ in range(500):
        program.launch(20e3, host_ns=8e3)
    assert program.line.now(program.host) == (3_600_000, 4_000_000, 4_800_000)
    low, likely, high = program.finish()
    assert likely == pytest.approx(500 * 20e3, rel=0.01)
    assert low == pytest.approx(0.9 * likely, rel=0.01) and high == pytest.approx(1.2 * likely, rel=0.01)


def test_the_host_waits_for_what_is_pageable() -> None:
    def takes(kind: str, size: int = BYTES, *, waits: bool = False) -> float:
        program = Program()
        program.launch(1e6)
        program.copy(kind, size=size, waits=waits, on=program.compute)
        return program.line.now(program.host)[1]

    assert takes("upload") < 20e3 and takes("download") < 20e3 and takes("fill") < 20e3
    assert takes("device", waits=True) > 1e6
    assert takes("upload", waits=True) == pytest.approx(2.24e6, rel=0.01)
    assert takes("upload_pageable") == pytest.approx(5.27e6, rel=0.01)
    assert takes("download_pageable", 4) == pytest.approx(1.02e6, rel=0.01)
    # The host only copies a small upload to staging memory.
    assert takes("upload_pageable", 1 << 20) == pytest.approx(0.1e6, rel=0.05)


def test_a_full_stream_holds_the_host_back() -> None:
    program = Program()
    for _ in range(3_000):
        program.launch(100e3)
    ahead = program.finish()[1] - 200e6
    assert 90e6 < ahead < 110e6 and program.line.now(program.host)[1] > 300e6
    program = Program()
    for _ in range(3_000):
        program.launch(100e3)
    assert program.line.now(program.host)[1] == pytest.approx(200e6, rel=0.01)


def test_a_thread_begins_where_the_others_are() -> None:
    program = Program()
    program.line.work(program.host, "", spread(1e6))
    other = program.line.thread("worker")
    program.line.work(other, "", spread(1e3))
    assert program.line.now(other) == (900_900, 1_001_000, 1_201_200)


def test_memory_does_not_grow_with_the_program() -> None:
    program, kept = Program(), Program(keeps=True)
    ends = []
    for of, launches in (program, 200_000), (kept, 20_000):
        first = of.line.record(of.host, of.compute)
        of.launch(1e6)
        second = of.line.record(of.host, of.compute)
        most = 0
        for at in range(launches):
            of.launch(6e3)
            if at % 10_000 == 0:
                most = max(most, of.line.remembered)
        ends.append((of.line.end(first), of.line.end(second)))
        assert of.line.query(of.host, second)
        if of is program:
            assert most < 20_000
        else:
            assert of.line.remembered > 40_000
    # The ends of markers stay known.
    assert ends[0] == ends[1]


def test_odd_numbers_are_no_time() -> None:
    program = Program()
    for ns in math.nan, -1.0, -math.inf, -0.0:
        program.line.work(program.host, "", (ns, ns, ns))
        program.launch(ns, ns)
    assert program.finish()[1] < 1e5
    for _ in range(20):
        program.launch(math.inf, 1e308)
        program.copy("upload", size=2**64 - 1, waits=True)
    low, likely, high = program.finish()
    assert 1e15 < low <= likely <= high


def test_what_is_not_there_is_refused() -> None:
    program = Program()
    line, host, stream = program.line, program.host, program.compute
    with pytest.raises(ValueError, match="1 is not a thread of this timeline"):
        line.work(stream, "", spread(1))
    with pytest.raises(ValueError, match="0 is not a stream of this timeline"):
        line.record(host, host)
    with pytest.raises(ValueError, match="99 is not a marker of this timeline"):
        line.wait(host, stream, 99)
    with pytest.raises(ValueError, match=r'there is no copy "sideways"; there are upload, '):
        program.copy("sideways")
    with pytest.raises(ValueError, match="keeps=True"):
        line.trace("trace.json", 0)
    for name in "sim:h20", "cuda:0", "sim:none.toml":
        with pytest.raises(sidestream.DeviceError):
            Timeline(name, False)
    with pytest.raises(FileNotFoundError):
        Timeline("sim:h200", True).trace("no/such/folder/trace.json", 0)


def test_diagnose_reads_its_trace(tmp_path: Path) -> None:
    program = Program(keeps=True)
    line, host = program.line, program.host
    begun = 0
    for step in range(10):
        begun = begun or (step == 2 and line.now(host)[1])
        line.range(host, f"ProfilerStep#{step}")
        line.work(host, "load", spread(300e3))
        program.copy("upload_pageable", waits=True, on=program.copies)
        line.wait(host, program.compute, line.record(host, program.copies))
        for _ in range(10):
            program.launch(100e3)
        program.copy("download_pageable", size=4, waits=True, on=program.compute)
        line.range(host, "")
    program.finish()
    file = tmp_path / "trace.json"
    line.trace(str(file), begun)

    # One step: 0.3 ms of host work, 64 MiB at 15.8 GB/s, ten kernels of 0.1 ms.
    step_ns = 300e3 + BYTES / 15.8 + 1e6
    found = sidestream.diagnose(file)
    assert found.to_dict()["source"]["kind"] == "sidestream"
    assert found.steps.count == 8 and found.steps.mean_ns == pytest.approx(step_ns, rel=0.02)
    report = json.loads(json.dumps(found.to_dict()))
    (device,) = report["devices"]
    assert device["name"] == "NVIDIA H200" and device["gpu_ops"] == 8 * 12
    per_step = report["per_step"]
    assert per_step["busy_ns"] / per_step["time_ns"] == pytest.approx(1 - 300e3 / step_ns, abs=0.02)
    copies = {(copy["direction"], copy["memory"]): copy for copy in report["copies"]}
    upload = copies["HtoD", "pageable"]
    assert upload["bytes"] == 8 * BYTES and upload["gb_per_s"] == pytest.approx(15.8, rel=0.01)
    assert copies["DtoH", "pageable"]["count"] == 8
    assert report["launches"]["linked"] == 8 * 12 and report["launches"]["orphans"] == 0
    assert found.findings[0].code == "PAGEABLE_COPY"
    # The trace has no cost of a profiler, so the replay takes as long as the trace.
    assert found.replay is not None
    assert found.replay.replayed_ns == pytest.approx(found.replay.measured_ns, rel=0.001)
    (kernel,) = report["kernels"]
    assert (kernel["name"], kernel["calls"]) == ("gemm", 80)
