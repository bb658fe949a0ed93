"""``Loader``: batches of pictures, decoded by threads."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import reprlib
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias

from sidestream._arguments import one_of, truth, whole
from sidestream._sidestream import ImageBatch, ImageEngines, ImageLoader, image_decoder
from sidestream.images._augment import same_augmentation
from sidestream.images._engines import Engines, OnDevice, connect

if TYPE_CHECKING:
    import torch

    from sidestream._prefetch import Prefetcher
    from sidestream.images._augment import Compose

__all__ = ["Batch", "Broken", "Loader", "Placed"]


class Placed(NamedTuple):
    """Where a picture lies in the slab: rows of red, green and blue bytes without gaps,
    from byte ``offset`` on.
    """

    offset: int
    left: int
    """The first column that is there."""
    top: int
    """The first row that is there."""
    width: int
    height: int
    full_width: int
    """The width of the whole picture."""
    full_height: int


class Broken(NamedTuple):
    """A picture that could not be decoded."""

    sample: int
    """Its place in the unshuffled list."""
    name: str
    why: str
    replaced_by: int | None
    """The sample that stands in for it, if one does."""


class Batch:
    """Pictures of different sizes behind each other in one slab of bytes.

    The slab goes back to the loader when nobody has the batch, its slab, or what was made of that, any more.
    """

    def __init__(self, batch: ImageBatch) -> None:
        self._batch = batch
        self._address, self._bytes = batch.memory()
        self._tensor: torch.Tensor | None = batch.take_tensor()
        # What shares this memory shares the array, and the array owns the batch.
        self._array: Any = None
        if self._tensor is None:
            self._array = (ctypes.c_uint8 * self._bytes).from_address(self._address)
            self._array.owner = batch
        self.placed: list[Placed] = [Placed(*one) for one in batch.placed()]
        self.labels: list[int | None] = batch.labels()
        """The label of each picture; ``None`` where the data has none."""
        self.samples: list[int] = batch.samples()
        """The place of each picture in the unshuffled list."""
        self.epoch: int = batch.epoch()
        self.broken: list[Broken] = [Broken(*one) for one in batch.broken()]
        """The pictures that should have been in it."""

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """Where the decoded pixels of the slab begin and end, the bytes of all pixels on a device, and how
        many pictures engines decode.
        """
        return self._batch.parts()

    def decode_by(self, engines: ImageEngines, to: int, stream: int) -> str | None:
        """Have the files of the slab decoded to memory of a device, which begins there.
        A text says why they were refused.
        """
        return engines.decode(self._batch, self._address, to, stream)

    def __len__(self) -> int:
        return len(self.placed)

    def __repr__(self) -> str:
        return f"Batch({len(self)} pictures in {self._bytes} bytes, epoch {self.epoch})"

    @property
    def slab(self) -> torch.Tensor:
        """The bytes as a tensor of uint8; page-locked if the loader pins memory. It shares the memory."""
        if self._tensor is not None:
            return self._tensor[: self._bytes]
        import torch

        return torch.frombuffer(self._array, dtype=torch.uint8)

    @property
    def view(self) -> memoryview:
        """The bytes, without PyTorch. It shares the memory."""
        if self._tensor is not None:
            return memoryview(self.slab.numpy())
        return memoryview(self._array).cast("B")

    def picture(self, index: int) -> torch.Tensor:
        """One picture, as rows, columns and three channels of uint8. It shares the memory."""
        placed = self.placed[index]
        flat = self.slab[placed.offset : placed.offset + placed.width * placed.height * 3]
        return flat.view(placed.height, placed.width, 3)

    def tensors(self) -> dict[str, torch.Tensor]:
        """``slab``, ``table`` (a row of seven numbers for each picture, as ``Placed`` names them) and
        ``labels`` (-1 for none).
        """
        import torch

        table = torch.tensor(self.placed, dtype=torch.int64).reshape(-1, len(Placed._fields))
        labels = torch.tensor([-1 if label is None else label for label in self.labels], dtype=torch.int64)
        return {"slab": self.slab, "table": table, "labels": labels}


class Loader:
    """Batches of the pictures of a folder, a list or shards, decoded by threads.

    >>> for batch in Loader("train", batch_size=256, seed=1):  # doctest: +SKIP
    ...     first, label = batch.picture(0), batch.labels[0]

    ``data`` is a folder with a sub-folder for each class (or pictures alone), a text file with a line
    ``path`` or ``path,label`` for each picture, an archive ``.tar`` in WebDataset's layout, or a sequence of
    such archives. JPEG and PNG are told apart by their bytes.

    A ``for`` loop gives the rest of the current epoch; the next loop gives the next epoch. The order, and
    with it each batch, depends on the data, ``seed`` and the epoch alone: not on ``workers`` or ``depth``.
    ``rank`` and ``world`` are those of ``torch.distributed`` where that is in use. All ranks get equally many
    samples; ``uneven`` says whether the last ones of an epoch are dropped or its first ones repeated.

    ``broken`` says what becomes of pictures that cannot be decoded: ``"raise"`` an ``ImageError`` that names
    the file, ``"skip"`` them, or ``"replace"`` them by the next good picture. ``faulty=True`` takes JPEGs
    that were cut short or have other faults for what can be decoded of them. ``orientation=True`` turns
    pictures as EXIF says.

    With ``augment``, only that part of a picture is decoded that its result depends on,
    and ``prefetch`` gives the results.

    ``decode="gpu"`` leaves baseline JPEGs to the hardware engines that data-centre GPUs have since the A100,
    beside which the threads decode the rest. It needs nvJPEG (the wheel ``nvidia-nvjpeg`` for CUDA 13,
    ``nvidia-nvjpeg-cu12`` for CUDA 12), ``augment``, and ``prefetch`` on a GPU. Pixels differ a little from
    the processor's. With an ``engine_share`` below 1 the threads get a part of the baseline JPEGs too: which,
    the number of the sample alone decides.

    ``workers`` threads decode (0: one for each processor); at most ``depth`` batches are prepared ahead.
    Slabs are page-locked if ``pin_memory``, which by default they are where PyTorch can use CUDA.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        batch_size: int = 64,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        classes: Sequence[str] | None = None,
        rank: int | None = None,
        world: int | None = None,
        uneven: Literal["drop", "repeat"] = "drop",
        workers: int = 0,
        depth: int = 3,
        broken: Literal["raise", "skip", "replace"] = "raise",
        faulty: bool = False,
        orientation: bool = False,
        max_pixels: int = 178_956_970,
        max_file_bytes: int = 256 << 20,
        max_slab_bytes: int = 2 << 30,
        pin_memory: bool | None = None,
        augment: Compose | None = None,
        decode: Literal["cpu", "gpu"] = "cpu",
        engine_share: float = 1.0,
    ) -> None:
        numbers = [
            ("batch_size", batch_size, 1, 32, "a number of pictures"),
            ("seed", seed, 0, 64, "the seed of the run"),
            ("rank", 0 if rank is None else rank, 0, 32, "the number of this process"),
            ("world", 1 if world is None else world, 1, 32, "how many processes share the data"),
            ("workers", workers, 0, 32, "a number of threads"),
            ("depth", depth, 1, 32, "a number of batches"),
            ("max_pixels", max_pixels, 1, 64, "a number of pixels"),
            ("max_file_bytes", max_file_bytes, 1, 64, "a number of bytes"),
            ("max_slab_bytes", max_slab_bytes, 1, 64, "a number of bytes"),
        ]
        for name, value, least, bits, give in numbers:
            if whole(name, value, least, give) >> bits:
                raise ValueError(f"{name} is {value!r}; give {give}, below 2**{bits}")
        flags = {"shuffle": shuffle, "drop_last": drop_last, "faulty": faulty, "orientation": orientation}
        for name, flag in flags.items():
            truth(name, flag)
        one_of("broken", broken, ("raise", "skip", "replace"))
        one_of("uneven", uneven, ("drop", "repeat"))
        if augment is not None and not hasattr(augment, "of_loader"):
            raise TypeError(f"augment is {type(augment).__name__}; give a Compose of sidestream.images")
        _check_decoder(decode, augment, engine_share)
        if decode == "gpu":
            # Before anything here asks for CUDA.
            connect()
        if (rank is None) != (world is None):
            raise ValueError("`rank` and `world` belong together: give both, or neither")
        if rank is None or world is None:
            rank, world = _of_distributed()
        if pin_memory is None:
            pin_memory = _can_pin()
        paths = _paths(data)
        self._loader = ImageLoader(
            paths,
            classes=None if classes is None else _names(classes),
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            rank=rank,
            world=world,
            repeat=uneven == "repeat",
            workers=workers,
            depth=depth,
            broken=broken,
            faulty=faulty,
            orientation=orientation,
            max_pixels=max_pixels,
            max_file_bytes=max_file_bytes,
            max_slab_bytes=max_slab_bytes,
            pin=_pinned if truth("pin_memory", pin_memory) else None,
            augment=None if augment is None else (augment._plan, augment.seed),
            engine_share=engine_share if decode == "gpu" else 0.0,
        )
        self._augment = augment
        self._decode = decode
        self._refused = 0
        #: Why engines refused the first of them, as long as nobody was told.
        self._unsaid: str | None = None
        first = repr(paths[0]) + (f" and {len(paths) - 1} more" if paths[1:] else "")
        share = f", rank {rank} of {world}" if world > 1 else ""
        count = self._loader.batches()
        batches = f"{count} batch{'es' if count != 1 else ''} of {batch_size}"
        by = image_decoder() if decode == "cpu" else f"a GPU's engines and {image_decoder()}"
        #: For `repr`, which a closed loader answers too.
        self._text = (
            f"Loader({first}: {self._loader.samples()} pictures{share}, {batches} an epoch, decoded by {by})"
        )
        #: What a prefetcher has of it and nobody has taken yet, by number.
        self._ahead: dict[int, _Ahead] = {}
        #: Where it stood before the batch that a prefetcher is being given, which is not ahead yet.
        self._before: dict[str, Any] | None = None
        #: Which of the loops over this reads: the last that began.
        self._turn = 0
        #: Over these three. Held for moments only; a collector may end a loop meanwhile,
        #: which asks for it, too.
        self._standing = threading.RLock()
        #: Held by a prefetcher's thread for as long as it reads a batch.
        self._reads = threading.Lock()
        self._numbers = itertools.count()
        # Before the interpreter ends, since threads that need it then would never get it.
        self._finalizer = weakref.finalize(self, self._loader.close)

    def __repr__(self) -> str:
        return self._text

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Loader has threads, which cannot be sent to another process; send its arguments, "
            "and make it there"
        )

    def __iter__(self) -> Iterator[Batch]:
        if self._decode == "gpu":
            raise ValueError(
                'decode is "gpu", and a batch of the loader itself has no pixels: '
                'go through `prefetch("cuda")`, or give decode="cpu"'
            )
        self._take_turn()
        while (batch := self._loader.next()) is not None:
            yield Batch(batch)

    def prefetch(self, device: Any = None, depth: int = 2) -> Prefetcher[tuple[torch.Tensor, torch.Tensor]]:
        """Give augmented pictures and their labels on a device,
        each batch uploaded and augmented beside the one in use.

        A slab goes up in one copy, and the operators of ``augment`` run on a stream of their own. What this
        returns is what ``sidestream.prefetch`` returns, to be gone through once for each epoch;
        ``state_dict`` of it counts the batches that you took. Make it once, before the first epoch: each has
        memory on the device and streams of its own. Labels are -1 where the data has none.

        With ``decode="gpu"`` the thread that reads ahead also has the engines decode, which keeps it for as
        long as they need. A batch that they refuse is decoded on the processor instead: a warning says so
        once, and ``refused`` counts.

        Raises:
            ValueError: The loader was made without ``augment``, or with ``decode="gpu"`` and this is no GPU.
            DeviceError: With ``decode="gpu"``, the GPU has no engines, or there is no nvJPEG.
        """
        if self._augment is None:
            raise ValueError(
                "the loader has no `augment`, so its pictures have different sizes; give `Loader` a `Compose`"
            )
        # Results are its tensors, which `prefetch` gives where it is imported.
        import torch  # noqa: F401
        from sidestream import prefetch

        if isinstance(device, str) and device.startswith("sim:"):
            raise ValueError(
                f'device is {device!r}; pictures go to a GPU that PyTorch knows, or to the processor: '
                'give "cuda" or "cpu"'
            )
        feed = _Feed(self, self._augment)
        prefetcher = prefetch(feed, device, depth, feed.augmented)
        if self._decode == "gpu":
            name = prefetcher._target.name
            if not name.startswith("cuda"):
                raise ValueError(
                    f'decode is "gpu", and the pictures go to {name!r}: give `prefetch` a GPU, as "cuda", '
                    'or `Loader` decode="cpu"'
                )
            feed.engines = Engines(name)
        return prefetcher

    def __len__(self) -> int:
        """How many batches a whole epoch has."""
        return self._loader.batches()

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, unless this one is over."""
        return self._loader.epoch()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch. In that epoch already, it stays where it is,
        so that a resumed run may call it.
        """
        whole("epoch", epoch, 0, "the number of an epoch")
        if epoch != self._loader.epoch():
            self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: behind the last batch that was taken, from it or from what ``prefetch`` gave. It
        is the same on all ranks.
        """
        # Refused in a child of a fork, where a thread that is not there may hold the lock.
        given = self._given()
        with self._standing:
            return self._untaken() or given

    def _untaken(self) -> dict[str, Any] | None:
        """Where it stood before the first batch that nobody has taken yet."""
        ahead = min(self._ahead, default=None)
        return self._before if ahead is None else self._ahead[ahead].before

    def _given(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._loader.state())
        state["augment"] = None if self._augment is None else self._augment._identity()
        return state

    def _go_to(self, state: dict[str, Any]) -> None:
        """The augmentation is Python's: the extension's loader does not know of it."""
        self._loader.load_state(
            json.dumps({name: value for name, value in state.items() if name != "augment"})
        )

    def _note_refused(self, why: str) -> None:
        self._refused += 1
        if self._refused == 1:
            self._unsaid = why

    def _warn_of_refused(self) -> None:
        """Say once that engines refused a batch, in the thread of whoever takes them."""
        why, self._unsaid = self._unsaid, None
        if why is not None:
            warnings.warn(
                f"a GPU's engines refused a batch of pictures ({why}), and the processor decoded it: "
                "that takes longer, and its pixels differ "
                "a little. Loader.refused counts such batches",
                # The loop over the prefetcher.
                stacklevel=5,
            )

    def _take_turn(self, state: dict[str, Any] | None = None) -> int:
        """Begin a loop, where the state says or behind what was taken last: a loop that was left early had
        batches ahead, which come again.

        The thread of that loop may be reading still. It has to be done with that, and keeps nothing of it.
        """
        given = self._given()
        with self._standing:
            self._turn += 1
            turn, untaken = self._turn, self._untaken()
            # Until it has gone there.
            self._before = untaken
            # Now, since who reads may be waiting for a slab that one of them has.
            self._ahead.clear()
        with self._reads:
            try:
                if state is not None:
                    self._go_to(state)
                elif untaken is not None:
                    self._go_to(untaken)
            except ValueError:
                # A state of something else.
                self._go_to(untaken or given)
                raise
            finally:
                with self._standing:
                    self._before = None
        return turn

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go where the state says. A state of other data, another decoder, order or augmentation is a
        ``ValueError``.
        """
        same_augmentation(state, self._augment)
        self._take_turn(state)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, by number."""
        return self._loader.classes()

    @property
    def samples(self) -> int:
        """How many pictures there are, for all ranks together."""
        return self._loader.samples()

    @property
    def loaded(self) -> int:
        """How many pictures came out so far."""
        return self._loader.counts()[0]

    @property
    def broken(self) -> int:
        """How many broken pictures were skipped or replaced so far; ``Batch.broken`` names them."""
        return self._loader.counts()[1]

    @property
    def refused(self) -> int:
        """How many batches a GPU's engines refused, so that the processor decoded them."""
        return self._refused

    def name(self, sample: int) -> str:
        """The path of a sample, or its archive and member."""
        return self._loader.name(whole("sample", sample, 0, "the number of a picture"))

    def close(self) -> None:
        """End the threads. Batches that were handed out stay valid."""
        self._finalizer()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_ENDED = (
    "another loop over this loader began, or it went to another state, which ended this loop; "
    "use one at a time"
)

