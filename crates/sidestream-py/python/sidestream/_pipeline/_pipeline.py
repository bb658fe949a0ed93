"""The pipeline that users see."""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sidestream import _waits
from sidestream import _units as units
from sidestream._arguments import items as to_be_items, one_of, truth, whole
from sidestream._benchmark import benchmark
from sidestream._devices import of_torch
from sidestream._leaves import makes_each_anew
from sidestream._pipeline._choice import (
    FEW_ITEMS,
    GRAPHS,
    MODES,
    SERIAL,
    SERIAL_GRAPHS,
    STREAMS,
    Choice,
    Chooser,
)
from sidestream._pipeline._memory import recall
from sidestream._pipeline._plan import default_depth
from sidestream._pipeline._stage import Stage, StageError, chain
from sidestream._pipeline._sweep import Sweep, swept
from sidestream._results import Result
from sidestream._tree import flatten

AUTO = "auto"
#: Only where the loader took longer for an item than this the device is asked whether it has work.
_SLOW_S = 0.0002
#: What part of its first run measuring may cost.
FIRST_RUN = 0.02
#: For a sweep a segment has more items, since the first one has nothing beside it, and they come by so many.
SEGMENT = 20
RUN = 10_000


class Pipeline:
    """A model that is split into stages, each of which runs beside the others, on another item.

    ``pipe(loader)`` iterates over the results, one an item and in order. Stage ``k`` of item ``n`` runs
    beside stage ``k - 1`` of item ``n + 1``, each on its own CUDA stream, unless running them one after the
    other was measured to be as fast. Without CUDA the stages run one after the other, with the same results.

    **What waits for what.** An item on the host is copied to the device on a stream of its own, through
    pinned memory. Each stage waits for those before it, and the first also for the caller's current stream if
    the item was on the device already. Each stage runs the items in order. The caller's current stream waits
    for the last stage of an item when its result is handed out; the host does not. A pinned item's memory is
    free to be filled again when the loader is asked for the next one, but for that of lists, tuples and a
    DataLoader with workers, which is free when the item's result is there.

    **When results come.** The result of item ``n`` is handed out when item ``n + depth - 1`` has been issued,
    on every device and in every mode, so that the GPU has work while the caller looks at a result. What the
    loop does between two items, such as another learning rate, therefore reaches the stages ``depth`` items
    later; what has to happen at each item belongs into a stage.

    **What stages may share.** Only the items. A stage may change its own parameters; another stage, or the
    body of the loop, that reads them while items are under way races with it. After the loop the caller's
    stream has waited for everything.

    Args:
        stages: Callables or ``Stage`` objects, in the order in which an item passes them; at least one. A
            tuple of them is parallel branches: each gets the same input, on a stream of its own, and the next
            stage gets the tuple of their results. Stages return tensors that require no grad: a backward pass
            stays inside its stage.
        mode: ``"auto"`` measures, which is to cost the first run 2 % at most, and keeps the fastest;
            ``"serial"``, ``"streams"``, ``"serial-graphs"`` and ``"graphs"`` are the single ways to run, and
            are not measured. Those with graphs need a stage with ``capture``.
        capture: Whether stages that do not say so themselves are captured into CUDA graphs.
        depth: How many items are in flight at most; by default one more than there are levels.
        device: A CUDA device, or ``"cpu"``. By default PyTorch's current CUDA device, or the processor if
            there is none.
        measure: How many segments of each mode are measured at most; two tell where the difference is clear.
            A segment is 5 items and about 50 ms at least.
        max_pinned: How many bytes of pinned memory the items in flight may be packed into. An item with which
            that is not enough is a ``ValueError`` in its place.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: A stage cannot be called, there is no list of stages, or an argument is of another kind.
        ValueError: No stages, no such mode, no stage that may be captured for a mode with graphs, or a device
            that is neither a CUDA device nor the processor.
        DeviceError: There is no such device.
    """

    def __init__(
        self,
        stages: Iterable[Any],
        *,
        mode: Literal["auto", "serial", "streams", "serial-graphs", "graphs"] = "auto",
        capture: bool = False,
        depth: int | None = None,
        device: Any = None,
        measure: int = 5,
        max_pinned: int | None = None,
    ) -> None:
        """Prepare the stages; nothing runs yet."""
        self._chain = chain(stages)
        one_of("mode", mode, (AUTO, *MODES))
        truth("capture", capture)
        in_flight = default_depth(self._chain.levels) if depth is None else depth
        self._depth = whole("depth", in_flight, 1, "how many items are in flight")
        measure = whole("measure", measure, 1, "how many segments of each mode are measured")
        if max_pinned is not None:
            max_pinned = whole("max_pinned", max_pinned, 1, "how many bytes of pinned memory there may be")
        captures = tuple(capture if stage.capture is None else stage.capture for stage in self._chain.stages)
        if mode in (GRAPHS, SERIAL_GRAPHS) and not any(captures):
            raise ValueError(
                f"mode is {mode!r} and no stage may be captured; say capture=True, or Stage(…, capture=True)"
            )
        self._mode = mode
        self._measure = measure
        self._any_capture = any(captures)
        self._processor, self._cuda, self._why = _backends(
            self._chain, captures, self._depth, device, max_pinned
        )
        where = None if self._cuda is None else self._cuda.index
        self._setting = (self._chain.levels, self._chain.branches, captures, self._depth, where)
        self._running: weakref.ref[Run] | None = None
        self._items = 0
        self._elapsed_s = self._waited_s = self._idle_s = 0.0
        self._is_slow = False
        self._length = 0
        self._chooser: Chooser
        self.remeasure()
        # Whether it was asked what is known of these stages, and whether that is taken.
        self._takes_known = True

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order in which an item passes them."""
        return self._chain.stages

    def __call__(self, items: Iterable[Any]) -> Run:
        """Run every item through the stages, and iterate over the results in the order of the items.

        A run that was not iterated to its end is ended by the next one, or when its iterator is closed or
        collected. Work that it has begun by then finishes on the device, and its results are lost. Iterating
        a run that another one has ended is an error.

        Args:
            items: An iterable of tensors, or of nested tuples, lists and dictionaries of them; numpy arrays
                become tensors. What is on the host goes to the pipeline's device, everything else is passed
                through.

        Raises:
            StageError: A stage failed. It names the stage and the item, and comes after the results of all
                items before that one. Nothing is running then.
            RuntimeError: The pipeline is iterated over already, in one of its stages or in another thread.
                While iterating: another run has ended this one.
            TypeError: Nothing can iterate over ``items``, or it is one tensor, a dictionary or a model.

        An error of ``items`` itself is raised as it is, after the results of all items before it.
        """
        running = None if self._running is None else self._running()
        if running is not None:
            try:
                running.end()
            except ValueError as error:
                raise RuntimeError(
                    "the pipeline is running, and a stage of it or another thread iterates over it too; make "
                    "another pipeline for that"
                ) from error
        to_be_items("items", items)
        length = _length_of(items) if self._chooser.measuring else 0
        run = Run(self._run(iter(items), may_refill(items), length, _as_one_batch(items)), items, self)
        self._running = weakref.ref(run)
        return run

    def remeasure(self) -> None:
        """Forget what was measured of these stages, and measure again from the next item on."""
        self._measure_anew(FEW_ITEMS, FIRST_RUN)

    @staticmethod
    def sweep(
        stages: Iterable[Any],
        make_batch: Callable[[int], Any],
        sizes: Iterable[int] = (8, 32, 128),
        *,
        capture: bool = False,
        depth: int | None = None,
        device: Any = None,
        measure: int = 5,
    ) -> Sweep:
        """Measure stages at several sizes of a batch, in every mode that ``Pipeline`` has, and say at each
        whether it is worth it: the plain loop beside streams and, with ``capture``, graphs.

        At each size a ``Pipeline`` runs the same four batches again and again, until its modes are measured:
        some hundred steps. **A stage that trains does so**, on these batches, and what it changes is not put
        back; where that matters, give stages of a copy of the model (``copy.deepcopy``) with an optimizer of
        its own. A ``Pipeline`` that is made of the same stages afterwards knows what was measured.

        Without CUDA there is one way to run the stages: it is measured, and nothing is compared.

        Args:
            stages: As for ``Pipeline``.
            make_batch: Is given a size, and returns a batch of so many samples as the loader would, such as
                pinned tensors of the host. It is called four times for each size.
            sizes: The sizes, in samples.
            capture: As for ``Pipeline``.
            depth: As for ``Pipeline``.
            device: As for ``Pipeline``.
            measure: How many segments of each mode are measured at most. A segment is 20 batches or 50 ms,
                whichever is longer.

        Raises:
            StageError: A stage failed. If the device's memory was too small, the row of that size says so
                instead.
            TypeError: ``make_batch`` is no function, or a size no whole number.
            ValueError: There is no size, or one is less than 1.
        """
        # One that can be iterated over once has to last for all sizes.
        kept = stages if callable(stages) or not isinstance(stages, Iterable) else list(stages)

        def pipeline() -> Pipeline:
            return Pipeline(kept, capture=capture, depth=depth, device=device, measure=measure)

        # Graphs are those of one shape, so each size has a pipeline of its own.
        first = pipeline()
        where = "cpu" if first._cuda is None else first._cuda.name()
        return swept(
            str(first._chain), where, lambda batches: pipeline()._measured_on(batches), make_batch, sizes
        )

    def _measured_on(self, batches: list[Any]) -> Choice:
        """Measure all modes with these batches, whatever that costs; without CUDA the only one."""
        if self._cuda is None:
            taken = benchmark(lambda: list(self(batches[:1])), repeat=self._measure, device="cpu")
            seconds = {SERIAL: taken.median_ns / 1e9}
            return replace(self.choice, seconds_per_item=seconds, segments={SERIAL: taken.count})
        # PyTorch keeps the memory of each stream, and those of an earlier pipeline are gone.
        sys.modules["torch"].cuda.empty_cache()
        self._measure_anew(SEGMENT, None)
        for _ in itertools.chain.from_iterable(self(batches * RUN) for _ in itertools.count()):
            if not self._chooser.measuring:
                break
        return self.choice

    def _measure_anew(self, least: int, share: float | None) -> None:
        modes: tuple[str, ...] = (SERIAL,) if self._cuda is None else (self._mode,)
        if self._cuda is not None and self._mode == AUTO:
            modes = MODES if self._any_capture and self._cuda.graphs_left() else (SERIAL, STREAMS)
        # Enough items to warm up and to capture every slot.
        self._chooser = Chooser(
            modes, self._measure, settle=4 + self._depth, least=least, share=share
        )
        self._has_asked = self._is_known = self._takes_known = False

    @property
    def choice(self) -> Choice:
        """How the pipeline runs now, and why. ``print`` shows it."""
        chooser, cuda = self._chooser, self._cuda
        medians = chooser.medians()
        mode, reason = chooser.mode, chooser.reason()
        if cuda is None:
            reason = self._why
        elif self._mode != AUTO:
            reason = "as asked for; nothing was measured"
        if cuda is not None and mode in (GRAPHS, SERIAL_GRAPHS) and not cuda.graphs_left():
            mode = STREAMS if mode == GRAPHS else SERIAL
            reason = "no stage could be captured"
        notes = [] if cuda is None else cuda.notes()
        if self._is_known:
            notes.append("an earlier pipeline of these stages measured it, with items of these shapes")
        return Choice(
            mode=mode,
            measured=bool(medians) and not chooser.measuring,
            reason=reason,
            seconds_per_item=medians,
            segments={one: len(times) for one, times in chooser.times.items() if times},
            notes=tuple(notes),
        )

    @property
    def statistics(self) -> PipelineStatistics:
        """What it has done so far, in all runs, and whether the loader keeps up. ``print`` shows it."""
        return PipelineStatistics(
            items=self._items,
            pinned_bytes=0 if self._cuda is None else self._cuda.pinned.bytes,
            elapsed_s=self._elapsed_s,
            waited_for_items_s=self._waited_s,
            idle_s=self._idle_s,
        )

    def __reduce__(self) -> Any:
        raise TypeError(
            "a pipeline has streams of this process and cannot be pickled; make it in the process that "
            "runs it"
        )

    def __repr__(self) -> str:
        return f"<Pipeline {self._chain}: {self.choice.mode}>"

    def _run(
        self, items: Iterator[Any], may_refill: bool, length: int, as_one_batch: str
    ) -> Generator[Any, None, None]:
        cuda, depth = self._cuda, self._depth
        # Results, with what they are behind.
        pending: deque[tuple[Any, Any]] = deque()
        failure: BaseException | None = None
        number = 0
        # Whether all came out, or the caller went away before anything failed.
        ended = left = False
        since = time.perf_counter()
        self._begin(may_refill, length)
        try:
            while failure is None:
                try:
                    if cuda is not None and cuda.source is not None:
                        cuda.let_loader_go_on()
                    since = self._passed(since)
                    is_idle = cuda is None or (self._is_slow and cuda.is_idle())
                    item = next(items)
                    since = self._waited(since, is_idle)
                except StopIteration:
                    break
                except (
                    Exception
                ) as error:  # noqa: BLE001 - it is raised once the results before it were handed out.
                    failure = error
                    break
                try:
                    # Once the mode is chosen, as little as there can be between the caller and the stages.
                    if cuda is None:
                        pending.append(self._processor.issue(number, item))
                    elif self._chooser.measuring:
                        pending.append(self._measured(number, item))
                    else:
                        pending.append(cuda.issue(number, item, self._chooser.mode))
                except Exception as error:  # noqa: BLE001 - as above.
                    failure = error
                    if isinstance(error, StageError) and number == 0 and _may_want_all(error.__cause__):
                        error.add(as_one_batch)
                # Nothing here keeps an item or a result alive while the caller works.
                del item
                number += 1
                if len(pending) == depth:
                    yield pending.popleft()[0] if cuda is None else cuda.hand_over(*pending.popleft())
            while pending:
                yield pending.popleft()[0] if cuda is None else cuda.hand_over(*pending.popleft())
            ended = failure is None
            if failure is not None:
                raise failure
        except GeneratorExit:
            left = failure is None
            raise
        finally:
            # It has this frame in its traceback, and would keep the item in it alive.
            failure = None
            if not left:
                self._passed(since)
            self._finish(ended, left, bool(pending))

    def _passed(self, since: float) -> float:
        now = time.perf_counter()
        self._elapsed_s += now - since
        return now

    def _waited(self, since: float, is_idle: bool) -> float:
        """Note how long the next item took, before which the device had work or none."""
        now = self._passed(since)
        waited = now - since
        self._items += 1
        self._waited_s += waited
        if is_idle:
            self._idle_s += waited
        self._is_slow = waited > _SLOW_S
        return now

    def _begin(self, may_refill: bool, length: int) -> None:
        self._length = length
        if self._cuda is not None:
            self._cuda.begin(may_refill)
            if self._chooser.measuring:
                self._chooser.begin_run(length)

    def _recall(self, item: Any) -> None:
        """Take over what is known of these stages with items of these shapes."""
        self._has_asked = True
        leaves, shape = flatten(item)
        if shape.has_objects:
            # They may hold tensors of any shape.
            return
        shapes = [(tuple(one.shape), str(one.dtype), str(getattr(one, "device", "cpu"))) for one in leaves]
        calls = [stage.call for stage in self.stages]
        chooser = recall(calls, (self._setting, shapes), self._chooser, self, self._takes_known)
        if chooser is not self._chooser:
            self._chooser, self._is_known = chooser, True
            chooser.settle_anew()
            chooser.begin_run(self._length)

    def _measured(self, number: int, item: Any) -> Any:
        if not self._has_asked:
            self._recall(item)
        cuda, chooser = self._cuda, self._chooser
        while chooser.measuring and chooser.due(time.perf_counter()):
            cuda.drain()
            chooser.advance(time.perf_counter())
        issued = cuda.issue(number, item, chooser.mode)
        if chooser.measuring and self._any_capture and not cuda.graphs_left():
            for mode in (GRAPHS, SERIAL_GRAPHS):
                chooser.drop(mode, time.perf_counter())
        return issued

    def _finish(self, ended: bool, left: bool, unclaimed: bool) -> None:
        cuda, chooser = self._cuda, self._chooser
        if cuda is None:
            return
        now = time.perf_counter()
        cuda.end(unclaimed)
        if chooser.is_timing or not (ended or left):
            cuda.drain()
        if chooser.is_timing and (ended or left):
            chooser.end_run(time.perf_counter(), now if left else None)


@dataclass(frozen=True)
class PipelineStatistics(Result):
    """What a pipeline has done so far.

    Attributes:
        items: Items that it was given.
        pinned_bytes: Pinned memory that items are copied into before they are uploaded.
        elapsed_s: Seconds in its runs, with what your loop does with the results.
        waited_for_items_s: Seconds in which the loader made the next item.
        idle_s: How much of that was while the device had nothing to do, from before the wait began: the least
            that the loader costs.
    """

    items: int
    pinned_bytes: int
    elapsed_s: float
    waited_for_items_s: float
    idle_s: float

    @property
    def verdict(self) -> str:
        """Whether the loader keeps up, in a sentence."""
        return _waits.verdict(
            self.items,
            "items",
            self.idle_s,
            self.elapsed_s,
            "the stages had nothing to do but to wait for it",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a new dictionary, of the schema ``sidestream.pipeline/1``."""
        return {"schema": "sidestream.pipeline/1", **asdict(self), "verdict": self.verdict}

    def __str__(self) -> str:
        items = "1 item" if self.items == 1 else f"{self.items} items"
        waited = (
            f"waited {self.waited_for_items_s:.3f} s for items, {self.idle_s:.3f} s of it with an idle "
            f"device, of {self.elapsed_s:.3f} s"
        )
        return f"{items}; {units.size(self.pinned_bytes)} of pinned memory\n{waited}\n{self.verdict}"


