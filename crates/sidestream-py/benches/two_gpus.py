"""What crosses the two GPUs of one machine: one JSON object per line, with `ok`.

    python crates/sidestream-py/benches/two_gpus.py [--dry] [PART ...]

Parts: peers, planted, feeds, branches, fsdp, record. Each is `ok` if its bits, lanes and reports are right.
`--dry` tries the script without a GPU, on two simulated ones under the check: then times mean nothing, and
`record` is skipped. `real_gpu.py`, `ranks_gpu.py` and `interprocess_gpu.py --two` have the other parts.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import parts
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from planted.streams import across_devices
from torch import nn

import sidestream

DRY = "--dry" in sys.argv
SIMULATED: dict[str, Any] = {"simulate": 2} if DRY else {}
COUNT, COPIES, SIDE, BATCHES = (1 << 10, 2, 16, 6) if DRY else (1 << 24, 16, 4096, 200)


@contextlib.contextmanager
def gpus() -> Iterator[None]:
    """Two real GPUs; dry, two simulated ones, on which nothing may race."""
    if not DRY:
        yield
        return
    with sidestream.check(simulate=2) as found:
        yield
    assert not found.races and found.ended is None, str(found)


def both() -> None:
    for number in range(2):
        torch.cuda.synchronize(number)


def milliseconds(run: Callable[[], object], rounds: int = 5) -> float:
    took = []
    for _ in range(rounds + 1):
        both()
        start = time.perf_counter()
        run()
        both()
        took.append((time.perf_counter() - start) * 1e3)
    return statistics.median(took[1:])


def at_once(run: Callable[[int], Any]) -> list[Any]:
    """Call a function with the number of each GPU, in a thread each, and return what both return."""
    results: list[Any] = [None, None]

    def on(number: int) -> None:
        torch.cuda.set_device(number)
        try:
            results[number] = run(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=on, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def planted() -> dict[str, Any]:
    kinds = []
    for right in (False, True):
        with sidestream.check(**SIMULATED) as found:
            across_devices(right)
            both()
        kinds.append([race.kind for race in found.races])
    assert kinds == [["RAW"], []], kinds
    return {"racy": kinds[0], "repaired": kinds[1]}


class Peers:
    """Copies from GPU 0 to GPU 1 on a stream of their own, beside products on both."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream(0) if DRY else sidestream.Stream("cuda:0").torch()
        # PyTorch orders a copy after the current streams of both GPUs.
        self.there = torch.cuda.Stream(1)
        self.source = torch.arange(COUNT, dtype=torch.int32, device="cuda:0")
        self.target = torch.zeros(COUNT, dtype=torch.int32, device="cuda:1")
        self.sides = [torch.ones(SIDE, SIDE, device=f"cuda:{number}") for number in range(2)]
        self.outs = [torch.empty_like(side) for side in self.sides]
        both()

    def kernels(self) -> None:
        for side, out in zip(self.sides, self.outs):
            for _ in range(2):
                torch.mm(side, side, out=out)

    def copies(self) -> None:
        with torch.cuda.stream(self.there), torch.cuda.stream(self.stream):
            for _ in range(COPIES):
                self.target.copy_(self.source, non_blocking=True)

    def by_the_driver(self) -> None:
        """The driver's own copies, in the same stream. Until PyTorch asks for peer access, at its first copy
        between the GPUs, the driver stages them in the host's memory.
        """
        copy, of = ctypes.CDLL("libcuda.so.1").cuMemcpyAsync, ctypes.c_void_p
        target, source = of(self.target.data_ptr()), of(self.source.data_ptr())
        for _ in range(COPIES):
            code = copy(target, source, ctypes.c_size_t(COUNT * 4), of(self.stream.cuda_stream))
            assert code == 0, code

    def together(self) -> None:
        self.kernels()
        self.copies()

    def is_right(self) -> bool:
        both()
        return torch.equal(self.source.cpu(), self.target.cpu())


