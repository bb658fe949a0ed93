"""Six loops of an engine that decodes with CUDA graphs, each with a planted fault and in a fixed form:
records their traces, and times their steps.

    python crates/sidestream-py/benches/decode_gpu.py --out FOLDER [LOOP …]

Needs PyTorch with CUDA. Each loop is timed in both forms without a profiler (the median of five windows),
then both are recorded by PyTorch's profiler as engines do it: started and stopped around some iterations,
without its schedule. FOLDER gets one file, ``decode.tar.gz``, with ``LOOP.before.json.gz`` and
``LOOP.after.json.gz`` for each loop, and ``truth.json``, which is printed too. On an H200 this takes about
a minute. ``--device cpu`` runs the code with tiny tensors and without graphs, as a smoke test.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from either_device import Machine, Step
from torch.profiler import ProfilerActivity, profile, record_function

#: Number of recorded iterations, and of iterations in a window.
STEPS = 24
WINDOWS = 5
WARM_UP = 8

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("loops", nargs="*", metavar="LOOP", help="run only these")
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
parser.add_argument("--out", metavar="FOLDER", required=True, help="where decode.tar.gz goes")
ARGS = parser.parse_args()
MACHINE = Machine(ARGS.device)
IS_CUDA, DEVICE = MACHINE.is_cuda, MACHINE.device
side_stream, current, on, event = MACHINE.side_stream, MACHINE.current, MACHINE.on, MACHINE.event
synchronize, busy, captured = MACHINE.synchronize, MACHINE.busy, MACHINE.captured


def host_memory(count: int, pinned: bool, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Allocate host memory, and write it once so that its pages exist."""
    return torch.zeros(count if IS_CUDA else min(count, 64), dtype=dtype, pin_memory=pinned and IS_CUDA)


class Engine:
    """A model that makes one token per sequence in each iteration. Its forward pass may run as a graph; the
    sampling after that does not.
    """

    def __init__(self, layers: int = 32, side: int = 4096, batch: int = 16, words: int = 32_000) -> None:
        side, words = (side, words) if IS_CUDA else (16, 32)
        kind = torch.float16 if IS_CUDA else torch.float32
        scale = side**-0.5
        self.batch = batch
        self.weights = [torch.randn(side, side, device=DEVICE, dtype=kind) * scale for _ in range(2 * layers)]
        self.embedding = torch.randn(words, side, device=DEVICE, dtype=kind)
        self.head = torch.randn(side, words, device=DEVICE, dtype=kind) * scale
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=DEVICE)
        self.logits = torch.zeros(batch, words, device=DEVICE, dtype=kind)
        self.hosts = [host_memory(batch, True, torch.int64)[:batch] for _ in range(2)]
        self.marks = [event(), event()]

    def forward(self, table: torch.Tensor | None = None) -> None:
        x = self.embedding[self.tokens]
        if table is not None:
            # Reads the table, so that the rest depends on the upload.
            x = x + table.view(-1)[0]
        for up, down in zip(self.weights[::2], self.weights[1::2]):
            x = x + torch.relu(x @ up) @ down
        torch.mm(x, self.head, out=self.logits)

    def sample(self) -> None:
        self.tokens.copy_(torch.softmax(self.logits.float() / 0.8, dim=-1).argmax(dim=-1))

    def tokens_waited_for(self) -> list[int]:
        return [int(token) for token in self.tokens.tolist()]

    def tokens_of_the_step_before(self, at: int) -> list[int]:
        """Send this step's tokens to the host and return the previous step's."""
        self.hosts[at % 2].copy_(self.tokens, non_blocking=True)
        self.marks[at % 2].record()
        self.marks[(at + 1) % 2].synchronize()
        return [int(token) for token in self.hosts[(at + 1) % 2].tolist()]


def marked(engine: Engine) -> Any:
    """Return the profiler range with which an engine marks its iterations."""
    return record_function(f"execute_context_0(0)_generation_{engine.batch}({engine.batch})")


#: Functions to call when a loop has ended.
LEFT: list[Callable[[], object]] = []
#: For each loop: the codes of its cause, and the function that makes its iteration, faulty or fixed.
LOOPS: dict[str, tuple[list[str], Callable[[bool], Step]]] = {}


def loop(*codes: str) -> Callable[[Callable[[bool], Step]], Callable[[bool], Step]]:
    def add(make: Callable[[bool], Step]) -> Callable[[bool], Step]:
        LOOPS[make.__name__] = (list(codes), make)
        return make

    return add


@loop("BLOCKING_COPY", "SYNC_IN_STEP")
def sampling_waited_for(repaired: bool) -> Step:
    """The host reads the tokens of each iteration before it schedules the next. Fixed: it reads them one step
    later.
    """
    engine = Engine()
    replay = captured(engine.forward)

    def step(at: int) -> None:
        busy(0.0004)
        with marked(engine):
            replay()
            engine.sample()
        engine.tokens_of_the_step_before(at) if repaired else engine.tokens_waited_for()
        busy(0.0003)

    return step


def detokenize(todo: Any) -> None:
    while todo.get() is not None:
        busy(0.0025)


@loop("HOST_WORK")
def detokenising(repaired: bool) -> Step:
    """The launching thread decodes tokens to text, which takes longer than the device's work. Fixed: three
    other processes decode.
    """
    engine = Engine()
    replay = captured(engine.forward)
    forked = multiprocessing.get_context("fork")
    queues = [forked.SimpleQueue() for _ in range(3 if repaired else 0)]
    workers = [forked.Process(target=detokenize, args=(todo,), daemon=True) for todo in queues]
    for worker in workers:
        worker.start()
    LEFT.append(lambda: [todo.put(None) for todo in queues])
    LEFT.append(lambda: [worker.join() for worker in workers])

    def step(at: int) -> None:
        busy(0.0002)
        replay()
        engine.sample()
        ids = engine.tokens_of_the_step_before(at)
        if repaired:
            queues[at % len(queues)].put(ids)
        else:
            with record_function("detokenize"):
                busy(0.0025)

    return step


