"""How near ``overlap(step, batches)`` on a simulated GPU comes to a real one, over ten loops.

    python own_loops.py --device cuda -o truth.json            # on the GPU; less than 150 s
    python own_loops.py --device sim:h100 -o simulated.json    # without one; --host FILE for another host
    python own_loops.py --compare truth.json simulated.json    # a line per loop, and the scores
    python own_loops.py --profile gpt_training                 # on the GPU: the step's time by operator
    python own_loops.py --profile-all -o operators.json        # the same of all loops
    python own_loops.py --device cpu --dry                     # one step of each on the CPU, as a smoke test

``--held`` takes the held-back loops, of ``own_loops_held.py``, instead of those of ``own_loops_known.py``;
``--only NAME …`` takes some. The file is written after each loop. The bars: a step's time within 25 %, the
same verdict, a gain within 10 points, and the truth in a range of at most 25 % to either side.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import importlib
import json
import platform
import resource
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import sidestream
import torch
from sidestream import _measure, _simulate

#: Bars of a comparison.
STEP, GAIN, HALF_WIDTH = 0.25, 10.0, 0.25
#: Steps before a profile, and in it.
WARM_UP, STEPS = 3, 2
#: Minimum share of the device's or the host's time of a row of a profile.
SHOWN = 0.002


def loops_of(held: bool, only: list[str], device: str) -> dict[str, Callable[[], Any]]:
    """Return the functions that build the loops, which put their models on the device."""
    module: Any = importlib.import_module("own_loops_held" if held else "own_loops_known")
    module.DEVICE = device
    loops: dict[str, Callable[[], Any]] = module.LOOPS
    if unknown := set(only) - set(loops):
        sys.exit(f"no loop is called {', '.join(sorted(unknown))}; there are {', '.join(loops)}")
    return {name: loops[name] for name in only or loops}


def peak_bytes(reset: bool = False) -> int:
    """Return the peak of resident memory since the last reset, or of the whole process where Linux does not
    tell.
    """
    with contextlib.suppress(OSError, ValueError):
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def each(
    loops: Mapping[str, Callable[[], Any]],
    out: Path | None,
    act: Callable[[Callable[[], Any]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Act on each loop, and write what is known after each. A loop that fails has its error."""
    rows: list[dict[str, Any]] = []
    for name, build in loops.items():
        row: dict[str, Any] = {"loop": name}
        peak_bytes(reset=True)
        start = time.perf_counter()
        try:
            torch.manual_seed(0)
            row |= act(build)
        except Exception as error:  # noqa: BLE001 - written to the file; the other loops run anyway.
            row |= {
                "error": f"{type(error).__name__}: {error}"[:2000],
                "where": traceback.format_exc()[-4000:],
            }
        row |= {
            "seconds": round(time.perf_counter() - start, 2),
            "peak_rss_bytes": peak_bytes(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": datetime.date.today().isoformat(),
        }
        rows.append(row)
        if out:
            out.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"{name}: {row.get('error') or row.get('verdict') or 'ran'} [{row['seconds']} s]", flush=True)
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return rows


# ------------------------------------------------------------------ measuring


def measured(build: Callable[[], Any], rounds: int) -> dict[str, Any]:
    step, batches = build()
    return sidestream.overlap(step, batches, rounds=rounds).to_dict()


def measure(arguments: argparse.Namespace) -> int:
    real = not arguments.device.startswith("sim:")
    loops = loops_of(arguments.held, arguments.only, "cuda")

    def on_gpu(build: Callable[[], Any]) -> dict[str, Any]:
        # Others work on the same machine at times: how fast is the host now?
        pace = _measure.pace(torch)
        found = measured(build, arguments.rounds)
        pace = (pace + _measure.pace(torch)) / 2
        return found | {"pace_ns": pace, "peak_bytes": torch.cuda.max_memory_allocated()}

    paces = iter(json.loads(arguments.pace.read_text()) if arguments.pace else ())

    def simulated(build: Callable[[], Any]) -> dict[str, Any]:
        host = arguments.host
        if arguments.pace:
            host = at_pace(host or _simulate.tables_of(arguments.device), next(paces)["pace_ns"])
        with sidestream.simulate(arguments.device, shapes=True, host=host):
            return measured(build, arguments.rounds)

    if real and not torch.cuda.is_available():
        sys.exit("there is no GPU; --device sim:h100 simulates one")
    rows = each(loops, arguments.out, on_gpu if real else simulated)
    total = sum(row["seconds"] for row in rows)
    print(f"{sum('error' in row for row in rows)} of {len(rows)} loops failed; {total:.0f} s")
    return 1 if any("error" in row for row in rows) else 0


