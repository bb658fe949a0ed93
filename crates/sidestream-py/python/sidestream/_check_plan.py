"""Finds the arguments that PyTorch operators read and write, from their schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Operators that do not access the contents of their arguments, although their schemas do not show it.
_SILENT = frozenset(
    {
        "aten::_unsafe_view",
        "aten::_has_compatible_shallow_copy_type",
        "aten::_version",
        "aten::is_pinned",
        "aten::is_same_size",
        "aten::is_set_to",
        "aten::lift",
        "aten::resize_",
        "aten::resize_as_",
        "aten::set_data",
        "aten::_resize_output_",
    }
)
#: Operators that allocate memory and write nothing to it.
_EMPTY = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::empty_permuted",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::_efficientzerotensor",
    }
)
#: Operators for which the host waits: they read a value, or the host must know the size of the result.
WAITS = frozenset(
    {
        "aten::_linalg_check_errors",
        "aten::_local_scalar_dense",
        "aten::_unique2",
        "aten::allclose",
        "aten::bincount",
        "aten::equal",
        "aten::is_nonzero",
        "aten::item",
        "aten::masked_select",
        "aten::nonzero",
        "aten::repeat_interleave",
        "aten::unique_consecutive",
        "aten::unique_dim",
    }
)
#: Operators that take elements by an index. The host waits if the index is a mask or a CPU tensor.
_INDEXED = frozenset(
    {
        "aten::index",
        "aten::_unsafe_index",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::_unsafe_index_put",
    }
)
#: Matrix products, for which cuBLAS has one workspace per stream.
_PRODUCTS = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::_addmm_activation",
        "aten::bmm",
        "aten::baddbmm",
        "aten::_int_mm",
        "aten::_scaled_mm",
    }
)
#: Copies and `record_stream`, which have separate rules.
_COPIES = {
    "aten::copy_": "copy",
    "aten::_to_copy": "to_copy",
    "aten::_foreach_copy_": "copies",
    "aten::record_stream": "record_stream",
}
#: Operators that write arguments during training, although their schemas do not show it.
_RUNNING = frozenset(
    {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm", "aten::batch_norm"}
)

#: The function to call, the name, the kind, the arguments (index, name, written, list), and whether each
#: result is new memory.
Plan = tuple[Any, str, str, list[tuple[int, str, bool, bool]], list[bool]]

#: Operators that have a plan. They are kept alive, since the recorder identifies them by their addresses.
_kept: list[Any] = []


def is_composite(func: Any) -> bool:
    """Return whether an operator only calls other operators.

    Autograd decomposes such operators before a mode sees them. In inference mode it does not: then a mode
    sees `aten::to` instead of the copy.
    """
    import torch

    if not isinstance(func, torch._ops.OpOverload):
        return False
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CUDA")


def decomposed(func: Any, mode: Any, args: Any, kwargs: Any) -> Any:
    """Call a composite operator in a mode that observes the operators that it calls."""
    from torch.utils._python_dispatch import _pop_mode, _push_mode

    _push_mode(mode)
    try:
        return func.decompose(*args, **kwargs)
    finally:
        _pop_mode()


def planner(plan: Callable[[Any], Plan], mode: list[Any]) -> Callable[[Any], Plan]:
    """Return the function that plans operators for a recorder. ``mode`` receives a weak reference to the
    recorder once the recorder exists.
    """

    def planned(func: Any) -> Plan:
        if not is_composite(func):
            op, *rest = plan(func)
            return (mode[0]().pinned.heard(func, op), *rest)

        def call(*args: Any, **kwargs: Any) -> Any:
            return decomposed(func, mode[0](), args, kwargs)

        # The operators that the composite operator calls are recorded instead.
        return call, func._schema.name.removeprefix("aten::"), "silent", [], []

    return planned


def plan(func: Any) -> Plan:
    """Return the plan of an operator, for the recorder.

    A higher-order operator has no schema: it is only called, since its accesses are not known.
    """
    _kept.append(func)
    schema = getattr(func, "_schema", None)
    call = getattr(func, "_op", func)
    if schema is None:
        return call, str(func), "silent", [], []
    name: str = schema.name
    shown = name.removeprefix("aten::")
    kind = _kind(func, name, schema)
    if kind == "silent":
        return call, shown, kind, [], []
    reads_nothing = name in _EMPTY or _is_like(name)
    arguments = []
    for index, argument in enumerate(schema.arguments):
        tensors = _tensors(argument.type)
        if tensors is None:
            continue
        alias = argument.alias_info
        write = alias is not None and alias.is_write
        write = write or (name in _RUNNING and argument.name.startswith("running_"))
        # An alias that is not written is a view: the operator uses only its shape.
        if write or (alias is None and not reads_nothing):
            arguments.append((index, argument.name, write, tensors))
    results = [_tensors(result.type) is not None and result.alias_info is None for result in schema.returns]
    return call, shown, kind, arguments, results


def _kind(func: Any, name: str, schema: Any) -> str:
    import torch

    if name in _COPIES:
        return _COPIES[name]
    if name in _SILENT or name in _EMPTY or torch.Tag.inplace_view in func.tags:
        return "silent"
    if name in WAITS:
        return "waits"
    if name in _INDEXED:
        return "indexed"
    if name in _PRODUCTS:
        return "product"
    results = [result.alias_info for result in schema.returns]
    views = bool(results) and all(alias is not None and not alias.is_write for alias in results)
    return "silent" if views else "kernel"


def _is_like(name: str) -> bool:
    """Return whether the operator uses only the shape of its argument, not the contents."""
    short = name.removeprefix("aten::")
    return short.endswith("_like") or short.startswith("new_")


def _tensors(kind: Any) -> bool | None:
    """Return whether values of this type are lists of tensors; None if they have no tensors."""
    text = str(kind)
    if "Tensor" not in text:
        return None
    return text.startswith("List") or text.endswith("[]")
