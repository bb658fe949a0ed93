"""Runs operators on the CPU, with memory of the simulated device for their results."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from sidestream import _check_pinned, _check_plan
from sidestream._simulated.allocator import DeviceAllocator, Memory, PinnedCache
from sidestream._simulated.refusals import of_program
from sidestream._simulated.streams import Streams
from sidestream._simulated.tensor import KEPT, crossing, memory_of, storage_key, tensors_in

if TYPE_CHECKING:
    from sidestream._simulated.timing import Timing

_storage_of = torch._C.TensorBase.untyped_storage
_has_no_values = torch._C.TensorBase.is_meta.__get__
#: Types for which the CPU lacks some operators: these run in float32.
_SHORT = (torch.float16, torch.bfloat16)
#: Copies, which may go from any device to any other.
_COPIES = frozenset({"aten::copy_", "aten::_foreach_copy_", "aten::set_", "aten::set_data"})
#: Operators for which the host waits, which is not allowed during a graph capture.
_WAITS = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense equal nonzero masked_select _unique2 unique_dim unique_consecutive bincount"
    ).split()
)
#: Operators for which the host waits if an index is a mask.
_INDEXED = frozenset({"aten::index", "aten::index_put", "aten::index_put_"})
_NEEDS_VALUES = ", whose result depends on values, and there are only shapes (give shapes=False)"
_MOST_ASKED = 5


class Operators:
    """The functions that the recorder calls instead of PyTorch's operators."""

    def __init__(
        self,
        streams: Streams,
        allocators: list[DeviceAllocator],
        refused: Callable[[str], Exception],
    ) -> None:
        self.streams, self.allocators, self.refused = streams, allocators, refused
        self.pinned = PinnedCache()
        #: Where the tensors of devices are: on the CPU, or on ``meta`` if they have shapes only.
        self.home = _CPU
        #: The timeline; None where work takes no time.
        self.timing: Timing | None = None
        #: The first lines of the program that ask for values of tensors that have none.
        self.values_asked: dict[str, None] = {}

    def plan(self, func: Any) -> _check_plan.Plan:
        """Return the plan of an operator. The plan calls this object."""
        call, shown, kind, arguments, results = _check_plan.plan(func)
        return self._call(func, call, kind), shown, kind, arguments, results

    def _call(self, func: Any, op: Any, kind: str) -> Any:
        schema = getattr(func, "_schema", None)
        if schema is None:
            return op
        name: str = schema.name
        special: dict[str, Callable[..., Any]] = {
            "aten::record_stream": self._record_stream,
            "aten::_pin_memory": lambda tensor, device=None: self.pinned_copy(tensor),
            "aten::is_pinned": lambda tensor, device=None: tensor.is_pinned(),
        }
        if name in special:
            return special[name]
        if name in ("aten::resize_", "aten::resize_as_", "aten::_resize_output_"):
            return self._resizing(op)
        has_device = any(argument.name == "device" for argument in schema.arguments)
        is_empty = kind == "silent" and any(result.alias_info is None for result in schema.returns)
        if kind == "silent" and not is_empty and not has_device:
            # A view allocates no memory.
            return op if self.timing is None else self._viewed(op)
        if name == "aten::_to_copy":
            return self._to_copy(func, op)
        if name == "aten::copy_":
            return self._copy(func, op)
        if name == "aten::_foreach_copy_":
            return self._copies(func, op)
        return self._computed(func, op, name, has_device, kind)

    def _computed(self, func: Any, op: Any, name: str, has_device: bool, kind: str = "kernel") -> Any:
        """Return the function for an operator that may allocate memory."""
        schema = func._schema
        makes = any("Tensor" in str(result.type) and result.alias_info is None for result in schema.returns)
        grows = [argument.name for argument in schema.arguments if argument.is_out]
        aliases = [(at, argument.name, argument.alias_info) for at, argument in enumerate(schema.arguments)]
        written = [(at, name) for at, name, alias in aliases if alias is not None and alias.is_write]
        is_addition = func in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)
        streams, here = self.streams, self.streams.here
        always, is_indexed = name in _WAITS, name in _INDEXED
        # PyTorch's own code creates CPU tensors for the tensor of a device, and then writes to them. A
        # program that does so is refused on a GPU.
        takes = bool(written) and name not in _COPIES
        timing = None if name in _COPIES or name == "aten::_to_copy" else self.timing
        has_kernels = kind != "silent"
        has_values = self.home.type == "cpu"

        def call(*args: Any, **kwargs: Any) -> Any:
            target: int | None = None
            pinned = False
            if has_device:
                device = kwargs.get("device")
                if device is not None:
                    if device.type == "cuda":
                        target = streams.index_of(device)
                        kwargs["device"] = self.home
                    elif device.type == "meta" == self.home.type:
                        # PyTorch's own code means the device.
                        target = here.device
                    else:
                        target = -1
                pinned = bool(kwargs.pop("pin_memory", False))
            if target is None:
                target = _device_of(args)
                if target is None and kwargs:
                    target = _device_of(kwargs.values())
                if target is None:
                    target = -1
            if target >= 0:
                if here.backward is not None:
                    here.backward.look()
                    if is_addition and here.backward.additions:
                        device, stream = here.backward.additions.popleft()
                        here.streams[device] = stream
                streams.busy.add((target, here.streams[target]))
                waits = always or (is_indexed and _is_masked(*args))
                if waits:
                    streams.refuse_in_capture()
                    streams.stream_is_done(target, here.streams[target])
                    if not has_values:
                        return self._without_values(name, args, target)
            capture = streams.here.capture if target >= 0 and has_values else None
            if capture is not None:
                capture.begins(tensors_in([_argument(args, kwargs, at, key) for at, key in written]))
            result = self._run(op, name, args, kwargs)
            if target >= 0:
                if makes:
                    # The sizes of a packed sequence stay on the host.
                    made = result[:1] if name == "aten::_pack_padded_sequence" else result
                    for tensor in tensors_in(made):
                        self.adopt(tensor, target)
                for at, key in written if takes else ():
                    self._adopt_written(_argument(args, kwargs, at, key), target)
                for name_of in grows:
                    self._grown(kwargs.get(name_of))
                if timing is not None:
                    if not has_kernels:
                        timing.viewed(args)
                    elif name != "aten::_local_scalar_dense":
                        timing.computed(func, args, kwargs, result, target, here.streams[target])
                    if waits:
                        # PyTorch copies to pinned memory, and waits for the stream.
                        timing.copied("download", 8, True, args, target, here.streams[target], name)
            elif has_device and makes and isinstance(result, torch.Tensor):
                here.made = (*_call_of(sys._getframe(1)), storage_key(result))
            if pinned and target < 0:
                result = self.pinned_copy(result)
            if capture is not None:
                capture.ends(lambda *args, **kwargs: self._run(op, name, args, kwargs), args, kwargs, result)
            return result

        return call

    def _viewed(self, op: Any) -> Any:
        timing = self.timing
        assert timing is not None

        def call(*args: Any, **kwargs: Any) -> Any:
            if _device_of(args) is not None:
                timing.viewed(args)
            return op(*args, **kwargs)

        return call

    def _without_values(self, name: str, args: Any, device: int) -> Any:
        """Answer an operator that asks a tensor of shapes only for values."""
        if name != "aten::_local_scalar_dense":
            raise self.refused(f"{name.removeprefix('aten::')}{_NEEDS_VALUES}")
        if self.timing is not None:
            stream = self.streams.here.streams[device]
            self.timing.copied("download", args[0].element_size(), True, args, device, stream, name)
            self.asked()
        return torch.zeros((), dtype=args[0].dtype).item()

    def asked(self) -> None:
        """Note the line of the program that asks for values."""
        frame = of_program(sys._getframe(1)) if len(self.values_asked) < _MOST_ASKED else None
        if frame is not None:
            self.values_asked[f"{frame.f_code.co_filename}:{frame.f_lineno}"] = None

    def _to_copy(self, func: Any, op: Any) -> Any:
        """Return the function for ``_to_copy``. A non-blocking copy to the host goes to pinned memory."""
        computed = self._computed(func, op, func._schema.name, True)

        def call(tensor: Any, **kwargs: Any) -> Any:
            device = kwargs.get("device")
            is_away = device is not None and device.type == "cpu" and isinstance(memory_of(tensor), Memory)
            if is_away and not crossing.leaves:
                del kwargs["device"]
                is_away = False
            crossing.leaves = False
            result = computed(tensor, **kwargs)
            non_blocking = bool(kwargs.get("non_blocking"))
            if is_away and non_blocking:
                result = self.pinned_copy(result)
            self._copied(func, result, tensor, non_blocking)
            return result

        return call

    def _copy(self, func: Any, op: Any) -> Any:
        computed, here = self._computed(func, op, "aten::copy_", False), self.streams.here

        def call(target: Any, source: Any, non_blocking: bool = False) -> Any:
            made, memory = here.made, memory_of(source)
            if made is not None and isinstance(memory, Memory) and memory_of(target) is None:
                # A tensor that is created and filled within one call of the program was created by PyTorch's
                # own code, which meant the device.
                if made == (*_call_of(sys._getframe(1)), storage_key(target)):
                    self.adopt(target, memory.index)
            result = computed(target, source, non_blocking)
            self._copied(func, target, source, non_blocking)
            return result

        return call

    def _copies(self, func: Any, op: Any) -> Any:
        computed = self._computed(func, op, "aten::_foreach_copy_", False)

        def call(targets: Any, sources: Any, non_blocking: bool = False) -> Any:
            result = computed(targets, sources, non_blocking)
            for target, source in zip(targets, sources, strict=True):
                self._copied(func, target, source, non_blocking)
            return result

        return call

    def _copied(self, func: Any, target: Any, source: Any, non_blocking: bool) -> None:
        """Record that the host has waited for a copy between host and device, if it had to."""
        onto, read = memory_of(target), memory_of(source)
        if self.timing is not None:
            self._copy_takes_time(self.timing, func, target, source, non_blocking)
        if isinstance(onto, Memory):
            device = None if isinstance(read, Memory) or non_blocking else onto.index
        elif not isinstance(read, Memory) or (non_blocking and _is_direct(target, source)):
            device = None
        else:
            device = read.index
        if device is not None:
            self.streams.refuse_in_capture()
            self.streams.stream_is_done(device, self.streams.current(device))

    def _copy_takes_time(
        self, timing: Timing, func: Any, target: Any, source: Any, non_blocking: bool
    ) -> None:
        onto, read = memory_of(target), memory_of(source)
        of = onto if isinstance(onto, Memory) else read
        if not isinstance(of, Memory) or isinstance(source, torch.nn.parameter.UninitializedTensorMixin):
            return
        stream = self.streams.current(of.index)
        if isinstance(onto, Memory) and isinstance(read, Memory):
            timing.computed(func, (target, source), {}, target, of.index, stream)
            return
        host, way = (source, "upload") if isinstance(onto, Memory) else (target, "download")
        is_pinned = host.is_pinned()
        kind = way if is_pinned else f"{way}_pageable"
        waits = not non_blocking or (way == "download" and not is_pinned)
        timing.copied(kind, source.nbytes, waits, (source,), of.index, stream)

    def _run(self, op: Any, name: str, args: Any, kwargs: Any) -> Any:
        if self.home.type == "meta" and name in ("aten::_to_copy", "aten::copy_"):
            # Values that there are not: they are 0.
            if name == "aten::copy_" and _has_no_values(args[1]) and not _has_no_values(args[0]):
                self.asked()
                return args[0].zero_()
            if kwargs.get("device") == _CPU and _has_no_values(args[0]):
                self.asked()
                return torch.zeros_like(args[0], device=_CPU, dtype=kwargs.get("dtype"))
        before, crossing.computes = crossing.computes, self.home.type == "meta"
        try:
            return op(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            text = str(error)
            if "from the 'CPU' backend" in text or "not implemented for" in text:
                if any(tensor.dtype in _SHORT for tensor in tensors_in((*args, *kwargs.values()))):
                    return _in_single(op, args, kwargs)
                if "from the 'CPU' backend" in text and _device_of(args) is not None:
                    why = (
                        f"the operator {name} has no kernel for the CPU, which runs the operators of a "
                        "simulation"
                    )
                    raise self.refused(why) from error
            if self.home.type == "meta" and "meta" in text.lower():
                raise self.refused(f"{name.removeprefix('aten::')}{_NEEDS_VALUES}") from error
            raise
        finally:
            crossing.computes = before

    # ------------------------------------------------------------ memory

    def adopt(self, tensor: Any, device: int) -> None:
        """Put a result of an operator on a device."""
        try:
            storage = _storage_of(tensor)
        except (RuntimeError, NotImplementedError):
            if tensor.layout is torch.sparse_coo:
                self.adopt(tensor._indices(), device)
                self.adopt(tensor._values(), device)
            return
        if getattr(storage, KEPT, None) is None:
            self.adopt_storage(storage, device)

    def _adopt_written(self, value: Any, device: int) -> None:
        for tensor in tensors_in(value):
            if tensor.dim() and memory_of(tensor) is None:
                self.adopt(tensor, device)

    def adopt_storage(self, storage: Any, device: int) -> None:
        memory = self.allocators[device].allocate(storage.nbytes(), self.streams.current(device))
        setattr(storage, KEPT, memory)

    def _grown(self, tensor: Any) -> None:
        """Reallocate the simulated memory of a tensor that an operator enlarged: an out= tensor, or that of
        resize_.
        """
        for each in tensors_in(tensor):
            memory = memory_of(each)
            if isinstance(memory, Memory):
                storage = _storage_of(each)
                if storage.nbytes() > memory.bytes:
                    delattr(storage, KEPT)
                    index, memory = memory.index, None
                    self.adopt_storage(storage, index)

    def _resizing(self, op: Any) -> Any:
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = op(tensor, *args, **kwargs)
            self._grown(tensor)
            return result

        return call

    def _record_stream(self, tensor: Any, stream: Any) -> None:
        memory = memory_of(tensor)
        if isinstance(memory, Memory):
            memory.allocator.note(memory, stream.stream_id)

    def pinned_copy(self, tensor: Any) -> Any:
        """Return a copy in pinned memory."""
        size = (
            sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            if tensor.numel()
            else 0
        )
        made = self.pinned_like(tensor, size * tensor.element_size())
        return made.copy_(tensor)

    def pinned_like(self, tensor: Any, size: int) -> Any:
        if size == 0:
            return torch.empty_like(tensor)
        owner, buffer, at = self.pinned.allocate(size)
        storage = _storage_of(torch.frombuffer(buffer, dtype=torch.uint8, count=size, offset=at))
        setattr(storage, KEPT, owner)
        return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape, tensor.stride())


