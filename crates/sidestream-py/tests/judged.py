"""The programs of the five texts that docs/judged.md judges: where each stands in its text, and what it needs besides.

The texts are not part of this repository. Two of them are kept without the indentation of their programs; so what is noted of a block is how far in
its lines stand. `LEVELS` of a block has the lines at which that changes other than by a colon.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

#: What the programs take for granted.
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
SQUARE = "A = torch.randn(64, 64, device='cuda')\nB = torch.randn(64, 64, device='cuda')\ntorch.cuda.synchronize()\n"
MODEL = "model = small(64, 8)\nx = torch.randn(4, 64, device='cuda')\ntorch.cuda.synchronize()\n"


@dataclass(frozen=True)
class Block:
    """A program in a text.

    Attributes:
        name: Its name in the page.
        text: The number with which the name of the text's file begins.
        lines: Its first and last line there.
        verdict: What the check says of it: the kinds of its certain races, joined by commas, or `clean`.
        given: What it takes for granted, as a program in front of it.
        levels: How far in a line stands, where that is not said by the colon in front of it.
        after: A program behind it.
    """

    name: str
    text: str
    lines: tuple[int, int]
    verdict: str
    given: str = ""
    levels: dict[int, int] = field(default_factory=dict)
    after: str = ""
    #: With what its last line ends; behind that the text goes on.
    end: str = ""
    #: What is made smaller, so that it takes less time.
    swap: dict[str, str] = field(default_factory=dict)

    def program(self, folder: Path) -> str:
        """The program, as it can run."""
        file = next(folder.glob(f"{self.text}_*"))
        lines = file.read_text(encoding="utf-8").splitlines()[self.lines[0] - 1 : self.lines[1]]
        lines[-1] = lines[-1].partition(self.end)[0] + self.end if self.end else lines[-1]
        if not self.levels and any(line.startswith("  ") for line in lines):
            source = "\n".join(lines)
        else:
            source = "\n".join(self._indented(lines))
        for large, little in self.swap.items():
            source = source.replace(large, little)
        return f"{GIVEN}{self.given}\n{source}\n{self.after}"

    def _indented(self, lines: list[str]) -> list[str]:
        level, depth, made, quoted = 0, 0, [], False
        for number, line in enumerate(lines, self.lines[0]):
            line = line.strip()
            level = self.levels.get(number, level)
            made.append("    " * level + line)
            if line.count('"""') == 1:
                quoted = not quoted
            if quoted or '"""' in line:
                continue
            code = re.sub(r"(\"[^\"]*\"|'[^']*')", "''", line).split("#")[0].strip()
            depth += sum(code.count(c) for c in "([{") - sum(code.count(c) for c in ")]}")
            if depth == 0 and code.endswith(":"):
                level += 1
        return made


_SLEEP = {"time.sleep(0.1)": "pass", "time.sleep(0.2)": "pass"}
_FROZEN = """
from torch import nn
device = torch.device("cuda")
encoder = nn.Conv2d(3, 4, 3, padding=1).cuda().requires_grad_(False)
decoder = nn.Conv2d(4, 5, 3, padding=1).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(decoder.parameters(), lr=0.01)
warmup, active_batches, total_iters = 1, 6, 7
train_loader = [(torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8), torch.randint(0, 5, (2, 16, 16))) for _ in range(9)]
"""
_CLASSIFY = """
device = torch.device("cuda")
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10)).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
warmup, active_batches, total_iters = 1, 6, 7
batch_transform = lambda images: (images.float() / 255 - 0.5).flip(-1)
train_loader = [(torch.rand(4, 3, 16, 16), torch.randint(0, 10, (4, 1))) for _ in range(9)]
"""

