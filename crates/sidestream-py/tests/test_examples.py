"""Runs every script of examples/python, at a small size on the CPU, as a user would."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from forked import python

EXAMPLES = Path(__file__).parents[3] / "examples" / "python"

# Text that the output must contain. A script that is not listed here fails.
SAYS = {
    "augmentation": ["transform during the step:", "the sums are the same", "this is the CPU"],
    "branches": [
        "images through two branches",
        "the results are those of one branch after the other",
        "serial: ",
    ],
    "check_racy_loop": [
        "as it is often written: 4 races",
        "RAW on x1: the second may read before the first has written.",
        "WAR on x0: the second may write while the first still reads.",
        "fix: - {do: wait_stream, s: copy, src: main}   before op 4 (line 27)",
        "repaired: 0 races",
        "which needs neither a GPU nor PyTorch",
    ],
    "diagnose_trace": [
        "COPY_ON_COMPUTE_STREAM  59.8 % of a step",
        "COPY_ON_COMPUTE_STREAM: worth 1.87 ms of a step",
        "with prefetch=2 a step would take 60 % of its time",
    ],
    "distributed": [
        "rank 0 of 2 on cpu: 64 samples of its shard",
        "rank 1 of 2 on cpu: 64 samples of its shard",
        "the models agree",
    ],
    "encoder_decoder": ["steps of batch 2:", "the loss went from ", "serial: ", "on a GPU it measures"],
    "ensemble": [
        "2 steps of 4 models with one optimizer",
        "the mean of the four is that of one model after the other",
        "serial: ",
    ],
    "overlap": ["on a simulated NVIDIA H200", "<- best", "times as fast", "this was a simulated GPU"],
    "prefetch": ["by hand: ", "prefetch: ", "the losses are the same", "this is the CPU"],
    "serve_http": [
        "2 of 2 requests were answered",
        'nv_inference_request_success{model="perceptron"} 2',
        "this is a simulated GPU",
        "0 races",
    ],
    "serving": [
        "one by one ",
        "one batch of all ",
        "times as many requests as one by one",
        "streams need a GPU",
    ],
    "timing": [
        "the clock around one product: ",
        "product on cpu: ",
        "small_layers on cpu: ",
        "the clock measures both",
    ],
    "three_stages": ["2 inputs through three stages:", "the results are those of a plain loop", "serial: "],
}

# These scripts read and simulate, and use PyTorch only to look for a GPU.
WITHOUT_TORCH = {"check_racy_loop", "diagnose_trace", "overlap"}

# `racy_copy` is the loop of the README, which `test_docs.py` checks; it needs a GPU to run.
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "racy_copy")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in WITHOUT_TORCH else pytest.mark.torch) for name in SCRIPTS]
)
def test_the_example_says_what_it_measured(name: str) -> None:
    said = run(name)
    missing = [text for text in SAYS[name] if text not in said]
    assert not missing, said
    # An example prints one of these words if its results are wrong.
    assert not any(word in said for word in ("DIFFER", "WRONG")), said


def test_every_example_has_a_device_and_a_number_of_steps() -> None:
    assert set(SCRIPTS) == set(SAYS)
    for name in SCRIPTS:
        text = (EXAMPLES / f"{name}.py").read_text()
        assert '"--device"' in text and '"--steps"' in text, name


@pytest.mark.torch
def test_an_example_that_needs_a_gpu_says_why_a_simulated_one_will_not_do() -> None:
    why = "a simulated GPU computes no PyTorch tensors; give --device cuda or cpu"
    assert all(why in (EXAMPLES / f"{name}.py").read_text() for name in SCRIPTS if name != "overlap")
    ran = python(EXAMPLES / "three_stages.py", "--device", "sim:h200")
    assert ran.returncode == 2 and ran.stderr.endswith(f"error: {why}\n"), ran.stderr


@pytest.mark.torch
def test_a_server_answers_clients_with_their_own_rows_and_refuses_what_it_cannot_do() -> None:
    """The example runs unchanged on a socket, and the client knows nothing about it."""
    import httpx
    import sidestream
    import torch
    import uvicorn

    example = runpy.run_path(str(EXAMPLES / "serve_http.py"))

    async def main() -> None:
        model = example["perceptron"]()
        server = uvicorn.Server(uvicorn.Config(example["application"](model), port=0, log_level="critical"))
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False
        ) as client:
            rows = torch.randn(40, example["WIDTH"])
            asked = [client.post("/predict", json={"row": row.tolist()}) for row in rows]
            answers = await asyncio.gather(*asked)
            assert [answer.status_code for answer in answers] == [200] * 40
            got = torch.tensor([answer.json() for answer in answers])
            assert torch.allclose(got, model(rows.cuda()).cpu(), atol=1e-6)
            late = await client.post("/predict", json={"row": rows[0].tolist(), "deadline_ms": 0})
            assert late.status_code == 503 and late.headers["retry-after"] == "1" and "deadline" in late.text
            short = await client.post("/predict", json={"row": [1.0]})
            assert short.status_code == 422 and "row has 1 numbers; send 64" in short.text
            counted = (await client.get("/metrics")).text
            assert 'nv_inference_request_success{model="perceptron"} 40' in counted.splitlines()
        server.should_exit = True
        await serving

    with sidestream.check(simulate=True) as found:
        asyncio.run(main())
    assert not found.races, str(found)


@pytest.mark.torch
def test_the_bench_of_the_texts_runs_without_a_race() -> None:
    ran = python(EXAMPLES.parents[1] / "crates/sidestream-py/benches/seeds_gpu.py", "--tiny")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = re.findall(r"^  (.{58}) .*?(?:  text: (.*))?$", ran.stdout, re.MULTILINE)
    measured = {what.strip(): text for what, text in lines}
    for what, text in (
        ("overlapped by hand", "10.2 % with batches of 32 (4)"),
        ("gained by Pipeline", ""),
        ("gained by Pipeline(capture=True)", ""),
        ("prefetch takes off the time, pageable", "15 to 35 % (2), once 35 %"),
        ("Batcher, all at once", ""),
    ):
        assert measured.get(what) == text, ran.stdout


def run(name: str) -> str:
    """Run an example for two steps on the CPU, and return its output."""
    script = str(EXAMPLES / f"{name}.py")
    options = ["--device", "cpu", "--steps", "2"]
    match name:
        case "distributed":
            # The machine's name may not resolve to one of its addresses.
            here = ["--standalone", "--local-addr", "127.0.0.1"]
            command = ["-m", "torch.distributed.run", *here, "--nproc-per-node", "2", script, *options]
        case "diagnose_trace":
            command = [script, *options, "--what-if", "prefetch=2"]
        case "overlap":
            command = [script, "--device", "cpu", "--steps", "8"]
        case "serve_http":
            # The usual port may be in use.
            command = [script, *options, "--port", "0"]
        case _:
            command = [script, *options]
    if name != "distributed":
        ran = python(*command)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout
    # One thread for each rank: the machine may be small, and a spinning thread takes the CPU from the others.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A separate process group, so that the ranks of a run that hangs can be ended together.
        start_new_session=True,
    ) as process:
        try:
            said, errors = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
    assert process.returncode == 0, errors
    return said
