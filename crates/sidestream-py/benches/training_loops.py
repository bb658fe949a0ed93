"""Right programs of more kinds, for ``check_gpu.py loops``: of none may a report come."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class _Numbers(torch.utils.data.Dataset):  # type: ignore[misc]
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        return torch.full((64,), at % 7 / 7.0), at % 10


def recurrent_loop(steps: int) -> None:
    """Sequences of different lengths, packed, with a state that is handed on from step to step."""
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
    """Rows are gathered by indices that a side stream uploads, masks pick among them, and gradients are
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
    """Activations are computed again in backward, under mixed precision."""
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
    """What the forward saves goes to pinned memory on a stream of its own, and comes back in backward."""
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
    """Two workers, and the thread of the loader that pins their batches."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(_Numbers(steps * 16), batch_size=16, num_workers=2, pin_memory=True)
    for x, y in loader:
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
