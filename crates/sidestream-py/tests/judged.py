"""The programs of the five texts that docs/developers/judged.md judges: the position of each in its text, as
the check finds them, and the code that it needs to run.

The texts are not part of this repository. In three of them the marks of code blocks and the indentation are
lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sidestream._check_text import blocks

#: Definitions that the programs rely on.
GIVEN = """
import time
import torch
from torch import nn
def small(width=512, out=8):
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, out)).cuda()
"""
LOOP = """
model = small()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
SQUARE = (
    "A = torch.randn(64, 64, device='cuda')\nB = torch.randn(64, 64, device='cuda')\n"
    "torch.cuda.synchronize()\n"
)
MODEL = "model = small(64, 8)\nx = torch.randn(4, 64, device='cuda')\ntorch.cuda.synchronize()\n"


@dataclass(frozen=True)
class Block:
    """A program in a text.

    Attributes:
        name: Its name in docs/developers/judged.md.
        text: The number with which the name of the text's file begins.
        number: Its index among the programs that are found in that text.
        verdict: The check's verdict: the kinds of its certain races, joined by commas, or `clean`.
        given: Definitions that the program relies on; this code runs before the program.
        after: Code that runs after the program.
    """

    name: str
    text: str
    number: int
    verdict: str
    given: str = ""
    after: str = ""
    #: Replacements that make the program smaller, so that it takes less time.
    swap: dict[str, str] = field(default_factory=dict)

    def program(self, folder: Path) -> str:
        """The program in the form that can run."""
        file = next(folder.glob(f"{self.text}_*"))
        _, source = blocks(file.read_text(encoding="utf-8"))[self.number]
        for large, little in self.swap.items():
            source = source.replace(large, little)
        return f"{GIVEN}{self.given}\n{source}\n{self.after}"


_SLEEP = {"time.sleep(0.1)": "pass", "time.sleep(0.2)": "pass"}
_FROZEN = """
from torch import nn
device = torch.device("cuda")
encoder = nn.Conv2d(3, 4, 3, padding=1).cuda().requires_grad_(False)
decoder = nn.Conv2d(4, 5, 3, padding=1).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(decoder.parameters(), lr=0.01)
warmup, active_batches, total_iters = 1, 6, 7
train_loader = [
    (torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8), torch.randint(0, 5, (2, 16, 16)))
    for _ in range(9)
]
"""
_SHORT = {"warmup = 10": "warmup = 1", "active_batches = 100": "active_batches = 6"}
_CLASSIFY = """
FakeDataset = DataLoader = lambda *_, **__: train_loader
device = torch.device("cuda")
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10)).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
warmup, active_batches, total_iters = 1, 6, 7
batch_transform = lambda images: (images.float() / 255 - 0.5).flip(-1)
train_loader = [(torch.rand(4, 3, 16, 16), torch.randint(0, 10, (4, 1))) for _ in range(9)]
"""
_TWO_BUFFERS = """
N = 64
loader = [torch.randn(64).pin_memory() for _ in range(6)]
model = torch.sigmoid
torch.cuda.synchronize()
"""
_USED, _WAIT = "output = model(dev[i])", "torch.cuda.default_stream().wait_stream(s_transfer)\n    "
_BACK = "s_transfer.wait_stream(torch.cuda.default_stream())\n    "
_SIDE = (
    MODEL
    + "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
    + "s = torch.cuda.Stream()\nloss = model(x).sum()"
)
_NO_WAIT = {"torch.cuda.current_stream().wait_stream(s)": "pass"}
_FORWARD = {"loss.backward()": "model(x).sum().backward()"}

