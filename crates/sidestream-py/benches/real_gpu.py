"""Tests that need a real GPU and real PyTorch: one JSON object per line, with `ok`.

    python crates/sidestream-py/benches/real_gpu.py [part …]

Needs PyTorch with CUDA and the package `sidestream`. Each part runs alone, and is `ok` if all of its
assertions pass. Parts that need two GPUs are skipped, with a reason, if there is only one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import parts
import torch
from planted.planting import Doubles

import sidestream
from sidestream import Event, Stream

EXAMPLES = Path(__file__).parents[3] / "examples" / "python"
#: About 20 ms at 2 GHz: much longer than the host takes for the calls that follow.
LONG = 40_000_000
SIDE = 1 << 20

#: The result of a part that needs more GPUs.
ONE_GPU = {"ok": None, "skipped": "needs two GPUs"}
PARTS: dict[str, Callable[[], dict[str, Any]]] = {}


def part(run: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    PARTS[run.__name__] = run
    return run


def late(stream: Any, value: float, after: int = LONG) -> torch.Tensor:
    """Return memory of zeros that the stream sets to `value` after a long kernel."""
    with torch.cuda.stream(stream):
        tensor = torch.zeros(SIDE, device="cuda")
        stream.synchronize()
        torch.cuda._sleep(after)
        tensor.fill_(value)
    return tensor


def seen(tensor: torch.Tensor, on: Stream) -> float:
    """Return the value that a stream reads there now."""
    with on:
        copy = tensor.clone()
        on.synchronize()
    return float(copy[-1])


@part
def streams() -> dict[str, Any]:
    ours, theirs = Stream("cuda"), torch.cuda.Stream()
    assert ours.cuda_stream not in (0, 1, 2) and ours.__cuda_stream__() == (0, ours.cuda_stream)
    assert ours.torch().cuda_stream == ours.cuda_stream
    before = torch.cuda.current_stream()
    with ours:
        assert torch.cuda.current_stream().cuda_stream == ours.cuda_stream
        with Stream.of(theirs) as inner:
            assert torch.cuda.current_stream() == theirs and inner.cuda_stream == theirs.cuda_stream
        assert torch.cuda.current_stream().cuda_stream == ours.cuda_stream
    assert torch.cuda.current_stream() == before
    # The legacy default stream has a handle that is not NULL.
    assert Stream.of(None).cuda_stream == 1 and Stream.of(0).cuda_stream == 1
    found = {"without a wait": seen(late(theirs, 1.0), ours)}
    torch.cuda.synchronize()
    assert found["without a wait"] == 0.0, "the delay is too short for this to prove anything"
    waits: dict[str, Callable[[], object]] = {
        "wait_stream of theirs": lambda: ours.wait_stream(theirs),
        "their wait_stream of ours": lambda: ours.torch().wait_stream(theirs),
        "a record of theirs": lambda: ours.wait_event(theirs.record_event()),
        "a record of ours in theirs": lambda: ours.wait_event(Stream.of(theirs).record_event()),
        "our event in their stream": (
            lambda: ours.torch().wait_event(Stream.of(theirs).record_event().torch())
        ),
        "their event, recorded by us": lambda: ours.wait_event(
            Stream.of(theirs).record_event(torch.cuda.Event())
        ),
        "a handle": lambda: ours.wait_stream(theirs.cuda_stream),
    }
    for name, wait in waits.items():
        tensor = late(theirs, 2.0)
        wait()
        found[name] = seen(tensor, ours)
        assert found[name] == 2.0, found
    tensor = late(before, 3.0)
    ours.wait_stream(None)
    found["the default stream"] = seen(tensor, ours)
    assert found["the default stream"] == 3.0
    return {"found": found}


@part
def events() -> dict[str, Any]:
    stream = Stream("cuda")
    start, end = Event(True), Event(True)
    theirs = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with stream:
        for _ in range(2):
            start.record()
            theirs[0].record()
            torch.cuda._sleep(LONG)
            theirs[1].record()
            end.record()
            assert not end.query() and not end.torch().query()
            end.synchronize()
    assert end.query() and end.torch().query()
    ours_ms, theirs_ms = start.elapsed_time(end), theirs[0].elapsed_time(theirs[1])
    assert abs(ours_ms / theirs_ms - 1) < 0.02, (ours_ms, theirs_ms)
    return {"ours_ms": round(ours_ms, 3), "theirs_ms": round(theirs_ms, 3)}


@part
def many_streams() -> dict[str, Any]:
    """Handles of streams that were returned are reused, and so is memory that was used on these streams."""
    handles = set()
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    for number in range(200):
        stream = Stream("cuda", name="worker")
        handles.add(stream.cuda_stream)
        with stream:
            made = torch.full((SIDE,), float(number), device="cuda")
            total = made.sum()
        made.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(stream.torch())
        assert float(total) == number * SIDE
        del made, total, stream
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == start
    assert len(handles) < 20, len(handles)
    return {"handles": len(handles)}


@part
def arrays() -> dict[str, Any]:
    """Batches are made before PyTorch is imported; then PyTorch imports them, on a separate stream that has
    to wait.
    """
    code = """
