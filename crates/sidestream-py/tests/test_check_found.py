"""Documents whose code blocks have lost their marks: the programs that are recognized, and the indentation of
their lines.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import python
from sidestream._check_text import blocks

#: A page without block marks, and without the indentation of its code.
BLANKS = """\
Streams for everyone
Reading time: 5 min

In C++ one writes

cudaDeviceSynchronize();
kernel<<<1, 1, 0, s>>>(x); // on s

In PyTorch:

import torch

side = torch.cuda.Stream()
x = torch.ones(8, device="cuda")

# On the side
with torch.cuda.stream(side):
y = x * 2

z = y + 1
print(z)

Summary

Streams are queues.

import torch

class Server:
def __init__(self, count):
# One for each
self.streams = [torch.cuda.Stream() for _ in range(count)]

def ask(self, batch):
stream = self.streams[0]

with torch.cuda.stream(stream):
x = batch.cuda(non_blocking=True)
with torch.no_grad():
result = x * 2
return result

def all(self, batches):
waiting = []

for batch in batches:
y = self.ask(batch)
done = torch.cuda.Event()
self.streams[0].record_event(done)
waiting.append((y, done))

answers = []
for y, done in waiting:
done.synchronize()
answers.append(y.cpu())

return answers


if __name__ == "__main__":
print(len(Server(2).all([torch.ones(8).pin_memory()] * 3)))
"""
#: The programs that must be found in the page.
REBUILT = [
    """\
import torch

side = torch.cuda.Stream()
x = torch.ones(8, device="cuda")

# On the side
with torch.cuda.stream(side):
    y = x * 2

z = y + 1
print(z)
""",
    """\
import torch

class Server:
    def __init__(self, count):
        # One for each
        self.streams = [torch.cuda.Stream() for _ in range(count)]

    def ask(self, batch):
        stream = self.streams[0]

        with torch.cuda.stream(stream):
            x = batch.cuda(non_blocking=True)
            with torch.no_grad():
                result = x * 2
        return result

    def all(self, batches):
        waiting = []

        for batch in batches:
            y = self.ask(batch)
            done = torch.cuda.Event()
            self.streams[0].record_event(done)
            waiting.append((y, done))

        answers = []
        for y, done in waiting:
            done.synchronize()
            answers.append(y.cpu())

        return answers


if __name__ == "__main__":
    print(len(Server(2).all([torch.ones(8).pin_memory()] * 3)))
""",
]
#: A page without blank lines, and with prose glued to the end of a program.
GLUED = """\
The loop uploads a batch while the last one is computed.
import torch
model = torch.nn.Linear(8, 8).cuda()
batches = [torch.ones(4, 8).pin_memory() for _ in range(4)]
copying = torch.cuda.Stream()
slots = [torch.empty(4, 8, device="cuda") for _ in range(2)]
for step, batch in enumerate(batches):
i = step % 2
j = 1 - i
with torch.cuda.stream(copying):
slots[j].copy_(batch, non_blocking=True)
out = model(slots[i]) # in the default streamHere two waits are missing.
Time is taken with events.
for _ in range(3):
model(slots[0])
torch.cuda.synchronize()
start = torch.cuda.Event(enable_timing=True)
start.record()
def fill(batch: torch.Tensor) -> None:
nonlocal_names = batch
value = fill.__name__
print(value)Key insight: nothing else does.
| table | of words |
with torch.cuda.stream(copying):
loss = model(slots[0]).sum()
loss.backward()
# Without this the next line races
torch.cuda.current_stream().wait_stream(copying)
model.zero_grad()And so on.
"""
#: A page with indentation, but without block marks.
KEPT = """\
Prefetch like this:

    import torch

    def work(x):
        for _ in range(2):
            x = x * 2
        return x

    print(work(torch.ones(8, device="cuda")))

and nothing else. The word torch alone is no program:

references
torch
"""


def test_the_programs_of_a_text_without_marks_are_found_and_indented_again() -> None:
    found = blocks(BLANKS)
    assert [source for _, source in found] == REBUILT
    # Each program is at its line in the text.
    for before, source in found:
        assert BLANKS.splitlines()[before] == source.splitlines()[0] == "import torch"


def test_prose_that_is_glued_to_a_program_is_cut_off_and_suites_end_without_blank_lines() -> None:
    first, second, third = (source for _, source in blocks(GLUED))
    assert (
        "    with torch.cuda.stream(copying):\n        slots[j].copy_(batch, non_blocking=True)\n"
        "    out = model(slots[i])"
        in first
    )
    assert second.startswith(
        "for _ in range(3):\n    model(slots[0])\ntorch.cuda.synchronize()\n"
    ) and second.endswith("print(value)\n")
    assert third.splitlines()[-2:] == [
        "torch.cuda.current_stream().wait_stream(copying)",
        "model.zero_grad()",
    ]
    assert third.splitlines()[:3] == [
        "with torch.cuda.stream(copying):",
        "    loss = model(slots[0]).sum()",
        "    loss.backward()",
    ]


def test_existing_indentation_is_kept_and_words_are_not_programs() -> None:
    ((before, source),) = blocks(KEPT)
    assert before == 2 and "    for _ in range(2):\n        x = x * 2\n    return x\n" in source
    prose = "references\n\ntorch\n\n- torch\n\ntorch.compile is fast.\n\n"
    assert blocks(f"{prose}```cpp\nimport_torch(torch);\n```\n") == []
    # If a document has marked blocks, the rest is prose.
    assert [source for _, source in blocks(KEPT + "\n```python\nx = 1\n```\n")] == ["x = 1\n"]


@pytest.mark.torch
def test_a_text_without_marks_is_judged_with_its_lines(tmp_path: Path) -> None:
    text = tmp_path / "page.md"
    text.write_text(BLANKS)
    ran = python("-m", "sidestream.check", "--simulate", text.name, cwd=tmp_path)
    assert (
        ran.returncode == 1
        and "page.md:11: 2 races" in ran.stderr
        and "second: add on default at page.md:20: z = y + 1" in ran.stderr
    ), ran.stderr
    assert "page.md:27: no race in " in ran.stderr, ran.stderr
