"""Nine runs of two ranks with one planted fault each, and one run without a fault; measures what each fault
costs. The slow rank computes longer, waits for its loader, or waits for copies; the ranks form a tensor, data
or pipeline group.

On a machine with two GPUs:

    python benches/ranks_gpu.py OUT [--steps 12]

OUT/ranks.tar has the traces, CASE/rank0.json.gz and CASE/rank1.json.gz, and truth.json, which is also written
next to the archive: for each case the slow rank, the cause, the time of a step with and without the fault
(without the profiler), and the time of each rank's own work without exchanges. `--dry` runs a small version
with gloo on the CPU, to test the script.
"""

from __future__ import annotations

import argparse
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
from torch.profiler import ProfilerActivity, profile, schedule

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
}
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


def each(rank: int, port: int, folder: str, steps: int, dry: bool) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--steps", type=int, default=12, help="steps in a trace, and in a measurement")
    parser.add_argument("--dry", action="store_true", help="on the CPU, with gloo")
    args = parser.parse_args()
    if not args.dry and (not torch.cuda.is_available() or torch.cuda.device_count() < 2):
        sys.exit("two GPUs are needed; --dry tries the script without")
    args.out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(each, (port, folder, args.steps, args.dry), nprocs=2)
        with tarfile.open(args.out / "ranks.tar", "w") as packed:
            for path in sorted(Path(folder).rglob("*.json*")):
                packed.add(path, str(path.relative_to(folder)))
        (args.out / "truth.json").write_bytes(Path(folder, "truth.json").read_bytes())
    print(f"{args.out / 'ranks.tar'}: {(args.out / 'ranks.tar').stat().st_size} bytes")


if __name__ == "__main__":
    main()
