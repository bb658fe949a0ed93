"""Diagnose the traces of many ranks as Ray tasks.

This module can be imported without Ray; ``diagnose`` needs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from sidestream._diagnosis import Diagnosis, sets_of, speed
from sidestream._sidestream import TraceError, check_options
from sidestream._together import (
    Diagnoses,
    FailedTrace,
    RankDigest,
    diagnosis_or_failure,
    digest_or_failure,
    files,
)

__all__ = ["diagnose"]


def diagnose(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    link_gbps: float | None = None,
    what_if: str | Iterable[str] | None = None,
    options: Mapping[str, Any] | None = None,
    reports: bool = True,
    on_each_machine: bool = False,
) -> Diagnoses:
    """Diagnose traces as Ray tasks, one per trace, and compare the ranks of one run.

    The result is that of ``sidestream.diagnose`` for a folder or a list; one file gives ``Diagnoses``, too. A
    trace that cannot be read, or whose task fails, is in ``Diagnoses.failed``; the others are still read.
    If Ray is not running in this process, it starts or joins a cluster as usual (``ray.init``). Blocks
    until all tasks have ended. At most twice as many tasks as the cluster has CPUs run or wait at a time;
    after Ctrl-C those finish, and no other starts.

    Args:
        paths: A folder of traces, or a list of files and folders. Folders are listed here, and the tasks open
            the files by their absolute paths: on several machines, use a file system that all of them see,
            and install the package on each. With ``on_each_machine`` the paths are those of each machine.
        link_gbps: As for ``sidestream.diagnose``.
        what_if: As for ``sidestream.diagnose``.
        options: The resources of a task, for ``options`` of Ray's remote functions: by default one CPU.
            ``{"memory": BYTES}`` limits how many large traces are read at once on one machine.
        reports: Whether the diagnosis of each trace is returned as well. If not, a task returns only the data
            for the comparison of its rank, some 32 bytes for each exchange of data, so that a thousand ranks
            take little memory here: ``Diagnoses.reports`` is empty, and ``Diagnoses.ranks`` does not change.
        on_each_machine: Whether to look up the paths on every machine of the cluster, and read each trace on
            the machine that has it. Do not use this on a file system that all machines see: each machine
            would read all traces.

    Raises:
        ImportError: Ray is not installed.
        TraceError: A folder has no traces; with ``on_each_machine``, on no machine.
        TypeError: ``paths`` is neither a path nor a list of paths, ``link_gbps`` is not a number, ``what_if``
            is neither a string nor a list of strings, or ``options`` is not a dictionary.
        ValueError: ``link_gbps`` is not a speed, there is no such change, or the list is empty.
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
    # Options that all tasks would refuse are checked before any task starts.
    check_options(speed(link_gbps), wanted)
    if not isinstance(options, (Mapping, type(None))):
        raise TypeError(
            f'options is {options!r}; give what a task needs as a dictionary, as in {{"memory": 4e9}}'
        )
    if on_each_machine:
        traces = _of_machines(ray, paths)
    else:
        traces = [(os.path.abspath(path), None) for path in files(paths)]
    results: dict[_Place, Diagnosis | RankDigest | FailedTrace] = {}
    running: dict[Any, _Place] = {}

    def hand_over(place: _Place) -> Any:
        path, machine = place
        where = {} if machine is None else {"scheduling_strategy": _strategy(machine)}
        needs = {**where, **(options or {})}
        if reports:
            return ray.remote(diagnosis_or_failure).options(**needs).remote(path, link_gbps, wanted)
        return ray.remote(digest_or_failure).options(**needs).remote(path)

    def take_one() -> None:
        over, _ = ray.wait(list(running), num_returns=1)
        place = running.pop(over[0])
        results[place] = _of_task(ray, place[0], over[0])

    # Tasks are not submitted all at once: after Ctrl-C the submitted tasks run to their end, and no other is
    # submitted. `ray.cancel` could end them, but Ray 2.60 aborts this process if a task ends at the moment in
    # which it is cancelled.
    for place in dict.fromkeys(traces):
        running[hand_over(place)] = place
        while len(running) >= _at_once(ray):
            take_one()
    while running:
        take_one()
    return Diagnoses(results[place] for place in traces)


#: A path, and the machine that has it; None for any machine.
_Place = tuple[str, "str | None"]


def _strategy(machine: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=machine, soft=False)


def _of_machines(ray: Any, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[_Place]:
    """Return the traces of the paths on every machine."""
    named = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not ray.is_initialized():
        ray.init()
    machines = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    listing = ray.remote(_there)
    tasks = [
        listing.options(num_cpus=0, scheduling_strategy=_strategy(one)).remote(named) for one in machines
    ]
    places: list[_Place] = []
    for machine, task in zip(machines, tasks, strict=True):
        places += [(path, machine) for path in ray.get(task)]
    if not places:
        raise TraceError(
            f"{', '.join(os.fspath(one) for one in named)}: no machine of the cluster has traces there"
        )
    return places


def _there(paths: list[str | os.PathLike[str]]) -> list[str]:
    """Return the traces of the paths on this machine."""
    found: list[str] = []
    for path in paths:
        if os.path.exists(path):
            try:
                found += [os.path.abspath(one) for one in files(path)]
            except TraceError:
                # The folder may exist on another machine, with traces.
                continue
    return found


def _at_once(ray: Any) -> int:
    # For each task that runs, one task waits, so that a cluster that grows with its tasks sees that it needs
    # more CPUs.
    return 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))


def _of_task(ray: Any, path: str, result: Any) -> Diagnosis | RankDigest | FailedTrace:
    try:
        of_task: Diagnosis | RankDigest | FailedTrace = ray.get(result)
    except ray.exceptions.RayError as error:
        return FailedTrace(path, f"its task failed: {error}", error)
    return of_task