def at_pace(host: Path, ns: float) -> Path:
    """Return a file of a host's times, all changed as that of the call that ``pace`` measures has."""
    tables = json.loads(Path(host).read_text())
    calls = tables["calls"]
    factor = ns / sum(calls["mixed"].values())
    tables["calls"] = {
        name: {part: factor * each for part, each in row.items()} for name, row in calls.items()
    }
    changed = Path(tempfile.mkdtemp()) / "host.torch.json"
    changed.write_text(json.dumps(tables))
    return changed


def dry(arguments: argparse.Namespace) -> int:
    """Run one step of each loop on the CPU."""

    def once(build: Callable[[], Any]) -> dict[str, Any]:
        step, batches = build()
        step(batches[0])
        return {}

    rows = each(loops_of(arguments.held, arguments.only, "cpu"), None, once)
    return 1 if any("error" in row for row in rows) else 0


# ------------------------------------------------------------------ comparing


def gain(row: Mapping[str, Any]) -> float:
    """How much less time the best form of the loop takes than the pageable one, in points."""
    of: Mapping[str, float] = row["loop_ns"]
    return 100 * (1 - min(of["pinned"], of["prefetch"]) / of["pageable"])


def kind(row: Mapping[str, Any]) -> tuple[str, str]:
    """Whether the loop is worth changing, and what limits it."""
    kinds = ("Worth it", "Do not bother")
    worth = next((text for text in kinds if row["verdict"].startswith(text)), "no verdict").lower()
    return worth, "step" if row["step_ns"] >= row["upload_ns"]["pinned"] else "uploads"


def compared(truth: Mapping[str, Any], simulated: Mapping[str, Any]) -> dict[str, Any]:
    off = simulated["step_ns"] / truth["step_ns"] - 1
    range_ns = (simulated.get("ranges") or {}).get("step")
    found: dict[str, Any] = {
        "off": off,
        "step": abs(off) <= STEP,
        "verdict": kind(truth) == kind(simulated),
        "gain": abs(gain(truth) - gain(simulated)) <= GAIN,
        "range": False,
    }
    if range_ns:
        low, high = range_ns
        found["half_width"] = (high - low) / (high + low)
        found["inside"] = low <= truth["step_ns"] <= high
        found["range"] = found["inside"] and found["half_width"] <= HALF_WIDTH
    return found


def compare(of_truth: str, of_simulated: str) -> int:
    """Print a line for each loop that was measured, and the scores."""
    known = {row["loop"]: row for row in json.loads(Path(of_truth).read_text())}
    made = {row["loop"]: row for row in json.loads(Path(of_simulated).read_text())}
    print(
        f"{'loop':<28}{'true ms':>9}{'sim ms':>9}{'error':>8}  {'range ms':<17}{'inside':<16}"
        f"{'true gain':>10}{'sim gain':>9}  verdict"
    )
    found: list[dict[str, Any]] = []
    errors: list[str] = []
    for name, truth in known.items():
        if "error" in truth:
            errors.append(f"{name}, in {of_truth}: {truth['error']}")
            continue
        simulated = made.get(name, {"error": "this loop is missing"})
        start = f"{name:<28}{truth['step_ns'] / 1e6:>9.3f}"
        if "error" in simulated:
            errors.append(f"{name}, in {of_simulated}: {simulated['error']}")
            found.append({})
            print(f"{start}   failed, which counts as a miss")
            continue
        row = compared(truth, simulated)
        found.append(row)
        shown, inside = "none", ""
        if "half_width" in row:
            low, high = simulated["ranges"]["step"]
            shown = f"{low / 1e6:.3f}–{high / 1e6:.3f}"
            inside = "yes" if row["inside"] else "no"
            if row["half_width"] > HALF_WIDTH:
                inside = "cannot be told"
        verdict = (
            "right"
            if row["verdict"]
            else f"wrong: truly {', '.join(kind(truth))}; said {', '.join(kind(simulated))}"
        )
        unknown = f"; unknown: {', '.join(simulated['unknown'])}" if simulated.get("unknown") else ""
        print(
            f"{start}{simulated['step_ns'] / 1e6:>9.3f}{100 * row['off']:>+7.1f}%  {shown:<17}{inside:<16}"
            f"{gain(truth):>10.1f}{gain(simulated):>9.1f}  {verdict}{unknown}"
        )
    for error in errors:
        print(f"error: {error}")
    titles = {
        "step": f"step within {100 * STEP:.0f} %",
        "verdict": "verdict",
        "gain": f"gain within {GAIN:.0f} points",
        "range": "truth in range",
    }
    for key, title in titles.items():
        print(f"{title}: {sum(bool(row.get(key)) for row in found)} of {len(found)}")
    if widths := [row["half_width"] for row in found if "half_width" in row]:
        print(f"median half-width: {100 * statistics.median(widths):.1f} %")
    return 0


# ------------------------------------------------------------------ profiling


@contextlib.contextmanager
def profiler() -> Iterator[Any]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True) as profile:
        yield profile


