"""``sidestream.diagnose`` on folders and lists of traces."""

from __future__ import annotations

import html
import json
import pickle
from pathlib import Path

import pytest
import sidestream
from sidestream import Diagnoses, FailedTrace


def of_folder(ranks: Path) -> Diagnoses:
    """A folder that a type checker accepts as a path."""
    report = sidestream.diagnose(ranks)
    assert isinstance(report, Diagnoses)
    return report


def test_a_folder_says_which_rank_the_others_wait_for(ranks: Path) -> None:
    report = of_folder(ranks)
    assert [one.rank for one in report.reports] == [0, 1, 2]
    together = report.ranks
    assert together is not None
    assert (together.world, together.straggler, together.waiting) == (4, 1, (0, 2))
    assert (together.missing, together.doubled, together.spread) == (((3, 3),), (), 0.0)
    assert [(one.rank, one.waits_ns) for one in together.ranks] == [(0, 400_000), (1, 0), (2, 380_000)]
    assert together.ranks[1].step.time_ns == 1_000_000
    assert together.ranks[1].step.exposed_communication_ns == 200_000
    assert together.ranks[1].file == str(ranks / "rank1.json")
    # The mean of the five steps whose beginning is known; the time before the first belongs to no step.
    assert together.ranks[0].idle_by_cause == {"HOST_WORK": 95_000, "LAUNCH_BOUND": 5_000}


def test_the_slow_rank_has_a_cause_and_a_price(ranks: Path) -> None:
    together = of_folder(ranks).ranks
    assert together is not None and together.slow is not None
    slow = together.slow
    assert (slow.rank, slow.cause, slow.compared, slow.is_alike) == (1, "compute", 2, True)
    assert (slow.excess_ns, slow.step_ns, slow.predicted_ns) == (390_000, 1_000_000, 620_000)
    assert [group.name for group in together.groups] == ["all ranks"]
    assert (together.worst[0].last, together.worst[0].waited, together.worst[0].waited_ns) == (1, 0, 400_000)
    assert together.html().startswith("<!doctype html>") and 'id="heat"' in together.html()


def test_a_folder_is_shown_as_the_command_shows_it(ranks: Path) -> None:
    shown = str(sidestream.diagnose(ranks))
    late = "waiting: rank 0, 2, up to 400.0 µs a step in exchanges of data"
    assert "3 ranks of 4 together, clocks aligned to 0 ns" in shown.splitlines()
    assert late in shown.splitlines()
    assert "first:  there is no trace of rank 3: the slow rank may be missing" in shown.splitlines()
    # Each rank is shown in short form, although its diagnosis has more.
    (report,) = sidestream.diagnose([ranks / "rank1.json"]).reports
    assert f"{ranks / 'rank1.json'}: pytorch trace, 30 events, rank 1 of 4" in shown.splitlines()
    assert "step 1 took" in str(report) and "step 1 took" not in shown


def test_a_list_holds_files_and_folders(ranks: Path, traces: Path) -> None:
    alone = traces / "copy_bound.before.json.gz"
    report = sidestream.diagnose([str(alone), ranks])
    assert [one.file for one in report.reports] == [str(alone)] + [
        str(ranks / f"rank{rank}.json") for rank in range(3)
    ]
    assert report.reports[0] == sidestream.diagnose(alone)
    assert report.ranks is not None
    assert report.ranks.warnings[0] == "1 of 4 traces are left out: they state no rank"
    # A trace without a rank is shown in full.
    assert str(report).startswith(str(report.reports[0]))


def test_traces_of_no_run_have_no_ranks(traces: Path) -> None:
    report = sidestream.diagnose(traces.glob("mask.*.json.gz"))
    assert (len(report.reports), report.ranks, report.failed) == (2, None, ())


def test_a_trace_that_cannot_be_read_is_named_and_the_others_stay(ranks: Path) -> None:
    (ranks / "rank1.json").write_text("no trace")
    gone = ranks / "gone.json"
    report = sidestream.diagnose([ranks, gone])
    assert [one.rank for one in report.reports] == [0, 2]
    assert [one.file for one in report.failed] == [str(ranks / "rank1.json"), str(gone)]
    bad, missing = report.failed
    assert isinstance(bad.error, sidestream.TraceError) and isinstance(missing.error, FileNotFoundError)
    assert f"failed: {bad.file}: the file is not a trace; give the JSON" in str(report)
    assert report.ranks is not None and report.ranks.missing == ((1, 1), (3, 3))
    assert repr(report) == "<Diagnoses of 2 traces, 2 failed>"


def test_all_of_it_is_exported(ranks: Path) -> None:
    (ranks / "rank2.json").write_text("")
    report = of_folder(ranks)
    value = report.to_dict()
    assert json.loads(report.json()) == value
    assert [one["schema"] for one in value["reports"]] == ["sidestream.diagnose/2"] * 2
    assert value["failed"] == [{"file": str(ranks / "rank2.json"), "error": report.failed[0].why}]
    assert value["ranks"]["schema"] == "sidestream.diagnose.ranks/2"
    assert value["ranks"]["straggler"] == 1
    value["ranks"].clear()
    assert report.to_dict()["ranks"]
    shown = report._repr_html_()
    assert html.unescape(shown) == f"<pre>{report}</pre>" and "<" not in shown[5:-6]


def test_it_survives_a_pickle(ranks: Path) -> None:
    (ranks / "rank2.json").write_text("")
    report = of_folder(ranks)
    other: Diagnoses = pickle.loads(pickle.dumps(report))
    assert (other.reports, other.failed, other.ranks) == (report.reports, report.failed, report.ranks)
    assert (str(other), other.json()) == (str(report), report.json())
    assert isinstance(other.failed[0], FailedTrace)


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sidestream.TraceError, match="the folder has no traces .* in it; name the traces"):
        sidestream.diagnose(tmp_path)
    with pytest.raises(ValueError, match="no traces were named; give a folder"):
        sidestream.diagnose([])


def test_options_apply_to_each_trace(ranks: Path) -> None:
    # An iterator is read once, and all traces get its values.
    report = sidestream.diagnose([ranks], link_gbps=10, what_if=iter(["second-stream"]))
    assert [one.to_dict()["link"]["gb_per_s"] for one in report.reports] == [10.0] * 3
    assert [[w.changes for w in one.what_if] for one in report.reports] == [[("second-stream",)]] * 3
    with pytest.raises(ValueError, match="there is no change `faster`"):
        sidestream.diagnose(ranks, what_if="faster")
    with pytest.raises(ValueError, match="which is not the speed of a link"):
        sidestream.diagnose(ranks, link_gbps=0)
