"""``Pipeline``: runs the stages of a model concurrently, each on a different item."""

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
#: The pipeline asks whether the device is idle only if the loader took more than these seconds for the
#: previous item.
_SLOW_S = 0.0002
#: The share of a first run's time that the measurement may cost.
FIRST_RUN = 0.02
#: Minimum number of items of a segment in a sweep: more than otherwise, since the first item of a segment
#: overlaps with nothing. `RUN` is the number of times that the batches are repeated in one run.
SEGMENT = 20
RUN = 10_000


class Pipeline:
    """Runs the stages of a model concurrently, each on a different item.

    ``pipe(loader)`` iterates over the results, one for each item and in order. Stage ``k`` of item ``n`` runs
    concurrently with stage ``k - 1`` of item ``n + 1``, each on its own CUDA stream, unless the measurement
    shows that running them one after another is as fast. Parameters after an epoch equal those of the plain
    loop, in every mode. Without CUDA the stages run one after another on the CPU, with the same results;
    there, items are passed through, so a loader must not refill an item that a result still holds.

    **Ordering.** An item on the host is copied to the device on a separate stream, through pinned memory; a
    pinned tensor of 256 KiB or more is copied directly. An item on the device is used in place. Each stage
    waits for the previous ones, and the first stage also for the caller's current stream if the item was
    already on the device. Each stage runs the items in order. When a result is handed out, the caller's
    current stream waits for the last stage of that item; the host does not. The loader may refill the pinned
    memory of an item when it makes the next one. Memory from lists, tuples and a ``DataLoader`` with workers
    may be refilled only once the result of the item is complete.

    **When results come.** The result of item ``n`` is handed out once item ``n + depth - 1`` has been issued,
    on every device and in every mode, so that the GPU has work while the caller looks at a result. Changes
    that the loop makes between two items, such as a new learning rate, therefore reach the stages ``depth``
    items later. Code that must run once for each item, such as ``scheduler.step()``, belongs in a stage.
    After a ``break`` the stages have run up to ``depth - 1`` items whose results you have not received; to
    run exactly ``n`` items, pass ``itertools.islice(loader, n)``.

    **What stages may share.** Stages may share only the items. A stage may change its own parameters; if
    another stage, or the body of the loop, reads them while items are in flight, that is a race. After the
    loop the caller's stream has waited for all work. A stage works on the current stream, and must join its
    own side streams before it returns. Tensors that pass from stage to stage are held until the GPU no longer
    uses them, for ``depth`` items at most. Tensors inside an opaque object (no mapping, list, tuple or
    dataclass) are not seen, and stay where they are: such an item waits for the caller's stream, and a stage
    that takes or returns one is not captured.

    **Measurement.** With ``mode="auto"`` the modes take turns on the items of the run, alternating with
    ``serial``; each item runs once and in order. Graph modes take part only if ``capture`` allows them.
    ``serial`` stays unless another mode takes 2 % less overall, and less in four rounds of five. A mode is
    tried in the first run once 2 % of that run cover the cost of trying it, which is assumed to be five items
    or 50 ms, or a second if stages have to be captured. So a first run of less than 250 items is a plain
    loop, and the second run measures without a limit. A later ``Pipeline`` of this process with the same
    stages, depth and captures starts from that measurement, if its first item has the same shapes and types;
    ``choice`` has the times.

    A pipeline is used by one thread, and has one run at a time.

    Args:
        stages: Functions, modules or ``Stage`` objects, in the order in which an item passes them; at least
            one. A tuple of them is a level of parallel branches: each gets the same input, on its own stream,
            and the next stage gets the tuple of their results. Stages return tensors that require no grad, so
            a backward pass stays inside its stage, and must not keep any of their inputs.
        mode: ``"auto"`` measures and keeps the fastest mode. The others measure nothing: ``"serial"`` runs
            one stage after another on the current stream, ``"streams"`` each stage on its own stream,
            ``"serial-graphs"`` and ``"graphs"`` do so with captured stages as CUDA graphs.
        capture: Whether stages are captured into CUDA graphs, unless a ``Stage`` says so itself. Modes with
            graphs need at least one.
        depth: Maximum number of items in flight; by default one more than there are levels.
        device: A CUDA device, or ``"cpu"``. By default PyTorch's current CUDA device, or the CPU if there is
            none.
        measure: Maximum number of segments of each mode that are measured; two are enough if the difference
            is clear. A segment has at least 5 items and takes at least about 50 ms.
        max_pinned: Maximum bytes of pinned memory into which the items in flight are packed. An item that
            needs more raises a ``ValueError`` instead of its result.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: A stage cannot be called, ``stages`` is not a list, or an argument has the wrong type.
        ValueError: There are no stages, ``mode`` is not one of these, no stage may be captured for a mode
            with graphs, or the device is neither a CUDA device nor the CPU.
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
        measure = whole("measure", measure, 1, "the maximum number of segments of each mode")
        if max_pinned is not None:
            max_pinned = whole("max_pinned", max_pinned, 1, "the maximum bytes of pinned memory")
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
        # A new pipeline reuses the measurements of an earlier one, but `remeasure` does not.
        self._takes_known = True

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order in which an item passes them."""
        return self._chain.stages

    def __call__(self, items: Iterable[Any]) -> Run:
        """Run every item through the stages, and iterate over the results in the order of the items.

        A run ends when the next one starts, or when its iterator is closed or collected. Work that was
        already enqueued completes on the device, and its results are lost. After an error, a ``break`` or the
        end of an epoch the pipeline can be used again. An error of ``items`` is raised as it is, after the
        results of all items before it.

        Args:
            items: An iterable of tensors, or of nested tuples, lists and dictionaries of them; NumPy arrays
                become tensors. CPU tensors are uploaded to the pipeline's device; everything else is passed
                through.

        Returns:
            The run: an iterator over the results.

        Raises:
            StageError: A stage failed. It names the stage and the item, has the error as ``__cause__``, and
                comes after the results of all items before that one. No stage runs then.
            RuntimeError: One of the pipeline's stages, or another thread, iterates over the pipeline already.
                While iterating: another run has ended this one.
            TypeError: ``items`` cannot be iterated over, or is one tensor, a dictionary or a model.
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
        """Forget the measurements of these stages, and measure again beginning with the next item, such as
        after the batch size has changed.
        """
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
        """Measure stages at several batch sizes, in every mode that ``Pipeline`` has, and return for
        each size whether streams or graphs are worth it.

        At each size a ``Pipeline`` runs the same four batches again and again until its modes are measured,
        which takes some hundred steps. **A stage that trains does so** on these batches, and its changes are
        kept: if that matters, pass stages of a copy of the model (``copy.deepcopy``) with its own
        optimizer. The rules are those of ``mode="auto"``. A later ``Pipeline`` of the same stages in this
        process uses these measurements. Without CUDA only ``serial`` is measured, and nothing is compared.

        Args:
            stages: As for ``Pipeline``.
            make_batch: Called with a size, four times for each; returns a batch of this many samples as the
                loader would, such as pinned CPU tensors.
            sizes: The sizes of a batch, in samples.
            capture: As for ``Pipeline``.
            depth: As for ``Pipeline``.
            device: As for ``Pipeline``.
            measure: Maximum number of segments of each mode that are measured. A segment is 20 batches or 50
                ms, whichever is longer.

        Returns:
            A ``Sweep`` with a row for each size. A size for which a stage ran out of device memory has no
                figures, and none has where ``check`` simulates the GPU.

        Raises:
            StageError: A stage failed for another reason than too little device memory.
            TypeError: ``make_batch`` cannot be called, or a size is not a whole number.
            ValueError: There is no size, or one is less than 1.
        """
        # An iterable that can be consumed only once has to serve all sizes.
        kept = stages if callable(stages) or not isinstance(stages, Iterable) else list(stages)

        def pipeline() -> Pipeline:
            return Pipeline(kept, capture=capture, depth=depth, device=device, measure=measure)

        # A graph has one shape, so each size has a separate pipeline.
        first = pipeline()
        where = "cpu" if first._cuda is None else first._cuda.name()
        return swept(
            str(first._chain), where, lambda batches: pipeline()._measured_on(batches), make_batch, sizes
        )

    def _measured_on(self, batches: list[Any]) -> Choice:
        """Measure all modes with these batches, without a limit on the cost; without CUDA only ``serial``."""
        if self._cuda is None:
            taken = benchmark(lambda: list(self(batches[:1])), repeat=self._measure, device="cpu")
            seconds = {SERIAL: taken.median_ns / 1e9}
            return replace(self.choice, seconds_per_item=seconds, segments={SERIAL: taken.count})
        # PyTorch caches memory by stream, and the streams of the earlier pipeline no longer exist.
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
        """The mode that the pipeline runs in now, and why. ``print`` shows it."""
        chooser, cuda = self._chooser, self._cuda
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
        return chooser.choice(mode, reason, notes)

    @property
    def statistics(self) -> PipelineStatistics:
        """Counts and times of all runs so far, with a verdict on the loader. ``print`` shows them."""
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
        # Results, each with the work that it is ordered after.
        pending: deque[tuple[Any, Any]] = deque()
        failure: BaseException | None = None
        number = 0
        # Whether all results were handed out, and whether the caller left before an error.
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
                ) as error:  # noqa: BLE001 - raised after the results before it were handed out.
                    failure = error
                    break
                try:
                    # Once the mode is chosen, as little code as possible runs between the caller and the
                    # stages.
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
                # No variable here may keep an item or a result alive while the caller works.
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
            # The traceback of the failure holds this frame, which would keep the item alive.
            failure = None
            if not left:
                self._passed(since)
            self._finish(ended, left, bool(pending))

    def _passed(self, since: float) -> float:
        now = time.perf_counter()
        self._elapsed_s += now - since
        return now

    def _waited(self, since: float, is_idle: bool) -> float:
        """Record the waiting time for the next item, and whether the device was idle before that."""
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
        """Reuse the measurements of these stages with items of these shapes and types."""
        self._has_asked = True
        leaves, shape = flatten(item)
        if shape.has_objects:
            # The objects may hold tensors of any shape.
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
    """Counts and times of a pipeline so far.

    Attributes:
        items: Number of items that it was given.
        pinned_bytes: Bytes of pinned memory into which items are copied before they are uploaded.
        elapsed_s: Seconds in its runs, including what your loop does with the results.
        waited_for_items_s: Seconds that the pipeline waited for the loader's next item.
        idle_s: The part of these seconds in waits that began with an idle device: the minimum cost of the
            loader.
    """

    items: int
    pinned_bytes: int
    elapsed_s: float
    waited_for_items_s: float
    idle_s: float

    @property
    def verdict(self) -> str:
        """One sentence: whether the loader keeps up, or its minimum cost."""
        return _waits.verdict(
            self.items,
            "items",
            self.idle_s,
            self.elapsed_s,
            "the stages only waited for it",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a new dictionary, of the schema ``sidestream.pipeline/1``."""
        return {"schema": "sidestream.pipeline/1", **asdict(self), "verdict": self.verdict}

    def __str__(self) -> str:
        items = "1 item" if self.items == 1 else f"{self.items} items"
        waited = (
            f"waited {self.waited_for_items_s:.3f} s of {self.elapsed_s:.3f} s for items, with the device "
            f"idle for {self.idle_s:.3f} s of that"
        )
        return f"{items}; {units.size(self.pinned_bytes)} of pinned memory\n{waited}\n{self.verdict}"


