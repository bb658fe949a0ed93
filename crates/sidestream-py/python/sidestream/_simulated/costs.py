"""What operators cost on a GPU and on its host, from tables that ``sidestream devices --measure`` made.

A class of kernels has a grid of measured times. A time between the points of the grid is interpolated in the
logarithms of sizes and times; beyond the last point it grows as the size does.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

#: Times of a class of kernels, and by how much they may be off, as a factor.
Cost = tuple[float, float]
#: By how much a time may be off: of a class that was measured, of one that is judged by a similar class, and
#: of an operator that is not known.
SURE, LIKELY, UNKNOWN = 1.0, 1.1, 2.0

_HALF = (torch.float16, torch.bfloat16)


class Curve:
    """The times of one class of kernels on a grid of sizes."""

    def __init__(self, axes: list[list[int]], ns: list[float | None]) -> None:
        self._axes = [[math.log(size) for size in axis] for axis in axes]
        self._sizes = [len(axis) for axis in axes]
        if not axes or math.prod(self._sizes) != len(ns) or any(time and not 0 < time < 1e15 for time in ns):
            raise ValueError(f"{len(ns)} times for a grid of {math.prod(self._sizes)}, or one out of range")
        points = list(itertools.product(*(range(size) for size in self._sizes)))
        self._ns = {at: math.log(time) for at, time in zip(points, ns, strict=True) if time}
        # What takes too long was not measured: its time is that of a smaller size, multiplied.
        for at in points:
            if at not in self._ns:
                smaller = [
                    self._ns[before] + self._axes[axis][at[axis]] - self._axes[axis][at[axis] - 1]
                    for axis in range(len(at))
                    if at[axis] and (before := (*at[:axis], at[axis] - 1, *at[axis + 1 :])) in self._ns
                ]
                self._ns[at] = min(smaller) if smaller else max(self._ns.values())

    def ns(self, *sizes: float) -> float:
        """Return the time of a kernel of these sizes, one for each axis."""
        return math.exp(self._at((), sizes))

    def _at(self, chosen: tuple[int, ...], sizes: tuple[float, ...]) -> float:
        axis = len(chosen)
        if axis == len(sizes):
            return self._ns[chosen]
        points, size = self._axes[axis], math.log(max(sizes[axis], 1.0))
        if size <= points[0] or len(points) == 1:
            return self._at((*chosen, 0), sizes)
        if size >= points[-1]:
            return self._at((*chosen, len(points) - 1), sizes) + size - points[-1]
        after = bisect.bisect_right(points, size)
        part = (size - points[after - 1]) / (points[after] - points[after - 1])
        low, high = self._at((*chosen, after - 1), sizes), self._at((*chosen, after), sizes)
        return low + part * (high - low)


class Costs:
    """The times of operators on one GPU and its host."""

    def __init__(self, tables: dict[str, Any], host: dict[str, Any]) -> None:
        self._curves = {name: Curve(row["axes"], row["ns"]) for name, row in tables["kernels"].items()}
        self._calls: dict[str, dict[str, float]] = host["calls"]
        link = host.get("link", {})
        #: Bandwidths of uploads and downloads of pageable memory, which depend on the host.
        self.pageable_gb_s = tuple(link.get(f"pageable_{way}_gb_s", 0.0) for way in ("upload", "download"))
        #: What of a copy's time the driver's call takes, which the timeline has from the device.
        self.launch_ns = 1550.0
        #: The time of a node of a backward pass that computes nothing; as many nodes that accumulate the
        #: gradient of a leaf are not seen.
        self.node_ns: float = 2 * self._calls["pointwise_of_two"]["backward"]

    def kernel(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Cost:
        """Return the time of an operator's kernels, ns, with a full queue; 0 if it launches none."""
        rule = _RULES.get(name)
        if rule is not None:
            return rule(self, args, kwargs, result)
        if name.startswith("_foreach_") or name.startswith("_amp_foreach_"):
            return self.foreach(args), SURE
        ns = self("pointwise", bytes_of((args, tuple(kwargs.values()))) + bytes_of(result))
        return ns, UNKNOWN

    def __call__(self, curve: str, *sizes: float) -> float:
        return self._curves[curve].ns(*sizes)

    def foreach(self, args: tuple[Any, ...]) -> float:
        """Return the time of an operator on lists of tensors, which writes as much as one of them. The
        measured one reads two lists.
        """
        lists = [one for one in args if isinstance(one, (list, tuple)) and one and _is_tensor(one[0])]
        if not lists:
            return self("foreach", 1, 256)
        size, many = bytes_of(lists) / len(lists), len(lists[0])
        return self("foreach", many, size / many * (len(lists) + 1) / 3)

    def operator(self, name: str, phase: str, args: tuple[Any, ...]) -> float:
        """Return the host's time of an operator, ns: ``forward``, ``grad`` (with a node for autograd) or
        ``backward`` (besides that of its node).
        """
        call, many = _CALLS.get(name, ("foreach" if name.startswith("_foreach") else "pointwise", 1))
        if call == "conv":
            weight = args[2 if name == "convolution_backward" else 1]
            if weight.shape[1] == 1 < weight.shape[0]:
                call = "depthwise"
            elif weight.dtype in _HALF:
                call = "conv_half"
        more = 0.0
        if call == "embedding":
            # An index that is a column is copied first; many indices are sorted for the gradient, in six
            # launches.
            more += 0.0 if args[1].is_contiguous() else self.call("contiguous", "forward")
            if phase == "backward" and args[1].numel() > 3072:
                more += 6 * 0.75 * self.call("pointwise", "forward")
        if phase != "backward":
            return more + self.call(call, phase)
        if many == 1 and not name.endswith(("_backward", "_backward_data")):
            # An operator that is called in a backward pass without Python.
            return 0.75 * self.call(call, "forward")
        return more + max(1000.0, self.call(call, phase) - self.node_ns / 2) / many

    def call(self, name: str, phase: str) -> float:
        """Return the host's time of a call that was measured, ns."""
        row = self._calls[name]
        ns: float = row.get(phase) or row.get("forward") or row["base"]
        return ns

    def amount(self, name: str, many: int) -> float:
        """Return the host's time of a call on this many tensors."""
        row = self._calls.get(name) or self._calls[name.split("/")[0] + "/Adam"]
        return float(row["base"] + many * row["each"])

    def attention(self, q: Any, k: Any, causal: bool, backward: bool) -> float:
        """Return the time of a fused attention of any kind."""
        dtype = "half" if q.dtype in _HALF else "float32"
        heads, length = math.prod(q.shape[:-2]), math.sqrt(q.shape[-2] * k.shape[-2])
        name = f"attention{'_backward' if backward else ''}/{dtype}/{'causal' if causal else 'full'}"
        return self(name, heads, length, q.shape[-1])

    def lstm(self, dtype: Any, length: int, batch: int, width: int, backward: bool) -> float:
        """Return the time of a layer of an LSTM."""
        kind = "half" if dtype in _HALF else "float32"
        return self(f"lstm{'_backward' if backward else ''}/{kind}", length, batch, width)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def bytes_of(value: Any) -> int:
    """Return the bytes of all tensors of a value; those of an expanded tensor count once."""
    if isinstance(value, torch.Tensor):
        many: int = value.numel()
        if many and 0 in value.stride():
            many = math.prod(size for size, step in zip(value.shape, value.stride(), strict=True) if step)
        return many * int(value.element_size())
    if isinstance(value, (list, tuple)):
        return sum(map(bytes_of, value))
    return 0


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


