"""A model behind HTTP: FastAPI accepts the requests, and a Batcher runs those that arrive together as one
batch.

python examples/python/serve_http.py                  # serves until Ctrl-C
python examples/python/serve_http.py --steps 256      # sends itself this many requests, and ends
curl localhost:8000/predict -H 'content-type: application/json' -d '{"row": [0.1, 0.2, …]}'

A refused request gets status 503 with Retry-After, and one whose deadline passed gets 504. GET /metrics
returns the counts for Prometheus. Needs fastapi, uvicorn and httpx. With `--device cpu` the GPU is a
simulated one, and the race checker runs too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator

import fastapi
import httpx
import torch
import uvicorn

import sidestream

WIDTH = 64


@dataclasses.dataclass
class Asked:
    """The body of a request."""

    row: list[float]
    #: Milliseconds after which the answer is of no use.
    deadline_ms: float | None = None


def perceptron() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).eval().requires_grad_(False).to("cuda")


def application(model: torch.nn.Module) -> fastapi.FastAPI:
    """Create the server for one model. The batcher lives as long as the server."""
    batcher: sidestream.Batcher[torch.Tensor]

    @contextlib.asynccontextmanager
    async def life(_: fastapi.FastAPI) -> AsyncIterator[None]:
        nonlocal batcher
        # When the server ends, accepted requests are still answered.
        async with sidestream.Batcher(
            model, sizes=(1, 4, 16, 64), max_delay=0.001, max_queue=1024
        ) as batcher:
            yield

    async def predict(asked: Asked) -> list[float]:
        if len(asked.row) != WIDTH:
            raise fastapi.HTTPException(422, f"row has {len(asked.row)} numbers; send {WIDTH}")
        deadline = None if asked.deadline_ms is None else asked.deadline_ms / 1e3
        try:
            # This runs in the event loop itself, not in a thread: the loop launches the batch of all its
            # requests.
            answer = await batcher.submit(torch.tensor(asked.row), deadline=deadline)
        except sidestream.RequestRefused as refused:
            raise fastapi.HTTPException(503, str(refused), {"Retry-After": "1"}) from refused
        except sidestream.RequestExpired as expired:
            raise fastapi.HTTPException(504, str(expired)) from expired
        values: list[float] = answer.tolist()
        return values

    async def metrics() -> fastapi.Response:
        return fastapi.Response(batcher.statistics.prometheus("perceptron"), media_type="text/plain")

    app = fastapi.FastAPI(title="perceptron", lifespan=life)
    app.add_api_route("/predict", predict, methods=["POST"])
    app.add_api_route("/metrics", metrics)
    return app


async def ask(port: int, requests: int) -> None:
    """Send this many requests, at most 64 at once."""
    turns = asyncio.Semaphore(64)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:

        async def one(at: int) -> int:
            async with turns:
                code: int = (await client.post("/predict", json={"row": [at / requests] * WIDTH})).status_code
                return code

        start = time.perf_counter()
        codes = await asyncio.gather(*(one(at) for at in range(requests)))
        rate = requests / (time.perf_counter() - start)
        print(f"{codes.count(200)} of {requests} requests were answered, {rate:.0f} a second")
        counted = (await client.get("/metrics")).text.splitlines()
        print(next(line for line in counted if line.startswith("nv_inference_request_success{")))


async def serve(model: torch.nn.Module, port: int, requests: int | None) -> None:
    server = uvicorn.Server(
        uvicorn.Config(application(model), port=port, log_level="warning" if requests else "info")
    )
    serving = asyncio.ensure_future(server.serve())
    if requests is not None:
        while not server.started:
            await asyncio.sleep(0.01)
        await ask(server.servers[0].sockets[0].getsockname()[1], requests)
        server.should_exit = True
    await serving


def count(text: str) -> int:
    """Parse a number of requests for the command line."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description="A model behind HTTP, in batches.")
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cuda, or cpu for a simulated GPU",
    )
    parser.add_argument(
        "--steps",
        type=count,
        help="send this many requests to itself, then end; by default it serves until Ctrl-C",
    )
    parser.add_argument("--port", type=int, default=8000, help="the port to listen on; 0 picks one")
    args = parser.parse_args()
    if (args.device or "").startswith("sim:"):
        parser.error("a simulated GPU computes no PyTorch tensors; give --device cuda or cpu")
    if args.device == "cpu":
        print("this is a simulated GPU: its times say nothing about a real one")
        with sidestream.check(simulate=True) as found:
            asyncio.run(serve(perceptron(), args.port, args.steps))
        print(f"{len(found.races)} races")
    else:
        asyncio.run(serve(perceptron(), args.port, args.steps))


if __name__ == "__main__":
    main()
