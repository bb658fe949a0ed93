"""megatron-core's fine-grained activation offloading around two small layers, as its transformer layers use
it.
"""

import warnings

warnings.filterwarnings("ignore")
import types

import megatron.core.extensions.transformer_engine as extensions
import torch

# Without Transformer Engine megatron-core refuses to offload, for want of this one flag's owner.
extensions.cpu_offload = types.SimpleNamespace(CPUOffloadEnabled=False)
from megatron.core.pipeline_parallel.fine_grained_activation_offload import (
    FineGrainedActivationOffloadingInterface as Offloading,
)
import megatron.core.pipeline_parallel.fine_grained_activation_offload as module

module.print_offload_summary_table = lambda *_: None


class Layer(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.attention, self.mlp = torch.nn.Linear(size, size), torch.nn.Linear(size, size)

    def forward(self, x):
        with Offloading(True, x, "attn_norm") as x:
            x = torch.tanh(self.attention(x))
        x = Offloading.group_commit(x, name="attn_norm", forced_released_tensors=[])
        with Offloading(True, x, "mlp_norm") as x:
            x = torch.sigmoid(self.mlp(x))
        return Offloading.group_commit(x, name="mlp_norm", forced_released_tensors=[])


def step(iterations=3):
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
        )
    torch.manual_seed(0)
    Offloading.reset_instance()
    model = torch.nn.Sequential(*[Layer(256) for _ in range(3)]).cuda()
    results = []
    for i in range(int(iterations)):
        x = torch.full((512, 256), 0.1 * (i + 1), device="cuda", requires_grad=True)
        Offloading.init_chunk_handler(vp_size=1, vp_stage=None, min_offloaded_tensor_size=1024)
        model(x).sum().backward()
        Offloading.reset()
        results += [x.grad] + [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
    return results


if __name__ == "__main__":
    import sys

    step(*sys.argv[1:])
