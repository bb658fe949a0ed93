"""Whether the check finds each wait that is removed from what torch.compile emits, on one GPU.

    python crates/sidestream-py/benches/inductor_gpu.py [--simulate] [--only NAME]

Each program is compiled by Inductor and runs two steps under the check: as it is, then without one of its
waits, for each wait of the generated code and each wait of the caller. Whether a removed wait leaves a race
is decided without the check: `Order` records what runs where, searches a path between each two conflicting
accesses, and shows the path that makes a removed wait superfluous. One JSON object per run, then a summary;
the exit code is 1 if the check and the paths disagree. PyTorch 2.11 emits all work of a function into
one stream, whatever streams the function names, except where it offloads activations, and may record an event
before the work that the event is for; it does not compile a backward pass on two streams.

With `--simulate` no GPU is needed: see `inductor_simulated.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import linecache
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo
from planted import inductor
from planted.inductor import PROGRAMS, Program, Step
from torch.cuda import _gpu_trace
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STEPS = 2


def mark_for_offload(module: Any, _: Any) -> Any:
    for node in module.graph.nodes:
        if node.target in (torch.ops.aten.sin.default, torch.ops.aten.mm.default):
            node.meta["saved_for_offloading"] = True
    return module


@contextlib.contextmanager
def configured(config: dict[str, Any]) -> Iterator[None]:
    import torch._functorch.config as functorch
    import torch._inductor.config as of_inductor

    config = {"compile_threads": 1, "force_disable_caches": True, **config}
    offload = config.pop("offload", None)
    with contextlib.ExitStack() as stack:
        if offload:
            stack.enter_context(
                functorch.patch(
                    joint_custom_pass=mark_for_offload,
                    enable_activation_offloading=True,
                    activation_offload_separate_stream=True,
                    activation_offload_sink_wait=offload == "sunk",
                )
            )
        stack.enter_context(of_inductor.patch(config))
        yield


# Waits, and their removal.

#: Calls of generated code that order work, or keep memory until work is complete.
EMITTED = (
    "wait_event",
    "wait_stream",
    "synchronize_event",
    "synchronize_stream",
    "synchronize_device",
    "record_event",
    "sync_dealloc",
    "record_stream",
)
CALLED = {"Stream": ("wait_event", "wait_stream", "synchronize"), "Event": ("wait", "synchronize")}
#: A call, the file and the line.
Site = tuple[str, str, int]


class Waits:
    """The waits of the generated code and of the programs above. One of them can be left out."""

    def __init__(self) -> None:
        self.seen: dict[Site, int] = {}
        self.left_out: Site | None = None
        self._inside = threading.local()

    @contextlib.contextmanager
    def heard(self, left_out: Site | None) -> Iterator[None]:
        """Observe the waits while this is entered. The compiler needs the plain functions."""
        self.left_out = left_out
        with contextlib.ExitStack() as stack:
            for owner, name, label in self._places():
                plain = getattr(owner, name)
                setattr(owner, name, self._around(label, plain))
                stack.callback(setattr, owner, name, plain)
            yield

    @staticmethod
    def _places() -> Iterator[tuple[Any, str, str]]:
        for name in EMITTED:
            if packet := getattr(torch.ops.streams, name, None):
                yield packet, "default", name
        # In PyTorch 2.15, offloaded activations have operators of their own.
        if packet := getattr(torch.ops.ao, "wait_tensor", None):
            yield packet, "default", "wait_tensor"
        for kind, names in CALLED.items():
            for name in names:
                yield getattr(torch.cuda, kind), name, f"{kind}.{name}"

    def _around(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if getattr(self._inside, "is_on", False):
                return plain(*args, **options)
            site = self._site(name)
            if site is None:
                return plain(*args, **options)
            self.seen[site] = self.seen.get(site, 0) + 1
            if site == self.left_out:
                return args[0] if name == "wait_tensor" else None
            self._inside.is_on = True
            try:
                return plain(*args, **options)
            finally:
                self._inside.is_on = False

        return call

    @staticmethod
    def _site(name: str) -> Site | None:
        frame = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file == inductor.__file__ or "torchinductor" in file:
                return name, file, frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return None


def text_of(site: Site) -> str:
    return linecache.getline(site[1], site[2]).strip()


# What is ordered, without the check.


@dataclasses.dataclass
class Work:
    name: str
    stream: Any
    before: list[int]
    touched: list[tuple[int, int, bool]] = dataclasses.field(default_factory=list)


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


#: Operators that touch no bytes, or whose result is a view although their schema does not say so.
UNTOUCHED = ("empty", "new_empty", "_unsafe_view", "record_stream", "resize_", "is_pinned", "set_", "lift")


class Order(TorchDispatchMode):
    """The order of all work that was observed, and the accesses that conflict without one."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[Work] = []
        self.last: dict[Any, int] = {}
        self.events: dict[int, int] = {}
        self.is_on = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def install(self) -> None:
        _gpu_trace.register_callback_for_event_record(
            lambda event, stream: self.is_on and self.events.update({event: self.add("record", stream)})
        )
        _gpu_trace.register_callback_for_event_wait(
            lambda event, stream: self.is_on and self.add("wait", stream, self.events.get(event))
        )
        _gpu_trace.register_callback_for_event_synchronization(
            lambda event: self.is_on and self.add("synchronize", "host", self.events.get(event))
        )
        _gpu_trace.register_callback_for_stream_synchronization(
            lambda stream: self.is_on and self.add("synchronize", "host", self.last.get(stream))
        )
        _gpu_trace.register_callback_for_device_synchronization(
            lambda: self.is_on and self.add("synchronize", "host", *self.last.values())
        )

    def begin(self) -> None:
        self.work, self.last, self.events = [], {}, {}

    def add(self, name: str, stream: Any, *after: int | None) -> int:
        before = [self.last.get(stream), self.last.get("host"), *after]
        self.work.append(Work(name, stream, sorted({at for at in before if at is not None})))
        self.last[stream] = len(self.work) - 1
        return self.last[stream]

    def launched(self, name: str, touched: Any, stream: int) -> None:
        if self.is_on:
            at = self.add(name, stream)
            self.work[at].touched = [(*extent(tensor), writes) for tensor, writes in touched]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.is_on and func.namespace != "streams":
            self._operator(func, args, kwargs or {}, result)
        return result

    def _operator(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func._schema.name.partition("::")[2]
        returned = [value.alias_info for value in func._schema.returns]
        if name.startswith(UNTOUCHED) or (returned and returned[0] and not returned[0].is_write):
            return
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        touched: list[tuple[torch.Tensor, bool]] = []
        for argument in func._schema.arguments:
            writes = argument.alias_info is not None and argument.alias_info.is_write
            touched += [
                (leaf, writes)
                for leaf in tree_leaves(given.get(argument.name))
                if isinstance(leaf, torch.Tensor)
            ]
        if not (returned and returned[0]):
            touched += [(leaf, True) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor, _ in touched}
        stream = torch._C._cuda_getCurrentRawStream(0) if "cuda" in devices else "host"
        at = self.add(name, stream)
        self.work[at].touched = [(*extent(tensor), writes) for tensor, writes in touched]
        blocks = len(devices) == 2 and not given.get("non_blocking") and name in ("copy_", "_to_copy")
        if blocks or (name == "_local_scalar_dense" and "cuda" in devices):
            self.add("blocks", "host", at)

    def races(self) -> list[str]:
        """Return the conflicting accesses between which there is no path."""
        ancestors: list[int] = []
        for work in self.work:
            mask = 0
            for at in work.before:
                mask |= ancestors[at] | 1 << at
            ancestors.append(mask)
        return [
            f"{self.work[first].name} and {self.work[second].name}"
            for first, second in self._conflicts()
            if not ancestors[second] >> first & 1
        ]

    def paths(self, most: int = 3) -> list[str]:
        """Return how conflicting accesses of different streams are ordered."""
        found: dict[str, None] = {}
        for first, second in self._conflicts():
            if self.work[first].stream != self.work[second].stream:
                path = self._path(first, second)
                found[" -> ".join(self.work[at].name for at in path)] = None
        return list(found)[:most]

    def _conflicts(self) -> Iterator[tuple[int, int]]:
        for second, later in enumerate(self.work):
            for first, earlier in enumerate(self.work[:second]):
                if any(
                    start < other_end and other < end and (writes or also)
                    for start, end, writes in earlier.touched
                    for other, other_end, also in later.touched
                ):
                    yield first, second

    def _path(self, first: int, second: int) -> list[int]:
        came: dict[int, int] = {second: -1}
        left = [second]
        while left:
            at = left.pop(0)
            if at == first:
                path = [at]
                while came[path[-1]] >= 0:
                    path.append(came[path[-1]])
                return path
            for before in self.work[at].before:
                if before not in came:
                    came[before] = at
                    left.append(before)
        return []


def triton_heard(order: Order) -> None:
    """Observe the launches of generated kernels: the name of a parameter shows whether it is written."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    plain = CachingAutotuner.run

    def run(tuner: Any, *args: Any, stream: int, **options: Any) -> Any:
        result = plain(tuner, *args, stream=stream, **options)
        names = list((tuner.triton_meta or {}).get("signature") or {})
        order.launched(tuner.fn.__name__, touched_by(names, args), stream)
        return result

    CachingAutotuner.run = run  # type: ignore[method-assign]


def touched_by(names: list[str], args: Any) -> list[tuple[torch.Tensor, bool]]:
    pairs = [pair for pair in zip(names, args, strict=False) if isinstance(pair[1], torch.Tensor)]
    return [(tensor, not name.startswith(("in_ptr", "arg_"))) for name, tensor in pairs]


# The runs.


@dataclasses.dataclass
class Outcome:
    errors: list[str]
    warnings: list[str]
    ended: Any
    operations: int


def checked(step: Step, check: Any, order: Order | None) -> Outcome:
    with check() as found:
        with order if order is not None else contextlib.nullcontext():
            if order is not None:
                order.begin()
                order.is_on = True
            try:
                for _ in range(STEPS):
                    step()
            finally:
                if order is not None:
                    order.is_on = False
    torch.cuda.synchronize()
    shown: dict[str, list[str]] = {"error": [], "warn": []}
    for race in found.races:
        shown[race.severity].append(f"{race.kind}: {race.first.operator} and {race.second.operator}")
    return Outcome(shown["error"], shown["warn"], found.ended, found.operations)


class TooSlow(Exception):
    pass


def _too_slow(*_: Any) -> None:
    raise TooSlow("a program took more than its time")


@dataclasses.dataclass
class Bench:
    check: Any
    waits: Waits
    order: Order
    is_simulated: bool
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def program(self, given: Program) -> None:
        torch._dynamo.reset()
        # A processor's backend has no combo kernels.
        with configured({} if self.is_simulated and "combo_kernels" in given.config else given.config):
            with self.warm():
                step = given.build()
                step()
                torch.cuda.synchronize()
            original = self.run(given, step, None)
            if original is None:
                return
            for site in list(self.waits.seen):
                self.run(given, step, site)

    def warm(self) -> Any:
        return contextlib.nullcontext()

    def run(self, given: Program, step: Step, site: Site | None) -> Outcome | None:
        if site is None:
            self.waits.seen = {}
        try:
            with self.waits.heard(site):
                alone = checked(step, self.check, None)
                outcome = checked(step, self.check, self.order)
        except TooSlow:
            raise
        except Exception as error:
            self.count("failed")
            show(
                program=given.name, test=given.test, left_out=site and text_of(site), failed=repr(error)[:300]
            )
            traceback.print_exc()
            return None
        finally:
            torch.cuda.synchronize()
        races, paths = list(dict.fromkeys(self.order.races())), self.order.paths()
        found = list(dict.fromkeys(outcome.errors))
        line: dict[str, Any] = {"program": given.name, "test": given.test}
        if site is not None:
            where = "generated" if site[1] != inductor.__file__ else "caller"
            line |= {"left_out": text_of(site), "of": where, "line": site[2]}
        # The order of accesses shows only whether this run reuses memory too early that was handed back.
        is_lifetime = site is not None and site[0] in ("record_stream", "sync_dealloc")
        agrees = bool(found) == bool(races) or (is_lifetime and bool(found))
        agrees &= bool(alone.errors) == bool(found) and outcome.ended is None
        kind = "original" if site is None else "lifetime" if is_lifetime else "variant"
        self.count(f"{kind}_{'racy' if races else 'ordered'}_{'found' if found else 'silent'}")
        self.count("agree" if agrees else "disagree")
        line |= {"races": races[:6], "found": found, "warned": outcome.warnings, "agrees": agrees}
        if not races:
            line["ordered_by"] = paths or "no memory is shared between streams"
        if outcome.ended is not None:
            line["ended"] = str(outcome.ended)
        if sorted(alone.errors) != sorted(outcome.errors):
            line["found_without_recording"] = alone.errors
        show(**line, operations=outcome.operations)
        return outcome


def show(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--code", action="store_true", help="print the generated code of each program")
    given = parser.parse_args()
    begun = time.monotonic()
    import sidestream

    waits, order = Waits(), Order()
    bench = Bench(sidestream.check, waits, order, given.simulate)
    with contextlib.ExitStack() as stack:
        if given.simulate:
            from inductor_simulated import simulated

            stack.enter_context(simulated(bench))
        else:
            triton_heard(order)
            torch.zeros(1, device="cuda")
        order.install()
        signal.signal(signal.SIGALRM, _too_slow)
        for each in PROGRAMS:
            if given.only and given.only not in each.name:
                continue
            signal.alarm(300 if given.simulate else 60)
            try:
                bench.program(each)
            except Exception as error:
                bench.count("failed")
                show(program=each.name, test=each.test, failed=repr(error)[:300])
                traceback.print_exc()
            finally:
                signal.alarm(0)
    gpu = "simulated" if given.simulate else torch.cuda.get_device_name()
    show(summary=bench.counts, torch=torch.__version__, gpu=gpu, seconds=round(time.monotonic() - begun))
    sys.exit(bool(bench.counts.get("disagree") or bench.counts.get("failed")))


if __name__ == "__main__":
    main()
