"""``sidestream devices --measure``: times PyTorch's operators on this machine's GPU, for ``simulate``.

Each class of kernels is timed on a grid of sizes, with the queue of the device kept full, so that a time
includes the gap to the next kernel. The host's time of a call is that of issuing it, on tensors so small that
the device keeps up. ``_simulated/costs.py`` says which operator belongs to which class.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import platform
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sidestream._prefetch import prefetch

#: Points of a grid that would take more operations or bytes than this are left out (null in the file).
_MOST_FLOPS, _MOST_BYTES = 1.5e12, 8e9
#: Approximate time for which a point is measured, and the most and fewest calls.
_SECONDS, _MOST_CALLS, _FEWEST_CALLS = 0.003, 20, 3
_SIDES = [[8, 64, 512, 4096, 32_768], [16, 64, 512, 4096, 16_384]]
_BYTES = [4**power for power in range(5, 16)]


def measured(torch: Any) -> dict[str, Any]:
    """Measure the current GPU.

    Returns:
        ``device`` and ``host`` (names), ``kernels`` (for each class ``axes`` and ``ns``, of all points in the
        order of ``itertools.product``) and ``calls`` (for each call the host's ``forward``, ``grad`` and
        ``backward``, ns).
    """
    kernels: dict[str, Any] = {}
    with torch.no_grad():
        for name, axes, make in _kernels(torch):
            kernels[name] = {"axes": axes, "ns": [_point(torch, make, at) for at in _points(axes)]}
    # Others work on the same machine at times: the quietest of some passes counts.
    passes = [_of_calls(torch) | dict(_amounts(torch)) for _ in range(_PASSES)]
    calls = min(passes, key=lambda rows: sum(rows["mixed"].values()))
    return {
        "device": torch.cuda.get_device_name(),
        "host": _processor(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": time.strftime("%Y-%m-%d"),
        "link": _link(torch),
        "kernels": kernels,
        "calls": calls,
    }


def _points(axes: list[list[int]]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*axes)


def _point(torch: Any, make: Callable[..., Any], at: tuple[int, ...]) -> float | None:
    try:
        call = make(*at)
        if call is None:
            return None
        return float(f"{_device_ns(torch, call):.4g}")
    except torch.cuda.OutOfMemoryError:
        return None
    except RuntimeError as error:
        # A library may lack a kernel for one size: the others still count.
        print(f"not measured at {at}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    finally:
        if torch.cuda.memory_reserved() > 8 << 30:
            torch.cuda.empty_cache()


def _device_ns(torch: Any, call: Callable[[], Any]) -> float:
    """Return the device's time of a call, ns, when the calls are queued ahead."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(count: int) -> float:
        # The device sleeps until all calls are issued, at two cycles a nanosecond or less.
        torch.cuda._sleep(100_000 + int(3 * issue_ns * count))
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e6 / count

    call()
    call()
    torch.cuda.synchronize()
    issued = time.perf_counter_ns()
    call()
    issue_ns = time.perf_counter_ns() - issued
    once = timed(_FEWEST_CALLS)
    if once * _FEWEST_CALLS > 20e6:
        return once
    return timed(max(_FEWEST_CALLS, min(_MOST_CALLS, int(_SECONDS * 1e9 / once))))


