"""The accuracy with which `sidestream.profile` measures a step without the profiler, compared with a process
that has no profiler.

    python crates/sidestream-py/benches/profile_gpu.py [--device cpu] [--runs N] [--json FILE] [--bar]
    [PROGRAM …]

Ten programs of different kinds, five runs of each. A run is two processes: one steps the program without a
profiler, the other profiles it. "base" is the relative error of the measured step, compared with the first
process; "estimate" is that of the step that `diagnose` estimates from the trace alone. The median and the
worst run of both are printed. With ``--bar`` it fails unless all bases are within 10 % and eight of ten
estimates within 20 %. ``--device cpu`` runs small tensors without a diagnosis: bases only, and in CPU time,
so that other programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[[int], None]
#: Seconds for which the first process steps before it is timed, and while it is timed.
WARM_UP_S, TIMED_S = 0.5, 1.5
BASE_OFF, ESTIMATE_OFF, ESTIMATES = 0.10, 0.20, 8
KEY = "sidestream.unprofiled"
PROGRAMS: dict[str, Callable[[Any], Step]] = {}


def program(make: Callable[[Any], Step]) -> Callable[[Any], Step]:
    PROGRAMS[make.__name__] = make
    return make


class Machine:
    """PyTorch, with sizes that suit the device."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device, self.is_cuda = torch, torch.device(device), device == "cuda"
        self.clock_ns = time.perf_counter_ns if self.is_cuda else time.process_time_ns
        torch.manual_seed(0)
        torch.set_num_threads(1)

    def side(self, on_gpu: int, on_cpu: int) -> int:
        return on_gpu if self.is_cuda else on_cpu

    def square(self, side: int) -> Any:
        return self.torch.randn(side, side, device=self.device) / side**0.5

    def host(self, megabytes: int, pinned: bool) -> Any:
        floats = megabytes * (1 << 18) if self.is_cuda else 1 << 14
        return self.torch.ones(floats, pin_memory=pinned and self.is_cuda)

    def synchronize(self) -> None:
        if self.is_cuda:
            self.torch.cuda.synchronize()

    def works(self, seconds: float) -> int:
        """Run Python code for this long, as the program's own work."""
        end_ns, turns = self.clock_ns() + int(1e9 * seconds), 0
        while self.clock_ns() < end_ns:
            turns += 1
        return turns


@program
def products(machine: Machine) -> Step:
    """The device is the limit: a few long kernels."""
    side = machine.side(4096, 256)
    x, w = machine.square(side), machine.square(side)

    def step(_: int) -> None:
        y = x
        for _ in range(8):
            y = y @ w

    return step


@program
def small_operators(machine: Machine) -> Step:
    """The host is the limit: many short kernels."""
    x = machine.square(machine.side(64, 16))

    def step(_: int) -> None:
        y = x
        for _ in range(150):
            y = (y + 1.0) * 0.5

    return step


@program
def training(machine: Machine) -> Step:
    """A small network with its backward pass and Adam."""
    nn, side = machine.torch.nn, machine.side(1024, 64)
    layers = [part for _ in range(6) for part in (nn.Linear(side, side), nn.ReLU())]
    model = nn.Sequential(*layers).to(machine.device)
    # The learning rate is so low that the weights do not change: denormal numbers would slow down a CPU.
    optimizer = machine.torch.optim.Adam(model.parameters(), lr=1e-7)
    x = machine.torch.randn(machine.side(2048, 32), side, device=machine.device)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


@program
def transformer(machine: Machine) -> Step:
    """An encoder without gradients, with operators of several sizes."""
    width = machine.side(512, 32)
    layer = machine.torch.nn.TransformerEncoderLayer(
        width, 8, 2 * width, batch_first=True, device=machine.device
    )
    encoder = machine.torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    x = machine.torch.randn(machine.side(16, 2), 128, width, device=machine.device)

    def step(_: int) -> None:
        with machine.torch.no_grad():
            encoder(x)

    return step


@program
def pageable_upload(machine: Machine) -> Step:
    """A copy from pageable memory, and a kernel that needs its data."""
    host, w = machine.host(32, pinned=False), machine.square(machine.side(2048, 128))

    def step(_: int) -> None:
        batch = host.to(machine.device).clone()
        (w @ w).add_(batch[0])

    return step


@program
def pinned_upload(machine: Machine) -> Step:
    """A copy that the host does not wait for."""
    host, w = machine.host(64, pinned=True), machine.square(machine.side(2048, 128))

    def step(_: int) -> None:
        batch = host.to(machine.device, non_blocking=True).clone()
        for _ in range(8):
            (w @ w).add_(batch[0])

    return step


@program
def reads_its_loss(machine: Machine) -> Step:
    """The host waits for the device in every step."""
    w = machine.square(machine.side(1024, 96))

    def step(_: int) -> None:
        y = w
        for _ in range(20):
            y = machine.torch.relu(y @ w)
        y.sum().item()

    return step


@program
def prepares_its_batch(machine: Machine) -> Step:
    """The host's own work, then the device's work, which runs concurrently with the host's work for the next
    step."""
    w = machine.square(machine.side(2048, 128))

    def step(_: int) -> None:
        machine.works(0.002)
        y = w
        for _ in range(12):
            y = y @ w

    return step


@program
def two_kinds_of_steps(machine: Machine) -> Step:
    """Gradients are accumulated over four steps."""
    linear = machine.torch.nn.Linear(machine.side(1024, 64), machine.side(1024, 64)).to(machine.device)
    optimizer = machine.torch.optim.Adam(linear.parameters(), lr=1e-7)
    x = machine.torch.randn(machine.side(4096, 64), machine.side(1024, 64), device=machine.device)

    def step(at: int) -> None:
        linear(x).square().mean().backward()
        if at % 4 == 3:
            for _ in range(8):
                optimizer.step()
            optimizer.zero_grad()

    return step