BLOCKS = [
    Block("1.1", "000", (15, 34), "clean", swap=_SLEEP),
    Block("1.2", "000", (42, 63), "clean", swap=_SLEEP),
    Block("1.2 with a model", "000", (42, 63), "RAW,UAF", swap=_SLEEP | {"# data is used now": "data.sum()  # data is used now"}),
    Block("1.3", "000", (71, 105), "clean", swap={"256, 256": "16, 16"}),
    Block(
        "1.3 with an input that a kernel makes", "000", (71, 105), "RAW",
        swap={"256, 256).to(device)": "16, 16, device=device)"},
    ),
    Block("2.1", "001", (19, 50), "clean"),
    Block(
        "2.1 with copies that do not block", "001", (19, 50), "RAW",
        swap={"1024": "64", "dtype=torch.float32)": "dtype=torch.float32).pin_memory()", "to(device)": "to(device, non_blocking=True)"},
    ),
    Block("2.2", "001", (60, 96), "RAW"),
    Block("2.3", "001", (106, 140), "RAW", swap=_SLEEP | {"1024": "64"}),
    Block(
        "3.1", "002", (343, 364), "RAW", LOOP + "input_tensor = torch.randn(4, 512, device='cuda')\nlabels = torch.zeros(4, dtype=torch.long, device='cuda')",
        levels={354: 0},
    ),
    Block("3.2", "002", (370, 388), "clean", LOOP + "torch.cuda.synchronize()", levels={380: 0}),
    Block(
        "3.3", "002", (396, 428), "RAW,UAF,WAR", LOOP + "dataset = torch.utils.data.TensorDataset(torch.randn(256, 512), torch.zeros(256, dtype=torch.long))\ndef MyModel():\n    return small()",
        levels={426: 1}, swap={"num_workers=4": "num_workers=0", "persistent_workers=True": "persistent_workers=False"},
    ),
    Block(
        "3.4", "002", (436, 456), "clean", "input_a = torch.randn(64, 64, device='cuda')\nsome_expensive_op = another_op = torch.relu\ntorch.cuda.synchronize()",
        levels={449: 0},
    ),
    Block(
        "3.5", "002", (462, 503), "clean",
        levels={473: 1, 481: 2, 484: 1, 496: 2, 502: 2},
        after="server = StreamedInferenceServer(nn.Linear(64, 8))\ntorch.cuda.synchronize()\nserver.infer_batch_of_requests([torch.randn(4, 64).pin_memory() for _ in range(9)])",
    ),
    Block("3.6", "002", (531, 542), "clean", MODEL + "serving_model, request_input, background_task = model, x, lambda: x.sum()", levels={539: 0}),
    Block(
        "3.7", "002", (551, 619), "clean",
        levels={564: 1, 574: 1, 578: 0, 594: 1, 605: 1, 608: 1, 612: 0},
        swap={"1024*1024": "4096", "n_batches=20": "n_batches=6"},
    ),
    Block("4.1", "003", (16, 20), "clean", SQUARE),
    Block("4.2", "003", (73, 86), "RAW", "A = torch.randn(64, 64, device='cuda')\nB = torch.randn(64, 64, device='cuda')", levels={81: 0}, end="query()"),
    Block(
        "4.3", "003", (109, 140), "HOST_WAR,WAR", LOOP + "targets = torch.zeros(1024, dtype=torch.long, device='cuda')\ndef get_batch_iterator():\n    return [torch.randn(1024, 512) for _ in range(6)]",
        levels={123: 0, 131: 1}, end="(compute_stream)",
    ),
    Block(
        "4.4", "003", (145, 152), "RAW,WAR", "N = 64\nloader = [torch.randn(64).pin_memory() for _ in range(6)]\nmodel = torch.sigmoid\ntorch.cuda.synchronize()",
        levels={152: 1},
    ),
    Block("4.5", "003", (166, 180), "clean", SQUARE, end='ms")'),
    Block("4.6", "003", (215, 220), "clean", SQUARE),
    Block("4.7", "003", (222, 225), "clean", SQUARE),
    Block("4.8", "003", (227, 234), "clean", SQUARE, end='ms")'),
    Block("4.9", "003", (251, 265), "clean", levels={258: 0}, end='ms")', swap={"4096": "64"}),
    Block("4.10", "003", (306, 309), "clean", MODEL, end="perf_counter()"),
    Block("4.11", "003", (310, 315), "refused", MODEL),
    Block("4.12", "003", (316, 324), "clean", MODEL, levels={323: 0}, end="elapsed_time(end)"),
    Block("4.13", "003", (332, 339), "clean", MODEL + "s1 = torch.cuda.Stream()", levels={}),
    Block("4.14", "003", (344, 354), "clean", "cpu_data = torch.randn(1024).pin_memory()\nmodel = torch.sigmoid", levels={350: 0}),
    Block("4.15", "003", (364, 376), "RAW", "x = torch.randn(64, device='cuda')\nlayer0 = layer1 = torch.sigmoid", levels={367: 0, 369: 0, 373: 0}, end='"cuda:1"))'),
    Block(
        "4.16", "003", (379, 389), "clean",
        "x1 = x2 = torch.randn(4, 64, device='cuda')\nmodel_branch1, model_branch2 = nn.Linear(64, 8).cuda(), nn.Linear(64, 8).cuda()",
        levels={383: 0, 385: 0, 388: 0}, end="backward()",
    ),
    Block(
        "4.17", "003", (390, 395), "clean", MODEL + "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\ns = torch.cuda.Stream()\nloss = model(x).sum()",
        levels={392: 0},
    ),
    Block("4.18", "003", (399, 435), "clean", levels={416: 1, 428: 1, 431: 0}, swap={"4096": "64", "n_iters: int = 50": "n_iters: int = 4"}, end='ms")'),
    Block("4.19", "003", (438, 458), "clean", "def MyModel():\n    return small()", levels={450: 1, 452: 0}, end=")"),
    Block(
        "4.20", "003", (504, 544), "clean", LOOP + "labels_gpu = torch.zeros(16, dtype=torch.long, device='cuda')",
        levels={521: 1, 540: 1}, end="pass",
        after="train_with_double_buffer(model, [torch.randn(16, 512).pin_memory() for _ in range(6)], optimizer)",
    ),
    Block("5.1", "004", (53, 72), "clean", _FROZEN, levels={59: 1, 67: 1, 69: 0}),
    Block("5.2", "004", (78, 108), "RAW,UAF", _FROZEN, levels={93: 1, 96: 2, 98: 1, 103: 1, 105: 0}),
    Block("5.3", "004", (195, 212), "clean", _CLASSIFY, levels={207: 1, 209: 0}),
    Block("5.4", "004", (283, 300), "clean", _CLASSIFY, levels={296: 1, 298: 0}),
    Block("5.5", "004", (306, 335), "UAF", _CLASSIFY, levels={322: 1, 327: 1, 331: 1, 333: 0}),
]
