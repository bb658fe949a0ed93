"""What was measured in this process, by stages and by shapes of items. Knows nothing of PyTorch."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sidestream._pipeline._choice import Chooser

#: So many measurements are kept, the latest.
MOST = 100


@dataclass(frozen=True)
class _Measured:
    calls: tuple[weakref.ref[Any], ...]
    setting: Any
    chooser: Chooser
    owner: weakref.ref[Any]


_measured: list[_Measured] = []


def recall(
    calls: Iterable[Callable[..., Any]], setting: Any, own: Chooser, owner: Any, looks: bool
) -> Chooser:
    """Return the chooser of a pipeline of the very same stages in the same setting, or ``own``, which is kept
    for the next one.

    One that still measures is taken over only where its pipeline is gone.

    Args:
        calls: What the stages call. Of a method it is the object that counts.
        setting: All else that has to be equal.
        own: A chooser that has measured nothing.
        owner: Whose that is.
        looks: Whether what was measured before is taken; otherwise it is forgotten.
    """
    global _measured
    parts = [part for call in calls for part in _parts(call)]
    try:
        references = tuple(weakref.ref(part) for part in parts)
    except TypeError:
        # Something here cannot be told from another one at its address.
        return own
    kept = []
    for one in _measured:
        stages = [reference() for reference in one.calls]
        if list(map(id, stages)) == list(map(id, parts)) and one.setting == setting:
            if looks and not (one.chooser.measuring and one.owner() is not None):
                own = one.chooser
        elif not any(stage is None for stage in stages):
            kept.append(one)
    _measured = [*kept, _Measured(references, setting, own, weakref.ref(owner))][-MOST:]
    return own


def _parts(call: Any) -> tuple[Any, ...]:
    """Return what makes a callable this one. A method is another object each time it is asked for."""
    return (call.__self__, call.__func__) if isinstance(call, types.MethodType) else (call,)
