"""torchtune's OffloadActivations around a small network with activation checkpointing, as its recipes use
both.

OFFLOAD=view runs the case of its test test_offloading_works_with_view_outputs instead, without the sleep.
"""

import logging
import os
import sys

import torch
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import alone  # noqa: E402


class Unused:
    percent = 0.0


OffloadActivations = alone.load(
    "torchtune.training._activation_offloading",
    psutil={"virtual_memory": Unused},
    torchao__dtypes__nf4tensor={"NF4Tensor": Unused},
    torchao={},
    torchtune__modules={"TiedLinear": Unused},
    torchtune__utils={"get_logger": logging.getLogger},
).OffloadActivations


class Block(torch.nn.Module):
    def __init__(self, size=128):
        super().__init__()
        self.norm = torch.nn.LayerNorm(size)
        self.up, self.down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 128)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(8))
        self.output = torch.nn.Linear(128, 64)
        self.checkpointed = checkpointed

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.output(x)


def train(checkpointed):
    torch.manual_seed(0)
    model = Model(checkpointed).cuda()
    tokens = torch.randint(64, (8, 64)).cuda()
    results = []
    for _ in range(2):
        with OffloadActivations(use_streams=True):
            loss = torch.nn.functional.cross_entropy(
                model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
            )
        loss.backward()
        results += [loss.detach()] + [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
    return results


class ReturnsViewOfSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.t())
        return torch.rand(2, 4, device="cuda")

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0].t()


class PassesOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.saved_tensors[0]
        return grad


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class SavesAnother(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.ones_like(x) * 5)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad + 0 * ctx.saved_tensors[0]


def view():
    x = torch.ones(256, 1024, device="cuda", requires_grad=True)
    offload = OffloadActivations(use_streams=True)
    with offload:
        loss = ReturnsViewOfSaved.apply(PassesOn.apply(Doubles.apply(SavesAnother.apply(x)))).sum()
    offload.fwd_stash = {}
    loss.backward()
    return [x.grad]


def step():
    match os.environ.get("OFFLOAD", "plain"):
        case "view":
            return view()
        case how:
            return train(how == "checkpoint")


if __name__ == "__main__":
    step()
