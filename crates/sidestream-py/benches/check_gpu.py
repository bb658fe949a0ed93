"""What ``sidestream.check`` costs and finds on a machine with a GPU.

    python check_gpu.py            # everything, one JSON object a line
    python check_gpu.py step       # what a training step takes: plain, checked, under PyTorch's sanitizer
    python check_gpu.py loops      # a thousand right steps of several programs: no report may come
    python check_gpu.py planted    # racy loops and their repaired twins
    python check_gpu.py host       # what a copy costs more where the host's own accesses are heard

A part that fails says so in its line; the others run all the same.
"""

from __future__ import annotations

import ctypes
import gc
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from planted_backward import PLANTED as BACKWARD
from planted_programs import LOOPS as PROGRAMS
from planted_programs import PLANTED as OTHERS
from torch import nn
from training_loops import checkpoint_loop, embedding_loop, loader_loop, offload_loop, recurrent_loop

STEPS = 1000


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def guarded(part: str, name: str, run: Callable[[], dict[str, Any]]) -> None:
    try:
        say(part=part, name=name, **run())
    except BaseException as error:
        text = traceback.format_exc()[-1500:]
        say(part=part, name=name, error=f"{type(error).__name__}: {error}"[:2000], trace=text)
        if isinstance(error, KeyboardInterrupt):
            raise


# ---------------------------------------------------------------- (a) what a step takes


