"""``profile``: records steps with PyTorch's profiler, and diagnoses the trace."""

from __future__ import annotations

import html
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sidestream._arguments import file_name, whole
from sidestream._diagnosis import Diagnosis, diagnose, sets_of, speed
from sidestream._simulate import entered
from sidestream._sidestream import TraceError, check_options
from sidestream._tables import Table
from sidestream._unprofiled import KEY, TOGETHER, Unprofiled, Windows, least_steps

if TYPE_CHECKING:
    import tempfile

#: Held while a profile is entered.
_recording = threading.Lock()
#: Set once PyTorch's profiler was started here, since it may leave costs behind after its end.
_has_run = threading.Event()
#: The clock that times the windows.
_clock: Callable[[], int] = lambda: time.perf_counter_ns()  # noqa: E731


def profile(
    *,
    steps: int | None = None,
    timed: bool | int | None = None,
    every: int = 1,
    path: str | os.PathLike[str] | None = None,
    what_if: str | Iterable[str] | None = None,
    link_gbps: float | None = None,
    **options: Any,
) -> Profile:
    """Time the steps of a ``with`` block, record some with PyTorch's profiler, and diagnose the trace at its
    end.

    ::

        with sidestream.profile(steps=10) as profiled:
            for batch in loader:
                train(batch)
                profiled.step()
        print(profiled)

    The profiler slows the host down, and no trace shows by how much. So steps are timed before it starts, in
    windows of 50 milliseconds and 5 to 1,000 steps. The first step is left out. Windows are dropped until two
    in a row agree within 3 %, at most 12 of them; then five more are taken. The host waits for the devices at
    the edges of a window and for nothing inside it. Then the profiler starts, and the diagnosis predicts from
    the timed step; a kept trace keeps the times. At the end of the block the host waits for the device.

    An exception in the block is passed on, and the trace is not diagnosed. If the block ends before the
    profiler starts, ``problem`` says how many steps are needed. If it ends while steps are recorded, those
    are diagnosed, and ``remark`` says so. Inside ``simulate`` the simulated steps are diagnosed, and by
    default none is timed before, since no profiler slows them down. Without CUDA there is no diagnosis, but
    ``unprofiled`` is set. Nothing is printed. One profile is entered at a time in a process.

    Args:
        steps: Number of steps to record, after a first one that is left out; nothing is recorded after them.
            By default the whole block is recorded, which takes memory and time in proportion to its length;
            then the first call of ``step()`` begins the first step that counts.
        timed: Whether steps are timed before the profiler starts: 37 or more, as many as are needed. A number
            of steps, 9 at least, is timed as given, and then the profiler starts. By default steps are timed
            if ``steps`` is given without a schedule of your own; with several ranks 100 of them, so that all
            ranks record the same steps. Steps are never timed after the profiler of the same block.
        every: N, if every Nth step does extra work, such as updating the weights: a window has a multiple of
            N steps.
        path: The file in which to keep the trace: ``.json``, or ``.json.gz`` for a compressed one. By default
            it is not kept.
        what_if: As for ``diagnose``.
        link_gbps: As for ``diagnose``.
        options: Passed to ``torch.profiler.profile``, such as ``with_stack=True``.

    Returns:
        A ``Profile``, with ``step()``, ``diagnosis``, ``problem`` and ``unprofiled``.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: ``steps``, ``timed`` or ``every`` is not a whole number, or PyTorch's profiler has no such
            option.
        ValueError: ``steps`` or ``every`` is less than 1, ``timed`` is too small for the windows,
            ``link_gbps`` is not a speed, or ``what_if`` has an unknown change.
        OSError: No file can be made at ``path``.
    """
    if steps is not None:
        steps = whole("steps", steps, 1, "how many are recorded")
    every = whole("every", every, 1, "after how many steps the loop repeats itself")
    if timed is None:
        timed = steps is not None and "schedule" not in options and entered() is None
    elif not isinstance(timed, bool):
        timed = whole(
            "timed",
            timed,
            least_steps(every),
            "True, False, or how many steps are timed before the profiler starts",
        )
    if "on_trace_ready" in options:
        raise TypeError(
            "profile has its own handler for the trace; give path= to keep it, and leave "
            "on_trace_ready out"
        )
    if path is not None:
        file_name("path", path)
    # Options that the end of the block would refuse are refused before it.
    check_options(speed(link_gbps), sets_of(what_if))
    return Profile(steps, (timed, every), path, what_if, link_gbps, options)


