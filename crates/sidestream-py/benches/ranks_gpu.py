"""Runs of two ranks with one planted fault each, and two without a fault; measures what each fault costs, and
whether the diagnosis of both traces names it and predicts the step without it. The slow rank computes longer,
waits for its loader, or waits for copies; the ranks form a tensor, data or pipeline group, or share the
weights of a small transformer by FSDP2.

On a machine with two GPUs:

    python benches/ranks_gpu.py OUT [--steps 12] [--groups data fsdp]

OUT/ranks.tar has the traces, CASE/rank0.json.gz and CASE/rank1.json.gz, and truth.json, which is also written
next to the archive: for each case the slow rank, the cause, the time of a step with and without the fault
(without the profiler), and the time of each rank's own work without exchanges; and what the diagnosis says.
The exit code is 1 if it names another rank or cause, or is more than 15 % off; a fault that costs less than
3 % need not be named. `--dry` runs a small version with gloo on the CPU, to test the script: its traces have
no GPU, and nothing is judged. `--judge` only judges the traces that an earlier run left in OUT, unpacked,
without GPUs.
"""

from __future__ import annotations

import argparse
import bisect
import gzip
import json
import os
import socket
import statistics
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

import sidestream

#: For each case: the groups, the planted fault, and the rank that has it.
CASES = {
    "tensor_compute": ("tensor", "compute", 1),
    "tensor_loader": ("tensor", "loader", 0),
    "tensor_copies": ("tensor", "copies", 1),
    "data_compute": ("data", "compute", 0),
    "data_loader": ("data", "loader", 1),
    "data_copies": ("data", "copies", 0),
    "pipeline_compute": ("pipeline", "compute", 1),
    "pipeline_loader": ("pipeline", "loader", 0),
    "pipeline_copies": ("pipeline", "copies", 1),
    "data_even": ("data", "nothing", None),
    "fsdp_compute": ("fsdp", "compute", 0),
    "fsdp_loader": ("fsdp", "loader", 1),
    "fsdp_even": ("fsdp", "nothing", None),
}
GROUPS = ("tensor", "data", "pipeline", "fsdp")
#: The prediction may differ by this share of the step that was timed without the fault.
MOST_OFF = 0.15
#: A fault that costs a smaller share of the step need not be named.
COSTS = 0.03
LAYERS = 8
MICRO_BATCHES = 4


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Batches that take a given time to make."""

    def __init__(self, elements: int, seconds: float, count: int) -> None:
        self.elements, self.seconds, self.count = elements, seconds, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> torch.Tensor:
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        return torch.full((self.elements,), float(at))


class Block(nn.Module):
    """A layer of a transformer, which may compute more."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
        self.more: Any = None

    def forward(self, x: Any) -> Any:
        if self.more is not None:
            self.more()
        return self.inner(x)