BLOCKS = [
    Block("1.1", "000", 0, "clean", swap=_SLEEP),
    Block("1.2", "000", 1, "clean", swap=_SLEEP),
    Block(
        "1.2 with a model",
        "000",
        1,
        "RAW,UAF",
        swap=_SLEEP | {"# data is used now": "data.sum()  # data is used now"},
    ),
    Block("1.3", "000", 2, "clean", swap={"256, 256": "16, 16"}),
    Block(
        "1.3 with an input that a kernel makes",
        "000",
        2,
        "RAW",
        swap={"256, 256).to(device)": "16, 16, device=device)"},
    ),
    Block("2.1", "001", 0, "clean"),
    Block(
        "2.1 with copies that do not block",
        "001",
        0,
        "RAW",
        swap={
            "1024": "64",
            "dtype=torch.float32)": "dtype=torch.float32).pin_memory()",
            "to(device)": "to(device, non_blocking=True)",
        },
    ),
    Block("2.2", "001", 1, "RAW"),
    Block("2.3", "001", 2, "RAW", swap=_SLEEP | {"1024": "64"}),
    Block(
        "3.1",
        "002",
        0,
        "RAW",
        LOOP + "input_tensor = torch.randn(4, 512, device='cuda')\n"
        "labels = torch.zeros(4, dtype=torch.long, device='cuda')",
    ),
    Block("3.2", "002", 1, "clean", LOOP + "torch.cuda.synchronize()"),
    Block(
        "3.3",
        "002",
        2,
        "RAW,UAF,WAR",
        LOOP + "dataset = torch.utils.data.TensorDataset("
        "torch.randn(256, 512), torch.zeros(256, dtype=torch.long))\n"
        "def MyModel():\n    return small()",
        swap={"num_workers=4": "num_workers=0", "persistent_workers=True": "persistent_workers=False"},
    ),
    Block(
        "3.4",
        "002",
        3,
        "clean",
        "input_a = torch.randn(64, 64, device='cuda')\nsome_expensive_op = another_op = torch.relu\n"
        "torch.cuda.synchronize()",
    ),
    Block(
        "3.5",
        "002",
        4,
        "clean",
        after=(
            "server = StreamedInferenceServer(nn.Linear(64, 8))\ntorch.cuda.synchronize()\n"
            "server.infer_batch_of_requests([torch.randn(4, 64).pin_memory() for _ in range(9)])"
        ),
    ),
    Block(
        "3.6",
        "002",
        5,
        "clean",
        MODEL + "serving_model, request_input, background_task = model, x, lambda: x.sum()",
    ),
    Block(
        "3.7",
        "002",
        6,
        "clean",
        swap={"1024*1024": "4096", "n_batches=20": "n_batches=6"},
    ),
    Block("4.1", "003", 0, "clean", SQUARE),
    Block(
        "4.2",
        "003",
        1,
        "RAW",
        "A = torch.randn(64, 64, device='cuda')\nB = torch.randn(64, 64, device='cuda')",
    ),
    Block(
        "4.3",
        "003",
        2,
        "HOST_WAR,WAR",
        LOOP + "targets = torch.zeros(1024, dtype=torch.long, device='cuda')\n"
        "def get_batch_iterator():\n    return [torch.randn(1024, 512) for _ in range(6)]",
    ),
    Block("4.4", "003", 3, "RAW,WAR", _TWO_BUFFERS),
    Block(
        "4.4 with its answer",
        "003",
        3,
        "WAR",
        _TWO_BUFFERS,
        swap={_USED: f"{_WAIT}{_USED}\n    dev[i].record_stream(torch.cuda.current_stream())"},
    ),
    Block(
        "4.4 with both waits",
        "003",
        3,
        "clean",
        _TWO_BUFFERS,
        swap={_USED: _WAIT + _USED, "    with": f"    {_BACK}with"},
    ),
    Block("4.5", "003", 4, "clean", SQUARE),
    Block("4.6", "003", 5, "clean", SQUARE),
    Block("4.7", "003", 6, "clean", SQUARE),
    Block("4.8", "003", 7, "clean", SQUARE),
    Block("4.9", "003", 8, "clean", swap={"4096": "64"}),
    Block("4.10", "003", 9, "clean", MODEL),
    Block("4.11", "003", 10, "refused", MODEL),
    Block("4.12", "003", 11, "clean", MODEL),
    Block("4.13", "003", 12, "clean", MODEL + "s1 = torch.cuda.Stream()"),
    Block("4.14", "003", 13, "clean", "cpu_data = torch.randn(1024).pin_memory()\nmodel = torch.sigmoid"),
    Block("4.15", "003", 14, "RAW", "x = torch.randn(64, device='cuda')\nlayer0 = layer1 = torch.sigmoid"),
    Block(
        "4.16",
        "003",
        15,
        "clean",
        "x1 = x2 = torch.randn(4, 64, device='cuda')\n"
        "model_branch1, model_branch2 = nn.Linear(64, 8).cuda(), nn.Linear(64, 8).cuda()",
    ),
    Block("4.17", "003", 16, "clean", _SIDE),
    Block("4.17 without its wait", "003", 16, "clean", _SIDE, swap=_NO_WAIT),
    Block("4.17 with the forward pass in the stream", "003", 16, "clean", _SIDE, swap=_FORWARD),
    Block(
        "4.17 with the forward pass in the stream, without its wait",
        "003",
        16,
        "RAW,WAR",
        _SIDE,
        swap=_FORWARD | _NO_WAIT,
    ),
    Block("4.18", "003", 17, "clean", swap={"4096": "64", "n_iters: int = 50": "n_iters: int = 4"}),
    Block("4.19", "003", 18, "clean", "def MyModel():\n    return small()"),
    Block(
        "4.20",
        "003",
        20,
        "clean",
        LOOP + "labels_gpu = torch.zeros(16, dtype=torch.long, device='cuda')",
        after=(
            "train_with_double_buffer("
            "model, [torch.randn(16, 512).pin_memory() for _ in range(6)], optimizer)"
        ),
    ),
    Block("5.1", "004", 1, "clean", _FROZEN, swap=_SHORT),
    Block("5.2", "004", 2, "RAW,UAF", _FROZEN),
    Block("5.3", "004", 5, "clean", _CLASSIFY, swap=_SHORT),
    Block("5.4", "004", 9, "clean", _CLASSIFY),
    Block("5.5", "004", 10, "UAF", _CLASSIFY),
    Block(
        "5.5 with the other stream recorded",
        "004",
        10,
        "clean",
        _CLASSIFY,
        swap={"record_stream(transform": "record_stream(model"},
    ),
]
