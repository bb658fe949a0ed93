"""Planted races and their fixed twins, with made-up addresses: neither a GPU nor PyTorch is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driven import Recorder, recorder
from forked import python
from sidestream._sidestream import RaceError

MAIN, SIDE, THIRD = 0, 0x100, 0x200
X, Y, Z = 0x10_0000, 0x20_0000, 0x30_0000
HOST = 0x7000_0000
SIZE = 4096


def found(run: Recorder) -> list[dict[str, Any]]:
    report = json.loads(run.report())
    assert report["ended"] is None
    races: list[dict[str, Any]] = report["races"]
    return races


def read(run: Recorder, stream: int, ptr: int = X, size: int = SIZE) -> None:
    run.operator("read", [(ptr, size)], [], stream)


def write(run: Recorder, stream: int, ptr: int = X, size: int = SIZE) -> None:
    run.operator("write", [], [(ptr, size)], stream)


def wait(run: Recorder, stream: int, source: int, event: int = 1) -> None:
    """``stream.wait_stream(source)``."""
    run.event_record(event, source)
    run.event_wait(event, stream)


def launch(run: Recorder, graph: int, stream: int) -> None:
    run.pretend_stream(stream)
    run.replay(graph)


# Each case has a mistake unless it is `right`; the set has the kinds of races that are found with the
# mistake.
CASES: dict[str, tuple[Callable[[Recorder, bool], None], set[str]]] = {}


def case(*kinds: str) -> Callable[[Callable[[Recorder, bool], None]], Callable[[Recorder, bool], None]]:
    def put(program: Callable[[Recorder, bool], None]) -> Callable[[Recorder, bool], None]:
        CASES[program.__name__] = (program, set(kinds))
        return program

    return put


@case("RAW")
def a_read_without_a_wait(run: Recorder, right: bool) -> None:
    write(run, SIDE)
    if right:
        wait(run, MAIN, SIDE)
    read(run, MAIN)


@case("WAR")
def a_buffer_filled_again_too_early(run: Recorder, right: bool) -> None:
    read(run, MAIN)
    if right:
        wait(run, SIDE, MAIN)
    write(run, SIDE)


@case("WAW")
def two_writers(run: Recorder, right: bool) -> None:
    write(run, SIDE)
    if right:
        wait(run, THIRD, SIDE)
    write(run, THIRD)


@case("RAW")
def a_record_before_the_work(run: Recorder, right: bool) -> None:
    run.event_record(1, SIDE)
    write(run, SIDE)
    if right:
        run.event_record(1, SIDE)
    run.event_wait(1, MAIN)
    read(run, MAIN)


@case("RAW")
def a_wait_for_the_wrong_event(run: Recorder, right: bool) -> None:
    run.event_record(1, SIDE)
    write(run, SIDE)
    run.event_record(2, SIDE)
    run.event_wait(2 if right else 1, MAIN)
    read(run, MAIN)


@case("RAW")
def wait_stream_is_a_snapshot(run: Recorder, right: bool) -> None:
    if not right:
        wait(run, MAIN, SIDE)
    write(run, SIDE)
    if right:
        wait(run, MAIN, SIDE)
    read(run, MAIN)


@case("RAW")
def an_event_recorded_again_elsewhere(run: Recorder, right: bool) -> None:
    write(run, SIDE)
    run.event_record(1, SIDE)
    if right:
        run.event_wait(1, MAIN)
    run.event_record(1, THIRD)
    run.event_wait(1, MAIN)
    read(run, MAIN)


@case("RAW")
def an_event_that_was_never_recorded(run: Recorder, right: bool) -> None:
    run.on_event_creation(1)
    write(run, SIDE)
    if right:
        run.event_record(1, SIDE)
    run.event_wait(1, MAIN)
    read(run, MAIN)


@case("RAW")
def an_event_whose_handle_was_another_event(run: Recorder, right: bool) -> None:
    write(run, SIDE)
    run.event_record(1, SIDE)
    if not right:
        run.on_event_deletion(1)
        run.on_event_creation(1)
    run.event_wait(1, MAIN)
    read(run, MAIN)


@case("RAW")
def three_streams_in_a_row(run: Recorder, right: bool) -> None:
    write(run, SIDE)
    wait(run, THIRD, SIDE)
    write(run, THIRD, Y)
    wait(run, MAIN, THIRD if right else 0x300)
    read(run, MAIN)


@case("RAW")
def views_that_overlap_in_part(run: Recorder, right: bool) -> None:
    run.allocated(X, MAIN)
    read(run, MAIN, X, 1)
    wait(run, SIDE, MAIN)
    wait(run, THIRD, MAIN, 2)
    write(run, SIDE, X, SIZE // 2 + 8)
    read(run, THIRD, X + SIZE // 2 + (8 if right else 0), SIZE // 2 - 8)


@case("WAW")
def halves_and_a_whole(run: Recorder, right: bool) -> None:
    write(run, SIDE, X, SIZE // 2)
    write(run, THIRD, X + SIZE // 2, SIZE // 2)
    wait(run, MAIN, SIDE)
    if right:
        wait(run, MAIN, THIRD)
    write(run, MAIN)


def used_on_the_side(run: Recorder) -> None:
    run.allocated(X, MAIN)
    write(run, MAIN)
    wait(run, SIDE, MAIN)
    read(run, SIDE)


def used_again(run: Recorder) -> None:
    run.on_memory_deallocation(X)
    run.allocated(X, MAIN)
    write(run, MAIN)


@case("UAF")
def reuse_without_record_stream(run: Recorder, right: bool) -> None:
    used_on_the_side(run)
    if right:
        run.record_stream(X, SIZE, SIDE)
    used_again(run)


@case("UAF")
def record_stream_of_the_wrong_stream(run: Recorder, right: bool) -> None:
    used_on_the_side(run)
    run.record_stream(X, SIZE, SIDE if right else THIRD)
    used_again(run)


@case("UAF")
def the_home_waits_before_the_free_or_not(run: Recorder, right: bool) -> None:
    used_on_the_side(run)
    if right:
        wait(run, MAIN, SIDE)
    used_again(run)


@case("UAF")
def freed_memory_that_is_split(run: Recorder, right: bool) -> None:
    used_on_the_side(run)
    if right:
        run.record_stream(X, SIZE, SIDE)
    run.on_memory_deallocation(X)
    run.allocated(X, MAIN)
    run.allocated(X + SIZE // 2, MAIN)
    write(run, MAIN, X + SIZE // 2, SIZE // 2)


@case("UAF")
def first_use_on_a_side_stream(run: Recorder, right: bool) -> None:
    run.allocated(X, MAIN)
    write(run, MAIN)
    run.on_memory_deallocation(X)
    run.allocated(X, MAIN)
    if right:
        wait(run, SIDE, MAIN)
    write(run, SIDE)


@case("HOST_RAW")
def the_host_reads_a_download_too_early(run: Recorder, right: bool) -> None:
    run.host_memory(HOST, SIZE, True)
    write(run, SIDE)
    run.host_copy("copy_", HOST, X, SIZE, False, SIDE)
    if right:
        run.stream_synchronize(SIDE)
    run.host_access("item", HOST, 4, False)


@case("HOST_RAW")
def the_host_waits_for_the_wrong_stream(run: Recorder, right: bool) -> None:
    run.host_memory(HOST, SIZE, True)
    run.host_copy("copy_", HOST, X, SIZE, False, SIDE)
    run.stream_synchronize(SIDE if right else THIRD)
    run.host_access("item", HOST, 4, False)


@case("HOST_WAR")
def the_host_fills_a_source_too_early(run: Recorder, right: bool) -> None:
    run.host_memory(HOST, SIZE, True)
    run.host_access("fill_", HOST, SIZE, True)
    run.host_copy("copy_", HOST, X, SIZE, True, SIDE)
    if right:
        run.event_record(1, SIDE)
        run.on_event_synchronization(1)
    run.host_access("fill_", HOST, SIZE, True)


@case("HOST_WAW")
def the_host_writes_where_a_download_lands(run: Recorder, right: bool) -> None:
    run.host_memory(HOST, SIZE, True)
    run.host_copy("copy_", HOST, X, SIZE, False, SIDE)
    if right:
        run.device_synchronize()
    run.host_access("fill_", HOST, SIZE, True)


@case("HOST_WAR")
def a_query_that_was_not_asked(run: Recorder, right: bool) -> None:
    run.host_memory(HOST, SIZE, True)
    run.host_copy("copy_", HOST, X, SIZE, True, SIDE)
    run.event_record(1, SIDE)
    if right:
        run.event_complete(1)
    run.host_access("fill_", HOST, SIZE, True)


@case("HOST_WAR")
def a_stream_that_was_not_asked(run: Recorder, right: bool) -> None:
    run.host_memory(HOST, SIZE, True)
    run.host_copy("copy_", HOST, X, SIZE, True, SIDE)
    if right:
        run.stream_complete(SIDE, 0)
    run.host_access("fill_", HOST, SIZE, True)


@case("HOST_RAW")
def a_pageable_download_that_may_not_have_waited(run: Recorder, right: bool) -> None:
    run.host_memory(HOST, SIZE, False)
    run.host_copy("copy_", HOST, X, SIZE, False, SIDE)
    if right:
        run.stream_synchronize(SIDE)
    run.host_access("item", HOST, 4, False)


@case("RAW")
def the_default_stream_does_not_wait_for_pytorchs_streams(run: Recorder, right: bool) -> None:
    if right:
        run.stream_is_blocking(SIDE)
    write(run, SIDE)
    read(run, MAIN)


@case("WAR", "WAW")
def a_copy_across_devices_read_too_early(run: Recorder, right: bool) -> None:
    run.operator("write", [], [(X, SIZE)], 0x400, 1)
    run.device_copy(X, Y, SIZE, 0x400, SIDE, (1, 0))
    # The stream of the target waits in any case; a third stream does not.
    read(run, SIDE, Y)
    if right:
        wait(run, THIRD, SIDE)
    write(run, THIRD, Y)


@case("RAW")
def synchronising_the_wrong_device(run: Recorder, right: bool) -> None:
    write(run, SIDE)
    run.device_synchronize(0 if right else 1)
    read(run, THIRD)


@case("RAW")
def a_graph_that_runs_beside_its_input(run: Recorder, right: bool) -> None:
    run.capture_begin(7)
    run.operator("mul", [(X, SIZE)], [(Y, SIZE)], SIDE)
    run.capture_end()
    write(run, MAIN)
    if right:
        wait(run, SIDE, MAIN)
    launch(run, 7, SIDE)


@case("RAW")
def a_graph_whose_result_is_read_too_early(run: Recorder, right: bool) -> None:
    run.capture_begin(7)
    run.operator("mul", [(X, SIZE)], [(Y, SIZE)], SIDE)
    run.capture_end()
    launch(run, 7, SIDE)
    if right:
        wait(run, MAIN, SIDE)
    read(run, MAIN, Y)


def captured(run: Recorder, graph: int, stream: int, memory: int) -> None:
    run.capture_begin(graph)
    run.operator("addmm", [(memory, SIZE)], [(memory + SIZE, SIZE)], stream, product=True)
    run.capture_end()


@case("WAW")
def two_graphs_that_were_captured_on_one_stream(run: Recorder, right: bool) -> None:
    """By default, `torch.cuda.graph` captures everything on one stream, for which cuBLAS has one workspace.
    """
    captured(run, 7, THIRD, X)
    captured(run, 8, 0x400 if right else THIRD, Y)
    launch(run, 7, MAIN)
    launch(run, 8, SIDE)


@case("WAW")
def a_graph_beside_a_product_on_the_stream_of_its_capture(run: Recorder, right: bool) -> None:
    captured(run, 7, SIDE, X)
    launch(run, 7, MAIN)
    if right:
        wait(run, SIDE, MAIN)
    run.operator("mm", [(Y, SIZE)], [(Z, SIZE)], SIDE, product=True)


@case("WAR")
def a_list_of_tensors_of_which_one_is_written(run: Recorder, right: bool) -> None:
    every = [(X + at * SIZE, SIZE) for at in range(40)]
    run.operator("_foreach_norm", every, [(Y, SIZE)], MAIN)
    if right:
        wait(run, SIDE, MAIN)
    write(run, SIDE, X + 17 * SIZE)


@case("UAF")
def memory_grown_by_a_second_tensor(run: Recorder, right: bool) -> None:
    """The size of an allocation is learned from its tensors, one by one."""
    run.allocated(X, MAIN)
    write(run, MAIN, X, 512)
    wait(run, SIDE, MAIN)
    read(run, SIDE, X + 1024, 512)
    if right:
        run.record_stream(X, 512, SIDE)
    run.on_memory_deallocation(X)
    run.allocated(X + 1024, MAIN)
    write(run, MAIN, X + 1024, 512)


@pytest.mark.parametrize("name", CASES)
def test_a_planted_race_is_found(name: str) -> None:
    program, kinds = CASES[name]
    run = recorder()
    program(run, False)
    assert {race["kind"] for race in found(run)} == kinds


@pytest.mark.parametrize("name", CASES)
def test_its_repaired_twin_is_silent(name: str) -> None:
    program, _ = CASES[name]
    run = recorder()
    program(run, True)
    assert found(run) == []


def test_two_halves_do_not_meet() -> None:
    run = recorder()
    write(run, SIDE, X, SIZE // 2)
    write(run, THIRD, X + SIZE // 2, SIZE // 2)
    assert found(run) == []


def test_a_query_that_said_no_orders_nothing() -> None:
    """Only queries that returned True are reported to the recorder."""
    run = recorder()
    write(run, SIDE)
    run.event_record(1, SIDE)
    read(run, MAIN)
    assert [race["kind"] for race in found(run)] == ["RAW"]


def test_memory_that_was_returned_to_the_driver_does_not_race() -> None:
    """The next owner of the memory belongs to another stream, which does not happen with PyTorch's allocator
    alone.
    """
    run = recorder()
    run.allocated(X, SIDE)
    write(run, SIDE)
    run.on_memory_deallocation(X)
    run.allocated(X, MAIN)
    write(run, MAIN)
    assert found(run) == []


def test_equal_races_are_listed_once() -> None:
    run = recorder()
    for _ in range(50):
        run.allocated(X, SIDE)
        write(run, SIDE)
        read(run, MAIN)
        run.record_stream(X, SIZE, MAIN)
        run.on_memory_deallocation(X)
    races = found(run)
    assert [race["kind"] for race in races] == ["RAW"]
    assert races[0]["count"] == 50


def test_the_fix_is_in_the_words_of_pytorch() -> None:
    run = recorder()
    a_read_without_a_wait(run, False)
    (race,) = found(run)
    assert race["fix"] == "call `torch.cuda.default_stream().wait_stream(stream0)` before {second}"
    run = recorder()
    reuse_without_record_stream(run, False)
    (race,) = found(run)
    assert "`x.record_stream(stream1)`" in race["fix"]
    assert race["freed_between"]


def test_a_workspace_is_named_by_the_stream_of_the_captures() -> None:
    run = recorder()
    two_graphs_that_were_captured_on_one_stream(run, False)
    (race,) = found(run)
    assert race["workspace"] == "stream0" and race["shape"] is None
    assert race["fix"].startswith(
        "capture each graph on a separate stream (`torch.cuda.graph(graph, stream="
    )
    assert race["fix"].endswith("or call `stream2.wait_stream(torch.cuda.default_stream())` before {second}")


def test_what_is_captured_and_no_product_needs_no_workspace() -> None:
    run = recorder()
    for graph, memory in ((7, X), (8, Y)):
        run.capture_begin(graph)
        run.operator("mul", [(memory, SIZE)], [(memory + SIZE, SIZE)], THIRD)
        run.capture_end()
    launch(run, 7, MAIN)
    launch(run, 8, SIDE)
    assert found(run) == []


def test_the_second_access_raises_where_that_is_asked_for() -> None:
    run = recorder(raises=True)
    write(run, SIDE)
    with pytest.raises(RaceError, match="RAW"):
        read(run, MAIN)


def test_a_race_at_the_places_of_an_earlier_one_raises_as_well() -> None:
    run = recorder(raises=True)
    for memory in (X, Y):
        run.allocated(memory, SIDE)
        write(run, SIDE, memory)
        with pytest.raises(RaceError, match="RAW"):
            read(run, MAIN, memory)
    (race,) = found(run)
    assert race["count"] == 2


def test_memory_does_not_grow_with_the_length_of_a_run() -> None:
    """The numbers of tenancies are reused: 50 kB suffice for 40 of them."""
    run = recorder(memory=200_000)
    for _ in range(20_000):
        run.allocated(X, MAIN)
        write(run, MAIN)
        run.on_memory_deallocation(X)
    assert found(run) == []
    assert json.loads(run.report())["operations"] == 20_000


def test_a_report_does_not_wait_for_a_thread_that_waits_for_the_interpreter() -> None:
    """The first look at a stack gives the interpreter to another thread, and so does each one that collects
    garbage.
    """
    ran = python(
        "-c",
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import faulthandler, threading\n"
        "from driven import recorder\n"
        "faulthandler.dump_traceback_later(60, exit=True)\n"
        "sys.setswitchinterval(1e-6)\n"
        "run, over = recorder(hidden=([], [], '/nowhere/')), threading.Event()\n"
        "def ask():\n"
        "    while not over.is_set():\n"
        "        run.report(), run.frames(1)\n"
        "threads = [threading.Thread(target=ask) for _ in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "run.event_record(1, 0)\n"
        "over.set()\n"
        "for thread in threads: thread.join()\n",
    )
    assert ran.returncode == 0, ran.stderr
