"""Traces of many ranks, diagnosed as tasks of Ray.

This module can be imported without Ray, which is asked for when it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from sidestream._diagnosis import Diagnosis
from sidestream._sidestream import TraceError
from sidestream._together import Diagnoses, FailedTrace, diagnosis_or_failure, files

__all__ = ["diagnose"]


def diagnose(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    link_gbps: float | None = None,
    what_if: str | Iterable[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Diagnoses:
    """Diagnose traces as tasks of Ray, one each, and look at the ranks of one run together.

    The result is that of ``sidestream.diagnose(paths)``. A trace that cannot be read, and one whose task
    fails, stand in ``Diagnoses.failed`` with their names; the others stay. Where Ray is not running in this
    process, it starts or joins a cluster as it always does (``ray.init``). Waits until all tasks are over.

    Args:
        paths: A folder of traces, or a list of files and folders. Folders are listed here, and the files
            are opened under their absolute paths where the tasks run: on a cluster of several machines, in
            a file system that all of them see. They need this package, too.
        link_gbps: As of ``sidestream.diagnose``.
        what_if: As of ``sidestream.diagnose``.
        options: What a task needs, for ``options`` of Ray's remote functions: by default one processor.
            ``{"memory": BYTES}`` keeps too many large traces from being read at once on one machine.

    Raises:
        ImportError: Ray is not installed.
        TraceError: A folder has no traces.
        ValueError: ``link_gbps`` is no speed, there is no such change, or the list is empty.
    """
    try:
        import ray
    except ImportError as missing:
        raise ImportError(
            "sidestream.ray needs Ray, which is not installed; pip install ray, or use sidestream.diagnose, "
            "which reads one trace after the other",
            name="ray",
        ) from missing
    wanted = what_if if what_if is None or isinstance(what_if, str) else list(what_if)
    traces = [os.path.abspath(path) for path in files(paths)]
    task = ray.remote(diagnosis_or_failure).options(**(options or {}))
    running = [task.remote(path, link_gbps, wanted) for path in traces]
    results: list[Diagnosis | FailedTrace] = []
    try:
        for path, result in zip(traces, running, strict=True):
            results.append(_of_task(ray, path, result))
    finally:
        # Those that are over are not touched. Ctrl-C and a wrong argument end the rest.
        for result in running[len(results) :]:
            ray.cancel(result, force=True)
    return Diagnoses(results)


def _of_task(ray: Any, path: str, result: Any) -> Diagnosis | FailedTrace:
    try:
        of_task: Diagnosis | FailedTrace = ray.get(result)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        # An argument that is wrong for one is wrong for all.
        if isinstance(cause, ValueError) and not isinstance(cause, TraceError):
            raise cause from None
        return FailedTrace(path, f"its task failed: {error}", error)
    return of_task