def peers() -> dict[str, Any]:
    with gpus(), tempfile.TemporaryDirectory() as folder:
        torch.cuda.set_device(0)
        work = Peers()
        rate = lambda took: round(COUNT * 4 * COPIES / took / 1e6, 1)  # noqa: E731
        found: dict[str, Any] = {}
        if not DRY:
            found["driver, staged GB/s"] = rate(milliseconds(work.by_the_driver))
            assert work.is_right()
        work.target.zero_()
        both()
        alone = milliseconds(work.copies)
        assert work.is_right()
        found["on our stream GB/s"] = rate(alone)
        if not DRY:
            found["driver, direct GB/s"] = rate(milliseconds(work.by_the_driver))
        kernels = milliseconds(work.kernels)
        work.target.zero_()
        both()
        together = milliseconds(work.together)
        assert work.is_right()
        found |= {"copies ms": alone, "kernels ms": kernels, "together ms": together}
        if DRY:
            return found
        assert together < 0.9 * (alone + kernels), found
        path = Path(folder) / "peers.json"
        with sidestream.profile(steps=4, timed=False, path=path) as profiled:
            for _ in range(6):
                work.together()
                both()
                profiled.step()
        assert profiled.diagnosis is not None, profiled.problem
        lanes = [copy for copy in profiled.diagnosis.to_dict()["copies"] if copy["direction"] == "PtoP"]
        assert lanes and "(peer copy)" in profiled.diagnosis.html(), profiled.diagnosis.to_dict()["copies"]
        (lane,) = lanes
        assert lane["count"] >= 4 * COPIES and lane["bytes"] == lane["count"] * COUNT * 4, lane
        return found | {"in the trace": lane}