#: The slab if it is to be uploaded, the labels and the number of the batch.
_Item: TypeAlias = "tuple[torch.Tensor | None, torch.Tensor, int]"


@dataclass
class _Ahead:
    """What was read ahead."""

    batch: Batch
    #: Where the loader stood before.
    before: dict[str, Any]
    #: Its pixels, if engines decoded some of them.
    pixels: OnDevice | None


class _Feed:
    """A loader's batches as what ``prefetch`` uploads: the slab and the labels, and a number, since nobody
    can look into a ``Batch``.

    Where there are engines, no slab is among them: its pixels are on the device already.
    """

    def __init__(self, loader: Loader, augment: Compose) -> None:
        self._loader = loader
        self._augment = augment
        self.engines: Engines | None = None
        self.state_dict = loader._given
        self.load_state_dict = loader.load_state_dict

    def __iter__(self) -> Iterator[_Item]:
        turn = self._loader._take_turn()
        try:
            while (item := self._next(turn)) is not None:
                yield item
        except GeneratorExit:
            # Nobody will take what is ahead; only where it began is still asked for.
            with self._loader._standing:
                for ahead in self._loader._ahead.values():
                    ahead.pixels = None
            raise
        finally:
            if self.engines is not None:
                self.engines.wait()

    def _next(self, turn: int) -> _Item | None:
        loader = self._loader
        while True:
            with loader._reads:
                with loader._standing:
                    self._refuse_late(turn)
                    before = loader._before = loader._given()
                ahead = None
                try:
                    ahead = self._read(before)
                finally:
                    with loader._standing:
                        if loader._turn == turn:
                            loader._before = None
                            if isinstance(ahead, _Ahead):
                                number = next(loader._numbers)
                                loader._ahead[number] = ahead
            if ahead is None:
                return None
            if isinstance(ahead, _Ahead):
                self._refuse_late(turn)
                return (
                    ahead.batch.slab if ahead.pixels is None else None,
                    ahead.batch.tensors()["labels"],
                    number,
                )

    def _refuse_late(self, turn: int) -> None:
        if self._loader._turn != turn:
            raise RuntimeError(_ENDED)

    def _read(self, before: dict[str, Any]) -> _Ahead | Literal["nothing"] | None:
        """Read a batch, of which nothing may be left where all its pictures are broken; None at the end."""
        loader, pixels = self._loader, None
        batch = loader._loader.next()
        if batch is None:
            return None
        made = Batch(batch)
        if self.engines is not None:
            put = self.engines.put(made)
            if isinstance(put, str):
                loader._note_refused(put)
                batch = loader._loader.on_processor(batch)
                if batch is None:
                    return "nothing"
                made = Batch(batch)
                put = self.engines.put(made)
                assert isinstance(put, OnDevice), "there is nothing left to refuse"
            pixels = put
        return _Ahead(made, before, pixels)

    def augmented(self, item: _Item) -> tuple[torch.Tensor, torch.Tensor]:
        slab, labels, number = item
        with self._loader._standing:
            ahead = self._loader._ahead.pop(number, None)
        if ahead is None:
            raise RuntimeError(_ENDED)
        if ahead.pixels is not None:
            self._loader._warn_of_refused()
            slab = ahead.pixels.take()
        return self._augment.of_loader(slab, labels, ahead.batch)

    def __len__(self) -> int:
        return len(self._loader)


