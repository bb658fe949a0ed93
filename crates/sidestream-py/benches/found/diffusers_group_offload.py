"""diffusers' group offloading with a stream, as in its tests/hooks/test_group_offloading.py: four blocks,
three steps.

GROUP says how: memory, record (record_stream=True), disk; LEVEL: leaf_level (default) or block_level; NORM=1
ends the model with a LayerNorm, as the test of https://github.com/huggingface/diffusers/pull/12077 does.
"""

import os
import shutil
import tempfile

import torch
from diffusers.hooks import apply_group_offloading

GROUP = os.environ.get("GROUP", "memory")
LEVEL = os.environ.get("LEVEL", "leaf_level")


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.proj_in = torch.nn.Linear(size, 4 * size)
        self.proj_out = torch.nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.proj_out(torch.nn.functional.gelu(self.proj_in(x)))


class Model(torch.nn.Module):
    def __init__(self, size=256):
        super().__init__()
        self.linear_1 = torch.nn.Linear(64, size)
        self.blocks = torch.nn.ModuleList(Block(size) for _ in range(4))
        self.norm = torch.nn.LayerNorm(size) if "NORM" in os.environ else torch.nn.Identity()
        self.linear_2 = torch.nn.Linear(size, 64)

    def forward(self, x):
        x = self.linear_1(x)
        for block in self.blocks:
            x = block(x)
        return self.linear_2(self.norm(x))


@torch.no_grad()
def step():
    torch.manual_seed(0)
    model = Model().eval()
    folder = tempfile.mkdtemp() if GROUP == "disk" else None
    blocks = {"num_blocks_per_group": 1} if LEVEL == "block_level" else {}
    apply_group_offloading(
        model,
        onload_device=torch.device("cuda"),
        offload_device=torch.device("cpu"),
        offload_type=LEVEL,
        use_stream=True,
        record_stream=GROUP == "record",
        offload_to_disk_path=folder,
        **blocks,
    )
    x = torch.randn(32, 64).to("cuda")
    results = []
    for _ in range(3):  # the first pass finds the order of the layers, later ones prefetch
        x = x + 0.1 * model(x)
        results.append(x)
    if folder:
        shutil.rmtree(folder)
    return results


if __name__ == "__main__":
    step()
