"""The cost of the measurement in pipelines of ten jobs, and tables over batch sizes, on one GPU.

    python crates/sidestream-py/benches/pipeline_sizes.py [--quick] [epochs] [sweeps]

Needs PyTorch with CUDA and the package `sidestream`, and takes two minutes. `epochs`: the first four epochs
of a pipeline, and the first one of another pipeline of these stages, compared with the plain loop; one JSON
object per line. `sweeps`: `Pipeline.sweep` for an encoder with a decoder and for an augmentation with a
model, as tables and as JSON.

Without CUDA both run on a few small batches, as a smoke test.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import augmentation
import torch
from encoder_decoder import DEVICE, Job, convolutions, images, perceptrons, pinned, say
from torch import nn

import sidestream
from sidestream import Pipeline


def full_size(batch: int) -> Job:
    """Two convolutions in each stage, at full image size: with 8 images or more the device is the limit."""
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()
    )
    decoder = nn.Sequential(nn.Conv2d(64, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 10, 1))
    side = 256 if DEVICE == "cuda" else 16
    return Job(encoder, decoder, nn.CrossEntropyLoss(), images(batch, side=side))


def augmented(batch: int, one_by_one: bool = False) -> Job:
    """An augmentation instead of the encoder, and a classifier that is trained on its results."""
    side = augmentation.SIDE
    items = [(pixels, pinned(torch.randint(0, 10, (batch,)))) for pixels, _ in images(batch, side=side)]
    small = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 10))
    model = augmentation.network() if DEVICE == "cuda" else small
    job = Job(nn.Identity(), model, nn.CrossEntropyLoss(), items)
    augment: Any = augmentation.Augment(torch.device(DEVICE), one_by_one=one_by_one)
    job.encode = augment
    return job


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def epochs(quick: bool) -> None:
    """Time epochs of a new pipeline, and the first epoch of another pipeline of the same stages, relative to
    the plain loop, which runs before and after each. Return medians over as many pipelines as time allows.
    """
    sizes = (2, 8, 32, 64) if DEVICE == "cuda" else (2,)
    count, most_s = (40, 2.0 if quick else 5.0) if DEVICE == "cuda" else (3, 0.0)
    jobs: list[tuple[str, int, bool, Callable[[], Job]]] = [
        *(("encoder and decoder", batch, False, lambda batch=batch: full_size(batch)) for batch in sizes),
        *(("augmentation and model", batch, False, lambda batch=batch: augmented(batch)) for batch in sizes),
        ("heavy encoder", sizes[-1] // 2, False, lambda: convolutions(sizes[-1] // 2, width=4)),
        ("small perceptrons", 64, True, lambda: perceptrons(512, (2, 2) if DEVICE == "cpu" else (8, 8))),
    ]

    def seconds(run: Callable[[], None]) -> float:
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        return time.perf_counter() - start

    for name, batch, capture, make in jobs:
        job = make()
        items = job.batches(count)

        def plain(job: Job = job, items: list[Any] = items) -> None:
            for item in items:
                job.train(job.encode([part.to(DEVICE, non_blocking=True) for part in item]))

        plain()
        times = [seconds(plain)]
        relative: dict[str, list[float]] = {}
        start = time.perf_counter()
        while not relative or time.perf_counter() - start < most_s:
            # Separate functions, for which no measurement exists.
            stages = [lambda item, job=job: job.encode(item), lambda item, job=job: job.train(item)]
            pipe = Pipeline(stages, capture=capture)
            for epoch in ("first", "second", "third", "fourth", "of the next pipeline"):
                if epoch == "of the next pipeline":
                    pipe = Pipeline(stages, capture=capture)
                taken = seconds(lambda pipe=pipe: [None for _ in pipe(items)])
                times.append(seconds(plain))
                relative.setdefault(epoch, []).append((times[-2] + times[-1]) / 2 / taken)
        say(
            "epochs",
            job=name,
            batch=batch,
            capture=capture,
            items=count,
            plain_steps_s=round(count / statistics.median(times), 1),
            pipeline_by_plain={epoch: round(statistics.median(of), 3) for epoch, of in relative.items()},
            first_from_to=[round(min(relative["first"]), 3), round(max(relative["first"]), 3)],
            pipelines=len(relative["first"]),
            mode=pipe.choice.mode,
            measured=pipe.choice.measured,
            reason=pipe.choice.reason,
        )


def sweeps(quick: bool) -> None:
    sizes = (2, 8, 32, 64) if DEVICE == "cuda" else (1, 2)
    jobs: list[tuple[bool, Callable[[int], Job]]] = [(True, full_size), (False, augmented)]
    if not quick:
        jobs.append((False, lambda batch: augmented(batch, one_by_one=True)))
    for capture, make in jobs:
        job = make(1)
        batches: Iterator[Any] = iter(())

        def make_batch(batch: int, make: Callable[[int], Job] = make) -> Any:
            nonlocal batches
            found = next(batches, None)
            if found is None or found[0].shape[0] != batch:
                batches = iter(make(batch).items)
                found = next(batches)
            return found

        sweep = Pipeline.sweep([job.encode, job.train], make_batch, sizes, capture=capture)
        print(sweep, flush=True)
        say("sweeps", **sweep.to_dict())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = ["epochs", "sweeps"]
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="which parts run; by default both")
    parser.add_argument("--quick", action="store_true", help="fewer pipelines and tables")
    arguments = parser.parse_args()
    device = torch.cuda.get_device_name(0) if DEVICE == "cuda" else "cpu"
    say("machine", device=device, torch=torch.__version__, sidestream=sidestream.__version__)
    for part in (epochs, sweeps):
        if part.__name__ in (arguments.parts or parts):
            start = time.perf_counter()
            part(arguments.quick)
            say("took", what=part.__name__, seconds=round(time.perf_counter() - start, 1))


if __name__ == "__main__":
    sys.exit(main())
