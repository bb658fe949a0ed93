"""``sidestream.prefetch`` in two processes that train one model, with gloo on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

# The program of each process: three epochs over its shard, with a plain loop and prefetched.
RANK = """
import contextlib, datetime, json, os, sys, threading, time
from pathlib import Path
import torch
# Imported first: otherwise the process group is never freed, and its threads run while Python ends.
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import sidestream

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
# The two meet through a file: no port is needed, and gloo picks free ones itself.
dist.init_process_group(
    "gloo",
    init_method=f"file://{folder}/meet",
    rank=rank,
    world_size=2,
    timeout=datetime.timedelta(seconds=300),
)

def train(workers, prefetched):
    torch.manual_seed(0)
    samples = TensorDataset(torch.randn(44, 8), torch.randn(44, 1), torch.arange(44))
    shard = DistributedSampler(samples, seed=3)
    loader = DataLoader(samples, batch_size=4, sampler=shard, num_workers=workers)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = sidestream.prefetch(loader, "cpu") if prefetched else loader
    assert len(batches) == 6
    losses, epochs = [], []
    for epoch in range(3):
        shard.set_epoch(epoch)
        seen = []
        for x, y, number in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seen += number.tolist()
        epochs.append(seen)
    weights = [parameter.detach().flatten().tolist() for parameter in model.parameters()]
    return {"losses": losses, "epochs": epochs, "weights": weights}

try:
    result = {
        "plain": train(0, False),
        "prefetched": train(0, True),
        "from workers": train(1, True),
    }
    # The threads of the loader and of the prefetcher must have ended; gloo's threads are not Python threads.
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(60)
    result["threads"] = [thread.name for thread in threading.enumerate()]
finally:
    dist.destroy_process_group()

def of_gloo():
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # The process has just ended.
            names.append(path.read_text())
    return [name for name in names if "gloo" in name]

# The system may list a joined thread for a moment longer.
limit = time.monotonic() + 60
while of_gloo() and time.monotonic() < limit:
    os.sched_yield()
result["threads of gloo"] = of_gloo()
print(json.dumps(result))
"""


def test_two_ranks_train_as_without_prefetching(tmp_path: Path) -> None:
    first, second = both_ranks(tmp_path)
    for rank in (first, second):
        assert rank["prefetched"] == rank["plain"]
        assert rank["from workers"] == rank["plain"]
        assert rank["threads"] == ["MainThread"]
        assert rank["threads of gloo"] == []
    # Both ranks have one model, but different shards.
    assert first["plain"]["weights"] == second["plain"]["weights"]
    assert first["plain"]["losses"] != second["plain"]["losses"]
    for epoch in range(3):
        shards = [rank["prefetched"]["epochs"][epoch] for rank in (first, second)]
        assert sorted(shards[0] + shards[1]) == list(range(44))
    assert first["prefetched"]["epochs"][0] != first["prefetched"]["epochs"][1]


def both_ranks(folder: Path) -> list[dict[str, Any]]:
    """Run both processes, and return what each prints. Neither process outlives this call."""
    # The machine's name may not resolve to one of its addresses.
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank in range(2)
    ]
    said = []
    try:
        for rank in ranks:
            out, errors = rank.communicate(timeout=300)
            assert rank.returncode == 0, errors
            said.append(json.loads(out))
    finally:
        for rank in ranks:
            if rank.poll() is None:
                # This also ends the processes of the rank's loader.
                os.killpg(rank.pid, 9)
            rank.communicate()
    return said
