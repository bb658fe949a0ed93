"""Racy programs with their fixed twins, and correct programs. Their work is more than operators: Triton
kernels, compiled functions, collectives, threads.

``check_gpu.py`` runs them. Those with Triton need a GPU; the others run on a simulated one as well.
"""

from __future__ import annotations

import _thread
import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch
from planted.planting import N, into, side_after_main, side_and_main
from torch import nn

PLANTED: list[Callable[[bool], None]] = []
planted = into(PLANTED)
#: Correct programs. Each takes a number of steps.
LOOPS: list[Callable[[int], None]] = []
right = into(LOOPS)
#: The programs that a simulated GPU refuses.
PLANTED_ON_GPU: list[Callable[[bool], None]] = []
LOOPS_ON_GPU: list[Callable[[int], None]] = []


# ---------------------------------------------------------------- threads


@planted
def a_thread_handover_that_is_not_reported(right: bool) -> None:
    """A warning: two threads submit to one stream, in the order in which they happen to run."""
    x = torch.zeros(N, device="cuda")
    done: queue.Queue[int] = queue.Queue()
    # The check does not observe this lock of the interpreter: the order is the same in both variants, and
    # reported in one.
    lock = _thread.allocate_lock()
    lock.acquire()

    def work() -> None:
        x.add_(1)
        done.put(1)
        lock.release()

    thread = threading.Thread(target=work)
    thread.start()
    lock.acquire()
    if right:
        done.get()
    x.sum()
    thread.join()


@planted
def a_thread_that_waits_for_the_device(right: bool) -> None:
    """A warning: another thread makes the stream wait, and this thread does not wait for that thread."""
    x = torch.zeros(N, device="cuda")
    side, main = side_after_main()
    event = threading.Event()
    lock = _thread.allocate_lock()
    lock.acquire()

    def work() -> None:
        with torch.cuda.stream(side):
            x.add_(1)
        side.synchronize()
        event.set()
        lock.release()

    thread = threading.Thread(target=work)
    thread.start()
    lock.acquire()
    if right:
        event.wait()
    x.sum()
    thread.join()


@planted
def a_pool_that_is_not_asked(right: bool) -> None:
    x = torch.zeros(N, device="cuda")
    lock = _thread.allocate_lock()
    lock.acquire()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        future = pool.submit(lambda: (x.mul_(2), lock.release()))  # type: ignore[func-returns-value]
        lock.acquire()
        if right:
            future.result()
        x.sum()


@right
def pool_loop(steps: int) -> None:
    """Pool workers make batches on separate streams, and hand over an event after each."""
    main = torch.cuda.current_stream()
    streams = threading.local()
    weights = torch.randn(64, 64, device="cuda")
    main.synchronize()

    def make(at: int) -> Any:
        if not hasattr(streams, "own"):
            streams.own = torch.cuda.Stream()
        with torch.cuda.stream(streams.own):
            x = torch.full((64, 64), float(at % 3)).pin_memory().to("cuda", non_blocking=True) @ weights
            return x, streams.own.record_event()

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        waiting: list[Any] = []
        for at in range(steps + 4):
            if at < steps:
                waiting.append(pool.submit(make, at))
            if at >= 4:
                x, event = waiting.pop(0).result()
                main.wait_event(event)
                x.record_stream(main)
                x.sum()


@right
def ring_loop(steps: int) -> None:
    """Two threads share a ring of pinned and device buffers by semaphores, and a sum by a lock.
    """
    depth = 3
    hosts = [torch.zeros(64, 64, pin_memory=True) for _ in range(depth)]
    devices = [torch.empty(64, 64, device="cuda") for _ in range(depth)]
    total = torch.zeros((), device="cuda")
    side, main = side_after_main()
    full, empty, lock = threading.Semaphore(0), threading.Semaphore(depth), threading.Lock()
    copied = [torch.cuda.Event() for _ in range(depth)]
    used = [torch.cuda.Event() for _ in range(depth)]

    def feed() -> None:
        for at in range(steps):
            empty.acquire()
            slot = at % depth
            if at >= depth:
                copied[slot].synchronize()
            hosts[slot].fill_(at % 5)
            with torch.cuda.stream(side):
                if at >= depth:
                    side.wait_event(used[slot])
                devices[slot].copy_(hosts[slot], non_blocking=True)
                copied[slot].record()
            with lock, torch.cuda.stream(main):
                total.add_(1)
            full.release()

    thread = threading.Thread(target=feed)
    thread.start()
    for at in range(steps):
        full.acquire()
        slot = at % depth
        main.wait_event(copied[slot])
        part = devices[slot].sum()
        used[slot].record()
        with lock:
            total.add_(part)
        empty.release()
    thread.join()
    total.item()


# ---------------------------------------------------------------- torch.compile


def shrunk(x: Any, w: Any) -> Any:
    return torch.relu(x @ w).sin().sum(0) * 2


def compiled() -> Any:
    # Compiled in each call: each program must give equal findings on a GPU of its own.
    return torch.compile(shrunk)


@planted
def a_compiled_result_read_too_early(right: bool) -> None:
    side, main = side_and_main()
    x, w = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    run = compiled()
    run(x, w)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = run(x, w)
    if right:
        main.wait_stream(side)
    y.sum()
    main.wait_stream(side)


