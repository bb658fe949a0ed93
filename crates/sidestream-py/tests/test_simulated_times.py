"""``profile`` and ``diagnose --simulate``: programs on a simulated GPU that has times."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sidestream
import torch

pytestmark = pytest.mark.torch

#: Steps of a loop that uploads from pageable memory, and reads its loss after each step.
LOOP = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(4096, 1024)

def step():
    with torch.profiler.record_function("train"):
        loss = model(data.cuda()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
"""


@pytest.mark.parametrize("shapes", [False, True])
def test_a_profile_diagnoses_the_simulated_steps(shapes: bool, tmp_path: Path) -> None:
    path, marks = tmp_path / "trace.json.gz", list[int]()
    with sidestream.simulate("sim:h100", shapes=shapes) as simulated:
        exec(LOOP, program := dict[str, object]())
        with sidestream.profile(steps=5, path=path) as profiled:
            for _ in range(8):
                program["step"]()  # type: ignore[operator]
                profiled.step()
                marks.append(simulated.now_ns[1])
    found = profiled.diagnosis
    assert found is not None and found.steps.count == 5
    assert found.steps.mean_ns == pytest.approx((marks[-1] - marks[0]) / (len(marks) - 1), rel=0.01)
    assert found.replay.replayed_ns == pytest.approx(found.replay.measured_ns, rel=0.01)
    assert found.findings[0].code == "PAGEABLE_COPY"
    assert [row.name for row in found.table("ranges").rows].count("train") == 1
    assert "first:  the GPU was simulated, with a host as" in str(sidestream.diagnose(path))


@pytest.mark.parametrize("shapes", [False, True])
def test_a_value_that_is_asked_for_is_a_synchronization(shapes: bool, tmp_path: Path) -> None:
    with sidestream.simulate("sim:h100", shapes=shapes) as simulated:
        exec(LOOP.replace("4096, 1024)", "4096, 1024).cuda()"), program := dict[str, object]())
        with sidestream.profile(steps=3, path=tmp_path / "trace.json") as profiled:
            for _ in range(6):
                program["step"]()  # type: ignore[operator]
                profiled.step()
    assert profiled.diagnosis is not None
    codes = {finding.code for finding in profiled.diagnosis.findings}
    assert "SYNC_IN_STEP" in codes and "BLOCKING_COPY" not in codes
    assert simulated.values_asked == (("<string>:13",) if shapes else ())
    assert ("are 0 (<string>:13)" in str(profiled.diagnosis)) == shapes


def test_a_module_keeps_its_parameters_when_it_moves() -> None:
    with sidestream.simulate("sim:h100", shapes=True):
        embedding, head = torch.nn.Embedding(100, 32), torch.nn.Linear(32, 100, bias=False)
        head.weight = embedding.weight
        model = torch.nn.Sequential(embedding, head)
        optimizer = torch.optim.AdamW(model.parameters())
        model.cuda()
        assert head.weight is embedding.weight and head.weight.is_cuda
        model(torch.randint(100, (8,), device="cuda")).sum().backward()
        optimizer.step()
        assert list(optimizer.state) == [head.weight]
        assert copy.deepcopy(model)[1].weight.is_cuda
        assert "tensor(" in repr(model.cpu()[1].weight.cuda())
        # The graph of the weight refers to its parts, which cannot be kept.
        with pytest.warns(FutureWarning, match="deprecated"):
            normed = torch.nn.utils.weight_norm(torch.nn.Linear(4, 4))
        assert normed.cuda().weight_g.is_cuda
    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_a_loop_that_needs_values_is_computed_with_values() -> None:
    weight = torch.randn(64, 64)

    def step(batch: torch.Tensor) -> None:
        assert torch.isfinite(batch @ weight).all()

    found = sidestream.overlap(step, [torch.randn(64, 64)], device="sim:h100")
    assert "computed with values" in found.notes[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("before", [False, True])
def test_compiled_operators_become_few_kernels(before: bool) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = x.sin() * 2
        return x

    compiled = torch.compile(chain) if before else None
    with sidestream.simulate("sim:h100", shapes=True) as simulated:
        x = torch.randn(4096, 4096, device="cuda", requires_grad=True)
        marks = []
        for run in (chain, compiled or torch.compile(chain)):
            marks += [(simulated.now_ns[1], simulated.kernels_ns)]
            run(x).backward(x)
        marks += [(simulated.now_ns[1], simulated.kernels_ns)]
        (eager, eager_kernels), (fused, kernels) = (
            [after - start for start, after in zip(*pair, strict=True)]
            for pair in zip(marks, marks[1:], strict=False)
        )
    assert 2 * fused < eager and 8 * kernels < eager_kernels
    assert "compiled code" in simulated.notes[0]


def test_steps_are_timed_in_virtual_time_if_asked() -> None:
    with sidestream.simulate("sim:h100", shapes=True):
        exec(LOOP, program := dict[str, object]())
        with sidestream.profile(steps=2, timed=37) as profiled:
            for _ in range(40):
                program["step"]()  # type: ignore[operator]
                profiled.step()
    assert profiled.unprofiled is not None and profiled.diagnosis is not None
    assert profiled.unprofiled.median_ns == pytest.approx(profiled.diagnosis.steps.mean_ns, rel=0.01)


def command(*words: object) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "sidestream", *words)
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


