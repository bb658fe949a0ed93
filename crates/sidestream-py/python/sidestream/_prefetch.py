"""Batches that are on the device before they are asked for."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from sidestream import _follow, _hand_over, _leaves, _ranks, _sidestream, _waits
from sidestream import _units as units
from sidestream._arguments import items, one_of, warn_of_samples, whole
from sidestream._feed import Entry, Feed, Noted
from sidestream._results import Result

if TYPE_CHECKING:
    from typing_extensions import Self

#: More batches than anybody has memory for.
MOST_DEPTH = 4096

Batch = TypeVar("Batch")


@overload
def prefetch(
    loader: Iterable[Batch],
    device: Any = None,
    depth: int = 2,
    transform: None = None,
    *,
    keep: Literal["grow", "copy"] = "grow",
    stream: Any = None,
    max_pinned: int | None = None,
) -> Prefetcher[Batch]: ...
@overload
def prefetch(
    loader: Iterable[Any],
    device: Any = None,
    depth: int = 2,
    *,
    transform: Callable[[Any], Batch],
    keep: Literal["grow", "copy"] = "grow",
    stream: Any = None,
    max_pinned: int | None = None,
) -> Prefetcher[Batch]: ...
@overload
def prefetch(
    loader: Iterable[Any],
    device: Any,
    depth: int,
    transform: Callable[[Any], Batch],
    *,
    keep: Literal["grow", "copy"] = "grow",
    stream: Any = None,
    max_pinned: int | None = None,
) -> Prefetcher[Batch]: ...

def prefetch(
    loader: Iterable[Any],
    device: Any = None,
    depth: int = 2,
    transform: Callable[[Any], Any] | None = None,
    *,
    keep: Literal["grow", "copy"] = "grow",
    stream: Any = None,
    max_pinned: int | None = None,
) -> Prefetcher[Any]:
    """Return the batches of ``loader`` on the device, each uploaded while those before it are computed.

    ``loader`` gives nested dictionaries, lists, tuples, named tuples and dataclasses of PyTorch tensors and
    numpy arrays, pinned or not. Each batch is packed into pinned memory and uploaded in one copy on a
    separate stream; large pinned tensors are copied from where they are. Everything else in a batch, such as
    texts, is passed through, and so are tensors that are already on the device. Objects with tensors and a
    method ``to`` are moved to a GPU with it.

    Which stream waits for which: the stream that is current where a batch is taken waits for its upload and
    its transform. The host waits only for the loader. A batch is valid as long as you hold it, for work on
    the stream that was current where it was taken, and on streams that were named to it by
    ``tensor.record_stream`` or ``__dlpack__(stream=…)``. When all its tensors are gone and their uses on
    these streams are over, its memory is used for another batch.

    With PyTorch imported the arrays become ordinary tensors with the values that ``.to(device)`` would give.
    Without it, and on simulated devices, they become ``DeviceArray``.

    Args:
        loader: Any iterable, such as a ``torch.utils.data.DataLoader``. ``iter(loader)`` is called in your
            thread, and a thread of the prefetcher pulls the batches ahead of you: what you do not take is
            lost. When it is asked for the next batch, the loader may refill arrays of numbers that go to a
            device, but nothing else, and on ``"cpu"`` nothing at all. Its attributes are reached through the
            prefetcher. A loader that accelerate has prepared, or one with a ``state_dict``, reports the
            batches that you took.
        device: ``"cuda"``, ``"cuda:1"``, a ``torch.device`` or a number; ``"cpu"``, where batches are only
            read ahead; ``"sim:h200"`` for a simulated GPU. By default PyTorch's current CUDA device if there
            is one, and else ``"cpu"``.
        depth: How many batches fit in device memory at once, including the one in use; a transform adds one
            more. On ``"cpu"``, how many are read ahead.
        transform: A function from batch to batch, on the device. It runs in your thread with your autocast
            and grad modes when its batch is asked for, on a separate stream, beside what you have put into
            the current stream since the previous batch was handed out. It must not read what you write there.
            It draws random numbers as in a plain loop. On ``"cpu"`` and for ``DeviceArray`` it is simply
            called.
        keep: What happens when you hold ``depth`` batches and take another: ``"grow"`` adds memory for one
            more; ``"copy"`` gives you a copy of each batch, so that the memory never grows.
        stream: Take the batches on this stream instead of the current one. A simulated device has no current
            stream: by default the prefetcher makes one.
        max_pinned: How many bytes of pinned memory it may pack batches into. Without a limit it takes those
            of the largest batch twice, and up to a quarter more where batches grow, or what an earlier
            prefetcher has left; with room for one alone, packing a batch waits until the one before is
            uploaded. A batch that does not fit is a ``ValueError`` where it is taken.

    Raises:
        TypeError: ``loader`` cannot be iterated over, or is one tensor, a dictionary or a model; ``device``
            names no device, or an argument is of another kind.
        ValueError: An argument means nothing.
        DeviceError: The device cannot be opened.
    """
    warn_of_samples(loader, stacklevel=2)
    kind: Any = _StatefulPrefetcher if _follow.has_state(loader) else Prefetcher
    made = kind(loader, device, depth, transform, keep=keep, stream=stream, max_pinned=max_pinned)
    return made  # type: ignore[no-any-return]


class Prefetcher(Generic[Batch]):
    """Batches that are on the device before they are asked for. ``prefetch`` makes these, and says what it
    promises.

    It can be iterated again and again, as the loader can. A new iteration ends the one before. An iteration
    that is left early ends with its iterator.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: Any = None,
        depth: int = 2,
        transform: Callable[[Any], Any] | None = None,
        *,
        keep: Literal["grow", "copy"] = "grow",
        stream: Any = None,
        max_pinned: int | None = None,
    ) -> None:
        """Take the arguments of ``prefetch``."""
        depth = whole("depth", depth, 1, "the number of batches to have on the device")
        if depth > MOST_DEPTH:
            raise ValueError(
                f"depth is {depth}; give at most {MOST_DEPTH} batches, for each of which there is memory"
            )
        one_of("keep", keep, ("grow", "copy"))
        if max_pinned is not None:
            max_pinned = whole("max_pinned", max_pinned, 1, "how many bytes of pinned memory there may be")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is {transform!r}; give a function from batch to batch")
        items("loader", loader)
        self._loader = loader
        self._depth = depth
        self._transform = transform
        self._target = _hand_over.target(device, keep == "copy", stream)
        # One batch is in use, one is being transformed, and may still lie where it was uploaded when the next
        # one comes.
        slots = depth + 1 if transform is not None and self._target.transforms_ahead else depth
        self._ring = (
            None
            if self._target.ring_device is None
            else _sidestream.Ring(self._target.ring_device, slots, max_pinned)
        )
        self._device = "cpu" if self._ring is None else self._ring.device
        self._grows = keep == "grow"
        self._noted = Noted()
        self._feed: Feed | None = None
        self._is_closed = False
        self._process = os.getpid()
        self._follower = _follow.follower(loader, self, self._target.ordinal)

    def __getattr__(self, name: str) -> Any:
        """Return what the loader has: ``dataset``, ``batch_size``, ``sampler``, ``set_epoch`` and whatever
        else.
        """
        if not name.startswith("_"):
            try:
                return getattr(self._loader, name)
            except AttributeError:
                pass
            kind = type(self._loader).__name__
            raise AttributeError(
                f"neither the Prefetcher nor the {kind} in it has an attribute {name!r}", name=name, obj=self
            )
        raise AttributeError(f"a Prefetcher has no attribute {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what the loader has there, and all else here."""
        is_own = name.startswith("_") or hasattr(type(self), name)
        if not is_own and hasattr(self._loader, name):
            setattr(self._loader, name, value)
        else:
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """Return what the loader says.

        Raises:
            TypeError: It has no length.
        """
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        """Begin an iteration: ``iter(loader)`` is called here, in your thread."""
        _ranks.warn(self._loader, stacklevel=2)
        batches = self._begin(self._follower if self._follower.notes else None)
        batches.unknown = _ranks.unknown_to_accelerate(self._loader)
        return batches

    def _begin(self, follower: _follow.Follower | None) -> _Batches[Batch]:
        self._refuse_child()
        if self._is_closed:
            raise ValueError("the prefetcher was closed; make another")
        self._end()
        self._feed = Feed(
            self._follower,
            self._ring,
            depth=self._depth,
            ordinal=self._target.ordinal,
            device=self._target.device,
            grows=self._grows,
            noted=self._noted,
            are_new=_leaves.makes_each_anew(self._loader),
        )
        return _Batches(self, self._feed, follower)

    def _refuse_child(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "this process was forked from the one that made the prefetcher, and has neither its thread "
                "nor its device; call sidestream.prefetch here"
            )

    def close(self) -> None:
        """End the iteration, the thread and the use of the device's memory. Batches that you hold stay what
        they are.

        The memory is for the next prefetcher, and ``sidestream.empty_cache()`` gives it back.

        Waits for the loader if it is giving a batch, for 10 seconds at most, which the end of the program
        does not do once more. The thread ends, and lets go of the memory, as soon as the loader has given it.
        """
        if os.getpid() != self._process or self._is_closed:
            return
        self._is_closed = True
        feed, self._feed = self._feed, None
        if feed is not None:
            try:
                feed.end()
            finally:
                feed.close_ring()
        elif self._ring is not None:
            self._ring.close()

    def __del__(self) -> None:
        # What it has is for the next one at once, and not when its thread lets go of it.
        feed: Feed | None = getattr(self, "_feed", None)
        if feed is not None and sys is not None:
            feed.stop()
            feed.close_ring()

    def _end(self) -> None:
        if self._feed is not None:
            self._feed.stop()
            # A loader may have one iterator, which cannot give two batches at once.
            self._feed.join()
            self._feed = None

    def __enter__(self) -> Self:
        """Return itself: ``with`` closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    @property
    def statistics(self) -> PrefetchStatistics:
        """What it has done so far, in all iterations."""
        self._refuse_child()
        of_ring: dict[str, Any] = {} if self._ring is None else self._ring.statistics()
        return PrefetchStatistics(
            device=self._device,
            batches=self._noted.given,
            bytes=of_ring.get("bytes", 0),
            bytes_from_pinned=of_ring.get("direct_bytes", 0),
            slots=of_ring.get("slots", 0),
            grown=of_ring.get("grown", 0),
            retired=of_ring.get("retired", 0),
            pinned_bytes=of_ring.get("pinned_bytes", 0),
            elapsed_s=self._noted.elapsed_s,
            waited_for_loader_s=self._noted.loader_s,
            waited_for_slots_s=self._noted.slots_s,
            warnings=(*self._noted.warnings, *of_ring.get("warnings", ())),
        )

    def __repr__(self) -> str:
        return f"<Prefetcher of {type(self._loader).__name__} to {self._device}, depth {self._depth}>"


class _StatefulPrefetcher(Prefetcher[Batch]):
    """Of a loader with ``state_dict``. The methods are the class's own, since that is where protocols look
    for them.
    """

    def state_dict(self) -> Any:
        """Return how far you have come: the loader's state as of the batch that was taken last."""
        return self._follower.state()

    def load_state_dict(self, state_dict: Any) -> None:
        """Go on behind the batch that was taken last before, with the next iteration. A running one ends."""
        self._end()
        self._follower.load_state(state_dict)


@dataclass(frozen=True)
class PrefetchStatistics(Result):
    """What a prefetcher has done so far.

    Attributes:
        device: The device that batches go to.
        batches: Batches that were taken.
        bytes: Bytes that were uploaded, those of batches included that nobody took.
        bytes_from_pinned: How many of them were copied from pinned memory where they were.
        slots: Batches that there is memory for on the device.
        grown: How many of them were added because all others were held.
        retired: How many are not used again; ``warnings`` says why.
        pinned_bytes: Pinned memory that batches are packed into, which the prefetcher has until it is closed.
        elapsed_s: Seconds from the first batch that you asked for to the last that you took, your steps
            included.
        waited_for_loader_s: Seconds that you waited for the loader to give a batch.
        waited_for_slots_s: Seconds that you waited while a batch was packed, or for memory of the device.
        warnings: What a reader has to know: memory that is not used again, and objects whose arrays stayed on
            the host.
    """

    device: str
    batches: int
    bytes: int
    bytes_from_pinned: int
    slots: int
    grown: int
    retired: int
    pinned_bytes: int
    elapsed_s: float
    waited_for_loader_s: float
    waited_for_slots_s: float
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Whether the loader keeps up, in a sentence."""
        return _waits.verdict(
            self.batches, "batches", self.waited_for_loader_s, self.elapsed_s, "was spent waiting for it"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a new dictionary, of the schema ``sidestream.prefetch/1``."""
        return {
            "schema": "sidestream.prefetch/1",
            **asdict(self),
            "warnings": list(self.warnings),
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        batches = "1 batch" if self.batches == 1 else f"{self.batches} batches"
        if self.device == "cpu":
            waited = f"waited {self.waited_for_loader_s:.3f} s for the loader, of {self.elapsed_s:.3f} s"
            return f"{batches} read ahead on the processor\n{waited}\n{self.verdict}"
        lines = [
            (
                f"{batches} to {self.device}: {units.size(self.bytes)}, {units.size(self.bytes_from_pinned)} "
                "of it from pinned memory where it was"
            ),
            (
                f"memory for {self.slots} batches, {self.grown} of them added because all others were held; "
                f"{units.size(self.pinned_bytes)} of pinned memory to pack into"
            ),
            (
                f"waited {self.waited_for_loader_s:.3f} s for the loader, {self.waited_for_slots_s:.3f} s for"
                f" packing and memory, of {self.elapsed_s:.3f} s"
            ),
            self.verdict,
        ]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


class _Batches(Iterator[Batch]):
    """One iteration."""

    def __init__(self, owner: Prefetcher[Batch], feed: Feed, follower: _follow.Follower | None) -> None:
        self._owner = owner
        self._feed = feed
        #: Told of each batch that is taken. None where there is nothing to tell, or somebody else tells it.
        self._follower = follower
        #: Of a loader that accelerate does not know.
        self.unknown: _ranks.Unknown | None = None
        #: What the loader said with the batch that was taken last.
        self.note: Any = None
        self._is_first = True
        self._target = owner._target
        self._is_over = False
        #: When the last batch was handed out; none before the first was asked for.
        self._since: float | None = None
        self._transformer: _hand_over.Transformer | None = None
        if owner._transform is not None and self._target.transforms_ahead:
            self._transformer = _hand_over.Transformer(self._target, owner._transform)

    def __next__(self) -> Batch:
        if self._is_over:
            raise StopIteration
        if self.unknown is not None:
            self.unknown.look(stacklevel=2)
        if self._since is None:
            self._since = time.perf_counter()
        entry = self._next()
        noted = self._owner._noted
        while noted.unsaid:
            warnings.warn(noted.unsaid.popleft(), stacklevel=2)
        self.note = entry.note
        if self._follower is not None:
            self._follower.taken(entry.note, self._is_first)
            self._is_first = False
        batch = self._plain(entry) if self._transformer is None else self._transformer.apply(entry)
        noted.given += 1
        now = time.perf_counter()
        noted.elapsed_s += now - self._since
        self._since = now
        return batch  # type: ignore[no-any-return]

    def _plain(self, entry: Entry) -> Any:
        batch = self._target.hand_over(entry)
        transform = self._owner._transform
        return batch if transform is None else transform(batch)

    def _next(self) -> Entry:
        try:
            entry = self._feed.take()
        except Exception:
            self._is_over = True
            raise
        if entry is not None:
            return entry
        self._is_over = True
        if self._feed.is_stopped:
            raise RuntimeError(
                "this iteration was ended, by another one of the same prefetcher or by close(); use one "
                "iteration at a time"
            )
        self.note = self._feed.last_note
        if self._follower is not None:
            self._follower.ended(self._feed.last_note)
        raise StopIteration

    def close(self) -> None:
        """End the iteration."""
        self._is_over = True
        self._feed.stop()

    def __del__(self) -> None:
        # At the end of the interpreter the module may be gone, and the thread is then ended by other means.
        feed: Feed | None = getattr(self, "_feed", None)
        if feed is not None and sys is not None:
            feed.stop()
