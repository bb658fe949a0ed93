"""Tensors of a simulated GPU: CPU tensors that answer PyTorch's queries like CUDA tensors.

A device storage holds its simulated memory (`allocator.Memory`). So the storage is on the device for every
tensor that views it, and its memory is freed when the last of these tensors is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from sidestream._simulated.allocator import Memory, Pinned
from sidestream._simulated.streams import Streams

#: The attribute in which a storage holds its memory.
KEPT = "_sidestream_memory"

_tensor = torch._C.TensorBase
_storage_of = _tensor.untyped_storage
_offset_of = _tensor.storage_offset


def memory_of(tensor: Any) -> Memory | Pinned | None:
    """Return the device memory, or the pinned memory, of a tensor; None for other tensors."""
    try:
        return getattr(_storage_of(tensor), KEPT, None)
    except ValueError:
        # Uninitialized parameters forbid nearly all operations.
        with torch._C.DisableTorchFunctionSubclass():
            return getattr(_storage_of(tensor), KEPT, None)
    except (RuntimeError, NotImplementedError, TypeError):
        # Sparse tensors and wrappers have no storage, but the tensors inside them do.
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo:
            return memory_of(tensor._values())
        return None


def storage_key(tensor: Any) -> int:
    """Return a number of a tensor's storage; 0 if it has none."""
    try:
        return int(_storage_of(tensor)._cdata)
    except (RuntimeError, NotImplementedError):
        return 0


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors of a value of an operator: of a tensor, and of lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in tensors_in(each)]
    return []


def device_of(tensor: Any) -> Any:
    """Return the simulated device of a tensor; None for a CPU tensor."""
    if crossing.computes:
        return None
    memory = memory_of(tensor)
    return None if memory is None else memory.device


class _Moved(torch.autograd.Function):  # type: ignore[misc]
    """A copy to another device, whose gradient is copied back."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Any, device: Any, dtype: Any, non_blocking: bool, memory_format: Any
    ) -> Any:
        ctx.source = (tensor.device, tensor.dtype)
        return _moved(tensor, device, dtype, non_blocking, memory_format)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        device, dtype = ctx.source
        return to_device(gradient, device, dtype), None, None, None, None


class _Crossing(threading.local):
    """Marks a copy that is meant to go to the host. PyTorch's own code takes every tensor for a CPU tensor,
    and names the CPU when it means the tensor's device.
    """

    leaves = False
    #: Whether an operator runs that is written in Python, as those for shapes are: all tensors are where they
    #: really are.
    computes = False


crossing = _Crossing()


def _moved(tensor: Any, device: Any, dtype: Any, non_blocking: bool, memory_format: Any) -> Any:
    options = {} if memory_format is None else {"memory_format": memory_format}
    crossing.leaves = True
    try:
        return torch.ops.aten._to_copy.default(
            tensor, dtype=dtype, device=device, non_blocking=non_blocking, **options
        )
    finally:
        crossing.leaves = False


def to_device(
    tensor: Any, device: Any, dtype: Any = None, non_blocking: bool = False, memory_format: Any = None
) -> Any:
    """Return a copy on another device."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Moved.apply(tensor, device, dtype, non_blocking, memory_format)
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        with torch._C.DisableTorchFunctionSubclass():
            return _moved(tensor, device, dtype, non_blocking, memory_format)
    return _moved(tensor, device, dtype, non_blocking, memory_format)