def test_the_command_diagnoses_a_program_on_a_device_that_was_measured(tmp_path: Path) -> None:
    script, profile, trace = tmp_path / "train.py", tmp_path / "mine.toml", tmp_path / "trace.json"
    script.write_text(
        f"import sys\n{LOOP}\nfor _ in range(6):\n    step()\nprint(sys.argv[1:])\nsys.exit(5)\n"
    )
    profile.write_text(
        command("devices", "--profile", "h100").stdout.replace("name = ", "name = 'Mine' # ", 1)
    )
    built_in = Path(sidestream.__file__).parent / "_simulated" / "tables" / "h100.json"
    profile.with_suffix(".torch.json").write_text(built_in.read_text())
    options = [f"--simulate={profile}", "--shapes", "-o", trace]
    ran = command("diagnose", *options, script, "--lr", "1")
    assert ran.returncode == 5, ran.stderr
    assert ran.stdout.startswith("['--lr', '1']\n")
    assert "steps   6 by annotation" in ran.stdout and "device  0 (Mine)" in ran.stdout
    assert "PAGEABLE_COPY" in ran.stdout and sidestream.diagnose(trace).steps.count == 6

    script.write_text(f"{LOOP}\nfor _ in range(6):\n    step()\nraise ValueError('boom')\n")
    ran = command("diagnose", "--simulate=h100", "--json", "--", sys.executable, "-u", script)
    assert ran.returncode == 1 and "ValueError: boom" in ran.stderr
    assert json.loads(ran.stdout)["steps"]["count"] == 6


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--simulate=h100"], "name it after `--`"),
        (["--simulate=h100", "--", "-m"], "name it after `--`"),
        (["--simulate=h100", "none.py"], "there is no file none.py"),
        (["--simulate=none.toml", __file__], "none.toml"),
        (["--simulate=h100", "-m", "json.tool", "--help"], "the program ran nothing on a GPU"),
    ],
)
def test_what_cannot_be_simulated_says_why(words: list[str], why: str) -> None:
    ran = command("diagnose", *words)
    assert ran.returncode == 2 and why in ran.stderr, ran.stderr


def test_only_a_gpu_is_measured(tmp_path: Path) -> None:
    words = ["devices", "--measure", "sim:h200", "-o", tmp_path / "mine.toml"]
    assert "--output is for a GPU" in command(*words).stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shapes", [False, True])
