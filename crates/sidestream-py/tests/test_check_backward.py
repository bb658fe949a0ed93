"""Backward over several streams: what the engine orders and records itself, and what the program must order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sidestream
import torch
from planted import backward, planting
from planted.planting import Doubles, side_and_main
from sidestream._check import CheckedRun

pytestmark = pytest.mark.torch

#: The mistakes of ``benches/planted/backward.py``, which run on a GPU as well, with the kinds of races found.
KINDS = {
    "what_the_forward_saved": {"UAF"},
    "a_gradient_that_a_leaf_adds_to": {"UAF"},
    "augmentation_beside_training": {"UAF"},
    "a_function_that_uses_a_stream_and_does_not_wait": {"RAW"},
    "a_function_that_notes_no_stream": {"UAF"},
    "an_optimizer_in_backward": {"UAF"},
    "an_optimizer_in_backward_without_a_wait": {"RAW"},
    "an_offload_that_is_not_waited_for": {"RAW"},
    "an_offload_whose_source_is_freed": {"UAF"},
    "an_offload_whose_result_is_freed": {"UAF"},
    "weights_gathered_and_not_waited_for": {"RAW"},
    "weights_gathered_and_freed_too_early": {"UAF"},
    "a_gradient_past_the_engine": {"UAF"},
    "a_gradient_in_the_memory_of_another_stream": {"UAF"},
    "gradients_that_are_added_up": {"UAF"},
}


PLANTED = {program.__name__: program for program in backward.PLANTED}


def checked(program: Callable[..., None], *args: Any) -> CheckedRun:
    with sidestream.check(simulate=True) as found:
        program(*args)
    return found


def test_each_mistake_is_known() -> None:
    assert set(PLANTED) == set(KINDS)


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_of_backward_is_found(name: str) -> None:
    found = checked(PLANTED[name], False)
    assert {race.kind for race in found.races} == KINDS[name], str(found)


@pytest.mark.parametrize("name", PLANTED)
def test_its_repaired_twin_is_silent(name: str) -> None:
    found = checked(PLANTED[name], True)
    assert found.races == () and found.operations, str(found)


COUNT = 1 << 10
weights, use_again = partial(planting.weights, COUNT), partial(planting.use_again, count=COUNT)


def stages_on_streams_of_their_own() -> None:
    """The backward pass of the first stage is ordered after that of the second, so tensors that the first
    passed on may be freed."""
    side, main = side_and_main()
    w, v = weights(), weights()
    for _ in range(3):
        x = torch.ones(COUNT, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            hidden = x * w
        main.wait_stream(side)
        (hidden * v).sum().backward()
        del hidden, x
        use_again(main)
        # The tensor that the second model saved belongs to the first model's stream.
        side.wait_stream(main)
        use_again(side)


def gradients_over_several_passes() -> None:
    side, main = side_and_main()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        side.wait_stream(main)
        with torch.cuda.stream(side if step % 2 else main):
            loss = model(torch.ones(2, 8, device="cuda")).sum()
        loss.backward()
        if step % 2:
            # Backward makes the stream that called it wait for the gradients.
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def checkpoints() -> None:
    from torch.utils.checkpoint import checkpoint

    side, main = side_and_main()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).cuda()
    for reentrant in (False, True):
        x = torch.ones(2, 8, device="cuda", requires_grad=True)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            loss = checkpoint(model, x, use_reentrant=reentrant).sum()
        main.wait_stream(side)
        loss.backward()
        x.record_stream(side)
        del x, loss
        use_again(main, side)


def mixed_precision() -> None:
    side, main = side_and_main()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).cuda()
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.ones(2, 8, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side), torch.autocast("cuda", dtype=torch.bfloat16):
            loss = scaler.scale(model(x).float().sum())
        main.wait_stream(side)
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        x.record_stream(side)
        del x, loss
        use_again(main)


def gradients_that_are_asked_for_at_an_edge() -> None:
    gradients_that_are_asked_for(at_edge=True)


def gradients_that_are_asked_for(at_edge: bool = False) -> None:
    """The gradients are passed to the node of their input, which itself need not run."""
    from torch.autograd.graph import get_gradient_edge

    side, main = side_and_main()

    class Gives(Doubles):
        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return torch.full((COUNT,), 2.0, device="cuda")

    x = weights() * 1
    side.wait_stream(main)
    with torch.cuda.stream(side):
        loss = Gives.apply(x).sum()
    main.wait_stream(side)
    (gradient,) = torch.autograd.grad(loss, get_gradient_edge(x) if at_edge else x)
    gradient * 2
    del gradient
    use_again(side)


@pytest.mark.parametrize(
    "program",
    [
        stages_on_streams_of_their_own,
        gradients_over_several_passes,
        checkpoints,
        mixed_precision,
        gradients_that_are_asked_for,
        gradients_that_are_asked_for_at_an_edge,
    ],
)
def test_ordinary_training_is_clean(program: Callable[[], None]) -> None:
    found = checked(program)
    assert found.races == () and found.operations, str(found)


def test_backward_leaves_no_hook_behind() -> None:
    with sidestream.check(simulate=True):
        w = weights()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(1, device="cuda")
        loss = (w * w).sum()
        loss.backward(retain_graph=True)
        torch.autograd.grad(loss, w, retain_graph=True)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            for _ in range(2):
                loss.backward()
    assert not w._backward_hooks
