"""What ``sidestream.check`` costs and finds on a machine with a GPU.

    python check_gpu.py            # everything, one JSON object a line
    python check_gpu.py step       # what a training step takes: plain, checked, under PyTorch's sanitizer
    python check_gpu.py loops      # a thousand right steps of several programs: no report may come
    python check_gpu.py planted    # racy loops and their repaired twins
    python check_gpu.py host       # what a copy costs more where the host's own accesses are heard

A part that fails says so in its line; the others run all the same.
"""

from __future__ import annotations

import gc
import json
import queue
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from planted_backward import PLANTED as BACKWARD
from planted_programs import LOOPS as PROGRAMS
from planted_programs import PLANTED as OTHERS
from planted_streams import PLANTED
from torch import nn
from training_loops import checkpoint_loop, embedding_loop, loader_loop, offload_loop, recurrent_loop

STEPS = 1000


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def guarded(part: str, name: str, run: Callable[[], dict[str, Any]]) -> None:
    try:
        say(part=part, name=name, **run())
    except BaseException as error:
        text = traceback.format_exc()[-1500:]
        say(part=part, name=name, error=f"{type(error).__name__}: {error}"[:2000], trace=text)
        if isinstance(error, KeyboardInterrupt):
            raise


# ---------------------------------------------------------------- (a) what a step takes


