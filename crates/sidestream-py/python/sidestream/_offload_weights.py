"""Layers whose weights take turns in memory of the device: what they consist of, and the memory itself.

Why no layer computes with wrong weights
    Let *U* be the stream of copies, and *a* and *b* layers that follow each other in some bytes of the ring.

    1. The stream of *a*'s work waits for the event after *a*'s copies, which are on *U*.
    2. ``Ring.place`` gives *a*'s bytes to *b* only once *a* is not in use: ``Layer.done`` was then recorded
       on *a*'s stream, after all of its work. *U* waits for it before it copies *b*. If other streams used
       *a* too, *U* has waited for each of them before.
    3. If *a* was copied and never used, its copy is ordered before *b*'s, since both are on *U*.
    4. Weights that were changed on the host after their copy was enqueued have another version or another
       address; such a copy is made again before it is used.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from sidestream import _units
from sidestream._offload_pages import Files, Pages, Piece

#: Tensors begin at multiples of this, as kernels expect.
ALIGNMENT = 512


def aligned(size: int, to: int = ALIGNMENT) -> int:
    """Return the least multiple that is not below a size."""
    return -(-size // to) * to


class Pinned:
    """Pinned memory of the host of exactly this many bytes; PyTorch's own is rounded to a power of two.

    It is freed once no tensor is in it.
    """

    def __init__(self, size: int) -> None:
        if getattr(torch.cuda, "is_simulated", False):
            self.memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
            return
        at, driver = ctypes.c_void_p(), ctypes.CDLL("libcuda.so.1")
        error = driver.cuMemHostAlloc(ctypes.byref(at), ctypes.c_size_t(size), 0)
        if error != 0 or at.value is None:
            raise RuntimeError(
                f"{_units.size(size)} cannot be pinned: CUDA's error {error}; free memory of the host"
            )
        block = (ctypes.c_uint8 * size).from_address(at.value)
        weakref.finalize(block, self._free, driver, at, os.getpid()).atexit = False
        self.memory = torch.frombuffer(block, dtype=torch.uint8)

    @staticmethod
    def _free(driver: Any, at: Any, process: int) -> None:
        # A forked child cannot use CUDA, and the memory is its parent's.
        if os.getpid() == process:
            driver.cuMemFreeHost(at)

    def is_shared(self) -> bool:
        """Whether other tensors are in it."""
        # Of the two references, one is this call's.
        return int(torch._C._storage_Use_Count(self.memory.untyped_storage()._cdata)) > 2


def plain(tensor: Tensor) -> list[Tensor]:
    """Return the plain tensors that a tensor consists of: quantized ones have several."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in plain(getattr(tensor, name))]


