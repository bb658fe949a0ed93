"""``sidestream.diagnose`` on traces of an H200, and on files that are not traces."""

from __future__ import annotations

import dataclasses
import gzip
import html
import json
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sidestream
from sidestream import Diagnosis, Estimate, Prediction, Steps, StreamLoad


@pytest.fixture
def copy_bound(traces: Path) -> Diagnosis:
    """An upload from pinned memory in the stream of the kernels."""
    return sidestream.diagnose(traces / "copy_bound.before.json.gz")


def test_the_figures_are_those_of_the_trace(copy_bound: Diagnosis) -> None:
    (device,) = copy_bound.devices
    assert (device.device, device.name, device.gpu_ops) == (0, "NVIDIA H200", 72)
    assert (device.span_ns, device.busy_ns, device.idle_ns) == (55875981, 55701996, 173985)
    assert (device.kernel_ns, device.host_copy_ns, device.hidden_copy_ns) == (22294411, 33407585, 0)
    assert device.idle_by_cause == {"DEVICE_LATENCY": 173985}
    assert device.streams == (StreamLoad(stream=7, context=1, gpu_ops=72, busy_ns=55701996),)
    assert device.overlap_ns["upload"]["kernel"] == 0
    assert copy_bound.steps == Steps(
        count=12, median_ns=4656878, by="profiler_step", p10_ns=4648527, p90_ns=4668014, mean_ns=4657358
    )
    assert copy_bound.warnings == ()


def test_a_finding_says_what_it_is_worth_and_where_it_shows(copy_bound: Diagnosis) -> None:
    (finding,) = copy_bound.findings
    assert finding.code == "COPY_ON_COMPUTE_STREAM"
    assert finding.text.startswith("copies of 154.1 MB in a step are in the stream of the kernels")
    saving = finding.saving_ns
    assert 0 < saving.low <= saving.likely <= saving.high < 4656878
    assert finding.share == pytest.approx(0.598, abs=0.001)
    assert finding.evidence[0].what == "Memcpy HtoD (Pinned -> Device)"
    assert finding.evidence[0].duration_ns == 2793718


def test_a_replay_explains_the_trace(copy_bound: Diagnosis) -> None:
    replay = copy_bound.replay
    assert replay.ok and replay.why is None
    assert replay.measured_ns == 4657358
    assert replay.explained_share is not None and replay.explained_share > 0.99


def test_each_text_of_what_if_is_one_prediction(traces: Path) -> None:
    path = traces / "infer_pageable.before.json.gz"

    def changes(what_if: str | list[str]) -> list[tuple[str, ...]]:
        return [one.changes for one in sidestream.diagnose(path, what_if=what_if).what_if]

    assert changes("pinned, no-sync") == [("pinned", "no-sync")]
    assert changes(["pinned", "pinned,prefetch=3"]) == [("pinned",), ("pinned", "prefetch=3")]
    assert changes([]) == []


def test_prefetching_is_predicted_as_it_came_out(traces: Path) -> None:
    report = sidestream.diagnose(traces / "copy_bound.before.json.gz", what_if="prefetch=2")
    (prediction,) = report.what_if
    assert isinstance(prediction, Prediction) and isinstance(prediction.step_ns, Estimate)
    # Measured, the step took 2.79 ms instead of 4.64 ms.
    assert 0.57 < prediction.ratio < 0.63
    assert prediction.step_ns.low <= prediction.step_ns.likely <= prediction.step_ns.high


def test_the_speed_of_the_link_can_be_stated(traces: Path) -> None:
    path = traces / "copy_bound.before.json.gz"
    assert sidestream.diagnose(path).to_dict()["link"]["by"] == "measured"
    stated = sidestream.diagnose(path, link_gbps=10).to_dict()["link"]
    assert stated == {"gb_per_s": 10.0, "by": "stated"}


