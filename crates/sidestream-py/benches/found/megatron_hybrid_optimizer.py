"""megatron-core's HybridDeviceOptimizer as in its own test: half of the parameters on the processor, fp32
copies updated.
"""

import warnings

warnings.filterwarnings("ignore")
import torch
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer


def step(offload_fraction=0.5, in_fp32=True):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)]).cuda()
    if in_fp32:
        net = net.bfloat16()
    optimizer = HybridDeviceOptimizer(
        list(net.parameters()),
        offload_fraction=float(offload_fraction),
        cpu_optimizer_cls=torch.optim.Adam,
        gpu_optimizer_cls=torch.optim.Adam,
        param_update_in_fp32=bool(in_fp32),
        overlap_cpu_optimizer_d2h_h2d=True,
        lr=0.1,
    )
    for i in range(3):
        x = torch.full(
            (64, 256), 0.1 * (i + 1), device="cuda", dtype=torch.bfloat16 if in_fp32 else torch.float32
        )
        net(x).float().square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(net.parameters())


if __name__ == "__main__":
    import sys

    step(*[float(a) for a in sys.argv[1:]])
