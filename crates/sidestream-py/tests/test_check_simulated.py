"""GPU programs that are checked without a GPU: the check's reports are right, and the programs run unchanged.
"""

from __future__ import annotations

import copy
import inspect
import io
import json
import subprocess
import sys
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import sidestream
import torch
from forked import python
from planted import programs, streams
from planted.loops import LOOPS
from torch import nn

pytestmark = pytest.mark.torch

RACY = """
import sys
import torch
side = torch.cuda.Stream()
x = torch.ones(1 << 20, device="cuda")
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    y = x * 2
if "right" in sys.argv:
    torch.cuda.current_stream().wait_stream(side)
print(y.sum().item(), y.device)
"""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "sidestream.check", "--simulate", *arguments)


def script(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_script_races_without_a_gpu_and_its_twin_does_not(tmp_path: Path) -> None:
    program = script(tmp_path, RACY)
    racy, right = command(program), command(program, "right")
    assert (racy.returncode, racy.stdout) == (1, "2097152.0 cuda:0\n"), racy.stderr
    assert "RAW on float32[1048576]" in racy.stderr and "y = x * 2" in racy.stderr
    assert "by `torch.cuda.default_stream().wait_stream(side)` before " in racy.stderr
    assert (right.returncode, right.stdout) == (0, "2097152.0 cuda:0\n"), right.stderr
    assert right.stderr == "no race in 4 operations on a simulated GPU\n"


@pytest.mark.parametrize(
    "program", [*streams.PLANTED, *programs.PLANTED], ids=lambda program: program.__name__
)
@pytest.mark.parametrize("right", [False, True], ids=["planted", "repaired"])
def test_the_planted_races_of_a_gpu_are_found(
    program: Any, right: bool, found: sidestream.CheckedRun
) -> None:
    program(right)
    torch.cuda.synchronize()
    assert found.operations
    assert bool(found.races) is not right, str(found)


@pytest.mark.parametrize("loop", [*LOOPS, *programs.LOOPS], ids=lambda loop: loop.__name__)
def test_right_loops_stay_silent(loop: Any, found: sidestream.CheckedRun) -> None:
    loop(20)
    assert found.races == () and found.ended is None and found.skipped == (), str(found)
    assert found.operations >= 20


@pytest.mark.parametrize("right", [False, True], ids=["planted", "repaired"])
def test_what_a_transform_shares_with_the_loop_over_a_prefetcher_is_seen(
    right: bool, found: sidestream.CheckedRun
) -> None:
    scale, body = torch.ones(16, device="cuda"), torch.cuda.current_stream()

    def scaled(batch: Any) -> Any:
        if right:
            torch.cuda.current_stream().wait_stream(body)
        return batch["x"] * scale

    for x in sidestream.prefetch([UserDict(x=torch.ones(16))] * 8, "cuda", transform=scaled):
        scale.add_(x)
    assert bool(found.races) is not right, str(found)


def test_tensors_say_where_they_are(found: sidestream.CheckedRun) -> None:
    host = torch.arange(6.0).view(2, 3)
    x = host.to("cuda")
    assert x.is_cuda and not x.is_cpu and x.device == torch.device("cuda", 0) and x.get_device() == 0
    assert not host.is_cuda and host.cuda(1).device.index == 1 and host.device.type == "cpu"
    same = (
        x[1:],
        x.t(),
        x + 1,
        torch.zeros_like(x),
        x.new_ones(3),
        x.new_tensor([1]),
        x.half().float(),
        x.type_as(x.int()),
    )
    assert all(each.is_cuda for each in same)
    assert all(torch.nn.functional.one_hot(x.long()).is_cuda for _ in range(2))
    made = (
        torch.tensor([1, 2], device="cuda"),
        torch.as_tensor([3.0], device="cuda:1"),
        torch.randperm(4, device="cuda"),
    )
    assert [each.device.index for each in made] == [0, 1, 0]
    assert x.to(torch.float16).device.type == x.to(copy=True).device.type == "cuda"
    assert (
        x.to(host).device.type == x.cpu().device.type == "cpu"
        and x.to("cpu", torch.int64).tolist() == [[0, 1, 2], [3, 4, 5]]
    )
    assert (
        x.type() == "torch.cuda.FloatTensor"
        and x.tolist() == host.tolist()
        and str(x).endswith("device='cuda:0')")
    )
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(
        RuntimeError,
        match=r"invalid device ordinal: cuda:2 of 2 simulated; simulate more of them with --devices",
    ):
        host.to("cuda:2")
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda and torch.tensor(1.0).is_cuda


def test_no_verdict_is_made_of_the_processors_times(silent: sidestream.CheckedRun) -> None:
    why = "times are the processor's: the simulated GPU has none"
    x = torch.ones(64, 64, device="cuda")
    measured = sidestream.benchmark(torch.mm, x, x, repeat=2, flops=2 * 64**3)
    assert measured.roofline is None and not measured.is_launch_bound and why in str(measured)
    compared = sidestream.compare(lambda: x @ x, lambda: x @ x @ x @ x, seconds=0.2)
    assert compared.verdict == "unknown"
    assert str(compared).startswith(f"cannot tell which is faster: {why}\n")
    swept = sidestream.Pipeline.sweep(
        [torch.relu, torch.exp], lambda size: torch.ones(size), sizes=(4,), measure=1
    )
    pipe = sidestream.Pipeline([torch.relu, torch.exp])
    assert len(list(pipe([torch.ones(4)] * 3))) == 3 and why in pipe.choice.notes
    (row,) = swept.rows
    assert row.gain is None and row.verdict == f"no figures: {why}" and silent.operations


def test_models_are_copied_saved_and_loaded_with_their_device(found: sidestream.CheckedRun) -> None:
    model = torch.nn.Linear(3, 2).cuda()
    assert all(value.is_cuda for value in copy.deepcopy(model).state_dict().values())
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    for where, kind in ((None, "cuda"), ("cpu", "cpu"), ("cuda:1", "cuda")):
        saved.seek(0)
        loaded = torch.load(saved, map_location=where)["weight"]
        assert loaded.device.type == kind and torch.equal(loaded.cpu(), model.weight.cpu())
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.ones(1, 3, device="cuda")).sum().backward()
    optimizer.step()
    assert all(part.is_cuda for state in optimizer.state_dict()["state"].values() for part in state.values())
    assert model.weight.grad is not None and model.weight.grad.is_cuda


