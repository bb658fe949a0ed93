"""Prefetching of NumPy arrays: to a simulated GPU, and ahead of the loop on the CPU."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sidestream
from sidestream import DeviceArray, Stream, prefetch

DEVICES = ["cpu", "sim:h200"]
Feeders = Callable[[], list[threading.Thread]]


def batch(index: int, size: int = 1000) -> dict[str, Any]:
    numbers = np.random.default_rng(index)
    return {
        "image": numbers.random((size, 3), dtype=np.float32),
        "label": numbers.integers(0, 10, size),
        "names": [f"{index}.jpg"],
        "empty": np.empty((0, 4), np.uint8),
        "weight": np.array(0.5 * index),
    }


def on_host(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: on_host(value) for name, value in tree.items()}
    return tree.numpy() if isinstance(tree, DeviceArray) else tree


def same(given: Any, expected: dict[str, Any]) -> bool:
    given = on_host(given)
    assert list(given) == list(expected)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert given[name].dtype == value.dtype and given[name].shape == value.shape
        assert np.array_equal(given[name], value), name
    return True


def ended(thread: threading.Thread) -> bool:
    # This limit only ends a test that has failed.
    thread.join(300)
    return not thread.is_alive()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_every_batch_comes_as_it_was_in_sequence_in_every_epoch(
    device: str, depth: int, feeders: Feeders
) -> None:
    loader = [batch(index) for index in range(7)]
    with prefetch(loader, device, depth) as batches:
        assert len(batches) == 7
        for _ in range(3):
            assert [same(given, expected) for given, expected in zip(batches, loader, strict=True)] == [
                True
            ] * 7
        assert batches.statistics.batches == 21
    assert not feeders()


def test_a_simulated_gpu_gives_arrays_that_say_what_they_are() -> None:
    given = next(iter(prefetch([batch(3, 10)], "sim:h200")))
    image, weight, empty = given["image"], given["weight"], given["empty"]
    assert (image.shape, image.dtype, image.nbytes, image.device) == ((10, 3), "float32", 120, "sim:h200")
    assert (weight.shape, weight.dtype, empty.shape, empty.nbytes) == ((), "float64", (0, 4), 0)
    assert repr(image) == "<DeviceArray of float32 [10, 3] on sim:h200>"
    assert image.record_stream(Stream("sim:h200")) is None
    with pytest.raises(
        BufferError, match=r"simulated: other libraries cannot reach its memory; .* numpy\(\)"
    ):
        image.__dlpack__()
    assert not hasattr(image, "__cuda_array_interface__")
    with pytest.raises(TypeError, match=r"accepts only a sidestream\.Stream"):
        image.record_stream(7)


def test_a_loop_takes_as_many_slots_as_it_was_told() -> None:
    batches = prefetch((batch(index) for index in range(30)), "sim:h200", 3)
    for given in batches:
        assert given["image"].nbytes == 12000
    statistics = batches.statistics
    assert (statistics.slots, statistics.grown, statistics.retired) == (3, 0, 0)
    assert statistics.bytes == 30 * (12000 + 8000 + 8)


def test_pinned_memory_is_shown_and_limited() -> None:
    loader = [np.full(1000, at, np.uint8) for at in range(8)]
    # Other tests may have left larger memory.
    sidestream.empty_cache()
    for limit, pinned in ((None, 2000), (1999, 1000), (1000, 1000)):
        batches = prefetch(loader, "sim:h200", max_pinned=limit)
        assert [on_host({"x": given})["x"][0] for given in batches] == list(range(8))
        assert batches.statistics.pinned_bytes == pinned
        assert ("1000 B" if pinned == 1000 else "2000 B") + " of pinned memory for packing" in str(
            batches.statistics
        )
        batches.close()
        assert batches.statistics.pinned_bytes == 0
    with pytest.raises(
        ValueError,
        match=(
            r"a batch of 1000 bytes does not fit into 999 bytes of pinned memory "
            r"\(max_pinned, limit_pinned\); "
            "raise the limit, give more, smaller"
        ),
    ):
        next(iter(prefetch(loader, "sim:h200", max_pinned=999)))
    with pytest.raises(ValueError, match="max_pinned is 0"):
        prefetch(loader, "sim:h200", max_pinned=0)


def cached() -> tuple[int, int]:
    """Return the device and pinned memory that is kept for the next prefetcher."""
    return sidestream._sidestream.cached_bytes()


@pytest.mark.parametrize("end", ["exhausted", "closed", "break", "error", "not begun again"])
def test_what_a_prefetcher_leaves_is_the_next_ones_however_it_ended(end: str, feeders: Feeders) -> None:
    sidestream.empty_cache()
    loader = [batch(index) for index in range(5)]

    def epoch() -> None:
        batches = prefetch(loader, "sim:h200", 2)
        for at, given in enumerate(batches):
            assert same(given, loader[at])
            if at == 2 and end == "break":
                break
            if at == 2 and end == "error":
                raise ZeroDivisionError
        if end == "closed":
            batches.close()
        if end == "not begun again":
            next(iter(batches), None)

    left = []
    for _ in range(4):
        if end == "error":
            with pytest.raises(ZeroDivisionError):
                epoch()
        else:
            epoch()
        gc.collect()
        assert all(ended(thread) for thread in feeders())
        left.append(cached())
    # The second and later prefetchers found enough memory left by the first.
    assert left == [left[0]] * 4 and 0 < left[0][0] <= 2 * 21000 and left[0][1] == 2 * 20488
    sidestream.empty_cache()
    assert cached() == (0, 0)


def test_two_prefetchers_at_once_share_nothing_and_batches_outlive_what_is_given_back() -> None:
    sidestream.empty_cache()
    list(prefetch([batch(0)] * 4, "sim:h200"))
    gc.collect()
    kept = cached()
    assert kept[0] > 0
    loaders = [[batch(10 * at + index) for index in range(6)] for at in range(3)]
    held = []
    for given in zip(*(prefetch(loader, "sim:h200") for loader in loaders), strict=True):
        held.append(given)
        sidestream.empty_cache()
    for index, given in enumerate(held):
        assert all(same(one, loaders[at][index]) for at, one in enumerate(given))


def test_batches_that_are_kept_stay_what_they_are_and_take_memory_of_their_own() -> None:
    batches = prefetch((batch(index) for index in range(12)), "sim:h200", 2)
    kept = list(batches)
    assert all(same(given, batch(index)) for index, given in enumerate(kept))
    assert batches.statistics.slots == 12 and batches.statistics.grown == 10
    del kept
    # Memory that was released is reused.
    again = prefetch((batch(index) for index in range(12)), "sim:h200", 2)
    held = [next(iter(again))]
    assert len(held) == 1


def test_copies_leave_the_memory_as_it_is() -> None:
    batches = prefetch((batch(index) for index in range(9)), "sim:h200", 2, keep="copy")
    kept = list(batches)
    assert all(same(given, batch(index)) for index, given in enumerate(kept))
    assert batches.statistics.slots <= 2 and batches.statistics.grown == 0


def test_part_of_a_batch_keeps_all_of_its_memory_and_nothing_else_does() -> None:
    batches = prefetch((batch(index) for index in range(8)), "sim:h200", 2)
    labels = [given["label"] for given in batches]
    assert all(np.array_equal(label.numpy(), batch(index)["label"]) for index, label in enumerate(labels))
    assert batches.statistics.slots == 8


def test_batches_may_grow() -> None:
    sizes = [3, 1000, 10, 5000, 5001, 1]
    loader = [batch(index, size) for index, size in enumerate(sizes)]
    for _ in range(2):
        assert all(same(given, loader[at]) for at, given in enumerate(prefetch(loader, "sim:h200")))


def test_a_loader_that_writes_into_the_same_arrays_again_is_not_read_too_late() -> None:
    def loader() -> Iterator[Any]:
        reused = np.empty(300_000)
        for index in range(20):
            reused[:] = index
            yield [reused]

    for index, (given,) in enumerate(prefetch(loader(), "sim:h200")):
        values = given.numpy()
        assert (values == index).all()


def test_arrays_of_every_layout_come_as_their_values() -> None:
    whole = np.arange(24, dtype=np.int32).reshape(4, 6)
    kinds = [whole, whole[::2, ::-1], whole.T, whole.astype(">i4"), whole.astype(bool), whole * 1j]
    kinds += [whole[1, 1], np.array(2.5), np.frombuffer(whole.tobytes()), whole[:0]]
    given = next(iter(prefetch([kinds], "sim:h200")))
    for one, expected in zip(given, kinds, strict=True):
        assert np.array_equal(one.numpy(), expected) if isinstance(expected, np.ndarray) else one is expected


def broken(good: int, error: BaseException) -> Iterator[Any]:
    for index in range(good):
        yield batch(index)
    raise error


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [KeyError, SystemExit, GeneratorExit])
def test_an_error_of_the_loader_comes_after_the_good_batches_with_its_traceback(
    device: str, kind: type[BaseException]
) -> None:
    error = kind("the disk is gone")
    batches = iter(prefetch(broken(3, error), device))
    assert all(same(next(batches), batch(index)) for index in range(3))
    with pytest.raises(kind) as raised:
        next(batches)
    assert raised.value is error
    assert "broken" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    with pytest.raises(StopIteration):
        next(batches)


def test_an_error_of_iter_is_raised_where_it_is_called(feeders: Feeders) -> None:
    class Loader:
        def __iter__(self) -> Iterator[Any]:
            assert threading.current_thread() is threading.main_thread()
            raise OSError("no such folder")

    with pytest.raises(OSError, match="no such folder"):
        iter(prefetch(Loader(), "sim:h200"))
    assert not feeders()


def test_what_a_gpu_does_not_have_is_refused_with_its_place() -> None:
    wide = np.zeros(2, np.longdouble)
    loader: list[Any] = [[1], {"x": [np.zeros(1), wide]}]
    batches = iter(prefetch(loader, "sim:h200"))
    assert next(batches) == [1]
    with pytest.raises(TypeError, match=r"^batch 1, \['x'\]\[1\]: GPUs have no type \w+; convert the array"):
        next(batches)


@pytest.mark.parametrize("device", DEVICES)
def test_an_iteration_that_is_left_early_ends_its_thread(device: str, feeders: Feeders) -> None:
    def endless() -> Iterator[Any]:
        index = 0
        while True:
            yield batch(index)
            index += 1

    batches = prefetch(endless(), device)
    for given in batches:
        assert same(given, batch(0))
        break
    (thread,) = feeders()
    # Nothing refers to the iterator any longer.
    gc.collect()
    assert ended(thread)

    with pytest.raises(ZeroDivisionError):
        for _ in prefetch(endless(), device):
            _ = 1 / 0
    gc.collect()
    assert all(ended(thread) for thread in feeders())

    with prefetch(endless(), device) as batches:
        next(iter(batches))
    assert not feeders()
    with pytest.raises(ValueError, match="was closed"):
        iter(batches)


@pytest.mark.parametrize("device", DEVICES)
def test_a_new_iteration_ends_the_one_before(device: str) -> None:
    loader = [batch(index) for index in range(6)]
    batches = prefetch(loader, device)
    first = iter(batches)
    assert same(next(first), loader[0])
    second = iter(batches)
    assert [same(given, loader[at]) for at, given in enumerate(second)] == [True] * 6
    with pytest.raises(RuntimeError, match="one iteration at a time"):
        next(first)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_of_a_batch_is_kept_when_it_was_taken(device: str) -> None:
    alive: list[weakref.ref[Any]] = []

    def loader() -> Iterator[Any]:
        for index in range(4):
            made = np.full(1000, index)
            alive.append(weakref.ref(made))
            given = {"x": [made]}
            del made
            yield given
            del given

    for given in prefetch(loader(), device):
        del given
    assert len(alive) == 4 and [one() for one in alive] == [None] * 4


def test_a_batch_outlives_the_prefetcher() -> None:
    with prefetch([batch(5)], "sim:h200") as batches:
        given = next(iter(batches))
    del batches
    gc.collect()
    assert same(given, batch(5))


@pytest.mark.parametrize("device", DEVICES)
def test_a_transform_runs_in_the_callers_thread_and_its_error_is_its_batchs(device: str) -> None:
    seen: list[Any] = []

    def transform(given: Any) -> Any:
        seen.append(threading.current_thread())
        if len(seen) == 3:
            raise ArithmeticError("too dark")
        return given["label"], len(seen)

    batches = iter(prefetch([batch(index) for index in range(4)], device, transform=transform))
    for index in (1, 2):
        label, number = next(batches)
        assert number == index and np.array_equal(on_host(label), batch(index - 1)["label"])
    with pytest.raises(ArithmeticError, match="too dark"):
        next(batches)
    assert set(seen) == {threading.main_thread()}


def test_batches_can_be_taken_on_a_stream_that_is_named() -> None:
    consumer, other = Stream("sim:h200"), Stream("sim:a100")
    given = next(iter(prefetch([batch(1)], "sim:h200", stream=consumer)))
    assert same(given, batch(1))
    with pytest.raises(ValueError, match="belongs to sim:a100 and not to sim:h200"):
        next(iter(prefetch([batch(1)], "sim:h200", stream=other)))


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (lambda: prefetch([], "cpu", 0), ValueError, "depth is 0; give the number"),
        (lambda: prefetch([], "cpu", True), TypeError, "depth is True"),
        (
            lambda: prefetch([], "cpu", 1.5),  # type: ignore[call-overload]
            TypeError,
            "depth is 1.5; give the number",
        ),
        (lambda: prefetch([], "cpu", 10**20), ValueError, "give at most 4096 batches"),
        (
            lambda: prefetch([], "cpu", keep="all"),  # type: ignore[call-overload]
            ValueError,
            'keep is \'all\'; give "grow" or "copy"',
        ),
        (
            lambda: prefetch([], "cpu", transform=3),  # type: ignore[call-overload]
            TypeError,
            "transform is 3; give a function",
        ),
        (
            lambda: prefetch(3, "cpu"),  # type: ignore[call-overload]
            TypeError,
            "loader is 3; give something to iterate over",
        ),
        (
            lambda: prefetch({"x": 1}, "cpu"),
            TypeError,
            r"loader is one dict, whose keys would be the items; give \[loader\] if it is one item",
        ),
        (
            lambda: prefetch("data/train", "cpu"),
            TypeError,
            "loader is the text 'data/train', whose characters would be the items",
        ),
        (lambda: prefetch("cpu", [1]), TypeError, r"swapped; give prefetch\(loader, device\)"),
        (lambda: prefetch([], "sim:none"), sidestream.DeviceError, "sim:none"),
        (lambda: prefetch([], "cpu", stream=1), ValueError, "the CPU has no streams"),
        (lambda: len(prefetch(iter([]), "cpu")), TypeError, "has no len"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(
    make: Callable[[], Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        make()


def test_a_second_iteration_over_what_is_used_up_warns() -> None:
    batches = prefetch(iter([1, 2]), "cpu")
    assert list(batches) == [1, 2]
    with pytest.warns(UserWarning, match="loader is a list_iterator, which an earlier iteration used up"):
        assert list(batches) == []
    loaders: tuple[Any, ...] = (iter([]), [1, 2])
    for loader in loaders:
        with warnings.catch_warnings(), prefetch(loader, "cpu") as again:
            warnings.simplefilter("error")
            assert list(again) == list(again)


@pytest.mark.parametrize(
    ("batches", "elapsed_s", "waited_s", "says"),
    [
        (9, 1.0, 0.9, "9 batches are too few to say whether the loader keeps up"),
        (100, 10.0, 0.4, "the loader keeps up: 4 % of the time was spent waiting for it"),
        (
            100,
            10.0,
            5.0,
            "your loader is the limit: 50 % of the time was spent waiting for it, "
            "without which the loop would be 2.0 times as fast at most",
        ),
        (100, 10.0, 9.99, "the loop would be many times as fast at most"),
    ],
)
def test_the_statistics_end_in_a_verdict(batches: int, elapsed_s: float, waited_s: float, says: str) -> None:
    statistics = sidestream.PrefetchStatistics(
        "sim:h200", batches, 0, 0, 2, 0, 0, 0, elapsed_s, waited_s, 0.0, ()
    )
    assert says in statistics.verdict and statistics.verdict in str(statistics)
    assert statistics.to_dict()["verdict"] == statistics.verdict


def test_the_time_of_the_steps_counts_for_the_verdict() -> None:
    clock: list[float] = []
    with sidestream.prefetch(range(20), "cpu") as ahead:
        start = time.perf_counter()
        for _ in ahead:
            clock.append(time.perf_counter() - start)
            sum(range(20_000))
        assert 0 < ahead.statistics.elapsed_s <= time.perf_counter() - start
        # The step after the last batch is not counted, but the steps between two batches are.
        assert ahead.statistics.elapsed_s >= clock[-1] - clock[0]


def test_the_statistics_print_themselves_and_can_be_exported() -> None:
    batches = prefetch([batch(0, 1000)], "sim:h200", 2)
    list(batches)
    statistics = batches.statistics
    assert str(statistics).startswith("1 batch to sim:h200: 20.0 kB, 0 B of it from pinned memory")
    assert json.loads(statistics.json()) == statistics.to_dict()
    assert statistics.to_dict()["slots"] == 1
    assert statistics._repr_html_().startswith("<pre>1 batch ")
    assert statistics.waited_for_loader_s >= 0
    assert repr(batches) == "<Prefetcher of list to sim:h200, depth 2>"
    ahead = prefetch([1, 2], "cpu")
    assert list(ahead) == [1, 2]
    assert str(ahead.statistics).startswith("2 batches read ahead on the CPU\nwaited ")


def test_arrays_in_an_object_that_cannot_be_taken_apart_are_said_to_stay() -> None:
    class Sample:
        def __init__(self) -> None:
            self.image = np.ones(9)

    class Slotted:
        __slots__ = ("image", "unset")

        def __init__(self) -> None:
            self.image = np.ones(9)

    class Plain:
        def __init__(self) -> None:
            self.name = "1.jpg"

    one = {"sample": Sample(), "slotted": Slotted(), "plain": Plain(), "class": Sample, "image": np.ones(9)}
    loader: list[dict[str, Any]] = [one] * 3
    batches = prefetch(loader, "sim:h200")
    with pytest.warns(UserWarning, match="stay on the host") as said:
        for _ in range(2):
            assert all(type(given["sample"].image) is np.ndarray for given in batches)
    # Each class is named once, at the line that takes batches.
    assert len(said) == 2 and {one.filename for one in said} == {__file__}
    first, second = batches.statistics.warnings
    assert "Sample stay on the host" in first and "Slotted stay on the host" in second
    assert first in str(batches.statistics)


def test_a_mapping_that_makes_its_values_is_asked_for_each_once() -> None:
    class Decoded(Mapping[str, Any]):
        def __init__(self, items: Any = ()) -> None:
            self.items_, self.asked = dict(items), 0

        def __getitem__(self, name: str) -> Any:
            self.asked += 1
            return self.items_[name]

        def __iter__(self) -> Iterator[str]:
            return iter(self.items_)

        def __len__(self) -> int:
            return len(self.items_)

    loader = [Decoded({"image": np.ones(9), "name": object()}) for _ in range(3)]
    assert len(list(prefetch(loader, "sim:h200"))) == 3
    assert [given.asked for given in loader] == [2, 2, 2]


def test_whatever_an_object_makes_of_its_attributes_it_is_handed_on() -> None:
    class Rows:
        __slots__ = ("row",)

        def __init__(self) -> None:
            self.row: dict[str, int] = {}

        def __getattr__(self, name: str) -> int:
            return self.row[name]

    class Lazy:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("not now")

    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise RuntimeError("not before it is used")

    class Holder:
        def __init__(self) -> None:
            self.proxy = Proxy()

    rows, lazy = Rows(), Lazy()
    batches: sidestream.Prefetcher[Any] = prefetch([(rows, lazy, np.ones(9), Holder())], "sim:h200")
    ((given_rows, given_lazy, given, _),) = batches
    assert given_rows is rows and given_lazy is lazy and isinstance(given, DeviceArray)


def test_a_device_array_becomes_no_array_of_the_host_unasked() -> None:
    (given,) = prefetch([np.ones(9)], "sim:h200")
    for takes in (np.asarray, np.array, lambda array: np.add(array, 1)):
        with pytest.raises(
            TypeError,
            match=r"the array is on sim:h200, and is not copied to the host unasked; call its .numpy\(\)",
        ):
            takes(given)


STUCK = """
import atexit, os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # A job in the background of a shell ignores it.
waits, waiting = [], threading.Event()
atexit.register(lambda: print(waits))  # Functions that are registered later run first.
import numpy as np
from sidestream import _feed, prefetch
waited = _feed.Feed._wait
def noted(self, most):
    waits.append(max(0.0, round(most, 6)))
    waiting.set()
    waited(self, most)
