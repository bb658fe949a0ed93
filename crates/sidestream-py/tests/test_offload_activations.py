"""``offload_activations``: saved activations on the host, on a simulated GPU."""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sidestream
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

pytestmark = pytest.mark.torch

#: Tensors of 4,096 rows have 1 MiB, the least that moves.
ROWS, WIDTH = 4096, 64
MIB = 1 << 20


@pytest.fixture
def simulated() -> Iterator[Any]:
    with sidestream.simulate("sim:h200") as device:
        yield device


def perceptron(layers: int, width: int = WIDTH) -> nn.Module:
    return nn.Sequential(*(one for _ in range(layers) for one in (nn.Linear(width, width), nn.GELU()))).cuda()


def train(net: nn.Module, inside: Any, steps: int, rows: int = ROWS) -> list[Any]:
    """Return the losses and the gradients of some steps."""
    found: list[Any] = []
    width = next(net.parameters()).shape[1]
    for step in range(steps):
        torch.manual_seed(step)
        batch = torch.randn(rows, width).cuda()
        with inside:
            loss = net(batch).square().mean()
        loss.backward()
        found += [loss.detach().cpu(), *(parameter.grad.cpu().clone() for parameter in net.parameters())]
        net.zero_grad(set_to_none=True)
    return found


def same(these: list[Any], those: list[Any]) -> bool:
    """Whether all bits are the same, also those of what is no number."""
    bits = [[one.flatten().view(torch.uint8) for one in some] for some in (these, those)]
    return len(these) == len(those) and all(map(torch.equal, *bits))


class Twice(torch.autograd.Function):  # type: ignore[misc]
    """Saves its input and its output."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, y = ctx.saved_tensors
        return gradients[0] * 2 + 0 * (x + y)


def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    keeps = op == torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def selective() -> Any:
    return create_selective_checkpoint_contexts(policy)


class Block(nn.Module):  # type: ignore[misc]
    """A random layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear, self.norm = kind, nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def inner(self, x: Any) -> Any:
        return torch.tanh(self.linear(self.norm(x))) * x

    def forward(self, x: Any) -> Any:
        match self.kind:
            case "residual":
                return x + nn.functional.gelu(self.linear(x))
            case "gate":
                return x * torch.sigmoid(self.linear(x)) * x.exp().clamp(max=2)
            case "views":
                a, b = torch.cat([x, self.linear(x)], 1).chunk(2, dim=1)
                return (a * b.T.contiguous().T).softmax(1) + a[:, ::2].repeat(1, 2) ** 2
            case "inplace":
                return self.linear(x).relu_().mul(x)
            case "function":
                return Twice.apply(self.linear(x))
            case "detached":
                return x * self.inner(x).detach()
            case "checkpoint":
                return checkpoint(self.inner, x, use_reentrant=False)
            case "reentrant":
                return checkpoint(self.inner, x, use_reentrant=True)
            case "selective":
                return checkpoint(self.inner, x, use_reentrant=False, context_fn=selective)
        return self.inner(x)


KINDS = "residual gate views inplace function detached checkpoint reentrant selective inner".split()
STEPS = (
    "plain plain plain plain inside accumulate retain twice autocast shape failure abandoned no_grad two "
    "together grad streams"
).split()


class Failure(Exception):
    pass


def fail(gradient: Any) -> None:
    raise Failure