class Run(Iterator[Any]):
    """One iteration over a pipeline's results."""

    __slots__ = ("__weakref__", "_ended", "_is_over", "_items", "_pipeline", "_results")

    def __init__(self, results: Generator[Any, None, None], items: Any, pipeline: Pipeline) -> None:
        """Take the generator of results, the items, and the pipeline, which creates runs."""
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
        """Return the number of results, which is the length of the items.

        Raises:
            TypeError: The items have no length, or the run has ended.
        """
        if self._is_over:
            raise TypeError(
                "the run has ended and no longer has its items; ask the object that you passed for its "
                "length"
            )
        return len(self._items)

    def __bool__(self) -> bool:
        # A run is true, even without results.
        return True

    def __repr__(self) -> str:
        state = "over" if self._is_over else "under way"
        return f"<Run of {self._pipeline!r}, {state}>"

    def close(self) -> None:
        """End the run. Work that was enqueued completes on the device, and its results are lost."""
        self._results.close()
        self._over()

    def _over(self) -> None:
        self._is_over = True
        self._items = None

    def end(self) -> None:
        """End the run in favour of another one. Requesting more results raises an error, unless the run was
        complete.
        """
        self._results.close()
        self._ended = not self._is_over


def may_refill(items: Any) -> bool:
    """Return whether these items may write to the memory of earlier ones when the next one is requested.

    A list runs no code that could do so. A generator may refill one pinned buffer again and again.
    """
    return type(items) not in (list, tuple) and not makes_each_anew(items)


