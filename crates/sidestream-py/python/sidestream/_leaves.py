"""Tensors and NumPy arrays as host memory: their addresses, shapes and types."""

from __future__ import annotations

import functools
import sys
from typing import Any

from sidestream import _sidestream

#: NumPy types that GPUs support.
_NUMPY = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
    .split()
)


def exporters() -> dict[Any, tuple[Any, Any]]:
    """Return for the classes of plain arrays, of the libraries that are imported, a function that exports an
    array as a capsule, and one that returns whether the memory has other values than the array, or None.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    # A module may lack attributes while it is being imported.
    tensor, array = getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None)
    export = getattr(getattr(torch, "_C", None), "_to_dlpack", None)
    known = {
        tensor: (export, getattr(tensor, "is_neg", None)),
        array: (getattr(array, "__dlpack__", None), None),
    }
    return {kind: functions for kind, functions in known.items() if functions[0] is not None}


def is_tensor(value: Any) -> bool:
    """Return whether the value is a PyTorch tensor."""
    # A module may lack attributes while it is being imported.
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_numpy(value: Any) -> bool:
    """Return whether the value is a NumPy array."""
    return isinstance(value, getattr(sys.modules.get("numpy"), "ndarray", ()))


def is_array(value: Any) -> bool:
    """Return whether the value is a PyTorch tensor or a NumPy array, judged only by its class."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    kinds = (getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None))
    return any(kind is not None and issubclass(type(value), kind) for kind in kinds)


def on_host(leaf: Any) -> tuple[Any, int, int, bool, Any, str]:
    """Return the array as contiguous host memory, its address, its number of bytes, whether it can be
    uploaded directly from there, its shape, and its type.

    Raises:
        TypeError: The array is not on the host, or GPUs do not have its type.
    """
    return _tensor(leaf) if is_tensor(leaf) else _array(leaf)


def makes_each_anew(loader: Any) -> bool:
    """Return whether a loader gives each batch in new memory, as a DataLoader with workers does."""
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and type(loader) is data.DataLoader and loader.num_workers > 0


def is_sole_owner(leaves: list[Any], index: int) -> bool:
    """Return whether this list is the only known owner of the tensor and its memory."""
    # The list's reference, and that of this call.
    if sys.getrefcount(leaves[index]) > 2:
        return False
    torch: Any = sys.modules["torch"]
    uses = getattr(torch._C, "_storage_Use_Count", None)
    storage = leaves[index].untyped_storage()
    if uses is None or not hasattr(storage, "resizable"):
        # Older versions of PyTorch do not count the uses.
        return False
    # The memory of NumPy or another library has an owner that is not counted; such memory cannot be resized.
    if not storage.resizable():
        return False
    # The tensor and this function are two uses of the storage.
    return bool(uses(storage._cdata) <= 2)


@functools.cache
def name_of(dtype: Any) -> str:
    """Return the name of a type of PyTorch, without the prefix ``torch.``, or of NumPy."""
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def _tensor(tensor: Any) -> tuple[Any, int, int, bool, Any, str]:
    if tensor.layout is not sys.modules["torch"].strided or tensor.is_quantized or tensor.is_nested:
        raise TypeError(
            "this tensor is sparse, nested or quantized, and only dense ones are prefetched; convert it in "
            "the loader, or put it into an object that is passed through"
        )
    if not tensor.is_cpu:
        raise TypeError(
            f"this tensor is on {tensor.device}, but prefetched tensors come from the host; give it as a CPU "
            "tensor, or as a tensor on the target device"
        )
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        tensor = tensor.detach().contiguous()
    size = tensor.nbytes
    is_direct = size >= _sidestream.DIRECT_BYTES and tensor.is_pinned()
    return tensor, tensor.data_ptr(), size, is_direct, tensor.shape, name_of(tensor.dtype)


def _array(array: Any) -> tuple[Any, int, int, bool, Any, str]:
    if type(array).__name__ == "MaskedArray":
        raise TypeError(
            "a masked array would lose its mask; give its data and its mask, or call .filled() in the loader"
        )
    dtype = array.dtype
    name = name_of(dtype)
    if name not in _NUMPY:
        raise TypeError(f"GPUs have no type {name}; convert the array in the loader, as to float32")
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        # Not `ascontiguousarray`, which adds a dimension to an array without dimensions.
        array = array.copy(order="C")
    return array, array.__array_interface__["data"][0], array.nbytes, False, array.shape, name
