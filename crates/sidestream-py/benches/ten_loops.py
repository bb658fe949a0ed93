"""Ten training and inference loops for ``prefetch_gpu.py ten_loops``. In four of them the host is the
limit: many small launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from planted.models import perceptron, trained
from torch import nn

#: Number of different batches in each loop; an epoch cycles through them.
KNOWN = 8


@dataclass
class Loop:
    """The batches of one epoch, from pageable or pinned memory, and the work on the device for each batch.
    """

    name: str
    host_bound: bool
    #: Makes the batches; takes whether memory is pinned, and the number of batches.
    loader: Callable[[bool, int], Iterable[Any]]
    step: Callable[[Any], Any]


def with_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, dict):
        return {name: with_tensors(each, change) for name, each in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(with_tensors(each, change) for each in batch)
    return change(batch)


def of_list(make: Callable[[], Any]) -> Callable[[bool, int], Iterable[Any]]:
    """Return a list of batches, as of a data set that was read in advance."""
    known = {False: [make() for _ in range(KNOWN)]}
    known[True] = [with_tensors(batch, pinned) for batch in known[False]]
    return lambda is_pinned, count: [known[is_pinned][at % KNOWN] for at in range(count)]


def of_generator(make: Callable[[], Any]) -> Callable[[bool, int], Iterable[Any]]:
    listed = of_list(make)
    return lambda is_pinned, count: (batch for batch in listed(is_pinned, count))


def of_data_loader(size: int, *parts: Any) -> Callable[[bool, int], Iterable[Any]]:
    """PyTorch's DataLoader, which collates samples in the thread that requests them."""
    data = torch.utils.data.TensorDataset(*parts)

    def loader(is_pinned: bool, count: int) -> Iterable[Any]:
        some = torch.utils.data.Subset(data, [at % len(data) for at in range(size * count)])
        return torch.utils.data.DataLoader(
            some, batch_size=size, pin_memory=is_pinned and torch.cuda.is_available()
        )

    return loader


def pinned(tensor: Any) -> Any:
    return tensor.pin_memory() if torch.cuda.is_available() else tensor


def training(model: Any, reads: bool = False) -> Callable[[Any], Any]:
    step = trained(model, torch.optim.SGD(model.parameters(), lr=0.01), nn.functional.cross_entropy)
    return lambda batch: step(*batch).item() if reads else step(*batch)


def labelled(rows: int, *shape: int) -> Callable[[], Any]:
    return lambda: (torch.randn(rows, *shape), torch.randint(0, 10, (rows,)))


def loops(device: Any, scale: int = 1) -> list[Loop]:
    """Return all loops, made smaller by ``scale`` for a dry run."""
    wide, rows = 4096 // scale, 2048 // scale

    cell = nn.LSTMCell(64, 64).to(device)

    def recurrent(sequence: Any) -> Any:
        with torch.no_grad():
            state = None
            for x in sequence.unbind(1):
                state = cell(x, state)
            return state

    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    small = nn.TransformerEncoder(layer, 8 if scale == 1 else 1, enable_nested_tensor=False).to(device)

    def forward(batch: Any) -> Any:
        with torch.no_grad():
            return small(batch[0])

    layer = nn.TransformerEncoderLayer(1024 // scale, 8, 4096 // scale, batch_first=True, dropout=0.0)
    words = nn.Embedding(5000, 1024 // scale).to(device)
    large = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)

    def of_words(tokens: Any) -> Any:
        with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
            return large(words(tokens))

    pictures = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    mixed = perceptron(4, 2048 // scale, 10).to(device)

    def of_fields(batch: Any) -> Any:
        with torch.no_grad():
            return mixed(torch.cat([batch[f"f{at}"] for at in range(4)], 1)) * batch["weight"]

    def fields() -> Any:
        parts = {f"f{at}": torch.randn(rows, 512 // scale) for at in range(4)}
        return parts | {"weight": torch.rand(rows, 1)}

    def averaged(batch: Any) -> Any:
        return batch.float().mean()

    samples = (torch.randn(4096 // scale, 16, 128), torch.randint(0, 10, (4096 // scale,)))
    return [
        Loop(
            "perceptron_of_30",
            True,
            of_list(labelled(256, 256)),
            training(perceptron(30, 256, 10).to(device)),
        ),
        Loop(
            "perceptron_of_30_generator",
            True,
            of_generator(labelled(64, 128)),
            training(perceptron(30, 128, 10).to(device)),
        ),
        Loop("lstm_cells", True, of_list(lambda: torch.randn(64, 48, 64)), recurrent),
        Loop("small_transformer_data_loader", True, of_data_loader(32, *samples), forward),
        Loop(
            "wide_perceptron",
            False,
            of_list(labelled(rows, wide)),
            training(perceptron(1, wide, 10).to(device)),
        ),
        Loop(
            "pictures",
            False,
            of_list(labelled(256 // scale, 3, 64, 64)),
            training(pictures.to(device)),
        ),
        Loop("words", False, of_list(lambda: torch.randint(0, 5000, (32, 256 // scale))), of_words),
        Loop(
            "read_each_step",
            False,
            of_list(labelled(rows, 1024 // scale)),
            training(perceptron(6, 1024 // scale, 10).to(device), True),
        ),
        Loop(
            "uploads",
            False,
            of_list(lambda: torch.randint(0, 255, ((32 << 20) // scale,), dtype=torch.uint8)),
            averaged,
        ),
        Loop("fields", False, of_list(fields), of_fields),
    ]