def mlp_step() -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(512, 512), nn.ReLU())]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 512, device="cuda"), torch.randn(64, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step


def timed(step: Callable[[], None], steps: int = 50, rounds: int = 9) -> dict[str, Any]:
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / steps * 1e3)
    return {"step_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times)}


def step_alone(how: str) -> dict[str, Any]:
    step = mlp_step()
    if how == "plain":
        return timed(step)
    if how == "csan":
        import torch.cuda._sanitizer as sanitizer

        sanitizer.enable_cuda_sanitizer()
        return timed(step, steps=5, rounds=7)
    if how == "mode":
        from torch.utils._python_dispatch import TorchDispatchMode

        class Empty(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return func(*args, **(kwargs or {}))

        with Empty():
            return timed(step)
    import sidestream

    with sidestream.check(stacks=how != "check_without_stacks", host=how != "check_without_host") as found:
        took = timed(step)
    return {
        **took,
        "host": str(found.host),
        "races": len(found.races),
        "operations": found.operations,
        "ended": found.ended,
    }


def steps() -> None:
    medians: dict[str, float] = {}
    for how in (
        "plain",
        "check",
        "check_without_stacks",
        "check_without_host",
        "mode",
        "csan",
        "plain_again",
    ):

        def run(how: str = how) -> dict[str, Any]:
            command = [sys.executable, __file__, "step_alone", how.removesuffix("_again")]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if ran.returncode:
                return {"error": ran.stderr[-2000:]}
            result: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
            medians[how] = result["step_ms"]
            if "plain" in medians:
                result["ratio"] = result["step_ms"] / medians["plain"]
            return result

        guarded("step", how, run)


# ---------------------------------------------------------------- (b) right programs


def loader(shape: tuple[int, ...], classes: int, steps: int) -> Any:
    class Data(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return steps * 16

        def __getitem__(self, at: int) -> Any:
            return torch.full(shape, at % 7 / 7.0), at % classes

    return torch.utils.data.DataLoader(Data(), batch_size=16, pin_memory=True)


def mlp_loop(steps: int) -> None:
    """Pinned batches copied without waiting, and gradients of four steps together."""
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
    """The next batch is copied on a stream of its own."""
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
    """Mixed precision with a scaler, and results that are fetched without waiting."""
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
    """Two branches on streams of their own, forward and backward, and memory that moves between them."""
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
    """A thread uploads, and hands over tensors with the event behind them."""
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
    # A new prefetcher each epoch, of what the one before has left, and one that is left early.
    for leave in (3, steps):
        for x, y in prefetch(iter(batches[:leave + 5]), "cuda", depth=2, transform=double):
            x.add_(1)
            (x @ weights).sum() + y.sum()
            leave -= 1
            if not leave:
                break
    for x, y in prefetch(batches, "cuda"):
        (x @ weights).sum() + y.sum()


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


def loops() -> None:
    import sidestream

    for loop in (*LOOPS, *PROGRAMS):

        def run(loop: Callable[[int], None] = loop) -> dict[str, Any]:
            torch.cuda.synchronize()
            start = time.perf_counter()
            loop(100)
            torch.cuda.synchronize()
            plain = (time.perf_counter() - start) / 100
            start = time.perf_counter()
            with sidestream.check() as found:
                loop(STEPS)
                torch.cuda.synchronize()
            took = (time.perf_counter() - start) / STEPS
            return {
                "steps": STEPS,
                "races": len(found.races),
                "ok": not found.races and found.ended is None,
                "operations": found.operations,
                "plain_step_ms": plain * 1e3,
                "checked_step_ms": took * 1e3,
                "ended": found.ended,
                "host": str(found.host),
                "lints": sorted({lint.code for lint in found.lints}),
                "report": str(found)[:6000] if found.races else "",
            }

        guarded("loop", loop.__name__, run)


# ---------------------------------------------------------------- (c) what a copy costs more, and planted
# races


def host_copies() -> None:
    """What a copy costs more where its memory is watched, and whether what arrives is right."""
    import sidestream

    for size in (512, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20):

        def run(size: int = size) -> dict[str, Any]:
            host = torch.arange(size // 4, dtype=torch.int32).pin_memory()
            x = torch.zeros(size // 4, dtype=torch.int32, device="cuda")
            back = torch.zeros(size // 4, dtype=torch.int32, pin_memory=True)
            count = 1000 if size <= 1 << 20 else 20
            result: dict[str, Any] = {"bytes": size}
            for turn in range(2):
                for how in (False, True):
                    with sidestream.check(host=how) as found:
                        times = []
                        for _ in range(count):
                            start = time.perf_counter()
                            x.copy_(host, non_blocking=True)
                            submitted = time.perf_counter()
                            torch.cuda.current_stream().synchronize()
                            times.append((submitted - start, time.perf_counter() - start))
                        back.copy_(x, non_blocking=True)
                        torch.cuda.synchronize()
                        right = bool((back.numpy() == host.numpy()).all())
                    name = "watched" if how else "plain"
                    result[f"{name}_{turn}_us"] = statistics.median(took for took, _ in times) * 1e6
                    result[f"{name}_{turn}_with_the_wait_us"] = (
                        statistics.median(took for _, took in times) * 1e6
                    )
                    result["ok"] = result.get("ok", True) and right and not found.races
                    if how:
                        result["unwatched_share"] = found.host.unwatched_bytes / max(found.host.bytes, 1)
                        result["problem"] = found.host.problem
            result["more_us"] = min(result["watched_0_us"], result["watched_1_us"]) - min(
                result["plain_0_us"], result["plain_1_us"]
            )
            return result

        guarded("host", f"{size} bytes", run)


def plants() -> None:
    import sidestream

    for program in (*PLANTED, *BACKWARD, *OTHERS):

        def run(program: Callable[[bool], None] = program) -> dict[str, Any]:
            kinds = []
            texts = []
            for right in (False, True):
                torch.cuda.synchronize()
                gc.collect()
                with sidestream.check() as found:
                    program(right)
                    torch.cuda.synchronize()
                kinds.append(sorted({race.kind for race in found.races}))
                texts.append(str(found))
            ok = bool(kinds[0]) and not kinds[1]
            return {
                "ok": ok,
                "racy": kinds[0],
                "repaired": kinds[1],
                "report": "" if ok else "\n\n".join(texts)[:6000],
            }

        guarded("planted", program.__name__, run)


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what == "step_alone":
        print(json.dumps(step_alone(sys.argv[2])), flush=True)
        return
    guarded(
        "machine",
        torch.cuda.get_device_name(),
        lambda: {"torch": torch.__version__, "python": sys.version.split()[0]},
    )
    if what in ("all", "step"):
        steps()
    if what in ("all", "planted"):
        plants()
    if what in ("all", "host"):
        host_copies()
    if what in ("all", "loops"):
        loops()


if __name__ == "__main__":
    main()