def test_mixed_precision_checkpoints_and_hooks(found: sidestream.CheckedRun) -> None:
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    seen: list[Any] = []
    model[0].register_forward_hook(lambda module, args, result: seen.append(result.device.type))
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            x = checkpoint(model[0], torch.ones(3, 4, device="cuda"), use_reentrant=False)
            loss = model[1:](x)
            assert loss.dtype is torch.float16
        scaler.scale(loss.float().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert set(seen) == {"cuda"} and found.races == ()
    assert (
        torch.cuda.memory_allocated() > 0
        and torch.cuda.max_memory_allocated() <= torch.cuda.memory_reserved()
    )
    assert torch.cuda.get_device_properties(0).major == 9 and "simulated" in torch.cuda.get_device_name()


def test_what_pytorch_makes_for_a_tensor_lies_where_the_tensor_does(found: sidestream.CheckedRun) -> None:
    q = torch.randn(1, 2, 4, 8, device="cuda", requires_grad=True)
    nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).sum().backward()
    # PyTorch's engine itself copies the gradient into another layout.
    assert q.grad is not None and q.grad.is_cuda
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 2, 4, device="cuda"), torch.tensor([3, 2]))
    results, state = nn.GRU(4, 8).cuda()(packed)
    assert results.data.is_cuda and state.is_cuda and not results.batch_sizes.is_cuda
    lazy = nn.LazyLinear(3).cuda()
    assert lazy(torch.ones(1, 2, device="cuda")).is_cuda and lazy.weight.is_cuda
    assert torch.compile(lambda x: x + 1)(torch.ones(3, device="cuda")).is_cuda
    host = torch.empty(3).copy_(torch.ones(3, device="cuda"))
    assert not host.is_cuda and found.races == ()


def test_a_gradient_goes_back_to_the_device_that_it_belongs_to(found: sidestream.CheckedRun) -> None:
    weight = torch.ones(3, requires_grad=True)
    (weight.cuda() * 2).sum().backward()
    assert weight.grad is not None and weight.grad.device.type == "cpu" and weight.grad.tolist() == [2, 2, 2]


