"""Records a trace and PyTorch's table of the run (``key_averages``), with which the tables of ``sidestream
diagnose`` are compared.

    python crates/sidestream-py/benches/tables_gpu.py --out FOLDER

Needs PyTorch with CUDA. FOLDER gets ``tables.cuda.json.gz``, the trace, and ``tables.cuda.expected.json``,
the rows of ``key_averages`` by name and by the shapes of inputs. Both belong in
``crates/sidestream-diagnose/tests/data``, whose tests compare all pairs there. With ``--device cpu``
everything runs on the CPU, and ``cuda`` in the names is ``cpu``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
parser.add_argument("--out", metavar="FOLDER", required=True)
ARGS = parser.parse_args()
IS_CUDA = ARGS.device == "cuda"


class Model(torch.nn.Module):
    """A model with an embedding, branches that are joined, and nested ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 32)
        self.left, self.right = torch.nn.Linear(32, 48), torch.nn.Linear(32, 16)
        self.last = torch.nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with record_function("embed"):
            y = self.embedding(x)
        with record_function("branches"):
            with record_function("left"):
                left = torch.relu(self.left(y))
            with record_function("right"):
                right = torch.softmax(self.right(y), dim=-1)
            y = torch.cat([left, right], dim=-1)
        out: torch.Tensor = self.last(y)
        return out


def rows(profiler: Any, by_shape: bool) -> list[dict[str, Any]]:
    """Return the host's rows of the table, without the device's rows, which are kernels and copies."""
    out = []
    for row in profiler.key_averages(group_by_input_shape=by_shape):
        if row.device_type != torch.autograd.DeviceType.CPU or row.is_async:
            continue
        shapes = (
            json.dumps(row.input_shapes, separators=(",", ":")) if by_shape and row.input_shapes else None
        )
        times = (
            row.cpu_time_total,
            row.self_cpu_time_total,
            row.device_time_total,
            row.self_device_time_total,
        )
        host_ns, host_self_ns, device_ns, device_self_ns = (
            round(1000 * microseconds) for microseconds in times
        )
        out.append(
            {
                "name": row.key,
                "shapes": shapes,
                "calls": row.count,
                "host_ns": host_ns,
                "host_self_ns": host_self_ns,
                "device_ns": device_ns,
                "device_self_ns": device_self_ns,
            }
        )
    return out


def main() -> int:
    if IS_CUDA and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA here; --device cpu uses the CPU")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model().to(ARGS.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randint(0, 100, (16, 4), device=ARGS.device)

    def step() -> None:
        with record_function("forward"):
            loss = model(x).square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("optimize"):
            optimizer.step()
            optimizer.zero_grad()
        with record_function("metrics"):
            loss.item()

    step()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if IS_CUDA else [])
    with profile(activities=activities, record_shapes=True, profile_memory=True):
        step()
    with profile(activities=activities, record_shapes=True, profile_memory=True) as profiler:
        for _ in range(2):
            step()
        if IS_CUDA:
            torch.cuda.synchronize()
    out = Path(ARGS.out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tables-") as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        (out / f"tables.{ARGS.device}.json.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    expected = {
        "torch": torch.__version__,
        "by_name": rows(profiler, False),
        "by_shape": rows(profiler, True),
    }
    lines = [json.dumps(expected["torch"])]
    for key in ("by_name", "by_shape"):
        inner = ",\n".join("  " + json.dumps(row) for row in expected[key])
        lines.append(f'"{key}": [\n{inner}\n]')
    (out / f"tables.{ARGS.device}.expected.json").write_text('{"torch": ' + ",\n".join(lines) + "}\n")
    print(f"{len(expected['by_name'])} rows by name, {len(expected['by_shape'])} by shape, in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