def _paths(data: Any) -> list[str]:
    """The folder, list or archive, or the archives."""
    is_one = isinstance(data, (str, os.PathLike))
    paths = [data] if is_one else list(data) if hasattr(data, "__iter__") else []
    if not paths or any(not isinstance(path, (str, os.PathLike)) for path in paths):
        raise TypeError(
            f"data is {reprlib.repr(data)}; give a folder, a list or an archive, as a text or a path, "
            "or a sequence of archives"
        )
    return [os.fspath(path) for path in paths]


def _names(classes: Sequence[str]) -> list[str]:
    if isinstance(classes, str) or not all(isinstance(one, str) for one in classes):
        raise TypeError(f"classes is {classes!r}; give a sequence of names of sub-folders")
    return list(classes)


def _check_decoder(decode: str, augment: Compose | None, engine_share: float) -> None:
    one_of("decode", decode, ("cpu", "gpu"))
    if decode == "gpu" and augment is None:
        raise ValueError(
            'decode is "gpu", whose pictures are nowhere but on the device: give `augment` too, '
            'and go through `prefetch("cuda")`'
        )
    if decode == "cpu" and engine_share != 1.0:
        raise ValueError(
            f'engine_share is {engine_share!r}, and decode "cpu": give decode="gpu", or leave it out'
        )


def _can_pin() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    # Where a check simulates a GPU, its threads do so, and not those that decode.
    return cuda is not None and cuda.is_available() and not getattr(cuda, "is_simulated", False)


def _of_distributed() -> tuple[int, int]:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _pinned(size_bytes: int) -> tuple[torch.Tensor, int]:
    import torch

    tensor = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    return tensor, tensor.data_ptr()