def _kind(x: Any, allows_tf32: bool) -> str:
    return "half" if x.dtype in _HALF else "tf32" if allows_tf32 else "float32"


def _product(costs: Costs, a: Any, b: Any) -> Cost:
    dtype = _kind(a, torch.backends.cuda.matmul.allow_tf32)
    return costs(f"mm/{dtype}", a.shape[0], b.shape[1], a.shape[1]), SURE


def _batched(costs: Costs, a: Any, b: Any) -> Cost:
    dtype = _kind(a, False)
    return costs(f"bmm/{dtype}", a.shape[0], a.shape[1], b.shape[2], a.shape[2]), SURE


def _convolution(costs: Costs, args: tuple[Any, ...], made: Any, backward: bool) -> Cost:
    """Return the time of a convolution; ``made`` is its result, or the gradient of that."""
    x, weight, bias = args[1:4] if backward else args[:3]
    transposed, groups = args[7 if backward else 6], args[9 if backward else 8]
    places = made if not transposed else x
    at, window = places.numel() // max(1, places.shape[1]), math.prod(weight.shape[2:])
    inner, outer = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        inner, outer = weight.shape[0], weight.shape[1] * groups
    layout = "nchw"
    if x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        layout = "nhwc"
    kind = "half" if x.dtype in _HALF else "tf32"
    suffix = f"{'_backward' if backward else ''}/{kind}/{layout}"
    sure = SURE
    if groups > 1 and weight.shape[1] == 1:
        ns = costs(f"depthwise{suffix}", at, outer, math.sqrt(window))
    else:
        # Groups are narrow products, which fill the device less well.
        inner = inner / groups
        sure = SURE if groups == 1 else LIKELY
        if window == 1:
            ns = costs(f"conv1{suffix}", at, inner, outer)
        else:
            ns = costs(f"conv3{suffix}", at, inner * window / 9, outer)
    if backward:
        needs = args[10]
        if not (needs[0] and needs[1]) and x.shape[1] > 4:
            ns /= 2
        if needs[2]:
            ns += costs("sum", outer, at)
    elif bias is not None:
        ns += costs("pointwise", 2 * bytes_of(made))
    return ns, sure


