"""DeepSpeed's ZeRO stages 1 to 3 on one process, with the optimizer's state on the processor, as its own
tests train small models.
"""

import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("DS_ACCELERATOR", "cuda")
# Versions before 0.19.8 ask the nvcc of CUDA_HOME for its version when they are imported, even if no operator
# is compiled. If there is none, one that prints "Cuda compilation tools, release 13.0, V13.0.88" will do.
os.environ.update(
    MASTER_ADDR="127.0.0.1",
    MASTER_PORT=os.environ.get("MASTER_PORT", "29531"),
    RANK="0",
    LOCAL_RANK="0",
    WORLD_SIZE="1",
)
import torch

logging.disable(logging.WARNING)
BACKEND = "gloo" if getattr(torch.cuda, "is_simulated", False) else "nccl"
if not torch.distributed.is_initialized():
    torch.distributed.init_process_group(BACKEND, rank=0, world_size=1, store=torch.distributed.HashStore())
import torch.distributed.elastic.agent.server.api as agent

if not hasattr(agent, "_get_socket_with_port"):
    agent._get_socket_with_port = None  # 0.14 imports it and calls it only under elastic training
import numpy

numpy.BUFSIZE = 8192  # 0.14 imports it from NumPy 1
import deepspeed


class Side(torch.nn.Module):
    """A layer whose forward, and so its backward, runs on a stream of its own."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.stream = layer, torch.cuda.Stream()

    def forward(self, x):
        main = torch.cuda.current_stream()
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            y = self.layer(x)
        main.wait_stream(self.stream)
        x.record_stream(self.stream)
        y.record_stream(main)
        return y


def step(stage=2, offload="cpu", bucket=40_000, overlap=True, accumulate=1, params="none", streams=False):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(128, 128, bias=int(bucket) > 16384) for _ in range(6)]
    net = torch.nn.Sequential(
        *[Side(layer) if int(streams) and i % 2 else layer for i, layer in enumerate(layers)]
    )
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": int(accumulate),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": int(stage),
            "overlap_comm": bool(overlap),
            "contiguous_gradients": True,
            "reduce_bucket_size": int(bucket),
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": 20_000,
            "stage3_max_live_parameters": 40_000,
        },
    }
    if offload != "none":
        config["zero_optimization"]["offload_optimizer"] = {"device": offload, "pin_memory": True}
    if params != "none":
        config["zero_optimization"]["offload_param"] = {"device": params, "pin_memory": True}
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=torch.optim.Adam(net.parameters(), lr=0.01), config=config
    )
    losses = []
    for i in range(3 * int(accumulate)):
        x = torch.full((8, 128), 0.1 * (i + 1), device="cuda", dtype=torch.bfloat16)
        loss = engine(x).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    return losses


if __name__ == "__main__":
    step(*sys.argv[1:])