def attributes(streams: Streams, registered: Callable[[int, int], bool]) -> dict[str, Any]:
    """Return the replacements for attributes of ``torch.Tensor``. ``registered`` returns whether host memory
    was pinned in place.
    """
    plain: dict[str, Any] = {}

    def cuda_of(device: Any) -> Any:
        """Return a GPU with its number, and any other device unchanged."""
        if isinstance(device, (str, int)) and not isinstance(device, bool):
            device = torch.device(device) if isinstance(device, str) else torch.device("cuda", device)
        return streams.device_of(device) if device.type == "cuda" else device

    def get(self: Any) -> Any:
        return device_of(self) or plain["device"].__get__(self)

    def is_cuda(self: Any) -> bool:
        return device_of(self) is not None

    def is_cpu(self: Any) -> bool:
        return device_of(self) is None and bool(plain["is_cpu"].__get__(self))

    def is_meta(self: Any) -> bool:
        return device_of(self) is None and bool(plain["is_meta"].__get__(self))

    def get_device(self: Any) -> int:
        device = device_of(self)
        return -1 if device is None else int(device.index)

    def data_ptr(self: Any) -> int:
        memory = memory_of(self)
        if not isinstance(memory, Memory):
            return int(plain["data_ptr"](self))
        return (
            memory.address + _offset_of(self) * self.element_size() if memory.address and self.numel() else 0
        )

    def is_pinned(self: Any, device: Any = None) -> bool:
        memory = memory_of(self)
        if memory is not None or not is_cpu(self) or self.layout is not torch.strided:
            return isinstance(memory, Pinned)
        address = data_ptr(self)
        return registered(address, address + self.element_size())

    def pin_memory(self: Any, device: Any = None) -> Any:
        if device_of(self) is not None:
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        return self if is_pinned(self) else torch.ops.aten._pin_memory.default(self)

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        device, dtype, options = kwargs.get("device"), kwargs.get("dtype"), kwargs
        rest = list(args)
        other = rest.pop(0) if rest and isinstance(rest[0], torch.Tensor) else kwargs.get("other")
        if other is not None:
            device, dtype = other.device, other.dtype
        else:
            if rest and (rest[0] is None or isinstance(rest[0], (str, int, torch.device))):
                device = rest.pop(0)
            if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
                dtype = rest.pop(0)
        options = {**dict(zip(("non_blocking", "copy"), rest, strict=False)), **kwargs}
        target = None if device is None else cuda_of(device)
        mine = device_of(self)
        if target is not None and target != (mine or self.device) and target.type in ("cpu", "cuda"):
            if not (target.type == "cpu" and mine is None):
                return to_device(
                    self, target, dtype, bool(options.get("non_blocking")), options.get("memory_format")
                )
        if mine is None or (target is not None and target.type not in ("cpu", "cuda")):
            return plain["to"](self, *args, **kwargs)
        # Always pass the dtype: without it, PyTorch would pass the device, which it takes for the CPU.
        options = {
            name: options[name]
            for name in ("non_blocking", "copy", "memory_format")
            if options.get(name) is not None
        }
        return plain["to"](self, self.dtype if dtype is None else dtype, **options)

    def type_as(self: Any, other: Any) -> Any:
        return to(self, other)

    def cuda(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        target = streams.device_of(device)
        return self if self.device == target else to_device(self, target, None, non_blocking, memory_format)

    def cpu(self: Any, memory_format: Any = None) -> Any:
        if device_of(self) is None:
            return plain["cpu"](self)
        return to_device(self, torch.device("cpu"), None, False, memory_format)

    def show(self: Any, *, tensor_contents: Any = None) -> str:
        # On `meta` there is nothing to show; values that are asked for are 0.
        is_empty = device_of(self) is not None and plain["is_meta"].__get__(self)
        return str(plain["__repr__"](cpu(self) if is_empty else self, tensor_contents=tensor_contents))

    def refuse(self: Any) -> None:
        device = device_of(self)
        if device is not None:
            raise TypeError(
                f"can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
                "host memory first."
            )

    def numpy(self: Any, *, force: bool = False) -> Any:
        if force and device_of(self) is not None:
            return self.detach().cpu().resolve_conj().resolve_neg().numpy()
        refuse(self)
        return plain["numpy"](self, force=force)

    def array(self: Any, dtype: Any = None) -> Any:
        refuse(self)
        return plain["__array__"](self, dtype)

    def tolist(self: Any) -> Any:
        return plain["tolist"](self if device_of(self) is None else self.cpu())

    def new_tensor(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.pop("device", None)
        made = plain["new_tensor"](self, *args, **kwargs)
        return to(made, self.device if device is None else device)

    def kind(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            text = plain["type"](self)
            return text if device_of(self) is None else text.replace("torch.", "torch.cuda.", 1)
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            return plain["type"](self.cuda(), "torch." + dtype.removeprefix("torch.cuda."))
        return plain["type"](self, dtype, *args, **kwargs)

    replaced = {
        "device": property(get),
        "is_cuda": property(is_cuda),
        "is_cpu": property(is_cpu),
        "is_meta": property(is_meta),
        "get_device": get_device,
        "data_ptr": data_ptr,
        "is_pinned": is_pinned,
        "pin_memory": pin_memory,
        "to": to,
        "type_as": type_as,
        "cuda": cuda,
        "cpu": cpu,
        "numpy": numpy,
        "__array__": array,
        "__repr__": show,
        "tolist": tolist,
        "new_tensor": new_tensor,
        "type": kind,
    }
    plain.update((name, getattr(torch.Tensor, name)) for name in replaced)
    return replaced


def storage_attributes(
    streams: Streams, adopt: Callable[[Any, int], None], registered: Callable[[int, int], bool], home: Any
) -> dict[str, Any]:
    """Return the replacements for attributes of ``torch.UntypedStorage``; a device's are at ``home``."""
    base = torch._C.StorageBase
    get_device, get_pointer, resize = base.device, base.data_ptr, base.resize_

    def memory(self: Any) -> Memory | None:
        kept = getattr(self, KEPT, None)
        return kept if isinstance(kept, Memory) else None

    def get(self: Any) -> Any:
        kept = memory(self)
        return get_device.__get__(self) if kept is None else kept.device

    def data_ptr(self: Any) -> int:
        kept = memory(self)
        return int(get_pointer(self)) if kept is None else kept.address

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return base.__new__(cls, *args, **kwargs)
        made = base.__new__(cls, *args, **{**kwargs, "device": home})
        adopt(made, streams.index_of(device))
        return made

    def resize_(self: Any, size: int) -> Any:
        kept = memory(self)
        made = resize(self, size)
        if kept is not None:
            delattr(self, KEPT)
            adopt(self, kept.index)
        return made

    def is_pinned(self: Any, device: Any = "cuda") -> bool:
        kept = getattr(self, KEPT, None)
        if kept is not None:
            return isinstance(kept, Pinned)
        address = int(get_pointer(self))
        return registered(address, address + 1)

    return {
        "device": property(get),
        "data_ptr": data_ptr,
        "__new__": staticmethod(new),
        "resize_": resize_,
        "is_pinned": is_pinned,
    }


def _default_device() -> Any:
    """Return the device of ``with torch.device(…)`` or ``torch.set_default_device``."""
    modes = torch.overrides._get_current_function_mode_stack() if torch._C._len_torch_function_stack() else ()
    named = [mode.device for mode in modes if isinstance(mode, torch.utils._device.DeviceContext)]
    return named[-1] if named else "cpu"


def functions(to: Callable[..., Any], generator: type) -> dict[str, Any]:
    """Return the replacements for functions of ``torch`` that create tensors from data."""
    made = {name: getattr(torch, name) for name in ("tensor", "as_tensor", "asarray")}

    def on_device(name: str) -> Callable[..., Any]:
        def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
            is_tensor = isinstance(data, torch.Tensor)
            if device is None and is_tensor:
                device = data.device
            if device is None:
                device = _default_device()
            if is_tensor and device_of(data) is not None:
                data = data.detach().clone() if name == "tensor" else data
                result = to(data, device, args[0] if args else kwargs.get("dtype"))
                return result.requires_grad_() if kwargs.get("requires_grad") else result
            pinned = kwargs.pop("pin_memory", False)
            needs = kwargs.pop("requires_grad", False)
            with torch.device("cpu"):
                result = made[name](data, *args, **kwargs)
            result = to(result, device)
            if pinned:
                result = result.pin_memory()
            return result.requires_grad_() if needs else result

        return make

    return {**{name: on_device(name) for name in made}, "Generator": generator}