def test_the_json_holds_all_of_it(copy_bound: Diagnosis, traces: Path) -> None:
    report = json.loads(copy_bound.json())
    assert report == copy_bound.to_dict()
    assert report["schema"] == "sidestream.diagnose/2"
    assert report["file"] == copy_bound.file == str(traces / "copy_bound.before.json.gz")
    # The fields of the classes are those of the JSON, without exception.
    assert json.loads(json.dumps([dataclasses.asdict(d) for d in copy_bound.devices])) == report["devices"]
    assert json.loads(json.dumps([dataclasses.asdict(f) for f in copy_bound.findings])) == report["findings"]
    assert json.loads(json.dumps([dataclasses.asdict(p) for p in copy_bound.what_if])) == report["what_if"]


def test_what_was_handed_out_can_be_changed_without_harm(copy_bound: Diagnosis) -> None:
    copy_bound.to_dict()["findings"].clear()
    assert len(copy_bound.to_dict()["findings"]) == len(copy_bound.findings) == 1


def test_a_later_field_of_the_schema_is_skipped(copy_bound: Diagnosis) -> None:
    report = copy_bound.to_dict()
    for part in (report, report["steps"], report["devices"][0], report["findings"][0]):
        part["of_later_years"] = 1
    texts = (str(copy_bound), copy_bound.html(), "", "")
    assert Diagnosis(json.dumps(report), *texts).devices == copy_bound.devices


def test_it_is_shown_as_the_command_shows_it(copy_bound: Diagnosis) -> None:
    shown = str(copy_bound)
    assert shown.startswith(f"{copy_bound.file}: pytorch trace, 692 events\n")
    assert "COPY_ON_COMPUTE_STREAM  59.8 % of a step: copies of 154.1 MB in a step" in shown
    assert "device  0 (NVIDIA H200): 72 operations in 55.88 ms, idle 0.3 %" in shown
    assert repr(copy_bound).endswith("copy_bound.before.json.gz: COPY_ON_COMPUTE_STREAM>")


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(copy_bound: Diagnosis) -> None:
    page = copy_bound.html()
    assert page.startswith("<!doctype html>") and "COPY_ON_COMPUTE_STREAM" in page
    shown = copy_bound._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and shown.endswith("</iframe>")
    assert html.unescape(shown.split('"')[1]) == page