_CPU = torch.device("cpu")
#: The files of functions that count pinned memory, and that keep dispatch modes from being compiled.
_WRAPPERS = (
    _check_pinned.__file__,
    os.path.join("torch", "_compile.py"),
    os.path.join("torch", "_dynamo", "eval_frame.py"),
)


def _call_of(frame: FrameType) -> tuple[int, CodeType, int]:
    """Return an identifier of the program's call that is running."""
    # The innermost frames may be those of a dispatch mode, and of what wraps it.
    while frame.f_back is not None and (
        frame.f_code.co_name == "__torch_dispatch__" or frame.f_code.co_filename.endswith(_WRAPPERS)
    ):
        frame = frame.f_back
    # The next call's frame may be at the address of the last one's.
    return id(frame), frame.f_code, frame.f_lasti


def _is_direct(target: Any, source: Any) -> bool:
    """Return whether an asynchronous copy to the host writes the target itself. Elements in another order are
    put in order on the host, so the host waits for them.
    """
    if target.is_contiguous():
        return True
    dense = torch.empty_like(target, device="meta").stride()
    return target.dtype == source.dtype and bool(target.stride() == source.stride() == dense)


def _device_of(args: Any) -> int | None:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            memory = memory_of(arg)
            if isinstance(memory, Memory):
                return memory.index
        elif isinstance(arg, (list, tuple)) and arg and not isinstance(arg[0], (int, float)):
            found = _device_of(arg)
            if found is not None:
                return found
    return None


