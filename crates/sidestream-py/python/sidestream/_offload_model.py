"""The object that ``offload`` returns: which layers take turns, when they are copied, and the plan."""

from __future__ import annotations

import contextlib
import functools
import html
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sidestream import _units
from sidestream._offload_gradients import Gradients
from sidestream._offload_pages import SLABS, Files, Pages, available
from sidestream._offload_plan import (
    Call,
    OffloadPlan,
    Pass,
    Phase,
    Phases,
    side_by_side,
)
from sidestream._offload_weights import Layer, Pinned, Ring, bytes_of, held

#: Parameters below this stay on the device: they cost little there, and are often used outside their layer.
SMALL = 64 << 10
#: Calls of layers after which a pass that does not begin anew is cut: the model may never be called itself.
LONGEST = 100_000
#: Which pass of an order has its waits timed: the order is known by then.
MEASURED = 3
MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation"
#: The models that are offloaded.
OFFLOADED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Saved:
    """A view of a layer's weights that autograd keeps: it is made again from wherever the layer is then."""

    def __init__(self, layer: Layer, view: Tensor, begun: int) -> None:
        assert layer.at is not None
        self.layer, self.begun, self.dtype = layer, begun, view.dtype
        self.shape, self.stride = view.shape, view.stride()
        self.offset = view.storage_offset() - layer.at // view.element_size()
        self.versions = layer.now()

    def view(self, ring: Tensor) -> Tensor:
        """Return the view of the layer's present place."""
        assert self.layer.at is not None
        typed = ring.view(self.dtype)
        return typed.as_strided(self.shape, self.stride, self.layer.at // typed.element_size() + self.offset)


def owned_by(module: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Return each place of a parameter in a module: its owner, its name there, and it."""
    return [
        (owner, key, of)
        for owner in module.modules()
        for key, of in owner._parameters.items()
        if of is not None
    ]


def layers_of(module: nn.Module, most: int, taken: set[int], name: str = "") -> Iterator[Layer]:
    """Yield the layers of a model: the largest modules that are within ``most`` bytes."""
    fresh: list[tuple[nn.Module, str, nn.Parameter]] = []
    for owner, key, of in owned_by(module):
        if bytes_of([of]) >= SMALL and id(of) not in taken:
            taken.add(id(of))
            fresh.append((owner, key, of))
    size = bytes_of(of for _, _, of in fresh)
    # Containers may be used without being called, and attention uses its children's weights itself.
    is_container = isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)) or (
        type(module).forward is nn.Module.forward
    )
    is_whole = isinstance(module, nn.MultiheadAttention) or not any(module.children())
    if not fresh:
        return
    if is_whole or (size <= most and name and not is_container):
        yield Layer(name or type(module).__name__, module, fresh)
        return
    direct = [each for each in fresh if each[0] is module]
    taken.difference_update(id(of) for owner, _, of in fresh if owner is not module)
    if direct:
        yield Layer(name or type(module).__name__, module, direct)
    for key, child in module.named_children():
        yield from layers_of(child, most, taken, f"{name}.{key}" if name else key)


def refuse_shared(model: nn.Module) -> None:
    """Raise an error if another model that is offloaded has a parameter of this one, too."""
    own = {id(of): name for name, of in model.named_parameters(remove_duplicate=False)}
    for other in OFFLOADED:
        for name, of in other.named_parameters(remove_duplicate=False):
            if id(of) in own:
                raise RuntimeError(
                    f'parameter "{own[id(of)]}" is also "{name}" of a {type(other).__name__} that is '
                    "offloaded already: call remove() on what offload returned then, and offload one module "
                    "that contains both models"
                )


def device_of(value: Any, types: tuple[str, ...], give: str) -> torch.device:
    """Return a device of one of these types that is there.

    Raises:
        ValueError: It is another one, or none.
    """
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError):
        device = None
    is_there = device is not None and (device.index or 0) < max(torch.cuda.device_count(), 1)
    if device is None or device.type not in types or not is_there:
        raise ValueError(f"device is {value!r}; give {give}")
    return device


def settle(stream: torch.cuda.Stream) -> None:
    """Block until a stream's work is complete, if its device is still there."""
    with contextlib.suppress(Exception):
        stream.synchronize()


class Offloaded:
    """A model whose weights take turns on the device. ``print`` shows the plan and what was measured."""

    def __init__(self, model: nn.Module, device: Any, budget: int, pinned: int | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is {type(model).__name__}, not an nn.Module")
        self.device = device_of(device, ("cuda",), 'a GPU, such as "cuda"')
        if model in OFFLOADED:
            raise RuntimeError(
                "the model is offloaded already: call remove() on what offload returned first"
            )
        refuse_shared(model)
        if any(is_lazy(of) or of.is_meta for of in model.parameters()):
            raise ValueError("parameters of the model have no values yet: load or initialize them first")
        if any(of.is_inference() for of in model.parameters()):
            raise ValueError(
                "parameters of the model were made in torch.inference_mode(), where changes are not "
                "counted: make and load the model outside it; calls may be inside"
            )
        if self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.model, self.budget, self._most_pinned = model, budget, pinned
        self._pages: Pages | None = None
        self._lock = threading.RLock()
        self._hooks: list[Any] = []
        self._is_removed = False
        self._order: list[Layer] = []
        self._now: list[Layer] = []
        #: Where in `_order` this pass is.
        self._at = 0
        self._ahead: deque[Layer] = deque()
        self._depth = 0
        #: The layers that a backward pass keeps: until which node's number, and the number of the pass.
        self._in_backward: list[tuple[Layer, int, int]] = []
        self._is_training = False
        self._phases, self._pass, self._forward = Phases(), Pass(), self._now
        #: The phase that this pass seems to be, and the order of the one that seems to follow.
        self._phase, self._then = self._phases.known[0], self._order
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(self.device):
            try:
                self._arrange()
            except BaseException:
                self.model.to("cpu")
                raise
        OFFLOADED.add(model)
        # A model may be dropped with copies in flight, whose memory goes with it.
        weakref.finalize(self, settle, self.copies).atexit = False

    # The plan.

    def _arrange(self) -> None:
        self.copies = torch.cuda.Stream(self.device)
        parameters = list(self.model.parameters())
        buffers = list(self.model.buffers())
        all_bytes = bytes_of([*parameters, *buffers])
        if all_bytes <= self.budget:
            self.model.to(self.device)
            self.layers: list[Layer] = []
            self.resident_bytes, self.turns_bytes, self.ring = all_bytes, 0, None
            self.link = 0.0
            return
        layers = list(layers_of(self.model, self.budget // 4, set()))
        turning = {id(of) for layer in layers for _, _, of in layer.parameters}
        unique = {id(of): (owner, key, of) for owner, key, of in owned_by(self.model)}
        small = [each for each in unique.values() if id(each[2]) not in turning]
        fixed = bytes_of([*(of for _, _, of in small), *buffers])
        largest = max((layer.size for layer in layers), default=0)
        missing = min(fixed + 2 * largest, all_bytes) - self.budget
        if missing > 0:
            size = _units.size
            names = (f'"{layer.name}"' for layer in layers if layer.size == largest)
            raise ValueError(
                f"budget is {size(self.budget)}, {size(missing)} too little: "
                f"the model ({size(all_bytes)}) has to fit, or two layers as large as {next(names, 'none')} "
                f"({size(largest)}) beside small tensors and buffers ({size(fixed)})"
            )
        resident = self._resident(layers, self.budget - fixed - 2 * largest)
        self.layers = [layer for layer in layers if layer not in resident]
        stays = [*small, *(each for layer in resident for each in layer.parameters)]
        self._held = held(self.device, stays)
        for module in self.model.modules():
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[key] = buffer.to(self.device)
        self.turns_bytes = sum(layer.size for layer in self.layers)
        self._to_host()
        self.resident_bytes = all_bytes - self.turns_bytes
        room = min(self.budget - self.resident_bytes, self.turns_bytes)
        self.ring = Ring(room // 512 * 512, self.device, self.copies)
        self.link = self._measured_link()
        self._gradients = Gradients(self.layers, self.device)
        self._listen()

    def _to_host(self) -> None:
        """Move what takes turns to pinned memory, or leave what does not fit there in its files."""
        room, size = self._most_pinned, _units.size
        if room is None:
            # Where the system would have to swap, less is pinned.
            there = available()
            room = self.turns_bytes if there is None or there > self.turns_bytes else there // 2
        files = Files() if room < self.turns_bytes else None
        in_files = [layer for layer in self.layers if files is not None and layer.found(files)]
        rest = self.turns_bytes - sum(layer.size for layer in in_files)
        largest = max((layer.size for layer in in_files), default=0)
        missing = rest + min(2 * largest, self.turns_bytes - rest) - room
        if missing > 0 and self._most_pinned is not None:
            needs = [f"two layers of {size(largest)} that are read from files"] if in_files else []
            if rest:
                needs.insert(0, f"{size(rest)} of weights that are not mapped from files, or were changed")
            lost = sorted(files.lost) if files is not None else []
            raise ValueError(
                f"pinned is {size(room)}, {size(missing)} too little: it needs room for "
                f"{' and '.join(needs)}: at least {size(room + missing)}"
                + (f"; {', '.join(lost)} was deleted, replaced or written after loading" if lost else "")
                + ("; torch.load(mmap=True) and safetensors map files" if rest and not lost else "")
            )
        if missing > 0:
            in_files = []
        if in_files:
            slabs = max(min(SLABS, (room - rest) // largest), 1) * largest
            self._pages = Pages(Pinned(slabs).memory, largest)
            pinned = self._resident(in_files, room - rest - slabs)
            in_files = [layer for layer in in_files if layer not in pinned]
        for layer in self.layers:
            layer.to_host(self._pages if layer in in_files else None)

    @staticmethod
    def _resident(layers: list[Layer], room: int) -> list[Layer]:
        """Choose layers that stay on the device: the first one, by which libraries tell a model's device, and
        others evenly, so that copies have time."""
        chosen = [layer for layer in layers[:1] if layer.size <= room]
        room -= sum(layer.size for layer in chosen)
        rest, owed = layers[len(chosen) :], 0.0
        share = room / max(sum(layer.size for layer in rest), 1)
        for layer in rest:
            owed += share * layer.size
            if owed >= layer.size and layer.size <= room:
                chosen.append(layer)
                owed -= layer.size
                room -= layer.size
        for layer in rest:
            if layer not in chosen and layer.size <= room:
                chosen.append(layer)
                room -= layer.size
        return chosen

    def _measured_link(self) -> float:
        """Return the bytes a second of copies to the device."""
        assert self.ring is not None
        source = max(
            [*(layer.pinned.memory for layer in self.layers if layer.pinned is not None)]
            + ([self._pages.memory] if self._pages is not None else []),
            key=Tensor.numel,
        )
        size = min(source.numel(), self.ring.memory.numel())
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        copied = 0
        with torch.cuda.stream(self.copies):
            for is_timed in (False, True):
                begin.record(self.copies)
                for _ in range(1 if not is_timed else max(1, (256 << 20) // size)):
                    self.ring.memory[:size].copy_(source[:size], non_blocking=True)
                    copied += size if is_timed else 0
                end.record(self.copies)
        end.synchronize()
        return copied / max(float(begin.elapsed_time(end)) / 1e3, 1e-9)

    # Calls of layers.

    def _listen(self) -> None:
        off = torch.compiler.disable
        add = self._hooks.append
        begins = off(lambda _, *given: self._pass_begins(given))
        add(self.model.register_forward_pre_hook(begins, prepend=True, with_kwargs=True))
        add(self.model.register_forward_hook(off(lambda *_: self._pass_ends()), always_call=True))
        owners: dict[int, list[Layer]] = {}
        by_weight = {id(weight.parameter): layer for layer in self.layers for weight in layer.weights}
        for layer in self.layers:
            # A weight that another layer has too is that layer's, but both need it.
            shared = {by_weight[id(of)] for of in layer.module.parameters() if id(of) in by_weight}
            owners[id(layer.module)] = sorted({layer, *shared} & set(self.layers), key=self.layers.index)
        for name, module in self.model.named_modules():
            tied = {
                by_weight[id(of)]
                for of in module._parameters.values()
                if of is not None and id(of) in by_weight
            }
            inside = any(name == each.name or name.startswith(each.name + ".") for each in tied)
            needed = owners.get(id(module)) or ([] if inside else sorted(tied, key=self.layers.index))
            if not needed:
                continue
            entered: list[tuple[list[Layer], bool]] = []
            add(module.register_forward_pre_hook(off(self._before(module, needed, entered)), prepend=True))
            add(module.register_forward_hook(off(self._after(entered)), always_call=True))

    def _before(
        self, module: nn.Module, layers: list[Layer], entered: list[tuple[list[Layer], bool]]
    ) -> Callable[..., None]:
        def hook(called: nn.Module, *_: Any) -> None:
            saves = torch.is_grad_enabled() and called is module
            entered.append(([], saves))
            self._gradients.forward_begins()
            if saves:
                # Other hooks get what is no weight.
                outer = torch._C._autograd._top_saved_tensors_default_hooks(True)
                pack = functools.partial(self._pack, outer)
                torch._C._autograd._push_saved_tensors_default_hooks(pack, self._unpack)
            if called is not module:
                raise RuntimeError("this is a copy of an offloaded model: call remove(), and copy it then")
            if (node := torch._C._current_autograd_node()) is not None:
                self._let_go(node._sequence_nr())
            for layer in layers:
                if saves:
                    layer.refuse_training()
                self._use(layer)
                entered[-1][0].append(layer)
                # Numbers of nodes count in each thread, and backward has its own.
                if saves and node is None:
                    self._is_training = True
                    layer.begun.append(torch._C._autograd._get_sequence_nr())

        return hook

    def _after(self, entered: list[tuple[list[Layer], bool]]) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            node = torch._C._current_autograd_node()
            # A call may have failed before it had all of its layers.
            layers, saves = entered.pop() if entered else ([], False)
            if saves:
                torch._C._autograd._pop_saved_tensors_default_hooks()
            for layer in layers:
                if node is None:
                    self._leave(layer)
                else:
                    # Computed again: its backward pass follows, and may read views that no hook has seen.
                    number = node._sequence_nr()
                    earlier = [begun for begun in layer.begun if begun <= number]
                    self._hold(layer, max(earlier, default=number))

        return hook

    def _pass_begins(self, given: tuple[Any, dict[str, Any]]) -> None:
        with self._lock:
            self._depth += 1
            if self._depth > 1 or torch._C._current_autograd_node() is not None:
                return
            self._backward_ended()
            self._is_training = torch.is_grad_enabled()
            first = next((of for of in (*given[0], *given[1].values()) if isinstance(of, Tensor)), None)
            self._turn((None if first is None else tuple(first.shape), self._is_training))
            for layer in self.layers:
                layer.begun.clear()
            self._begin()
            self._look_ahead()

    def _pass_ends(self) -> None:
        with self._lock:
            self._depth = max(self._depth - 1, 0)
            if self._depth or torch._C._current_autograd_node() is not None:
                return
            self._forward = list(self._now)
            self._end(is_over=not self._is_training)

    def _begin(self) -> None:
        """Keep the time at which a pass begins; it is read later, without blocking."""
        self._pass = Pass(self._pass.key, trains=self._is_training)
        if torch.cuda.is_current_stream_capturing():
            return
        self._pass.since = self._phases.last.last[-1].end if self._phases.last.last else None
        self._pass.begin = self._mark(torch.cuda.current_stream(self.device))
        if self._phase.passes >= MEASURED - 1 and self._phase.measured is None:
            self._pass.calls, self._pass.gradients = [], []
            self._gradients.timed = self._pass.gradients

    def _end(self, is_over: bool) -> None:
        """Keep the time at which the calls so far end, and the copies of their gradients."""
        with self._lock:
            self._pass.is_over = is_over
            if self._pass.begin is not None and not torch.cuda.is_current_stream_capturing():
                stream = torch.cuda.current_stream(self.device)
                if self._pass.trains and is_over:
                    self._gradients.stream.wait_stream(stream)
                    stream = self._gradients.stream
                self._pass.end = self._mark(stream)

    def _use(self, layer: Layer) -> None:
        """Make the current stream wait for a layer's weights, and the parameters be those."""
        with self._lock, torch.inference_mode(False):
            assert self.ring is not None
            if self._ahead and self._ahead[0] is layer:
                self._ahead.popleft()
            else:
                self._ahead.clear()
            if not layer.uses:
                stream = torch.cuda.current_stream(self.device)
                calls = self._pass.calls
                # Before the host may block for a file.
                before = self._mark(stream) if calls is not None else None
                if layer.last is not None and layer.last != stream:
                    # What that stream does is not in the event that this one will record.
                    self.copies.wait_event(layer.done)
                if layer.at is None:
                    layer.is_changed()
                    self._place(layer)
                elif layer.is_changed():
                    self.ring.copy(layer)
                self._join(layer)
                if calls is not None:
                    calls.append(Call(layer, before, self._mark(stream)))
                layer.show(self.ring.memory)
            self._join(layer)
            layer.uses += 1
            self._now.append(layer)
            self._at += 1
            if self._at > len(self._order) or self._order[self._at - 1] is not layer:
                self._at = self._resumed(layer)
            if len(self._now) > LONGEST:
                self._turn()

    def _join(self, layer: Layer) -> None:
        """Make the current stream wait for a layer's copy, if it has not."""
        stream = torch.cuda.current_stream(self.device)
        if stream not in layer.streams:
            stream.wait_event(layer.ready)
            layer.streams.append(stream)

    @staticmethod
    def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
        return stream.record_event(torch.cuda.Event(enable_timing=True))

    def _place(self, layer: Layer) -> None:
        assert self.ring is not None
        if self.ring.place(layer, self._ahead) or self.ring.place(layer, ()):
            return
        used = [each for each in self.layers if each.uses]
        names, size = ", ".join(f'"{each.name}"' for each in used[:4]), _units.size
        raise RuntimeError(
            f'"{layer.name}" ({size(layer.size)}) does not fit beside the layers in use ({names}; '
            f"{size(sum(each.size for each in used))}) in {size(self.ring.memory.numel())}: give a larger "
            "budget, or checkpoint smaller parts of the model"
        )

    def _leave(self, layer: Layer) -> None:
        """The current stream has all work of a call of a layer."""
        with self._lock, torch.inference_mode(False):
            layer.uses -= 1
            if layer.uses == 0:
                layer.last = torch.cuda.current_stream(self.device)
                for other in layer.streams:
                    if other != layer.last:
                        self.copies.wait_stream(other)
                layer.streams.clear()
                layer.done.record(layer.last)
                for call in reversed(self._pass.calls or ()):
                    if call.layer is layer:
                        call.left = self._mark(layer.last)
                        break
                layer.show(None)
            self._look_ahead()

    def _turn(self, key: Any = None) -> None:
        """Keep what this pass called, and expect what a pass with this key calls that follows it."""
        if self._now:
            self._phases.add(self._now, self._pass)
            if self._pages is not None:
                self._pages.end_pass()
            self._now, self._gradients.timed = [], None
        self._pass = Pass(key)
        self._expect(self._phases.next(key=key), 0)
        if list(self._ahead) != self._order[: len(self._ahead)]:
            self._ahead.clear()

    def _expect(self, phase: Phase, at: int) -> None:
        self._phase, self._order, self._at = phase, phase.order, at
        self._then = self._phases.next(after=phase).order

    def _look_ahead(self) -> None:
        """Enqueue the copies of the layers that come next, as far as there is room."""
        assert self.ring is not None
        at, now = self._at + len(self._ahead), len(self._order)
        # The next pass may come after an optimizer's step, which changes the weights.
        last = now if self._is_training else now + len(self._then)
        if self._pages is not None:
            coming = (self._order[i] if i < now else self._then[i - now] for i in range(at, last))
            self._pages.ahead(layer for layer in coming if layer.pages is not None and layer.at is None)
        while at < last and len(self._ahead) < len(self.layers):
            layer = self._order[at] if at < now else self._then[at - now]
            if layer.at is None and layer.pages is not None and not layer.pages.is_read(layer):
                return
            if layer.at is None and not self.ring.place(layer, self._ahead):
                return
            self._ahead.append(layer)
            at += 1

    def _resumed(self, layer: Layer) -> int:
        """Return where the order goes on after this layer: in a phase that began as this pass did, or nearest
        to where this pass is.
        """
        if (phase := self._phases.begun(self._now)) is not None:
            self._expect(phase, len(self._now))
            return self._at
        near = [at + 1 for at, each in enumerate(self._order) if each is layer]
        return min(near, key=lambda at: abs(at - self._at), default=len(self._order))

    # Backward.

    def _pack(self, outer: Any, tensor: Tensor) -> Any:
        layer = self.ring.at(tensor) if self.ring is not None else None
        if layer is None:
            return (outer[1], outer[0](tensor)) if outer is not None else (None, (tensor, tensor._version))
        is_again = torch._C._current_autograd_node() is not None
        return Saved(layer, tensor, layer.begun[-1] if layer.begun and not is_again else -1)

    def _unpack(self, saved: Any) -> Tensor:
        if not isinstance(saved, Saved):
            outer, kept = saved
            if outer is not None:
                unpacked: Tensor = outer(kept)
                return unpacked
            tensor, version = kept
            if tensor._version != version:
                raise RuntimeError(
                    f"{MODIFIED}: {list(tensor.shape)} changed from {version} to {tensor._version}"
                )
            return tensor
        if self.ring is None:
            raise RuntimeError("the model was given back by remove(): run backward before it")
        if saved.layer.now() != saved.versions:
            raise RuntimeError(f'{MODIFIED}: weights of "{saved.layer.name}"')
        with self._lock:
            node = torch._C._current_autograd_node()
            self._let_go(node._sequence_nr() if node is not None else 0)
            if not any(layer is saved.layer for layer, _, _ in self._in_backward):
                self._use(saved.layer)
                self._hold(saved.layer, saved.begun)
            if node is not None:
                self._gradients.at_end(self._step_ended)
            self._join(saved.layer)
            return saved.view(self.ring.memory)

    def _hold(self, layer: Layer, begun: int) -> None:
        """Keep a layer until autograd has come to what precedes its call."""
        self._in_backward.append((layer, begun, torch._C._current_graph_task_id()))
        self._gradients.at_end(self._step_ended)

    def _let_go(self, number: int) -> None:
        """Release layers whose calls began after the node with this number: nodes come in falling order.

        A reentrant pass inside this one has ended when nodes of this one come again.
        """
        task, is_known = torch._C._current_graph_task_id(), False
        kept: list[tuple[Layer, int, int]] = []
        gone: list[tuple[Layer, int, int]] = []
        for each in self._in_backward:
            is_known |= each[2] == task
            is_gone = number < each[1] if each[2] == task else is_known
            (gone if is_gone else kept).append(each)
        self._in_backward = kept
        for layer, _, _ in gone:
            self._leave(layer)

    def _step_ended(self) -> None:
        self._backward_ended()
        self._end(is_over=True)

    def _backward_ended(self) -> None:
        with self._lock:
            left, self._in_backward = self._in_backward, []
            for layer, _, _ in left:
                self._leave(layer)
            if self._is_training:
                # An optimizer may change the weights next, and a fused one does so without a trace.
                if self._ahead:
                    self._ahead.clear()
                    self.copies.synchronize()
                for layer in self.layers:
                    if layer.pages is None:
                        layer.versions = ()

    # What users call.

    def changed(self) -> None:
        """Say that weights were changed in place through ``param.data``, which is not noticed otherwise.

        Weights that stay in their files are compared with them, so that the next pass refuses a change.
        """
        with self._lock:
            for layer in self.layers:
                layer.versions = ()
                for weight in layer.weights:
                    weight.compare()

    def remove(self, device: Any = "cpu") -> nn.Module:
        """End this: bring all weights to the CPU or another device, and return the model.

        Blocks until all work of the device is complete.

        Raises:
            ValueError: It is no such device; nothing is changed then.
        """
        to = device_of(device, ("cpu", "cuda"), '"cpu", or a GPU, such as "cuda"')
        torch.cuda.synchronize(self.device)
        self._backward_ended()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self.ring is not None:
            self._gradients.remove()
        if self._pages is not None:
            self._pages.close()
        self.ring, self.layers, self._pages = None, [], None
        OFFLOADED.discard(self.model)
        self._is_removed = True
        return self.model.to(to)

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the host's memory that are pinned for weights."""
        pinned = [layer.pinned.memory for layer in self.layers if layer.pinned is not None]
        return bytes_of([*pinned, *([self._pages.memory] if self._pages is not None else [])])

    @property
    def moved_bytes(self) -> int:
        """Bytes that a forward pass copies to the device, by the last one that is known."""
        order = self._forward or self.layers
        return sum(layer.size for at, layer in enumerate(order) if at == 0 or order[at - 1] is not layer)

    @property
    def plan(self) -> OffloadPlan | None:
        """The plan of the last pass, with its picture; None before three in the same order are complete."""
        plans = self.plans
        return plans[-1] if plans and self._phases.last.work() is not None else None

    @property
    def plans(self) -> tuple[OffloadPlan, ...]:
        """The plan of each phase, such as prefill and decode: passes that differ in their order of layers, in
        the shape of their first input, or in whether they keep gradients. The last eight are known.
        """
        self._settle()
        if self.ring is None:
            return ()
        reading = (self._pages.rate, self._pages.slabs) if self._pages is not None else (0.0, 1)
        room = self.ring.memory.numel()
        each = (phase.plan(room, self.link, reading) for phase in self._phases.known)
        return tuple(plan for plan in each if plan is not None)

    def _settle(self) -> None:
        """Take the last pass, if it has ended."""
        with self._lock:
            if self._pass.is_over and not self._depth:
                self._turn()

    def __str__(self) -> str:
        size = _units.size
        if self._is_removed:
            return "offload: ended by remove(); nothing moves"
        if self.ring is None or not self.layers:
            fits = f"all {size(self.resident_bytes)} fit in the budget of {size(self.budget)}"
            return f"offload: {fits}; nothing moves"
        room = size(self.ring.memory.numel())
        turns = f"{len(self.layers)} layers ({size(self.turns_bytes)} in all) take turns in {room}"
        told = side_by_side(self.plans)
        if not told:
            told = f"  a forward pass copies {size(self.moved_bytes)} at {self.link / 1e9:.1f} GB/s"
        if self._pages is not None:
            files = sum(layer.size for layer in self.layers if layer.pages is not None)
            pinned = f"{size(self.pinned_bytes)} of the host are pinned"
            told = f"  {size(files)} are read from files; {pinned}\n{told}"
        return f"offload: {size(self.resident_bytes)} stay on {self.device}, {turns}\n{told}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>{''.join(plan._repr_html_() for plan in self.plans)}"

    __repr__ = __str__
