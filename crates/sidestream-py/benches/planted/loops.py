"""Correct programs of many kinds, for ``check_gpu.py loops``: the check must report none of them."""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def loader(shape: tuple[int, ...], classes: int, steps: int) -> Any:
    class Data(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return steps * 16

        def __getitem__(self, at: int) -> Any:
            return torch.full(shape, at % 7 / 7.0), at % classes

    return torch.utils.data.DataLoader(Data(), batch_size=16, pin_memory=True)


def mlp_loop(steps: int) -> None:
    """Pinned batches copied without blocking, and gradients accumulated over four steps."""
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
    """The next batch is copied on a separate stream."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
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
    """Mixed precision with a scaler, and results that are fetched without blocking."""
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
    """Two branches on separate streams, forward and backward, and memory that passes between them."""
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
    """A thread uploads tensors, and hands them over with an event that is recorded after the upload."""
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
    batches = [(torch.full((16, 64), float(at % 5)), torch.arange(16)) for at in range(steps)]
    double = lambda batch: (batch[0] * 2, batch[1])
    prefetch: Any = getattr(sidestream, "prefetch")
    # A new prefetcher in each epoch, with the memory that the previous one left. One epoch is left early.
    for leave in (3, steps):
        for x, y in prefetch(iter(batches[:leave + 5]), "cuda", depth=2, transform=double):
            x.add_(1)
            (x @ weights).sum() + y.sum()
            leave -= 1
            if not leave:
                break
    for x, y in prefetch(batches, "cuda"):
        (x @ weights).sum() + y.sum()


class _Numbers(torch.utils.data.Dataset):  # type: ignore[misc]
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        return torch.full((64,), at % 7 / 7.0), at % 10


def recurrent_loop(steps: int) -> None:
    """Packed sequences of different lengths, with a state that is passed from step to step."""
    model, head = nn.LSTM(16, 32, num_layers=2).cuda(), nn.Linear(32, 5).cuda()
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters)
    state = None
    lengths = torch.tensor([6, 5, 3])
    for at in range(steps):
        x = torch.full((6, 3, 16), at % 5 / 5.0).pin_memory().to("cuda", non_blocking=True)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        results, state = model(packed, state)
        state = tuple(part.detach() for part in state)
        padded, _ = nn.utils.rnn.pad_packed_sequence(results)
        optimizer.zero_grad()
        head(padded[-1]).square().mean().backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def embedding_loop(steps: int) -> None:
    """Rows are gathered by indices that a side stream uploads, masks select among them, and gradients are
    sparse.
    """
    table = nn.Embedding(1000, 32, sparse=True).cuda()
    bag = nn.EmbeddingBag(1000, 32, mode="sum").cuda()
    sparse, dense = torch.optim.SparseAdam(list(table.parameters())), torch.optim.SGD(
        bag.parameters(), lr=0.1
    )
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    for at in range(steps):
        with torch.cuda.stream(side):
            index = ((torch.arange(256) * (at + 1)) % 1000).pin_memory().to("cuda", non_blocking=True)
        main.wait_stream(side)
        index.record_stream(main)
        rows = table(index)
        picked = rows[index % 2 == 0]
        loss = picked.sum() + bag(index.view(16, 16)).mean()
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()


def checkpoint_loop(steps: int) -> None:
    """Activations are recomputed in backward, under mixed precision."""
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)
    ).cuda()
    optimizer = torch.optim.AdamW(blocks.parameters())
    for at in range(steps):
        x = torch.randn(16, 64, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=at % 2 == 0)
        optimizer.zero_grad()
        x.float().square().mean().backward()
        optimizer.step()


def offload_loop(steps: int) -> None:
    """The tensors that forward saves are offloaded to pinned memory on a separate stream, and restored in
    backward."""
    side = torch.cuda.Stream()
    model = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(128, 128), nn.Tanh())]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def pack(tensor: Any) -> Any:
        if tensor.numel() < 1024 or isinstance(tensor, nn.Parameter) or not tensor.is_contiguous():
            return tensor
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(side)
        return host

    def unpack(saved: Any) -> Any:
        if saved.device.type != "cpu":
            return saved
        main = torch.cuda.current_stream()
        with torch.cuda.stream(side):
            back = saved.to("cuda", non_blocking=True)
        main.wait_stream(side)
        back.record_stream(main)
        return back

    for _ in range(steps):
        x = torch.randn(32, 128, device="cuda")
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loader_loop(steps: int) -> None:
    """Two workers, and the loader's thread that pins their batches."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(_Numbers(steps * 16), batch_size=16, num_workers=2, pin_memory=True)
    for x, y in loader:
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


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