def rebuilt(like: Tensor, parts: Iterator[Tensor]) -> Tensor:
    """Return a tensor that consists of other plain tensors."""
    if not is_traceable_wrapper_subclass(like):
        return next(parts)
    names, context = like.__tensor_flatten__()
    inner = {name: rebuilt(getattr(like, name), parts) for name in names}
    made: Tensor = type(like).__tensor_unflatten__(inner, context, like.size(), like.stride())
    return made


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes that tensors take, each aligned."""
    return sum(aligned(part.numel() * part.element_size()) for each in tensors for part in plain(each))


def views(memory: Tensor, offset: int, like: Tensor) -> Iterator[Tensor]:
    """Yield a place in memory for each plain tensor of one, without gaps, in the order of its strides."""
    for part in plain(like):
        size = part.numel() * part.element_size()
        flat = memory[offset : offset + size].view(part.dtype)
        yield (
            flat.view(part.shape)
            if part.is_contiguous()
            else flat.as_strided(part.shape, dense_strides(part))
        )
        offset += aligned(size)


def moved(memory: Tensor, offset: int, tensor: Tensor) -> Tensor:
    """Return a tensor with these values in other memory."""
    places = list(views(memory, offset, tensor))
    for place, part in zip(places, plain(tensor), strict=True):
        place.copy_(part)
    return rebuilt(tensor, iter(places))


@dataclass(eq=False)
class Weight:
    """A parameter of a layer."""

    owner: nn.Module
    name: str
    path: str
    parameter: nn.Parameter
    offset: int
    #: The values in the host's memory.
    host: Tensor
    #: Where they stay in a file, and the version that has the values of the file; -1 if there is none.
    piece: Piece | None = None
    version: int = -1

    def show(self, values: Tensor) -> None:
        """Make the parameter be these values."""
        if not is_traceable_wrapper_subclass(values):
            self.parameter.data = values
        elif values is self.host:
            self.owner._parameters[self.name] = self.parameter
        else:
            self.owner._parameters[self.name] = nn.Parameter(values, requires_grad=False)

    def adopt(self) -> bool:
        """Take values that were given to the parameter in place of its memory; return whether there were any.

        Raises:
            RuntimeError: Their shape or type is not that of the layer.
        """
        now = self.owner._parameters.get(self.name)
        given = self.parameter.data if now is None else now.data
        is_plain = not is_traceable_wrapper_subclass(self.host)
        if (
            now is not None
            and now is not self.parameter
            and (now.is_cuda or not isinstance(now, nn.Parameter))
        ):
            # Values for this call only, as by functional_call.
            return False
        if now is self.parameter and (not is_plain or given.data_ptr() == self.host.data_ptr()):
            return False
        if now is None or not is_plain or given.shape != self.host.shape or given.dtype != self.host.dtype:
            raise RuntimeError(
                f"{self.path} is not what it was when the model was offloaded: "
                "call remove(), change the model, and offload it again"
            )
        self.refuse_change()
        self.host.copy_(given)
        self.parameter = now
        now.data = self.host
        return True

    def compare(self) -> None:
        """Look whether the values are still those of the file."""
        if self.piece is not None:
            self.version = -1 if self.piece.differs(self.host) else self.parameter._version

    def refuse_change(self) -> None:
        """Raise an error if the values stay in a file."""
        if self.piece is not None:
            raise RuntimeError(
                f"{self.path} was changed, or is trained, but stays in {self.piece.file.path}, which offload "
                "does not write: leave out `pinned`, or raise it; for a frozen model call "
                "requires_grad_(False)"
            )


@dataclass(eq=False)
class Layer:
    """Weights that are on the device at the same time."""

    name: str
    module: nn.Module
    parameters: list[tuple[nn.Module, str, nn.Parameter]]
    size: int = 0
    weights: list[Weight] = field(default_factory=list)
    pinned: Pinned | None = None
    #: Where the weights are in files, if they stay there, and what reads them.
    pieces: list[Piece] = field(default_factory=list)
    pages: Pages | None = None
    #: Where it is in the ring; `None` if it is not there.
    at: int | None = None
    #: How many calls use it now.
    uses: int = 0
    #: The sequence number of autograd at which each call in this pass began.
    begun: list[int] = field(default_factory=list)
    versions: tuple[int, ...] = ()
    #: The streams that have waited for the copy and may use it now, and the one on which `done` was recorded.
    streams: list[torch.cuda.Stream] = field(default_factory=list)
    last: torch.cuda.Stream | None = None

    def __post_init__(self) -> None:
        self.size = bytes_of(of for _, _, of in self.parameters)
        self.ready, self.done = torch.cuda.Event(), torch.cuda.Event()

    def to_host(self, pages: Pages | None = None) -> None:
        """Move the weights into one piece of pinned memory, or leave them in their files."""
        self.pages = pages
        self.pinned = Pinned(self.size) if pages is None else None
        offset = 0
        for at, (owner, name, parameter) in enumerate(self.parameters):
            host, piece = parameter.data, None
            if self.pinned is not None:
                host = moved(self.pinned.memory, offset, host)
            else:
                piece = self.pieces[at]
            if is_traceable_wrapper_subclass(host):
                parameter = owner._parameters[name] = nn.Parameter(
                    host, requires_grad=parameter.requires_grad
                )
            path = f'"{self.name}", {type(owner).__name__}\'s {name}'
            version = parameter._version
            self.weights.append(Weight(owner, name, path, parameter, offset, host, piece, version))
            self.weights[-1].show(host)
            offset += bytes_of([parameter])
        self.versions = self.now()

    def found(self, files: Files) -> bool:
        """Look for the weights in files; return whether all of them are there as they would be in memory."""
        offset = 0
        for _, _, parameter in self.parameters:
            data = parameter.data
            is_plain = not is_traceable_wrapper_subclass(data) and data.stride() == dense_strides(data)
            piece = files.piece(data, offset) if is_plain and not data.is_cuda else None
            if piece is None:
                self.pieces.clear()
                return False
            self.pieces.append(piece)
            offset += bytes_of([parameter])
        return True

    def refuse_training(self) -> None:
        """Raise an error if gradients are wanted of weights that stay in a file."""
        for weight in self.weights:
            if weight.parameter.requires_grad:
                weight.refuse_change()

    def now(self) -> tuple[int, ...]:
        """The versions of the weights: each change in place counts."""
        return tuple(weight.parameter._version for weight in self.weights)

    def is_changed(self) -> bool:
        """Whether weights were changed since they were copied last; takes those that were given.

        Raises:
            RuntimeError: They stay in a file. Copies ahead do not tell: what they read is the file's.
        """
        is_given = [weight.adopt() for weight in self.weights]
        for weight in self.weights:
            if weight.parameter._version != weight.version:
                weight.refuse_change()
        return any(is_given) or self.now() != self.versions

    def show(self, ring: Tensor | None) -> None:
        """Make the parameters be those of the ring, or of the host."""
        for weight in self.weights:
            if ring is None:
                weight.show(weight.host)
            else:
                assert self.at is not None
                weight.show(rebuilt(weight.host, views(ring, self.at + weight.offset, weight.host)))


def dense_strides(like: Tensor) -> tuple[int, ...]:
    """Return strides without gaps, in the order of a tensor's."""
    strides, step = [0] * like.dim(), 1
    for at in sorted(range(like.dim()), key=lambda at: like.stride(at)):
        strides[at] = step
        step *= like.shape[at]
    return tuple(strides)