class Job:
    """The work of one rank in a step."""

    def __init__(self, rank: int, device: torch.device, groups: dict[str, Any], dry: bool) -> None:
        self.rank, self.device, self.groups = rank, device, groups
        self.size = 128 if dry else 2048
        self.elements = 1 << (10 if dry else 22)
        self.slow_seconds = 0.004 if dry else 0.015
        self.copied = 1 << (12 if dry else 24)
        self.weights = [torch.randn(self.size, self.size, device=device) / self.size for _ in range(LAYERS)]
        self.gradients = [torch.ones(self.elements, device=device) for _ in range(LAYERS)]
        self.large = torch.ones(self.copied)
        self.on_device = torch.empty(self.copied, device=device)
        self.models = {talks: self.transformer(talks) for talks in (False, True)}

    def transformer(self, is_sharded: bool) -> nn.Sequential:
        from torch.distributed.fsdp import fully_shard

        model = nn.Sequential(*(Block(self.size // 2) for _ in range(4))).to(self.device)
        if is_sharded:
            mesh = dist.device_mesh.init_device_mesh(self.device.type, (2,))
            for layer in (*model, model):
                fully_shard(layer, mesh=mesh)
        return model

    def loader(self, planted: str, count: int) -> Any:
        seconds = self.slow_seconds if planted == "loader" else 0.0
        return iter(torch.utils.data.DataLoader(Rows(self.size, seconds, count), batch_size=None))

    def step(self, kind: str, planted: str, batches: Any, talks: bool) -> None:
        x = next(batches).to(self.device).expand(self.size, self.size)
        if planted == "copies":
            # The source is pageable, and the copy runs in the stream of the kernels.
            self.on_device.copy_(self.large)
        times = 2 if planted == "compute" else 1
        getattr(self, kind)(x, times, talks)

    def compute(self, x: torch.Tensor, layer: int, times: int) -> torch.Tensor:
        for _ in range(times):
            y = x @ self.weights[layer]
        return y

    def tensor(self, x: torch.Tensor, times: int, talks: bool) -> None:
        """A tensor-parallel group: the result of each layer is summed over the group before the next layer
        runs.
        """
        for layer in range(LAYERS):
            x = self.compute(x, layer, times)
            if talks:
                dist.all_reduce(x, group=self.groups["tensor"])

    def data(self, x: torch.Tensor, times: int, talks: bool) -> None:
        """A data-parallel group: gradients are summed while the next layer is computed, and the rank waits
        for all of them at the end.
        """
        works = []
        for layer in range(LAYERS):
            x = self.compute(x, layer, times)
            if talks:
                works.append(dist.all_reduce(self.gradients[layer], group=self.groups["data"], async_op=True))
        for work in works:
            work.wait()
        self.gradients[0].mul_(0.5)

    def pipeline(self, x: torch.Tensor, times: int, talks: bool) -> None:
        """A pipeline of two stages: all micro-batches run forward, then all of them backward."""
        group, peer = self.groups["pipeline"], 1 - self.rank
        half = LAYERS // 2
        for back in (False, True):
            for _ in range(MICRO_BATCHES):
                # The first stage begins the forward pass, the last one the backward pass.
                begins = (self.rank == 0) != back
                y = x.contiguous()
                if talks and not begins:
                    dist.recv(y, peer, group=group)
                for layer in range(half):
                    y = self.compute(y, layer, times)
                if talks and begins:
                    dist.send(y, peer, group=group)

    def fsdp(self, x: torch.Tensor, times: int, talks: bool) -> None:
        """Weights are gathered before each layer, forward and backward, and gradients scattered behind it."""
        model = self.models[talks]
        for block in model:
            block.more = None if times == 1 else lambda: [self.compute(x, layer, 1) for layer in range(2)]
        model(x.reshape(-1, 64, self.size // 2)[:16]).square().mean().backward()
        model.zero_grad()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(job: Job, kind: str, planted: str, steps: int, talks: bool) -> float:
    """Return the time of a step in nanoseconds, without the profiler."""
    batches = job.loader(planted, steps + 4)
    for _ in range(4):
        job.step(kind, planted, batches, talks)
    synchronize(job.device)
    dist.barrier()
    began = time.perf_counter_ns()
    for _ in range(steps):
        job.step(kind, planted, batches, talks)
    synchronize(job.device)
    return (time.perf_counter_ns() - began) / steps


def traced(job: Job, kind: str, planted: str, steps: int, path: Path) -> None:
    batches = job.loader(planted, steps + 8)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (job.device.type == "cuda")
    path.parent.mkdir(exist_ok=True)
    plan = schedule(wait=1, warmup=2, active=steps, repeat=1)
    save = lambda profiler: profiler.export_chrome_trace(str(path))  # noqa: E731
    with profile(activities=activities, schedule=plan, on_trace_ready=save) as profiler:
        for _ in range(steps + 4):
            job.step(kind, planted, batches, True)
            profiler.step()
    synchronize(job.device)


def each(rank: int, port: int, folder: str, steps: int, dry: bool, wanted: list[str]) -> None:
    """Run one rank."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank)
    )
    device = torch.device("cpu") if dry else torch.device("cuda", rank)
    if dry:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=2)
    else:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", rank=rank, world_size=2, device_id=device)
    groups = {kind: dist.new_group([0, 1], group_desc=kind) for kind in ("tensor", "data", "pipeline")}
    job = Job(rank, device, groups, dry)
    told: dict[str, Any] = {}
    for case, (kind, planted, slow) in CASES.items():
        if kind not in wanted:
            continue
        mine = planted if rank == slow else "nothing"
        step = [timed(job, kind, mine, steps, True) for _ in range(3)]
        twin = [timed(job, kind, "nothing", steps, True) for _ in range(3)]
        alone = [timed(job, kind, mine, steps, False) for _ in range(3)]
        traced(job, kind, mine, steps, Path(folder) / case / f"rank{rank}.json.gz")
        figures = [statistics.median(each) for each in (step, twin, alone)]
        gathered: list[Any] = [None, None]
        dist.all_gather_object(gathered, figures)
        told[case] = {
            "group": kind,
            "cause": planted,
            "slow": slow,
            "step_ns": max(one[0] for one in gathered),
            "even_step_ns": max(one[1] for one in gathered),
            "alone_ns": [one[2] for one in gathered],
        }
        if rank == 0:
            print(json.dumps({case: told[case]}), flush=True)
    if rank == 0:
        name = "cpu" if dry else torch.cuda.get_device_name(device)
        about = {"torch": torch.__version__, "device": name, "steps": steps, "cases": told}
        Path(folder, "truth.json").write_text(json.dumps(about, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def slowed(path: Path) -> float | None:
    """Return how many times as long the rank's main kernel takes beside an exchange as without one."""
    rows = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kernels = [row for row in rows if row.get("cat") == "kernel"]
    kernels.sort(key=lambda row: float(row["ts"]))
    spans = [(k["ts"], k["ts"] + k["dur"]) for k in kernels if k["name"].startswith("nccl")]
    sums: dict[str, float] = {}
    for kernel in kernels:
        if not kernel["name"].startswith("nccl"):
            sums[kernel["name"]] = sums.get(kernel["name"], 0.0) + kernel["dur"]
    beside: dict[bool, list[float]] = {True: [], False: []}
    for kernel in kernels:
        if sums and kernel["name"] == max(sums, key=lambda name: sums[name]):
            start, end = kernel["ts"], kernel["ts"] + kernel["dur"]
            near = spans[max(0, bisect.bisect(spans, (start,)) - 2) :][:8]
            covered = sum(max(0.0, min(end, to) - max(start, since)) for since, to in near)
            if not 0.1 * kernel["dur"] < covered < 0.9 * kernel["dur"]:
                beside[covered > 0].append(kernel["dur"])
    if not all(beside.values()):
        return None
    return statistics.median(beside[True]) / statistics.median(beside[False])


def judged(truth: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what the diagnosis of the ranks of a case says, and whether that is right."""
    ranks = sidestream.diagnose(folder).ranks
    if ranks is None:
        return {"ok": False, "why": "the traces state no ranks"}
    slow = ranks.slow
    said: dict[str, Any] = {"named": slow and slow.rank, "cause": slow.cause if slow else "nothing"}
    is_right = (said["named"], said["cause"]) == (truth["slow"], truth["cause"])
    is_right |= slow is None and 1 - truth["even_step_ns"] / truth["step_ns"] < COSTS
    said["kernels slowed by exchanges"] = [slowed(folder / f"rank{rank}.json.gz") for rank in range(2)]
    said["warnings"] = ranks.warnings
    if slow is not None:
        said["replayed_ns"], said["predicted_ns"] = slow.step_ns, slow.predicted_ns
        # The host limits the steps of FSDP2, and the profiler makes it slower: their shares are compared.
        scale = truth["step_ns"] / slow.step_ns if truth["group"] == "fsdp" else 1.0
        said["off"] = round(scale * slow.predicted_ns / truth["even_step_ns"] - 1, 3)
        is_right &= abs(said["off"]) <= MOST_OFF
    return {"ok": is_right, **said}


def judge_all(told: dict[str, Any], folder: Path) -> bool:
    """Judge each case, add the result to what is told, and return whether all are right."""
    for case, truth in told["cases"].items():
        truth["judged"] = judged(truth, folder / case)
        print(json.dumps({case: truth["judged"]}), flush=True)
    return all(truth["judged"]["ok"] for truth in told["cases"].values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--steps", type=int, default=12, help="steps in a trace, and in a measurement")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS, help="only the cases of these")
    parser.add_argument("--dry", action="store_true", help="on the CPU, with gloo")
    parser.add_argument("--judge", action="store_true", help="only judge the traces in OUT")
    args = parser.parse_args()
    if args.judge:
        sys.exit(not judge_all(json.loads((args.out / "truth.json").read_text()), args.out))
    if not args.dry and (not torch.cuda.is_available() or torch.cuda.device_count() < 2):
        sys.exit("two GPUs are needed; --dry tries the script without")
    args.out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(each, (port, folder, args.steps, args.dry, args.groups), nprocs=2)
        told = json.loads(Path(folder, "truth.json").read_text())
        are_right = args.dry or judge_all(told, Path(folder))
        Path(folder, "truth.json").write_text(json.dumps(told, indent=1) + "\n")
        with tarfile.open(args.out / "ranks.tar", "w") as packed:
            for path in sorted(Path(folder).rglob("*.json*")):
                packed.add(path, str(path.relative_to(folder)))
        (args.out / "truth.json").write_bytes(Path(folder, "truth.json").read_bytes())
    print(f"{args.out / 'ranks.tar'}: {(args.out / 'ranks.tar').stat().st_size} bytes")
    sys.exit(not are_right)


if __name__ == "__main__":
    main()
