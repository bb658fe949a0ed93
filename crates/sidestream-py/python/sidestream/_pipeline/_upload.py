"""Uploads of items through pinned memory."""

from __future__ import annotations

import sys
from typing import Any

import torch

from sidestream._tree import flatten
from sidestream._units import size

#: The class of most tensors. Looking the class up in its module each time would be a large part of the cost
#: of a short stage.
PLAIN = torch.Tensor


class Pinned:
    """The number of bytes of pinned memory in the slots of a pipeline, and their limit."""

    def __init__(self, most_bytes: int | None) -> None:
        """Begin without memory."""
        self.bytes = 0
        self.most_bytes = most_bytes

    def change(self, before: int, after: int) -> None:
        """Record that a buffer is replaced by another.

        Raises:
            ValueError: The limit would be exceeded.
        """
        held = self.bytes - before + after
        if self.most_bytes is not None and held > self.most_bytes:
            raise ValueError(
                f"the items in flight need {size(held)} of pinned memory, and the limit is "
                f"{size(self.most_bytes)}; raise max_pinned, lower depth, or give items that are already "
                "pinned, which are copied directly"
            )
        self.bytes = held


class Staging:
    """Pinned memory of one slot, for tensors that are not pinned. A buffer is reused for each item of the
    same shape.
    """

    def __init__(self, pinned: Pinned) -> None:
        """Begin without buffers."""
        self._pinned = pinned
        self._buffers: dict[int, tuple[Any, Any]] = {}
        # Recorded after the slot's last copy to the device.
        self.copied = torch.cuda.Event()
        # Whether a tensor was put here since that record.
        self.is_being_read = False

    def pinned(self, place: int, leaf: Any) -> Any:
        """Copy a tensor into pinned memory, once the slot's last upload is complete. The host may block for
        that.
        """
        layout = (leaf.shape, leaf.dtype, leaf.stride())
        known, buffer = self._buffers.get(place, (None, None))
        if known != layout:
            # The old buffer goes back to PyTorch's allocator, which has recorded the copy that may still read
            # the buffer.
            self._pinned.change(0 if buffer is None else buffer.nbytes, leaf.nbytes)
            buffer = torch.empty_like(leaf, device="cpu", pin_memory=True, requires_grad=False)
            self._buffers[place] = (layout, buffer)
        else:
            self.copied.synchronize()
        buffer.copy_(leaf)
        self.is_being_read = True
        return buffer


def leaves_of(item: Any) -> tuple[Any, list[Any], bool]:
    """Return the structure of an item, its tensors, and whether some of these were made from NumPy arrays.
    """
    leaves, shape = flatten(item)
    changed = False
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            leaves[place] = _tensor(sys.modules["numpy"], leaf)
            changed = True
    return shape, leaves, changed


def is_plain(item: Any) -> bool:
    """Return whether an item is a tensor, or a tuple, list or dictionary of tensors only, like most items.

    Such an item needs no ``flatten``, which takes two to seven times as long.
    """
    kind = type(item)
    if kind is PLAIN:
        return True
    if not (kind is tuple or kind is list or kind is dict) or not item:
        return False
    for value in item.values() if kind is dict else item:  # noqa: SIM110 - `all` would make a generator.
        if type(value) is not PLAIN:
            return False
    return True


def _tensor(numpy: Any, array: Any) -> Any:
    # PyTorch warns about read-only arrays, and refuses negative strides and non-native byte order.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(array)