def feeds() -> dict[str, Any]:
    """Prefetch batches and answer requests on each GPU, one after the other and on both at once."""

    def feed(number: int) -> float:
        batches = ([torch.full((COUNT // 4,), float(at)).pin_memory()] for at in range(BATCHES))
        weights = torch.arange(64.0, device=f"cuda:{number}").reshape(8, 8) + number
        rows = [torch.full((8,), float(at)) for at in range(BATCHES)]
        start = time.perf_counter()
        with sidestream.Batcher(lambda x: x @ weights, (1, 8), device=f"cuda:{number}") as batcher:
            answers = [batcher.submit(row) for row in rows]
            for at, (batch,) in enumerate(sidestream.prefetch(batches, f"cuda:{number}")):
                assert batch.device == torch.device("cuda", number)
                assert float(batch[-1]) == float(batch[0]) == at, (number, at)
            got = torch.stack([answer.result() for answer in answers])
        took = time.perf_counter() - start
        assert torch.equal(got, torch.stack(rows) @ weights.cpu()), number
        return took * 1e3

    with gpus():
        alone = []
        for number in range(2):
            torch.cuda.set_device(number)
            feed(number)
            alone.append(feed(number))
        start = time.perf_counter()
        at_once(feed)
        took = (time.perf_counter() - start) * 1e3
        torch.cuda.set_device(0)
        return {"batches": BATCHES, "alone ms": alone, "both at once ms": took}


def branches() -> dict[str, Any]:
    """Train branches of a model on each GPU at once, and a model that has a branch on each."""
    width, seeded = 64 if DRY else 2048, threading.Lock()

    class Elsewhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(width, width, device="cuda:1")

        def forward(self, x: Any) -> Any:
            return self.inner(x.to("cuda:1", non_blocking=True)).to(x.device, non_blocking=True)

    def trained(number: int, mode: Any, has_elsewhere: bool) -> list[Any]:
        # The seed is one for all threads and GPUs.
        with seeded:
            torch.manual_seed(number)
            left = nn.Linear(width, width, device=f"cuda:{number}")
            right = Elsewhere() if has_elsewhere else nn.Linear(width, width, device=f"cuda:{number}")
        model = sidestream.parallel(left, right, mode=mode)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.ones(64, width, device=f"cuda:{number}") / width
        for _ in range(5):
            optimizer.zero_grad()
            sum(out.square().sum() for out in model(x)).backward()
            optimizer.step()
        both()
        return [value.detach().cpu() for value in model.parameters()]

    def same(one: list[Any], other: list[Any]) -> bool:
        return all(map(torch.equal, one, other))

    with gpus():
        torch.cuda.set_device(0)
        across = [trained(0, mode, True) for mode in ("serial", "streams")]
        assert same(*across), "a branch on the other GPU"
        serial = []
        for number in range(2):
            torch.cuda.set_device(number)
            serial.append(trained(number, "serial", False))
        streams = at_once(lambda number: trained(number, "streams", False))
        torch.cuda.set_device(0)
        assert all(map(same, serial, streams)), "both GPUs at once"
    if not DRY:
        with sidestream.check() as found:
            trained(0, "streams", True)
        assert not found.races and found.ended is None, str(found)
    return {"equal to serial": "a branch on each GPU; branches on each GPU at once"}


def transformer(width: int, layers: int) -> nn.Sequential:
    block = lambda: nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
    return nn.Sequential(*(block() for _ in range(layers)))


def sharded(rank: int, port: int) -> None:
    """Train a small transformer with FSDP2 under the check, and once with a missing wait."""
    from torch.distributed.fsdp import fully_shard

    where = {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": 2}
    device = torch.device("cuda", 0 if DRY else rank)
    kinds = []
    with contextlib.ExitStack() as stack:
        for right in (True, False):
            with sidestream.check(**SIMULATED) as found:
                torch.cuda.set_device(device)
                if right:
                    dist.init_process_group("gloo" if DRY else "nccl", **where)
                    stack.callback(dist.destroy_process_group)
                torch.manual_seed(0)
                model = transformer(64 if DRY else 512, 4).to(device)
                mesh = dist.device_mesh.init_device_mesh("cuda", (2,))
                for layer in (*model, model):
                    fully_shard(layer, mesh=mesh)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
                side = torch.cuda.Stream()
                for _ in range(2 if DRY else 6):
                    with torch.cuda.stream(side):
                        host = torch.ones(8, 32, 64 if DRY else 512).pin_memory()
                        x = host.to(device, non_blocking=True)
                    if right:
                        torch.cuda.current_stream().wait_stream(side)
                        x.record_stream(torch.cuda.current_stream())
                    model(x).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                torch.cuda.synchronize()
            kinds.append(sorted({race.kind for race in found.races}))
            assert found.ended is None and kinds[0] == [], f"rank {rank}: {found}"
            parts.say("fsdp", rank=rank, waits=right, operations=found.operations, races=kinds[-1])
    assert "RAW" in kinds[1], f"rank {rank}: the missing wait is not found: {kinds}"


def fsdp() -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(sharded, (port,), nprocs=2)
    return {"ranks": 2}


#: Two ranks that sum over NCCL; the second one uploads on a stream for which its kernel does not wait.
RANK = """
import os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
host, side = torch.ones(1 << 22).pin_memory(), torch.cuda.Stream()
total, x = torch.zeros(1 << 22, device="cuda"), torch.empty(1 << 22, device="cuda")
for step in range(4):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.copy_(host, non_blocking=True)
    if rank == 0:
        torch.cuda.current_stream().wait_stream(side)
    total.add_(x)
    dist.all_reduce(total)
    torch.cuda.synchronize()
dist.destroy_process_group()
"""


def record() -> dict[str, Any]:
    """Record `torchrun` and its two ranks, and check the log of each: only the second rank races."""
    if DRY:
        return {"ok": None, "skipped": "needs two GPUs"}
    with tempfile.TemporaryDirectory() as folder:
        script, log = Path(folder, "rank.py"), Path(folder, "run.log")
        script.write_text(RANK)
        command = [sys.executable, "-m", "sidestream"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        start = time.perf_counter()
        ran = subprocess.run(
            [*command, "record", "-o", str(log), "--", *torchrun, str(script)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        took = time.perf_counter() - start
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
        logs = sorted(Path(folder).glob("run.log*"))
        reports = []
        for one in logs:
            checked = subprocess.run([*command, "check", str(one)], capture_output=True, text=True)
            kinds = [
                kind for kind in ("RAW", "WAR", "WAW", "UAF", "UBA") if f"\n  {kind} on" in checked.stdout
            ]
            reports.append((checked.returncode, kinds))
            parts.say(
                "record", log=one.name, exit=checked.returncode, kinds=kinds, text=checked.stdout[:1500]
            )
        # The launcher initializes CUDA, too, and has a log without work.
        assert len(logs) in (2, 3) and [bool(kinds) for _, kinds in reports].count(True) == 1, (
            reports,
            ran.stdout[-2000:],
        )
        return {"logs": len(logs), "said": ran.stdout[-300:], "seconds recording": round(took, 1)}


PARTS = {part.__name__: part for part in (peers, planted, feeds, branches, fsdp, record)}

if __name__ == "__main__":
    if not DRY and torch.cuda.device_count() < 2:
        sys.exit("two GPUs are needed; --dry tries the script without")
    sys.exit(parts.run(PARTS, [name for name in sys.argv[1:] if name != "--dry"]))