def one_step(kind: str, nets: list[nn.Module], inside: Any, seed: int) -> list[Any]:
    """Run one step of a kind; return what a program sees of it."""
    torch.manual_seed(seed)
    net, found = nets[0], list[Any]()
    batch = torch.randn(ROWS + 512 * (kind == "shape"), WIDTH).cuda()
    autocast = torch.autocast("cuda", torch.bfloat16) if kind == "autocast" else contextlib.nullcontext()
    if kind in ("failure", "abandoned", "no_grad"):
        with contextlib.suppress(Failure), torch.set_grad_enabled(kind != "no_grad"), inside:
            found.append(net[:2](batch).sum())
            if kind == "failure":
                raise Failure
        if kind == "abandoned" and seed % 2:
            # Backward fails in its midst.
            with inside:
                middle = net[0](batch)
                end = net[1](middle).sum()
            middle.register_hook(fail)
            with contextlib.suppress(Failure):
                end.backward()
        return [one.detach().cpu() for one in found]
    if kind == "streams":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), inside:
            loss = net(batch).square().mean()
        torch.cuda.current_stream().wait_stream(side)
        loss.backward()
    elif kind == "together":
        with inside:
            first = net(batch).square().mean()
        with inside:
            second = nets[1](batch).square().mean()
        (first + second).backward()
        loss = first + second
    else:
        with inside, autocast:
            loss = net(batch).float().square().mean()
            if kind == "inside":
                loss.backward()
        if kind == "twice":
            some = [one for one in net.parameters() if one.requires_grad]
            with inside:
                grads = torch.autograd.grad(loss, some, create_graph=True, allow_unused=True)
                loss = loss + sum(one.square().sum() for one in grads if one is not None)
        if kind == "grad":
            found += [one for one in torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)]
        elif kind == "retain":
            loss.backward(retain_graph=True)
        if kind not in ("inside", "grad"):
            loss.backward()
        if kind == "accumulate":
            with inside:
                more = net(batch * 2).square().mean()
            more.backward()
        if kind == "two":
            with inside:
                other = nets[1](batch.exp()).square().mean()
            other.backward()
    found += [loss, *(one.grad for every in nets for one in every.parameters())]
    for every in nets:
        every.zero_grad(set_to_none=True)
    return [one.detach().cpu().clone() for one in found if one is not None]


def random_program(seed: int, inside: Callable[[random.Random], Any]) -> list[Any]:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kinds = [[draw.choice(KINDS) for _ in range(draw.randint(1, 4))] for _ in range(2)]
    once = {"reentrant", "selective"} & {*kinds[0], *kinds[1]}
    nets = [nn.Sequential(nn.Linear(WIDTH, WIDTH), *map(Block, some)).cuda() for some in kinds]
    usual = draw.choice(STEPS)
    steps = [usual if draw.random() < 0.6 else draw.choice(STEPS) for _ in range(8)]
    # Some checkpoints refuse a second backward pass, and gradients by autograd.grad.
    steps = ["plain" if once and step in ("retain", "twice", "grad") else step for step in steps]
    activations = inside(draw)
    found = []
    for at, step in enumerate(steps):
        found += one_step(step, nets, activations, seed + at)
    return found


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("part", range(4))
def test_random_programs_have_the_same_losses_and_gradients(part: int, simulated: Any) -> None:
    seed = random.SystemRandom().randrange(1 << 30) * 4 + part
    print("seed", seed)
    for at in range(seed, seed + 2):

        def offload(draw: random.Random) -> Any:
            return sidestream.offload_activations(draw.choice([None, 8 * MIB, "10 MiB", "16MB"]))

        expected = random_program(at, lambda draw: contextlib.nullcontext())
        assert same(random_program(at, offload), expected), at


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_a_check_hears_the_copies_and_is_silent() -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)
    for at in range(seed, seed + 2):
        with sidestream.check(simulate=True) as found:
            random_program(at, lambda draw: sidestream.offload_activations(12 * MIB))
        assert not found.races, str(found)
        with sidestream.check(simulate=True) as found:
            train(perceptron(8), activations := sidestream.offload_activations(6 * MIB), 4)
        assert not found.races and activations.report().moves, str(found)


def large(inside: Any, steps: int = 4, layers: int = 16) -> tuple[float, int]:
    """Return the seconds of the last step of a large job, and its peak of device memory."""
    net = perceptron(layers, 4096).to(torch.bfloat16)
    batch = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
    took = peak = 0
    for _ in range(steps):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        with inside:
            loss = net(batch).float().square().mean()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        loss.backward()
        net.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    begin.record()
    with inside:
        loss = net(batch).float().square().mean()
    loss.backward()
    end.record()
    end.synchronize()
    took = begin.elapsed_time(end)
    return took, peak


