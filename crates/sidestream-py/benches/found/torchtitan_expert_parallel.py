"""torchtitan's ExpertParallel: dispatch of tokens to experts and back, forward only, on one rank. The
permutation between them, a Triton kernel of torchtitan, is left out.
"""

import os
import sys
import tempfile

import torch
import torch.distributed

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import alone  # noqa: E402

ExpertParallel = alone.load(
    "torchtitan.distributed.expert_parallel",
    torchtitan__models__moe__utils={
        "_permute": lambda x, counts, ranks, experts: (x.shape, x * 1, None, counts),
        "_unpermute": lambda x, shape, indices: x * 1,
    },
    torchtitan__models__moe={},
    torchtitan__models={},
).ExpertParallel


def mesh():
    if not torch.distributed.is_initialized():
        is_simulated = torch.cuda.get_device_name().endswith("(simulated)")
        torch.distributed.init_process_group(
            "gloo" if is_simulated else "nccl",
            init_method=f"file://{tempfile.mktemp()}",
            rank=0,
            world_size=1,
        )
    return torch.distributed.device_mesh.init_device_mesh("cuda", (1,))


@torch.no_grad()
def step():
    torch.manual_seed(0)
    ranks, experts = mesh(), torch.nn.Linear(64, 64).cuda()
    tokens, counts = torch.randn(256, 64).cuda(), torch.full((4,), 64).cuda()
    results = []
    for _ in range(3):
        parallel = ExpertParallel()
        routed, _ = parallel._token_dispatch(experts, (tokens, counts), ranks)
        out = parallel._token_combine(experts, experts(routed), ranks)
        tokens = out.tanh()
        results.append(tokens)
    return results


if __name__ == "__main__":
    step()
