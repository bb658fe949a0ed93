"""Prefetching through the back end for CUDA, on a driver without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

OnStandIn = Callable[[str], str]


def test_arrays_on_cuda_speak_dlpack_and_its_consumer_keeps_the_memory(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
import gc
import numpy as np
import sidestream
from dlpack_double import Legacy, Versioned, delete, facts, taken

loader = [{"x": np.full((3, 4), index, np.float32), "empty": np.zeros((0, 2))} for index in range(20)]
batches = sidestream.prefetch(loader, "cuda:0")
iteration = iter(batches)
batch = next(iteration)
x, empty = batch["x"], batch["empty"]
assert (x.numpy() == 0).all() and x.__dlpack_device__() == (2, 0)

for stream in (None, 1, 2, -1, sidestream.Stream("cuda:0").cuda_stream):
    x.__dlpack__(stream=stream)  # Nobody takes these.
expected = ((2, 0), (2, 32, 1), (3, 4), (4, 1))
for form, arguments in ((Legacy, {}), (Legacy, {"max_version": (0, 8)}), (Versioned, {"max_version": (1, 1)})):
    managed = taken(x.__dlpack__(copy=False, dl_device=(2, 0), **arguments), form)
    assert facts(managed) == expected and managed.contents.tensor.data % 512 == 0
    delete(managed)
for arguments, error in (({"stream": 0}, ValueError), ({"copy": True}, BufferError), ({"dl_device": (1, 0)}, BufferError)):
    try:
        x.__dlpack__(**arguments)
    except error as why:
        assert str(why)
    else:
        raise AssertionError(arguments)

interface = x.__cuda_array_interface__
assert (interface["version"], interface["typestr"], interface["shape"]) == (3, "<f4", (3, 4))
assert interface["data"][0] % 512 == 0 and interface["stream"] > 2
assert empty.__cuda_array_interface__["data"] == (0, False)

# Of this batch only what another library took is left: its memory is not used again.
managed = taken(x.__dlpack__())
del batch, x, empty
gc.collect()
for index, batch in enumerate(iteration, 1):
    assert (batch["x"].numpy() == index).all()
del batch
assert batches.statistics.slots == 3
delete(managed)
assert sum(1 for _ in batches) == 20 and batches.statistics.slots == 3
print("ok")
"""
    ) == "ok\n"


@pytest.mark.torch
@pytest.mark.parametrize("keep", ["grow", "copy"])
def test_tensors_of_every_type_come_out_with_their_shapes(on_stand_in: OnStandIn, keep: str) -> None:
    assert on_stand_in(
        f"""
import numpy as np
import sidestream
import torch
from dlpack_double import Cuda

Cuda(torch)
tensors = [torch.ones(3, 4), np.arange(5), "text", torch.tensor(2.5), torch.zeros(0, 3)]
tensors += [torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(4).to(torch.float8_e4m3fn)]
batches = sidestream.prefetch([tensors] * 9, "cuda", keep={keep!r})
for taken in batches:
    for one, other in zip(taken, tensors):
        if isinstance(one, str):
            assert one == other
        else:
            other = torch.as_tensor(other)
            assert type(one) is torch.Tensor and not one.requires_grad and not one._is_view() or one.dtype == torch.float8_e4m3fn
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
print(batches.statistics.batches, batches.statistics.slots, batches.statistics.device)
"""
    ) == "9 2 cuda:0\n"


@pytest.mark.torch
def test_a_transform_runs_ahead_and_its_error_comes_with_its_batch(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
import sidestream
import torch
from dlpack_double import Cuda

cuda = Cuda(torch)
main = cuda.current[-1]
seen = []

def transform(batch):
    x, name = batch
    assert cuda.current[-1] is not main
    seen.append(name)
    if name == "3":
        raise KeyError("no such class")
    return x, name

loader = [(torch.ones(100), str(index)) for index in range(6)]
batches = iter(sidestream.prefetch(loader, "cuda", transform=transform))
taken = [next(batches)[1] for _ in range(3)]
try:
    next(batches)
except KeyError as error:
    taken.append(error.args[0])
taken += [batch[1] for batch in batches]
assert cuda.current == [main]
print(taken, seen)
"""
    ) == "['0', '1', '2', 'no such class', '4', '5'] ['0', '1', '2', '3', '4', '5']\n"


@pytest.mark.torch
def test_a_batch_that_a_transform_put_into_an_object_is_known_to_be_used_where_it_is_taken(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
import types
import sidestream
import torch
from dlpack_double import Cuda
from sidestream import _sidestream

cuda = Cuda(torch)
main = cuda.current[-1].cuda_stream
noted = []
note = _sidestream.note_stream
_sidestream.note_stream = lambda address, stream: noted.append((note(address, stream), stream == main)) or noted[-1][0]
loader = [torch.ones(100) for _ in range(6)]
for batch in sidestream.prefetch(loader, "cuda", transform=lambda x: types.SimpleNamespace(x=x)):
    assert batch.x.sum() == 0  # The double has no values.
assert len(noted) == 6
print(set(noted))
"""
    ) == "{(True, True)}\n"
