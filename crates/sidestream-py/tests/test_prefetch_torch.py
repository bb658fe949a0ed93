"""Prefetching with PyTorch's DataLoader, on the CPU and on a simulated GPU."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import python
from sidestream import DeviceArray, _tree, prefetch

pytestmark = [
    pytest.mark.torch,
    # Workers are forked while the prefetchers of other tests have threads.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    # The loader has two workers, even on one CPU.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

DEVICES = ["cpu", "sim:h200"]
Feeders = Callable[[], list[threading.Thread]]


class Squares:
    """A PyTorch data set, by the protocol alone."""

    def __init__(self, size: int, fails_at: int | None = None, dies_at: int | None = None) -> None:
        self.size = size
        self.fails_at = fails_at
        self.dies_at = dies_at

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.fails_at:
            raise LookupError(f"sample {index} is broken")
        if index == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": torch.full((5, 3), float(index)), "y": index**2, "name": f"sample {index}"}


def loader(data: Any, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    options = {"batch_size": 4, "num_workers": 2, **options}
    return DataLoader(data, **options)


def test_a_model_is_not_a_loader() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    for given in (model, model[0], torch.nn.ModuleDict({"a": model})):
        with pytest.raises(TypeError, match="give .*such as a DataLoader|whose keys would be the items"):
            prefetch(given, "cpu")

    class Source(torch.nn.Module):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    assert list(prefetch(Source(), "cpu")) == [0, 1, 2]


def test_a_data_set_is_taken_with_a_word_on_what_a_loader_is() -> None:
    from torch.utils.data import IterableDataset, TensorDataset

    with pytest.warns(
        UserWarning,
        match=r"loader is a TensorDataset, which gives one sample at a time .* give DataLoader\(dataset",
    ) as said:
        samples = prefetch(TensorDataset(torch.arange(3)), "cpu")
    assert said[0].filename == __file__ and [sample[0].item() for sample in samples] == [0, 1, 2]

    class Batches(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return iter([torch.ones(4)])

    # The items of this data set may be batches; it and a loader are accepted without a warning.
    assert len(list(prefetch(Batches(), "cpu"))) == 1
    assert len(list(prefetch(loader(Batches(), batch_size=None, num_workers=0), "cpu"))) == 1


def values(given: Any) -> Any:
    return given.numpy() if isinstance(given, DeviceArray) else np.asarray(given)


def check(given: dict[str, Any], first: int, count: int) -> None:
    indices = np.arange(first, first + count)
    assert np.array_equal(values(given["x"]), np.ones((count, 5, 3), np.float32) * indices[:, None, None])
    assert values(given["x"]).dtype == np.float32
    assert np.array_equal(values(given["y"]), indices**2)
    assert given["name"] == [f"sample {index}" for index in indices]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{"num_workers": 0}, {}, {"persistent_workers": True}])
def test_every_epoch_gives_what_the_loader_gives(
    device: str, options: dict[str, Any], feeders: Feeders
) -> None:
    with prefetch(loader(Squares(18), **options), device) as batches:
        assert len(batches) == 5
        for _ in range(2):
            sizes: list[int] = []
            for given in batches:
                count = len(given["name"])
                check(given, sum(sizes), count)
                sizes.append(count)
            assert sizes == [4, 4, 4, 4, 2]
    assert not feeders()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_an_epoch_that_is_left_early_is_followed_by_a_whole_one(
    device: str, options: dict[str, Any], feeders: Feeders
) -> None:
    batches = prefetch(loader(Squares(40), **options), device)
    for given in batches:
        check(given, 0, 4)
        break
    assert [len(given["name"]) for given in batches] == [4] * 10
    batches.close()
    assert not feeders()


@pytest.mark.parametrize("device", DEVICES)
def test_an_error_in_a_worker_comes_after_the_good_batches_with_its_traceback(device: str) -> None:
    batches = iter(prefetch(loader(Squares(40, fails_at=9)), device))
    check(next(batches), 0, 4)
    check(next(batches), 4, 4)
    with pytest.raises(
        LookupError, match=r"(?s)in DataLoader worker process.*in __getitem__.*sample 9 is broken"
    ):
        next(batches)


@pytest.mark.parametrize("device", DEVICES)
def test_a_worker_that_is_killed_is_reported_and_the_program_ends(device: str) -> None:
    # A separate program: a worker that dies while it writes may leave the loader, and so the thread, waiting
    # forever. The worker dies before it has returned a batch: otherwise the loader might be requesting a
    # batch's memory from the worker when it dies.
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_prefetch_torch import Squares, loader, prefetch
try:
    for _ in prefetch(loader(Squares(40, dies_at=1)), {device!r}):
        pass
except RuntimeError as error:
    print(error)
"""
    ran = python("-c", code)
    assert ran.returncode == 0 and "DataLoader worker" in ran.stdout, (ran.stdout, ran.stderr)


