"""``profile``, ``diagnose --simulate`` and ``measure`` for a simulated GPU that has times."""

from __future__ import annotations

from pathlib import Path

import pytest
import sidestream

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
    assert {"SYNC_IN_STEP", "BLOCKING_COPY"} & {finding.code for finding in found.findings}
    assert [row.name for row in found.table("ranges").rows].count("train") == 1
    assert "first:  the GPU was simulated, with the host's times of" in str(sidestream.diagnose(path))


def test_steps_are_timed_in_virtual_time_if_asked() -> None:
    with sidestream.simulate("sim:h100", shapes=True):
        exec(LOOP, program := dict[str, object]())
        with sidestream.profile(steps=2, timed=37) as profiled:
            for _ in range(40):
                program["step"]()  # type: ignore[operator]
                profiled.step()
    assert profiled.unprofiled is not None and profiled.diagnosis is not None
    assert profiled.unprofiled.median_ns == pytest.approx(profiled.diagnosis.steps.mean_ns, rel=0.01)
