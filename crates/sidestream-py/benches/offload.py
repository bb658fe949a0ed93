"""Weights that take turns on a GPU: ``sidestream.offload`` beside the resident model, the link, and peers.

24 linear layers of 8192² in bf16 without gradients, passes back to back. ``ratio`` is to the greater of the
resident pass and the copies of what moves, both measured in this process. Prints a JSON object a line.
"""

import argparse
import functools
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sidestream
import torch
from torch import nn

WIDTH, LAYERS, TYPE = 8192, 24, torch.bfloat16
LAYER_BYTES = WIDTH * WIDTH * 2
ROWS = (256, 4096, 12288, 24576)


def host_bytes() -> int:
    """Return the memory of the process in the host, without files."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) << 10 for line in status if line.startswith(("RssShmem", "RssAnon")))


def milliseconds(call: Callable[[], object], passes: int = 5) -> float:
    """Return the time of a pass, of some that follow each other, after two."""
    call()
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(passes):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3 / passes)
    return statistics.median(times)


def model() -> nn.Module:
    """Return the layers on the CPU; each call gives the same."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False, dtype=TYPE, device="cuda") for _ in range(LAYERS)]
    return nn.Sequential(*layers).cpu().requires_grad_(False)


def link_ms(moved: int) -> float:
    """Return the time of copies of this many layers, back to back."""
    pinned = torch.empty(LAYER_BYTES, dtype=torch.uint8, pin_memory=True)
    slot = torch.empty(LAYER_BYTES, dtype=torch.uint8, device="cuda")

    def copies() -> None:
        for _ in range(moved):
            slot.copy_(pinned, non_blocking=True)

    return milliseconds(copies, 2)


def peers() -> Iterator[tuple[str, Callable[[nn.Module], object]]]:
    """Yield what others do with a model, as far as they are installed."""
    try:
        import accelerate

        yield ("accelerate cpu_offload", lambda net: accelerate.cpu_offload(net, torch.device("cuda:0")))
    except ImportError:
        pass
    try:
        from diffusers.hooks import apply_group_offloading  # type: ignore[import-not-found]
    except ImportError:
        return
    for streams in (False, True):
        options = {"offload_type": "leaf_level", "use_stream": streams}
        where = {"onload_device": torch.device("cuda"), "offload_device": torch.device("cpu")}
        name = f"diffusers group offload, {'with' if streams else 'without'} streams"
        yield name, functools.partial(apply_group_offloading, **where, **options)


class Shuffled(nn.Module):  # type: ignore[misc]
    """Layers in an order that each call gives."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList([nn.Linear(1024, 1024, dtype=TYPE, device="cuda") for _ in range(16)])
        self.cpu().requires_grad_(False)

    def forward(self, x: torch.Tensor, order: list[int]) -> torch.Tensor:
        """Call some layers, one after the other."""
        for at in order:
            x = torch.tanh(self.layers[at](x))
        return x


def turns(count: int, rows: int = 256) -> int:
    """Return in how many passes the bits are wrong, of as many as have this many turns of layers in all."""
    net, resident = Shuffled(), Shuffled().cuda()
    offloaded = sidestream.offload(net, "cuda", budget=5 * 1024 * 1024 * 2)
    chosen, wrong, done = random.Random(7), 0, 0
    order = list(range(16))
    streams = [torch.cuda.Stream() for _ in range(3)]
    while done < count:
        if chosen.random() < 0.3:
            order = chosen.sample(range(16), chosen.randint(1, 16))
        x = torch.randn(rows, 1024, device="cuda", dtype=TYPE)
        stream = chosen.choice(streams)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if chosen.random() < 0.5 and not getattr(torch.cuda, "is_simulated", False):
                torch.cuda._sleep(chosen.randrange(2_000_000))
            out = net(x, order)
        torch.cuda.current_stream().wait_stream(stream)
        wrong += not torch.equal(out, resident(x, order))
        done += len(order)
    offloaded.remove()
    return wrong


def told(**row: Any) -> None:
    """Print a row."""
    print(
        json.dumps({key: round(of, 3) if isinstance(of, float) else of for key, of in row.items()}),
        flush=True,
    )


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--peers", type=int, default=12288, help="rows at which peers run; 0: none")
    parser.add_argument("--turns", type=int, default=10_000, help="turns of layers in random order")
    parser.add_argument("--simulate", action="store_true", help="the turns only, on sim:h200")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    if options.simulate:
        with sidestream.simulate("sim:h200"):
            wrong = turns(options.turns, 1)
        return told(what="turns in random order, on random streams", turns=options.turns, wrong_passes=wrong)
    device = torch.cuda.get_device_name()
    inputs = {
        rows: torch.randn(rows, WIDTH, device="cuda", dtype=TYPE)
        for rows in {*options.rows, options.peers} - {0}
    }
    net = model().cuda()
    resident = {rows: milliseconds(functools.partial(net, x)) for rows, x in inputs.items()}
    expected = {rows: net(x) for rows, x in inputs.items()}
    net.cpu()
    # What the first call takes of the host is not taken again.
    sidestream.offload(net, "cuda", budget=2 * LAYER_BYTES).remove()
    offloaded = None
    for room, moved in ((2, LAYERS), (LAYERS // 2, LAYERS - LAYERS // 2 + 2), (LAYERS + 1, 0)):
        del net, offloaded
        gc.collect()
        torch.cuda.empty_cache()
        link, before = link_ms(moved) if moved else 0.0, host_bytes()
        net = model()
        offloaded = sidestream.offload(net, "cuda", budget=room * LAYER_BYTES)
        gc.collect()
        grown = host_bytes() - before
        for rows in options.rows:
            x = inputs[rows]
            ms = milliseconds(functools.partial(net, x))
            limit = max(resident[rows], link)
            told(
                what="offload",
                room=room,
                rows=rows,
                ms=ms,
                resident_ms=resident[rows],
                link_ms=link,
                ratio=ms / limit,
                equal=torch.equal(net(x), expected[rows]),
                grown_bytes=grown,
                kept_bytes=offloaded.turns_bytes,
                device=device,
            )
        print(offloaded, flush=True)
        offloaded.remove()
    told(
        what="turns in random order, on random streams",
        turns=options.turns,
        wrong_passes=turns(options.turns),
        device=device,
    )
    for name, apply in peers() if options.peers else ():
        x, net = inputs[options.peers], model()
        apply(net)
        ms = milliseconds(functools.partial(net, x), 1)
        told(
            what=name,
            rows=options.peers,
            ms=ms,
            equal=torch.equal(net(x), expected[options.peers]),
            device=device,
        )


if __name__ == "__main__":
    main()
