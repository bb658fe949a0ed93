"""Programs that torch.compile compiles, with work in several streams: for ``inductor_gpu.py``.

Each has the shape of the test of PyTorch that is named beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_compile = torch.compile  # a simulated GPU replaces it
Step = Callable[[], Any]


@dataclasses.dataclass
class Program:
    build: Callable[[], Step]
    test: str
    config: dict[str, Any]

    @property
    def name(self) -> str:
        return self.build.__name__


PROGRAMS: list[Program] = []


def program(test: str, **config: Any) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    def made(build: Callable[[], Step]) -> Callable[[], Step]:
        PROGRAMS.append(Program(build, test, config))
        return build

    return made


def compiled(function: Any) -> Any:
    return _compile(function)


def some(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*(shape or (64, 64)), device="cuda", **options)


def called(function: Any, *args: Any) -> Step:
    """Return a step that calls the compiled function and then uses its results on the current stream."""
    made = compiled(function)

    def step() -> Any:
        return [result + 1 for result in tree_leaves(made(*args)) if isinstance(result, torch.Tensor)]

    return step


def stream() -> Any:
    return torch.cuda.Stream()


def event() -> Any:
    return torch.cuda.Event()


def on(side: Any) -> Any:
    return torch.cuda.stream(side)


USER, DYNAMO = "inductor/test_user_streams.py ", "dynamo/test_streams.py "


@program(USER + "test_compile_with_user_stream_context")
def one_side_stream() -> Step:
    def function(x: Any) -> Any:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            a = x * 2
        side.synchronize()
        return a + 1

    return called(function, some())


@program(USER + "test_multiple_stream_contexts")
def two_side_streams() -> Step:
    def function(x: Any) -> Any:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        a = x + 1
        with torch.cuda.stream(one):
            b = x * 2
        with torch.cuda.stream(two):
            c = x * 3
        one.synchronize()
        two.synchronize()
        return a + b + c

    return called(function, some())


@program(USER + "test_nested_stream_contexts")
def nested_streams() -> Step:
    def function(x: Any) -> Any:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(one):
            a = x * 2
            with torch.cuda.stream(two):
                b = x * 3
            c = a + 1
        one.synchronize()
        two.synchronize()
        return a + b + c

    return called(function, some())


@program(USER + "test_stream_context_with_data_dependency")
def a_dependency_without_a_wait() -> Step:
    def function(x: Any) -> Any:
        side = torch.cuda.Stream()
        a = x @ x
        with torch.cuda.stream(side):
            b = a + 1
        side.synchronize()
        return b

    return called(function, some())


@program(USER + "test_event_record_and_wait")
def an_event_to_a_side_stream() -> Step:
    def function(x: Any) -> Any:
        side, ready = torch.cuda.Stream(), torch.cuda.Event()
        a = x * 2
        ready.record()
        with torch.cuda.stream(side):
            ready.wait()
            b = a + 1
        side.synchronize()
        return b

    return called(function, some())


@program(USER + "test_multiple_events_multiple_streams")
def a_chain_of_two_events() -> Step:
    def function(x: Any) -> Any:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        first, second = torch.cuda.Event(), torch.cuda.Event()
        with torch.cuda.stream(one):
            a = x * 2
            first.record(one)
        with torch.cuda.stream(two):
            first.wait(two)
            b = a + 1
            second.record(two)
        second.wait()
        return b + x

    return called(function, some())


@program(USER + "test_stream_wait_event")
def a_stream_waits_for_an_event() -> Step:
    def function(x: Any) -> Any:
        side, ready, done = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
        a = x * 2
        ready.record()
        side.wait_event(ready)
        with torch.cuda.stream(side):
            b = a + 1
            done.record()
        torch.cuda.current_stream().wait_event(done)
        return b * 2

    return called(function, some())


@program(USER + "test_bidirectional_stream_sync")
def there_and_back() -> Step:
    def function(x: Any) -> Any:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        there, back = torch.cuda.Event(), torch.cuda.Event()
        with torch.cuda.stream(one):
            a = x * 2
            there.record(one)
        with torch.cuda.stream(two):
            there.wait(two)
            b = a + 1
            back.record(two)
        with torch.cuda.stream(one):
            back.wait(one)
            c = b * 2
        one.synchronize()
        two.synchronize()
        return c

    return called(function, some())


@program(USER + "test_codegen_structure_three_stream_pipeline")
def three_products_in_a_pipeline() -> Step:
    def function(x: Any, u: Any, v: Any, w: Any) -> Any:
        one, two, three = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
        first, second = torch.cuda.Event(), torch.cuda.Event()
        with torch.cuda.stream(one):
            a = x @ u
            first.record(one)
        with torch.cuda.stream(two):
            first.wait(two)
            b = a @ v
            second.record(two)
        with torch.cuda.stream(three):
            second.wait(three)
            c = b @ w
        three.synchronize()
        return c

    return called(function, some(), some(), some(), some())


@program(USER + "test_parallel_streams_join")
def three_streams_join() -> Step:
    def function(x: Any) -> Any:
        streams = [torch.cuda.Stream() for _ in range(3)]
        events = [torch.cuda.Event() for _ in range(3)]
        with torch.cuda.stream(streams[0]):
            a = x * 2
            events[0].record(streams[0])
        with torch.cuda.stream(streams[1]):
            b = x * 3
            events[1].record(streams[1])
        with torch.cuda.stream(streams[2]):
            c = x * 4
            events[2].record(streams[2])
        events[0].wait()
        events[1].wait()
        events[2].wait()
        return a + b + c

    return called(function, some())


@program(USER + "test_fan_out_fan_in")
def fan_out_and_in() -> Step:
    def function(x: Any) -> Any:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        start, first, second = torch.cuda.Event(), torch.cuda.Event(), torch.cuda.Event()
        a = x * 2
        start.record()
        with torch.cuda.stream(one):
            start.wait(one)
            b = a + 1
            first.record(one)
        with torch.cuda.stream(two):
            start.wait(two)
            c = a + 2
            second.record(two)
        first.wait()
        second.wait()
        return b + c

    return called(function, some())


@program(USER + "test_four_streams_diamond")
def a_diamond_of_four_streams() -> Step:
    def function(x: Any) -> Any:
        one, two, three = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
        start, first, second = torch.cuda.Event(), torch.cuda.Event(), torch.cuda.Event()
        a = x + 1
        start.record()
        with torch.cuda.stream(one):
            start.wait(one)
            b = a * 2
            first.record(one)
        with torch.cuda.stream(two):
            start.wait(two)
            c = a * 3
            second.record(two)
        with torch.cuda.stream(three):
            first.wait(three)
            second.wait(three)
            d = b + c
        three.synchronize()
        return d

    return called(function, some())


@program(USER + "test_stream_reuse_across_iterations")
def an_event_that_is_recorded_again() -> Step:
    def function(x: Any) -> Any:
        side, done = torch.cuda.Stream(), torch.cuda.Event()
        result = x
        for _ in range(3):
            with torch.cuda.stream(side):
                result = result * 2
                done.record(side)
            done.wait()
            result = result + x
            side.wait_stream(torch.cuda.current_stream())
        return result

    return called(function, some())


@program(USER + "test_no_combo_kernel_fusion_across_streams", combo_kernels=True)
def combo_kernels_on_two_streams() -> Step:
    def function(x: Any, y: Any, z: Any, w: Any) -> Any:
        side, done = torch.cuda.Stream(), torch.cuda.Event()
        a, b = x + y, x * y
        with torch.cuda.stream(side):
            c, d = z + w, z * w
            done.record(side)
        done.wait()
        return a + c, b + d

    return called(function, some(), some(), some(), some())


@program(USER + "test_cross_stream_stride_copy")
def a_strided_copy_across_streams() -> Step:
    def function(x: Any) -> Any:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(one):
            a = (x + 1)[:, ::2]
        two.wait_event(one.record_event())
        with torch.cuda.stream(two):
            b = a.contiguous() + 1
        two.synchronize()
        return b

    return called(function, some())


@program(USER + "test_stream_wait_stream_not_dropped")
def a_stream_waits_for_a_stream() -> Step:
    def function(x: Any) -> Any:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(one):
            a = x + 1
        two.wait_stream(one)
        with torch.cuda.stream(two):
            b = a * 2
        torch.cuda.current_stream().wait_stream(two)
        return b - 1

    return called(function, some())


@program(USER + "test_codegen_structure_parallel_matmuls")
def two_products_at_once() -> Step:
    def function(x: Any, u: Any, v: Any) -> Any:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        first, second = torch.cuda.Event(), torch.cuda.Event()
        with torch.cuda.stream(one):
            a = x @ u
            first.record(one)
        with torch.cuda.stream(two):
            b = x @ v
            second.record(two)
        first.wait()
        second.wait()
        return a + b

    return called(function, some(), some(), some())


@program(USER + "TestStreamOrderingStress.test_race_back_to_back")
def chains_of_products() -> Step:
    def chain(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = x @ w
        return x

    def function(x: Any, w: Any) -> Any:
        side, there, back = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
        a = chain(x, w)
        there.record()
        with torch.cuda.stream(side):
            there.wait()
            b = chain(a, w)
            back.record(side)
        back.wait()
        return b + 1

    return called(function, some(), some())


@program(USER + "TestStreamIdentity.test_multiple_stream_identity")
def streams_of_the_caller() -> Step:
    one, two = stream(), stream()

    def function(x: Any) -> Any:
        done, last = torch.cuda.Event(), torch.cuda.Event()
        with torch.cuda.stream(one):
            a = x * 2
            done.record()
        with torch.cuda.stream(two):
            done.wait()
            b = a + 1
            last.record()
        last.wait()
        return b + 1

    return called(function, some())


@program(USER + "test_pdl_mutation_across_streams")
def mutation_across_streams() -> Step:
    def function(x: Any) -> Any:
        side, ready, done = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
        a = x @ x
        ready.record()
        with torch.cuda.stream(side):
            ready.wait()
            a.add_(1)
            done.record()
        done.wait()
        return a.sin()

    return called(function, some())


@program(USER + "TestStreamCudagraphInteraction.test_implicit_current_stream_with_cudagraphs")
def fork_and_join_at_once() -> Step:
    side = stream()

    def function(x: Any, y: Any) -> Any:
        ready, done = torch.cuda.Event(), torch.cuda.Event()
        ready.record()
        with torch.cuda.stream(side):
            ready.wait()
            z = x * 2
            done.record()
        done.wait()
        return z + y

    return called(function, some(), some())


@program(USER + "test_fusion_within_same_stream")
def reductions_and_several_results() -> Step:
    def function(x: Any, y: Any) -> Any:
        side, done = torch.cuda.Stream(), torch.cuda.Event()
        with torch.cuda.stream(side):
            total, largest = x.sum(0), x.amax(1)
            shares = torch.softmax(x, 1)
            done.record()
        mean = y.mean()
        done.wait()
        return total + mean, largest * 2, shares - y

    return called(function, some(512, 512), some(512, 512))


@program(DYNAMO + "test_stream_backward_sync")
def backward_on_two_streams() -> Step:
    x, y = some(requires_grad=True), some(requires_grad=True)

    def function(x: Any, y: Any) -> Any:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        first, second = torch.cuda.Event(), torch.cuda.Event()
        with torch.cuda.stream(one):
            a = (2 * x @ y).sin()
            first.record()
        with torch.cuda.stream(two):
            b = (2 * x @ y).cos()
            second.record()
        first.wait()
        second.wait()
        return a, b

    made = compiled(function)

    def step() -> Any:
        x.grad = y.grad = None
        a, b = made(x, y)
        (a.sum() + b.sum()).backward()
        return x.grad + 1, y.grad + 1

    return step


@program(DYNAMO + "test_record_stream_problem_basic")
def memory_of_another_stream() -> Step:
    one, two = stream(), stream()

    def function(x: Any) -> Any:
        ready, done, last = torch.cuda.Event(), torch.cuda.Event(), torch.cuda.Event()
        with torch.cuda.stream(one):
            y = torch.ones_like(x) @ x
            ready.record()
            z = y * x
            done.record()
        with torch.cuda.stream(two):
            ready.wait()
            w = y * 2 @ x
            last.record()
        done.wait()
        last.wait()
        return z, w

    return called(function, some())


@program(DYNAMO + "test_stream_with_mutation")
def mutation_of_an_argument() -> Step:
    side = stream()
    x, y = some(), some()

    def function(x: Any, y: Any) -> Any:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            a = y @ y
        torch.cuda.current_stream().wait_stream(side)
        return a + y

    made = compiled(function)

    def step() -> Any:
        result = made(x, y)
        y.add_(1)
        return result + x

    return step


@program(USER + "test_generic_stream_with_event")
def an_upload_in_the_function() -> Step:
    host, side = torch.randn(64, 64).pin_memory(), stream()

    def function(host: Any, w: Any) -> Any:
        done = torch.cuda.Event()
        with torch.cuda.stream(side):
            x = host.to("cuda", non_blocking=True)
            done.record()
        done.wait()
        return x @ w

    return called(function, host, some())


# The caller's streams around compiled functions. Here PyTorch 2.11 emits work into several streams, too.


@program(USER + "test_single_stream_identity, the stream entered by the caller")
def compiled_on_a_side_stream() -> Step:
    made, x, side = compiled(lambda x: torch.relu(x * 2 + 1).sum(0)), some(), stream()

    def step() -> Any:
        y = x * 3
        side.wait_stream(torch.cuda.current_stream())
        with on(side):
            z = made(y)
        torch.cuda.current_stream().wait_stream(side)
        return z + 1

    return step


@program(USER + "test_event_record_and_wait, the wait in the graph and the record before it")
def a_wait_in_the_graph() -> Step:
    x, side, ready = some(), stream(), event()

    def function(y: Any, w: Any) -> Any:
        ready.wait()
        return torch.relu(y @ w) + 1

    made, w = compiled(function), some()

    def step() -> Any:
        y = x * 3
        ready.record()
        with on(side):
            z = made(y, w)
        torch.cuda.current_stream().wait_stream(side)
        return z + 1

    return step


@program(USER + "test_event_record_on_stream, the record in the graph and the wait after it")
def a_record_in_the_graph() -> Step:
    x, side, done = some(), stream(), event()

    def function(y: Any) -> Any:
        z = (y @ y).sin()
        done.record()
        return z

    made = compiled(function)

    def step() -> Any:
        side.wait_stream(torch.cuda.current_stream())
        with on(side):
            z = made(x)
        done.wait()
        return z + 1

    return step


@program(USER + "test_three_streams_pipeline, a compiled function for each stream")
def two_compiled_stages() -> Step:
    one, two = stream(), stream()
    first, second = event(), event()

    def produce(x: Any) -> Any:
        y = torch.relu(x @ x)
        first.record()
        return y

    def consume(y: Any) -> Any:
        first.wait()
        z = y.sum(0) + y.amax(0)
        second.record()
        return z

    produced, consumed, x = compiled(produce), compiled(consume), some()

    def step() -> Any:
        results = []
        for _ in range(2):
            with on(one):
                y = produced(x)
            with on(two):
                z = consumed(y)
            second.wait()
            results.append(z + 1)
            one.wait_stream(torch.cuda.current_stream())
        return results

    return step


@program(USER + "test_generic_stream_with_event, an upload a step ahead")
def an_upload_ahead_of_a_compiled_function() -> Step:
    host = [torch.randn(64, 64).pin_memory() for _ in range(2)]
    slots = [torch.empty(64, 64, device="cuda") for _ in range(2)]
    copies, ready, free = stream(), [event(), event()], [event(), event()]
    function, w = compiled(lambda x, w: torch.tanh(x @ w).sum()), some()

    def step() -> Any:
        results = []
        for turn in range(4):
            slot = turn % 2
            with on(copies):
                copies.wait_event(free[slot])
                slots[slot].copy_(host[slot], non_blocking=True)
                ready[slot].record()
            ready[slot].wait()
            results.append(function(slots[slot], w))
            free[slot].record()
        return results

    return step


@program(DYNAMO + "test_stream_backward_simple, the stream entered by the caller")
def a_compiled_backward_on_a_side_stream() -> Step:
    x, w, side = some(), some(requires_grad=True), stream()
    made = compiled(lambda x, w: torch.relu(x @ w).sum())

    def step() -> Any:
        w.grad = None
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with on(side):
            made(y, w).backward()
        torch.cuda.current_stream().wait_stream(side)
        with torch.no_grad():
            w.sub_(w.grad, alpha=0.01)
        return w + 1

    return step


@program(USER + "test_combo_kernel_fusion_within_same_stream, an optimizer's step", combo_kernels=True)
def a_foreach_update_on_a_side_stream() -> Step:
    parameters, gradients = [some(32, 32) for _ in range(4)], [some(32, 32) for _ in range(4)]
    side = stream()

    def function(parameters: Any, gradients: Any) -> None:
        torch._foreach_mul_(gradients, 0.5)
        torch._foreach_sub_(parameters, gradients)

    made = compiled(function)

    def step() -> Any:
        side.wait_stream(torch.cuda.current_stream())
        with on(side):
            made(parameters, gradients)
        torch.cuda.current_stream().wait_stream(side)
        gradients[0].copy_(parameters[0] * 2)
        return [parameter + 1 for parameter in parameters]

    return step


@program(USER + "test_no_buffer_reuse_across_streams, memory handed between streams")
def memory_handed_over_with_record_stream() -> Step:
    made, x, side = compiled(lambda x: (x @ x) * 2), some(), stream()

    def step() -> Any:
        with on(side):
            y = made(x)
        torch.cuda.current_stream().wait_stream(side)
        z = made(y)
        y.record_stream(torch.cuda.current_stream())
        return z + 1

    return step


@program(USER + "test_stream_synchronize_not_dropped, a download that the host reads")
def a_download_of_a_compiled_result() -> Step:
    host = torch.empty(64, 64).pin_memory()
    side, copied = stream(), event()
    made, x = compiled(lambda x: torch.softmax(x @ x, 1)), some()

    def step() -> Any:
        y = made(x)
        side.wait_stream(torch.cuda.current_stream())
        with on(side):
            host.copy_(y, non_blocking=True)
            copied.record()
        copied.synchronize()
        host.add_(1)
        return y + 1

    return step


def _offloaded(sinks: bool) -> Step:
    x, w, v = some(), some(requires_grad=True), some(requires_grad=True)
    made = compiled(lambda x, w, v: (torch.sin(x @ w) @ v).cos().sum())

    def step() -> Any:
        w.grad = v.grad = None
        made(x, w, v).backward()
        return w.grad + 1, v.grad + 1

    return step


@program("dynamo/test_activation_offloading.py test_partitioner_offload_sep_stream", offload="separate")
def offloaded_activations() -> Step:
    return _offloaded(False)


@program("dynamo/test_activation_offloading.py test_partitioner_offload_sep_stream_sink_wait", offload="sunk")
def offloaded_activations_with_late_waits() -> Step:
    return _offloaded(True)