@pytest.mark.parametrize("device", DEVICES)
def test_an_iterable_data_set_has_no_length(device: str) -> None:
    from torch.utils.data import IterableDataset

    class Counts(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter(range(7))

    batches = prefetch(loader(Counts(), batch_size=3, num_workers=1), device)
    with pytest.raises(TypeError):
        len(batches)
    assert [values(given).tolist() for given in batches] == [[0, 1, 2], [3, 4, 5], [6]]


def test_the_processor_hands_on_the_very_tensors() -> None:
    given = [torch.ones(3), {"x": torch.zeros(2)}]
    taken = next(iter(prefetch([given], torch.device("cpu"))))
    assert taken is given


def test_without_a_gpu_the_default_is_the_processor() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert prefetch([]).statistics.device == "cpu"


def test_tensors_of_every_kind_reach_a_simulated_gpu_as_their_values() -> None:
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    parameter = torch.nn.Parameter(torch.ones(3))
    kinds = [
        whole[::2],
        whole.T,
        torch.tensor(2.5),
        torch.zeros(0, 3),
        parameter,
        whole.to(torch.complex64).conj(),
    ]
    # The sign of this tensor is not stored in its memory.
    kinds.append(torch.tensor([1 + 2j]).conj().imag)
    assert kinds[-1].is_neg() and kinds[-1].is_contiguous()
    given = next(iter(prefetch([kinds], "sim:h200")))
    for one, expected in zip(given, kinds, strict=True):
        assert np.array_equal(one.numpy(), expected.detach().resolve_conj().resolve_neg().numpy())
    (half,) = next(iter(prefetch([[whole.bfloat16()]], "sim:h200")))
    assert (half.dtype, half.nbytes) == ("bfloat16", 48)
    with pytest.raises(
        TypeError,
        match=r"numpy has no type for bfloat16: .* cannot reach a simulated device; convert it in the loader",
    ):
        half.numpy()


@pytest.mark.parametrize("kind", [tuple, list])
def test_plain_tensors_are_taken_apart_as_all_others_are(kind: Any) -> None:
    for count in range(4):
        plain = [torch.ones(2) for _ in range(count)]
        _tree.flatten(plain)  # The class is known from here on.
        leaves, shape = _tree.flatten(kind(plain))
        assert all(map(operator.is_, leaves, plain)) and len(leaves) == count
        assert shape.unflatten([*range(count)]) == kind(range(count)) and not shape.has_objects
        assert shape.is_same(_tree.flatten(kind(map(torch.nn.Parameter, plain)))[1])
        assert shape.path_of(1) == ("[1]" if count > 1 else "")
    (leaf,), shape = _tree.flatten(plain[0])
    assert leaf is plain[0] and shape.unflatten([7]) == 7 and shape.path_of(0) == ""


def test_what_is_not_dense_is_refused_with_its_place() -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(
        TypeError, match=r"^batch 0, \['adjacency'\]: this tensor is sparse.* convert it in the loader"
    ):
        next(iter(prefetch([{"adjacency": sparse}], "sim:h200")))
    with pytest.raises(TypeError, match=r"^batch 0: this tensor is on meta"):
        next(iter(prefetch([torch.ones(3, device="meta")], "sim:h200")))


def test_the_owners_of_a_tensor_are_known() -> None:
    from sidestream._leaves import is_sole_owner

    if not hasattr(torch.UntypedStorage, "resizable"):
        pytest.skip("this PyTorch does not say")

    leaves = [torch.ones(3), torch.ones(4), torch.ones(5)]
    held = leaves[1]
    view = leaves[2][1:]
    assert [is_sole_owner(leaves, at) for at in range(3)] == [True, False, False]
    del held, view
    assert [is_sole_owner(leaves, at) for at in range(3)] == [True, True, True]


def test_batches_of_a_loader_have_no_other_owner() -> None:
    from sidestream._leaves import is_sole_owner, makes_each_anew
    from sidestream._tree import flatten

    if not hasattr(torch.UntypedStorage, "resizable"):
        pytest.skip("this PyTorch does not say")

    def reused() -> Iterator[Any]:
        memory = torch.empty(3)
        while True:
            yield {"x": memory}

    def sole(batches: Iterator[Any]) -> bool:
        leaves, _ = flatten(next(batches))
        return is_sole_owner(leaves, 0)

    def of_numpy() -> Iterator[Any]:
        memory = np.empty(3, np.float32)
        while True:
            yield {"x": torch.from_numpy(memory)}

    assert sole(iter(loader(Squares(8), num_workers=0)))
    # Memory that is shared with a worker has an owner that is not counted, but each batch has its own.
    assert makes_each_anew(loader(Squares(8))) and not makes_each_anew(loader(Squares(8), num_workers=0))
    assert not sole(reused())
    assert not sole(of_numpy())


def test_the_loader_sees_the_modes_and_variables_of_the_iterating_thread() -> None:
    import contextvars

    variable = contextvars.ContextVar("variable", default="unset")

    def seen() -> Iterator[Any]:
        yield torch.is_grad_enabled(), torch.is_inference_mode_enabled(), variable.get()

    variable.set("set")
    assert list(prefetch(seen(), "cpu")) == [(True, False, "set")]
    with torch.no_grad():
        assert list(prefetch(seen(), "cpu")) == [(False, False, "set")]
    with torch.inference_mode():
        assert list(prefetch(seen(), "cpu")) == [(False, True, "set")]


def test_the_loader_sees_autocast_and_the_default_device_of_the_iterating_thread() -> None:
    from torch.overrides import TorchFunctionMode

    left, right = torch.ones(2, 2), torch.ones(2, 2)
    called = []

    class Named(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    def seen() -> Iterator[Any]:
        for _ in range(3):
            made = torch.zeros(2)
            yield (left @ right).dtype, made.device.type, torch.is_autocast_cache_enabled()

    def both() -> None:
        plain = list(seen())
        assert list(prefetch(seen(), "cpu")) == plain

    both()
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        both()
        assert [dtype for dtype, _, _ in prefetch(seen(), "cpu")] == [torch.bfloat16] * 3
    with torch.device("meta"):
        both()
        assert [device for _, device, _ in prefetch(seen(), "cpu")] == ["meta"] * 3
        # The thread has left the modes that it entered, and no other thread sees them.
        assert torch.zeros(2).device.type == "meta"
    torch.set_default_device("meta")
    try:
        both()
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"
    with Named(), torch.device("meta"):
        assert [device for _, device, _ in prefetch(seen(), "cpu")] == ["meta"] * 3
    assert called.count("zeros") == 3
    assert list(prefetch(seen(), "cpu"))[0] == (torch.float32, "cpu", True)


class Stuck:
    """A data set whose later samples never arrive."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index >= 8:
            threading.Event().wait()
        return index


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"prefetch_factor": 4}])
def test_a_wait_for_workers_ends_with_the_iteration(
    device: str, options: dict[str, Any], feeders: Feeders, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loader itself waits this long for workers that it has told to end.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.05)
    with prefetch(loader(Stuck(), **options), device) as batches:
        iteration = iter(batches)
        assert [values(next(iteration)).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert not feeders()


def test_a_terminal_interrupt_ends_a_program_with_workers_as_without_the_prefetcher() -> None:
    # The terminal's interrupt goes to all processes of the program. The limit only ends a test that has
    # failed.
    code = f"""
import os, signal, sys
# A background process inherits that the signal is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_prefetch_torch import Stuck, loader, prefetch
for at, _ in enumerate(prefetch(loader(Stuck()), "sim:h200")):
    if at == 1:
        print("taken", flush=True)
"""
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None and program.stdout.readline() == "taken\n"
    os.killpg(program.pid, signal.SIGINT)
    _, said = program.communicate(timeout=300)
    assert program.returncode == -signal.SIGINT and said.rstrip().endswith("KeyboardInterrupt"), said
    assert "Exception ignored" not in said and "exited unexpectedly" not in said


def test_objects_with_tensors_are_said_to_stay_where_nothing_can_move_them() -> None:
    class Graph:
        def __init__(self) -> None:
            self.x = torch.ones(3)

        def to(self, device: Any) -> Graph:
            raise AssertionError(device)

    batches = prefetch([[Graph()]] * 4, "sim:h200")
    with pytest.warns(UserWarning, match="the arrays of a .*Graph stay on the host") as said:
        for _ in range(2):
            assert all(type(given) is Graph for (given,) in batches)
    assert len(said) == 1 and said[0].filename == __file__


def test_record_stream_still_does_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    from sidestream._hand_over import _note_streams_of_our_memory

    # A prefetcher of another test may have replaced this method before.
    before = torch._C.TensorBase.record_stream
    monkeypatch.setattr(torch.Tensor, "record_stream", before)
    _note_streams_of_our_memory(torch)
    once = torch.Tensor.record_stream
    _note_streams_of_our_memory(torch)
    assert torch.Tensor.record_stream is once is not before
    assert once.__doc__ == before.__doc__
    with pytest.raises((RuntimeError, NotImplementedError, TypeError, AttributeError)):
        torch.ones(3).record_stream(None)


def test_the_processor_goes_by_all_its_names() -> None:
    for name in ("cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)):
        [batch] = prefetch([torch.ones(2)], name)
        assert batch.device.type == "cpu"
