"""``offload`` on a simulated GPU: bits, orders, memory, and what users do with the model meanwhile."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sidestream
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.torch
WIDTH = 192
LAYER = WIDTH * WIDTH * 4


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """A simulated GPU."""
    with sidestream.simulate("sim:h200"):
        yield


def linear(count: int = 6) -> nn.Sequential:
    """Return layers of which each has more than the least that takes turns."""
    torch.manual_seed(1)
    return nn.Sequential(
        *[part for _ in range(count) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())]
    )


def batch(rows: int = 3) -> torch.Tensor:
    """Return an input."""
    return torch.randn(rows, WIDTH).cuda()


def forward(model: nn.Module, x: Any) -> torch.Tensor:
    """Run a model without gradients."""
    with torch.no_grad():
        out: torch.Tensor = model(x)
    return out


@pytest.mark.parametrize("layers", [2, 3, 5])
def test_passes_have_the_bits_of_the_resident_model(layers: int) -> None:
    model = linear()
    resident = copy.deepcopy(model).cuda()
    offloaded = sidestream.offload(model, "cuda", budget=layers * LAYER)
    for _ in range(4):
        x = batch()
        assert torch.equal(forward(model, x), forward(resident, x))
    turning = [of for of in model.parameters() if not of.is_cuda]
    assert len(turning) == 8 - layers
    assert f"{len(turning)} layers (" in str(offloaded)
    assert offloaded.moved_bytes == len(turning) * LAYER


def test_what_fits_stays_and_nothing_moves() -> None:
    model = linear()
    offloaded = sidestream.offload(model, "cuda", budget="1 MiB")
    assert all(of.is_cuda for of in model.parameters())
    assert str(offloaded) == "offload: all 884.7 kB fit in the budget of 1048.6 kB; nothing moves"


def test_the_next_pass_begins_beside_the_last() -> None:
    model = linear()
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER)
    for _ in range(2):
        forward(model, batch())
    first = offloaded.layers[:2]
    assert [layer.at is not None for layer in first] == [True, True]


def trained(model: nn.Module, steps: int, accumulated: int = 1, **options: Any) -> list[torch.Tensor]:
    """Train a model with an optimizer of its own; return losses and parameters."""
    torch.manual_seed(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, **options)
    kept = []
    for step in range(steps):
        loss = model(batch()).square().mean()
        loss.backward()
        kept.append(loss.detach().cpu())
        if step % accumulated == accumulated - 1:
            optimizer.step()
            optimizer.zero_grad()
    return [*kept, *(of.detach().cpu() for of in model.parameters())]


class Checkpointed(nn.Module):  # type: ignore[misc]
    """Layers of which each is computed again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layers, self.reentrant = linear(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run them."""
        x.requires_grad_()
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


class Tied(nn.Module):  # type: ignore[misc]
    """A weight that two layers have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest, self.last = (nn.Linear(WIDTH, WIDTH), linear(3), nn.Linear(WIDTH, WIDTH))
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run them, the second twice."""
        out: torch.Tensor = self.last(self.rest(self.rest(self.first(x))))
        return out


def attention() -> nn.Module:
    """Return layers whose parts are used without being called, and that have buffers and small tensors."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.BatchNorm1d(3))


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "linear": (linear, 2 * LAYER),
    "checkpointed": (lambda: Checkpointed(False), 3 * LAYER),
    "reentrant": (lambda: Checkpointed(True), 3 * LAYER),
    "tied": (Tied, 3 * LAYER),
    "attention": (attention, 9 * LAYER),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("accumulated", [1, 3])
def test_training_has_the_bits_of_the_resident_model(name: str, accumulated: int) -> None:
    make, budget = MODELS[name]
    model = make()
    resident = copy.deepcopy(model).cuda()
    shape = (1, 3, WIDTH) if name == "attention" else (3, WIDTH)
    for each in (model, resident):
        each.register_forward_pre_hook(lambda _, args: (args[0].view(shape),))
    offloaded = sidestream.offload(model, "cuda", budget=budget)
    assert offloaded.layers
    ours, theirs = trained(model, 6, accumulated), trained(resident, 6, accumulated)
    assert all(map(torch.equal, ours, theirs))
    assert all(of.grad is None or not of.grad.is_cuda for of in model.parameters() if not of.is_cuda)


def test_gradients_of_two_backward_passes_and_of_a_kept_graph_add_up() -> None:
    model = linear()
    resident = copy.deepcopy(model).cuda()
    sidestream.offload(model, "cuda", budget=2 * LAYER)
    for each in (model, resident):
        torch.manual_seed(3)
        loss = each(batch()).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        each(batch()).sum().backward()
    pairs = zip(model.parameters(), resident.parameters(), strict=True)
    assert all(torch.equal(ours.grad.cpu(), theirs.grad.cpu()) for ours, theirs in pairs)


class Shuffled(nn.Module):  # type: ignore[misc]
    """Layers in an order that each call gives."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(WIDTH, w), nn.ReLU(), nn.Linear(w, WIDTH)) for w in widths]
        )

    def forward(self, x: torch.Tensor, order: list[int]) -> torch.Tensor:
        """Call some of the layers."""
        for at in order:
            x = x + self.layers[at](x)
        return x


@pytest.mark.parametrize("seed", range(12))
def test_random_orders_changes_and_streams_are_right_and_have_no_race(seed: int) -> None:
    chosen = random.Random(seed)
    print("seed", seed)
    torch.manual_seed(seed)
    model = Shuffled([300, 300, *(chosen.choice([100, 200, 300]) for _ in range(3))])
    resident = copy.deepcopy(model).cuda()
    order = list(range(5))
    streams = [torch.cuda.Stream() for _ in range(2)]
    with sidestream.check() as found:
        offloaded = sidestream.offload(model, "cuda", budget=chosen.choice([1_000_000, 1_100_000]))
        for step in range(14):
            if chosen.random() < 0.4:
                order = [chosen.randrange(5) for _ in range(chosen.randint(1, 6))]
            is_training = chosen.random() < 0.4
            x, stream = batch(), chosen.choice(streams)
            stream.wait_stream(torch.cuda.current_stream())
            outs = []
            for each in (model, resident):
                with torch.cuda.stream(stream), torch.set_grad_enabled(is_training):
                    outs.append(each(x, order))
                    if is_training:
                        outs[-1].square().mean().backward()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            assert torch.equal(*outs), step
            if chosen.random() < 0.5:
                with torch.no_grad():
                    for ours, theirs in zip(model.parameters(), resident.parameters(), strict=True):
                        if theirs.grad is not None:
                            assert torch.equal(ours.grad.cpu(), theirs.grad.cpu()), step
                            ours.sub_(0.1 * ours.grad)
                            theirs.sub_(0.1 * theirs.grad)
                for each in (model, resident):
                    each.zero_grad()
        assert offloaded.layers
    assert not found.races, found


@pytest.mark.parametrize("trains", [False, True])
def test_streams_that_are_not_ordered_may_share_layers(trains: bool) -> None:
    model = linear(4)
    streams = [torch.cuda.Stream() for _ in range(2)]
    with sidestream.check() as found:
        sidestream.offload(model, "cuda", budget=2 * LAYER)
        xs = [batch() for _ in streams]
        for _ in range(3):
            outs = []
            for stream, x in zip(streams, xs, strict=True):
                stream.wait_stream(torch.cuda.default_stream())
            for part in model:
                for at, stream in enumerate(streams):
                    with torch.cuda.stream(stream), torch.set_grad_enabled(trains):
                        xs[at] = part(xs[at])
            for stream in streams:
                torch.cuda.default_stream().wait_stream(stream)
            if trains:
                outs = [x.square().sum() for x in xs]
                torch.stack(outs).sum().backward()
            xs = [x.detach() for x in xs]
    assert not found.races, found


def test_weights_may_be_read_and_changed_between_passes() -> None:
    model = linear()
    resident = copy.deepcopy(model).cuda()
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER)
    x = batch()
    forward(model, x), forward(model, x)
    state = {name: torch.randn_like(of) for name, of in model.state_dict().items()}
    assert all(not of.is_cuda for of in model.state_dict().values())
    for each in (model, resident):
        each.load_state_dict(state)
    assert torch.equal(forward(model, x), forward(resident, x))
    for each in (model, resident):
        each[0].weight.data = torch.ones_like(each[0].weight.data)
    assert torch.equal(forward(model, x), forward(resident, x))
    for each in (model, resident):
        each[0].weight.data.mul_(3)
    offloaded.changed()
    assert torch.equal(forward(model, x), forward(resident, x))
    for each in (model, resident):
        each[2].weight = nn.Parameter(torch.full_like(each[2].weight.data, 0.5))
    assert torch.equal(forward(model, x), forward(resident, x))
    model.half()
    with pytest.raises(RuntimeError, match=r"Linear's weight is not what it was .*call remove\(\)"):
        forward(model, x.half())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_removed_it_is_a_model_as_before(device: str) -> None:
    model = linear()
    before = copy.deepcopy(model.state_dict())
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER)
    x = batch()
    out = forward(model, x)
    assert offloaded.remove(device) is model
    assert {of.device.type for of in model.parameters()} == {device}
    assert all(torch.equal(of.cpu(), before[name]) for name, of in model.state_dict().items())
    assert torch.equal(forward(model, x.to(device)).cpu(), out.cpu())
    sidestream.offload(model, "cuda", budget=3 * LAYER)
    assert torch.equal(forward(model, x), out)


def test_a_pass_that_fails_leaves_the_model_usable() -> None:
    model = linear()
    resident = copy.deepcopy(model).cuda()
    sidestream.offload(model, "cuda", budget=2 * LAYER)
    with pytest.raises(RuntimeError):
        model(torch.zeros(3, 5).cuda())
    x = batch()
    assert torch.equal(forward(model, x), forward(resident, x))


def test_a_model_that_is_dropped_is_freed() -> None:
    model = linear()
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER)
    model(batch()).sum().backward()
    gone = [weakref.ref(each) for each in (model, offloaded, model[0].weight, offloaded.layers[0])]
    del model, offloaded
    gc.collect()
    assert [each() for each in gone] == [None] * 4


def test_several_models_take_turns_in_memory_of_their_own() -> None:
    models = [linear(), linear(4)]
    residents = [copy.deepcopy(each).cuda() for each in models]
    for each in models:
        sidestream.offload(each, "cuda", budget=2 * LAYER)
    x = batch()
    for _ in range(3):
        for ours, theirs in zip(models, residents, strict=True):
            assert torch.equal(forward(ours, x), forward(theirs, x))


def inside() -> tuple[nn.Module, nn.Module]:
    """Return a model and one that contains it."""
    model = linear()
    return model, nn.Sequential(model)


def layered() -> tuple[nn.Module, nn.Module]:
    """Return models that have the same layers."""
    model = linear()
    return model, nn.Sequential(*model)


def tied() -> tuple[nn.Module, nn.Module]:
    """Return models of which each has other layers, and one weight that both have."""
    models = linear(), linear()
    models[1][8].weight = models[0][0].weight
    return models


@pytest.mark.parametrize("models", [inside, layered, tied, lambda: inside()[::-1]])
def test_models_that_share_weights_are_refused(models: Callable[[], tuple[nn.Module, nn.Module]]) -> None:
    first, second = models()
    offloaded = sidestream.offload(first, "cuda", budget=2 * LAYER)
    told = (
        r'parameter ".*weight" is also ".*weight" of a Sequential .* offload one module that contains both'
    )
    with pytest.raises(RuntimeError, match=told):
        sidestream.offload(second, "cuda", budget=2 * LAYER)
    offloaded.remove()
    sidestream.offload(second, "cuda", budget=2 * LAYER)
    assert torch.isfinite(forward(second, batch())).all()


def test_a_model_of_inference_mode_is_refused() -> None:
    with torch.inference_mode():
        model = linear()
        with pytest.raises(ValueError, match=r"made in torch.inference_mode\(\).*load the model outside it"):
            sidestream.offload(model, "cuda", budget=2 * LAYER)


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:99", None])
def test_a_device_that_is_not_there_changes_nothing(device: Any) -> None:
    model = linear()
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER)
    out = forward(model, batch() * 0)
    with pytest.raises(ValueError, match='give "cpu", or a GPU'):
        offloaded.remove(device)
    assert torch.equal(forward(model, batch() * 0), out) and "take turns" in str(offloaded)
    with pytest.raises(ValueError, match='give a GPU, such as "cuda"'):
        sidestream.offload(linear(), device, budget=2 * LAYER)
    offloaded.remove()
    assert str(offloaded) == "offload: ended by remove(); nothing moves"


def test_pinned_memory_has_the_size_of_what_is_kept() -> None:
    offloaded = sidestream.offload(linear(), "cuda", budget=2 * LAYER)
    assert [layer.pinned.memory.numel() for layer in offloaded.layers if layer.pinned] == [LAYER] * 6


def test_what_cannot_be_done_is_said() -> None:
    model = linear()
    few = r'94.9 kB too little: the model \(884.7 kB\) has to fit, or two layers as large as "0" \(147.5 kB'
    with pytest.raises(ValueError, match=few):
        sidestream.offload(model, "cuda", budget="200 kB")
    assert not any(of.is_cuda for of in model.parameters())
    with pytest.raises(ValueError, match="give a GPU"):
        sidestream.offload(model, "cpu", budget="1 GB")
    with pytest.raises(ValueError, match='give bytes, or a text such as "2 GiB"'):
        sidestream.offload(model, "cuda", budget="much")
    with pytest.raises(TypeError, match="budget is 1.5; give bytes"):
        sidestream.offload(model, "cuda", budget=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model is list, not an nn.Module"):
        sidestream.offload([], "cuda", budget=1)
    sidestream.offload(model, "cuda", budget=2 * LAYER)
    with pytest.raises(RuntimeError, match="offloaded already"):
        sidestream.offload(model, "cuda", budget=2 * LAYER)


def test_a_part_that_does_not_fit_is_named_and_the_model_stays_usable() -> None:
    class Whole(nn.Module):  # type: ignore[misc]
        """All layers computed again at once."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = linear()

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.layers, x, use_reentrant=False)

    model = Whole()
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER)
    with pytest.raises(RuntimeError, match="copy of an offloaded model"):
        copy.deepcopy(model)(batch())
    with pytest.raises(RuntimeError, match="does not fit beside the layers in use .*checkpoint smaller"):
        model(batch()).sum().backward()
    x = batch()
    with torch.inference_mode():
        out = model(x)
    assert torch.equal(out, forward(offloaded.remove("cuda"), x))