class Profile:
    """The recording of ``profile``. ``print`` shows the diagnosis, or why there is none.

    It cannot be pickled; keep its diagnosis, or the trace with ``path=``.

    Attributes:
        diagnosis: The diagnosis; None before the end of the block, or if ``problem`` has a reason.
        problem: The reason why there is no diagnosis; None if there is one.
        remark: A limit of the diagnosis, such as a block that ended before all steps were recorded.
        unprofiled: The time of a step before the profiler started; None if it was not timed.
    """

    diagnosis: Diagnosis | None = None
    problem: str | None = "the block has not ended"
    remark: str | None = None
    unprofiled: Unprofiled | None = None

    def __init__(
        self,
        steps: int | None,
        timed: tuple[bool | int, int],
        path: str | os.PathLike[str] | None,
        what_if: str | Iterable[str] | None,
        link_gbps: float | None,
        options: dict[str, Any],
    ) -> None:
        """Take the arguments of ``profile``, which makes these."""
        torch = _torch()
        self._torch = torch
        self._steps = steps
        self._diagnose = {"what_if": what_if, "link_gbps": link_gbps}
        self._path = None if path is None else _writable(Path(path))
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._trace: Path | None = None
        self._timed, self._every = timed
        self._windows: Windows | None = None
        #: Number of steps that have ended, in total and since the profiler started.
        self._stepped = self._count = 0
        self._is_entered = self._is_over = self._is_started = False
        self._mark: Any = None
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        # Without `acc_events`, PyTorch warns that this option will become the default.
        chosen: dict[str, Any] = {"activities": activities, "acc_events": True, **options}
        if steps is not None:
            chosen.setdefault("schedule", profiler.schedule(wait=0, warmup=1, active=steps, repeat=1))
        self._marks = "schedule" not in chosen
        #: Number of steps to record, if that is known.
        self._planned = steps if "schedule" not in options else None
        try:
            self._profiler = profiler.profile(**chosen, on_trace_ready=self._write)
        except TypeError as error:
            raise TypeError(f"torch.profiler.profile has no such option: {error}") from error

    def step(self) -> None:
        """Mark the end of a step and the beginning of the next. Call this at the end of each step. It blocks
        only while steps are timed: at the end of each window it waits for the devices.

        Raises:
            RuntimeError: The block is not entered.
        """
        if not self._is_entered:
            raise RuntimeError("the profile is not entered; call step() inside its `with` block")
        self._stepped += 1
        if self._windows is not None:
            if self._windows.step():
                self.unprofiled, self._windows = self._windows.result(_has_run.is_set()), None
                self._start()
            return
        self._count += 1
        if self._marks:
            self._end_mark()
            self._mark = self._torch.profiler.record_function(f"ProfilerStep#{self._count}")
            self._mark.__enter__()
        else:
            self._profiler.step()

    def __enter__(self) -> Profile:
        """Start the profiler, or the timing before it.

        Raises:
            RuntimeError: This profile was entered before, or another one is entered.
        """
        if self._is_entered or self._is_over:
            raise RuntimeError("this profile was entered before; make another one")
        if not _recording.acquire(blocking=False):
            raise RuntimeError(
                "another profile is entered, and PyTorch records one at a time; leave it first"
            )
        try:
            if self._timed:
                self._windows = Windows(
                    _clock, lambda: _synchronize(self._torch), self._every, self._steps_timed()
                )
            else:
                self._start()
        except BaseException:
            _recording.release()
            raise
        self._is_entered = True
        return self

    def _steps_timed(self) -> int | None:
        """Return the number of steps that are timed, if that does not depend on their duration; otherwise
        None.
        """
        if self._timed is not True:
            return self._timed
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            return max(TOGETHER, least_steps(self._every))
        return None

    def _start(self) -> None:
        """Start the profiler."""
        if self.unprofiled is not None:
            self._profiler.preset_metadata_json(KEY, json.dumps(self.unprofiled.to_dict()))
        self._profiler.__enter__()
        self._is_started = True
        _has_run.set()

    def __reduce__(self) -> Any:
        raise TypeError("a profile cannot be pickled; keep its diagnosis, or the trace with path=")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the profiler, write the trace and diagnose it; after an exception only stop."""
        if error is not None:
            self.problem = f"the block ended with {type(error).__name__}, so its trace was not diagnosed"
        self._is_entered, self._is_over = False, True
        _recording.release()
        try:
            self._end_mark()
            if self._is_started:
                self._profiler.__exit__(kind, error, trace)
            if error is None:
                self._conclude()
        finally:
            if self._folder is not None:
                self._folder.cleanup()

    def _end_mark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def _write(self, profiler: Any) -> None:
        """Write the trace, which the profiler has just finished."""
        path = self._path
        if path is None:
            import tempfile

            self._folder = tempfile.TemporaryDirectory(prefix="sidestream-")
            path = Path(self._folder.name) / "profile.json"
        profiler.export_chrome_trace(str(path))
        self._trace = path

    def _conclude(self) -> None:
        if self._trace is None:
            # Without a GPU, more steps would not help.
            self.problem = self._missing() if self._torch.cuda.is_available() else self._without_gpu()
            return
        if self._planned is not None and self._count <= self._planned:
            self.remark = f"the block ended when {self._count - 1} of {self._planned} steps were recorded"
        elif self._stepped == 0:
            self.remark = (
                "step() was never called, so the trace does not say where a step ends; call it at the "
                "end of each step"
            )
        try:
            self.diagnosis = diagnose(self._trace, **self._diagnose)  # type: ignore[arg-type]
        except TraceError as refused:
            self.problem = str(refused) if self._torch.cuda.is_available() else self._without_gpu()
            return
        self.problem = None

    def _without_gpu(self) -> str:
        """Return the reason why there is no diagnosis if PyTorch finds no GPU, with advice."""
        problem = (
            "nothing ran on a GPU: PyTorch finds no CUDA here, and a diagnosis explains what a GPU did; run "
            "this on a machine with a GPU and a PyTorch built for CUDA"
        )
        if self.unprofiled is None:
            return problem
        took = f"{self.unprofiled.median_ns / 1e6:.3f} ms"
        return f"{problem}. Without the profiler a step took {took} in the median"

    def _missing(self) -> str:
        """Return the reason why nothing was recorded."""
        if self._stepped == 0:
            return (
                "step() was never called in the block, so nothing was recorded; call it at the end of "
                "each step"
            )
        windows, recorded = self._windows, 1 + (self._planned or 0)
        if windows is None:
            return (
                f"the block ended after {self._stepped} steps, before anything was recorded: the first step "
                "under the profiler is left out; give the block "
                f"{self._stepped - self._count + recorded} steps or more"
            )
        return (
            f"the block ended after {self._stepped} steps, while they were timed without the profiler, which "
            f"takes {windows.least()} or more (so far {windows}); give the block "
            f"{windows.least() + recorded} steps or more, or have fewer timed "
            f"(timed={least_steps(self._every)} is the least), or none (timed=False)"
        )

    def __str__(self) -> str:
        if self.diagnosis is None:
            return f"no diagnosis: {self.problem}"
        return str(self.diagnosis) if self.remark is None else f"{self.remark}\n\n{self.diagnosis}"

    def __repr__(self) -> str:
        return (
            f"<Profile: {self.diagnosis!r}>" if self.diagnosis is not None else f"<Profile: {self.problem}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as ``Diagnosis.to_dict`` does, or ``{"problem": …}``."""
        return self.diagnosis.to_dict() if self.diagnosis is not None else {"problem": self.problem}

    def table(
        self, name: str, *, sort: str | None = None, limit: int = 20, by_shape: bool = False
    ) -> Table:
        """Return one table of the trace, as ``Diagnosis.table`` does.

        Raises:
            RuntimeError: There is no diagnosis; ``problem`` says why.
        """
        if self.diagnosis is None:
            raise RuntimeError(f"there is no table: {self.problem}")
        return self.diagnosis.table(name, sort=sort, limit=limit, by_shape=by_shape)

    def json(self) -> str:
        """Return the diagnosis as ``Diagnosis.json`` does, or ``{"problem": …}``."""
        return self.diagnosis.json() if self.diagnosis is not None else json.dumps(self.to_dict())

    def _repr_html_(self) -> str:
        return (
            self.diagnosis._repr_html_() if self.diagnosis is not None else f"<p>{html.escape(str(self))}</p>"
        )


def _writable(path: Path) -> Path:
    """Return the path, if a file can be created there. An error at the end would lose the recording."""
    is_new = not path.exists()
    with path.open("ab"):
        pass
    if is_new:
        path.unlink()
    return path


def _synchronize(torch: Any) -> None:
    """Wait for all devices that the program has used."""
    cuda = torch.cuda
    if not (cuda.is_available() and cuda.is_initialized()):
        return
    # Waiting for a device that was not used would create a context on it, which takes memory.
    is_used = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    for device in range(cuda.device_count()):
        if device == cuda.current_device() or is_used is not None and is_used(device):
            cuda.synchronize(device)


def _torch() -> Any:
    try:
        import torch
        import torch.profiler
    except ImportError as error:
        raise ImportError(
            "profile() runs PyTorch's profiler, and PyTorch is not installed; pip install torch. "
            "A trace from elsewhere is explained by sidestream.diagnose(path)"
        ) from error
    return torch
