"""Mistakes in backward over several streams, each with its fixed twin: for `check_gpu.py planted`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from planted.planting import Doubles, N, into, side_and_main, use_again, weights
from torch import nn

PLANTED: list[Callable[[bool], None]] = []
planted = into(PLANTED)


@planted
def what_the_forward_saved(right: bool) -> None:
    side, main = side_and_main()
    w = weights()
    with torch.cuda.stream(side):
        x = torch.full((N,), 2.0, device="cuda")
    main.wait_stream(side)
    (x * w).sum().backward()
    if right:
        x.record_stream(main)
    del x
    use_again(side)


@planted
def a_gradient_that_a_leaf_adds_to(right: bool) -> None:
    """The gradient that the leaf already has was not passed by another node."""
    side, main = side_and_main()
    w = weights()
    with torch.cuda.stream(side):
        w.grad = torch.ones(N, device="cuda")
    main.wait_stream(side)
    (w * 3).sum().backward()
    if right:
        w.grad.record_stream(main)
    w.grad = None
    use_again(side)


@planted
def augmentation_beside_training(right: bool) -> None:
    """A loop from a blog with two streams and backward: the batch is recorded on the stream that made it."""
    transform, train = torch.cuda.Stream(), torch.cuda.Stream()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(8, 3, 32, 32, device="cuda"))
    for stream in (transform, train):
        stream.wait_stream(torch.cuda.current_stream())
    transformed: Any = None
    for _ in range(8):
        if transformed is not None:
            with torch.cuda.stream(train):
                train.wait_stream(transform)
                optimizer.zero_grad()
                model(transformed).sum().backward()
                optimizer.step()
        with torch.cuda.stream(transform):
            old, transformed = transformed, None
            if old is not None:
                old.record_stream(train if right else transform)
            del old
            transformed = torch.rand(8, 3, 32, 32, device="cuda") * 2


@planted
def a_function_that_uses_a_stream_and_does_not_wait(right: bool) -> None:
    side = torch.cuda.Stream()

    class Scale(Doubles):
        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                gradient.record_stream(side)
                scaled = gradient * 2
            if right:
                main.wait_stream(side)
                scaled.record_stream(main)
            return scaled

    Scale.apply(weights() * 3).sum().backward()


@planted
def a_function_that_notes_no_stream(right: bool) -> None:
    side, main = side_and_main()

    class Scale(Doubles):
        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.linalg.vector_norm(gradient)
                if right:
                    gradient.record_stream(side)
            return torch.ones(N, device="cuda")

    (Scale.apply(weights() * 3) * 2).sum().backward()
    use_again(main)
    main.wait_stream(side)


@planted
def an_optimizer_in_backward(right: bool) -> None:
    side, main = side_and_main()
    w = weights()

    def step(parameter: Any) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            parameter -= parameter.grad
        if right:
            parameter.grad.record_stream(side)
        parameter.grad = None

    w.register_post_accumulate_grad_hook(step)
    (w * 3).sum().backward()
    use_again(main)
    main.wait_stream(side)


@planted
def an_optimizer_in_backward_without_a_wait(right: bool) -> None:
    side, main = side_and_main()
    w = weights()

    def step(parameter: Any) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            parameter -= parameter.grad
        parameter.grad.record_stream(side)
        parameter.grad = None

    w.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        (w * 3).sum().backward()
        if right:
            main.wait_stream(side)


def offload(waits: bool = True, notes: bool = True, notes_the_source: bool = True) -> None:
    """The tensors that forward saves are offloaded to the host on a separate stream, and restored in
    backward."""
    side, main = side_and_main()

    def pack(tensor: Any) -> Any:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            host.copy_(tensor, non_blocking=True)
        if notes_the_source:
            tensor.record_stream(side)
        return host

    def unpack(host: Any) -> Any:
        with torch.cuda.stream(side):
            back = host.to("cuda", non_blocking=True)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        if notes:
            back.record_stream(torch.cuda.current_stream())
        return back

    w = weights()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = (torch.full((N,), 2.0, device="cuda") * w).sum()
    use_again(main)
    loss.backward()
    use_again(side)
    main.wait_stream(side)


@planted
def an_offload_that_is_not_waited_for(right: bool) -> None:
    offload(waits=right)


@planted
def an_offload_whose_source_is_freed(right: bool) -> None:
    offload(notes_the_source=right)


@planted
def an_offload_whose_result_is_freed(right: bool) -> None:
    offload(notes=right)


def gathers(waits: bool, frees_in_order: bool) -> None:
    """Weights are gathered on a separate stream: the next layer's while the backward pass of this layer
    runs.
    """
    side = torch.cuda.Stream()
    whole: dict[int, Any] = {}

    def gather(layer: int) -> None:
        with torch.cuda.stream(side):
            whole[layer] = torch.full((N,), float(layer), device="cuda")

    class Layer(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, layer: int) -> Any:
            ctx.layer = layer
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            main = torch.cuda.current_stream()
            if waits:
                main.wait_stream(side)
            if ctx.layer:
                gather(ctx.layer - 1)
            result = gradient * whole[ctx.layer]
            if frees_in_order:
                side.wait_stream(main)
            del whole[ctx.layer]
            return result, None

    x = weights()
    for layer in range(6):
        x = Layer.apply(x, layer)
    loss = x.sum()
    gather(5)
    loss.backward()


@planted
def weights_gathered_and_not_waited_for(right: bool) -> None:
    gathers(waits=right, frees_in_order=True)


@planted
def weights_gathered_and_freed_too_early(right: bool) -> None:
    gathers(waits=True, frees_in_order=right)


@planted
def a_gradient_past_the_engine(right: bool) -> None:
    """The engine records a gradient that a node returns for its use, but not one that the node stores for
    another node.
    """
    side = torch.cuda.Stream()
    left: list[Any] = []

    class Gives(Doubles):
        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            made = torch.full((N,), 2.0, device="cuda")
            if right:
                return made
            left.append(made)
            return torch.full((N,), 3.0, device="cuda")

    class Takes(Doubles):
        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return (left.pop() if left else gradient) * 2

    hidden = Takes.apply(weights())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss = Gives.apply(hidden).sum()
    torch.cuda.current_stream().wait_stream(side)
    loss.backward()
    use_again(side)


@planted
def a_gradient_in_the_memory_of_another_stream(right: bool) -> None:
    """Both nodes run on one stream, so the engine records none, but the gradient's memory is from another."""
    side, main = side_and_main()

    class Gives(Doubles):
        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            with torch.cuda.stream(side):
                made = torch.full((N,), 2.0, device="cuda")
            main.wait_stream(side)
            if right:
                made.record_stream(main)
            return made

    class Takes(Doubles):
        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 2

    loss = Gives.apply(Takes.apply(weights())).sum()
    side.wait_stream(main)
    loss.backward()
    use_again(side)


@planted
def gradients_that_are_added_up(right: bool) -> None:
    """Two branches on separate streams: the engine adds their gradients on a third stream, and records that
    stream for them.
    """
    one, two, main = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
    given: list[Any] = []

    class Branch(Doubles):
        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            given.append(torch.full((N,), 2.0, device="cuda"))
            if right:
                return given[-1]
            if len(given) == 2:
                # The program adds the gradients itself.
                main.wait_stream(one)
                main.wait_stream(two)
                with torch.cuda.stream(main):
                    given[0] + given[1]
            return torch.full((N,), 3.0, device="cuda")

    trunk = weights() * 3
    branches = []
    for stream in (one, two):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            branches.append(Branch.apply(trunk))
        main.wait_stream(stream)
    (branches[0] + branches[1]).sum().backward()
    given.clear()
    use_again(one, two)