_feed.Feed._wait = noted
def loader(interrupts=False):
    yield np.ones(9)
    waiting.wait()
    if interrupts:
        os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
"""


def test_the_end_of_the_program_waits_once_for_all_loaders_that_do_not_return() -> None:
    code = """
_feed.PATIENCE_S = 0.01
with prefetch(loader(), "sim:h200") as batches:
    next(iter(batches))
kept = [iter(prefetch(loader(), "sim:h200")) for _ in range(3)]
for one in kept:
    next(one)
"""
    closed, *at_the_end = json.loads(run(STUCK + code))
    assert closed == 0.01
    # The program waited for one loader before; the others share one time limit.
    assert len(at_the_end) == 4 and sum(wait > 0.0 for wait in at_the_end) == 1


def test_a_second_interrupt_ends_the_wait_for_a_loader_that_does_not_return() -> None:
    code = """
# A wait that does not end is stopped by the time limit of the test.
_feed.PATIENCE_S = 3600.0
try:
    with prefetch(loader(interrupts=True), "sim:h200") as batches:
        next(iter(batches))
        raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
"""
    assert json.loads(run(STUCK + code)) == [3600.0, 0.0]


def test_a_prefetcher_that_was_closed_gives_back_its_memory_when_the_loader_returns(
    monkeypatch: pytest.MonkeyPatch, feeders: Feeders
) -> None:
    from sidestream import _feed

    monkeypatch.setattr(_feed, "PATIENCE_S", 0.0)
    asked, goes_on = threading.Event(), threading.Event()

    def loader() -> Iterator[Any]:
        yield np.ones(9)
        asked.set()
        goes_on.wait(300)
        yield np.ones(9)

    batches = prefetch(loader(), "sim:h200")
    iteration = iter(batches)
    next(iteration)
    assert asked.wait(300)
    (feeder,) = feeders()
    for _ in range(2):
        batches.close()
        # The loader may still be reading this memory.
        assert batches.statistics.slots > 0
    goes_on.set()
    assert ended(feeder)
    assert batches.statistics.slots == 0


def test_without_torch_and_without_a_device_the_processor_reads_ahead() -> None:
    code = "import sidestream, sys; print([*sidestream.prefetch([1, 2])], 'torch' in sys.modules)"
    assert run(code) == "[1, 2] False\n"


def run(code: str) -> str:
    # This limit only ends a test that has failed.
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=Path(sys.prefix),
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


LOADER = """
import itertools, os, sys, threading
import numpy as np
import sidestream
"""


@pytest.mark.parametrize("device", DEVICES)
def test_a_program_ends_with_an_endless_loader_and_batches_in_hand(device: str) -> None:
    code = LOADER + (
        f"batches = iter(sidestream.prefetch(([np.ones(9)] for _ in itertools.count()), {device!r}))\n"
        "held = [next(batches) for _ in range(3)]\n"
        "print('over')"
    )
    assert run(code) == "over\n"


def test_an_interrupt_ends_the_wait_for_a_loader() -> None:
    code = LOADER + (
        # A background job of a shell ignores it.
        "import queue, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "has_one = queue.SimpleQueue()\n"
        "def loader():\n"
        "    yield 1\n"
        "    has_one.get()\n"
        "    print('waits', flush=True)\n"
        "    sys.stdin.read()\n"
        "try:\n"
        "    batches = iter(sidestream.prefetch(loader(), 'sim:h200'))\n"
        "    next(batches)\n"
        "    has_one.put(None)\n"
        "    next(batches)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "    os._exit(0)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(sys.prefix),
    ) as ran:
        assert ran.stdout is not None
        # This limit only ends a test that has failed.
        limit = threading.Timer(300, ran.kill)
        limit.start()
        assert ran.stdout.readline() == "waits\n"
        ran.send_signal(signal.SIGINT)
        assert ran.stdout.readline() == "interrupted\n"
        limit.cancel()


def test_a_forked_child_is_told_to_iterate_anew() -> None:
    code = LOADER + (
        "iteration = iter(sidestream.prefetch([[np.ones(9)]] * 9, 'cpu', depth=1))\n"
        "next(iteration)\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        while True: next(iteration)\n"
        "    except RuntimeError as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert "began before the process was forked" in run(code)


def test_what_would_lose_something_is_refused_with_its_batch() -> None:
    masked = np.ma.masked_array([1, 2], mask=[False, True])
    with pytest.raises(
        TypeError, match=r"batch 1, \[0\]: a masked array would lose its mask; .*\.filled\(\)"
    ):
        list(prefetch([[np.ones(2)], [masked]], "sim:h200"))
    own: list[Any] = [np.ones(2)]
    own.append(own)
    with pytest.raises(RecursionError, match="batch 0: the batch is nested"):
        list(prefetch([own], "sim:h200"))


class Wants(list[Any]):
    def __init__(self, values: Any, more: int) -> None:
        super().__init__(values)


def test_a_class_that_cannot_be_rebuilt_is_named() -> None:
    with pytest.raises(
        TypeError,
        match="a Wants cannot be rebuilt with other arrays .*missing 1 required.*give the arrays in a dict",
    ):
        list(prefetch([Wants([np.ones(2)], 3)], "sim:h200"))


def test_an_end_that_an_interrupt_took_out_is_still_the_end() -> None:
    iteration = iter(prefetch([[np.ones(9)]], "cpu"))
    next(iteration)
    feed = iteration._feed  # type: ignore[attr-defined]
    feed.join()
    # The state after an interrupt between the two halves of a take.
    assert feed._ready.get() is None
    assert list(iteration) == []


def test_a_forked_child_leaves_the_device_alone() -> None:
    code = LOADER + (
        "import gc\n"
        "batches = sidestream.prefetch([[np.ones(9)]] * 5, 'sim:h200')\n"
        "iteration = iter(batches)\n"
        "held = next(iteration)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        iter(batches)\n"
        "    except RuntimeError as error:\n"
        "        print(error, flush=True)\n"
        "    del iteration, held, batches\n"
        "    gc.collect()\n"
        "    sys.exit()\n"
        "print(os.waitpid(child, 0)[1], len(list(iteration)))\n"
    )
    first, second = run(code).splitlines()
    assert first.startswith("this process was forked from the one that made the prefetcher")
    assert second == "0 4"
