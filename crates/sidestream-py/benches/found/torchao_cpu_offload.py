"""torchao's CPUOffloadOptimizer: three training steps of a small network, as in its README."""

import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import alone  # noqa: E402

CPUOffloadOptimizer = alone.load(
    "torchao.optim.cpu_offload",
    torchao__utils={"TORCH_VERSION_AT_LEAST_2_4": True, "get_available_devices": lambda: ["cpu", "cuda"]},
).CPUOffloadOptimizer


def step():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512),
        torch.nn.GELU(),
        torch.nn.Linear(512, 512),
        torch.nn.GELU(),
        torch.nn.Linear(512, 16),
    ).cuda()
    optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01, offload_gradients=True)
    x, y = torch.randn(64, 256).cuda(), torch.randint(16, (64,)).cuda()
    losses = []
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


if __name__ == "__main__":
    step()
