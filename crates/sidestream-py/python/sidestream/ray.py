"""Traces of many ranks, diagnosed as tasks of Ray.

This module can be imported without Ray, which is asked for when it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from sidestream._diagnosis import Diagnosis, sets_of, speed
from sidestream._sidestream import check_options
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

    The result is that of ``sidestream.diagnose`` for a folder or a list; one file gives ``Diagnoses``, too. A trace
    that cannot be read, and one whose task fails, stand in ``Diagnoses.failed`` with their names; the others stay.
    Where Ray is not running in this process, it starts or joins a cluster as it always does (``ray.init``). Waits
    until all tasks are over. At most twice as many are handed to Ray at a time as the cluster has processors;
    after Ctrl-C no other is, and those that were handed over still run.

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
        TypeError: ``paths`` is no path and no list of them, ``link_gbps`` no number, ``what_if`` no text and no
            list of texts, or ``options`` no dictionary.
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
    wanted = sets_of(what_if)
    # What is wrong for all of them is said before any of them begins.
    check_options(speed(link_gbps), wanted)
    traces = [os.path.abspath(path) for path in files(paths)]
    if not isinstance(options, (Mapping, type(None))):
        raise TypeError(f'options is {options!r}; give what a task needs as a dictionary, as in {{"memory": 4e9}}')
    task = ray.remote(diagnosis_or_failure).options(**(options or {}))
    results: dict[str, Diagnosis | FailedTrace] = {}
    running: dict[Any, str] = {}

    def take_one() -> None:
        over, _ = ray.wait(list(running), num_returns=1)
        path = running.pop(over[0])
        results[path] = _of_task(ray, path, over[0])

    # Not all at once: after Ctrl-C those that were handed over go on to their end, and no other is. `ray.cancel`
    # would end them, too, but Ray 2.60 aborts this process where a task that is cancelled ends at that moment.
    for path in dict.fromkeys(traces):
        running[task.remote(path, link_gbps, wanted)] = path
        while len(running) >= _at_once(ray):
            take_one()
    while running:
        take_one()
    return Diagnoses(results[path] for path in traces)


def _at_once(ray: Any) -> int:
    # One waits behind each that runs. A cluster that grows with its tasks sees that, and then there are more.
    return 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))


def _of_task(ray: Any, path: str, result: Any) -> Diagnosis | FailedTrace:
    try:
        of_task: Diagnosis | FailedTrace = ray.get(result)
    except ray.exceptions.RayError as error:
        return FailedTrace(path, f"its task failed: {error}", error)
    return of_task
