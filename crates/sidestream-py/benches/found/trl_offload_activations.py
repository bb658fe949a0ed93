"""TRL's OffloadActivations around a small language model, with labels shifted by one as transformers' loss
does.

OFFLOAD=shift (default): the loss reads labels[..., 1:]; OFFLOAD=stream: training runs on a stream of its own;
OFFLOAD=plain: neither; OFFLOAD=checkpoint: with activation checkpointing.
"""

import logging
import os
import sys

import torch
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import alone  # noqa: E402


class Memory:
    percent = 0.0


OffloadActivations = alone.load(
    "trl.models.activation_offloading",
    psutil={"virtual_memory": Memory},
    accelerate__logging={"get_logger": logging.getLogger},
    accelerate__utils__versions={"is_torch_version": lambda how, version: True},
    transformers={"is_torch_npu_available": lambda: False},
).OffloadActivations


class Block(torch.nn.Module):
    def __init__(self, size=128):
        super().__init__()
        self.norm = torch.nn.LayerNorm(size)
        self.up, self.down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.embed = torch.nn.Embedding(64, 128)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(8))
        self.output = torch.nn.Linear(128, 64)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.how == "checkpoint" else block(x)
        scores = self.output(x)
        # as transformers.loss.loss_utils.ForCausalLMLoss: of a batch of 1 this is a view, otherwise a copy
        labels = torch.nn.functional.pad(tokens, (0, 1), value=-100)[..., 1:].contiguous()
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.view(-1), ignore_index=-100)


def train(how):
    torch.manual_seed(0)
    model = Model(how).cuda()
    tokens = torch.randint(64, (1 if how == "shift" else 8, 512)).cuda()
    offload = OffloadActivations(use_streams=True)
    offload.update_model_params(model)
    results = []
    for _ in range(3):
        with offload:  # around both, as SFTTrainer.training_step does
            loss = model(tokens)
            loss.backward()
        results += [loss.detach()] + [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
    return results


def step():
    how = os.environ.get("OFFLOAD", "shift")
    if how != "stream":
        return train(how)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results = train(how)
    torch.cuda.current_stream().wait_stream(stream)
    for result in results:
        result.record_stream(torch.cuda.current_stream())
    return results


if __name__ == "__main__":
    step()
