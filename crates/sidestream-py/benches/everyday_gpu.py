"""The features that a reader tries on the first day, measured on a GPU: `fetch`, `parallel`, `compare`,
`overlap` with times. Takes less than four minutes.

    python everyday_gpu.py             # everything, one JSON object per line, with `ok`
    python everyday_gpu.py fetch       # one part: fetch, gradients, parallel, compare, overlap
    python everyday_gpu.py --dry       # tiny and on the CPU, as a smoke test

The bars: a loop that reads its loss in each step runs at 98 % of the speed of one that never does; two
branches that each fill a third of the GPU train 1.25 times as fast, and no pair of branches trains slower
than 0.97 times serial; gradients are equal bit for bit; `compare` never calls equal what differs by 3 %,
nor different what differs by 0.5 %, and is undecided in at most 2 of 20 trials.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

# Must be set before CUDA starts: makes matrix products reproducible bit for bit.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import parts
import sidestream
import torch
from parts import say
from planted.models import perceptron, trained
from timing import seconds, synchronize
from torch import nn

DRY = "--dry" in sys.argv
DEVICE = "cpu" if DRY else "cuda"


def in_turn(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the times of all sides. All sides run in each round, in reverse order in every other round."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for at in range(rounds):
        for name in list(sides) if at % 2 else list(sides)[::-1]:
            times[name].append(seconds(sides[name]))
    return times


# ---------------------------------------------------------------------- fetch


def by_step(step: Callable[[], Any], count: int) -> dict[str, dict[str, float]]:
    """Measure the host's time of a step for each way to read its loss. One loop draws the way at random for
    each step; the GPU keeps up with the host.
    """
    drawn = random.Random(3)
    mean = sidestream.RunningMean()
    before: list[Any] = []

    def fetched(loss: Any) -> None:
        before.append(sidestream.fetch(loss))
        if len(before) > 1:
            float(before.pop(0).result())

    def running(loss: Any) -> None:
        mean.update(loss)
        if drawn.random() < 0.1:
            mean.value()

    ways: dict[str, Callable[[Any], None]] = {
        "never": lambda loss: None,
        "fetch": fetched,
        "running_mean": running,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    reads: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    for name in (drawn.choice(list(ways)) for _ in range(count)):
        start = time.perf_counter()
        loss = step()
        made = time.perf_counter()
        ways[name](loss)
        end = time.perf_counter()
        times[name].append(end - start)
        reads[name].append(end - made)
    synchronize()
    # Drop the slowest twentieth: a pause of the machine is charged to the variant that is running.
    usual = {name: statistics.mean(sorted(of)[: -max(1, len(of) // 20)]) for name, of in times.items()}
    return {
        name: {
            "rate_of_never": usual["never"] / usual[name],
            "rate_by_median": statistics.median(times["never"]) / statistics.median(of),
            "reading_us": statistics.median(reads[name]) * 1e6,
        }
        for name, of in times.items()
    }


def fetch() -> None:
    """Time loops that read their loss in each step, compared with one that never does: with long steps, and
    with short ones whose speed the host limits.
    """
    for kind, width, layers, rows in (
        ("device-bound", 4096, 8, 4096),
        ("short", 1024, 8, 1024),
        ("host-bound", 256, 8, 64),
    ):
        width, layers, rows = (32, 2, 8) if DRY else (width, layers, rows)
        torch.manual_seed(0)
        model = perceptron(layers, width).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True)
        x = torch.randn(rows, width, device=DEVICE)

        step = functools.partial(trained(model, optimizer), x)

        def never() -> None:
            for _ in range(steps):
                step()

        def item() -> None:
            total = 0.0
            for _ in range(steps):
                total += step().item()

        def fetched() -> None:
            before, total = None, 0.0
            for _ in range(steps):
                now = sidestream.fetch(step())
                # The value of the step before last has arrived by now, so the wait is short.
                if before is not None:
                    total += float(before.result())
                before = now

        def futures() -> None:
            waiting = [sidestream.fetch(step()) for _ in range(steps)]
            sum(float(one.result()) for one in waiting)

        def running() -> None:
            mean = sidestream.RunningMean()
            for at in range(steps):
                mean.update(step())
                if at % 10 == 0:
                    mean.value()
            mean.result()

        for _ in range(3):
            step()
        one = seconds(lambda: [step() for _ in range(5)]) / 5
        steps = 3 if DRY else max(10, min(200, int(0.1 / one)))
        sides: dict[str, Callable[[], object]] = {
            "never": never,
            "item": item,
            "fetch": fetched,
            "fetch_all_then_read": futures,
            "running_mean": running,
        }
        in_turn(sides, 1)
        times = in_turn(sides, 1 if DRY else 5 if one > 0.02 else 15)
        ratios = {
            name: sorted(never / took for never, took in zip(times["never"], of))
            for name, of in times.items()
        }
        rates = {name: statistics.median(of) for name, of in ratios.items()}
        fields: dict[str, Any] = {
            "step_ms": statistics.median(times["never"]) / steps * 1e3,
            "steps": steps,
            "rate_of_never": rates,
        }
        if one > 0.02 or DRY:
            ok = DRY or (rates["fetch_all_then_read"] >= 0.98 and rates["running_mean"] >= 0.98)
        else:
            # In a loop that the host limits, the times of turns drift by several percent, so single steps are
            # compared.
            fields["by_step"] = by_step(step, 2000)
            ok = all(fields["by_step"][name]["rate_of_never"] >= 0.98 for name in ("fetch", "running_mean"))
        say(part="fetch", kind=kind, **fields, ok=ok)

    # Megabytes per step: the outputs of a batch, which the loop keeps on the host.
    rows = 64 if DRY else 4096
    model = perceptron(4, 64 if DRY else 4096).to(DEVICE)
    x = torch.randn(rows, 64 if DRY else 4096, device=DEVICE)
    steps = 3 if DRY else 60

    def kept(how: Callable[[Any], Any]) -> None:
        waiting: list[Any] = []
        with torch.no_grad():
            for _ in range(steps):
                waiting.append(how(model(x)))
                if len(waiting) > 2:
                    one = waiting.pop(0)
                    if isinstance(one, sidestream.Fetched):
                        one.result()

    def nothing(y: Any) -> None:
        return None

    sides = {
        "none": lambda: kept(nothing),
        "cpu": lambda: kept(lambda y: y.cpu()),
        "fetch": lambda: kept(sidestream.fetch),
        "fetch_in_place": lambda: kept(lambda y: sidestream.fetch(y, snapshot=False)),
    }
    in_turn(sides, 1)
    medians = {
        name: statistics.median(of) / steps * 1e3 for name, of in in_turn(sides, 1 if DRY else 5).items()
    }
    say(
        part="fetch",
        kind="outputs",
        bytes=rows * (64 if DRY else 4096) * 4,
        step_ms=medians,
        ok=DRY or medians["fetch"] < medians["cpu"],
    )


# ---------------------------------------------------------------------- parallel


def step_of(branches: Any, stem: Any, head: Any, x: Any) -> Callable[[], Any]:
    parts = nn.ModuleList([stem, branches, head]).to(DEVICE)
    optimizer = torch.optim.SGD(parts.parameters(), lr=1e-3, foreach=True)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        x.grad = None
        loss = head(torch.cat(branches(stem(x)), dim=1)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def gradients() -> None:
    """Check that results on streams equal those on one stream bit for bit, over training steps with Adam,
    dropout and convolutions.
    """
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    for kind in ("linear", "convolutions", "attention"):

        def branch(width: int, kind: str = kind) -> nn.Module:
            if kind == "linear":
                return nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, 128))
            if kind == "convolutions":
                layers = [
                    nn.Unflatten(1, (1, 16, 16)),
                    nn.Conv2d(1, width // 16, 3, padding=1),
                    nn.BatchNorm2d(width // 16),
                    nn.ReLU(),
                ]
                return nn.Sequential(
                    *layers, nn.Conv2d(width // 16, 4, 3, padding=1), nn.Flatten(), nn.Linear(1024, 128)
                )
            return nn.Sequential(
                nn.Unflatten(1, (4, 64)),
                nn.TransformerEncoderLayer(64, 4, width, batch_first=True),
                nn.Flatten(),
                nn.Linear(256, 128),
            )

        outcomes = []
        for mode in ("serial", "streams", "streams", "serial"):
            torch.manual_seed(11)
            branches = sidestream.parallel(branch(256), branch(512), branch(384), mode=mode).to(DEVICE)
            stem, head = nn.Linear(64, 256).to(DEVICE), nn.Linear(384, 10).to(DEVICE)
            everything = nn.ModuleList([stem, branches, head])
            optimizer = torch.optim.Adam(everything.parameters(), lr=1e-3)
            bits = []
            for _ in range(3 if DRY else 60):
                x = torch.randn(64, 64, device=DEVICE)
                optimizer.zero_grad()
                loss = head(torch.cat(branches(stem(x)), dim=1)).square().mean()
                loss.backward()
                bits.append(
                    [value.grad.clone() for value in everything.parameters() if value.grad is not None]
                )
                optimizer.step()
            outcomes.append(
                [one.cpu() for step in bits for one in step]
                + [value.detach().cpu() for value in everything.parameters()]
            )
        same = [
            all(torch.equal(one, other) for one, other in zip(outcomes[0], outcome))
            for outcome in outcomes[1:]
        ]
        # The last run is serial again: if its result differs, PyTorch itself is not reproducible.
        say(
            part="gradients",
            kind=kind,
            tensors=len(outcomes[0]),
            streams_same=same[0] and same[1],
            serial_same=same[2],
            ok=same[0] and same[1],
        )
    torch.use_deterministic_algorithms(False)


def parallel() -> None:
    """Time training steps of two branches: on streams, one after another, and in the mode that `auto` chose,
    compared with a plain loop.
    """
    # Layers, branches, rows and widths. A softmax has a block of 1,024 threads for each row, so 44 rows of
    # a million fill a third of 132 multiprocessors, for tenths of a millisecond each. The matrix products
    # have tiles of 128 x 128, which a library may split, and are so short that the host may be the limit. The
    # next shape fills the whole GPU, and the one after that next to nothing.
    shapes = {
        "a third": (8, 2, 44, 1 << 20),
        "a sixth": (8, 2, 22, 1 << 20),
        "short products": (8, 2, 512, 1408),
        "full": (6, 2, 4096, 4096),
        "tiny": (8, 2, 64, 256),
        "four": (8, 4, 33, 1 << 19),
    }
    for kind, (layers, count, rows, width) in shapes.items():
        is_softmax = width > 10_000
        rows, width, layers = (4, 16, 2) if DRY else (rows, width, layers)

        def branch(is_softmax: bool = is_softmax, layers: int = layers, width: int = width) -> nn.Module:
            return (
                nn.Sequential(*[nn.LogSoftmax(1) for _ in range(layers)])
                if is_softmax
                else perceptron(layers, width)
            )

        kernel_ms = 0.0
        if is_softmax and not DRY:
            given = torch.randn(rows, width, device=DEVICE)
            kernel_ms = (
                statistics.median(
                    seconds(lambda given=given: [given.log_softmax(1) for _ in range(10)]) for _ in range(3)
                )
                * 100
            )
            del given
        steps_of: dict[str, Callable[[], Any]] = {}
        modules = {}
        for mode in ("serial", "streams", "auto"):
            torch.manual_seed(5)
            made = [branch() for _ in range(count)]
            modules[mode] = sidestream.parallel(*made, mode=mode)
            # A softmax has no parameters: its branch has a backward pass only because of the layers before
            # the softmax.
            x = torch.randn(rows, width, device=DEVICE, requires_grad=is_softmax)
            steps_of[mode] = step_of(modules[mode], nn.Identity(), nn.Linear(count * width, 1), x)
        torch.manual_seed(5)
        plain_branches = nn.ModuleList([branch() for _ in range(count)])

        class Plain(nn.Module):
            def __init__(self, branches: nn.ModuleList) -> None:
                super().__init__()
                self.branches = branches

            def forward(self, x: Any) -> Any:
                return tuple(branch(x) for branch in self.branches)

        x = torch.randn(rows, width, device=DEVICE, requires_grad=is_softmax)
        steps_of["plain"] = step_of(Plain(plain_branches), nn.Identity(), nn.Linear(count * width, 1), x)
        for mode, step in steps_of.items():
            until = time.perf_counter() + (0 if DRY else 12)
            step()
            while mode == "auto" and not modules[mode].choice.measured and time.perf_counter() < until:
                step()
        one = seconds(lambda: [steps_of["plain"]() for _ in range(5)]) / 5
        number = 3 if DRY else max(10, min(500, int(0.1 / one)))

        def many(step: Callable[[], Any], number: int = number) -> Callable[[], None]:
            def run() -> None:
                for _ in range(number):
                    step()

            return run

        sides: dict[str, Callable[[], object]] = {name: many(step) for name, step in steps_of.items()}
        in_turn(sides, 1)
        medians = {
            name: statistics.median(of) / number * 1e3 for name, of in in_turn(sides, 1 if DRY else 9).items()
        }
        gain = {name: medians["plain"] / took for name, took in medians.items()}
        chosen = modules["auto"].choice
        ok = DRY or gain["auto"] >= (1.25 if kind == "a third" else 0.97)
        ok = ok and (DRY or kind != "a third" or (chosen.mode == "streams" and kernel_ms >= 0.3))
        say(
            part="parallel",
            kind=kind,
            kernel_ms=kernel_ms,
            step_ms=medians,
            times_as_fast=gain,
            chosen=str(chosen).split("\n")[0],
            ok=ok,
        )
        del steps_of, modules, sides, x


# ---------------------------------------------------------------------- compare


def compare() -> None:
    """Run twenty trials for each pair of functions that differ by a known fraction, in both directions:
    device time set by a cycle counter, and matrix products.
    """
    if DRY:
        result = sidestream.compare(sum, max, list(range(2_000)), device="cpu", seconds=0.01)
        say(part="compare", kind="dry", verdict=result.verdict, ok=True)
        return

    def sleeping(cycles: int) -> Callable[[], None]:
        return lambda: torch.cuda._sleep(cycles)

    base = 400_000
    spent = time.perf_counter()
    for difference, wrong in ((0.0, "different"), (0.005, "different"), (0.03, "equal")):
        said: list[str] = []
        widths = []
        for trial in range(20):
            one, other = sleeping(base), sleeping(round(base * (1 + difference)))
            result = sidestream.compare(*((one, other) if trial % 2 else (other, one)), seconds=1.0)
            said.append(result.verdict)
            widths.append(result.interval[1] - result.interval[0])
        unknown = said.count("unknown")
        ok = wrong not in said and unknown <= 2
        say(
            part="compare",
            kind="cycles",
            difference=difference,
            equal=said.count("equal"),
            different=said.count("different"),
            unknown=unknown,
            width=statistics.median(widths),
            seconds=time.perf_counter() - spent,
            ok=ok,
        )
        spent = time.perf_counter()

    # Matrix products whose rows grow in steps that add whole waves: 3 % more work. The extra time is measured
    # alone, long before.
    a, b = torch.randn(13_200, 2048, device=DEVICE, dtype=torch.bfloat16), torch.randn(
        2048, 2048, device=DEVICE, dtype=torch.bfloat16
    )
    exact = {}
    for copies in (33, 34):

        def repeated(copies: int = copies) -> None:
            for _ in range(copies):
                torch.mm(a, b)

        exact[copies] = repeated
    said = []
    for trial in range(20):
        pair = (exact[33], exact[34]) if trial % 2 else (exact[34], exact[33])
        said.append(sidestream.compare(*pair, seconds=1.0).verdict)
    same = [sidestream.compare(exact[33], exact[33], seconds=1.0).verdict for _ in range(20)]
    say(
        part="compare",
        kind="products, 3.03 % apart",
        different=said.count("different"),
        equal=said.count("equal"),
        unknown=said.count("unknown"),
        ok="equal" not in said and said.count("unknown") <= 2,
    )
    say(
        part="compare",
        kind="products, the same",
        different=same.count("different"),
        equal=same.count("equal"),
        unknown=same.count("unknown"),
        ok="different" not in same and same.count("unknown") <= 2,
    )
    print(sidestream.compare(exact[33], exact[34], seconds=1.0), file=sys.stderr)

    x = torch.ones(20_000_000, device=DEVICE)
    try:
        sidestream.compare(lambda: (x * 2).cpu(), lambda: x * 2)
        say(part="compare", kind="another work", ok=False)
    except ValueError as refused:
        say(part="compare", kind="another work", ok="downloads 80.0 MB" in str(refused), text=str(refused))


# ---------------------------------------------------------------------- overlap


def overlap() -> None:
    """Compare the times that `overlap` predicts from those of the stages with the measured loop, on two
    streams and on one. The error must be below 3 %.
    """
    if DRY:
        say(
            part="overlap",
            kind="dry",
            gain=sidestream.overlap("sim:h200", kernel_ms=8, upload_ms=3).to_dict()["long_run"],
            ok=True,
        )
        return
    count = 32
    current = torch.cuda.current_stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 20_000_000
    for _ in range(2):
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
    per_ms = cycles / start.elapsed_time(end)
    for kernel_ms, upload_ms, download_ms in ((8, 3, 0), (3, 8, 0), (3, 3, 3), (8, 3, 3)):
        up, down = (
            torch.empty(max(1, int(ms * 55.4e6)), dtype=torch.uint8).pin_memory()
            for ms in (upload_ms, download_ms)
        )
        slots = 4
        inputs = [torch.empty_like(up, device=DEVICE) for _ in range(slots)]
        outputs = [torch.empty_like(down, device=DEVICE) for _ in range(slots)]
        streams = [torch.cuda.Stream() for _ in range(slots)]

        def batch(at: int) -> None:
            inputs[at].copy_(up, non_blocking=True)
            torch.cuda._sleep(int(kernel_ms * per_ms))
            if download_ms:
                down.copy_(outputs[at], non_blocking=True)

        def run(k: int) -> None:
            for at in range(count):
                with torch.cuda.stream(streams[at % k]):
                    batch(at % k)

        def alone(call: Callable[[], object]) -> float:
            return seconds(lambda: [call() for _ in range(8)]) / 8 * 1e3

        def stages() -> tuple[float, float, float]:
            return (
                alone(lambda: torch.cuda._sleep(int(kernel_ms * per_ms))),
                alone(lambda: inputs[0].copy_(up, non_blocking=True)),
                alone(lambda: down.copy_(outputs[0], non_blocking=True)) if download_ms else 0.0,
            )

        measured = [statistics.median(one) for one in zip(*[stages() for _ in range(5)])]
        run(4)
        times = {
            k: statistics.median(seconds(lambda k=k: run(k)) for _ in range(3)) * 1e3 for k in (1, 2, 3, 4)
        }
        given = {
            "kernel_ms": measured[0],
            "upload_ms": measured[1],
            **({"download_ms": measured[2]} if download_ms else {}),
        }
        rows = sidestream.overlap("sim:h200", count=count, **given).rows
        said = {row.k: row.time_ns / 1e6 for row in rows if row.layout == "streams"}
        off = {k: said[k] / times[k] - 1 for k in times}
        # Counting one-block kernels as filling the device is right here: these sleep concurrently on
        # several streams.
        best_said, best = min(said.values()), min(times.values())
        say(
            part="overlap",
            kind=f"{kernel_ms}, {upload_ms}, {download_ms} ms",
            stages_ms=measured,
            measured_ms=times,
            said_ms=said,
            off=off,
            gain_measured=times[1] / best,
            gain_said=said[1] / best_said,
            note="kernels that sleep fill nothing: k > 1 may run them side by side",
        )
        del inputs, outputs

        # All kernels run in one stream, as in a training loop, and copies run a step ahead on a separate
        # stream.
        inputs = [torch.empty_like(up, device=DEVICE) for _ in range(2)]
        copied, used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
        side, back = torch.cuda.Stream(), torch.cuda.Stream()
        result = torch.empty_like(down, device=DEVICE)

        def ring() -> None:
            for at in range(count):
                slot = at % 2
                with torch.cuda.stream(side):
                    side.wait_event(used[slot])
                    inputs[slot].copy_(up, non_blocking=True)
                    copied[slot].record()
                current.wait_event(copied[slot])
                torch.cuda._sleep(int(kernel_ms * per_ms))
                used[slot].record()
                if download_ms:
                    with torch.cuda.stream(back):
                        back.wait_event(used[slot])
                        down.copy_(result, non_blocking=True)

        ring()
        took = statistics.median(seconds(ring) for _ in range(5)) * 1e3
        ring_said = next(row.time_ns / 1e6 for row in rows if row.layout == "ring" and row.k == 2)
        serial_off, ring_off = said[1] / times[1] - 1, ring_said / took - 1
        say(
            part="overlap",
            kind=f"{kernel_ms}, {upload_ms}, {download_ms} ms, a stream a stage",
            measured_ms=took,
            said_ms=ring_said,
            off=ring_off,
            off_one_stream=serial_off,
            gain_measured=times[1] / took,
            gain_said=said[1] / ring_said,
            ok=abs(serial_off) <= 0.03 and abs(ring_off) <= 0.03,
        )
        del inputs, result

    model = perceptron(6, 4096).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True)
    result = sidestream.overlap(trained(model, optimizer), [torch.randn(4096, 4096) for _ in range(4)])
    print(result, file=sys.stderr)
    say(
        part="overlap",
        kind="a loop of one's own",
        **result.to_dict(),
        ok=result.loop_ns["prefetch"] <= 1.02 * result.limit_ns,
    )


if __name__ == "__main__":
    PARTS = {part.__name__: part for part in (fetch, gradients, parallel, compare, overlap)}
    sys.exit(parts.run(PARTS, [name for name in sys.argv[1:] if name != "--dry"]))
