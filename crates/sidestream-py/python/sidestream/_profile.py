"""PyTorch's profiler, and what its trace says."""

from __future__ import annotations

import html
import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sidestream._arguments import file_name, whole
from sidestream._diagnosis import Diagnosis, diagnose, sets_of, speed
from sidestream._sidestream import TraceError, check_options

if TYPE_CHECKING:
    import tempfile

#: Held while a profile is entered.
_recording = threading.Lock()


def profile(
    *,
    steps: int | None = None,
    path: str | os.PathLike[str] | None = None,
    what_if: str | Iterable[str] | None = None,
    link_gbps: float | None = None,
    **options: Any,
) -> Profile:
    """Record the body of a ``with`` block with PyTorch's profiler, and diagnose the trace at its end.

    ::

        with sidestream.profile(steps=10) as profiled:
            for batch in loader:
                train(batch)
                profiled.step()
        print(profiled)

    Nothing is printed by itself. While the profiler records, the host is slower; the diagnosis counts what belongs to
    the profiler apart. At the end the host waits for the device.

    Args:
        steps: Record so many steps after a first one, and nothing after them. By default all of the block is
            recorded, which takes memory and time with its length.
        path: Where to keep the trace: ``.json``, or ``.json.gz`` to have it compressed. By default it is not kept.
        what_if: As for ``diagnose``.
        link_gbps: As for ``diagnose``.
        options: Handed to ``torch.profiler.profile``, such as ``with_stack=True``.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: ``steps`` is no whole number, or an option is none of PyTorch's profiler.
        ValueError: ``steps`` is less than 1, ``link_gbps`` is no speed, or there is no such change as in ``what_if``.
        OSError: No file can be made at ``path``.
    """
    if steps is not None:
        steps = whole("steps", steps, 1, "how many are recorded")
    if "on_trace_ready" in options:
        raise TypeError("profile has a handler of its own for the trace; give path= to keep it, and leave on_trace_ready out")
    if path is not None:
        file_name("path", path)
    # What the end of the block would refuse is refused before it.
    check_options(speed(link_gbps), sets_of(what_if))
    return Profile(steps, path, what_if, link_gbps, options)


class Profile:
    """What ``profile`` recorded. ``print`` shows the diagnosis, or why there is none.

    Attributes:
        diagnosis: The diagnosis; none before the end of the block, and none where ``problem`` says why.
        problem: Why there is no diagnosis.
    """

    diagnosis: Diagnosis | None = None
    problem: str | None = "the block has not ended"

    def __init__(
        self,
        steps: int | None,
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
        self._count = 0
        self._is_entered = self._is_over = False
        self._mark: Any = None
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        # Without `acc_events` PyTorch warns that it will be the default.
        chosen: dict[str, Any] = {"activities": activities, "acc_events": True, **options}
        if steps is not None:
            chosen.setdefault("schedule", profiler.schedule(wait=0, warmup=1, active=steps, repeat=1))
        self._marks = "schedule" not in chosen
        try:
            self._profiler = profiler.profile(**chosen, on_trace_ready=self._write)
        except TypeError as error:
            raise TypeError(f"an option is none of torch.profiler.profile: {error}") from error

    def step(self) -> None:
        """Say that a step of the program is over, and the next one begins. Waits for nothing.

        Without ``steps`` the first call begins the first step that counts: what came before is taken as start-up.
        """
        if not self._is_entered:
            raise RuntimeError("the profile is not entered; call step() inside its `with` block")
        self._count += 1
        if self._marks:
            self._end_mark()
            self._mark = self._torch.profiler.record_function(f"ProfilerStep#{self._count}")
            self._mark.__enter__()
        else:
            self._profiler.step()

    def __enter__(self) -> Profile:
        """Start the profiler.

        Raises:
            RuntimeError: It was entered before, or another one is entered.
        """
        if self._is_entered or self._is_over:
            raise RuntimeError("this profile was entered before; make another one")
        if not _recording.acquire(blocking=False):
            raise RuntimeError("another profile is entered, and PyTorch records one at a time; leave it first")
        try:
            self._profiler.__enter__()
        except BaseException:
            _recording.release()
            raise
        self._is_entered = True
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a profile cannot be pickled; keep its diagnosis, or the trace with path=")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the profiler, write the trace and diagnose it; after an exception only stop."""
        if error is not None:
            self.problem = f"the block ended with {type(error).__name__}, so its trace was not looked at"
        self._is_entered, self._is_over = False, True
        _recording.release()
        try:
            self._end_mark()
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
            self.problem = (
                f"the block ended after {self._count} steps, before anything was recorded: the first step is left "
                "out; call step() at the end of each step, and give fewer steps or a longer block"
            )
            return
        try:
            self.diagnosis = diagnose(self._trace, **self._diagnose)  # type: ignore[arg-type]
        except TraceError as refused:
            if self._torch.cuda.is_available():
                self.problem = str(refused)
            else:
                self.problem = (
                    "nothing ran on a GPU: PyTorch finds no CUDA here, and a diagnosis explains what a GPU did; run "
                    "this on a machine with a GPU and a PyTorch built for CUDA"
                )
            return
        self.problem = None

    def __str__(self) -> str:
        return str(self.diagnosis) if self.diagnosis is not None else f"no diagnosis: {self.problem}"

    def __repr__(self) -> str:
        return f"<Profile: {self.diagnosis!r}>" if self.diagnosis is not None else f"<Profile: {self.problem}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as ``Diagnosis.to_dict`` does, or ``{"problem": …}``."""
        return self.diagnosis.to_dict() if self.diagnosis is not None else {"problem": self.problem}

    def json(self) -> str:
        """Return the diagnosis as ``Diagnosis.json`` does, or ``{"problem": …}``."""
        return self.diagnosis.json() if self.diagnosis is not None else json.dumps(self.to_dict())

    def _repr_html_(self) -> str:
        return self.diagnosis._repr_html_() if self.diagnosis is not None else f"<p>{html.escape(str(self))}</p>"


def _writable(path: Path) -> Path:
    """Return the path, if a file can be made there: to find out at the end would lose what was recorded."""
    is_new = not path.exists()
    with path.open("ab"):
        pass
    if is_new:
        path.unlink()
    return path


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