def test_a_replay_takes_one_launch_and_the_time_of_its_kernels(shapes: bool) -> None:
    import torch

    with sidestream.simulate("sim:h200", shapes=shapes) as simulated, torch.no_grad():
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20))).cuda()
        x = torch.ones(8, 256, device="cuda")

        def took_ns(run: Callable[[], object]) -> float:
            torch.cuda.synchronize()
            before = simulated.now_ns[1], simulated.kernels_ns
            run()
            torch.cuda.synchronize()
            took.append(simulated.now_ns[1] - before[0])
            return simulated.kernels_ns - before[1]

        took = list[float]()
        kernels_ns = took_ns(lambda: model(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured_ns = simulated.kernels_ns
            result = model(x)
            assert simulated.kernels_ns == captured_ns
        assert took_ns(graph.replay) == pytest.approx(kernels_ns)
        # Kernels of a graph follow each other 0.7 µs sooner.
        assert kernels_ns - 20 * 700 < took[1] < kernels_ns + 10e3 < took[0]
        x.mul_(2.0)
        graph.replay()
        assert shapes or torch.equal(result, model(x))


def test_a_batcher_reports_the_times_of_the_device_alone() -> None:
    import torch

    def computed_ms(size: int) -> float:
        with (
            sidestream.simulate("sim:h200"),
            sidestream.Batcher(model := torch.nn.Linear(4096, 4096).cuda(), (size,), slots=1) as batcher,
            ThreadPoolExecutor(4) as clients,
        ):
            rows = list(torch.randn(8, 4096))
            got = list(clients.map(lambda row: batcher.submit(row).result(timeout=60), rows))
            assert all(
                map(torch.allclose, got, model(torch.stack(rows).cuda()).cpu(), [1e-4] * 8, [1e-5] * 8)
            )
            times = batcher.statistics
            assert times.answered == 8 and times.compute.count == sum(times.batches.values())
            assert times.queue.count == times.total.count == 0 and not batcher.not_captured
            return times.compute.quantile_s(0.0) * 1e3

    assert 0.005 < computed_ms(1) < computed_ms(512) / 2 < 1.0


def test_operators_of_other_threads_take_time() -> None:
    import torch

    # The thread outlives the first simulation.
    with ThreadPoolExecutor(1) as others:
        for _ in range(2):
            with sidestream.simulate("sim:h200", shapes=True) as simulated:
                x = torch.ones(4096, 4096, device="cuda")
                here_ns = -simulated.kernels_ns
                x @ x
                here_ns += simulated.kernels_ns
                others.submit(torch.matmul, x, x).result()
                assert simulated.kernels_ns == pytest.approx(2 * here_ns, rel=0.05)
                before = simulated.now_ns[1]
                torch.cuda.synchronize()
                assert simulated.now_ns[1] - before > here_ns
            assert others.submit(lambda: (torch.ones(2) + 1).tolist()).result() == [2.0, 2.0]


@pytest.mark.parametrize("change", ["kernels", "calls", "axes", "times"])
def test_a_file_of_times_that_is_no_such_file_is_refused(change: str, tmp_path: Path) -> None:
    good = Path(sidestream.__file__).parent / "_simulated" / "tables" / "h200.json"
    tables = json.loads(good.read_text(encoding="utf-8"))
    if change in ("kernels", "calls"):
        tables[change].popitem()
    else:
        # A grid that is larger than any memory, and a time that is none.
        row = {"axes": [[1] * 1000] * 8, "ns": [1]} if change == "axes" else {"axes": [[1]], "ns": [1e300]}
        tables["kernels"]["fill"] = row
    (tmp_path / "host.json").write_text(json.dumps(tables), encoding="utf-8")
    with (
        pytest.raises(sidestream.DeviceError, match="host.json is no file of `sidestream devices"),
        sidestream.simulate("sim:h200", host=tmp_path / "host.json"),
    ):
        pass


def test_a_host_tensor_that_a_program_fills_from_the_device_stays_on_the_host() -> None:
    with sidestream.simulate("sim:h100"):
        source = torch.ones(1024).cuda()
        for _ in range(3):
            target = torch.empty(1024)
            assert target.copy_(source).device.type == "cpu"
