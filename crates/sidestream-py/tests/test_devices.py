"""The devices that each function accepts, and its errors for all others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sidestream
from sidestream import DeviceError, Event, Pipeline, Stream, prefetch

Takes = Callable[[Any], object]

#: All functions that have an argument `device`.
EVERY: dict[str, Takes] = {
    "Stream": Stream,
    "Stream.of": lambda device: Stream.of(Stream("sim:h200"), device=device),
    "Event": lambda device: Event(device=device),
    "prefetch": lambda device: prefetch([], device),
    "overlap": lambda device: sidestream.overlap(device, count=1),
    "Pipeline": lambda device: Pipeline([abs], device=device),
    "benchmark": lambda device: sidestream.benchmark(sum, range(10_000), device=device),
}
#: The functions among them that run Python functions.
ON_TORCH = ("Pipeline", "benchmark")


def fixtures(names: tuple[str, ...]) -> list[Any]:
    return [
        pytest.param(EVERY[name], id=name, marks=pytest.mark.torch if name in ON_TORCH else ())
        for name in names
    ]


every = pytest.mark.parametrize("takes", fixtures(tuple(EVERY)))
on_torch = pytest.mark.parametrize("takes", fixtures(ON_TORCH))
on_streams = pytest.mark.parametrize("takes", fixtures(("Stream", "Event", "overlap")))


class Named:
    """An object with a number as its ``__index__``, like NumPy's integers."""

    def __index__(self) -> int:
        return 99


class OfTorch:
    """An object that looks like a ``torch.device``."""

    def __init__(self, type: str, index: int | None) -> None:
        self.type, self.index = type, index

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Several:
    """An object that has a number only if it has one element, like a NumPy array."""

    def __index__(self) -> int:
        raise TypeError("only integer scalar arrays can be converted to a scalar index")


@every
@pytest.mark.parametrize("device", [1.5, True, b"cuda", ["cuda"], object(), Several(), Stream])
def test_what_names_no_device_is_a_type_error(takes: Takes, device: Any) -> None:
    with pytest.raises(TypeError, match='device is .*; give a name such as "cuda", "cuda:1"'):
        takes(device)


@every
@pytest.mark.parametrize("device", ["cuda:99", 99, Named(), OfTorch("cuda", 99)])
def test_a_gpu_that_is_not_there_is_a_device_error_however_it_is_named(takes: Takes, device: Any) -> None:
    with pytest.raises(DeviceError):
        takes(device)


@every
@pytest.mark.parametrize(
    "device",
    ["cuda:one", "cuda:", "cuda:-1", "cuda:01", "cuda:1_0", "cuda:\u0661", "cuda:99999999999", -1]
    + ["mps", "xpu:0", "gpu", "meta", "tpu", "", "CUDA", "cuda ", "cpux", "cpu:x", OfTorch("meta", None)],
)
def test_a_name_that_no_device_has_is_a_device_error(takes: Takes, device: Any) -> None:
    with pytest.raises(
        DeviceError,
        match="which names no device; there are NVIDIA's GPUs, as cuda, .* and cpu: no other accelerators",
    ):
        takes(device)


def test_a_loop_without_a_gpu_is_led_to_the_processor_and_not_to_a_simulated_gpu() -> None:
    with pytest.raises(DeviceError) as refused:
        prefetch([], "cuda:99")
    first = (
        'device "cuda:99" cannot be opened; in a training loop give "cpu", '
        "where batches are read ahead and stay on the host, or omit the device,"
    )
    assert str(refused.value).startswith(first) and "sim:" not in str(refused.value)


# The result is the same with and without PyTorch, if the function does not need PyTorch.
@pytest.mark.parametrize(
    "takes",
    [
        pytest.param(EVERY["Pipeline"], id="Pipeline", marks=pytest.mark.torch),
        pytest.param(EVERY["benchmark"], id="benchmark"),
    ],
)
@pytest.mark.parametrize("device", ["sim:h200", "sim:nowhere.toml", "auto"])
def test_functions_of_python_run_on_gpus_and_the_processor(takes: Takes, device: str) -> None:
    with pytest.raises(
        ValueError, match=f"device is '{device}'; a .* runs on .cuda., .cuda:1. and so on, or on .cpu."
    ):
        takes(device)


@pytest.mark.parametrize("takes", fixtures(("prefetch", "Pipeline", "benchmark")))
@pytest.mark.parametrize("device", ["cpu", "cpu:0", OfTorch("cpu", None)])
def test_the_processor_does_where_nothing_needs_a_stream(takes: Takes, device: Any) -> None:
    assert takes(device) is not None


@on_streams
@pytest.mark.parametrize("device", ["cpu", OfTorch("cpu", None)])
def test_the_processor_has_no_streams(takes: Takes, device: Any) -> None:
    with pytest.raises(ValueError, match="the CPU has no streams; give .cuda., or .sim:h200."):
        takes(device)


@pytest.mark.parametrize("takes", fixtures(("Stream", "Event", "prefetch", "overlap")))
def test_a_simulated_gpu_that_cannot_be_read_is_a_device_error(takes: Takes, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("sms = [")
    for file in ("missing.toml", "broken.toml"):
        with pytest.raises(DeviceError, match=file):
            takes(f"sim:{tmp_path / file}")
    for name in ("sim:h300", "sim:H200", "sim:", "sim"):
        with pytest.raises(
            DeviceError, match="which names no device; there are .*sim:rtx4090 and sim:FILE.toml"
        ):
            takes(name)


def test_statistics_name_the_device_that_there_is() -> None:
    for device, name in (("auto", Stream("auto").device), ("sim:a100", "sim:a100"), ("cpu", "cpu")):
        batches: sidestream.Prefetcher[object]
        with prefetch([], device) as batches:
            assert batches.statistics.device == name
            assert f"to {name}, " in repr(batches)


@pytest.mark.torch
def test_pytorch_says_which_gpus_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cuda:2", 2, torch.device("cuda", 2)):
        with pytest.raises(DeviceError, match="device is 'cuda:2'; PyTorch finds cuda:0, cuda:1 here"):
            Pipeline([abs], device=device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        DeviceError, match='device is .cuda., and PyTorch finds no CUDA device here; give device="cpu"'
    ):
        Pipeline([abs], device="cuda")