def _kernels(torch: Any) -> Iterator[tuple[str, list[list[int]], Callable[..., Any]]]:
    """Yield each class of kernels, with the axes of its grid and what makes the call at a point."""
    aten = torch.ops.aten
    half = torch.float16

    def floats(*shape: int, dtype: Any = None) -> Any:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    def of_bytes(make: Callable[[Any], Callable[[], Any]], touched: int = 8) -> Callable[[int], Any]:
        return lambda size: make(floats(max(1, size // touched)))

    def plane(x: Any) -> Any:
        """Return images of 64 channels and 8 rows, of about the number of elements."""
        return x[: x.numel() // 4096 * 4096 or None].view(-1, 64, 8, 8) if x.numel() >= 4096 else None

    def images(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def make(x: Any) -> Any:
            shaped = plane(x)
            return None if shaped is None else act(shaped)

        return make

    def added(size: int) -> Any:
        a, b, c = (floats(max(1, size // 12)) for _ in range(3))
        return lambda: torch.add(a, b, out=c)

    def foreach(count: int, each: int) -> Any:
        if count * each > _MOST_BYTES:
            return None
        ones, others = ([floats(max(1, each // 4)) for _ in range(count)] for _ in range(2))
        return lambda: torch._foreach_add_(ones, others)

    def adam(count: int, each: int) -> Any:
        if 4 * count * each > _MOST_BYTES:
            return None
        lists = [[floats(max(1, each // 4)).abs_() for _ in range(count)] for _ in range(4)]
        steps = [torch.ones((), device="cuda") for _ in range(count)]
        options = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
        return lambda: torch._fused_adam_(*lists, [], steps, amsgrad=False, maximize=False, **options)

    yield "pointwise", [_BYTES], added
    yield "fill", [_BYTES], of_bytes(lambda x: lambda: x.zero_(), 4)
    yield "random", [_BYTES], of_bytes(lambda x: lambda: x.bernoulli_(0.5), 4)

    def turned(x: Any) -> Any:
        square = x[: math.isqrt(x.numel()) ** 2].view(math.isqrt(x.numel()), -1)
        return lambda: square.t().contiguous()

    yield "transpose", [_BYTES], of_bytes(turned)
    yield "cat", [_BYTES], of_bytes(lambda x: lambda: torch.cat([x, x]), 16)
    yield "cumsum", [_BYTES[:-2]], of_bytes(lambda x: lambda: x.cumsum(0))
    yield "sort", [_BYTES[:-3]], of_bytes(lambda x: lambda: x.sort(), 4)
    # Rows of 64 elements, at random places.
    yield "index", [_BYTES[2:]], lambda size: _indexed(torch, floats(size // 512 + 1, 64))
    yield "index_add", [_BYTES[2:]], lambda size: _indexed(torch, floats(size // 512 + 1, 64), True)
    yield (
        "max_pool",
        [_BYTES[4:]],
        of_bytes(images(lambda x: lambda: aten.max_pool2d_with_indices(x, 3, 2, 1)), 4),
    )
    yield "max_pool_backward", [_BYTES[4:]], of_bytes(images(lambda x: _unpooled(torch, x)), 4)
    # One thread works on a place of the result in all images and channels.
    yield (
        "upsample",
        [[16, 256, 4096, 65_536], [256, 4096, 65_536]],
        lambda planes, at: _scaled(torch, floats, planes, at),
    )
    yield (
        "upsample_backward",
        [[16, 256, 4096, 65_536], [256, 4096, 65_536]],
        lambda planes, at: _scaled(torch, floats, planes, at, True),
    )
    tensors = [[1, 16, 128, 512], [256, 16_384, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26]]
    yield "foreach", tensors, foreach
    yield "fused_adam", tensors, adam
    yield from _rows(torch, floats)
    for kind, dtype, allows in (("float32", None, False), ("tf32", None, True), ("half", half, False)):

        def product(m: int, n: int, k: int, dtype: Any = dtype, allows: bool = allows) -> Any:
            torch.backends.cuda.matmul.allow_tf32 = allows
            if 2 * m * n * k > _MOST_FLOPS or 4 * max(m * n, m * k, n * k) > _MOST_BYTES / 2:
                return None
            a, b = floats(m, k, dtype=dtype), floats(n, k, dtype=dtype)
            return lambda: a @ b.t()

        yield f"mm/{kind}", [[8, 64, 512, 4096, 32_768, 1 << 18], *_SIDES], product
        torch.backends.cuda.matmul.allow_tf32 = False
        if kind != "tf32":

            def batched(b: int, m: int, n: int, k: int, dtype: Any = dtype) -> Any:
                if b * m * n * k * 2 > _MOST_FLOPS / 4:
                    return None
                x, y = floats(b, m, k, dtype=dtype), floats(b, k, n, dtype=dtype)
                return lambda: x @ y

            yield f"bmm/{kind}", [[8, 64, 512], *([16, 64, 256, 1024] for _ in range(3))], batched
            yield from _attentions(torch, kind, dtype or torch.float32, floats)
            yield from _recurrent(torch, kind, dtype, floats)
    for kind, dtype in (("tf32", None), ("half", half)):
        yield from _convolutions(torch, kind, dtype, floats)


def _indexed(torch: Any, rows: Any, adds: bool = False) -> Any:
    at = torch.randint(len(rows), (len(rows),), device="cuda")
    if adds:
        onto = torch.zeros_like(rows)
        return lambda: onto.index_add_(0, at, rows)
    return lambda: rows[at]


def _scaled(torch: Any, floats: Callable[..., Any], planes: int, at: int, back: bool = False) -> Any:
    """Double the height and width of images; ``at`` is the number of places of a plane of the result."""
    if planes * at * 8 > _MOST_BYTES:
        return None
    aten, side = torch.ops.aten, math.isqrt(at)
    x, grad = floats(8, planes // 8, side // 2, side // 2), floats(8, planes // 8, side, side)
    if not back:
        return lambda: aten.upsample_bilinear2d(x, [side, side], False)
    return lambda: aten.upsample_bilinear2d_backward(grad, [side, side], list(x.shape), False)


def _unpooled(torch: Any, x: Any) -> Any:
    aten = torch.ops.aten
    made, indices = aten.max_pool2d_with_indices(x, 3, 2, 1)
    return lambda: aten.max_pool2d_with_indices_backward(
        made, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices
    )


def _rows(torch: Any, floats: Callable[..., Any]) -> Iterator[Any]:
    """Yield what works on rows: reductions, softmax, normalizations and embeddings."""
    aten = torch.ops.aten
    axes = [[1, 64, 1024, 8192, 65_536, 1 << 20], [8, 64, 256, 1024, 4096, 32_768, 1 << 17]]

    def on_rows(make: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda rows, row: make(floats(rows, row)) if rows * row * 4 < _MOST_BYTES / 4 else None

    def normalized_back(x: Any) -> Any:
        weight = floats(x.shape[1])
        made = aten.native_layer_norm(x, [x.shape[1]], weight, weight, 1e-5)
        return lambda: aten.native_layer_norm_backward(
            x, x, [x.shape[1]], made[1], made[2], weight, weight, [True, True, True]
        )

    def softmax_back(x: Any) -> Any:
        y = x.softmax(1)
        return lambda: aten._softmax_backward_data(x, y, 1, torch.float32)

    yield "sum", axes, on_rows(lambda x: lambda: x.sum(1))
    yield "sum_rows", axes, on_rows(lambda x: lambda: x.sum(0))
    yield "softmax", axes, on_rows(lambda x: lambda: x.softmax(1))
    yield "softmax_backward", axes, on_rows(softmax_back)
    yield (
        "layer_norm",
        axes,
        on_rows(lambda x: lambda w=floats(x.shape[1]): aten.native_layer_norm(x, [x.shape[1]], w, w, 1e-5)),
    )
    yield "layer_norm_backward", axes, on_rows(normalized_back)

    def grouped(x: Any, back: bool = False) -> Any:
        count, groups = x.shape[0] // 8 or 1, min(8, x.shape[0])
        shaped, weight = x.view(count, groups, -1), floats(groups)
        sizes = (count, groups, x.shape[1])
        if not back:
            return lambda: aten.native_group_norm(shaped, weight, weight, *sizes, groups, 1e-5)
        made = aten.native_group_norm(shaped, weight, weight, *sizes, groups, 1e-5)
        return lambda: aten.native_group_norm_backward(
            shaped, shaped, made[1], made[2], weight, *sizes, groups, [True, True, True]
        )

    yield "group_norm", axes, on_rows(grouped)
    yield "group_norm_backward", axes, on_rows(lambda x: grouped(x, True))
    for layout in ("nchw", "nhwc"):
        formats = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        places = [[1024, 8192, 65_536, 1 << 18, 1 << 20], [16, 64, 256, 1024, 2048]]

        def batch_norm(at: int, channels: int, back: bool = False, formats: Any = formats) -> Any:
            if at * channels * 4 > _MOST_BYTES / 4:
                return None
            many = min(64, at // 64)
            side = math.isqrt(at // many)
            x = floats(many, channels, side, side).contiguous(memory_format=formats)
            ones = [torch.ones(channels, device="cuda") for _ in range(4)]
            made = aten.cudnn_batch_norm(x, *ones, True, 0.1, 1e-5)
            if not back:
                return lambda: aten.cudnn_batch_norm(x, *ones, True, 0.1, 1e-5)
            return lambda: aten.cudnn_batch_norm_backward(
                x, x, ones[0], None, None, made[1], made[2], 1e-5, made[3]
            )

        yield f"batch_norm/{layout}", places, batch_norm
        yield f"batch_norm_backward/{layout}", places, lambda *at, make=batch_norm: make(*at, True)

    def embedded(count: int, row: int) -> Any:
        table, at = floats(50_000, row), torch.randint(50_000, (count,), device="cuda")
        return lambda: torch.embedding(table, at)

    def embedded_back(count: int, table: int) -> Any:
        grad, at = floats(count, 64), torch.randint(table, (count,), device="cuda")
        return lambda: aten.embedding_dense_backward(grad, at, table, -1, False)

    yield "embedding", [[64, 4096, 65_536, 1 << 20], [16, 128, 1024]], embedded
    yield "embedding_backward", [[64, 4096, 65_536, 1 << 20], [1024, 65_536, 1 << 22]], embedded_back


def _attentions(torch: Any, kind: str, dtype: Any, floats: Callable[..., Any]) -> Iterator[Any]:
    for causal in (False, True):
        for back in (False, True):

            def attention(
                heads: int, length: int, width: int, causal: bool = causal, back: bool = back
            ) -> Any:
                if heads * length * length * width * 4 * (10 if kind == "float32" else 1) > 2 * _MOST_FLOPS:
                    return None
                q, k, v = (
                    floats(max(1, heads // 8), min(8, heads), length, width, dtype=dtype).requires_grad_(back)
                    for _ in range(3)
                )
                run = torch.nn.functional.scaled_dot_product_attention
                if not back:
                    return lambda: run(q, k, v, is_causal=causal)
                with torch.enable_grad():
                    made = run(q, k, v, is_causal=causal)
                grad = torch.empty_like(made)
                return lambda: torch.autograd.grad(made, (q, k, v), grad, retain_graph=True)

            name = f"attention{'_backward' if back else ''}/{kind}/{'causal' if causal else 'full'}"
            yield name, [[8, 64, 512], [64, 128, 256, 512, 1024, 2048, 4096], [32, 64, 128]], attention


def _recurrent(torch: Any, kind: str, dtype: Any, floats: Callable[..., Any]) -> Iterator[Any]:
    for back in (False, True):

        def lstm(length: int, batch: int, width: int, back: bool = back) -> Any:
            layer = torch.nn.LSTM(width, width, device="cuda", dtype=dtype)
            x = floats(length, batch, width, dtype=dtype).requires_grad_(back)
            if not back:
                return lambda: layer(x)
            with torch.enable_grad():
                made = layer(x)[0]
            over = (x, *layer.parameters())
            return lambda: torch.autograd.grad(made, over, made, retain_graph=True)

        yield (
            f"lstm{'_backward' if back else ''}/{kind}",
            [[16, 64, 256], [16, 128, 512], [64, 256, 512, 1024]],
            lstm,
        )


def _convolutions(torch: Any, kind: str, dtype: Any, floats: Callable[..., Any]) -> Iterator[Any]:
    """Yield convolutions by places (images × rows × columns of the result), channels in and channels out."""
    aten = torch.ops.aten
    for layout, back in itertools.product(("nchw", "nhwc"), (False, True)):
        formats = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        suffix = f"{'_backward' if back else ''}/{kind}/{layout}"

        def convolution(
            window: int,
            at: int,
            channels: int,
            made: int,
            groups: int,
            back: bool = back,
            formats: Any = formats,
        ) -> Any:
            flops = 2 * at * channels // groups * made * window**2
            if flops > _MOST_FLOPS or at * max(channels, made) * 4 > _MOST_BYTES / 2:
                return None
            many = min(64, at // 64)
            side = math.isqrt(at // many)
            x = floats(many, channels, side, side, dtype=dtype).contiguous(memory_format=formats)
            weight = floats(made, channels // groups, window, window, dtype=dtype)
            weight = weight.contiguous(memory_format=formats)
            half = window // 2
            how = ([1, 1], [half, half], [1, 1], False, [0, 0], groups)
            if not back:
                return lambda: aten.convolution(x, weight, None, *how)
            grad = floats(many, made, side, side, dtype=dtype).contiguous(memory_format=formats)
            needed = [channels > 4, True, False]
            return lambda: aten.convolution_backward(grad, x, weight, None, *how, needed)

        for window in (1, 3):
            axes = [[1 << power for power in range(11, 23, 2)], [3, 16, 64, 256, 1024], [16, 64, 256, 1024]]
            yield (
                f"conv{window}{suffix}",
                axes,
                lambda at, channels, made, window=window, run=convolution: run(window, at, channels, made, 1),
            )
        axes = [[1 << power for power in range(11, 20, 2)], [32, 128, 512], [3, 5, 7]]
        yield (
            f"depthwise{suffix}",
            axes,
            lambda at, channels, window, run=convolution: run(window, at, channels, channels, channels),
        )


#: Calls that are issued in a row, how often (the median counts), and in how many passes.
_ROW, _TIMES, _PASSES = 60, 7, 3
#: Calls of one kind in a row, between those of other kinds.
_AGAIN = 4


def _calls(torch: Any) -> Iterator[tuple[str, Callable[[], tuple[Callable[[Any], Any], Any]]]]:
    """Yield calls of the host, by the name that ``costs`` gives them: what makes a function and its first
    argument. The functions are chained, so that a backward pass has a node for each.
    """
    functional = torch.nn.functional

    def leaf(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", requires_grad=True)

    def plain(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda")

    def with_weights(make: Callable[..., Any], act: Callable[..., Any], first: Any) -> Any:
        weights = itertools.cycle([make() for _ in range(_ROW)])
        return (lambda y: act(y, *next(weights))), first

    square, images = (8, 8, 8, 8), (8, 64, 14, 14)
    other = plain(*square)
    yield "pointwise", lambda: (lambda y: y * 1.5, plain(*square))
    yield "pointwise_of_two", lambda: (lambda y: y + other, plain(*square))
    yield "activation", lambda: (functional.relu, plain(*square))
    yield "view", lambda: (lambda y: y.transpose(2, 3), plain(*square))
    yield (
        "copy",
        lambda: (lambda y: y.to(torch.float64 if y.dtype is torch.float32 else torch.float32), plain(8, 8)),
    )
    yield "contiguous", lambda: (lambda y: y.transpose(0, 1).contiguous(), plain(8, 8))
    yield "empty", lambda: (lambda y: torch.empty_like(y), plain(8, 8))
    yield "fill", lambda: (lambda y: torch.zeros_like(y), plain(8, 8))
    yield "cat", lambda: (lambda y: torch.cat([y[:4], other[:4]]), plain(*square))
    yield "reduction", lambda: (lambda y: y.sum(1, keepdim=True), plain(*square))
    yield "softmax", lambda: (lambda y: functional.softmax(y, -1), plain(8, 8))
    yield "dropout", lambda: (lambda y: functional.dropout(y, 0.1), plain(8, 8))
    yield (
        "embedding",
        lambda: (lambda y, at=torch.arange(8, device="cuda"): functional.embedding(at, y), plain(8, 8)),
    )
    yield "index", lambda: (lambda y, at=torch.arange(8, device="cuda"): y[at], plain(8, 8))
    yield (
        "layer_norm",
        lambda: with_weights(
            lambda: (leaf(8), leaf(8)), lambda y, w, b: functional.layer_norm(y, [8], w, b), plain(8, 8)
        ),
    )
    yield (
        "group_norm",
        lambda: with_weights(
            lambda: (leaf(8), leaf(8)), lambda y, w, b: functional.group_norm(y, 4, w, b), plain(*square)
        ),
    )
    running = plain(64), plain(64).abs()
    yield (
        "batch_norm",
        lambda: with_weights(
            lambda: (leaf(64), leaf(64)),
            lambda y, w, b: functional.batch_norm(y, *running, w, b, True),
            plain(*images),
        ),
    )
    yield "linear", lambda: with_weights(lambda: (leaf(8, 8), leaf(8)), functional.linear, plain(8, 8))
    yield "mm", lambda: with_weights(lambda: (leaf(8, 8),), lambda y, w: y @ w, plain(8, 8))
    yield "bmm", lambda: with_weights(lambda: (leaf(4, 8, 8),), lambda y, w: y @ w, plain(4, 8, 8))
    for name, shape, options in (
        ("conv", (64, 64, 3, 3), {}),
        ("conv_half", (64, 64, 3, 3), {"dtype": torch.float16}),
        ("depthwise", (64, 1, 3, 3), {"groups": 64}),
    ):

        def convolution(shape: Any = shape, groups: int = 1, dtype: Any = torch.float32) -> Any:
            layout = torch.contiguous_format if dtype is torch.float32 else torch.channels_last

            def made(*sizes: int) -> Any:
                return plain(*sizes).to(dtype).contiguous(memory_format=layout)

            def act(y: Any, weight: Any) -> Any:
                return functional.conv2d(y, weight, padding=1, groups=groups)

            return with_weights(lambda: (made(*shape).requires_grad_(),), act, made(*images))

        yield name, functools.partial(convolution, shape, **options)
    yield "max_pool", lambda: (lambda y: functional.max_pool2d(y, 3, 1, 1), plain(*square))
    yield (
        "upsample",
        lambda: (lambda y: functional.interpolate(y, size=(8, 8), mode="bilinear"), plain(*square)),
    )
    yield (
        "attention",
        lambda: (lambda y: functional.scaled_dot_product_attention(y, y, y), plain(2, 2, 16, 32).half()),
    )
    layer = torch.nn.TransformerEncoderLayer(64, 2, 64, batch_first=True, device="cuda").eval()
    yield (
        "encoder_layer",
        lambda: (lambda y: layer(y) if not torch.is_grad_enabled() else y * 1.5, plain(2, 4, 64)),
    )
    yield "module", lambda: (torch.nn.Identity(), plain(8, 8))
    yield (
        "index_add",
        lambda: (lambda y, at=torch.arange(8, device="cuda"): y.index_add(0, at, y), plain(8, 8)),
    )
    yield "scalar", lambda: (lambda y: y.sum(), plain(8, 8))
    yield "event", lambda: (lambda y, event=torch.cuda.Event(): event.record(), plain(1))
    pinned, there = torch.empty(64).pin_memory(), plain(64)
    yield "upload", lambda: (lambda y: pinned.to("cuda", non_blocking=True), None)
    yield "upload_into", lambda: (lambda y: there.copy_(pinned, non_blocking=True), None)


Call = tuple[str, Callable[[Any], Any], Any]


def _timed(torch: Any, run: Callable[[Any], Any], before: Callable[[], Any]) -> float:
    """Return the host's time of a call on what ``before`` returns, ns."""
    times = []
    for _ in range(_TIMES):
        given = before()
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        run(given)
        times.append(time.perf_counter_ns() - start)
    torch.cuda.synchronize()
    return statistics.median(times)


def _in_turn(torch: Any, calls: list[Call], grad: bool) -> dict[str, float]:
    """Return the host's time to issue each call, ns, some times in a row and after others: as in a program,
    its code is in the caches at times.
    """
    times: dict[str, list[float]] = {name: [] for name, _, _ in calls}
    with torch.set_grad_enabled(grad):
        for _ in range(_ROW):
            torch.cuda.synchronize()
            for name, act, first in calls:
                start = time.perf_counter_ns()
                for _ in range(_AGAIN):
                    act(first)
                times[name].append((time.perf_counter_ns() - start) / _AGAIN)
    return {name: statistics.median(of) for name, of in times.items()}


def _backward_of(torch: Any, calls: list[Call], chained: bool) -> float:
    """Return the host's time of the backward of these calls, ns, without what a pass takes to begin and to
    end.
    """

    def graph(many: int) -> Any:
        made = [first for _, _, first in calls]
        outs = list(made)
        for _ in range(many):
            for at, (_, act, first) in enumerate(calls):
                made[at] = act(made[at] if chained else first)
                outs.append(made[at])
        outs = made if chained else [out for out in outs[len(calls) :] if out.requires_grad]
        for parameter in (first for _, _, first in calls):
            parameter.grad = None
        for leaf in _leaves(outs):
            leaf.grad = None
        return outs, [torch.ones_like(out) for out in outs]

    few, many = (_ROW // 3, _ROW) if chained else (2, 6)
    short, long = (
        _timed(torch, lambda given: torch.autograd.backward(*given), functools.partial(graph, count))
        for count in (few, many)
    )
    return max(0.0, long - short) / (many - few)


def _needing_gradients(calls: list[Call]) -> list[Call]:
    return [
        (name, act, first.detach().clone().requires_grad_() if first is not None else None)
        for name, act, first in calls
    ]


def _chains(call: Call) -> bool:
    """Return whether the call's result, which has a gradient, may be its next argument."""
    _, act, first = call
    made = None if first is None else act(first)
    return made is not None and made.requires_grad and made.shape == first.shape and made is not first


def _mixed(torch: Any, calls: list[Call]) -> dict[str, float]:
    """Return the host's time of calls after each other, and of the backward of all of them, ns."""
    forward = sum(_in_turn(torch, calls, True).values())
    return {"forward": round(forward), "backward": round(_backward_of(torch, calls, False))}


def pace(torch: Any) -> float:
    """Return the host's time of some calls now, ns, to compare with that in a file of tables (``mixed``)."""
    calls = _needing_gradients([(name, *make()) for name, make in _calls(torch)])
    return sum(_mixed(torch, list(filter(_chains, calls))).values())


def _of_calls(torch: Any) -> dict[str, dict[str, float]]:
    """Return the host's times of all calls, and as ``mixed`` those of all of them together."""
    calls = [(name, *make()) for name, make in _calls(torch)]
    needs = _needing_gradients(calls)
    rows: dict[str, dict[str, float]] = {name: {} for name, _, _ in calls}
    for phase, of in (("forward", calls), ("grad", needs)):
        for name, ns in _in_turn(torch, of, phase == "grad").items():
            rows[name][phase] = round(ns)
    chains = list(filter(_chains, needs))
    alone = {call[0]: _backward_of(torch, [call], True) for call in chains}
    for name, ns in alone.items():
        rows[name]["backward"] = round(ns)
    return rows | {"mixed": _mixed(torch, chains)}


def _leaves(made: list[Any]) -> Iterator[Any]:
    """Yield the leaves that the graph of results accumulates gradients in."""
    left, seen = [one.grad_fn for one in made], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        left += [after for after, _ in node.next_functions]


def _amounts(torch: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the host's times of calls on several tensors: at least ``base``, and ``each`` for every tensor.
    """

    def fitted(time_of: Callable[[list[Any]], float]) -> dict[str, float]:
        few, many = 8, 128
        times = []
        for count in (few, many):
            parameters = [torch.nn.Parameter(torch.ones(64, device="cuda")) for _ in range(count)]
            times.append(time_of(parameters))
        each = max(0.0, (times[1] - times[0]) / (many - few))
        return {"base": round(max(0.0, times[0] - few * each)), "each": round(each, 1)}

    others = [(name, *make()) for name, make in _calls(torch)]

    def timed(run: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
        times = []
        for _ in range(_TIMES + 2):
            before()
            # As in a program, other calls come before.
            for _, act, first in others:
                act(first)
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            run()
            times.append(time.perf_counter_ns() - start)
        torch.cuda.synchronize()
        return statistics.median(times[2:])

    def give(parameters: list[Any]) -> None:
        for one in parameters:
            one.grad = torch.ones_like(one)

    optimizers = torch.optim
    kinds = {
        "SGD": lambda parameters: optimizers.SGD(parameters, lr=0.1),
        "SGD/momentum": lambda parameters: optimizers.SGD(parameters, lr=0.1, momentum=0.9),
        "Adam": lambda parameters: optimizers.Adam(parameters),
        "AdamW": lambda parameters: optimizers.AdamW(parameters),
        "AdamW/fused": lambda parameters: optimizers.AdamW(parameters, fused=True),
        "Adam/for": lambda parameters: optimizers.Adam(parameters, foreach=False),
    }
    for name, kind in kinds.items():

        def stepped(parameters: list[Any], kind: Any = kind) -> float:
            give(parameters)
            return timed(kind(parameters).step)

        yield f"step/{name}", fitted(stepped)

    def zeroed(parameters: list[Any]) -> float:
        optimizer = optimizers.SGD(parameters, lr=0.1)
        return timed(optimizer.zero_grad, lambda: give(parameters))

    def clipped(parameters: list[Any]) -> float:
        give(parameters)
        return timed(lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0))

    def backward(parameters: list[Any]) -> float:
        def before() -> None:
            loss[:] = [sum((one * 1.5 for one in parameters), parameters[0].sum()).sum()]
            for one in parameters:
                one.grad = None

        loss: list[Any] = []
        return timed(lambda: loss[0].backward(), before)

    def prefetched(tensors: list[Any]) -> float:
        batch = tuple(torch.ones(64).pin_memory() for _ in tensors)
        taken: deque[Any] = deque(maxlen=0)
        return timed(lambda: taken.extend(prefetch([batch] * _ROW, "cuda"))) / _ROW

    layer = torch.nn.LSTM(256, 256, device="cuda")

    def stepped_through(tensors: list[Any], back: bool = False) -> float:
        """An LSTM of as many steps as there are tensors."""
        x = torch.randn(len(tensors), 64, 256, device="cuda", requires_grad=True)
        made, over = layer(x)[0], (x, *layer.parameters())
        if not back:
            return timed(lambda: layer(x))
        return timed(lambda: torch.autograd.grad(made, over, made, retain_graph=True))

    yield "lstm", fitted(stepped_through)
    yield "lstm_backward", fitted(functools.partial(stepped_through, back=True))
    yield "prefetch", fitted(prefetched)
    yield "zero_grad", fitted(zeroed)
    yield "clip_grad_norm", fitted(clipped)
    yield "backward", fitted(backward)
    yield "foreach", fitted(lambda tensors: timed(lambda: torch._foreach_add([t.data for t in tensors], 1.0)))


def _link(torch: Any) -> dict[str, float]:
    """Return GB/s of copies of 64 MiB from and to pinned and pageable memory."""
    size = 64 << 20
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    rates = {}
    for name, here in (
        ("pinned", torch.ones(size, dtype=torch.uint8).pin_memory()),
        ("pageable", torch.ones(size, dtype=torch.uint8)),
    ):
        for way, (to, of) in {"upload": (there, here), "download": (here, there)}.items():
            times = []
            for _ in range(6):
                torch.cuda.synchronize()
                start = time.perf_counter_ns()
                to.copy_(of, non_blocking=True)
                torch.cuda.synchronize()
                times.append(time.perf_counter_ns() - start)
            rates[f"{name}_{way}_gb_s"] = round(size / statistics.median(times), 2)
    return rates


def _processor() -> str:
    """Return the name of the host's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write(path: str, tables: dict[str, Any]) -> None:
    """Write tables, a class in a line."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(value)}"
        for name, value in tables.items()
        if name not in ("kernels", "calls")
    ]
    for part in ("kernels", "calls"):
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in tables[part].items())
        lines.append(f'"{part}": {{\n{rows}\n}}')
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")
