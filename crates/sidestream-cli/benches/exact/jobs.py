"""Runs correct programs of libraries plainly and under `sidestream check --exact`.

The check has to report no error, and the results have to be those of the plain run bit for bit; warnings
are counted. What the machine lacks is skipped. With `--samples FOLDER`, also each program of NVIDIA's
samples that was built there, by CMake or by nvcc (`-g -lineinfo -rdc=true --extended-lambda -I Common`).
"""

import argparse
import hashlib
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "programs"))
from run import KINDS, execute

SKIPPED = 77
tl: Any = None  # triton.language, which a kernel looks up here
Job = Callable[[], object]
JOBS: dict[str, tuple[str, Job]] = {}


def job(package: str) -> Callable[[Job], Job]:
    """Makes a function a job that needs this package. It returns arrays."""

    def named(function: Job) -> Job:
        JOBS[function.__name__] = (package, function)
        return function

    return named


def checksum(values: object) -> str:
    """Returns the checksum of arrays of any library."""
    digest = hashlib.sha256()
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if hasattr(value, "detach"):
            value = value.detach().float().cpu().numpy()
        elif hasattr(value, "get"):
            value = value.get()
        import numpy

        digest.update(numpy.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


def deterministic() -> Any:
    """Returns PyTorch, asked for the same results each time."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    return torch


def trained(torch: Any, model: Any, batch: Any, optimizer: Any, enabled: bool = False) -> Any:
    """Trains four steps, perhaps in mixed precision; returns the parameters."""
    scaler = torch.amp.GradScaler("cuda", enabled=enabled)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=enabled):
            loss = model(batch).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return list(model.parameters())


def perceptron(torch: Any, width: int = 256, depth: int = 6) -> Any:
    """Returns a small model."""
    layers = [[torch.nn.Linear(width, width), torch.nn.GELU()] for _ in range(depth)]
    return torch.nn.Sequential(*[part for layer in layers for part in layer]).cuda()


@job("torch")
def eager() -> Any:
    torch = deterministic()
    model = perceptron(torch)
    batch = torch.randn(64, 256, device="cuda")
    return trained(torch, model, batch, torch.optim.AdamW(model.parameters(), lr=1e-3))


@job("torch")
def mixed_precision() -> Any:
    torch = deterministic()
    model = perceptron(torch)
    batch = torch.randn(64, 256, device="cuda")
    return trained(torch, model, batch, torch.optim.SGD(model.parameters(), lr=1e-3), enabled=True)


@job("torch")
def fused_optimizer() -> Any:
    torch = deterministic()
    model = perceptron(torch).bfloat16()
    batch = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
    return trained(torch, model, batch, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True))


@job("torch")
def compiled() -> Any:
    torch = deterministic()
    model = perceptron(torch)
    batch = torch.randn(64, 256, device="cuda")
    return trained(torch, torch.compile(model), batch, torch.optim.SGD(model.parameters(), lr=1e-3))


@job("torch")
def compiled_with_graphs() -> Any:
    torch = deterministic()
    model = torch.compile(perceptron(torch), mode="reduce-overhead")
    with torch.no_grad():
        return [model(torch.randn(64, 256, device="cuda")).clone() for _ in range(5)]


@job("torch")
def graph() -> Any:
    torch = deterministic()
    model, batch = perceptron(torch), torch.randn(64, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        model(batch)
    torch.cuda.current_stream().wait_stream(side)
    captured, results = torch.cuda.CUDAGraph(), []
    with torch.no_grad(), torch.cuda.graph(captured):
        out = model(batch)
    for _ in range(5):
        batch.copy_(torch.randn(64, 256, device="cuda"))
        captured.replay()
        results.append(out.clone())
    return results


@job("torch")
def expandable_segments() -> Any:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    torch = deterministic()
    kept = []
    for step in range(12):
        kept.append(torch.randn(1 << (14 + step), device="cuda").mul_(2))
        kept[step // 2] = kept[step // 2].sort().values if step % 3 == 0 else kept[step // 2] + 1
    return kept


@job("torch")
def two_streams() -> Any:
    torch = deterministic()
    a, b = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    main, sides = torch.cuda.current_stream(), [torch.cuda.Stream(), torch.cuda.Stream()]
    for _ in range(4):
        products = []
        for side, by in zip(sides, (a, b), strict=True):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                products.append(torch.tanh(a @ by))
        for side, product in zip(sides, products, strict=True):
            main.wait_stream(side)
            product.record_stream(main)
        a, b = products[0] + 1, products[1] - 1
    torch.cuda.synchronize()
    return [a, b]


@job("torch")
def prefetched() -> Any:
    torch = deterministic()
    main, copies, results = torch.cuda.current_stream(), torch.cuda.Stream(), []
    by = torch.randn(512, 512, device="cuda")
    batches = [torch.randn(64, 512).pin_memory() for _ in range(6)]
    for batch in batches:
        with torch.cuda.stream(copies):
            here = batch.to("cuda", non_blocking=True)
        main.wait_stream(copies)
        here.record_stream(main)
        results.append((here @ by).sum(0))
    torch.cuda.synchronize()
    return results


@job("torch")
def convolutions() -> Any:
    torch = deterministic()
    shapes = [(3, 16), (16, 32), (32, 32)]
    parts = [[torch.nn.Conv2d(*shape, 3, padding=1), torch.nn.BatchNorm2d(shape[1])] for shape in shapes]
    model = torch.nn.Sequential(*[part for both in parts for part in both]).cuda()
    batch = torch.randn(8, 3, 64, 64, device="cuda")
    return trained(torch, model, batch, torch.optim.SGD(model.parameters(), lr=1e-2))


@job("torch")
def attention() -> Any:
    torch = deterministic()
    query, key, value = (torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    with torch.no_grad():
        return [attend(query, key, value, is_causal=causal) for causal in (False, True)]


@job("torch")
def operators() -> Any:
    torch = deterministic()
    values = torch.randn(300, 300, device="cuda")
    sorted_, order = values.sort(dim=1)
    top, unique = values.topk(7).values, (values * 4).int().unique()
    spectrum, square = torch.fft.rfft(values).abs(), values @ values.T + 300 * torch.eye(300, device="cuda")
    picked = values.flatten()[values.flatten() > 1]
    return [sorted_, order, top, unique, spectrum, torch.linalg.cholesky(square), picked, values.softmax(1)]


@job("torch")
def bf16_products() -> Any:
    """Products that cuBLAS computes by tensor copies on Hopper."""
    torch = deterministic()
    a, b = (torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return [a @ b, (a @ b).T @ a, torch.bmm(a.view(8, 256, 2048), b.view(8, 2048, 256))]


@job("triton")
def triton_kernels() -> Any:
    torch = deterministic()
    global tl
    import triton
    import triton.language as tl

    @triton.jit
    def softmax(to, values, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.arange(0, BLOCK)
        row = tl.load(values + tl.program_id(0) * width + at, mask=at < width, other=-float("inf"))
        row = tl.exp(row - tl.max(row, 0))
        tl.store(to + tl.program_id(0) * width + at, row / tl.sum(row, 0), mask=at < width)

    values = torch.randn(500, 1001, device="cuda")
    halves, results = torch.empty_like(values), []
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    softmax[(250,)](halves, values, 1001, BLOCK=1024)
    with torch.cuda.stream(side):
        softmax[(250,)](halves[250:], values[250:], 1001, BLOCK=1024)
    main.wait_stream(side)
    results.append(halves * 2)
    torch.cuda.synchronize()
    return results


@job("cupy")
def cupy_streams() -> Any:
    import cupy

    values = cupy.arange(1 << 20, dtype=cupy.float32).reshape(1024, 1024) / (1 << 20)
    axpy = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = 2 * x + y", "axpy")
    side, ready = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
    product = values @ values
    ready.record()
    side.wait_event(ready)
    with side:
        out = axpy(product, values)
        total = cupy.sort(out, axis=1).sum(axis=0)
    side.synchronize()
    return [out, total]


@job("jax")
def jax_step() -> Any:
    os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        sys.exit(SKIPPED)
    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    weights = [jax.random.normal(key, (256, 256)) / 16 for key in keys[1:]]
    batch = jax.random.normal(keys[0], (64, 256))

    def loss(weights: Any) -> Any:
        out = batch
        for weight in weights:
            out = jnp.tanh(out @ weight)
        return jnp.mean(out**2)

    @jax.jit
    def step(weights: Any) -> Any:
        return [
            weight - 0.1 * change for weight, change in zip(weights, jax.grad(loss)(weights), strict=True)
        ]

    for _ in range(4):
        weights = step(weights)
    return list(weights)


def compared(options: argparse.Namespace, name: str, program: list[str]) -> tuple[bool, str]:
    """Runs a program plainly and under the check; returns whether it is right, and what to say."""
    began, has_checksum = time.monotonic(), name in JOBS
    plain = execute(program, options.seconds)
    took, began = time.monotonic() - began, time.monotonic()
    if plain[0] == SKIPPED or (plain[0] != 0 and not has_checksum):
        return True, f"skipped: exit {plain[0]}"
    if plain[0] != 0:
        return False, f"broken: {' '.join((plain[1] + plain[2]).split())[-300:]}"
    check = [options.sidestream, "check", f"--exact={options.exact}", "--", *program]
    code, out, err = execute(check, 2 * options.seconds)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        (options.keep / f"{name}.txt").write_text(f"{out}{err}\nexit {code}\n", errors="replace")
    found = re.findall(rf"^ {{2,4}}(?:{KINDS})\b.*", out, re.MULTILINE)
    is_same = not has_checksum or out.startswith(plain[1])
    problems = [
        f"exit {code}: {' '.join((out + err).split())[-300:]}" if code else "",
        "" if is_same else f"OTHER RESULT than {plain[1].strip()}: {out[:60].strip()}",
    ]
    said = " · ".join(filter(None, problems))
    warned = f"{len(found)} warned of: {found[0].strip()}" if found else ""
    return not said, f"{took:5.1f} s, checked {time.monotonic() - began:5.1f} s  {said or warned}"


def main() -> int:
    """Prints a row for each job; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sidestream", default="sidestream")
    parser.add_argument("--samples", type=Path, help="the folder in which NVIDIA's samples were built")
    parser.add_argument("--exact", choices=["all", "first"], default="all", help="which launches are watched")
    parser.add_argument("--seconds", type=float, default=290, help="for a plain run; a check has twice that")
    parser.add_argument("--keep", type=Path, help="the folder for what each check prints")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        package, function = JOBS[options.job]
        if importlib.util.find_spec(package) is None:
            return SKIPPED
        print(options.job, checksum(function()), flush=True)
        return 0
    programs = [(name, [sys.executable, __file__, "--job", name]) for name in JOBS]
    for path in sorted(options.samples.rglob("*")) if options.samples else []:
        # CMake leaves programs of its own, and some samples have libraries.
        is_own = path.is_file() and not path.suffix and "CMakeFiles" not in path.parts
        if is_own and os.access(path, os.X_OK) and path.open("rb").read(4) == b"\x7fELF":
            programs.append((path.name, [str(path.resolve())]))
    results = []
    for name, program in programs:
        if options.names and name not in options.names:
            continue
        is_right, said = compared(options, name, program)
        results.append(is_right)
        print("ok " if is_right else "BAD", f"{name:22} {said}".rstrip(), flush=True)
    print(f"{sum(results)} of {len(results)} as expected")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
