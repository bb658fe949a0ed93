"""Pipelines compared with hand-written code, on one GPU: one JSON object per line.

    python crates/sidestream-py/benches/encoder_decoder.py [--quick] [part …]

Needs PyTorch with CUDA and the package `sidestream`. Variants of a job take turns within one process, and
the figure of each is the median of its turns, in steps per second. A part that fails prints a line about that
and does not stop the others.

Parts: `encoder_decoder` (a frozen encoder and a decoder in training, by batch size), `pairs` (other pairs
of models), `uncaptured` (without capture compared with the plain loop, and that loop with itself), `stages`
(three stages), `branches` (parallel branches), `host` (the host's cost of an item), `equal` (whether
parameters and losses are those of a plain loop), `stress` (checksums under delays, and a pipeline without
its waits, which must fail). The cost of measuring, and tables over batch sizes, are in `pipeline_sizes.py`.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import random
import statistics
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import parts
import torch
from parts import say
from planted.models import perceptron
from timing import seconds
from torch import nn

from sidestream import Pipeline, Stage

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODES = ("serial", "streams", "serial-graphs", "graphs", "auto")


class Size:
    """How many items, turns and rounds are measured."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.items = 20 if quick else 60
        self.rounds = 3 if quick else 9
        self.batches = (2, 16) if quick else (2, 4, 8, 16, 32)
        self.measure = 2 if quick else 5
        self.checked = 60 if quick else 300


# Jobs: an encoder without gradients, and a training step on its results.


class Job:
    """A pair of models with its data: `encode`, `train`, and pinned batches."""

    def __init__(
        self, encoder: nn.Module, decoder: nn.Module, criterion: nn.Module, items: list[Any]
    ) -> None:
        self.encoder = encoder.to(DEVICE).eval().requires_grad_(False)
        self.decoder = decoder.to(DEVICE).train()
        self.criterion = criterion
        self.items = items
        self.optimizer = torch.optim.SGD(self.decoder.parameters(), lr=1e-3)

    def again(self) -> Job:
        """Return the job from its initial state, with separate parameters."""
        return Job(copy.deepcopy(self.encoder), copy.deepcopy(self.decoder), self.criterion, self.items)

    def encode(self, item: Any) -> Any:
        images, labels = item
        with torch.no_grad():
            return self.encoder(images.float()), labels

    def train(self, item: Any) -> Any:
        features, labels = item
        self.optimizer.zero_grad()
        loss = self.criterion(self.decoder(features), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def batches(self, count: int) -> list[Any]:
        return list(itertools.islice(itertools.cycle(self.items), count))

    def parameters(self) -> torch.Tensor:
        return torch.cat([value.detach().float().flatten() for value in self.decoder.state_dict().values()])


def images(batch: int, count: int = 4, side: int = 256, classes: int = 10) -> list[Any]:
    return [
        (
            pinned(torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8)),
            pinned(torch.randint(0, classes, (batch, side, side))),
        )
        for _ in range(count)
    ]


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if DEVICE == "cuda" else tensor