import numpy as np, sidestream
held = []
batches = ([np.full(1 << 22, n, np.float32)] for n in range(6))
for number, batch in enumerate(sidestream.prefetch(batches, "cuda:0", keep="grow")):
    held.append(batch[0])
import torch
side = torch.cuda.Stream()
for number, array in enumerate(held):
    assert isinstance(array, sidestream.DeviceArray), type(array)
    with torch.cuda.stream(side):
        by_dlpack = torch.from_dlpack(array)
        by_interface = torch.as_tensor(array, device="cuda")
        assert by_dlpack.data_ptr() == by_interface.data_ptr()
        assert by_dlpack.eq(number).all().item() and by_interface.sum().item() == number * (1 << 22)
print("right")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.stdout == "right\n", ran.stdout + ran.stderr
    return {}


@part
def profile() -> dict[str, Any]:
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
    batch = torch.randn(4096, 2048)
    # 100 steps are timed without the profiler and 9 recorded with it; the rest runs unprofiled.
    with sidestream.profile(steps=8, timed=100) as profiled:
        for _ in range(112):
            model(batch.to("cuda", non_blocking=True)).sum().backward()
            profiled.step()
    assert profiled.diagnosis is not None, profiled.problem
    codes = [finding.code for finding in profiled.diagnosis.findings]
    assert codes, str(profiled)
    assert profiled.diagnosis.unprofiled == profiled.unprofiled is not None
    assert "srcdoc" in profiled.diagnosis._repr_html_()
    return {"findings": codes, "text": str(profiled)[:2500]}


@part
def examples() -> dict[str, Any]:
    """Run each example unchanged on this GPU."""
    said = {}
    for path in sorted(EXAMPLES.glob("*.py")):
        if path.name == "distributed.py":
            continue
        start = time.perf_counter()
        ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=200)
        said[path.name] = [
            round(time.perf_counter() - start, 1),
            ran.returncode,
            (ran.stdout + ran.stderr)[-900:],
        ]
    failed = [name for name, (_, code, _) in said.items() if code]
    assert not failed, {name: said[name] for name in failed}
    return {"said": said}


@part
def benchmark() -> dict[str, Any]:
    left, right = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = sidestream.benchmark(torch.mm, left, right, flops=2 * 4096**3, peak_flops=989e12)
    small = sidestream.benchmark(torch.add, left[:8], right[:8])
    waits = sidestream.benchmark(lambda: torch.mm(left, right).sum().item(), repeat=9)
    assert small.is_launch_bound and not product.is_launch_bound and waits.includes_host
    return {"texts": [str(product), str(small), str(waits)]}


