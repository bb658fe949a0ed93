"""``roofline``: the minimum time of work on a device, from the device's figures."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import sidestream


def test_computing_and_memory_are_told_apart() -> None:
    # A product of two square matrices of size 8192 in half precision, each read once.
    product = sidestream.roofline(2 * 8192**3, 3 * 8192**2 * 2, "fp16", "sim:a100")
    assert product.bound == "arithmetic" and product.floor_ns == pytest.approx(2 * 8192**3 / 312e12 * 1e9)
    assert product.ridge == pytest.approx(312e12 / 1935e9) and product.intensity == pytest.approx(8192 / 3)
    added = sidestream.roofline(1e9, 12e9, device="sim:h200", measured_ms=5.0)
    assert added.bound == "memory" and added.floor_ns == pytest.approx(2.5e6)
    assert "set by memory" in str(added) and "50.0 % of what the device can do" in str(added)
    assert pickle.loads(pickle.dumps(added)) == added


def test_it_is_what_the_command_says() -> None:
    command = [
        sys.executable,
        "-m",
        "sidestream",
        "roofline",
        "--flops",
        "1e12",
        "--bytes",
        "1e9",
        "--dtype",
        "bf16",
        "--device",
        "sim:h200",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.rstrip("\n") == str(sidestream.roofline(1e12, 1e9, "bf16", "sim:h200"))


@pytest.mark.torch
def test_types_of_pytorch_are_taken() -> None:
    import torch

    by_type = sidestream.roofline(1e12, 1e9, torch.bfloat16, "sim:h200")
    assert by_type == sidestream.roofline(1e12, 1e9, "bf16", "sim:h200")


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype is fp4: \"fp4\" is not a data type; choose from fp64, fp32"):
        sidestream.roofline(1, 1, "fp4", "sim:h200")
    with pytest.raises(
        ValueError, match="NVIDIA A100 .* has no peak in fp8; it has fp64, fp32, tf32, bf16, fp16, int8"
    ):
        sidestream.roofline(1, 1, "fp8", "sim:a100")
    with pytest.raises(ValueError, match="flops is 0"):
        sidestream.roofline(0, 1, device="sim:h200")
    with pytest.raises(sidestream.DeviceError):
        sidestream.roofline(1, 1, device="sim:none")
    wrong: list[tuple[float | str, float | str, str]]
    wrong = [
        ("", 1, "flops is  : .* is not an amount"),
        ("3 GB", 1, '"GB" is not a unit of operations'),
        (1, "4G", '"G" is not a unit of bytes'),
    ]
    for flops, bytes, why in wrong:
        with pytest.raises(ValueError, match=why):
            sidestream.roofline(flops, bytes, device="sim:h200")


def test_figures_may_have_units() -> None:
    assert sidestream.roofline("3 TFLOP", "1.2 GB", device="sim:h200") == sidestream.roofline(
        3e12, 1.2e9, device="sim:h200"
    )
