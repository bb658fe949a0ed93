"""Pipelines of PyTorch callables on the CPU: results, errors, epochs and branches."""

from __future__ import annotations

import gc
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sidestream
import torch
from sidestream import Pipeline, Stage, StageError

pytestmark = pytest.mark.torch


def add(amount: int) -> Callable[[Any], Any]:
    def stage(item: Any) -> Any:
        return item + amount

    return stage


class Model:
    """A frozen encoder and a decoder in training, with dropout, as two stages."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.encoder = torch.nn.Linear(8, 6)
        self.decoder = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(6, 3))
        self.optimizer = torch.optim.SGD(self.decoder.parameters(), lr=0.1, momentum=0.9)

    def encode(self, item: Any) -> Any:
        images, labels = item
        with torch.no_grad():
            return self.encoder(images).relu(), labels

    def train(self, item: Any) -> Any:
        features, labels = item
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.decoder(features), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def batches(count: int) -> list[Any]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator))
        for _ in range(count)
    ]


@pytest.mark.parametrize("mode", ["auto", "serial", "streams"])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_training_through_a_pipeline_is_training_in_a_loop(mode: Any, depth: int) -> None:
    data = batches(7)
    plain = Model()
    torch.manual_seed(0)
    expected = [plain.train(plain.encode(item)) for _ in range(2) for item in data]
    piped = Model()
    pipe = Pipeline([piped.encode, piped.train], mode=mode, depth=depth, device="cpu")
    torch.manual_seed(0)
    losses = [loss for _ in range(2) for loss in pipe(data)]
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    for one, other in zip(plain.decoder.parameters(), piped.decoder.parameters(), strict=True):
        assert torch.equal(one, other)


def test_branches_get_the_same_item_and_are_joined() -> None:
    pipe = Pipeline(
        [add(1), (add(10), Stage(add(20), name="other")), lambda pair: pair[0] * pair[1]], device="cpu"
    )
    assert [int(result) for result in pipe([torch.tensor(1), torch.tensor(2)])] == [12 * 22, 13 * 23]
    ends_in_branches = Pipeline([(add(1), add(2))], device="cpu")
    assert list(ends_in_branches([1, 2])) == [(2, 3), (3, 4)]
    assert list(Pipeline([(add(1),)], device="cpu")([1])) == [(2,)]


def test_items_and_results_may_be_anything() -> None:
    import numpy as np

    kinds: list[Any] = []

    def look(item: Any) -> None:
        kinds.append(item)

    frozen = np.arange(3, dtype=np.float32)
    frozen.flags.writeable = False
    item = {"x": np.ones((2, 2)), "y": [frozen, np.arange(4)[::-1]], "z": "text", "n": None}
    assert list(Pipeline([look], device="cpu")([item, None, 3])) == [None, None, None]
    seen = kinds[0]
    assert list(seen) == ["x", "y", "z", "n"] and (seen["z"], seen["n"]) == ("text", None)
    assert torch.equal(seen["x"], torch.ones(2, 2, dtype=torch.float64))
    assert seen["y"][0].tolist() == [0, 1, 2] and seen["y"][1].tolist() == [3, 2, 1, 0]
    assert kinds[1:] == [None, 3]


def test_results_come_in_order_and_after_as_many_items_as_are_in_flight() -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for number in range(6):
            asked.append(number)
            yield number

    results = Pipeline([add(0), add(100)], depth=3, device="cpu")(items())
    assert next(results) == 100 and asked == [0, 1, 2]
    assert next(results) == 101 and asked == [0, 1, 2, 3]
    assert list(results) == [102, 103, 104, 105]


def test_a_stage_that_fails_is_named_after_the_results_before_it() -> None:
    def fails(item: int) -> int:
        if item == 3:
            raise KeyError("no such label")
        return item

    pipe = Pipeline([add(0), Stage(fails, name="decode")], device="cpu")
    seen = []
    with pytest.raises(StageError, match="stage `decode`, item 3: KeyError: 'no such label'") as raised:
        for result in pipe(range(10)):
            seen.append(result)
    assert seen == [0, 1, 2]
    assert isinstance(raised.value.__cause__, KeyError)
    assert (raised.value.stage, raised.value.item) == ("decode", 3)
    assert list(pipe([5, 6])) == [5, 6]


def test_an_error_of_the_loader_is_raised_as_it_is_after_the_results_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    seen = []
    with pytest.raises(OSError, match="the disk is gone") as raised:
        for result in Pipeline([add(0)], device="cpu")(items()):
            seen.append(result)
    assert seen == [1, 2]
    assert "items" in [entry.name for entry in raised.traceback]


def test_a_graph_that_would_leave_a_stage_is_refused() -> None:
    layer = torch.nn.Linear(2, 2)
    pipe = Pipeline([Stage(layer, name="encoder"), lambda item: item.detach()], device="cpu")
    with pytest.raises(
        StageError, match=r"stage `encoder`, item 0: it returned a tensor that requires grad.*`\.detach\(\)`"
    ):
        list(pipe([torch.ones(1, 2)]))
    with torch.no_grad():
        assert len(list(pipe([torch.ones(1, 2)]))) == 1


def test_a_run_can_be_left_and_the_pipeline_used_again() -> None:
    pipe = Pipeline([add(1)], device="cpu")
    for result in pipe(range(100)):
        if result == 3:
            break
    left = pipe(range(100))
    assert next(left) == 1
    assert list(pipe(range(3))) == [1, 2, 3]
    # A run that was left ends when the next one begins; continuing it is an error.
    with pytest.raises(RuntimeError, match="ended by another one of the same pipeline; use one at a time"):
        next(left)
    over = pipe(range(1))
    assert list(over) == [1] and list(pipe(range(1))) == [1] and list(over) == []
    closed = pipe(range(3))
    closed.close()
    assert list(closed) == []


def test_a_stage_may_not_run_its_own_pipeline() -> None:
    inner: list[Pipeline] = []
    pipe = Pipeline([lambda item: list(inner[0]([item]))], device="cpu")
    inner.append(pipe)
    with pytest.raises(StageError, match="a stage of it or another thread iterates over it too"):
        list(pipe([1]))


def test_a_stage_takes_names_and_choices_of_their_kinds() -> None:
    with pytest.raises(TypeError, match="capture is 'maybe'; give True or False"):
        Stage(add(1), capture="maybe")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name is 5; give a string"):
        Stage(add(1), name=5)  # type: ignore[arg-type]


def test_a_pipeline_says_why_it_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="has streams of this process and cannot be pickled"):
        pickle.dumps(Pipeline([len], device="cpu"))


def test_nothing_is_kept_once_a_run_has_ended() -> None:
    pipe = Pipeline([add(1), add(1)], device="cpu")
    tensors = [torch.ones(2) for _ in range(5)]
    watched = [weakref.ref(tensor) for tensor in tensors]
    results = [weakref.ref(result) for result in pipe(iter(tensors))]
    tensors.clear()
    gc.collect()
    assert [one() for one in watched + results] == [None] * 10


def test_a_loader_of_worker_processes_is_an_iterable_like_any_other() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=4, num_workers=1)
    pipe = Pipeline([lambda item: item[0] * 2], device="cpu")
    for _ in range(2):
        assert [result.tolist() for result in pipe(loader)] == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]


def test_without_cuda_the_choice_says_why() -> None:
    pipe = Pipeline([add(1), (add(2), add(3))], device="cpu", mode="streams")
    assert pipe.choice.mode == "serial" and not pipe.choice.measured
    assert (
        str(pipe.choice)
        == "serial: the device is cpu, so the stages run one after another on the CPU"
    )
    assert repr(pipe) == "<Pipeline stage > (stage, stage): serial>"
    pipe.remeasure()
    assert list(pipe([0])) == [(3, 4)]


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (lambda: Pipeline([]), ValueError, "the list is empty"),
        (lambda: Pipeline([()]), ValueError, "the tuple at place 0 of the stages is empty"),
        (lambda: Pipeline(add(1)), TypeError, "put the one stage into a list"),  # type: ignore[arg-type]
        (
            lambda: Pipeline([3]),
            TypeError,
            "a stage is a callable that takes one item, and the one at place 0 is int",
        ),
        (
            lambda: Pipeline([add(1), (add(1), [add(1)])]),
            TypeError,
            "the one at place 1 is list.*branches contain no lists",
        ),
        (
            lambda: Pipeline([add(1)], mode="fast"),  # type: ignore[arg-type]
            ValueError,
            'mode is .fast.; give "auto", "serial"',
        ),
        (lambda: Pipeline([add(1)], mode="graphs"), ValueError, "no stage may be captured; say capture=True"),
        (lambda: Pipeline([add(1)], depth=0), ValueError, "depth is 0; give how many items are in flight"),
        (lambda: Pipeline([add(1)], measure=0), ValueError, "measure is 0; give the maximum number"),
        (
            lambda: Pipeline([add(1)], depth="2"),  # type: ignore[arg-type]
            TypeError,
            "depth is '2'; give how many",
        ),
        (
            lambda: Pipeline([add(1)], capture="yes"),  # type: ignore[arg-type]
            TypeError,
            "capture is 'yes'; give True or False",
        ),
        (lambda: Pipeline(5), TypeError, "stages is 5; give a list of callables"),  # type: ignore[arg-type]
        (
            lambda: Pipeline([add(1)])(5),  # type: ignore[arg-type]
            TypeError,
            "items is 5; give something to iterate over",
        ),
    ],
)
def test_what_makes_no_pipeline_is_refused_with_the_remedy(
    make: Callable[[], Pipeline], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        make()


def test_a_pipeline_without_pytorch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="PyTorch is not installed; install the package torch"):
        sidestream.Pipeline([add(1)])


def test_only_a_loader_that_may_write_to_its_batches_again_is_blocked() -> None:
    from sidestream._pipeline._pipeline import may_refill
    from torch.utils.data import DataLoader

    items = [torch.zeros(2)]
    # A caller that has replaced one method may have replaced the other.
    refilling = type("Refilling", (DataLoader,), {})
    assert not may_refill(items)
    assert not may_refill(tuple(items))
    assert not may_refill(DataLoader(items, num_workers=1))
    assert may_refill(DataLoader(items))
    assert may_refill(refilling(items, num_workers=1))
    assert may_refill(iter(items))
    assert may_refill(item for item in items)


def test_an_error_that_was_handled_keeps_no_item_alive() -> None:
    def fails(item: Any) -> Any:
        raise ArithmeticError("no")

    gc.disable()
    try:
        item = torch.ones(3)
        gone = weakref.ref(item)
        items = [item]
        del item
        try:
            list(Pipeline([fails], device="cpu")(items))
        except StageError:
            items.clear()
        assert gone() is None
    finally:
        gc.enable()


def test_a_run_has_a_length_where_its_items_have_one() -> None:
    pipe = Pipeline([lambda x: x + 1], device="cpu")
    run = pipe([torch.zeros(1)] * 3)
    assert len(run) == 3 and run
    assert len(list(run)) == 3
    with pytest.raises(TypeError, match="the run has ended"):
        len(run)
    with pytest.raises(TypeError, match="has no len"):
        len(pipe(x for x in [torch.zeros(1)]))
    assert not len(pipe([])) and pipe([])


def test_a_run_names_its_pipeline() -> None:
    run = Pipeline([Stage(lambda x: x, name="same")], device="cpu")([torch.zeros(1)])
    assert repr(run) == "<Run of <Pipeline same: serial>, under way>"
    list(run)
    assert repr(run) == "<Run of <Pipeline same: serial>, over>"


def test_one_batch_in_the_place_of_a_loader_is_named_where_its_first_part_fails() -> None:
    def train(batch: Any) -> Any:
        x, y = batch
        return x + y

    batch = [torch.ones(3), torch.zeros(3)]
    pipe = Pipeline([train], device="cpu")
    with pytest.raises(sidestream.StageError) as failed:
        list(pipe(batch))
    says = (
        "; the 2 values in the list are taken as separate items: "
        "give [items] if together they are one batch"
    )
    assert str(failed.value).endswith(says) and isinstance(failed.value.__cause__, ValueError)
    assert str(pickle.loads(pickle.dumps(failed.value))).endswith(says)
    assert len(list(pipe([batch]))) == 1
    with pytest.raises(TypeError, match="items is one dict, whose keys would be the items"):
        pipe({"x": batch[0], "y": batch[1]})

    def fails(item: Any) -> Any:
        raise ValueError("of its own")

    # The stage got an input that it accepts, and has another mistake.
    with pytest.raises(sidestream.StageError, match="of its own$"):
        list(Pipeline([fails], device="cpu")(batch))
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(sidestream.StageError, match=r"torch.no_grad\(\)`$"):
        list(Pipeline([lambda item: item * weight], device="cpu")(batch))
    # With a loader, or after the first item, this mistake is not suggested.
    for items in (iter(batch), [(1, 2), (3, 4)]):
        with pytest.raises(sidestream.StageError, match="of its own$"):
            list(Pipeline([fails], device="cpu")(items))


def test_one_tensor_is_not_a_list_of_items() -> None:
    rows = torch.zeros(4, 3)
    pipe = Pipeline([lambda x: x], device="cpu")
    for items in (rows, rows.numpy()):
        with pytest.raises(
            TypeError, match=r"items is one \w+ of shape \(4, 3\); give \[items\] if it is one item"
        ):
            pipe(items)
    assert len(list(pipe(iter(rows)))) == 4
    with pytest.raises(TypeError, match="loader is one Tensor of shape"):
        sidestream.prefetch(rows, "cpu")


def test_pinned_memory_of_a_pipeline_is_shown_and_limited() -> None:
    with sidestream.check(simulate=1) as found:
        pipe = Pipeline([add(1), add(2)], mode="streams", depth=2, max_pinned=9000)
        assert pipe.statistics.pinned_bytes == 0
        assert [float(result[0]) for result in pipe(torch.full((1000,), float(at)) for at in range(5))] == [
            3,
            4,
            5,
            6,
            7,
        ]
        assert pipe.statistics.pinned_bytes == 8000 and "8000 B of pinned memory" in str(pipe.statistics)
        results = iter(pipe([torch.ones(1000), torch.ones(2000)]))
        assert float(next(results)[0]) == 4
        with pytest.raises(
            ValueError,
            match=(
                "need 12.0 kB of pinned memory, and the limit is 9000 B; raise max_pinned, lower depth, "
                "or give items"
            ),
        ):
            next(results)
    assert not found.races, str(found)
    with pytest.raises(ValueError, match="max_pinned is 0"):
        Pipeline([add(1)], max_pinned=0)


def test_a_pipeline_says_whether_the_loader_is_the_limit() -> None:
    pipe = Pipeline([add(1)], device="cpu")
    assert list(pipe(range(12))) == list(range(1, 13))
    said = pipe.statistics
    assert (said.items, said.pinned_bytes) == (
        12,
        0,
    ) and 0 <= said.idle_s == said.waited_for_items_s <= said.elapsed_s
    assert said.to_dict()["verdict"] == said.verdict and said.json()
    for items, idle_s, verdict in (
        (9, 9.0, "9 items are too few to say whether the loader keeps up"),
        (10, 0.4, "the loader keeps up: 4 % of the time the stages only waited for it"),
        (
            10,
            5.0,
            "your loader is the limit: 50 % of the time the stages only waited for it, "
            "without which the loop would be 2.0 times as",
        ),
    ):
        statistics = sidestream.PipelineStatistics(items, 0, 10.0, 9.0, idle_s)
        assert statistics.verdict.startswith(verdict) and verdict in str(statistics)