def test_a_graph_does_at_each_replay_what_was_captured(found: sidestream.CheckedRun) -> None:
    x, total = torch.zeros(4, device="cuda"), torch.zeros((), device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Since PyTorch 2.15, the kernels of a graph may be annotated.
    can = "enable_annotations" in inspect.signature(torch.cuda.graph).parameters
    with torch.cuda.graph(graph, **({"enable_annotations": True} if can else {})):
        y = x * 2 + 1
        total += y.sum()
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            total.item()
    # The captured work did not run.
    assert total.item() == 0
    for value in (1, 2):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value + 1] * 4
    assert total.item() == 4 * 3 + 4 * 5


def test_memory_is_used_again_as_the_caching_allocator_does(found: sidestream.CheckedRun) -> None:
    side = torch.cuda.Stream()
    x = torch.empty(300, device="cuda")
    at = x.data_ptr()
    # Sizes are rounded to 512 bytes, small ones share a segment of 2 MiB, and views keep their addresses.
    assert torch.empty(1, device="cuda").data_ptr() == at + 1536 and x[2:].data_ptr() == at + 8
    del x
    with torch.cuda.stream(side):
        assert torch.empty(300, device="cuda").data_ptr() != at
    assert torch.empty(200, device="cuda").data_ptr() == at
    assert torch.empty(3 << 20, dtype=torch.uint8, device="cuda").data_ptr() % (2 << 20) == 0
    assert torch.cuda.memory_reserved() == (2 << 20) + (2 << 20) + (20 << 20)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_memory_that_was_noted_is_used_again_when_the_host_has_waited(found: sidestream.CheckedRun) -> None:
    def memory() -> Any:
        return torch.empty(1000, device="cuda")

    side = torch.cuda.Stream()
    x = memory()
    at = x.data_ptr()
    x.record_stream(side)
    event = side.record_event()
    del x
    # A record before the memory was freed proves nothing.
    event.synchronize()
    assert memory().data_ptr() != at
    side.synchronize()
    assert memory().data_ptr() == at
    x = memory()
    x.record_stream(side)
    del x
    # A host is never that many launches ahead.
    assert at not in {memory().data_ptr() for _ in range(1000)}
    assert at in {memory().data_ptr() for _ in range(100)}


@pytest.mark.parametrize(
    ("copy", "waits"),
    [
        (lambda host, y: torch._foreach_copy_([host], [y]), True),
        (lambda host, y: torch._foreach_copy_([host], [y], non_blocking=True), False),
        (lambda host, y: host.copy_(y.double(), non_blocking=True), False),
        (lambda host, y: host.t().copy_(y, non_blocking=True), True),
    ],
)
def test_memory_is_used_again_after_a_copy_that_the_host_waits_for(
    copy: Any, waits: bool, found: sidestream.CheckedRun
) -> None:
    side, host, y = torch.cuda.Stream(), torch.empty(8, 8).pin_memory(), torch.zeros(8, 8, device="cuda")
    x = torch.empty(1000, device="cuda")
    at = x.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    x.record_stream(side)
    del x
    with torch.cuda.stream(side):
        copy(host, y)
    assert (torch.empty(1000, device="cuda").data_ptr() == at) is waits


def test_pinned_memory_is_pinned_and_used_again(found: sidestream.CheckedRun) -> None:
    x = torch.arange(5).pin_memory()
    at = x.data_ptr()
    assert x.is_pinned() and x[1:].is_pinned() and x.tolist() == [0, 1, 2, 3, 4] and x.numpy()[3] == 3
    assert not torch.arange(5).is_pinned() and torch.empty(3, pin_memory=True).is_pinned()
    del x
    assert torch.zeros(4, dtype=torch.int64, pin_memory=True).data_ptr() == at
    assert torch.ones(3, device="cuda").to("cpu", non_blocking=True).is_pinned()


def test_a_loader_pins_its_batches_with_workers_and_without(found: sidestream.CheckedRun) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.arange(12.0))
    for workers in (0, 2):
        batches = [batch for (batch,) in DataLoader(data, batch_size=4, num_workers=workers, pin_memory=True)]
        assert [batch.is_pinned() for batch in batches] == [True] * 3 and sum(
            batch.sum().item() for batch in batches
        ) == 66


