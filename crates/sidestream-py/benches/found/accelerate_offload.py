"""accelerate: WHAT=cpu_offload (default; hooks of big-model inference), hook (cpu_offload_with_hook), loader
(a prepared DataLoader with non_blocking and pinned batches, three training steps) or dispatch (a device map
over GPU and CPU, tied to AlignDevicesHook).
"""

import os

import torch
from accelerate import (
    Accelerator,
    DataLoaderConfiguration,
    cpu_offload,
    cpu_offload_with_hook,
    dispatch_model,
)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 256)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(4))
        self.last = torch.nn.Linear(256, 16)

    def forward(self, x):
        x = self.first(x).relu()
        for block in self.blocks:
            x = x + block(x).relu()
        return self.last(x)


def infer(model):
    x = torch.randn(32, 64).cuda()
    with torch.no_grad():
        return [model(x) for _ in range(3)]


def train():
    loader = torch.utils.data.DataLoader(
        [(torch.randn(64), i % 16) for i in range(96)], batch_size=32, pin_memory=True
    )
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    losses = []
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()))
    return losses


def step():
    torch.manual_seed(0)
    match os.environ.get("WHAT", "cpu_offload"):
        case "cpu_offload":
            return infer(cpu_offload(Model(), torch.device("cuda", 0)))
        case "hook":
            model, hook = cpu_offload_with_hook(Model(), torch.device("cuda", 0))
            results = infer(model)
            hook.offload()
            return results
        case "dispatch":
            places = {
                "first": 0,
                "blocks.0": 0,
                "blocks.1": "cpu",
                "blocks.2": 0,
                "blocks.3": "cpu",
                "last": 0,
            }
            return infer(dispatch_model(Model(), places))
        case "loader":
            return train()


if __name__ == "__main__":
    step()
