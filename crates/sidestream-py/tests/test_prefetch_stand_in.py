"""Prefetching through the CUDA back end, on a driver without a GPU."""

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
    x.__dlpack__(stream=stream)  # These capsules are not consumed.
expected = ((2, 0), (2, 32, 1), (3, 4), (4, 1))
for form, arguments in (
    (Legacy, {}),
    (Legacy, {"max_version": (0, 8)}),
    (Versioned, {"max_version": (1, 1)}),
):
    managed = taken(x.__dlpack__(copy=False, dl_device=(2, 0), **arguments), form)
    assert facts(managed) == expected and managed.contents.tensor.data % 512 == 0
    delete(managed)
for arguments, error in (
    ({"stream": 0}, ValueError),
    ({"copy": True}, BufferError),
    ({"dl_device": (1, 0)}, BufferError),
):
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

# Only the arrays that another library took are left of this batch: its memory is not reused.
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
            assert (
                type(one) is torch.Tensor and not one.requires_grad and not one._is_view()
                or one.dtype == torch.float8_e4m3fn
            )
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
print(batches.statistics.batches, batches.statistics.slots, batches.statistics.device)
"""
    ) == "9 2 cuda:0\n"


@pytest.mark.torch
def test_tensors_that_are_on_the_device_keep_their_places(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
import sidestream
import torch
from dlpack_double import Cuda

cuda = Cuda(torch)
noted = []

class There(torch.Tensor):
    is_cuda = True
    device = torch.device("cuda", 0)

    def detach(self):
        return self

    def record_stream(self, stream):
        noted.append((id(self), stream))

there = [torch.ones(1).as_subclass(There) for _ in range(3)]
given = [there[0], torch.ones(2), there[1], there[2], torch.ones(3), torch.ones(4)]
(taken,) = sidestream.prefetch([given], "cuda")
assert [at for at in range(6) if taken[at] is given[at]] == [0, 2, 3]
assert [len(one) for one in taken] == [1, 2, 1, 1, 3, 4]
assert noted == [(id(one), cuda.current[-1]) for one in there]
print("ok")
"""
    ) == "ok\n"


@pytest.mark.torch
def test_a_transform_is_issued_after_the_previous_step_and_waits_for_the_one_before(
    on_stand_in: OnStandIn,
) -> None:
    assert on_stand_in(
        """
import sidestream
import torch
from dlpack_double import Cuda

cuda = Cuda(torch)
main = cuda.current[-1]
main.seen.add("before")
issued = []

def issue(what):
    # Record this work, and the work that it is ordered after.
    issued.append((what, frozenset(cuda.current[-1].seen)))
    cuda.current[-1].seen.add(what)

def transform(x):
    issue(("transform", len(issued) // 2))
    return x

count = 8
for at, x in enumerate(sidestream.prefetch([torch.ones(100)] * count, "cuda", transform=transform)):
    issue(("step", at))
    # Code that relies on the device's work so far finds it in the current stream.
    assert ("transform", at) in main.seen

# Work is issued in the order of a plain loop, so random numbers are drawn in that order.
assert [what for what, _ in issued] == [(what, at) for at in range(count) for what in ("transform", "step")]
for (what, at), seen in issued:
    steps = {other for other in range(count) if ("step", other) in seen}
    transforms = {other for other in range(count) if ("transform", other) in seen}
    assert "before" in seen
    if what == "step":
        assert steps == set(range(at)) and transforms == set(range(at + 1)), (at, steps, transforms)
    else:
        # The transform runs concurrently with the previous step.
        assert steps == set(range(at - 1)) and transforms == set(range(at)), (at, steps, transforms)
print("ok")
"""
    ) == "ok\n"


@pytest.mark.torch
def test_a_transform_waits_for_every_use_where_tensors_come_out_hidden(on_stand_in: OnStandIn) -> None:
    assert on_stand_in(
        """
import types
import sidestream
import torch
from dlpack_double import Cuda

cuda = Cuda(torch)
main = cuda.current[-1]
seen = []

def transform(x):
    seen.append(set(cuda.current[-1].seen))
    return types.SimpleNamespace(x=x)

for at, x in enumerate(sidestream.prefetch([torch.ones(100)] * 5, "cuda", transform=transform)):
    main.seen.add(at)
print([at - 1 in each for at, each in enumerate(seen)])
"""
    ) == "[False, True, True, True, True]\n"