@planted
def an_input_of_a_compiled_function_filled_again(right: bool) -> None:
    side, main = side_and_main()
    x, w = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    run = compiled()
    run(x, w)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        run(x, w)
    if right:
        main.wait_stream(side)
    x.zero_()
    main.wait_stream(side)


@planted
def a_compiled_gradient_read_too_early(right: bool) -> None:
    side, main = side_and_main()
    x, w = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda", requires_grad=True)
    compiled()(x, w).sum().backward()
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        assert w.grad is not None
        w.grad.mul_(2)
    main.wait_stream(side)


@right
def compiled_loop(steps: int) -> None:
    """A compiled model, forward and backward, and batches that are copied ahead on a separate stream.
    """
    side, main = side_and_main()
    model: Any = torch.compile(
        nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)).cuda()
    )
    optimizer = torch.optim.AdamW(model.parameters())
    hosts = [torch.randn(32, 64).pin_memory() for _ in range(3)]
    ready = None
    for at in range(steps + 1):
        fresh = None
        if at < steps:
            with torch.cuda.stream(side):
                fresh = hosts[at % 3].to("cuda", non_blocking=True)
        if ready is not None:
            main.wait_stream(side)
            ready.record_stream(main)
            optimizer.zero_grad()
            model(ready).square().mean().backward()
            optimizer.step()
        ready = fresh


# ---------------------------------------------------------------- collectives


def group() -> Any:
    """Make a process group of this process alone: with NCCL, or with Gloo if the GPU is simulated."""
    from torch import distributed

    if not distributed.is_initialized():
        simulated = torch.cuda.Stream.__module__.startswith("sidestream.")
        distributed.init_process_group(
            "gloo" if simulated else "nccl", store=distributed.HashStore(), rank=0, world_size=1
        )
    return distributed


@planted
def a_collective_that_is_not_waited_for(right: bool) -> None:
    distributed = group()
    x = torch.ones(N, device="cuda")
    work = distributed.all_reduce(x, async_op=True)
    if right:
        work.wait()
    x.mul_(2)
    work.wait()


@planted
def a_source_of_a_collective_filled_again(right: bool) -> None:
    distributed = group()
    x, out = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")
    work = distributed.all_gather_into_tensor(out, x, async_op=True)
    if right:
        work.wait()
    x.zero_()
    work.wait()


@planted
def a_collective_waited_for_on_another_stream(right: bool) -> None:
    distributed = group()
    x = torch.ones(N, device="cuda")
    side, main = side_after_main()
    work = distributed.all_reduce(x, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
    if right:
        main.wait_stream(side)
    x.sum()
    main.wait_stream(side)


@right
def collectives_loop(steps: int) -> None:
    """Gradients are summed over all ranks while backward's next step is pending, and weights are gathered
    ahead.
    """
    distributed = group()
    model = nn.Linear(64, 64).cuda()
    shard, whole = torch.randn(1024, device="cuda"), torch.empty(1024, device="cuda")
    for _ in range(steps):
        ahead = distributed.all_gather_into_tensor(whole, shard, async_op=True)
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        works = [distributed.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.sub_(p.grad, alpha=0.01)
                p.grad = None
        ahead.wait()
        shard.add_(whole, alpha=0.001)


# ---------------------------------------------------------------- Triton


def doubled(x: Any, out: Any, count: int, first: int = 0) -> None:
    """Double `count` numbers, beginning at index `first`."""
    from planted.triton_kernel import double

    double[(-(-count // 1024),)](x, out, first + count, first, BLOCK=1024)


@into(PLANTED_ON_GPU)
def a_result_of_triton_read_too_early(right: bool) -> None:
    """A warning: the check does not know how far the kernel reaches."""
    x, out = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")
    side, main = side_after_main()
    with torch.cuda.stream(side):
        doubled(x, out, N)
    if right:
        main.wait_stream(side)
    out.sum()
    main.wait_stream(side)


@into(PLANTED_ON_GPU)
def a_source_of_triton_filled_again(right: bool) -> None:
    x, out = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")
    side, main = side_after_main()
    with torch.cuda.stream(side):
        doubled(x, out, N)
    if right:
        main.wait_stream(side)
    x.zero_()
    main.wait_stream(side)


@into(PLANTED_ON_GPU)
def two_kernels_of_triton_on_one_tensor(right: bool) -> None:
    """With views of the two halves there is no race. If the kernels find the halves by a number, there is one
    warning.
    """
    x, out = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")
    side, main = side_after_main()
    for _ in range(3):
        with torch.cuda.stream(side):
            doubled(x, out[: N // 2] if right else out, N // 2)
        if right:
            doubled(x[N // 2 :], out[N // 2 :], N // 2)
        else:
            doubled(x, out, N // 2, N // 2)
    main.wait_stream(side)


@into(LOOPS_ON_GPU)
def triton_loop(steps: int) -> None:
    """A Triton kernel on a separate stream between two PyTorch kernels."""
    side, main = side_and_main()
    x, out = torch.ones(4096, device="cuda"), torch.empty(4096, device="cuda")
    for at in range(steps):
        x.fill_(at % 7)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            doubled(x, out, 4096)
        main.wait_stream(side)
        out.sum()
