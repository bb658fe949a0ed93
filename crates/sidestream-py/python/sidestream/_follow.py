"""What a loader says beside its batches, as of the batch that was taken and not of the one that was read
last.

A loader of accelerate says whether a batch is the last one, and ``accumulate`` steps by that. A loader with a
``state_dict`` says how far it has come. Both change while a batch is read, and batches are read ahead: so it
is noted with each batch, and comes true when that one is handed over.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterator
from typing import Any

#: What accelerate's loaders change while they are iterated over.
_ACCELERATES = ("end_of_dataloader", "remainder", "iteration", "dl_state_dict")


def follower(loader: Any, owner: Any, ordinal: int | None) -> Follower:
    """Return what follows this loader for the prefetcher ``owner``, whose batches go to this GPU."""
    if isinstance(getattr(loader, "_follower", None), Follower):
        return _OfPrefetcher(loader)
    accelerate = sys.modules.get("accelerate.data_loader")
    mixin = getattr(accelerate, "DataLoaderStateMixin", None)
    if mixin is not None and issubclass(type(loader), mixin):
        return _OfAccelerate(loader, accelerate, owner, ordinal)
    return _Stateful(loader) if has_state(loader) else Follower(loader)


def has_state(loader: Any) -> bool:
    """Tell whether a loader says how far it has come, and can go on from there."""
    # Each loader of accelerate has the methods, and those of stateful loaders have the state.
    if hasattr(type(loader), "adjust_state_dict_for_prefetch") and "dl_state_dict" not in vars(loader):
        return False
    return all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict"))


class Follower:
    """Of a loader that gives batches and nothing else."""

    #: Whether `note` has to be called behind each batch.
    notes = False

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def begin(self) -> Iterator[Any]:
        """Begin an iteration, in the caller's thread."""
        return iter(self.loader)

    def note(self) -> Any:
        """Return what the loader says now. It is called in the thread that reads, behind each batch and
        behind the last.
        """
        return None

    def taken(self, note: Any, is_first: bool) -> None:
        """Say so from here on, in the caller's thread: the batch is handed over with which it was noted."""

    def ended(self, note: Any) -> None:
        """The caller has seen the end."""

    def state(self) -> Any:
        """Return how far the caller has come."""
        return self.loader.state_dict()

    def load_state(self, state: Any) -> None:
        """Go on there with the next iteration."""
        self.loader.load_state_dict(state)


class _NoState:
    """There is none, and why."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Stateful(Follower):
    """Of a loader with ``state_dict``, such as torchdata's ``StatefulDataLoader``."""

    notes = True

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._state: Any = None

    def begin(self) -> Iterator[Any]:
        source: Iterator[Any] = iter(self.loader)
        self._state = self.note()
        return source

    def note(self) -> Any:
        try:
            # The loader may go on to change what it gives.
            return copy.deepcopy(self.loader.state_dict())
        except Exception as error:  # noqa: BLE001 - it is the caller's, if the state is asked for.
            return _NoState(error)

    def taken(self, note: Any, is_first: bool) -> None:
        self._state = note

    def ended(self, note: Any) -> None:
        self._state = note

    def state(self) -> Any:
        if isinstance(self._state, _NoState):
            raise self._state.error
        return super().state() if self._state is None else self._state

    def load_state(self, state: Any) -> None:
        super().load_state(state)
        self._state = None


class _OfAccelerate(Follower):
    """Of a loader that accelerate prepared.

    What is iterated over is a twin: a second object on the same data, whose flags nobody sees. The loader
    gets them with the batch that they belong to, and so does the prefetcher, which is the one that is active
    for accelerate.
    """

    notes = True

    def __init__(self, loader: Any, accelerate: Any, owner: Any, ordinal: int | None) -> None:
        super().__init__(loader)
        state = loader.gradient_state
        dispatcher = getattr(accelerate, "DataLoaderDispatcher", None)
        if dispatcher is not None and issubclass(type(loader), dispatcher) and loader.state.num_processes > 1:
            raise ValueError(
                "accelerate hands out the batches of this loader by collective calls, which all ranks have to"
                " make in one order, and a thread that reads ahead would make them beside those of the "
                "training; prepare the loader with DataLoaderConfiguration(dispatch_batches=False)"
            )
        self._accelerate = accelerate
        # The prefetcher has this.
        self._owner = weakref.ref(owner)
        self._ordinal = ordinal
        self._state = state
        self._twin = object.__new__(type(loader))

    def begin(self) -> Iterator[Any]:
        loader, twin = self.loader, self._twin
        twin.__dict__.update(vars(loader))
        twin.gradient_state = _Unseen()
        device: Any = getattr(loader, "device", None)
        is_there = getattr(device, "type", None) == "cuda" and (device.index or 0) == self._ordinal
        if is_there:
            # It would upload on the default stream, behind the training's own work.
            twin.device = None
        if getattr(loader, "rng_types", None) is not None:
            # A collective call, which belongs into the thread of the training.
            self._accelerate.synchronize_rng_states(loader.rng_types, loader.synchronized_generator)
            twin.rng_types = None
        return iter(twin)

    def note(self) -> Any:
        said = {name: vars(self._twin)[name] for name in _ACCELERATES if name in vars(self._twin)}
        if "dl_state_dict" in said:
            said["dl_state_dict"] = copy.deepcopy(said["dl_state_dict"])
        return said

    def taken(self, note: Any, is_first: bool) -> None:
        if is_first:
            self._state._add_dataloader(self._owner())
        self._say(note)

    def ended(self, note: Any) -> None:
        self._say(note)
        self._state._remove_dataloader(self._owner())

    def _say(self, note: Any) -> None:
        vars(self.loader).update(note)
        for name in ("end_of_dataloader", "remainder"):
            object.__setattr__(self._owner(), name, note.get(name, getattr(self.loader, name)))


class _OfPrefetcher(Follower):
    """Of another prefetcher, whose batches are taken in a thread of ours and not by the caller."""

    notes = True
    _batches: Any = None

    def begin(self) -> Iterator[Any]:
        self._batches = self.loader._begin(None)
        return self._batches  # type: ignore[no-any-return]

    def note(self) -> Any:
        return self._batches.note

    def taken(self, note: Any, is_first: bool) -> None:
        self.loader._follower.taken(note, is_first)

    def ended(self, note: Any) -> None:
        self.loader._follower.ended(note)

    def state(self) -> Any:
        return self.loader._follower.state()


class _Unseen:
    """Takes the place of accelerate's state, for a loader that reads ahead."""

    def _add_dataloader(self, loader: Any) -> None:
        pass

    def _remove_dataloader(self, loader: Any) -> None:
        pass