def _length_of(items: Any) -> int:
    """Return the number of items, or 0 if that is not known."""
    try:
        return len(items)
    # A user's loader may fail in `__len__`, which the run itself does not need.
    except Exception:  # noqa: BLE001
        return 0


def _as_one_batch(items: Any) -> str:
    """Return the advice for items that look like the parts of one batch, or an empty string if they cannot
    be such parts.
    """
    kind = type(items).__name__
    if (
        not isinstance(items, (list, tuple))
        or not items
        or not all(hasattr(item, "__dlpack__") for item in items)
    ):
        return ""
    return (
        f"; the {len(items)} values in the {kind} are taken as separate items: give [items] if together "
        "they are one batch"
    )


def _may_want_all(error: BaseException | None) -> bool:
    """Return whether a stage may have raised this because it received only a part of its batch."""
    if isinstance(error, ValueError):
        return "to unpack" in str(error)
    return isinstance(error, (TypeError, IndexError, AttributeError))


def _backends(
    stages: Any, captures: tuple[bool, ...], depth: int, device: Any, max_pinned: int | None
) -> tuple[Any, Any, str]:
    # PyTorch is imported here, so that the package can be imported without PyTorch.
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
        return OnProcessor(stages), None, f"{why}, so the stages run one after another on the CPU"
    from sidestream._pipeline._cuda import OnCuda

    return None, OnCuda(stages, captures, depth, where.index, max_pinned), ""