@part
def memory_runs_out() -> dict[str, Any]:
    """PyTorch caches nearly all memory, unused: a prefetcher asks PyTorch to free some. If the memory is in
    use, the error says so.
    """
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(free // (1 << 30) - 1)]
    batches = [[torch.full((1 << 30,), number, dtype=torch.uint8)] for number in range(3)]
    refused = ""
    try:
        for _ in sidestream.prefetch(batches, "cuda"):
            pass
    except torch.cuda.OutOfMemoryError as error:
        refused = str(error)
    assert "batch 0" in refused or "batch 1" in refused, refused
    del kept
    free_now, _ = torch.cuda.mem_get_info()
    assert free_now < 3 << 30, "PyTorch gave its memory back by itself, so this proves nothing"
    sums = [float(batch[0][-1]) for batch in sidestream.prefetch(batches, "cuda")]
    assert sums == [0.0, 1.0, 2.0], sums
    torch.cuda.empty_cache()
    return {"refused": refused, "total_gb": round(total / 1e9, 1)}


@part
def a_batch_that_is_gone() -> dict[str, Any]:
    """Addresses are reused: recording a stream for a new batch does not affect an earlier one at that
    address.
    """
    code = """
import numpy as np, sidestream
seen = set()
again = 0
batches = sidestream.prefetch(([np.full(1 << 18, n, np.float32)] for n in range(200)), "cuda:0")
import torch
side = torch.cuda.Stream()
for number, (array,) in enumerate(batches):
    address = array.__cuda_array_interface__["data"][0]
    again += address in seen
    seen.add(address)
    with torch.cuda.stream(side):
        tensor = torch.from_dlpack(array)
        torch.cuda._sleep(200_000)
        total = tensor.sum()
        del tensor, array
        assert total.item() == number * (1 << 18), number
print(again)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(ran.stdout) > 0
    return {"addresses_seen_again": int(ran.stdout)}


@part
def workspaces() -> dict[str, Any]:
    """Two graphs of products, captured on one stream and replayed concurrently, write to one cuBLAS
    workspace.

    With products that add a bias (`addmm`), this hangs the GPU, so it is not tried here.
    """
    wrong = {}
    rounds, products = 50, 20
    for name in ("one stream", "a stream each"):
        replayed = [torch.cuda.Stream() for _ in range(2)]
        graphs, outputs, expected = [], [], []
        for stream in replayed:
            pairs = [
                (torch.randn(64, 16384, device="cuda"), torch.randn(16384, 64, device="cuda"))
                for _ in range(products)
            ]
            with torch.cuda.stream(torch.cuda.Stream()):
                made = [torch.mm(left, right) for left, right in pairs]
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=None if name == "one stream" else stream):
                for output, (left, right) in zip(made, pairs, strict=True):
                    torch.mm(left, right, out=output)
            graph.replay()
            torch.cuda.synchronize()
            graphs.append((graph, pairs))
            outputs += made
            expected += [output.clone() for output in made]
        wrong[name] = 0
        for _ in range(rounds):
            for output in outputs:
                output.zero_()
            torch.cuda.synchronize()
            for stream, (graph, _) in zip(replayed, graphs, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
            torch.cuda.synchronize()
            wrong[name] += sum(
                not torch.equal(one, other) for one, other in zip(outputs, expected, strict=True)
            )
    assert wrong["one stream"] > 0 and wrong["a stream each"] == 0, wrong
    return {"wrong": wrong, "of": rounds * 2 * products}


@part
def engine_notes() -> dict[str, Any]:
    """Compare the check with PyTorch's engine, case by case: the engine records a gradient that it passes to
    a node of another stream, and no other memory.

    Memory that is not recorded is reused while the other stream still works. The check must agree in each
    case.
    """
    main = torch.cuda.current_stream()
    kept: list[torch.Tensor] = []
    at: list[int] = []

    class Gives(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, leaves: bool) -> Any:
            ctx.leaves = leaves
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            made = torch.full((SIDE,), 2.0, device="cuda")
            at.append(made.data_ptr())
            if not ctx.leaves:
                return made, None
            kept.append(made)
            return torch.full((SIDE,), 3.0, device="cuda"), None

    class Takes(Doubles):
        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            torch.cuda._sleep(LONG)
            return (kept.pop() if kept else gradient) * 2

    def gradient(side: torch.cuda.Stream, leaves: bool) -> None:
        hidden = Takes.apply(torch.ones(SIDE, device="cuda", requires_grad=True))
        side.wait_stream(main)
        with torch.cuda.stream(side):
            loss = Gives.apply(hidden, leaves).sum()
        main.wait_stream(side)
        loss.backward()

    def saved(side: torch.cuda.Stream) -> None:
        weight = torch.ones(SIDE, device="cuda", requires_grad=True)
        with torch.cuda.stream(side):
            x = torch.full((SIDE,), 2.0, device="cuda")
        main.wait_stream(side)
        at.append(x.data_ptr())
        loss = (x * weight).sum()
        torch.cuda._sleep(LONG)
        loss.backward()

    programs: dict[str, tuple[Callable[[torch.cuda.Stream], None], bool]] = {
        "saved by the forward": (saved, False),
        "handed over by the engine": (lambda side: gradient(side, False), True),
        "left for another node": (lambda side: gradient(side, True), False),
    }
    found: dict[str, Any] = {}
    for name, (program, noted) in programs.items():
        again = 0
        for _ in range(3):
            side = torch.cuda.Stream()
            torch.cuda.synchronize()
            with sidestream.check() as checked:
                program(side)
                with torch.cuda.stream(side):
                    blocks = [torch.zeros(SIDE, device="cuda") for _ in range(16)]
                assert not main.query(), "the delay is too short for this to prove anything"
                again += at.pop() in [block.data_ptr() for block in blocks]
                torch.cuda.synchronize()
            del blocks
            kinds = sorted({race.kind for race in checked.races})
            assert (kinds == []) if noted else ("UAF" in kinds), (name, str(checked))
        found[name] = {"handed out while busy": again, "of": 3}
        assert again == (0 if noted else 3), found
    return found


# Two GPUs.


@part
def two_gpus() -> dict[str, Any]:
    if torch.cuda.device_count() < 2:
        return ONE_GPU
    found: dict[str, Any] = {}
    zero, one = Stream("cuda:0"), Stream("cuda:1")
    tensor = late(torch.cuda.default_stream(0), 1.0)
    zero.wait_stream(torch.cuda.default_stream(0))
    one.wait_stream(zero)
    with one:
        moved = torch.empty_like(tensor, device="cuda:1")
        moved.copy_(tensor, non_blocking=True)
        one.synchronize()
    found["stream across"] = float(moved[-1])
    tensor = late(torch.cuda.default_stream(0), 2.0)
    event = Event(device="cuda:0")
    event.record(torch.cuda.default_stream(0))
    one.wait_event(event)
    with one:
        moved.copy_(tensor, non_blocking=True)
        one.synchronize()
    found["event across"] = float(moved[-1])
    assert found == {"stream across": 1.0, "event across": 2.0}, found
    # Prefetch to the other GPU while the first one is current, with and without a transform there.
    for transform in (None, lambda batch: [batch[0] * 2]):
        batches = ([torch.full((1 << 20,), float(number)).pin_memory()] for number in range(40))
        for number, batch in enumerate(sidestream.prefetch(batches, "cuda:1", transform=transform)):
            assert batch[0].device == torch.device("cuda", 1)
            assert float(batch[0][-1]) == number * (1 if transform is None else 2)
    assert torch.cuda.current_device() == 0
    pipe = sidestream.Pipeline([lambda x: x * 2, lambda x: x.sum()], mode="streams", device="cuda:1")
    sums = [result.item() for result in pipe(torch.full((1 << 10,), float(number)) for number in range(20))]
    assert sums == [2.0 * number * (1 << 10) for number in range(20)]
    assert torch.cuda.current_device() == 0
    return found


@part
def torchrun() -> dict[str, Any]:
    count = torch.cuda.device_count()
    if count < 2:
        return ONE_GPU
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    ran = subprocess.run(
        [*command, str(EXAMPLES / "distributed.py")], capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0 and ran.stdout.count("the models agree") == count, (
        ran.stdout + ran.stderr[-3000:]
    )
    return {"said": ran.stdout}


@part
def ranks() -> dict[str, Any]:
    """Diagnose the traces of two ranks that exchange gradients together."""
    if torch.cuda.device_count() < 2:
        return ONE_GPU
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(
            "import os, sys, torch, torch.distributed as dist, sidestream\nrank = "
            "int(os.environ['LOCAL_RANK']); torch.cuda.set_device(rank); "
            "dist.init_process_group('nccl')\nmodel = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for "
            "_ in range(8))).cuda()\nmodel = torch.nn.parallel.DistributedDataParallel(model)\nbatches = "
            "[torch.randn(2048 * (1 + rank), 2048).pin_memory() for _ in range(20)] * 6\nwith "
            f"sidestream.profile(steps=8, path='{folder}/rank%d.json' % rank) as profiled:\n    for batch in "
            "sidestream.prefetch(batches, rank):\n        model(batch).sum().backward(); "
            "profiled.step()\ndist.destroy_process_group()\n"
        )
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(script),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert ran.returncode == 0, ran.stderr[-3000:]
        script.unlink()
        together = sidestream.diagnose(folder)
        found: dict[str, Any] = {"text": str(together)[-3500:]}
        assert together.ranks is not None and together.ranks.straggler == 1, found
        try:
            import ray
        except ImportError:
            return found | {"ray": "not installed"}
        from sidestream.ray import diagnose

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        assert diagnose(folder).ranks == together.ranks
        ray.shutdown()
    return found | {"ray": ray.__version__}


if __name__ == "__main__":
    sys.exit(parts.run(PARTS, sys.argv[1:]))
