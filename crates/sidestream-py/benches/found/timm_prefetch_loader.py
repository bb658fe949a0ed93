"""timm.data.loader.PrefetchLoader: two epochs of a small convolution, as timm's train.py uses the loader."""

import os
import sys

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import alone  # noqa: E402

IMAGENET = {"IMAGENET_DEFAULT_MEAN": (0.485, 0.456, 0.406), "IMAGENET_DEFAULT_STD": (0.229, 0.224, 0.225)}
timm = alone.load(
    "timm.data.loader",
    timm__data__constants=IMAGENET,
    timm__data__dataset={"IterableImageDataset": None, "ImageDataset": None},
    timm__data__distributed_sampler={"OrderedDistributedSampler": None, "RepeatAugSampler": None},
    timm__data__random_erasing={"RandomErasing": None},
    timm__data__mixup={"FastCollateMixup": ()},
    timm__data__scheduled_sampler={"ScheduledBatchSampler": None, "ScheduledTransformDataset": None},
    timm__data__transforms_factory={"create_transform": None},
)
PrefetchLoader, fast_collate = timm.PrefetchLoader, timm.fast_collate

torch.manual_seed(0)
PICTURES = [(torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8), i % 10) for i in range(48)]


def step():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    )
    model(torch.zeros(1, 3, 64, 64))
    model.to(device)
    loader = PrefetchLoader(
        DataLoader(PICTURES, batch_size=8, collate_fn=fast_collate, pin_memory=True), device=device
    )
    losses = []
    for _ in range(2):
        for pictures, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            losses.append(loss.detach())
    return losses + [p.grad for p in model.parameters()]


if __name__ == "__main__":
    step()