def test_without_a_budget_what_moves_costs_no_time_and_lowers_the_peak() -> None:
    with sidestream.simulate("sim:h200", shapes=True):
        resident, most = large(contextlib.nullcontext())
        activations = sidestream.offload_activations()
        took, peak = large(activations)
        told = activations.report()
        assert took <= 1.02 * resident and most - peak == told.moved_bytes > 0
        assert told.measured_ms == pytest.approx(told.predicted_ms, rel=0.02)
        # Up to the end of the forward pass the link is busy; what leaves later does not lower the peak.
        assert told.link is not None
        window = (told.forward_ms - told.moves[0].out_begins_ms) / 1e3
        assert told.moved_bytes >= 0.8 * told.link.out * window


def test_a_budget_is_a_bound_from_the_first_step_on() -> None:
    with sidestream.simulate("sim:h200", shapes=True):
        # Steps that are not planned yet keep within the budget, too.
        for steps in (1, 4):
            _, most = large(contextlib.nullcontext(), steps)
            activations = sidestream.offload_activations("1 GiB")
            took, peak = large(activations, steps)
            # Of 33 tensors of 64 MiB, 16 remain.
            assert most - peak == 17 * 64 * MIB
        told = activations.report()
        assert told.kept_bytes <= 1 << 30 and told.moved_bytes == told.pinned_bytes == 17 * 64 * MIB
        assert told.limit_ms <= told.predicted_ms == pytest.approx(took, rel=0.05)
        assert "17 of 32 tensors" in str(activations) and "computing the same" in str(activations)


def test_what_fits_does_not_move(simulated: Any) -> None:
    activations = sidestream.offload_activations("1 GiB")
    assert str(activations).startswith("nothing is planned yet")
    train(perceptron(4), activations, 4)
    told = activations.report()
    assert told.moves == () and told.pinned_bytes == 0 and told.predicted_ms == told.compute_ms


def test_a_budget_that_one_operation_exceeds_says_how_much_is_missing(simulated: Any) -> None:
    activations = sidestream.offload_activations(3 * MIB)
    # LayerNorm's input and result have 4 MiB each.
    with pytest.raises(MemoryError, match=r"budget of 3145.7 kB by 1048.6 kB; .* of 4194304 bytes or more"):
        train(nn.Sequential(perceptron(1), nn.LayerNorm(WIDTH).cuda()), activations, 1, 4 * ROWS)


@pytest.mark.parametrize("value", [0, -1, "", "2 GX", "GiB", True, 1.5, None])
def test_a_budget_is_bytes_or_text(value: Any) -> None:
    if value is None:
        assert sidestream.offload_activations("1.5 GiB").budget == 3 << 29
        assert sidestream.offload_activations("2gb").budget == 2 * 10**9
        return
    with pytest.raises((TypeError, ValueError), match="budget is .*; give bytes, or a text"):
        sidestream.offload_activations(value)


def test_backward_that_never_comes_frees_all(simulated: Any) -> None:
    net, some = perceptron(4), torch.zeros(1, device="cuda")
    before = torch.cuda.memory_allocated()
    activations = sidestream.offload_activations(4 * MIB)
    for _ in range(3):
        with activations:
            loss = net(torch.randn(ROWS, WIDTH, device="cuda")).sum()
        del loss
    # The simulated allocator notices what was freed when it is asked for memory.
    some = some.clone()
    assert torch.cuda.memory_allocated() < before + MIB
    gone = weakref.ref(activations)
    with activations:
        loss = net(torch.randn(ROWS, WIDTH, device="cuda")).sum()
    del activations, loss
    assert gone() is None


@pytest.mark.parametrize("budget", [None, 2 * MIB])
@pytest.mark.parametrize("saves_result", [False, True])
def test_a_saved_tensor_that_is_modified_is_an_error(
    budget: int | None, saves_result: bool, simulated: Any
) -> None:
    x = torch.ones(ROWS, WIDTH, device="cuda", requires_grad=True)
    with sidestream.offload_activations(budget):
        y = x.exp() if saves_result else x * 2
        z = y.sin().sum()
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_without_a_gpu_nothing_moves() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    with sidestream.offload_activations() as activations:
        loss = net(torch.ones(2, 8)).sum()
    loss.backward()
    assert net[0].weight.grad is not None and activations.report().storages == 0
