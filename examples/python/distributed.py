"""Each rank prefetches its own shard to its own device, under torchrun.

torchrun --standalone --nproc-per-node 2 examples/python/distributed.py

The ranks share only the gradients, which DistributedDataParallel exchanges. Without a GPU for each rank,
the ranks run on the CPU and communicate with gloo.
"""

from __future__ import annotations

import argparse
import os

import torch

# DistributedDataParallel loads this part of PyTorch (2.11). A process group that is created before that is
# never freed, not even by destroy_process_group: its threads would run while Python shuts down, and sometimes
# abort the process. So the module is loaded first.
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import sidestream


def count(text: str) -> int:
    """Parse a number of steps for the command line."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="Prefetching under torchrun.")
    parser.add_argument("--device", help="cuda or cpu; by default a GPU for each rank if there are enough")
    parser.add_argument("--steps", type=count, default=8, help="steps of an epoch")
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    rank, ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    on_gpu = args.device != "cpu" and torch.cuda.device_count() >= ranks
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if "RANK" not in os.environ:
        raise SystemExit("start this with torchrun: torchrun --standalone --nproc-per-node 2 " + __file__)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        train(device, args.steps)
    finally:
        dist.destroy_process_group()


def train(device: torch.device, steps: int) -> None:
    torch.manual_seed(0)
    count = 16 * steps * dist.get_world_size()
    samples = TensorDataset(torch.randn(count, 32), torch.randint(0, 4, (count,)), torch.arange(count))
    shard: DistributedSampler[object] = DistributedSampler(samples, seed=0)
    loader = DataLoader(samples, batch_size=16, sampler=shard)
    model = DistributedDataParallel(torch.nn.Linear(32, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    seen = torch.zeros((), dtype=torch.long, device=device)
    total = torch.zeros((), device=device)
    batches = sidestream.prefetch(loader, device)
    for epoch in range(2):
        shard.set_epoch(epoch)
        for features, labels, numbers in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            seen += numbers.numel()
            total += loss.detach()
    mean = total.item() / (2 * steps)
    # All ranks have the same model at the end.
    weight = model.module.weight.detach().sum()
    both = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
    dist.all_gather(both, weight)
    agree = all(torch.equal(weight, other) for other in both)
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()} on {device}: {seen.item()} samples of its shard, "
        f"mean loss {mean:.4f}, {'the models agree' if agree else 'THE MODELS DIFFER'}\n",
        # The string ends with the newline, so that it is one write: the ranks write to one terminal.
        end="",
        flush=True,
    )
    if dist.get_rank() == 0 and device.type == "cpu":
        print("on GPUs each rank would copy its next batches while it trains", flush=True)


if __name__ == "__main__":
    main()