@program
def second_stream(machine: Machine) -> Step:
    """Two streams that wait for each other."""
    w = machine.square(machine.side(2048, 96))
    side = machine.torch.cuda.Stream() if machine.is_cuda else None

    def step(_: int) -> None:
        y = w @ w
        if side is None:
            w @ y
        else:
            side.wait_stream(machine.torch.cuda.current_stream())
            with machine.torch.cuda.stream(side):
                w @ y
        for _ in range(6):
            y = y @ w
        if side is not None:
            machine.torch.cuda.current_stream().wait_stream(side)

    return step


#: Number of steps after which a program repeats itself.
EVERY = {"two_kinds_of_steps": 4}


def plain(name: str, device: str) -> dict[str, Any]:
    """Time a step in a process without a profiler: the total time between two waits, divided by the number of
    steps.
    """
    machine = Machine(device)
    step, at = PROGRAMS[name](machine), 0

    def run(seconds: float) -> float:
        nonlocal at
        machine.synchronize()
        begun_ns, first = machine.clock_ns(), at
        # The clock is read only now and then, always after equally many steps of each kind.
        while machine.clock_ns() - begun_ns < 1e9 * seconds or at == first:
            for _ in range(8):
                step(at)
                at += 1
        machine.synchronize()
        return (machine.clock_ns() - begun_ns) / (at - first)

    run(WARM_UP_S)
    step_ns = run(TIMED_S)
    assert "sidestream" not in sys.modules
    return {"step_ns": step_ns, "steps": at}


def profiled(name: str, device: str) -> dict[str, Any]:
    """Run the program under `sidestream.profile`; also return the estimate from its trace alone."""
    import sidestream
    from sidestream import _profile

    machine = Machine(device)
    _profile._clock = machine.clock_ns
    step = PROGRAMS[name](machine)
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        path = Path(folder) / "trace.json"
        with sidestream.profile(steps=20, every=EVERY.get(name, 1), path=path) as profile:
            at, end = 0, None
            while at != end:
                step(at)
                profile.step()
                at += 1
                if end is None and profile.unprofiled is not None:
                    # The one step that is left out, and the recorded steps.
                    end = at + 22
        found: dict[str, Any] = {"problem": profile.problem}
        if profile.unprofiled is not None:
            found |= profile.unprofiled.to_dict()
        if profile.diagnosis is not None:
            replay = profile.diagnosis.replay
            found |= {"used": replay.base, "traced_ns": replay.measured_ns}
            trace = json.loads(path.read_text())
            del trace[KEY]
            path.write_text(json.dumps(trace))
            found["estimate_ns"] = sidestream.diagnose(path).replay.unprofiled_ns
        return found


def in_process(which: str, name: str, device: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--device", device, "--inside", which, name]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if ran.returncode != 0:
        raise RuntimeError(f"{which} of {name} failed:\n{ran.stderr[-2000:]}")
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def spread(offs: list[float]) -> str:
    if not offs:
        return f"{'-':>8} {'-':>8}"
    return f"{100 * statistics.median(offs):>+7.1f}% {100 * max(offs, key=abs):>+7.1f}%"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="only these")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--json", metavar="FILE", help="also write each run, a line of JSON")
    parser.add_argument(
        "--bar", action="store_true", help="fail where the figures are not as near as stated above"
    )
    parser.add_argument("--inside", choices=["plain", "profiled"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.programs) - set(PROGRAMS)
    if unknown:
        parser.error(f"there is no program {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    if options.inside:
        run = plain if options.inside == "plain" else profiled
        print(json.dumps(run(options.programs[0], options.device)))
        return 0
    rows, near, estimated = [], 0, 0
    names = options.programs or list(PROGRAMS)
    print(
        f"{'program':<20} {'step':>10} {'base':>8} {'worst':>8} {'estimate':>8} {'worst':>8}  windows, not "
        "agreed, drifting"
    )
    for name in names:
        bases, estimates, steps = [], [], []
        not_agreed = drifting = 0
        sizes = set()
        for run in range(options.runs):
            # The processes take turns, so that neither always has the quieter half of the machine's time.
            order = ["plain", "profiled"] if run % 2 == 0 else ["profiled", "plain"]
            both = {which: in_process(which, name, options.device) for which in order}
            rows.append({"program": name, "run": run, **both})
            true_ns, found = both["plain"]["step_ns"], both["profiled"]
            steps.append(true_ns)
            bases.append(found["median_ns"] / true_ns - 1)
            not_agreed += not found["agreed"]
            drifting += abs(found["drift"]) > 0.05
            sizes.add(found["window_steps"])
            if found.get("estimate_ns"):
                estimates.append(found["estimate_ns"] / true_ns - 1)
        near += abs(statistics.median(bases)) <= BASE_OFF
        estimated += bool(estimates) and abs(statistics.median(estimates)) <= ESTIMATE_OFF
        of = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{min(sizes)}"
        print(
            f"{name:<20} {statistics.median(steps) / 1e6:>7.3f} ms {spread(bases)} {spread(estimates)}  of "
            f"{of} steps, {not_agreed}, {drifting}",
            flush=True,
        )
    if options.json:
        Path(options.json).write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(
        f"of {len(names)}: base within {BASE_OFF:.0%} {near}, estimate within {ESTIMATE_OFF:.0%} {estimated}"
    )
    passed = near == len(names) and estimated >= ESTIMATES * len(names) / 10
    return 1 if options.bar and not passed else 0


if __name__ == "__main__":
    sys.exit(main())