class Ring:
    """Memory of the device in which layers take turns, in the order in which they are placed."""

    def __init__(self, size: int, device: torch.device, copies: torch.cuda.Stream) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        # A block of PyTorch's allocator may still be in use on the stream that frees it.
        copies.wait_stream(torch.cuda.current_stream(device))
        self.copies = copies
        self._layers: list[Layer] = []
        self._next = 0

    def place(self, layer: Layer, keep: Iterable[Layer]) -> bool:
        """Copy a layer into the ring, over layers that are neither in use nor to be kept. Return whether
        there was room.
        """
        kept = {id(each) for each in keep}
        for start in (self._next, 0, *(each.at + each.size for each in self._layers if each.at is not None)):
            end = start + layer.size
            if end > self.memory.numel():
                continue
            over = [
                each
                for each in self._layers
                if each.at is not None and start < each.at + each.size and each.at < end
            ]
            if not any(each.uses or id(each) in kept for each in over):
                break
        else:
            return False
        for each in over:
            self.copies.wait_event(each.done)
            each.at = None
        self._layers = [each for each in self._layers if each.at is not None]
        self._layers.append(layer)
        layer.at, self._next = start, end
        self.copy(layer)
        return True

    def copy(self, layer: Layer) -> None:
        """Copy a layer's weights to its place."""
        layer.versions = layer.now()
        # After work that used other values there.
        self.copies.wait_event(layer.done)
        assert layer.at is not None
        try:
            source = layer.pages.take(layer) if layer.pages is not None else None
        except BaseException:
            layer.at = None
            raise
        if layer.pinned is not None:
            source = layer.pinned.memory
        assert source is not None
        with torch.cuda.stream(self.copies), torch.no_grad():
            self.memory[layer.at : layer.at + layer.size].copy_(source, non_blocking=True)
            layer.ready.record(self.copies)
        if layer.pages is not None:
            layer.pages.give(layer, self.copies.record_event())

    def at(self, tensor: Tensor) -> Layer | None:
        """The layer in use whose memory a tensor is in."""
        if (
            not tensor.is_cuda
            or tensor.untyped_storage().data_ptr() != self.memory.untyped_storage().data_ptr()
        ):
            return None
        byte = tensor.storage_offset() * tensor.element_size()
        within = (
            each for each in self._layers if each.at is not None and each.at <= byte < each.at + each.size
        )
        return next(within, None)


def held(device: torch.device, parameters: list[tuple[nn.Module, str, nn.Parameter]]) -> Tensor:
    """Move parameters into one piece of memory of the device, and return that."""
    memory = torch.empty(bytes_of(of for _, _, of in parameters), dtype=torch.uint8, device=device)
    offset = 0
    for owner, name, parameter in parameters:
        there = moved(memory, offset, parameter.data)
        offset += bytes_of([parameter])
        Weight(owner, name, name, parameter, 0, parameter).show(there)
    return memory