def test_a_model_may_be_called_by_its_parts() -> None:
    model = linear()
    resident = copy.deepcopy(model).cuda()
    sidestream.offload(model, "cuda", budget=2 * LAYER)
    for step in range(3):
        x = batch()
        losses = []
        for each in (model, resident):
            each.zero_grad()
            out = x
            for part in each:
                out = part(out)
            losses.append((out + each(x) if step else out).square().sum())
            losses[-1].backward()
        assert torch.equal(*losses)
        pairs = zip(model.parameters(), resident.parameters(), strict=True)
        assert all(torch.equal(ours.grad.cpu(), theirs.grad.cpu()) for ours, theirs in pairs)


def test_after_a_backward_pass_that_fails_gradients_come_again() -> None:
    model = linear()
    resident = copy.deepcopy(model).cuda()
    sidestream.offload(model, "cuda", budget=2 * LAYER)
    x = batch()

    def fails(_: torch.Tensor) -> None:
        raise ValueError("on purpose")

    hook = model[4].weight.register_hook(fails)
    with pytest.raises(ValueError, match="on purpose"):
        model(x).sum().backward()
    hook.remove()
    model.zero_grad()
    for each in (model, resident):
        each(x).sum().backward()
    pairs = zip(model.parameters(), resident.parameters(), strict=True)
    assert all(torch.equal(ours.grad.cpu(), theirs.grad.cpu()) for ours, theirs in pairs)


