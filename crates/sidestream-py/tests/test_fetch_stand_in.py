"""Small results that a kernel writes to host memory, on a driver without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

OnStandIn = Callable[[str], str]

pytestmark = pytest.mark.torch

START = """
import gc
import sidestream
import torch
from device_double import Double

double = Double()
"""


def test_a_small_tensor_comes_by_a_kernel_on_the_current_stream(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        START
        + """
from types import SimpleNamespace

side = sidestream.Stream("cuda:0", name="side")
# PyTorch's name for the default stream.
default = SimpleNamespace(cuda_stream=0, synchronize=sidestream.Stream.of(0).synchronize)
for values in (
    torch.tensor(2.5),
    torch.arange(12).view(3, 4),
    torch.ones(4096, dtype=torch.float64),
    torch.tensor([True, False]),
):
    for stream in (double.current, side, default):
        with double.on(stream):
            x = double.on_device(values)
            fetched = sidestream.fetch(x)
            # In stream order: the host need not wait for anything else.
            stream.synchronize()
            assert fetched.done()
            x.zero_()
            got = fetched.result()
        assert (
            torch.equal(got, values)
            and got.shape == values.shape
            and got.dtype is values.dtype
            and not got.is_cuda
        ), got
pair = sidestream.fetch({"loss": double.on_device(torch.tensor(1.0)), "name": "x"}).result()
assert pair["loss"].item() == 1.0 and pair["name"] == "x"
print("ok")
"""
    ) == "ok\n"


def test_small_results_share_a_page_and_keep_it(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        START
        + """
x = double.on_device(torch.tensor(0.0))
waiting = []
for at in range(1500):
    x.fill_(at)
    waiting.append(sidestream.fetch(x))
    # The double writes at once, and the kernel reads when it runs.
    double.current.synchronize()
assert [int(one.result()) for one in waiting] == list(range(1500))
assert len(double.pages) == 12, double.pages

few = double.on_device(torch.zeros(3))
waiting = []
for at in range(500):
    few.fill_(at)
    waiting.append(sidestream.fetch(few))
    double.current.synchronize()
assert [one.result().tolist() for one in waiting] == [[at] * 3 for at in range(500)]
assert len(double.pages) == 14, double.pages
print("ok")
"""
    ) == "ok\n"


def test_what_is_dropped_keeps_its_memory_until_the_kernel_has_written_it(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        START
        + """
import weakref
from sidestream import _sidestream

class Home:
    pass

outbox = _sidestream.Outbox("cuda:0")
x, target = double.on_device(torch.ones(4)), torch.empty(4, dtype=torch.float32, pin_memory=True)
stream = double.current

def posted():
    home = Home()
    return outbox.post(x.data_ptr(), target.data_ptr(), 16, stream.cuda_stream, home), weakref.ref(home)

one, home = posted()
del one
gc.collect()
assert home() is not None
stream.synchronize()
other, kept = posted()
assert home() is None, "the next fetch drops the owner of complete work"
other.synchronize()
assert other.query()
del other
assert kept() is None, "the owner of work that is known to be complete is dropped at once"
assert target.tolist() == [1.0] * 4
print("ok")
"""
    ) == "ok\n"


def test_a_running_mean_counts_what_has_arrived(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        START
        + """
mean = sidestream.RunningMean()
losses = [
    double.on_device(torch.tensor(float(at), dtype=dtype))
    for at, dtype in enumerate([torch.float32, torch.float16, torch.float64] * 40)
]
for at, loss in enumerate(losses):
    mean.update(loss, weight=1 + at % 2)
assert len(mean._coming) < len(losses), "it looks what has arrived now and then"
expected = sum(at * (1 + at % 2) for at in range(120)) / 180
assert mean.result() == mean.value() == expected
try:
    mean.update(double.on_device(torch.ones((), dtype=torch.complex64)))
except TypeError as refused:
    assert "complex" in str(refused)
else:
    raise AssertionError
double.is_capturing = True
for call in (mean.update, sidestream.fetch):
    try:
        call(losses[0])
    except RuntimeError as refused:
        assert "after the replay" in str(refused)
    else:
        raise AssertionError(call)
print("ok")
"""
    ) == "ok\n"
