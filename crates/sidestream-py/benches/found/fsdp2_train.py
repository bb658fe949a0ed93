"""FSDP2 (torch.distributed.fsdp.fully_shard) on one rank, two training steps. WHAT=plain (default), offload
(CPUOffloadPolicy), hsdp (a mesh of replicas and shards), hsdp_offload.
"""

import os
import tempfile

import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard


def mesh(is_hybrid):
    if not torch.distributed.is_initialized():
        is_simulated = torch.cuda.get_device_name().endswith("(simulated)")
        torch.distributed.init_process_group(
            "gloo" if is_simulated else "cpu:gloo,cuda:nccl",
            init_method=f"file://{tempfile.mktemp()}",
            rank=0,
            world_size=1,
        )
    if is_hybrid:
        return init_device_mesh("cuda", (1, 1), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cuda", (1,))


def step():
    what = os.environ.get("WHAT", "plain")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    how = CPUOffloadPolicy() if "offload" in what else OffloadPolicy()
    if "offload" not in what:
        model = model.cuda()
    devices = mesh("hsdp" in what)
    for layer in model:
        fully_shard(layer, mesh=devices, offload_policy=how)
    fully_shard(model, mesh=devices, offload_policy=how)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    results = []
    for _ in range(2):
        loss = model(torch.randn(8, 256).cuda()).square().mean()
        loss.backward()
        results += [loss.detach()] + [p.grad.to_local().clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return results


if __name__ == "__main__":
    step()
