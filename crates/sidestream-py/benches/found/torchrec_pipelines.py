"""torchrec's train pipelines over its own test model's kind of batch: TrainPipelineBase and
StagedTrainPipeline.
"""

import sys
import warnings

warnings.filterwarnings("ignore")
import logging

logging.disable(logging.WARNING)
from dataclasses import dataclass

import torch

try:
    from torchrec.distributed.train_pipeline.pipeline_stage import PipelineStage
except ImportError:
    from torchrec.distributed.train_pipeline.utils import PipelineStage
from torchrec.distributed.train_pipeline import StagedTrainPipeline, TrainPipelineBase
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable


@dataclass
class Batch(Pipelineable):
    dense: torch.Tensor
    sparse: KeyedJaggedTensor
    label: torch.Tensor

    def to(self, device, non_blocking=False):
        return Batch(
            self.dense.to(device=device, non_blocking=non_blocking),
            self.sparse.to(device=device, non_blocking=non_blocking),
            self.label.to(device=device, non_blocking=non_blocking),
        )

    def record_stream(self, stream):
        self.dense.record_stream(stream)
        self.sparse.record_stream(stream)
        self.label.record_stream(stream)

    def pin_memory(self):
        return Batch(self.dense.pin_memory(), self.sparse.pin_memory(), self.label.pin_memory())


def batches(count=6, size=2048):
    for i in range(count):
        sparse = KeyedJaggedTensor.from_lengths_sync(
            keys=["a", "b"],
            values=torch.arange(4 * size) % 100,
            lengths=torch.full((2 * size,), 2, dtype=torch.int64),
        )
        yield Batch(torch.full((size, 64), float(i)), sparse, torch.ones(size)).pin_memory()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.dense = torch.nn.EmbeddingBag(100, 64), torch.nn.Linear(64, 1)

    def forward(self, batch):
        offsets = batch.sparse["a"].offsets()[:-1]
        x = batch.dense + self.bag(batch.sparse["a"].values(), offsets)
        logits = self.dense(x).squeeze(-1)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.label), logits


def base():
    torch.manual_seed(0)
    model = Model().cuda()
    pipeline = TrainPipelineBase(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.device("cuda", 0))
    results, source = [], batches()
    while True:
        try:
            results.append(pipeline.progress(source))
        except StopIteration:
            return results


def staged():
    torch.manual_seed(0)
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def postprocess(batch):
        return Batch(batch.dense * 2, batch.sparse, batch.label)

    pipeline = StagedTrainPipeline(
        [
            PipelineStage(
                name="data_copy",
                runnable=lambda batch: batch.to(torch.device("cuda"), non_blocking=True),
                stream=torch.cuda.Stream(),
            ),
            PipelineStage(name="gpu_postproc", runnable=postprocess, stream=torch.cuda.Stream()),
        ]
    )
    results, source = [], batches()
    while (batch := pipeline.progress(source)) is not None:
        optimizer.zero_grad()
        loss, logits = model(batch)
        loss.backward()
        optimizer.step()
        results.append(logits.detach())
    return results


def step(which="base"):
    return {"base": base, "staged": staged}[which]()


if __name__ == "__main__":
    step(*sys.argv[1:])