def _batch_norm(costs: Costs, x: Any, trains: bool, backward: bool) -> Cost:
    if not trains:
        return costs("pointwise", (3 if backward else 2) * bytes_of(x)), SURE
    layout = "nchw" if x.is_contiguous() else "nhwc"
    name = f"batch_norm{'_backward' if backward else ''}/{layout}"
    channels = x.shape[1]
    return costs(name, x.numel() / channels * x.element_size() / 4, channels), SURE


def _on_rows(curve: str, x: Any, row: int) -> Callable[[Costs], Cost]:
    """Rows of shorter types take as long as rows with fewer elements."""
    return lambda costs: (costs(curve, max(1, x.numel() // max(1, row)), row * x.element_size() / 4), SURE)


def _softmax(curve: str) -> Callable[..., Cost]:
    def rule(costs: Costs, args: tuple[Any, ...], kwargs: Any, result: Any) -> Cost:
        x, at = args[0], next(each for each in args[1:] if isinstance(each, int))
        return _on_rows(curve, x, x.shape[at] if x.dim() else 1)(costs)

    return rule


def _normalized(curve: str) -> Callable[..., Cost]:
    def rule(costs: Costs, args: tuple[Any, ...], kwargs: Any, result: Any) -> Cost:
        x = args[0]
        shape = next(each for each in args[1:] if isinstance(each, (list, tuple)))
        return _on_rows(curve, x, math.prod(shape))(costs)

    return rule


def _groups(curve: str) -> Callable[..., Cost]:
    def rule(costs: Costs, args: tuple[Any, ...], kwargs: Any, result: Any) -> Cost:
        x = args[0]
        groups = [each for each in args if isinstance(each, int)][3]
        return _on_rows(curve, x, x.numel() // max(1, x.shape[0] * groups))(costs)

    return rule


def _reduction(costs: Costs, args: tuple[Any, ...], kwargs: Any, result: Any) -> Cost:
    x, made = args[0], _first(result)
    kept = max(1, made.numel())
    over = next(
        (each for each in args[1:] if isinstance(each, (int, list, tuple)) and each is not True), None
    )
    over = [over] if isinstance(over, int) else over
    row = x.numel() / kept * x.element_size() / 4
    dims = x.dim()
    inner = over is None or not over or any(at % dims == dims - 1 for at in over if dims)
    return (costs("sum", kept, row) if inner else costs("sum_rows", max(1, row), kept)), SURE


def _plain(curve: str, sure: float = SURE, made: bool = True, given: bool = True) -> Callable[..., Cost]:
    """Return a rule by the bytes of arguments and results."""

    def rule(costs: Costs, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Cost:
        size = bytes_of((args, tuple(kwargs.values()))) if given else 0
        return costs(curve, size + (bytes_of(result) if made else 0)), sure

    return rule


def _written(curve: str, sure: float = SURE) -> Callable[..., Cost]:
    """Return a rule by the bytes of the result, twice: what is taken and what is written."""
    return lambda costs, args, kwargs, result: (costs(curve, 2 * bytes_of(_first(result))), sure)


def _added(costs: Costs, args: tuple[Any, ...], kwargs: Any, result: Any) -> Cost:
    tensors = [each for each in (*args, *kwargs.values()) if _is_tensor(each) and each.is_floating_point()]
    size = 2 * bytes_of(tensors[-1]) if tensors else 0
    # Out of place, the target is copied first.
    return costs("index_add", size), LIKELY


def _copied(costs: Costs, args: tuple[Any, ...], kwargs: Any, result: Any) -> Cost:
    tensors = [each for each in args if _is_tensor(each)]
    to, of = tensors if len(tensors) > 1 else (_first(result), tensors[0])
    size = bytes_of(of) + to.numel() * to.element_size()
    turned = of.dim() > 1 and of.numel() > 1 and 0 not in of.stride() and of.stride() != to.stride()
    return costs("transpose" if turned else "pointwise", size), SURE


def _embedding_back(costs: Costs, args: tuple[Any, ...], kwargs: Any, result: Any) -> Cost:
    grad, rows = args[0], args[2]
    width = grad.shape[-1]
    return costs("embedding_backward", grad.numel() / width, rows) * max(1.0, width / 64) ** 0.5, LIKELY


def _fused(costs: Costs, args: tuple[Any, ...], kwargs: Any, result: Any) -> Cost:
    lists = args[:4]
    return costs("fused_adam", len(lists[0]), bytes_of(lists[0]) / max(1, len(lists[0]))), SURE


def _attention_rule(backward: bool) -> Callable[..., Cost]:
    def rule(costs: Costs, args: tuple[Any, ...], kwargs: Any, result: Any) -> Cost:
        q, k = (args[1], args[2]) if backward else (args[0], args[1])
        return costs.attention(q, k, any(each is True for each in args), backward), SURE

    return rule


def _planes(made: Any) -> tuple[int, int]:
    """Return the number of planes of images, and of places of each."""
    places = math.prod(made.shape[2:])
    return made.numel() // max(1, places), places


def _rule(act: Callable[..., Cost], *places: int) -> Callable[..., Cost]:
    return lambda costs, args, kwargs, result: act(costs, *(args[at] for at in places))


def _nothing(costs: Costs, args: Any, kwargs: Any, result: Any) -> Cost:
    return 0.0, SURE


_RULES: dict[str, Callable[[Costs, Any, Any, Any], Cost]] = {
    "mm": _rule(_product, 0, 1),
    "addmm": _rule(_product, 1, 2),
    "_addmm_activation": _rule(_product, 1, 2),
    "bmm": _rule(_batched, 0, 1),
    "baddbmm": _rule(_batched, 1, 2),
    "convolution": lambda costs, args, kwargs, result: _convolution(costs, args, result, False),
    "convolution_backward": lambda costs, args, kwargs, result: _convolution(costs, args, args[0], True),
    "native_batch_norm": lambda costs, args, kwargs, result: _batch_norm(costs, args[0], args[5], False),
    "cudnn_batch_norm": lambda costs, args, kwargs, result: _batch_norm(costs, args[0], args[5], False),
    "_native_batch_norm_legit": lambda costs, args, kwargs, result: _batch_norm(
        costs, args[0], True in args[3:6], False
    ),
    "_native_batch_norm_legit_no_training": lambda costs, args, kwargs, result: _batch_norm(
        costs, args[0], False, False
    ),
    "native_batch_norm_backward": lambda costs, args, kwargs, result: _batch_norm(
        costs, args[1], args[7], True
    ),
    "cudnn_batch_norm_backward": lambda costs, args, kwargs, result: _batch_norm(costs, args[0], True, True),
    "native_layer_norm": _normalized("layer_norm"),
    "_fused_rms_norm": _normalized("layer_norm"),
    "native_layer_norm_backward": lambda costs, args, kwargs, result: _normalized("layer_norm_backward")(
        costs, args[1:], kwargs, result
    ),
    "native_group_norm": _groups("group_norm"),
    "native_group_norm_backward": lambda costs, args, kwargs, result: _groups("group_norm_backward")(
        costs, args[1:], kwargs, result
    ),
    **{name: _softmax("softmax") for name in ("_softmax", "_log_softmax", "_safe_softmax")},
    **{
        name: _softmax("softmax_backward")
        for name in ("_softmax_backward_data", "_log_softmax_backward_data")
    },
    **dict.fromkeys(
        (
            "sum mean amax amin max min argmax argmin var std var_mean std_mean norm linalg_vector_norm prod "
            "any all logsumexp count_nonzero nansum median"
        ).split(),
        _reduction,
    ),
    **dict.fromkeys(
        (
            "max_pool2d_with_indices",
            "avg_pool2d",
            "avg_pool3d",
            "_adaptive_avg_pool2d",
            "max_pool3d_with_indices",
        ),
        lambda costs, args, kwargs, result: (costs("max_pool", bytes_of(args[0])), SURE),
    ),
    **dict.fromkeys(
        ("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward"),
        lambda costs, args, kwargs, result: (costs("max_pool_backward", bytes_of(result)), SURE),
    ),
    **dict.fromkeys(
        (
            "upsample_bilinear2d upsample_nearest2d _upsample_bilinear2d_aa upsample_bicubic2d "
            "grid_sampler_2d"
        ).split(),
        lambda costs, args, kwargs, result: (costs("upsample", *_planes(result)), LIKELY),
    ),
    **dict.fromkeys(
        ("upsample_bilinear2d_backward", "upsample_nearest2d_backward"),
        lambda costs, args, kwargs, result: (costs("upsample_backward", *_planes(args[0])), LIKELY),
    ),
    "embedding": lambda costs, args, kwargs, result: (
        costs("embedding", args[1].numel(), args[0].shape[-1] * args[0].element_size() / 4),
        SURE,
    ),
    "embedding_dense_backward": _embedding_back,
    **dict.fromkeys(("index", "index_select", "gather", "_unsafe_index", "take"), _written("index")),
    **dict.fromkeys(
        (
            "index_put_ index_put _unsafe_index_put _index_put_impl_ index_add index_add_ scatter scatter_ "
            "scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_copy_ masked_scatter_"
        ).split(),
        _added,
    ),
    "cat": _plain("cat", given=False),
    "stack": _plain("cat", given=False),
    **{name: _written("sort", LIKELY) for name in ("sort", "topk", "argsort", "kthvalue")},
    **{name: _written("cumsum") for name in ("cumsum", "cumprod", "cummax")},
    **dict.fromkeys(("copy_", "_to_copy", "clone", "contiguous"), _copied),
    **{
        name: _plain("random", given=False)
        for name in (
            "bernoulli bernoulli_ uniform_ normal_ random_ rand randn randint rand_like randn_like "
            "randint_like "
            "exponential_ randperm multinomial"
        ).split()
    },
    **{
        name: _plain("fill", given=False)
        for name in (
            "zero_ fill_ zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange "
            "eye scalar_tensor linspace"
        ).split()
    },
    "_fused_adam_": _fused,
    "_fused_adamw_": _fused,
    "_fused_sgd_": _fused,
    **{
        f"_scaled_dot_product_{name}": _attention_rule(False)
        for name in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
    },
    "nll_loss_forward": _plain("pointwise", given=False),
    "nll_loss_backward": _plain("fill", given=False),
    **dict.fromkeys("_fft_c2c _fft_r2c _fft_c2r nonzero masked_select".split(), _plain("pointwise", LIKELY)),
    "_unique2": _written("sort", LIKELY),
    "_embedding_bag": _written("index", LIKELY),
}

#: Further operators that take as long as their bytes, and are not tagged so.
_BY_BYTES = frozenset(
    (
        "select_backward slice_backward diagonal_backward unfold_backward select_scatter slice_scatter "
        "diagonal_scatter as_strided_scatter constant_pad_nd reflection_pad1d reflection_pad2d "
        "reflection_pad2d_backward replication_pad2d repeat roll flip tril triu diag_embed pixel_shuffle "
        "pixel_unshuffle im2col col2im masked_fill masked_fill_ where isnan isfinite isinf bincount polar "
        "complex hann_window _amp_update_scale_ _amp_foreach_non_finite_check_and_unscale_ "
        "_weight_norm_interface _weight_norm_interface_backward native_dropout dot vdot mv addmv ger "
        "aminmax bucketize searchsorted hardtanh_ hardtanh_backward leaky_relu leaky_relu_ "
        "leaky_relu_backward elu_ elu_backward hardswish hardswish_ hardswish_backward "
        "hardsigmoid_backward gelu_backward threshold_backward softplus_backward softshrink_backward "
        "hardshrink_backward mish_backward _prelu_kernel _prelu_kernel_backward glu glu_backward "
        "log_sigmoid_forward log_sigmoid_backward smooth_l1_loss smooth_l1_loss_backward mse_loss "
        "mse_loss_backward huber_loss huber_loss_backward binary_cross_entropy "
        "binary_cross_entropy_backward"
    ).split()
)

#: The call that an operator's host time is taken from, and the number of operators of that call's backward.
_CALLS: dict[str, tuple[str, int]] = {
    "mm": ("linear", 3),
    "addmm": ("linear", 3),
    "bmm": ("bmm", 2),
    "baddbmm": ("bmm", 2),
    "convolution": ("conv", 1),
    "convolution_backward": ("conv", 1),
    **{name: ("batch_norm", 1) for name in _RULES if "batch_norm" in name},
    **{name: ("layer_norm", 1) for name in ("native_layer_norm", "native_layer_norm_backward")},
    **{name: ("group_norm", 1) for name in ("native_group_norm", "native_group_norm_backward")},
    **{name: ("softmax", 1) for name in _RULES if "softmax" in name},
    **{name: ("reduction", 1) for name, rule in _RULES.items() if rule is _reduction},
    **{name: ("max_pool", 1) for name in _RULES if "pool" in name},
    **{name: ("upsample", 1) for name in _RULES if "upsample" in name},
    **{name: ("index", 1) for name in ("index", "index_select", "gather")},
    "embedding": ("embedding", 1),
    "embedding_dense_backward": ("embedding", 1),
    **{name: ("index_add", 1) for name, rule in _RULES.items() if rule is _added},
    **{name: ("copy", 1) for name in ("copy_", "_to_copy")},
    **{name: ("contiguous", 1) for name in ("clone", "contiguous")},
    **{
        name: ("fill", 1)
        for name in ("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros")
    },
    "cat": ("cat", 1),
    "stack": ("cat", 1),
    "native_dropout": ("dropout", 1),
    "relu": ("activation", 1),
    **{name: ("view", 1) for name in ("empty", "empty_like")},
}


def call_of(name: str) -> str:
    """Return the call that is measured for an operator."""
    return _CALLS.get(name, ("foreach" if name.startswith("_foreach") else "pointwise", 1))[0]


def known(name: str, tags: Iterable[Any]) -> bool:
    """Return whether the time of an operator is judged by a class that was measured."""
    return name in _RULES or name in _BY_BYTES or name.startswith("_foreach_") or torch.Tag.pointwise in tags
