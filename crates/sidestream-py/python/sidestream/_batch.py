"""A batch of a `Batcher`, and its slot: streams, memory and graphs."""

from __future__ import annotations

import queue
import sys
from collections import deque
from typing import Any

from sidestream import _tree
from sidestream._answer import Answer


class _Bytes:
    """Device memory that PyTorch uses without owning it."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "strides": None,
            "typestr": "|u1",
            "version": 3,
        }


def lent(torch: Any, made: Any) -> Any:
    """Return the results of a graph without owning their memory, so that the next capture of the slot can
    reuse it.

    The pool of a graph lives as long as the graph. A slot runs one graph at a time, and results leave the
    slot before its next batch.
    """
    leaves, shape = _tree.tensors_of(made)
    used = getattr(torch._C, "_storage_Use_Count", None)
    # A check tracks the memory of tensors, and does not know memory that is passed in this way.
    hooks = sys.modules.get("sidestream._check_hooks")
    if used is None or getattr(torch.cuda, "is_simulated", False) or (hooks is not None and hooks._listening):
        return made

    def is_plain(leaf: Any) -> bool:
        # For a conjugate or negative view, the values in memory differ from those of the tensor.
        return (
            type(leaf) is torch.Tensor
            and leaf.is_cuda
            and leaf.layout is torch.strided
            and leaf.numel() > 0
            and not leaf.is_conj()
            and not leaf.is_neg()
        )

    storages = {at: leaf.untyped_storage() for at, leaf in enumerate(leaves) if is_plain(leaf)}
    for at, storage in storages.items():
        leaf = leaves[at]
        own = sum(other._cdata == storage._cdata for other in storages.values())
        # `storage` is one more use than the tensors are. A tensor with other owners, such as a model that
        # keeps its last result, may not be from the pool.
        if used(storage._cdata) > own + 1:
            continue
        count = 1 + sum((length - 1) * step for length, step in zip(leaf.shape, leaf.stride()))
        owned = _Bytes(leaf.data_ptr(), count * leaf.element_size())
        leaves[at] = (
            torch.as_tensor(owned, device=leaf.device).view(leaf.dtype).as_strided(leaf.shape, leaf.stride())
        )
    return shape.unflatten(leaves)


class Slot:
    """Two streams with the memory of a batch, and the graphs of the slot, which share a pool and never run at
    once.

    The slot is idle once the host has waited for the download, so no other ordering is needed for its reuse.
    """

    def __init__(
        self, torch: Any, device: Any, priority: int, largest: int, like: list[Any], has_graphs: bool
    ) -> None:
        self.stream = torch.cuda.Stream(device, priority=priority)
        # This stream is never captured: when a caller drops results, PyTorch records an event in the stream
        # that downloaded them.
        self.down = torch.cuda.Stream(device, priority=priority)
        # The model's weights were written on the current stream.
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream):
            self.device = [
                torch.zeros((largest, *leaf.shape), dtype=leaf.dtype, device=device) for leaf in like
            ]
        self.host = [torch.zeros((largest, *leaf.shape), dtype=leaf.dtype, pin_memory=True) for leaf in like]
        self.points = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        self.pool = torch.cuda.graph_pool_handle() if has_graphs else None
        #: For each size: a graph and its results.
        self.graphs: dict[int, tuple[Any, Any]] = {}
        #: For each size: the rows on the device, and those on the host.
        self.rows: dict[int, list[tuple[Any, Any]]] = {}

    def rows_of(self, size: int) -> list[tuple[Any, Any]]:
        found = self.rows.get(size)
        if found is None:
            found = self.rows[size] = [
                (device[:size], host[:size]) for device, host in zip(self.device, self.host)
            ]
        return found


class Class:
    """Requests of one class, whose streams have one priority."""

    def __init__(self, number: int, name: str, priority: int) -> None:
        #: The number of the class in `Requests`.
        self.number = number
        self.name = name
        self.priority = priority
        self.slots: list[Slot] = []
        #: Batches that were launched, for the thread that waits for them.
        self.launched: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        #: Launched batches that have not ended, for the thread or event loop that first finds one complete.
        self.running: deque[Batch] = deque()


class Batch:
    __slots__ = ("answers", "due", "error", "is_over", "number", "results", "size", "slot")

    def __init__(self, answers: list[Answer[Any]], number: int, slot: Slot, size: int, due: float) -> None:
        self.answers = answers
        #: Number of the slot.
        self.number = number
        self.slot = slot
        self.size = size
        #: Time at which the batch was due.
        self.due = due
        self.results: Any = None
        self.error: BaseException | None = None
        #: Whether a thread or an event loop has already begun to end the batch.
        self.is_over = False


def described(leaves: list[Any]) -> str:
    """Return the types and shapes of tensors, for a message."""
    return (
        ", ".join(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" for leaf in leaves)
        or "no tensor"
    )
