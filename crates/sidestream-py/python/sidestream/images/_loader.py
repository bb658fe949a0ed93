"""``Loader``: reads batches of pictures, which threads decode."""

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
    """The place of a picture in the slab: rows of red, green and blue bytes without gaps, beginning at byte
    ``offset``.
    """

    offset: int
    left: int
    """The first column of the whole picture that was decoded."""
    top: int
    """The first row of the whole picture that was decoded."""
    width: int
    height: int
    full_width: int
    """The width of the whole picture."""
    full_height: int


class Broken(NamedTuple):
    """A picture that could not be decoded."""

    sample: int
    """The index of the picture in the unshuffled list."""
    name: str
    why: str
    replaced_by: int | None
    """The index of the picture that replaces it, if one does."""


class Batch:
    """Pictures of different sizes, one after another in one slab of bytes.

    The slab goes back to the loader once the batch, its slab and all tensors and views of it are gone.
    """

    def __init__(self, batch: ImageBatch) -> None:
        self._batch = batch
        self._address, self._bytes = batch.memory()
        self._tensor: torch.Tensor | None = batch.take_tensor()
        # Views of this memory hold the array, and the array holds the batch.
        self._array: Any = None
        if self._tensor is None:
            self._array = (ctypes.c_uint8 * self._bytes).from_address(self._address)
            self._array.owner = batch
        self.placed: list[Placed] = [Placed(*one) for one in batch.placed()]
        self.labels: list[int | None] = batch.labels()
        """The label of each picture; None if the data has none."""
        self.samples: list[int] = batch.samples()
        """The index of each picture in the unshuffled list."""
        self.epoch: int = batch.epoch()
        self.broken: list[Broken] = [Broken(*one) for one in batch.broken()]
        """The broken pictures that would have been in this batch."""

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """The start and the end of the decoded pixels in the slab, the bytes of all pixels on a device, and
        the number of pictures that hardware engines decode.
        """
        return self._batch.parts()

    def decode_by(self, engines: ImageEngines, to: int, stream: int) -> str | None:
        """Let engines decode the files of the slab into device memory that begins at ``to``. Return the
        reason why they refused, or None.
        """
        return engines.decode(self._batch, self._address, to, stream)

    def __len__(self) -> int:
        return len(self.placed)

    def __repr__(self) -> str:
        return f"Batch({len(self)} pictures in {self._bytes} bytes, epoch {self.epoch})"

    @property
    def slab(self) -> torch.Tensor:
        """The bytes as a tensor of uint8, which shares the memory; it is page-locked if the loader pins
        memory.
        """
        if self._tensor is not None:
            return self._tensor[: self._bytes]
        import torch

        return torch.frombuffer(self._array, dtype=torch.uint8)

    @property
    def view(self) -> memoryview:
        """The bytes as a memory view, without PyTorch. It shares the memory."""
        if self._tensor is not None:
            return memoryview(self.slab.numpy())
        return memoryview(self._array).cast("B")

    def picture(self, index: int) -> torch.Tensor:
        """Return one picture as a tensor of rows, columns and three channels of uint8. It shares the memory.
        """
        placed = self.placed[index]
        flat = self.slab[placed.offset : placed.offset + placed.width * placed.height * 3]
        return flat.view(placed.height, placed.width, 3)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return ``slab``, ``table`` (a row for each picture, with the seven numbers of ``Placed``) and
        ``labels`` (-1 if there is none).
        """
        import torch

        table = torch.tensor(self.placed, dtype=torch.int64).reshape(-1, len(Placed._fields))
        labels = torch.tensor([-1 if label is None else label for label in self.labels], dtype=torch.int64)
        return {"slab": self.slab, "table": table, "labels": labels}


class Loader:
    """Batches of the pictures of a folder, a list or shards, which threads decode.

    ::

        for batch in Loader("train", batch_size=256, seed=1):
            first, label = batch.picture(0), batch.labels[0]

    A ``for`` loop returns the rest of the current epoch; the next loop returns the next epoch. The order, and
    with it each batch, depends only on the data, ``seed`` and the epoch, not on ``workers`` or ``depth``.
    Only one loop runs at a time: a new loop ends the previous one.

    Args:
        data: A folder with a sub-folder for each class (or with pictures alone), a text file with a line
            ``path`` or ``path,label`` for each picture, an archive ``.tar`` in WebDataset's layout, or a
            sequence of such archives. JPEG and PNG are told apart by their bytes.
        batch_size: Number of pictures in a batch.
        seed: The seed of the order.
        shuffle: Whether each epoch has a different, random order.
        drop_last: Whether a last batch with fewer pictures is left out.
        classes: The names of the sub-folders that are classes, by number.
        rank: The number of this process; by default that of ``torch.distributed`` if it is in use. Give
            ``world`` with it.
        world: Number of processes that share the data.
        uneven: All ranks get equally many samples: ``"drop"`` drops the last samples of an epoch,
            ``"repeat"`` repeats the first ones.
        workers: Number of threads that decode; 0 means one for each CPU.
        depth: Maximum number of batches that are prepared ahead.
        broken: The handling of pictures that cannot be decoded: ``"raise"`` raises an ``ImageError`` that
            names the file, ``"skip"`` leaves them out, ``"replace"`` replaces each by the next good picture.
        faulty: Whether truncated or otherwise faulty JPEGs are used as far as they can be decoded.
        orientation: Whether pictures are rotated according to their EXIF data.
        max_pixels: Maximum number of pixels of a picture.
        max_file_bytes: Maximum bytes of a file.
        max_slab_bytes: Maximum bytes of the slab of a batch.
        pin_memory: Whether slabs are page-locked; by default if PyTorch can use CUDA.
        augment: A ``Compose``. Only the part of a picture that its result depends on is decoded, and
            ``prefetch`` returns the results.
        decode: ``"gpu"`` leaves baseline JPEGs to the hardware engines that data-centre GPUs have since the
            A100, while the threads decode the rest. It needs nvJPEG (the wheel ``nvidia-nvjpeg`` for CUDA 13,
            ``nvidia-nvjpeg-cu12`` for CUDA 12), ``augment``, and ``prefetch`` on a GPU. Pixels differ
            slightly from those that the CPU decodes.
        engine_share: The share of the baseline JPEGs that engines decode; below 1 the threads decode the
            others. The choice depends only on the index of the picture.
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
            # This must come before anything that initializes CUDA.
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
        #: The reason why engines refused the first refused batch, until a warning has reported it.
        self._unsaid: str | None = None
        first = repr(paths[0]) + (f" and {len(paths) - 1} more" if paths[1:] else "")
        share = f", rank {rank} of {world}" if world > 1 else ""
        count = self._loader.batches()
        batches = f"{count} batch{'es' if count != 1 else ''} of {batch_size}"
        by = image_decoder() if decode == "cpu" else f"a GPU's engines and {image_decoder()}"
        #: Kept for `repr`, which works on a closed loader too.
        self._text = (
            f"Loader({first}: {self._loader.samples()} pictures{share}, {batches} an epoch, decoded by {by})"
        )
        #: The batches that a prefetcher has read but that were not taken yet, by number.
        self._ahead: dict[int, _Ahead] = {}
        #: The position before the batch that a prefetcher is reading, which is not in `_ahead` yet.
        self._before: dict[str, Any] | None = None
        #: The number of the loop that reads: the one that began last.
        self._turn = 0
        #: Guards `_ahead`, `_before` and `_turn`, and is held briefly. Reentrant, since the garbage collector
        #: may end a loop meanwhile.
        self._standing = threading.RLock()
        #: Held by a prefetcher's thread while it reads a batch.
        self._reads = threading.Lock()
        self._numbers = itertools.count()
        # The loader is closed before the interpreter ends: a thread that needs the interpreter after that
        # would block forever.
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
        """Return an iterable over augmented pictures and their labels on a device, each batch uploaded and
        augmented while the previous one is in use.

        A slab is uploaded in one copy, and the operators of ``augment`` run on a separate stream. The result
        is that of ``sidestream.prefetch``, to be iterated once for each epoch; its ``state_dict`` counts the
        batches that you took. Call this once, before the first epoch, since each result has its own device
        memory and streams. Labels are -1 if the data has none.

        With ``decode="gpu"`` the thread that reads ahead also lets the engines decode, and blocks meanwhile.
        A batch that they refuse is decoded on the CPU instead: a warning reports this once, and ``refused``
        counts such batches.

        Args:
            device: As for ``sidestream.prefetch``, but not simulated.
            depth: As for ``sidestream.prefetch``.

        Raises:
            ValueError: The loader was made without ``augment``, or with ``decode="gpu"`` and ``device`` is
                not a GPU.
            DeviceError: With ``decode="gpu"``, the GPU has no engines, or there is no nvJPEG.
        """
        if self._augment is None:
            raise ValueError(
                "the loader has no `augment`, so its pictures have different sizes; give `Loader` a `Compose`"
            )
        # `prefetch` returns tensors only if PyTorch is imported.
        import torch  # noqa: F401
        from sidestream import prefetch

        if isinstance(device, str) and device.startswith("sim:"):
            raise ValueError(
                f'device is {device!r}; pictures go to a GPU that PyTorch knows, or to the CPU: '
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
        """Return the number of batches of a whole epoch."""
        return self._loader.batches()

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, unless this epoch is complete."""
        return self._loader.epoch()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch. A loader that is already in that epoch keeps its position, so that
        a resumed run may call this.
        """
        whole("epoch", epoch, 0, "the number of an epoch")
        if epoch != self._loader.epoch():
            self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was taken, from the loader or from the result of
        ``prefetch``. The position is the same on all ranks.
        """
        # Raises in a forked child, where a thread that does not exist may hold the lock.
        given = self._given()
        with self._standing:
            return self._untaken() or given

    def _untaken(self) -> dict[str, Any] | None:
        """Return the position before the first batch that was read ahead and not taken."""
        ahead = min(self._ahead, default=None)
        return self._before if ahead is None else self._ahead[ahead].before

    def _given(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._loader.state())
        state["augment"] = None if self._augment is None else self._augment._identity()
        return state

    def _go_to(self, state: dict[str, Any]) -> None:
        """Load a state without its augmentation, which the extension's loader does not have."""
        self._loader.load_state(
            json.dumps({name: value for name, value in state.items() if name != "augment"})
        )

    def _note_refused(self, why: str) -> None:
        self._refused += 1
        if self._refused == 1:
            self._unsaid = why

    def _warn_of_refused(self) -> None:
        """Warn once that engines refused a batch. This runs in the thread that takes the batches."""
        why, self._unsaid = self._unsaid, None
        if why is not None:
            warnings.warn(
                f"a GPU's engines refused a batch of pictures ({why}), and the CPU decoded it: "
                "that takes longer, and the pixels differ "
                "a little. Loader.refused counts such batches",
                # Points to the loop over the prefetcher.
                stacklevel=5,
            )

    def _take_turn(self, state: dict[str, Any] | None = None) -> int:
        """Begin a loop at a state, or after the last batch that was taken: batches that an earlier loop read
        ahead but that were not taken are read again.

        The thread of the earlier loop may still be reading. This waits until it has finished, and discards
        the batch that it read.
        """
        given = self._given()
        with self._standing:
            self._turn += 1
            turn, untaken = self._turn, self._untaken()
            # `state_dict` returns this position until the loader has gone to it.
            self._before = untaken
            # The batches are dropped here, since the reading thread may be waiting for the slab of one of
            # them.
            self._ahead.clear()
        with self._reads:
            try:
                if state is not None:
                    self._go_to(state)
                elif untaken is not None:
                    self._go_to(untaken)
            except ValueError:
                # The state belongs to other data or another order.
                self._go_to(untaken or given)
                raise
            finally:
                with self._standing:
                    self._before = None
        return turn

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the position of a state.

        Raises:
            ValueError: The state belongs to other data, or to another decoder, order or augmentation.
        """
        same_augmentation(state, self._augment)
        self._take_turn(state)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, by number."""
        return self._loader.classes()

    @property
    def samples(self) -> int:
        """Number of pictures, for all ranks together."""
        return self._loader.samples()

    @property
    def loaded(self) -> int:
        """Number of pictures that were handed out so far."""
        return self._loader.counts()[0]

    @property
    def broken(self) -> int:
        """Number of broken pictures that were skipped or replaced so far; ``Batch.broken`` names them."""
        return self._loader.counts()[1]

    @property
    def refused(self) -> int:
        """Number of batches that a GPU's engines refused, so that the CPU decoded them."""
        return self._refused

    def name(self, sample: int) -> str:
        """Return the path of a picture, or its archive and member."""
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
    """A batch that was read ahead."""

    batch: Batch
    #: The loader's position before this batch.
    before: dict[str, Any]
    #: The pixels, if engines decoded some of the pictures.
    pixels: OnDevice | None


class _Feed:
    """A loader's batches as ``prefetch`` uploads them: the slab, the labels and a number, since ``prefetch``
    cannot look into a ``Batch``.

    If engines decode, there is no slab: the pixels are already on the device.
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
            # Batches that were read ahead will not be taken; only the position before the first one is still
            # needed.
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
        """Read a batch. Return ``"nothing"`` if all its pictures are broken, and None at the end."""
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
    """Return the folder, list or archive, or the archives, as strings."""
    is_one = isinstance(data, (str, os.PathLike))
    paths = [data] if is_one else list(data) if hasattr(data, "__iter__") else []
    if not paths or any(not isinstance(path, (str, os.PathLike)) for path in paths):
        raise TypeError(
            f"data is {reprlib.repr(data)}; give a folder, a list or an archive, as a string or a path, "
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
    # A check simulates a GPU on the program's threads, but not on those that decode.
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