def test_gradients_that_the_program_keeps_are_not_overwritten() -> None:
    model = linear()
    sidestream.offload(model, "cuda", budget=2 * LAYER)
    model(batch()).sum().backward()
    kept = [of.grad for of in model.parameters()]
    values = [of.clone() for of in kept]
    model.zero_grad()
    model(batch()).sum().backward()
    assert all(map(torch.equal, kept, values))


def test_an_optimizer_that_leaves_no_trace_is_noticed() -> None:
    model = linear()
    resident = copy.deepcopy(model).cuda()
    sidestream.offload(model, "cuda", budget=2 * LAYER)
    assert all(map(torch.equal, trained(model, 4, foreach=True), trained(resident, 4, foreach=True)))


def test_values_for_one_call_are_not_kept() -> None:
    model = linear()
    sidestream.offload(model, "cuda", budget=2 * LAYER)
    x = batch()
    before = forward(model, x)
    ones = {name: torch.ones_like(of, device="cuda") for name, of in model.named_parameters()}
    with torch.no_grad():
        called = torch.func.functional_call(model, ones, (x,))
    assert torch.equal(
        called, forward(nn.Sequential(*[nn.Tanh() if i % 2 else Sum() for i in range(12)]), x)
    )
    assert torch.equal(forward(model, x), before)


class Sum(nn.Module):  # type: ignore[misc]
    """A linear layer of ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return nn.functional.linear(x, torch.ones(WIDTH, WIDTH, device="cuda"))


def test_a_weight_that_changes_before_its_backward_pass_is_an_error() -> None:
    model = linear()
    sidestream.offload(model, "cuda", budget=2 * LAYER)
    loss = model(batch()).sum()
    with torch.no_grad():
        model[2].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation: weights of .2"):
        loss.backward()


def test_activations_may_be_moved_too() -> None:
    model = linear()
    resident = copy.deepcopy(model).cuda()
    sidestream.offload(model, "cuda", budget=2 * LAYER)
    for each in (model, resident):
        torch.manual_seed(5)
        with torch.autograd.graph.save_on_cpu():
            loss = each(batch(5)).square().sum()
        loss.backward()
    pairs = zip(model.parameters(), resident.parameters(), strict=True)
    assert all(torch.equal(ours.grad.cpu(), theirs.grad.cpu()) for ours, theirs in pairs)