def profiled(build: Callable[[], Any]) -> dict[str, Any]:
    """Return the time of a few steps by operator, with the shapes and types of its arguments."""
    step, batches = build()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    moved = torch.utils._pytree.tree_map(lambda leaf: leaf.to(device), batches[: WARM_UP + 2 * STEPS])

    def steps(count: int) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for at in range(count):
            step(moved[at % len(moved)])
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6 / count

    steps(WARM_UP)
    alone = steps(STEPS)
    with profiler() as profile:
        within = steps(STEPS)
    rows = operators(profile)
    return {
        "steps": STEPS,
        "step_us": round(alone, 1),
        "profiled_step_us": round(within, 1),
        "device_us": round(sum(row["device_us"] for row in rows), 1),
        "host_us": round(sum(row["host_us"] for row in rows), 1),
        "rows": shown(rows),
    }


def operators(profile: Any) -> list[dict[str, Any]]:
    """Return a row for each operator and kind of arguments, with totals over the profile. The host's time of
    an operator has that of the runtime's calls in it, but not that of operators within.
    """
    types = {(e.correlation_id(), e.name()): e.dtypes() for e in profile.profiler.kineto_results.events()}
    rows: dict[Any, dict[str, Any]] = {}
    kernels: dict[Any, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in profile.events():
        calls_runtime = event.name.startswith("cu") and event.cpu_parent is not None
        if event.device_type != torch.autograd.DeviceType.CPU or event.is_async or calls_runtime:
            continue
        runtime = [child for child in event.cpu_children if child.name.startswith("cu")]
        host_us = event.self_cpu_time_total + sum(child.cpu_time_total for child in runtime)
        dtypes = types.get((event.id, event.name), [])
        key = json.dumps([event.name, event.input_shapes, dtypes, event.concrete_inputs], default=str)
        new = {
            "name": event.name,
            "shapes": event.input_shapes,
            "dtypes": dtypes,
            "values": event.concrete_inputs,
            **dict.fromkeys(("count", "device_us", "host_us", "launches"), 0),
        }
        row = rows.setdefault(key, new)
        row["count"] += 1
        row["host_us"] += host_us
        row["launches"] += sum("Launch" in child.name for child in runtime)
        for kernel in [*event.kernels, *(kernel for child in runtime for kernel in child.kernels)]:
            row["device_us"] += kernel.duration
            kernels[key][kernel.name[:160]] += kernel.duration
    for key, row in rows.items():
        row["kernels"] = {name: round(took, 2) for name, took in kernels[key].items()}
    return sorted(rows.values(), key=lambda row: (-row["device_us"], -row["host_us"]))


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out rows that take next to nothing."""
    totals = {of: sum(row[of] for row in rows) for of in ("device_us", "host_us")}
    kept = [row for row in rows if any(row[of] > SHOWN * total for of, total in totals.items())]
    return [row | {of: round(row[of], 2) for of in totals} for row in kept]


def profile_some(arguments: argparse.Namespace) -> int:
    names = [arguments.profile] if arguments.profile else arguments.only
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = each(loops_of(arguments.held, names, device), arguments.out, profiled)
    if arguments.profile and "error" not in found[0]:
        print("\n".join(table(found[0])))
    for row in found:
        if "error" in row:
            print(row["where"])
    return 1 if any("error" in row for row in found) else 0


def table(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{found['loop']}: {found['steps']} steps, each {found['step_us']} µs, {found['profiled_step_us']} "
        f"under the profiler; device {found['device_us']} µs, host {found['host_us']} µs in all"
    )
    yield f"{'device µs':>11}{'host µs':>11}{'count':>7}  operator and shapes"
    for row in found["rows"]:
        sizes = ", ".join(str(shape) for shape in row["shapes"] if shape)
        yield f"{row['device_us']:>11.1f}{row['host_us']:>11.1f}{row['count']:>7}  {row['name']} {sizes}"[
            :200
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, sim:h100 and so on, or with --dry cpu")
    parser.add_argument("-o", "--out", type=Path, help="the JSON file to write")
    parser.add_argument("--held", action="store_true", help="the held-back loops")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these loops alone")
    parser.add_argument("--rounds", type=int, default=3, help="how often each form of a loop is measured")
    parser.add_argument("--host", metavar="FILE", help="the host of a simulated GPU")
    parser.add_argument("--pace", type=Path, metavar="TRUTH", help="a host as fast as it was for these loops")
    parser.add_argument("--compare", nargs=2, metavar=("TRUTH", "SIMULATED"))
    parser.add_argument("--profile", metavar="NAME", help="the time of this loop's step by operator")
    parser.add_argument("--profile-all", action="store_true", help="that of all loops, as JSON")
    parser.add_argument("--dry", action="store_true", help="one step of each loop on the CPU")
    arguments = parser.parse_args()
    if arguments.compare:
        return compare(*arguments.compare)
    if arguments.profile or arguments.profile_all:
        return profile_some(arguments)
    return dry(arguments) if arguments.dry else measure(arguments)


if __name__ == "__main__":
    sys.exit(main())
