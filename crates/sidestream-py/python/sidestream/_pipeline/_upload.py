"""Items on their way to the device, through pinned memory."""

from __future__ import annotations

import sys
from typing import Any

import torch

from sidestream._leaves import is_leaf
from sidestream._tree import flatten


class Staging:
    """Pinned memory of one slot, for what comes unpinned. A buffer is used again for each item of the same shape."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._buffers: dict[int, tuple[Any, Any]] = {}
        # Recorded behind the slot's last copy to the device.
        self.copied = torch.cuda.Event()

    def pinned(self, place: int, leaf: Any) -> Any:
        """Copy a tensor into pinned memory, once the slot's last upload is over. The host may wait for that."""
        layout = (leaf.shape, leaf.dtype, leaf.stride())
        known, buffer = self._buffers.get(place, (None, None))
        if known != layout:
            # The old buffer goes back to PyTorch, which knows of the copy that may still read it.
            buffer = torch.empty_like(leaf, device="cpu", pin_memory=True, requires_grad=False)
            self._buffers[place] = (layout, buffer)
        else:
            self.copied.synchronize()
        buffer.copy_(leaf)
        return buffer


def leaves_of(item: Any) -> tuple[Any, list[Any], bool]:
    """Return the shape of an item, its tensors, and whether some were numpy arrays of numbers, which are tensors now."""
    leaves, shape = flatten(item, is_leaf)
    changed = False
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            leaves[place] = _tensor(sys.modules["numpy"], leaf)
            changed = True
    return shape, leaves, changed


def _tensor(numpy: Any, array: Any) -> Any:
    # PyTorch warns of arrays that may not be written, and refuses strides below zero and the other byte order.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(array)
