"""Racy programs of one or two threads and their fixed twins, with streams, memory, graphs and the host's
own accesses: for ``check_gpu.py planted``.
"""

from __future__ import annotations

import ctypes
import queue
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import torch
from planted.planting import N, into, side_after_main, side_and_main
from torch import nn

PLANTED: list[Callable[[bool], None]] = []
planted = into(PLANTED)


@planted
def double_buffer_without_a_wait(right: bool) -> None:
    """The first mistake of a tutorial's exercise."""
    host = [torch.zeros(N, pin_memory=True) for _ in range(2)]
    dev = [torch.empty(N, device="cuda") for _ in range(2)]
    side, main = side_after_main()
    for step in range(4):
        with torch.cuda.stream(side):
            dev[step % 2].copy_(host[step % 2], non_blocking=True)
        if right:
            main.wait_stream(side)
        dev[step % 2].sum()
        side.wait_stream(main)


@planted
def double_buffer_filled_again_too_early(right: bool) -> None:
    host = [torch.zeros(N, pin_memory=True) for _ in range(2)]
    dev = [torch.empty(N, device="cuda") for _ in range(2)]
    side, main = side_after_main()
    for step in range(4):
        with torch.cuda.stream(side):
            dev[step % 2].copy_(host[step % 2], non_blocking=True)
        main.wait_stream(side)
        dev[step % 2].sum()
        if right:
            side.wait_stream(main)


@planted
def transform_recorded_on_its_own_stream(right: bool) -> None:
    """A loop from a blog: the tensor is recorded on the stream that made it, not on the one that uses it."""
    transform, model = torch.cuda.Stream(), torch.cuda.Stream()
    transform.wait_stream(torch.cuda.current_stream())
    model.wait_stream(torch.cuda.current_stream())
    transformed: Any = None
    for _ in range(6):
        if transformed is not None:
            with torch.cuda.stream(model):
                model.wait_stream(transform)
                (transformed * 2).sum()
        with torch.cuda.stream(transform):
            # The last reference is dropped before the next tensor is made, so the memory is reused at once.
            old, transformed = transformed, None
            if old is not None:
                old.record_stream(model if right else transform)
            del old
            transformed = torch.full((N,), 1.0, device="cuda")


@planted
def a_record_before_the_work(right: bool) -> None:
    x = torch.zeros(N, device="cuda")
    side, main = side_after_main()
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
    x = torch.zeros(N, device="cuda")
    side, main = side_after_main()
    with torch.cuda.stream(side):
        before = side.record_event()
        x.fill_(1)
        after = side.record_event()
    main.wait_event(after if right else before)
    x.sum()


@planted
def wait_stream_too_early(right: bool) -> None:
    x = torch.zeros(N, device="cuda")
    side, main = side_after_main()
    main.wait_stream(side)
    with torch.cuda.stream(side):
        x.mul_(2)
    if right:
        main.wait_stream(side)
    x.sum()


@planted
def an_event_recorded_again(right: bool) -> None:
    third = torch.cuda.Stream()
    x = torch.zeros(N, device="cuda")
    side, main = side_after_main()
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
    x = torch.ones(N, device="cuda")
    side, main = side_after_main()
    with torch.cuda.stream(side):
        y = x * 2
    if right:
        x.record_stream(side)
    del x
    torch.zeros(N, device="cuda")
    del y


@planted
def memory_used_again_without_the_homes_wait(right: bool) -> None:
    x = torch.ones(N, device="cuda")
    side, main = side_after_main()
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
    x = torch.zeros(N, device="cuda")
    side, main = side_after_main()
    middle = N // 2
    with torch.cuda.stream(side):
        x[: middle + (0 if right else 7)].fill_(1)
    x[middle:].fill_(2)
    main.wait_stream(side)


@planted
def columns_that_overlap(right: bool) -> None:
    x = torch.zeros(1024, 64, device="cuda")
    side, main = side_after_main()
    with torch.cuda.stream(side):
        x[:, : 32 if right else 33].fill_(1)
    x[:, 32:].fill_(2)
    main.wait_stream(side)


@planted
def a_chain_of_three_with_a_gap(right: bool) -> None:
    third = torch.cuda.Stream()
    x = torch.zeros(N, device="cuda")
    side, main = side_after_main()
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
    """The tensors are written by an operator whose schema does not show it."""
    norm = nn.BatchNorm2d(8).cuda()
    x = torch.ones(4, 8, 16, 16, device="cuda")
    side, main = side_after_main()
    norm(x)
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.clone(norm.running_mean)
    main.wait_stream(side)


@planted
def written_in_place_while_read(right: bool) -> None:
    x = torch.ones(N, device="cuda")
    side, main = side_after_main()
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
    table = torch.zeros(1000, 64, device="cuda")
    at = torch.arange(100, device="cuda")
    side, main = side_after_main()
    with torch.cuda.stream(side):
        table.index_fill_(0, at, 1.0)
    if right:
        main.wait_stream(side)
    nn.functional.embedding(at, table)
    main.wait_stream(side)


@planted
def graphs_captured_on_one_stream(right: bool) -> None:
    """`torch.cuda.graph` captures on one stream that it creates, whose cuBLAS workspace both graphs keep.

    The products are too small to use that workspace: with larger ones the results would be wrong
    (`real_gpu.py workspaces`).
    """
    x = torch.ones(64, 64, device="cuda")
    side, main = side_after_main()
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
    """Pinned tensors of at most 512 bytes, eight to a page."""
    every = [torch.zeros(16, pin_memory=True) for _ in range(8)]
    x = torch.empty(16, device="cuda")
    for host in every[:4]:
        x.copy_(host, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    every[2].numpy()[3] = 1


@planted
def a_registered_source_filled_again(right: bool) -> None:
    """Memory that the program allocated itself and pinned in place."""
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