def convolutions(batch: int, width: int = 1, extra: int = 0) -> Job:
    """Five blocks of 32 to 512 channels down, five up again to 10 classes; `extra` layers at full size in the
    decoder.
    """
    down: list[nn.Module] = []
    channels = 3
    for out in (32, 64, 128, 256, 512):
        down += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
        down += [
            layer
            for _ in range(width)
            for layer in (nn.Conv2d(out, out, 3, padding=1), nn.ReLU(inplace=True))
        ]
        channels = out
    up: list[nn.Module] = []
    for out in (256, 128, 64, 32, 16):
        up += [nn.ConvTranspose2d(channels, out, 2, stride=2), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
        channels = out
    up += [layer for _ in range(extra) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
    return Job(
        nn.Sequential(*down), nn.Sequential(*up, nn.Conv2d(16, 10, 1)), nn.CrossEntropyLoss(), images(batch)
    )


def perceptrons(width: int, layers: tuple[int, int], rows: int = 64) -> Job:
    items = [(pinned(torch.randn(rows, width)), pinned(torch.randn(rows, width))) for _ in range(4)]
    return Job(perceptron(layers[0], width), perceptron(layers[1], width), nn.MSELoss(), items)


# Hand-written variants. Each returns a function that runs a number of items.


def by_hand_serial(job: Job) -> Callable[[int], None]:
    def run(count: int) -> None:
        for item in job.batches(count):
            job.train(job.encode([part.to(DEVICE, non_blocking=True) for part in item]))

    return run


def by_hand_streams(job: Job) -> Callable[[int], None]:
    encoding, training = torch.cuda.Stream(), torch.cuda.Stream()

    def train(waiting: Any) -> None:
        with torch.cuda.stream(training):
            training.wait_stream(encoding)
            training.wait_stream(torch.cuda.default_stream())
            for tensor in waiting:
                tensor.record_stream(training)
            job.train(waiting)

    def run(count: int) -> None:
        waiting: Any = None
        for item in job.batches(count):
            pixels, labels = [part.to(DEVICE, non_blocking=True) for part in item]
            if waiting is not None:
                train(waiting)
            with torch.cuda.stream(encoding):
                encoding.wait_stream(torch.cuda.default_stream())
                pixels.record_stream(encoding)
                features, _ = job.encode((pixels, labels))
            waiting = (features, labels)
        train(waiting)

    return run


def by_hand_graphs(job: Job) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Graphs one after another, and on three streams with two slots."""
    first = [part.to(DEVICE) for part in job.items[0]]
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(4):
            features, _ = job.encode(first)
            job.train((features, first[1]))
    torch.cuda.synchronize()
    inputs = [[torch.zeros_like(part) for part in first] for _ in range(2)]
    between = [torch.zeros_like(features) for _ in range(2)]
    encoders, decoders = [], []
    up, encoding, training = (torch.cuda.Stream() for _ in range(3))
    # Each part is captured on a separate stream. Captured on one stream, as `torch.cuda.graph` does by
    # default, the graphs of the tiny perceptrons hung the GPU when they ran concurrently: cuBLAS has one
    # workspace per stream, which both graphs then used.
    for slot in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=encoding):
            between[slot].copy_(job.encode(inputs[slot])[0])
        encoders.append(graph)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=training):
            job.train((between[slot], inputs[slot][1]))
        decoders.append(graph)

    def upload(slot: int, item: Any) -> None:
        for buffer, part in zip(inputs[slot], item, strict=True):
            buffer.copy_(part, non_blocking=True)

    def serial(count: int) -> None:
        for number, item in enumerate(job.batches(count)):
            upload(number % 2, item)
            encoders[number % 2].replay()
            decoders[number % 2].replay()

    uploaded, encoded, trained = ([torch.cuda.Event() for _ in range(2)] for _ in range(3))

    def piped(count: int) -> None:
        for number, item in enumerate(job.batches(count)):
            slot = number % 2
            with torch.cuda.stream(up):
                up.wait_event(trained[slot])
                up.wait_event(encoded[slot])
                upload(slot, item)
                uploaded[slot].record(up)
            with torch.cuda.stream(encoding):
                encoding.wait_event(uploaded[slot])
                encoding.wait_event(trained[slot])
                encoders[slot].replay()
                encoded[slot].record(encoding)
            with torch.cuda.stream(training):
                training.wait_event(encoded[slot])
                decoders[slot].replay()
                trained[slot].record(training)

    return serial, piped


# The package's variants.


def ours(
    stages: list[Any],
    items: Callable[[int], Iterable[Any]],
    mode: str,
    size: Size,
    capture: bool = True,
    depth: int | None = None,
) -> tuple[Callable[[int], None], Pipeline]:
    pipe = Pipeline(stages, mode=mode, capture=capture, depth=depth, measure=size.measure)
    if mode == "auto":
        for _ in range(200):
            for _ in pipe(items(200)):
                if pipe.choice.measured:
                    break
            if pipe.choice.measured:
                break

    def run(count: int) -> None:
        for _ in pipe(items(count)):
            pass

    return run, pipe


def in_turns(variants: dict[str, Callable[[int], None]], size: Size) -> dict[str, float]:
    """Return the median steps per second of each variant; the variants take turns."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        run(10)
    # Each turn has a different order: a variant that runs after a similar one finds warm caches.
    shuffled = random.Random(0)
    for _ in range(size.rounds):
        for name in shuffled.sample(list(variants), len(variants)):
            times[name].append(seconds(functools.partial(variants[name], size.items)) / size.items)
    return {name: round(1 / statistics.median(values), 1) for name, values in times.items()}


def compare(part: str, job: Job, size: Size, **labels: Any) -> None:
    """Time one job in all ways, each with separate parameters."""
    variants: dict[str, Callable[[int], None]] = {"hand_serial": by_hand_serial(job.again())}
    errors: dict[str, str] = {}

    def attempt(name: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:
            errors[name] = repr(error)[:500]
            return None

    variants["hand_streams"] = by_hand_streams(job.again())
    graphs = attempt("hand_graphs", lambda: by_hand_graphs(job.again()))
    if graphs:
        variants["hand_graphs_serial"], variants["hand_graphs_streams"] = graphs
    choices: dict[str, Any] = {}
    shallow = job.again()
    made = attempt(
        "graphs of depth 2",
        lambda: ours([shallow.encode, shallow.train], shallow.batches, "graphs", size, depth=2),
    )
    if made:
        variants["graphs of depth 2"] = made[0]
    plain = job.again()
    made = attempt(
        "auto without capture",
        lambda: ours([plain.encode, plain.train], plain.batches, "auto", size, capture=False),
    )
    if made:
        variants["auto without capture"] = made[0]
        choices["auto without capture"] = made[1].choice.to_dict()
    for mode in MODES:
        mine = job.again()
        made = attempt(
            mode, lambda mode=mode, mine=mine: ours([mine.encode, mine.train], mine.batches, mode, size)
        )
        if made:
            variants[mode], pipe = made
            choices[mode] = pipe.choice.to_dict()
    rates = in_turns(variants, size)
    say(
        part,
        **labels,
        steps_s=rates,
        auto_by_hand_serial=round(rates.get("auto", 0) / rates["hand_serial"], 3),
        auto_without_capture_by_hand_serial=round(
            rates.get("auto without capture", 0) / rates["hand_serial"], 3
        ),
        graphs_by_hand_graphs=round(
            rates.get("graphs", 0) / rates.get("hand_graphs_streams", float("nan")), 3
        ),
        chosen=choices.get("auto", {}).get("mode"),
        choices=choices,
        errors=errors,
    )


def encoder_decoder(size: Size) -> None:
    for batch in size.batches:
        compare("encoder_decoder", convolutions(batch), size, batch=batch)


def pairs(size: Size) -> None:
    kinds: dict[str, Callable[[], Job]] = {
        "tiny perceptrons": lambda: perceptrons(64, (2, 2)),
        "small perceptrons": lambda: perceptrons(512, (8, 8)),
        "wide perceptrons": lambda: perceptrons(4096, (4, 4), rows=1024),
        "heavy encoder": lambda: convolutions(8, width=4),
        "heavy decoder": lambda: convolutions(8, extra=4),
        "light encoder": lambda: perceptrons(1024, (1, 12), rows=512),
    }
    for name, make in kinds.items():
        try:
            compare("pairs", make(), size, pair=name)
        except Exception as error:
            say("pairs", pair=name, error=repr(error)[:500])


def uncaptured(size: Size) -> None:
    """Without capture, small models are limited by the host, whose time varies. So all variants train one
    job, in many short turns.

    The ratios are medians over the rounds, each between two turns of one round. The ratio of the plain loop
    to itself shows the noise.
    """
    kinds: dict[str, Callable[[], Job]] = {
        "tiny perceptrons": lambda: perceptrons(64, (2, 2)),
        "small perceptrons": lambda: perceptrons(512, (8, 8)),
        **{
            f"encoder and decoder, batch {batch}": (
                lambda batch=batch: convolutions(batch)  # type: ignore[misc]
            )
            for batch in size.batches[:3]
        },
    }
    rounds, items = (15, 20) if size.quick else (75, 20)
    for name, make in kinds.items():
        job = make()
        variants = {"hand": by_hand_serial(job), "hand again": by_hand_serial(job)}
        chosen = None
        for mode in ("serial", "streams", "auto"):
            variants[mode], pipe = ours([job.encode, job.train], job.batches, mode, size, capture=False)
            chosen = pipe.choice.to_dict()
        times: dict[str, list[float]] = {variant: [] for variant in variants}
        shuffled = random.Random(0)
        for _ in range(rounds):
            for variant in shuffled.sample(list(variants), len(variants)):
                variants[variant](2)
                times[variant].append(seconds(functools.partial(variants[variant], items)) / items)
        ratios = {}
        for variant, taken in times.items():
            of_rounds = sorted(by_hand / ours_ for by_hand, ours_ in zip(times["hand"], taken, strict=True))
            ratios[variant] = [round(of_rounds[len(of_rounds) * quarter // 4], 3) for quarter in (1, 2, 3)]
        rate = round(1 / statistics.median(times["hand"]), 1)
        fastest = {variant: round(min(times["hand"]) / min(taken), 3) for variant, taken in times.items()}
        say(
            "uncaptured",
            pair=name,
            hand=rate,
            quartiles_of_ratios=ratios,
            ratios_of_fastest=fastest,
            chosen=chosen,
        )


def of_stages(
    part: str, stages: list[Any], plain: Callable[[Any], Any], items: list[Any], size: Size, **labels: Any
) -> None:
    def batches(count: int) -> list[Any]:
        return list(itertools.islice(itertools.cycle(items), count))

    def by_hand(count: int) -> None:
        for item in batches(count):
            plain(item.to(DEVICE, non_blocking=True))

    variants: dict[str, Callable[[int], None]] = {"hand_serial": by_hand}
    choices = {}
    for mode in MODES:
        variants[mode], pipe = ours(stages, batches, mode, size)
        choices[mode] = pipe.choice.to_dict()
    expected = [plain(item.to(DEVICE)) for item in items]
    same = {}
    for mode in MODES:
        results = list(Pipeline(stages, mode=mode, capture=True)(batches(40)))
        same[mode] = all(
            torch.allclose(result, expected[n % len(items)], rtol=1e-4, atol=1e-4)
            for n, result in enumerate(results)
        )
    rates = in_turns(variants, size)
    ratio = round(rates["auto"] / rates["hand_serial"], 3)
    say(
        part,
        **labels,
        steps_s=rates,
        auto_by_hand_serial=ratio,
        chosen=choices["auto"]["mode"],
        same=same,
        choices=choices,
    )


def stages(size: Size) -> None:
    for side in (256, 1024, 4096):
        left, right = (torch.randn(side, side, device=DEVICE) / side**0.5 for _ in range(2))
        steps = [
            lambda x: x * 0.5 + 1,
            lambda x, left=left: x @ left,
            lambda x, right=right: (x @ right).sum(1),
        ]
        items = [torch.randn(side, side).pin_memory() for _ in range(4)]
        of_stages(
            "stages", steps, lambda x, steps=steps: steps[2](steps[1](steps[0](x))), items, size, side=side
        )


def branches(size: Size) -> None:
    for batch, side in ((1, 256), (16, 64), (64, 128)):
        one, other = (nn.Conv2d(3, 64, 3, padding=1).to(DEVICE).requires_grad_(False) for _ in range(2))
        join = lambda pair: (pair[0] - pair[1]).mean((1, 2, 3))  # noqa: E731
        plain = lambda x, one=one, other=other: join((one(x), other(x)))  # noqa: E731
        items = [torch.randn(batch, 3, side, side).pin_memory() for _ in range(4)]
        of_stages("branches", [(one, other), join], plain, items, size, batch=batch, side=side)


def host(size: Size) -> None:
    """Stages that do next to nothing, so that what remains is the host's time for an item."""
    count = 500 if size.quick else 3000
    for kind, item in (
        ("pinned", torch.ones(8).pin_memory()),
        ("unpinned", torch.ones(8)),
        ("on the device", torch.ones(8, device=DEVICE)),
    ):
        took = {}
        for mode in ("serial", "streams", "serial-graphs", "graphs"):
            pipe = Pipeline([lambda x: x + 1, lambda x: x + 2], mode=mode, capture=True)
            for _ in pipe(itertools.repeat(item, 50)):
                pass
            took[mode] = seconds(functools.partial(deque, pipe(itertools.repeat(item, count)), 0))
        took["hand_serial"] = seconds(
            lambda: deque((item.to(DEVICE, non_blocking=True) + 1 + 2 for _ in range(count)), 0)
        )
        say("host", item=kind, us_an_item={mode: round(of / count * 1e6, 1) for mode, of in took.items()})


# Correctness.


class Noisy:
    """A pair with dropout in one stage or in both, trained with momentum. It is deterministic, so that
    parameters can be compared bit by bit.
    """

    def __init__(self, both: bool, adam: bool, set_to_none: bool) -> None:
        torch.manual_seed(1)
        self.encoder = nn.Sequential(nn.Linear(256, 256), nn.ReLU()).to(DEVICE)
        self.noise = nn.Dropout(0.2) if both else nn.Identity()
        self.decoder = nn.Sequential(nn.Dropout(0.3), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 16)).to(
            DEVICE
        )
        parameters = self.decoder.parameters()
        self.optimizer: Any = (
            torch.optim.Adam(parameters, lr=1e-3, capturable=True)
            if adam
            else torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
        )
        self.set_to_none = set_to_none

    def encode(self, item: Any) -> Any:
        with torch.no_grad():
            return self.noise(self.encoder(item["x"])), item["y"]

    def train(self, item: Any) -> Any:
        features, wanted = item
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        loss = (self.decoder(features) - wanted).square().mean()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach(), "wanted": wanted}


class OneBuffer:
    """A loader that refills and returns the same pinned memory each time, and a smaller batch at the end.
    """

    def __init__(self, count: int, kind: str) -> None:
        generator = torch.Generator().manual_seed(5)
        self.rows = [32] * (count - 1) + [7]
        self.x = [torch.randn(rows, 256, generator=generator) for rows in self.rows]
        self.y = [torch.randn(rows, 16, generator=generator) for rows in self.rows]
        self.kind = kind
        pin = kind == "pinned"
        self.buffers = {
            n: (torch.empty(n, 256, pin_memory=pin), torch.empty(n, 16, pin_memory=pin)) for n in (32, 7)
        }

    def __iter__(self) -> Iterator[Any]:
        for rows, x, y in zip(self.rows, self.x, self.y, strict=True):
            if self.kind == "device":
                yield {"x": x.to(DEVICE), "y": y.to(DEVICE)}
            elif self.kind == "numpy":
                yield {"x": x.numpy(), "y": y.numpy()}
            else:
                into, other = self.buffers[rows]
                into.copy_(x)
                other.copy_(y)
                yield {"x": into, "y": other}


def equal(size: Size) -> None:
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = True
    count = size.checked // 3

    def trained(model: Noisy, results: Iterable[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        kept = list(results)
        torch.cuda.current_stream().synchronize()
        losses = torch.stack([result["loss"] for result in kept])
        labels = torch.stack([result["wanted"].sum() for result in kept])
        return torch.cat([losses, labels]), torch.cat(
            [value.flatten() for value in model.decoder.state_dict().values()]
        )

    for both, adam, set_to_none, kind in (
        (False, False, True, "pinned"),
        (True, False, False, "unpinned"),
        (True, True, True, "device"),
        (False, True, False, "numpy"),
    ):
        loader = OneBuffer(count, kind)
        plain = Noisy(both, adam, set_to_none)
        torch.manual_seed(9)

        def loop(plain: Noisy = plain, loader: OneBuffer = loader) -> Iterator[Any]:
            for _ in range(3):
                for item in loader:
                    moved = {name: torch.as_tensor(part).to(DEVICE) for name, part in item.items()}
                    yield plain.train(plain.encode(moved))

        expected = trained(plain, loop())
        found = {}
        for mode in MODES:
            for side in (False, True):
                model = Noisy(both, adam, set_to_none)
                pipe = Pipeline([model.encode, model.train], mode=mode, capture=True, measure=2)
                torch.manual_seed(9)
                stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    got = trained(model, (result for _ in range(3) for result in pipe(loader)))
                torch.cuda.synchronize()
                found[f"{mode}{' on a side stream' if side else ''}"] = {
                    "bits": all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)),
                    "largest_difference": max(
                        float((a - b).abs().max()) for a, b in zip(got, expected, strict=True)
                    ),
                    "notes": list(pipe.choice.notes),
                }
        say("equal", dropout_in_both=both, adam=adam, set_to_none=set_to_none, items=kind, found=found)
    job = convolutions(4)
    plain_job = job.again()
    losses = [
        plain_job.train(plain_job.encode([part.to(DEVICE) for part in item])) for item in job.batches(60)
    ]
    found = {}
    for mode in MODES:
        mine = job.again()
        got_losses = list(
            Pipeline([mine.encode, mine.train], mode=mode, capture=True, measure=1)(job.batches(60))
        )
        found[mode] = {
            "parameters": float((mine.parameters() - plain_job.parameters()).abs().max()),
            "losses": float((torch.stack(got_losses) - torch.stack(losses)).abs().max()),
        }
    say("equal", job="convolutions", largest_difference=found)
    torch.backends.cudnn.deterministic = False


def stress(size: Size) -> None:
    """Delay one stage at a time, and check that each result belongs to its item."""
    side = 1 << 16

    def wrong(mode: str, slow: int, kind: str, waits: bool = True) -> int:
        import sidestream._pipeline._cuda as module

        def first(x: Any) -> Any:
            if slow == 0:
                torch.cuda._sleep(200_000)
            return x * 2, x

        def second(pair: Any) -> Any:
            if slow == 1:
                torch.cuda._sleep(200_000)
            return pair[0] + 1, pair[1]

        def third(pair: Any) -> Any:
            if slow == 2:
                torch.cuda._sleep(200_000)
            return torch.stack([pair[0].sum(), pair[1].sum()]), pair[1]

        steps = module.item_steps
        if not waits:
            module.item_steps = lambda levels, **how: tuple(
                step for step in steps(levels, **how) if step.do != "wait"
            )
        try:
            pipe = Pipeline([first, second, third], mode=mode, capture=True, measure=1)
        finally:
            module.item_steps = steps
        buffer = torch.empty(side, pin_memory=True)

        def items() -> Iterator[Any]:
            for number in range(size.checked):
                value = float(number % 61)
                if kind == "pinned":
                    yield buffer.fill_(value)
                elif kind == "unpinned":
                    yield torch.full((side,), value)
                else:
                    yield torch.full((side,), value, device=DEVICE)

        results = [(n, result) for _ in range(2) for n, result in enumerate(pipe(items()))]
        for _ in pipe(items()):
            break
        torch.cuda.current_stream().synchronize()
        bad = 0
        for number, (sums, handed_on) in results:
            value = float(number % 61)
            right = torch.tensor([(value * 2 + 1) * side, value * side])
            bad += not torch.allclose(sums.cpu(), right) or not bool((handed_on == value).all())
        return bad

    found = {
        f"{mode}, stage {slow} slow, {kind}": wrong(mode, slow, kind)
        for mode in ("streams", "graphs", "auto")
        for slow in (0, 1, 2)
        for kind in ("pinned", "unpinned", "device")
    }
    say(
        "stress",
        items=2 * size.checked,
        wrong=sum(found.values()),
        where={name: bad for name, bad in found.items() if bad},
    )
    naive = {
        f"{mode}, stage {slow} slow": wrong(mode, slow, "unpinned", waits=False)
        for mode in ("streams", "graphs")
        for slow in (0, 1, 2)
    }
    say("stress", waits=False, wrong_as_it_has_to_be=sum(naive.values()), where=naive)

    # A stage that cannot be captured: the pipeline reports that and continues without a graph, and random
    # numbers can be drawn afterwards.
    found_reasons = {}
    for name, stage in (
        ("item", lambda x: x + x.sum().item()),
        (
            "only while it is captured",
            lambda x: x.cpu().to(DEVICE) if torch.cuda.is_current_stream_capturing() else x,
        ),
    ):
        layer = nn.Dropout(0.5)
        pipe = Pipeline([Stage(stage, name=name), layer], mode="graphs", capture=True)
        results_of = [float(result.sum()) for result in pipe(torch.ones(64) for _ in range(20))]
        found_reasons[name] = {"notes": list(pipe.choice.notes), "distinct": len(set(results_of))}
        torch.rand(3, device=DEVICE).sum().item()
    say("stress", uncapturable=found_reasons)


PARTS = {
    part.__name__: part
    for part in (equal, stress, host, encoder_decoder, pairs, uncaptured, stages, branches)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which parts run; by default all")
    parser.add_argument("--quick", action="store_true", help="fewer batch sizes, items and rounds")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*lazy.*")
    size = Size(arguments.quick)
    return parts.run({name: functools.partial(part, size) for name, part in PARTS.items()}, arguments.parts)


if __name__ == "__main__":
    sys.exit(main())