class Run(Iterator[Any]):
    """One iteration over a pipeline's results."""

    __slots__ = ("__weakref__", "_ended", "_is_over", "_items", "_pipeline", "_results")

    def __init__(self, results: Generator[Any, None, None], items: Any, pipeline: Pipeline) -> None:
        """Take the results, what has the items, and whose they are. Pipelines make these."""
        self._results = results
        self._items = items
        self._pipeline = pipeline
        self._ended = self._is_over = False

    def __next__(self) -> Any:
        """Return the next result.

        Raises:
            RuntimeError: Another run of the same pipeline has ended this one.
        """
        try:
            return next(self._results)
        except BaseException as error:
            if self._ended and isinstance(error, StopIteration):
                raise RuntimeError(
                    "this run was ended by another one of the same pipeline; use one at a time, or make "
                    "another pipeline"
                ) from None
            self._over()
            raise

    def __len__(self) -> int:
        """Return how many results there are in all, if what has the items says how many these are.

        Raises:
            TypeError: It does not, or the run is over.
        """
        if self._is_over:
            raise TypeError(
                "the run is over and no longer has its items; ask what you passed to the pipeline for its "
                "length"
            )
        return len(self._items)

    def __bool__(self) -> bool:
        # A run is there, however many results it has.
        return True

    def __repr__(self) -> str:
        state = "over" if self._is_over else "under way"
        return f"<Run of {self._pipeline!r}, {state}>"

    def close(self) -> None:
        """End the run. What it has begun ends on the device, and its results are lost."""
        self._results.close()
        self._over()

    def _over(self) -> None:
        self._is_over = True
        self._items = None

    def end(self) -> None:
        """End the run for another one. Whoever asks it for more is told, unless it was over."""
        self._results.close()
        self._ended = not self._is_over