def test_backward_runs_on_the_streams_of_forward(found: sidestream.CheckedRun) -> None:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    weight = torch.ones(4, device="cuda", requires_grad=True)
    seen: list[tuple[str, bool]] = []

    def note(name: str) -> Any:
        return lambda _: seen.append((name, torch.cuda.current_stream() == side))

    a = weight * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        b = a * 3
    main.wait_stream(side)
    c = b * 5
    for name, tensor in (("a", a), ("b", b), ("c", c)):
        tensor.register_hook(note(name))
    c.sum().backward()
    # The gradient of `a` comes from the stream on which `b` was made, and is received by the node that made
    # `a`.
    assert seen == [("c", False), ("b", True), ("a", False)]
    assert weight.grad is not None and weight.grad.tolist() == [30] * 4
    assert found.races == (), str(found)


def test_a_function_may_keep_a_name_in_its_node(found: sidestream.CheckedRun) -> None:
    class Named(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.name = "mlp"
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            assert ctx.name == "mlp"
            return gradient * 2

    w = torch.ones(8, device="cuda", requires_grad=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        Named.apply(w).sum().backward()
    assert w.grad.tolist() == [2.0] * 8


def test_gradients_are_waited_for_by_the_caller_only(found: sidestream.CheckedRun) -> None:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    weight = torch.ones(4, device="cuda", requires_grad=True)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        loss = (weight * 2).sum()
    main.wait_stream(side)
    loss.backward()
    assert weight.grad is not None
    weight.grad.add_(1)
    assert not found.races, str(found)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        (weight * 2).sum().backward()
    weight.grad.add_(1)
    races = found.races
    assert [race.second.operator for race in races] == ["add_"], str(found)


def test_the_runtime_pins_memory_where_it_is(found: sidestream.CheckedRun) -> None:
    host, runtime = torch.zeros(1000), torch.cuda.cudart()
    assert not host.is_pinned() and not torch.zeros(2, device="cuda").is_pinned()
    assert runtime.cudaHostRegister(host.data_ptr(), 4000, 0) == runtime.cudaError.success
    assert host.is_pinned() and host[10:].is_pinned() and host.untyped_storage().is_pinned()
    assert int(runtime.cudaHostRegister(host[5:].data_ptr(), 8, 0)) == 712
    torch.cuda.check_error(runtime.cudaHostUnregister(host.data_ptr()))
    assert not host.is_pinned() and runtime.cudaMemGetInfo(0)[1] > 0
    with pytest.raises(RuntimeError, match="hostMemoryNotRegistered"):
        torch.cuda.check_error(int(runtime.cudaHostUnregister(host.data_ptr())))
    with pytest.raises(RuntimeError, match=r"not simulated: torch.cuda.cudart\(\).cudaStreamCreate"):
        runtime.cudaStreamCreate(0)


@pytest.mark.parametrize("right", [False, True])
def test_streams_and_events_of_any_device_are_the_simulated_ones(right: bool) -> None:
    with sidestream.check(simulate=True) as found:
        import torch

        side, copied = torch.Stream(), torch.Event("cuda")
        assert isinstance(side, torch.Stream) and isinstance(torch.cuda.current_stream(), torch.Stream)
        assert issubclass(torch.cuda.Stream, torch.Stream) and isinstance(copied, torch.Event)
        assert side.device == torch.device("cuda", 0) and torch.Stream("cpu").device.type == "cpu"
        with side:
            x = torch.ones(1 << 20).pin_memory().to("cuda", non_blocking=True)
            copied.record()
        if right:
            torch.accelerator.current_stream().wait_event(copied)
        x * 2
    assert [race.kind for race in found.races] == ([] if right else ["RAW"]), str(found)


def test_the_profiler_has_the_processors_part(capfd: pytest.CaptureFixture[str]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with sidestream.check(simulate=True) as found:
        import torch

        x = torch.ones(8, device="cuda")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
            x.sum()
        with torch.autograd.profiler.profile(use_device="cuda"):
            x.sum()
    assert found.operations == 3 and "aten::sum" in seen.key_averages().table(sort_by="cuda_time_total")
    assert "Failed to record CUDA event" not in capfd.readouterr().err


#: Hides the parts that PyTorch's CPU build does not have.
WITHOUT_CUDA = """
import importlib.abc, sys
GONE = (
    "_cuda", "_Cuda", "_CUDA", "_cudnn", "_nccl", "_nvtx", "_MemPool", "_host_emptyCache",
    "_activate_gpu_trace", "_broadcast", "_scatter", "_gather",
)
class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch.cuda":
            core = sys.modules["torch._C"]
            for each in [
                each for each in vars(core) if each.startswith(GONE) and "cudnn_benchmark" not in each
            ]:
                delattr(core, each)
            core._has_cuda = core.has_cuda = False
sys.meta_path.insert(0, Without())
import torch
torch.version.cuda = None
assert not hasattr(torch._C, "_cuda_init") and not torch.cuda.is_available()
import sidestream
with sidestream.check(simulate=True) as found:
    side, event, graph = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.CUDAGraph()
    x, host = torch.ones(8, device="cuda"), torch.ones(8).pin_memory()
    x.copy_(host, non_blocking=True)
    with torch.cuda.stream(side):
        y = x * 2
    event.record()
    event.synchronize()
    model = torch.nn.Linear(4, 4).cuda()
    with torch.autocast("cuda"):
        torch.amp.GradScaler("cuda").scale(model(torch.ones(2, 4, device="cuda")).sum()).backward()
    torch.optim.Adam(model.parameters()).step()
    with torch.cuda.graph(graph):
        z = x + 1
    graph.replay()
    assert int(torch.cuda.cudart().cudaHostRegister(torch.ones(8).data_ptr(), 32, 0)) == 0
    assert torch.cuda.memory_allocated() and torch.cuda.get_device_name().endswith("(simulated)")
print(*(race.kind for race in found.races))
assert not torch.cuda.is_available() and not hasattr(torch._C, "_cuda_init")
"""


def test_a_build_of_pytorch_without_cuda_is_enough(tmp_path: Path) -> None:
    # The import hook must be installed before PyTorch is loaded.
    ran = subprocess.run(
        [sys.executable, script(tmp_path, WITHOUT_CUDA)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "RAW\n"), ran.stderr


def test_time_is_refused_before_it_is_known(found: sidestream.CheckedRun) -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(3, device="cuda").add_(1)
    end.record()
    with pytest.raises(RuntimeError, match="device not ready"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) > 0 and end.query()


def test_all_is_put_back() -> None:
    def state() -> list[Any]:
        tensor = [torch.Tensor.__dict__.get(name) for name in ("device", "to", "data_ptr", "is_cuda")]
        module = [
            torch.cuda.is_available(),
            torch.cuda.Stream,
            torch.cuda.CUDAGraph,
            torch.cuda.is_initialized(),
        ]
        return [
            *tensor,
            *module,
            torch.Generator,
            torch.tensor,
            torch._C._cuda_getDeviceCount,
            torch.UntypedStorage.__dict__.get("device"),
        ]

    before = state()
    with pytest.raises(ZeroDivisionError), sidestream.check(simulate=True):
        assert state() != before and torch.cuda.is_available()
        x = torch.ones(3, device="cuda")
        _ = 1 / 0
    assert state() == before
    # Tensors that outlive the simulation are CPU tensors.
    assert x.device.type == "cpu" and x.tolist() == [1, 1, 1] and torch.UntypedStorage(4).nbytes() == 4


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import torch.distributed as d\nd.init_process_group('nccl')", "not simulated: NCCL"),
        (
            "from torch.nn.parallel.comm import broadcast\nimport torch\n"
            "broadcast(torch.ones(1, device='cuda'), [0])",
            "not simulated: torch.nn.parallel",
        ),
        (
            "from torch.utils.cpp_extension import load\nload('x', ['x.cu'])",
            "not simulated: an extension in C++ or CUDA",
        ),
        ("import cupy", "not simulated: cupy: CuPy calls CUDA itself"),
    ],
)
def test_what_is_not_simulated_is_named_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "cupy.py").write_text("", encoding="utf-8")
    program = script(tmp_path, text)
    ran = command(program)
    assert ran.returncode == 3 and why in ran.stderr and f"{program}:{len(text.splitlines())}" in ran.stderr
    lines = text.splitlines()
    lines[-1] = f"try:\n    {lines[-1]}\nexcept Exception:\n    print('goes on')"
    ran = command(script(tmp_path, "\n".join(lines)))
    assert (ran.returncode, ran.stdout) == (3, "goes on\n") and why in ran.stderr


@pytest.mark.parametrize(
    ("wrong", "kind", "why"),
    [
        ({"simulate": "yes"}, TypeError, "simulate is 'yes'; give True, False, or how many GPUs"),
        ({"simulate": -1}, ValueError, "simulate is -1"),
        ({"simulate": 65}, ValueError, "simulate is 65; give at most 64 GPUs"),
    ],
)
def test_a_number_of_gpus_that_means_nothing_is_refused(
    wrong: dict[str, Any], kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why):
        sidestream.check(**wrong)


def test_the_command_simulates_as_many_gpus_as_it_is_told(tmp_path: Path) -> None:
    program = script(
        tmp_path, "import torch\nprint(torch.cuda.device_count(), torch.ones(1, device='cuda:2').device)"
    )
    assert command("--devices", "3", program).stdout == "3 cuda:2\n"
    ran = command("--devices", "0", program)
    assert ran.returncode == 2 and "--devices 0: give a number from 1 to 64" in ran.stderr
    ran = python("-m", "sidestream.check", "--devices", "2", program)
    assert ran.returncode == 2 and "add --simulate" in ran.stderr


def test_the_blocks_of_a_text_are_checked_each_by_itself(tmp_path: Path) -> None:
    wait = "torch.cuda.current_stream().wait_stream(side)"
    block = f"""```python
import torch
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    x = torch.ones(8, device="cuda")
{wait}
x.sum()
```
"""
    text = tmp_path / "notes.md"
    racy = block.replace(wait, "y = 1")
    text.write_text(f"# Notes\n\n{racy}\nWith the wait:\n\n{block}\n```cpp\nint x;\n```\n", encoding="utf-8")
    ran = command(str(text))
    assert ran.returncode == 1 and "Traceback" not in ran.stderr, ran.stderr
    assert (
        f"{text}:4: 1 race" in ran.stderr
        and f"{text}:15: no race in 2 operations on a simulated GPU" in ran.stderr
    )
    assert "notes.md:9: x.sum()" in ran.stderr
    text.write_text(block, encoding="utf-8")
    assert command(str(text)).returncode == 0
    text.write_text(block + "\n```py\nmodel(x)\n```\n", encoding="utf-8")
    ran = command(str(text))
    assert ran.returncode == 3 and "it ended with NameError: name 'model' is not defined" in ran.stderr
    ran = python("-m", "sidestream.check", text)
    assert ran.returncode == 2 and "give --simulate to check its Python code blocks" in ran.stderr


@pytest.mark.parametrize(
    "waits",
    [
        "x.nonzero()",
        "x.masked_select(x > 0)",
        "x.unique()",
        "x.int().bincount()",
        "x.sum().item()",
        "x[x > 0]",
        "x[None, x > 0]",
        "x[[3, 4]]",
        "x.__setitem__(x > 0, x.new_ones(()))",
        "x.index_put_((x > 0,), x.new_ones(1), accumulate=True)",
    ],
)
def test_what_depends_on_values_waits_for_them(waits: str, found: sidestream.CheckedRun) -> None:
    host = torch.ones(1 << 16, pin_memory=True)
    x = torch.empty(1 << 16, device="cuda")
    x.copy_(host, non_blocking=True)
    eval(waits, {"x": x})
    host.numpy()[7] = 2
    torch.cuda.synchronize()
    assert not found.races, str(found)
    x.copy_(host, non_blocking=True)
    x.add_(1)
    host.numpy()[7] = 3
    torch.cuda.synchronize()
    assert [race.kind for race in found.races] == ["HOST_WAR"], str(found)


@pytest.mark.parametrize("index", ["x[x.long()]", "x.__setitem__(x > 2, 0.0)", "x[3:7]", "x[5]"])
def test_an_index_whose_size_is_known_does_not_wait(index: str, found: sidestream.CheckedRun) -> None:
    host = torch.ones(1 << 16, pin_memory=True)
    x = torch.empty(1 << 16, device="cuda")
    x.copy_(host, non_blocking=True)
    eval(index, {"x": x})
    host.numpy()[7] = 2
    torch.cuda.synchronize()
    assert [race.kind for race in found.races] == ["HOST_WAR"], str(found)


def test_what_says_nothing_together_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.md"
    text.write_bytes(b"# caf\xe9\n")
    unread = command(str(text))
    assert unread.returncode == 2 and "cannot be read as UTF-8 text" in unread.stderr, unread.stderr
    unfit = command("--fix", "--steps", "0:3", str(text))
    assert unfit.returncode == 2 and "leave out --fix, --steps" in unfit.stderr, unfit.stderr
    both = command("--require-gpu", script(tmp_path, RACY))
    assert both.returncode == 2 and "give one of the two" in both.stderr, both.stderr


def test_a_seed_is_taken_after_a_simulation_of_more_gpus() -> None:
    for count in (2, 1):
        with sidestream.check(simulate=count):
            torch.ones(1, device="cuda")
            torch.manual_seed(0)
            torch.cuda.manual_seed_all(0)
            assert torch.cuda.device_count() == count


@pytest.mark.parametrize("right", [False, True])
def test_inference_mode_hides_no_copy_and_no_wait(right: bool) -> None:
    """In inference mode PyTorch passes `x.to("cuda")`, `y.item()` and `y.cpu()` to a mode as single calls,
    not as the operators that they consist of.
    """
    for wait in ("item", "cpu"):
        with sidestream.check(simulate=1) as found, torch.inference_mode():
            host = torch.ones(1 << 16).pin_memory()
            for _ in range(3):
                y = host.to("cuda", non_blocking=True).reshape(256, 256).T.contiguous().sum()
                if right:
                    getattr(y, wait)()
                host.add_(1)
        assert bool(found.races) is not right, str(found)
        assert all(race.kind == "HOST_WAR" for race in found.races), str(found)


def test_a_capture_of_one_thread_leaves_the_others_alone() -> None:
    """Work of another thread on its own stream during the capture is not part of the graph."""
    import threading

    with sidestream.check(simulate=1) as found:
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        graph = torch.cuda.CUDAGraph()
        x, y = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        turns = [threading.Event(), threading.Event()]

        def beside() -> None:
            turns[0].wait()
            with torch.cuda.stream(streams[1]):
                y.add_(1)
            turns[1].set()

        thread = threading.Thread(target=beside)
        thread.start()
        with torch.cuda.stream(streams[0]):
            graph.capture_begin(capture_error_mode="thread_local")
            x.add_(1)
            turns[0].set()
            turns[1].wait()
            graph.capture_end()
        thread.join()
        with torch.cuda.stream(streams[0]):
            graph.replay()
        with torch.cuda.stream(streams[1]):
            y.add_(1)
            assert y.tolist() == [3.0] * 8
        streams[0].synchronize()
        assert x.tolist() == [2.0] * 8
    assert not found.races, str(found)


def test_a_checkpoint_computes_all_again_and_is_put_back() -> None:
    """An exception that ends the forward pass early would be lost on a GPU, where freed memory is reported by
    calls to Python.
    """
    from torch.utils import checkpoint

    before = checkpoint._enable_checkpoint_early_stop
    computed = []

    def double(x: Any) -> Any:
        y = x * 2
        computed.append("y")
        z = y.sin()
        computed.append("z")
        return z + 1

    with sidestream.check(simulate=1) as found:
        x = torch.ones(8, device="cuda", requires_grad=True)
        checkpoint.checkpoint(double, x, use_reentrant=False).sum().backward()
    assert computed == ["y", "z"] * 2
    assert checkpoint._enable_checkpoint_early_stop is before
    assert not found.races


def test_a_full_disk_is_said_and_leaves_no_half_file(tmp_path: Path) -> None:
    """A limit on the size of files has the effect of a full disk. The program sets the limit for the rest of
    the process."""
    script, report, race = (tmp_path / name for name in ("loop.py", "report.json", "race.yaml"))
    script.write_text(
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))\n" + RACY
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        # The output goes to pipes, which have no size limit.
        command = [
            sys.executable,
            "-m",
            "sidestream.check",
            "--simulate",
            "--json",
            str(report),
            "--reduce",
            str(race),
            str(script),
            *words,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    right, racy = run("right"), run()
    assert (right.returncode, racy.returncode) == (2, 1)
    for done in (right, racy):
        assert f"the report cannot be written to {report}: [Errno 27] File too large" in done.stderr
    assert f"--reduce {race}: [Errno 27] File too large" in racy.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["loop.py", "report.json"]
    # The report that was updated while the program ran may have been written before the limit was set: then
    # it is complete, and says so.
    kept = report.read_text()
    assert not kept or json.loads(kept)["ended"] == "the program had not ended when this was written"


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_writes_its_statistics_only_in_training(training: bool) -> None:
    with sidestream.check(simulate=True) as found:
        norm = torch.nn.BatchNorm2d(2).cuda().train(training)
        x = torch.ones(1, 2, 2, 2, device="cuda")
        streams = torch.cuda.Stream(), torch.cuda.Stream()
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream), torch.no_grad():
                norm(x)
        torch.cuda.synchronize()
    assert bool(found.races) is training, str(found)