@loop("COPY_ON_COMPUTE_STREAM")
def tables_on_the_compute_stream(repaired: bool) -> Step:
    """Block tables are uploaded in the stream of the graph. Fixed: those of the next iteration are uploaded
    in a separate stream.
    """
    engine, stream = Engine(), side_stream()
    host = host_memory(10 << 20, True)
    slots = [torch.zeros(host.shape, dtype=host.dtype, device=DEVICE) for _ in range(2)]
    replays = [captured(lambda slot=slot: engine.forward(slot)) for slot in slots]  # type: ignore[misc]
    synchronize()

    def step(at: int) -> None:
        busy(0.0002)
        with marked(engine):
            if repaired:
                current().wait_stream(stream)
                stream.wait_stream(current())
                with on(stream):
                    slots[(at + 1) % 2].copy_(host, non_blocking=True)
                replays[at % 2]()
            else:
                slots[0].copy_(host, non_blocking=True)
                replays[0]()
            engine.sample()
        engine.tokens_of_the_step_before(at)

    return step


@loop("LAUNCH_BOUND")
def no_graph_of_this_size(repaired: bool) -> Step:
    """No graph was captured for a batch of this size, so its operators are launched one by one. Fixed: a
    graph is captured.
    """
    engine = Engine(layers=60, side=1024, batch=24)
    forward = captured(engine.forward) if repaired else engine.forward

    def step(at: int) -> None:
        busy(0.0001)
        forward()
        engine.sample()
        engine.tokens_of_the_step_before(at)

    return step


@loop("LAUNCH_BOUND")
def padding(repaired: bool) -> Step:
    """The inputs are padded to the graph's size by one operator after another. Fixed: the graph pads them.
    """
    engine = Engine(layers=24, side=2048, batch=32)
    real = [torch.zeros(21, 64, device=DEVICE) for _ in range(64)]
    padded = [torch.zeros(32, 64, device=DEVICE) for _ in real]

    def pad() -> None:
        for source, target in zip(real, padded):
            target.copy_(torch.nn.functional.pad(source, (0, 0, 0, 11)))

    def all_of_it() -> None:
        pad()
        engine.forward(padded[-1])

    replay = captured(all_of_it if repaired else lambda: engine.forward(padded[-1]))

    def step(at: int) -> None:
        busy(0.0001)
        with marked(engine):
            if not repaired:
                with record_function("pad_inputs"):
                    pad()
            replay()
            engine.sample()
        engine.tokens_of_the_step_before(at)

    return step


@loop("PAGEABLE_COPY", "BLOCKING_COPY", "SYNC_IN_STEP")
def two_faults(repaired: bool) -> Step:
    """Block tables are uploaded from pageable memory, and the host waits for the tokens. Fixed: neither
    happens.
    """
    engine = Engine()
    host = host_memory(2 << 20, repaired)
    table = torch.zeros(host.shape, dtype=host.dtype, device=DEVICE)
    replay = captured(lambda: engine.forward(table))

    def step(at: int) -> None:
        busy(0.0003)
        table.copy_(host, non_blocking=repaired)
        replay()
        engine.sample()
        engine.tokens_of_the_step_before(at) if repaired else engine.tokens_waited_for()
        busy(0.0002)

    return step


def traced(step: Step, path: Path | None, steps: int = STEPS) -> None:
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if IS_CUDA else [])
    with profile(activities=activities) as profiler:
        for at in range(steps):
            step(at)
        synchronize()
    if path is not None:
        with tempfile.TemporaryDirectory(prefix="decode-") as folder:
            plain = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(plain))
            path.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))


def run(name: str, folder: Path) -> dict[str, Any]:
    codes, make = LOOPS[name]
    row: dict[str, Any] = {"loop": name, "codes": codes}
    for form, repaired in (("before", False), ("after", True)):
        step = make(repaired)
        row[f"{form}_ms"] = round(MACHINE.timed_ms(step, WARM_UP, WARM_UP, STEPS, WINDOWS), 4)
        # Keeps the one-time work of the profiler out of the trace.
        traced(step, None, 2)
        traced(step, folder / f"{name}.{form}.json.gz")
        while LEFT:
            LEFT.pop(0)()
        del step
        if IS_CUDA:
            torch.cuda.empty_cache()
    return row


def main() -> int:
    unknown = set(ARGS.loops) - set(LOOPS)
    if unknown:
        parser.error(f"there is no loop {', '.join(sorted(unknown))}; there are {', '.join(LOOPS)}")
    if IS_CUDA and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA here; --device cpu tries the code")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    out = Path(ARGS.out)
    out.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="decode-") as kept, torch.no_grad():
        folder = Path(kept)
        rows = [run(name, folder) for name in ARGS.loops or LOOPS]
        truth = {
            "device": torch.cuda.get_device_name() if IS_CUDA else "no GPU",
            "torch": torch.__version__,
            "loops": rows,
        }
        text = json.dumps(truth, indent=1)
        (folder / "truth.json").write_text(text + "\n")
        with tarfile.open(out / "decode.tar.gz", "w:gz") as packed:
            for path in sorted(folder.iterdir()):
                packed.add(path, path.name)
    print(text)
    print(f"{time.perf_counter() - begun:.0f} s in all", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
