"""Traces of many ranks, diagnosed as tasks of Ray.

This module can be imported without Ray, which is asked for when it is needed.
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
    """Diagnose traces as tasks of Ray, one each, and look at the ranks of one run together.

    The result is that of ``sidestream.diagnose`` for a folder or a list; one file gives ``Diagnoses``, too. A
    trace that cannot be read, and one whose task fails, stand in ``Diagnoses.failed`` with their names; the
    others stay. Where Ray is not running in this process, it starts or joins a cluster as it always does
    (``ray.init``). Waits until all tasks are over. At most twice as many are handed to Ray at a time as the
    cluster has processors; after Ctrl-C no other is, and those that were handed over still run.

    Args:
        paths: A folder of traces, or a list of files and folders. Folders are listed here, and the files
            are opened under their absolute paths where the tasks run: on a cluster of several machines, in
            a file system that all of them see. They need this package, too. With ``on_each_machine`` the
            paths are those of each machine.
        link_gbps: As of ``sidestream.diagnose``.
        what_if: As of ``sidestream.diagnose``.
        options: What a task needs, for ``options`` of Ray's remote functions: by default one processor.
            ``{"memory": BYTES}`` keeps too many large traces from being read at once on one machine.
        reports: Whether the diagnosis of each trace comes back as well. Without them a task returns what
            its rank is joined with the others by, some 24 bytes an exchange of data, so that a thousand
            ranks take little memory here: ``Diagnoses.reports`` is empty, ``Diagnoses.ranks`` the same.
        on_each_machine: Traces lie on the disk of the machine that wrote them: the paths are looked up on
            every machine of the cluster, and each trace is read where it lies. Not for a file system that all
            of them see, where each trace would be read once by each.

    Raises:
        ImportError: Ray is not installed.
        TraceError: A folder has no traces; with ``on_each_machine``, on no machine.
        TypeError: ``paths`` is no path and no list of them, ``link_gbps`` no number, ``what_if`` no text and
            no list of texts, or ``options`` no dictionary.
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

    # Not all at once: after Ctrl-C those that were handed over go on to their end, and no other is.
    # `ray.cancel` would end them, too, but Ray 2.60 aborts this process where a task that is cancelled ends
    # at that moment.
    for place in dict.fromkeys(traces):
        running[hand_over(place)] = place
        while len(running) >= _at_once(ray):
            take_one()
    while running:
        take_one()
    return Diagnoses(results[place] for place in traces)


#: A path, and the machine on which it is one; None for any.
_Place = tuple[str, "str | None"]


def _strategy(machine: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=machine, soft=False)


def _of_machines(ray: Any, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[_Place]:
    """List the paths on every machine."""
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
    """List what of the paths is on this machine."""
    found: list[str] = []
    for path in paths:
        if os.path.exists(path):
            try:
                found += [os.path.abspath(one) for one in files(path)]
            except TraceError:
                # Another machine may have some there.
                continue
    return found


def _at_once(ray: Any) -> int:
    # One waits behind each that runs. A cluster that grows with its tasks sees that, and then there are more.
    return 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))


def _of_task(ray: Any, path: str, result: Any) -> Diagnosis | RankDigest | FailedTrace:
    try:
        of_task: Diagnosis | RankDigest | FailedTrace = ray.get(result)
    except ray.exceptions.RayError as error:
        return FailedTrace(path, f"its task failed: {error}", error)
    return of_task