def test_it_survives_a_pickle(copy_bound: Diagnosis) -> None:
    assert copy_bound.findings  # Parsed first: the parsed findings are not part of the pickle.
    other = pickle.loads(pickle.dumps(copy_bound))
    assert other == copy_bound and hash(other) == hash(copy_bound)
    assert (other.findings, str(other)) == (copy_bound.findings, str(copy_bound))
    assert other.html() == copy_bound.html()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty; was the trace written to its end?"),
        (b"no trace", "the file is not a trace; give the JSON of PyTorch's profiler"),
        (b'{"a": 1}', "the file is JSON without a member `traceEvents`"),
        (b'{"traceEvents": []}', "was the profiler asked for CUDA activity?"),
        (gzip.compress(b"no trace"), "the file is not a trace; give the JSON of PyTorch's profiler"),
        (b"SQLite format 3\0and no more", "nsys"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused_with_name_and_remedy(
    content: bytes, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(sidestream.TraceError) as raised:
        sidestream.diagnose(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert why in str(raised.value)
    assert isinstance(raised.value, ValueError)
    # Worker processes pickle their exceptions.
    assert repr(pickle.loads(pickle.dumps(raised.value))) == repr(raised.value)


def test_a_compressed_file_that_is_broken_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.json.gz"
    path.write_bytes(b"\x1f\x8b" + b"\xff" * 100)
    with pytest.raises(sidestream.TraceError, match=r"broken\.json\.gz: "):
        sidestream.diagnose(str(path))


def test_a_file_that_cannot_be_read_raises_what_open_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        sidestream.diagnose(tmp_path / "gone.json")
    assert str(missing.value) == f"[Errno 2] No such file or directory: '{tmp_path / 'gone.json'}'"
    with pytest.raises(TypeError, match="path is 5; give a file, a folder, or a list"):
        sidestream.diagnose(5)  # type: ignore[call-overload]
    with pytest.raises(sidestream.TraceError, match="this is a folder, a pipe or a device"):
        sidestream.diagnose("/dev/null")


def test_options_of_another_kind_are_refused_and_all_means_the_usual_changes(traces: Path) -> None:
    path = traces / "copy_bound.before.json.gz"
    for options, why in (
        ({"link_gbps": "55"}, "link_gbps is '55'; give GB/s as a number"),
        ({"what_if": 5}, "what_if is 5; give a string"),
        ({"what_if": [5]}, r"what_if is \[5\]; give a string"),
    ):
        with pytest.raises(TypeError, match=why):
            sidestream.diagnose(path, **options)
    with pytest.raises(TypeError, match="path is None; give the name of a file"):
        sidestream.diagnose([None])  # type: ignore[list-item]
    with (
        path.open("rb") as file,
        pytest.raises(TypeError, match="path is <_io.Buff.*>; give a file, a folder"),
    ):
        sidestream.diagnose(file)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='what_if has "all" among others; give "all" alone'):
        sidestream.diagnose(path, what_if=["pinned", "all"])
    for everything in ("all", ["all"]):
        assert sidestream.diagnose(path, what_if=everything) == sidestream.diagnose(path)
    with pytest.raises(TypeError, match="path is b'trace.json'; give a file, a folder"):
        sidestream.diagnose(b"trace.json")  # type: ignore[arg-type]


@pytest.mark.parametrize("speed", [0, -1.0, float("nan"), float("inf")])
def test_an_invalid_link_speed_is_refused(speed: float, traces: Path) -> None:
    with pytest.raises(ValueError, match="link_gbps is .*, which is not the speed of a link"):
        sidestream.diagnose(traces / "copy_bound.before.json.gz", link_gbps=speed)


def test_an_unknown_change_is_refused_with_those_there_are(traces: Path) -> None:
    with pytest.raises(ValueError, match="what_if: there is no change `faster`; there are pinned,"):
        sidestream.diagnose(traces / "copy_bound.before.json.gz", what_if="pinned,faster")
    for one_or_many in (traces / "copy_bound.before.json.gz", [traces / "copy_bound.before.json.gz"]):
        with pytest.raises(TypeError, match='what_if is 5; give a string such as "pinned,no-sync"'):
            sidestream.diagnose(one_or_many, what_if=5)  # type: ignore[call-overload]


def test_other_threads_run_during_a_diagnosis(tmp_path: Path) -> None:
    # The trace is long enough that the middle of the call is far from its ends.
    kernel = (
        '{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {}, "dur": 5, '
        '"args": {{"device": 0}}}}'
    )
    events = ",".join(kernel.format(10 * at) for at in range(100_000))
    trace = tmp_path / "long.json"
    trace.write_text(f'{{"traceEvents": [{events}]}}')

    def runs_meanwhile() -> bool:
        moments: list[float] = []
        over = threading.Event()

        def count() -> None:
            while not over.wait(0.0001):
                moments.append(time.perf_counter())

        counter = threading.Thread(target=count)
        counter.start()
        start = time.perf_counter()
        sidestream.diagnose(trace)
        end = time.perf_counter()
        over.set()
        counter.join()
        third = (end - start) / 3
        return any(start + third < moment < end - third for moment in moments)

    # The machine may stall for a while with all threads, but not in every attempt.
    assert any(runs_meanwhile() for _ in range(20))


def test_other_threads_run_during_a_check(programs: Path, tmp_path: Path) -> None:
    # The input comes through a pipe from another Python thread, and is longer than the pipe's buffer: a call
    # that kept the GIL would wait forever.
    source = tmp_path / "long.yaml"
    source.write_text((programs / "hello_race.yaml").read_text() + "# and so on\n" * 20_000)
    assert source.stat().st_size > 65536
    code = f"""
import os, pathlib, threading, sidestream
fifo = {str(tmp_path / "fifo")!r}
os.mkfifo(fifo)
content = pathlib.Path({str(source)!r}).read_bytes()
threading.Thread(target=lambda: pathlib.Path(fifo).write_bytes(content)).start()
print(len(sidestream.check_program(fifo).races))
"""
    # This limit only ends a test that has failed.
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert (ran.stdout, ran.stderr) == ("1\n", "")


def test_the_tables_are_attributes(traces: Path) -> None:
    starved = sidestream.diagnose(traces / "starved_hard.before.json.gz")
    step, load = starved.ranges[0], next(row for row in starved.ranges if row.name == "load_batch")
    assert (step.name, step.depth, step.calls, load.depth) == ("ProfilerStep*", 0, 12, 1)
    # The loader causes most of the idle time, and launches nothing.
    (device,) = starved.devices
    assert load.own.idle_ns / device.span_ns > 0.65
    assert load.total.device_ops == 0 and load.total.host_ns > load.own.idle_ns
    outside = starved.to_dict()["tables"]["outside_ranges"]
    assert sum(row.own.idle_ns for row in starved.ranges) + outside["idle_ns"] == device.idle_ns
    convolution = next(row for row in starved.operators if row.name == "aten::cudnn_convolution")
    assert convolution.kind == "operator" and 0 < convolution.device_self_ns <= convolution.device_ns
    assert convolution.host_self_ns < convolution.host_ns
    kernel = starved.kernels[0]
    assert kernel.grid is not None and kernel.block is not None and kernel.registers
    assert starved.memory == ()


def test_a_table_is_the_one_that_the_command_prints(traces: Path, tmp_path: Path) -> None:
    # The trace has the form that record_shapes=True writes, with two shapes in turn.
    trace = json.loads(gzip.decompress((traces / "starved_hard.before.json.gz").read_bytes()))
    operators = (event for event in trace["traceEvents"] if event.get("cat") == "cpu_op")
    for at, event in enumerate(operators):
        event.setdefault("args", {})["Input Dims"] = [[8, at % 2 + 1]]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    report = sidestream.diagnose(path)
    table = report.table("operators", sort="host-self", limit=5, by_shape=True)
    command = [sys.executable, "-m", "sidestream", "diagnose", str(path), "--table", "operators"]
    command += ["--sort", "host-self", "--limit", "5", "--by-shape"]

    def said(*more: str) -> str:
        ran = subprocess.run([*command, *more], capture_output=True, text=True, check=True, timeout=300)
        return ran.stdout

    assert json.loads(said("--json")) == table.to_dict()
    assert said("--width", "100").strip() == str(table)
    rows = list(table)
    assert len(table) == len(rows) == 5 and table[0] == rows[0]
    hosts = [row.host_self_ns for row in rows]
    assert hosts == sorted(hosts, reverse=True) and hosts[0] > 0
    # Rows that differ only in shapes have one name.
    shaped = [row for row in report.table("operators", limit=1000, by_shape=True) if row.shapes]
    assert len({row.name for row in shaped}) < len({(row.name, row.shapes) for row in shaped})
    assert report.table("kernels", limit=1)[0] == report.kernels[0]


def test_a_table_that_there_is_not_is_refused_with_those_there_are(copy_bound: Diagnosis) -> None:
    with pytest.raises(ValueError, match='no table is called "layers"; there is operators, ranges, kernels'):
        copy_bound.table("layers")
    with pytest.raises(ValueError, match='no column is called "time"; there is device, device-self'):
        copy_bound.table("operators", sort="time")
    with pytest.raises(ValueError, match="kernels cannot be sorted by host; sort by device, calls"):
        copy_bound.table("kernels", sort="host")
    with pytest.raises(ValueError, match="ranges have no shapes of inputs"):
        copy_bound.table("ranges", by_shape=True)
    with pytest.raises(ValueError, match="limit is 0; give the maximum number of rows, 1 or more"):
        copy_bound.table("operators", limit=0)
    with pytest.raises(RuntimeError, match="diagnose the trace again"):
        pickle.loads(pickle.dumps(copy_bound)).table("operators")
