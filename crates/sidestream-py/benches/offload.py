"""Weights that take turns on a GPU: ``sidestream.offload`` beside the resident model, the link, and peers.

24 linear layers of 8192² in bf16 without gradients, passes back to back. ``ratio`` is to the greater of the
resident pass and the copies of what moves, both measured in this process. Prints a JSON object a line.
"""

import argparse
import functools
import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


def model(count: int = LAYERS) -> nn.Module:
    """Return the layers on the CPU; each call gives the same."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False, dtype=TYPE, device="cuda") for _ in range(count)]
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


def predictions(offloaded: Any, job: str) -> None:
    """Print what was predicted and measured of each phase."""
    torch.cuda.synchronize()
    for plan in offloaded.plans:
        told(
            what="prediction",
            job=job,
            phase=plan.name,
            predicted_ms=plan.predicted_ms,
            measured_ms=plan.measured_ms,
            ratio=plan.measured_ms / plan.predicted_ms if plan.measured_ms else None,
            own_ms=plan.own_ms,
            link_ms=plan.link_ms,
            read_ms=plan.read_ms,
            limited_by=plan.limited_by,
        )
    print(offloaded, flush=True)


def phases(long: int, short: int = 16, decodes: int = 3) -> None:
    """Alternate a pass of many rows with some of few, and two orders of layers."""
    net = model()
    x, y = (torch.randn(rows, WIDTH, device="cuda", dtype=TYPE) for rows in (long, short))
    resident = [milliseconds(functools.partial(net.cuda(), each)) for each in (x, y)]
    link = link_ms(LAYERS)
    expected = [net(each) for each in (x, y)]
    offloaded = sidestream.offload(net.cpu(), "cuda", budget=2 * LAYER_BYTES)

    def turn() -> list[torch.Tensor]:
        return [net(x), *(net(y) for _ in range(decodes))]

    ms = milliseconds(turn)
    limit = max(resident[0], link) + decodes * max(resident[1], link)
    outs = turn()
    told(
        what="two phases that alternate",
        rows=[long, short],
        decodes=decodes,
        ms=ms,
        limit_ms=limit,
        ratio=ms / limit,
        equal=torch.equal(outs[0], expected[0]) and all(torch.equal(out, expected[1]) for out in outs[1:]),
    )
    predictions(offloaded, "two phases")
    offloaded.remove()


def trained(rows: int, count: int = 8) -> None:
    """Predict and measure a step with gradients."""
    net = model(count).requires_grad_()
    offloaded = sidestream.offload(net, "cuda", budget=2 * LAYER_BYTES)
    x = torch.randn(rows, WIDTH, device="cuda", dtype=TYPE)
    with torch.enable_grad():
        for _ in range(6):
            net(x).float().square().mean().backward()
            net.zero_grad()
    predictions(offloaded, "training")
    offloaded.remove()


def forgotten(path: Path) -> None:
    """Drop a file from the system's cache, as far as no process has it mapped."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def read_ms(path: Path, chunk: int = 8 << 20) -> float:
    """Return the time in which eight threads read a file into pinned memory."""
    pinned = torch.empty(8 * chunk, dtype=torch.uint8, pin_memory=True).numpy()
    descriptor, size = os.open(path, os.O_RDONLY), path.stat().st_size

    def read(first: int) -> None:
        for at in range(first * chunk, size, 8 * chunk):
            os.preadv(descriptor, [memoryview(pinned)[first * chunk : (first + 1) * chunk]], at)

    began = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
    os.close(descriptor)
    return (time.perf_counter() - began) * 1e3


def pages(rows: int, folder: str | None) -> None:
    """Read weights from a file that is cold, and then warm, beside reading it alone."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path, net = Path(place) / "weights.pt", model()
        x = torch.randn(rows, WIDTH, device="cuda", dtype=TYPE)
        resident = milliseconds(functools.partial(net.cuda(), x))
        expected, link = net(x), link_ms(LAYERS)
        torch.save(net.cpu().state_dict(), path)
        alone = {}
        forgotten(path)
        for state in ("cold", "warm"):
            alone[state] = read_ms(path)
        for slabs in (2, 4, LAYERS // 2):
            net.load_state_dict(torch.load(path, mmap=True), assign=True)
            net.requires_grad_(False)
            before = host_bytes()
            bounds = {"budget": 2 * LAYER_BYTES, "pinned": slabs * LAYER_BYTES}
            offloaded = sidestream.offload(net, "cuda", **bounds)
            grown = host_bytes() - before
            net(x)
            torch.cuda.synchronize()
            forgotten(path)
            began = time.perf_counter()
            net(x)
            torch.cuda.synchronize()
            times = {
                "cold": (time.perf_counter() - began) * 1e3,
                "warm": milliseconds(functools.partial(net, x)),
            }
            for state, ms in times.items():
                limit = max(resident, link, alone[state])
                told(
                    what="weights in a file",
                    state=state,
                    pinned_layers=slabs,
                    ms=ms,
                    file_ms=alone[state],
                    resident_ms=resident,
                    link_ms=link,
                    ratio=ms / limit,
                    equal=torch.equal(net(x), expected),
                    pinned_bytes=offloaded.pinned_bytes,
                    grown_bytes=grown,
                )
            predictions(offloaded, f"file, {slabs} layers pinned")
            offloaded.remove()


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
    parser.add_argument("--folder", help="where a file of 3.2 GB is written and read")
    parser.add_argument("--only", choices=("phases", "trained", "pages"), help="one job alone")
    parser.add_argument("--simulate", action="store_true", help="the turns only, on sim:h200")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    if options.simulate:
        with sidestream.simulate("sim:h200"):
            wrong = turns(options.turns, 1)
        return told(what="turns in random order, on random streams", turns=options.turns, wrong_passes=wrong)
    device = torch.cuda.get_device_name()
    jobs: dict[str, Callable[[], None]] = {
        "phases": lambda: phases(options.peers or 12288),
        "trained": lambda: trained(4096),
        "pages": lambda: pages(options.peers or 12288, options.folder),
    }
    if options.only:
        return jobs[options.only]()
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
        if moved:
            predictions(offloaded, f"room for {room}")
        offloaded.remove()
    del net, offloaded
    gc.collect()
    for job in jobs.values():
        job()
        gc.collect()
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