@pytest.mark.torch
def test_an_object_with_tensors_moves_by_itself_on_the_current_stream(on_stand_in: OnStandIn) -> None:
    assert (
        on_stand_in(
            """
import warnings
import threading
import sidestream
import torch
from dlpack_double import Cuda

cuda = Cuda(torch)
main = cuda.current[-1]
warnings.simplefilter("error")

class Store(dict):
    pass

class Graph:
    def __init__(self, x, where=None):
        self.store = {"x": x}
        self.where = where
    def to(self, device, non_blocking=False):
        assert cuda.current[-1] is main and threading.current_thread() is threading.main_thread()
        return Graph(self.store["x"], (str(device), non_blocking))

class Old:
    def __init__(self):
        self.x = torch.ones(3)
        self.where = None
    def to(self, device):
        self.where = str(device)

class Moment:
    def to(self, zone):
        raise LookupError(zone)

given = [
    {"graph": Graph(torch.ones(4)), "old": Old(), "moment": Moment(), "x": torch.ones(2)}
    for _ in range(5)
]
for at, batch in enumerate(sidestream.prefetch(given, "cuda")):
    assert batch["graph"].where == ("cuda:0", True) and given[at]["graph"].where is None
    assert batch["old"].where == "cuda:0" and batch["moment"] is given[at]["moment"]
    assert batch["x"].shape == (2,)
assert at == 4

class Stays:
    def __init__(self):
        self.x = torch.ones(3)

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(2):
        list(sidestream.prefetch([[Stays()]] * 3, "cuda"))
print(*(str(one.message) for one in said), sep=chr(10))
"""
        ).splitlines()
        == [
            "the arrays of a Stays stay on the host, since it is not known how to rebuild one: "
            "let the loader return a dictionary or a dataclass"
        ]
        * 2
    )


@pytest.mark.torch
def test_a_transform_runs_on_a_stream_of_its_own_and_its_error_comes_with_its_batch(
    on_stand_in: OnStandIn,
) -> None:
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
def test_a_batch_that_a_transform_put_into_an_object_is_known_to_be_used_where_it_is_taken(
    on_stand_in: OnStandIn,
) -> None:
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
_sidestream.note_stream = lambda address, stream: (
    noted.append((note(address, stream), stream == main)) or noted[-1][0]
)
loader = [torch.ones(100) for _ in range(6)]
for batch in sidestream.prefetch(loader, "cuda", transform=lambda x: types.SimpleNamespace(x=x)):
    assert batch.x.sum() == 0  # The double has no values.
assert len(noted) == 6
print(set(noted))
"""
    ) == "{(True, True)}\n"


@pytest.mark.torch
def test_a_prefetcher_each_epoch_takes_what_the_last_one_left_until_memory_is_short(
    on_stand_in: OnStandIn,
) -> None:
    assert on_stand_in(
        """
import gc
import threading
import sidestream
import torch
from dlpack_double import Cuda

def ended():
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "sidestream-feeder":
            thread.join()

observers = []
torch._C._cuda_attach_out_of_memory_observer = observers.append
cuda = Cuda(torch)
made = []
of_pytorch = torch.cuda.Stream

class Stream(of_pytorch):
    def __init__(self, *given):
        made.append(given)
        super().__init__(*given)

torch.cuda.Stream = Stream
left = []
for epoch in range(5):
    loader = [torch.full((1000,), float(at)) for at in range(6)]
    for at, x in enumerate(sidestream.prefetch(loader, "cuda", transform=lambda x: x)):
        if epoch == 2 and at == 1:
            break
    # The next prefetcher reuses the stream of transforms, like the rest.
    del x
    ended()
    if epoch != 2:
        left.append(sidestream._sidestream.cached_bytes())
assert len(made) == 1, made
assert left[0] == left[1] == left[3] and left[0][1] == 8000, left
both = [iter(sidestream.prefetch(loader, "cuda", transform=lambda x: x)) for _ in range(2)]
assert next(both[0]) is not next(both[1]) and len(made) == 2
both.clear()
ended()
# PyTorch's allocator reports that it has no memory left.
(observer,) = observers
assert sum(sidestream._sidestream.cached_bytes())
observer(0, 1, 1, 0)
print(sidestream._sidestream.cached_bytes())
"""
    ) == "(0, 0)\n"