def may_refill(items: Any) -> bool:
    """Say whether to ask for the next item may write to the memory of those before.

    A list runs no code of its own. A generator may have one pinned buffer that it fills again and again.
    """
    return type(items) not in (list, tuple) and not makes_each_anew(items)


def _length_of(items: Any) -> int:
    """Say how many items there will be, or 0 where what has them does not say."""
    try:
        return len(items)
    # Of a loader of somebody's own, which the run itself never asks.
    except Exception:  # noqa: BLE001
        return 0


def _as_one_batch(items: Any) -> str:
    """Say what to do if these items are the parts of one, where they may be."""
    kind = type(items).__name__
    if (
        not isinstance(items, (list, tuple))
        or not items
        or not all(hasattr(item, "__dlpack__") for item in items)
    ):
        return ""
    return (
        f"; the items are what the {kind} holds ({len(items)} of them), one after the other: give [items] if "
        "together they are one batch"
    )


def _may_want_all(error: BaseException | None) -> bool:
    """Whether a stage may have raised this because it got a part of its item."""
    if isinstance(error, ValueError):
        return "to unpack" in str(error)
    return isinstance(error, (TypeError, IndexError, AttributeError))


def _backends(
    stages: Any, captures: tuple[bool, ...], depth: int, device: Any, max_pinned: int | None
) -> tuple[Any, Any, str]:
    # PyTorch is imported here, so that the package can be imported without it.
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "a pipeline runs PyTorch's streams, and PyTorch is not installed; install the package torch"
        ) from error
    from sidestream._pipeline._serial import OnProcessor

    where = of_torch(device, torch, "a pipeline")
    if where is None:
        why = "there is no CUDA device" if device is None else "the device is cpu"
        return OnProcessor(stages), None, f"{why}, so the stages run one after the other on the processor"
    from sidestream._pipeline._cuda import OnCuda

    return None, OnCuda(stages, captures, depth, where.index, max_pinned), ""
