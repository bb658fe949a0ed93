"""Warns if several ranks would train on the same data."""

from __future__ import annotations

import sys
import warnings
from typing import Any

#: PyTorch samplers that ignore ranks.
_WHOLE = ("SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")

_said: set[str] = set()


def warn(loader: Any, stacklevel: int) -> None:
    """Warn once per program about a loader that gives every rank all of its data."""
    world = _world()
    if world > 1 and _is_plain(loader) and _gives_all(loader):
        _warn_once(
            "ranks",
            f"each of the {world} ranks goes through all data of this DataLoader, unless its data set is "
            "already one rank's part: give it sampler=DistributedSampler(dataset), or prefetch the loader "
            "that accelerate or Lightning make from it, sidestream.prefetch(accelerator.prepare(loader)) or "
            "callbacks=[sidestream.lightning.Prefetch()]",
            stacklevel,
        )


def unknown_to_accelerate(loader: Any) -> Unknown | None:
    """Return an object that watches whether a loop over this loader accumulates gradients with accelerate,
    which has not prepared the loader; None if that does no harm.
    """
    steps = _accumulated()
    if steps < 2 or not _is_plain(loader):
        return None
    batches = len(loader) if hasattr(loader.dataset, "__len__") else None
    # If the number of batches is a multiple of the accumulation steps, accelerate steps at the last batch
    # anyway.
    return None if batches is not None and batches % steps == 0 else Unknown(steps)


class Unknown:
    """A loop over a loader that accelerate has not prepared."""

    def __init__(self, steps: int) -> None:
        """Begin before the first step of the loop."""
        self._steps = steps
        self._state: Any = sys.modules["accelerate.state"].GradientState()
        self._before = self._state.sync_gradients

    def look(self, stacklevel: int) -> None:
        """Warn once per program if a step of the loop has accumulated gradients: then the next step syncs
        differently.
        """
        if self._state.sync_gradients is not self._before and not self._state.in_dataloader:
            _warn_once(
                "accelerate",
                f"accelerate accumulates gradients over {self._steps} batches and does not know this "
                "DataLoader, so it does not step at the end: prefetch the loader that it has prepared, "
                "sidestream.prefetch(accelerator.prepare(loader))",
                stacklevel,
            )


def _is_plain(loader: Any) -> bool:
    # Only plain loaders are checked: others are not known, or are prepared by accelerate or Lightning, which
    # split the data.
    data = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
    return data is not None and type(loader) is data


def _warn_once(what: str, text: str, stacklevel: int) -> None:
    if what not in _said:
        _said.add(what)
        warnings.warn(text, stacklevel=stacklevel + 2)


def _world() -> int:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def _gives_all(loader: Any) -> bool:
    """Return whether every part of the loader ignores ranks."""
    data: Any = sys.modules["torch.utils.data"]
    if isinstance(loader.dataset, data.IterableDataset):
        # The data set itself may depend on the rank.
        return False
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not data.BatchSampler:
        return False
    sampler = loader.sampler if batches is None else batches.sampler
    return type(sampler) in [getattr(data, name) for name in _WHOLE]


def _accumulated() -> int:
    """Return the number of batches over which this program's `Accelerator` accumulates gradients; 1 without
    one.
    """
    known = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if known is None or not getattr(known, "_shared_state", None):
        return 1
    return int(known().num_steps)