def mlp_step() -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(512, 512), nn.ReLU())]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 512, device="cuda"), torch.randn(64, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step


def timed(step: Callable[[], None], steps: int = 50, rounds: int = 9) -> dict[str, Any]:
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / steps * 1e3)
    return {"step_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times)}


def step_alone(how: str) -> dict[str, Any]:
    step = mlp_step()
    if how == "plain":
        return timed(step)
    if how == "csan":
        import torch.cuda._sanitizer as sanitizer

        sanitizer.enable_cuda_sanitizer()
        return timed(step, steps=5, rounds=7)
    if how == "mode":
        from torch.utils._python_dispatch import TorchDispatchMode

        class Empty(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return func(*args, **(kwargs or {}))

        with Empty():
            return timed(step)
    import sidestream

    with sidestream.check(stacks=how != "check_without_stacks", host=how != "check_without_host") as found:
        took = timed(step)
    return {**took, "host": str(found.host), "races": len(found.races), "operations": found.operations, "ended": found.ended}


def steps() -> None:
    medians: dict[str, float] = {}
    for how in ("plain", "check", "check_without_stacks", "check_without_host", "mode", "csan", "plain_again"):

        def run(how: str = how) -> dict[str, Any]:
            command = [sys.executable, __file__, "step_alone", how.removesuffix("_again")]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if ran.returncode:
                return {"error": ran.stderr[-2000:]}
            result: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
            medians[how] = result["step_ms"]
            if "plain" in medians:
                result["ratio"] = result["step_ms"] / medians["plain"]
            return result

        guarded("step", how, run)


# ---------------------------------------------------------------- (b) right programs


def loader(shape: tuple[int, ...], classes: int, steps: int) -> Any:
    class Data(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return steps * 16

        def __getitem__(self, at: int) -> Any:
            return torch.full(shape, at % 7 / 7.0), at % classes

    return torch.utils.data.DataLoader(Data(), batch_size=16, pin_memory=True)


def mlp_loop(steps: int) -> None:
    """Pinned batches copied without waiting, and gradients of four steps together."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for at, (x, y) in enumerate(loader((64,), 10, steps)):
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), y) / 4
        loss.backward()
        if at % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        if at % 50 == 0:
            loss.item()


def cnn_loop(steps: int) -> None:
    """The next batch is copied on a stream of its own."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    side = torch.cuda.Stream()
    main = torch.cuda.current_stream()
    ready = None
    for batch in [*loader((3, 16, 16), 10, steps), None]:
        fresh = None
        if batch is not None:
            with torch.cuda.stream(side):
                fresh = [part.to("cuda", non_blocking=True) for part in batch]
        if ready is not None:
            main.wait_stream(side)
            for part in ready:
                part.record_stream(main)
            x, y = ready
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        ready = fresh


def transformer_loop(steps: int) -> None:
    """Mixed precision with a scaler, and results that are fetched without waiting."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(32, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    landing = torch.empty(2, pin_memory=True)
    landed = [torch.cuda.Event(), torch.cuda.Event()]
    for at, (x, y) in enumerate(loader((8, 32), 10, steps)):
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x)[:, 0], y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        slot = at % 2
        if at >= 2:
            landed[slot].synchronize()
            landing[slot].item()
        landing[slot].copy_(loss.detach(), non_blocking=True)
        landed[slot].record()


def streams_loop(steps: int) -> None:
    """Two branches on streams of their own, forward and backward, and memory that moves between them."""
    left, right = nn.Linear(64, 64).cuda(), nn.Linear(64, 64).cuda()
    head = nn.Linear(128, 1).cuda()
    parameters = [*left.parameters(), *right.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    main = torch.cuda.current_stream()
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(32, 64, device="cuda")
        results = []
        for stream, branch in ((one, left), (two, right)):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                results.append(branch(x).relu())
            x.record_stream(stream)
        for stream, result in zip((one, two), results, strict=True):
            main.wait_stream(stream)
            result.record_stream(main)
        head(torch.cat(results, 1)).mean().backward()
        optimizer.step()


def graph_loop(steps: int) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    x = torch.zeros(16, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model(x)
    total = torch.zeros((), device="cuda")
    for at in range(steps):
        x.fill_(at % 5)
        graph.replay()
        total += y.sum()
    total.item()


def thread_loop(steps: int) -> None:
    """A thread uploads, and hands over tensors with the event behind them."""
    ready: queue.Queue[Any] = queue.Queue(2)
    side = torch.cuda.Stream()

    def feed() -> None:
        with torch.cuda.stream(side):
            for at in range(steps):
                x = torch.full((64, 64), float(at % 3)).pin_memory().to("cuda", non_blocking=True)
                ready.put((x, side.record_event()))
        ready.put(None)

    thread = threading.Thread(target=feed)
    thread.start()
    weights = torch.randn(64, 64, device="cuda")
    main = torch.cuda.current_stream()
    while (item := ready.get()) is not None:
        x, event = item
        main.wait_event(event)
        x.record_stream(main)
        (x @ weights).sum()
    thread.join()


def prefetch_loop(steps: int) -> None:
    import sidestream

    weights = torch.randn(64, 64, device="cuda")
    batches = ((torch.full((16, 64), float(at % 5)), torch.arange(16)) for at in range(steps))
    double = lambda batch: (batch[0] * 2, batch[1])
    prefetch: Any = getattr(sidestream, "prefetch")
    for x, y in prefetch(batches, "cuda", depth=2, transform=double):
        x.add_(1)
        (x @ weights).sum() + y.sum()


LOOPS = (
    mlp_loop,
    cnn_loop,
    transformer_loop,
    streams_loop,
    graph_loop,
    thread_loop,
    prefetch_loop,
    recurrent_loop,
    embedding_loop,
    checkpoint_loop,
    offload_loop,
    loader_loop,
)


def loops() -> None:
    import sidestream

    for loop in (*LOOPS, *PROGRAMS):

        def run(loop: Callable[[int], None] = loop) -> dict[str, Any]:
            torch.cuda.synchronize()
            start = time.perf_counter()
            loop(100)
            torch.cuda.synchronize()
            plain = (time.perf_counter() - start) / 100
            start = time.perf_counter()
            with sidestream.check() as found:
                loop(STEPS)
                torch.cuda.synchronize()
            took = (time.perf_counter() - start) / STEPS
            return {
                "steps": STEPS,
                "races": len(found.races),
                "ok": not found.races and found.ended is None,
                "operations": found.operations,
                "plain_step_ms": plain * 1e3,
                "checked_step_ms": took * 1e3,
                "ended": found.ended,
                "host": str(found.host),
                "lints": sorted({lint.code for lint in found.lints}),
                "report": str(found)[:6000] if found.races else "",
            }

        guarded("loop", loop.__name__, run)


# ---------------------------------------------------------------- (c) planted races

N = 1 << 20
PLANTED: list[Callable[[bool], None]] = []


def planted(program: Callable[[bool], None]) -> Callable[[bool], None]:
    PLANTED.append(program)
    return program


def side_and_main() -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    return torch.cuda.Stream(), torch.cuda.current_stream()


@planted
def double_buffer_without_a_wait(right: bool) -> None:
    """The exercise of a tutorial, first mistake."""
    side, main = side_and_main()
    host = [torch.zeros(N, pin_memory=True) for _ in range(2)]
    dev = [torch.empty(N, device="cuda") for _ in range(2)]
    side.wait_stream(main)
    for step in range(4):
        with torch.cuda.stream(side):
            dev[step % 2].copy_(host[step % 2], non_blocking=True)
        if right:
            main.wait_stream(side)
        dev[step % 2].sum()
        side.wait_stream(main)


@planted
def double_buffer_filled_again_too_early(right: bool) -> None:
    side, main = side_and_main()
    host = [torch.zeros(N, pin_memory=True) for _ in range(2)]
    dev = [torch.empty(N, device="cuda") for _ in range(2)]
    side.wait_stream(main)
    for step in range(4):
        with torch.cuda.stream(side):
            dev[step % 2].copy_(host[step % 2], non_blocking=True)
        main.wait_stream(side)
        dev[step % 2].sum()
        if right:
            side.wait_stream(main)


@planted
def transform_recorded_on_its_own_stream(right: bool) -> None:
    """A blog's loop: the tensor is recorded on the stream that made it, not on the one that uses it."""
    transform, model = torch.cuda.Stream(), torch.cuda.Stream()
    transform.wait_stream(torch.cuda.current_stream())
    model.wait_stream(torch.cuda.current_stream())
    transformed = None
    for _ in range(6):
        if transformed is not None:
            with torch.cuda.stream(model):
                model.wait_stream(transform)
                (transformed * 2).sum()
        with torch.cuda.stream(transform):
            # The name is given up before the next is made, so the memory is used again at once.
            old, transformed = transformed, None
            if old is not None:
                old.record_stream(model if right else transform)
            del old
            transformed = torch.full((N,), 1.0, device="cuda")


@planted
def a_record_before_the_work(right: bool) -> None:
    side, main = side_and_main()
    x = torch.zeros(N, device="cuda")
    side.wait_stream(main)
    event = torch.cuda.Event()
    with torch.cuda.stream(side):
        event.record()
        x.fill_(1)
        if right:
            event.record()
    main.wait_event(event)
    x.sum()


@planted
def the_wrong_event(right: bool) -> None:
    side, main = side_and_main()
    x = torch.zeros(N, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        before = side.record_event()
        x.fill_(1)
        after = side.record_event()
    main.wait_event(after if right else before)
    x.sum()


@planted
def wait_stream_too_early(right: bool) -> None:
    side, main = side_and_main()
    x = torch.zeros(N, device="cuda")
    side.wait_stream(main)
    main.wait_stream(side)
    with torch.cuda.stream(side):
        x.mul_(2)
    if right:
        main.wait_stream(side)
    x.sum()


@planted
def an_event_recorded_again(right: bool) -> None:
    side, main = side_and_main()
    third = torch.cuda.Stream()
    x = torch.zeros(N, device="cuda")
    side.wait_stream(main)
    event = torch.cuda.Event()
    with torch.cuda.stream(side):
        x.fill_(1)
        event.record()
    if right:
        main.wait_event(event)
    event.record(third)
    main.wait_event(event)
    x.sum()


@planted
def memory_used_again_without_record_stream(right: bool) -> None:
    side, main = side_and_main()
    x = torch.ones(N, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = x * 2
    if right:
        x.record_stream(side)
    del x
    torch.zeros(N, device="cuda")
    del y


@planted
def memory_used_again_without_the_homes_wait(right: bool) -> None:
    side, main = side_and_main()
    x = torch.ones(N, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = x * 2
    if right:
        main.wait_stream(side)
    del x
    torch.zeros(N, device="cuda")
    del y


@planted
def first_use_on_a_side_stream(right: bool) -> None:
    side, main = side_and_main()
    x = torch.ones(N, device="cuda")
    del x
    y = torch.empty(N, device="cuda")
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        y.fill_(1)
    main.wait_stream(side)


@planted
def a_download_read_too_early(right: bool) -> None:
    host = torch.empty(N, pin_memory=True)
    x = torch.ones(N, device="cuda")
    host.copy_(x, non_blocking=True)
    if right:
        torch.cuda.current_stream().synchronize()
    host.sum()


@planted
def to_cpu_without_waiting(right: bool) -> None:
    x = torch.ones(N, device="cuda")
    host = x.to("cpu", non_blocking=True)
    if right:
        torch.cuda.synchronize()
    host.mean()


@planted
def tolist_too_early(right: bool) -> None:
    host = torch.empty(16, pin_memory=True)
    x = torch.ones(16, device="cuda")
    host.copy_(x, non_blocking=True)
    if right:
        event = torch.cuda.current_stream().record_event()
        event.synchronize()
    host.tolist()


@planted
def a_source_filled_again_too_early(right: bool) -> None:
    host = torch.zeros(N, pin_memory=True)
    x = torch.empty(N, device="cuda")
    for at in range(3):
        host.fill_(at)
        x.copy_(host, non_blocking=True)
        event = torch.cuda.current_stream().record_event()
        if right:
            event.synchronize()


@planted
def a_landing_place_written_too_early(right: bool) -> None:
    host = torch.zeros(N, pin_memory=True)
    x = torch.ones(N, device="cuda")
    host.copy_(x, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    host.zero_()


@planted
def a_query_that_is_not_asked(right: bool) -> None:
    host = torch.zeros(N, pin_memory=True)
    x = torch.empty(N, device="cuda")
    x.copy_(host, non_blocking=True)
    event = torch.cuda.current_stream().record_event()
    while right and not event.query():
        pass
    host.fill_(1)


@planted
def slices_that_overlap(right: bool) -> None:
    side, main = side_and_main()
    x = torch.zeros(N, device="cuda")
    side.wait_stream(main)
    middle = N // 2
    with torch.cuda.stream(side):
        x[: middle + (0 if right else 7)].fill_(1)
    x[middle:].fill_(2)
    main.wait_stream(side)


@planted
def columns_that_overlap(right: bool) -> None:
    side, main = side_and_main()
    x = torch.zeros(1024, 64, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        x[:, : 32 if right else 33].fill_(1)
    x[:, 32:].fill_(2)
    main.wait_stream(side)


@planted
def a_chain_of_three_with_a_gap(right: bool) -> None:
    side, main = side_and_main()
    third = torch.cuda.Stream()
    x = torch.zeros(N, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        x.fill_(1)
    if right:
        third.wait_stream(side)
    main.wait_stream(third)
    x.sum()
    main.wait_stream(side)


@planted
def a_list_of_tensors(right: bool) -> None:
    side, main = side_and_main()
    every = [torch.ones(1000, device="cuda") for _ in range(20)]
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        torch._foreach_mul_(every, 2.0)
    main.wait_stream(side)


@planted
def a_graph_beside_its_input(right: bool) -> None:
    side, main = side_and_main()
    x = torch.zeros(N, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    x.fill_(1)
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        graph.replay()
    main.wait_stream(side)
    y.sum()


@planted
def a_graphs_result_read_too_early(right: bool) -> None:
    side, main = side_and_main()
    x = torch.zeros(N, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        graph.replay()
    if right:
        main.wait_stream(side)
    y.sum()
    main.wait_stream(side)


@planted
def an_optimizer_on_a_stream_of_its_own(right: bool) -> None:
    side, main = side_and_main()
    model = nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(8, 256, device="cuda")).sum().backward()
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        optimizer.step()
    main.wait_stream(side)


@planted
def gradients_read_too_early(right: bool) -> None:
    side, main = side_and_main()
    weight = torch.ones(N, device="cuda", requires_grad=True)
    (weight * 2).sum().backward()
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.norm(weight.grad)
    main.wait_stream(side)


@planted
def statistics_of_batch_norm(right: bool) -> None:
    """They are written by an operator whose schema does not say so."""
    side, main = side_and_main()
    norm = nn.BatchNorm2d(8).cuda()
    x = torch.ones(4, 8, 16, 16, device="cuda")
    side.wait_stream(main)
    norm(x)
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.clone(norm.running_mean)
    main.wait_stream(side)


@planted
def written_in_place_while_read(right: bool) -> None:
    side, main = side_and_main()
    x = torch.ones(N, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = x.exp()
    if right:
        main.wait_stream(side)
    x.add_(1)
    main.wait_stream(side)
    y.sum()


@planted
def uploaded_by_a_thread(right: bool) -> None:
    side, main = side_and_main()
    host = torch.zeros(N, pin_memory=True)
    ready: queue.Queue[Any] = queue.Queue()

    def feed() -> None:
        with torch.cuda.stream(side):
            x = host.to("cuda", non_blocking=True)
            ready.put((x, side.record_event()))

    thread = threading.Thread(target=feed)
    thread.start()
    x, event = ready.get()
    thread.join()
    if right:
        main.wait_event(event)
    x.sum()
    main.wait_event(event)


@planted
def gathered_by_an_index(right: bool) -> None:
    side, main = side_and_main()
    table = torch.zeros(1000, 64, device="cuda")
    at = torch.arange(100, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        table.index_fill_(0, at, 1.0)
    if right:
        main.wait_stream(side)
    nn.functional.embedding(at, table)
    main.wait_stream(side)


@planted
def graphs_captured_on_one_stream(right: bool) -> None:
    """`torch.cuda.graph` captures on one stream of its own, whose cuBLAS workspace both graphs keep.

    The products are too small to use it: with larger ones the results would be wrong (`real_gpu.py workspaces`).
    """
    side, main = side_and_main()
    x = torch.ones(64, 64, device="cuda")
    side.wait_stream(main)
    graphs = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream() if right else None):
            torch.mm(x, x)
        graphs.append(graph)
    graphs[0].replay()
    with torch.cuda.stream(side):
        graphs[1].replay()
    main.wait_stream(side)


@planted
def across_devices(right: bool) -> None:
    if torch.cuda.device_count() < 2:
        raise RuntimeError("needs two GPUs")
    x = torch.ones(N, device="cuda:1")
    y = torch.empty(N, device="cuda:0")
    third = torch.cuda.Stream(0)
    y.copy_(x, non_blocking=True)
    if right:
        third.wait_stream(torch.cuda.current_stream(0))
    with torch.cuda.stream(third):
        y.sum()
    torch.cuda.current_stream(0).wait_stream(third)


@planted
def filled_again_by_numpy(right: bool) -> None:
    host = torch.zeros(N, pin_memory=True)
    array = host.numpy()
    x = torch.empty(N, device="cuda")
    event = torch.cuda.Event()
    for at in range(3):
        array[1000:2000] = at
        x.copy_(host, non_blocking=True)
        event.record()
        if right:
            event.synchronize()


@planted
def filled_again_by_c(right: bool) -> None:
    host = torch.zeros(N, pin_memory=True)
    other = torch.ones(N)
    x = torch.empty(N, device="cuda")
    x.copy_(host, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    ctypes.memmove(host.data_ptr(), other.data_ptr(), 4 * N)


@planted
def filled_again_from_a_file(right: bool) -> None:
    """The contents are compared as well: a call that failed would leave zeros."""
    host = torch.zeros(N, pin_memory=True)
    x = torch.empty(N, device="cuda")
    data = torch.arange(N, dtype=torch.float32)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data.numpy().tobytes())
        file.flush()
        x.copy_(host, non_blocking=True)
        if right:
            torch.cuda.synchronize()
        with open(file.name, "rb", buffering=0) as opened:
            got = opened.readinto(memoryview(host.numpy()).cast("B"))
    if got != 4 * N or not torch.equal(host, data):
        raise AssertionError(f"{got} bytes came, of {4 * N}")


@planted
def a_download_read_too_early_by_numpy(right: bool) -> None:
    host = torch.empty(N, pin_memory=True)
    x = torch.ones(N, device="cuda")
    torch.cuda.synchronize()
    host.copy_(x, non_blocking=True)
    if right:
        torch.cuda.current_stream().synchronize()
    float(host.numpy()[N // 2])


@planted
def a_small_source_filled_again_by_numpy(right: bool) -> None:
    """Pinned tensors of 512 bytes and less, eight to a page."""
    every = [torch.zeros(16, pin_memory=True) for _ in range(8)]
    x = torch.empty(16, device="cuda")
    for host in every[:4]:
        x.copy_(host, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    every[2].numpy()[3] = 1


@planted
def a_registered_source_filled_again(right: bool) -> None:
    """Memory of the program's own that is pinned where it is."""
    host = torch.zeros(N)
    runtime = torch.cuda.cudart()
    runtime.cudaHostRegister(host.data_ptr(), 4 * N, 0)
    x = torch.empty(N, device="cuda")
    x.copy_(host, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    host.numpy()[N // 2] = 1
    torch.cuda.synchronize()
    runtime.cudaHostUnregister(host.data_ptr())


def host_copies() -> None:
    """What a copy costs more where its memory is watched, and whether what arrives is right."""
    import sidestream

    for size in (512, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20):

        def run(size: int = size) -> dict[str, Any]:
            host = torch.arange(size // 4, dtype=torch.int32).pin_memory()
            x = torch.zeros(size // 4, dtype=torch.int32, device="cuda")
            back = torch.zeros(size // 4, dtype=torch.int32, pin_memory=True)
            count = 1000 if size <= 1 << 20 else 20
            result: dict[str, Any] = {"bytes": size}
            for turn in range(2):
                for how in (False, True):
                    with sidestream.check(host=how) as found:
                        times = []
                        for _ in range(count):
                            start = time.perf_counter()
                            x.copy_(host, non_blocking=True)
                            submitted = time.perf_counter()
                            torch.cuda.current_stream().synchronize()
                            times.append((submitted - start, time.perf_counter() - start))
                        back.copy_(x, non_blocking=True)
                        torch.cuda.synchronize()
                        right = bool((back.numpy() == host.numpy()).all())
                    name = "watched" if how else "plain"
                    result[f"{name}_{turn}_us"] = statistics.median(took for took, _ in times) * 1e6
                    result[f"{name}_{turn}_with_the_wait_us"] = statistics.median(took for _, took in times) * 1e6
                    result["ok"] = result.get("ok", True) and right and not found.races
                    if how:
                        result["unwatched_share"] = found.host.unwatched_bytes / max(found.host.bytes, 1)
                        result["problem"] = found.host.problem
            result["more_us"] = min(result["watched_0_us"], result["watched_1_us"]) - min(result["plain_0_us"], result["plain_1_us"])
            return result

        guarded("host", f"{size} bytes", run)


def plants() -> None:
    import sidestream

    for program in (*PLANTED, *BACKWARD, *OTHERS):

        def run(program: Callable[[bool], None] = program) -> dict[str, Any]:
            kinds = []
            texts = []
            for right in (False, True):
                torch.cuda.synchronize()
                gc.collect()
                with sidestream.check() as found:
                    program(right)
                    torch.cuda.synchronize()
                kinds.append(sorted({race.kind for race in found.races}))
                texts.append(str(found))
            ok = bool(kinds[0]) and not kinds[1]
            return {"ok": ok, "racy": kinds[0], "repaired": kinds[1], "report": "" if ok else "\n\n".join(texts)[:6000]}

        guarded("planted", program.__name__, run)


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what == "step_alone":
        print(json.dumps(step_alone(sys.argv[2])), flush=True)
        return
    guarded("machine", torch.cuda.get_device_name(), lambda: {"torch": torch.__version__, "python": sys.version.split()[0]})
    if what in ("all", "step"):
        steps()
    if what in ("all", "planted"):
        plants()
    if what in ("all", "host"):
        host_copies()
    if what in ("all", "loops"):
        loops()


if __name__ == "__main__":
    main()