def _is_masked(tensor: Any, indices: Any, values: Any = None, accumulate: bool = False) -> bool:
    """Return whether the host waits for how many elements a mask chooses. To fill these, it need not."""
    fills = isinstance(values, torch.Tensor) and values.numel() == 1 and not accumulate
    return not fills and any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices)


def _argument(args: Any, kwargs: Any, at: int, name: str) -> Any:
    return args[at] if at < len(args) else kwargs.get(name)


def _in_single(op: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator in float32 where the CPU has no kernel for a shorter type, and convert the results back
    to that type.
    """
    given = [*args, *kwargs.values()]
    short = next(tensor.dtype for tensor in tensors_in(given) if tensor.dtype in _SHORT)
    wide = tree_map_only(
        torch.Tensor, lambda tensor: tensor.float() if tensor.dtype in _SHORT else tensor, given
    )
    result = op(*wide[: len(args)], **dict(zip(kwargs, wide[len(args) :], strict=True)))
    for before, after in zip(tensors_in(given), tensors_in(wide), strict=True):
        # Copy back the arguments that were written in place.
        if before is not after and after._version:
            before.copy_(after)
    for before, after in zip(tensors_in(given), tensors_in(wide), strict=True):
        if after is result:
            return before
    return tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(short) if tensor.dtype is torch.float32 else tensor, result
    )
