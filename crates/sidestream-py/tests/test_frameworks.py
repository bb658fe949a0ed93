"""Prefetching around the loaders of other frameworks, which are unmodified.

`cargo xtask python --frameworks` installs them. The tests run on the CPU and on a simulated GPU.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from sidestream import DeviceArray, prefetch

pytestmark = [
    pytest.mark.frameworks,
    # Warnings of these libraries about each other do not matter here.
    pytest.mark.filterwarnings("ignore"),
]

DEVICES = ["cpu", "sim:h200"]


def tensors(batch: Any) -> Any:
    """Convert arrays of a simulated GPU to host tensors."""
    return [torch.from_numpy(each.numpy()) if isinstance(each, DeviceArray) else each for each in batch]


@contextmanager
def silence() -> Iterator[None]:
    """Make any warning of this package fail the test."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="each of the|accelerate accumulates")
        yield


def data(size: int) -> Any:
    generator = torch.Generator().manual_seed(size)
    return torch.utils.data.TensorDataset(torch.randn(size, 5, generator=generator), torch.arange(size))


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    yield
    state: Any = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(True)
        state.GradientState._reset_state()


# ---------------------------------------------------------------------- accelerate


def accelerated(size: int, accumulate: int, wrap: Callable[[Any], Any]) -> list[Any]:
    """Train two epochs. Return a record of each batch, and the weights."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader: Any = torch.utils.data.DataLoader(data(size), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = wrap(loader)
    happened: list[Any] = []
    state = accelerator.gradient_state
    for _ in range(2):
        for batch in batches:
            x, y = tensors(batch)
            assert state.active_dataloader is batches
            happened.append((y.tolist(), state.end_of_dataloader, state.remainder, batches.end_of_dataloader))
            with accelerator.accumulate(model):
                loss = (model(x).squeeze(1) - y).square().mean()
                accelerator.backward(loss)
                happened.append((accelerator.sync_gradients, loss.item()))
                optimizer.step()
                optimizer.zero_grad()
        assert not state.in_dataloader and batches.iteration == loader.iteration
    happened.append([p.detach().numpy().tobytes() for p in model.parameters()])
    state_type = type(accelerator.state)
    state_type._reset_state(True)
    type(state)._reset_state()
    return happened


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("accumulate", "size"), [(2, 72), (3, 80), (4, 80), (4, 64), (3, 79)])
def test_training_with_accelerate_is_that_of_the_plain_loop_bit_for_bit(
    accumulate: int, size: int, device: str
) -> None:
    plain = accelerated(size, accumulate, lambda loader: loader)
    for depth in (1, 2, 5):
        assert accelerated(size, accumulate, lambda loader: prefetch(loader, device, depth)) == plain


def test_a_loop_in_a_loop_and_one_that_is_left_count_as_with_accelerate_alone() -> None:
    from accelerate import Accelerator

    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        train, test = (torch.utils.data.DataLoader(data(size), batch_size=4) for size in (20, 10))
        train, test = wrap(accelerator.prepare(train)), wrap(accelerator.prepare(test))
        state, seen = accelerator.gradient_state, []
        for at, _ in enumerate(train):
            for inner, _ in enumerate(test):
                seen.append((state.active_dataloader is test, state.end_of_dataloader, state.remainder))
                if at == 3 and inner == 1:
                    break
            seen.append((state.active_dataloader is train, state.end_of_dataloader, state.remainder))
        type(accelerator.state)._reset_state(True)
        type(state)._reset_state()
        return seen

    assert run(lambda loader: prefetch(loader, "cpu")) == run(lambda loader: loader)


def test_a_prefetcher_in_a_prefetcher_tells_accelerate_of_what_is_taken_at_last() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    inner = prefetch(accelerator.prepare(torch.utils.data.DataLoader(data(80), batch_size=8)), "cpu", 3)
    loader = prefetch(inner, "cpu", 3)
    for _ in range(2):
        seen = [accelerator.gradient_state.end_of_dataloader for _ in loader]
        assert seen == [False] * 9 + [True]
        assert not accelerator.gradient_state.in_dataloader


def test_a_loader_that_accelerate_does_not_know_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from accelerate import Accelerator
    from sidestream import _ranks

    monkeypatch.setattr(_ranks, "_said", set())
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    plain = torch.utils.data.DataLoader(data(12), batch_size=4)
    batches = accelerator.prepare(prefetch(plain, "cpu"))
    model = accelerator.prepare(torch.nn.Linear(5, 1))

    def train(loader: Any) -> None:
        for _ in loader:
            with accelerator.accumulate(model):
                pass

    # A loop that accumulates no gradients, alone and inside a loop over a loader that accelerate knows.
    with silence():
        list(batches)
        for _ in accelerator.prepare(plain):
            with accelerator.accumulate(model):
                list(batches)
        train(prefetch(accelerator.prepare(plain), "cpu"))
        train(prefetch(torch.utils.data.DataLoader(data(12), batch_size=3), "cpu"))
    with pytest.warns(
        UserWarning, match=r"accumulates gradients over 4 batches .*prefetch\(accelerator.prepare\(loader\)\)"
    ) as said:
        train(batches)
    assert said[0].filename == __file__
    with silence():
        train(batches)


def test_a_state_of_accelerate_says_what_was_taken() -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    def loader() -> Any:
        accelerator = Accelerator(
            cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True)
        )
        return accelerator.prepare(torch.utils.data.DataLoader(data(20), batch_size=4))

    def ids(batches: Any) -> list[Any]:
        return [y.tolist() for _, y in batches]

    for taken in range(1, 5):
        # accelerate checkpoints the loader that it knows.
        known = loader()
        batches = prefetch(known, "cpu", 3)
        first = ids(itertools.islice(batches, taken))
        for state in (known.state_dict(), batches.state_dict()):
            again = loader()
            again.load_state_dict(state)
            assert first + ids(prefetch(again, "cpu")) == ids(loader())
            other = prefetch(loader(), "cpu")
            other.load_state_dict(state)
            assert first + ids(other) == ids(loader())


TWO_RANKS = """
import os, sys, warnings
warnings.simplefilter("ignore")
rank = int(sys.argv[1])
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
import sidestream, torch
"""


def two_ranks(tmp_path: Path, code: str) -> list[str]:
    """Run a program on two ranks and return the last line of each."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = tmp_path / "ranks.py"
    program.write_text(TWO_RANKS + code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    # This limit only ends a test that has failed.
    said = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return [out.strip().splitlines()[-1] for out, _ in said]


def test_two_ranks_gather_what_the_plain_loop_gathers_and_nothing_else(tmp_path: Path) -> None:
    said = two_ranks(
        tmp_path,
        """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
data = torch.utils.data.TensorDataset(torch.arange(27))
def gathered(wrap, shuffle):
    torch.manual_seed(3)
    loader = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=4, shuffle=shuffle))
    out = []
    for _ in range(2):
        for (x,) in wrap(loader):
            out.append(accelerator.gather_for_metrics(x).tolist())
    return out
for shuffle in (False, True):
    plain = gathered(lambda loader: loader, shuffle)
    assert gathered(lambda loader: sidestream.prefetch(loader, "cpu"), shuffle) == plain
    assert sorted(sum(plain[:len(plain) // 2], [])) == list(range(27))
from accelerate.data_loader import prepare_data_loader
dispatched = prepare_data_loader(
    torch.utils.data.DataLoader(data, batch_size=4), dispatch_batches=True, put_on_device=True
)
try:
    sidestream.prefetch(dispatched, "cpu")
except ValueError as error:
    assert "dispatch_batches=False" in str(error)
    print("ok")
accelerator.end_training()
""",
    )
    assert said == ["ok", "ok"]


# ---------------------------------------------------------------------- Lightning


def test_two_ranks_of_lightning_train_on_a_half_each(tmp_path: Path) -> None:
    said = two_ranks(
        tmp_path,
        """
import logging
logging.disable(logging.WARNING)
import lightning.pytorch as pl
from sidestream.lightning import Prefetch

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.tested = torch.nn.Linear(1, 1), [], []
    def training_step(self, batch, index):
        self.seen.append(batch[0].flatten().int().tolist())
        return self.layer(batch[0]).sum()
    def validation_step(self, batch, index):
        self.tested.append(batch[0].flatten().int().tolist())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-5)
    def train_dataloader(self):
        return loader(64, True)
    def val_dataloader(self):
        return loader(16, False)

def loader(size, shuffle):
    data = torch.utils.data.TensorDataset(torch.arange(size).float().unsqueeze(1))
    return torch.utils.data.DataLoader(data, batch_size=4, shuffle=shuffle)

def trained(callbacks):
    pl.seed_everything(5, verbose=False)
    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, callbacks=callbacks, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(module)
    kinds = {type(each).__name__ for each in trainer.fit_loop._combined_loader.flattened}
    return module.seen, module.tested, module.layer.weight.item(), kinds

plain = trained([])
ours = trained([Prefetch()])
assert ours[:3] == plain[:3], (ours, plain)
assert ours[3] == {"Prefetcher"}, ours[3]
print(sorted(sum(ours[0][:8], [])))
""",
    )
    first, second = (eval(each) for each in said)  # noqa: S307 - lists of numbers.
    assert len(first) == len(second) == 32 and sorted(first + second) == list(range(64))


# ---------------------------------------------------------------------- Trainer, torchdata, timm, tensordict


def test_a_trainer_of_transformers_trains_as_without_it(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(5, 1)

        def forward(self, x: Any, labels: Any) -> Any:
            return {"loss": (self.layer(x).squeeze(1) - labels).square().mean()}

    class Prefetching(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return prefetch(super().get_train_dataloader(), self.args.device)

    def trained(kind: Any, accumulate: int) -> Any:
        torch.manual_seed(2)
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_train_epochs=2,
            gradient_accumulation_steps=accumulate,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        samples = [{"x": x, "labels": y.float()} for x, y in data(42)]
        trainer = kind(model=Model(), args=arguments, train_dataset=samples)
        steps = trainer.train().global_step
        return steps, [p.detach().numpy().tobytes() for p in trainer.model.parameters()]

    for accumulate in (1, 4):
        assert trained(Prefetching, accumulate) == trained(Trainer, accumulate)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_continues_after_the_batch_that_was_taken(workers: int, device: str) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> Any:
        torch.manual_seed(7)
        return StatefulDataLoader(data(44), batch_size=4, shuffle=True, num_workers=workers)

    def ids(batches: Any) -> list[Any]:
        return [tensors(batch)[1].tolist() for batch in batches]

    expected = ids(loader())
    for taken in (0, 1, 5, 10, 11):
        with prefetch(loader(), device, 3) as batches:
            iteration = iter(batches)
            first = ids(itertools.islice(iteration, taken))
            state = batches.state_dict()
        again = prefetch(loader(), device, 3)
        again.load_state_dict(state)
        rest = ids(again)
        if taken < 11:
            assert first + rest == expected
        again.close()


def test_what_a_loader_has_is_reached_through_the_prefetcher() -> None:
    from torch.utils.data import DataLoader, DistributedSampler

    samples = data(20)
    sampler = DistributedSampler(samples, num_replicas=2, rank=1)
    loader = DataLoader(samples, batch_size=4, sampler=sampler, drop_last=True)
    batches = prefetch(loader, "cpu")
    for name in (
        "dataset",
        "batch_size",
        "sampler",
        "batch_sampler",
        "num_workers",
        "drop_last",
        "collate_fn",
        "generator",
    ):
        assert getattr(batches, name) is getattr(loader, name)
    batches.sampler.set_epoch(3)
    assert sampler.epoch == 3
    batches.worker_init_fn = print
    assert loader.worker_init_fn is print
    assert not hasattr(batches, "state_dict") and not hasattr(batches, "set_epoch")
    with pytest.raises(
        AttributeError, match="neither the Prefetcher nor the DataLoader in it has an attribute 'nothing'"
    ):
        batches.nothing
    with pytest.raises(
        ValueError, match="batch_size attribute should not be set after DataLoader is initialized"
    ):
        batches.batch_size = 3
    assert torch.is_tensor(next(iter(batches))[0])


def test_a_loader_of_timm_is_prefetched_with_its_attributes() -> None:
    from timm.data.loader import PrefetchLoader

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    inner = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.zeros(8, 3, 4, 4, dtype=torch.uint8), torch.arange(8)),
        batch_size=4,
    )
    loader = PrefetchLoader(inner, device=torch.device("cpu"))
    batches = prefetch(loader, "cpu")
    assert batches.sampler is inner.sampler and batches.dataset is inner.dataset and not batches.mixup_enabled
    batches.mixup_enabled = False
    assert [(x.dtype, y.tolist()) for x, y in batches] == [(x.dtype, y.tolist()) for x, y in loader]


def test_a_tensor_dict_comes_out_with_its_batch_size() -> None:
    from sidestream._tree import flatten
    from tensordict import TensorDict

    def one(at: int) -> Any:
        inner = TensorDict({"z": torch.full((2, 3), at)}, batch_size=[2, 3], names=["sample", "place"])
        made = TensorDict(
            {"x": torch.full((2, 4), float(at)), "inner": inner},
            batch_size=[2],
            device="cpu",
            names=["sample"],
        )
        return made.lock_() if at == 1 else made

    given = [{"td": one(at)} for at in range(3)]
    assert [each is other for each, other in zip(prefetch(given, "cpu"), given, strict=True)] == [True] * 3
    # A `TensorDict` cannot hold arrays that are not tensors.
    for at, batch in enumerate(prefetch(given, "sim:h200")):
        td = batch["td"]
        assert type(td) is dict and (td["x"].numpy() == at).all() and td["inner"]["z"].shape == (2, 3)
    for at in range(3):
        leaves, shape = flatten(given[at])
        made = shape.unflatten([leaf + 1 for leaf in leaves])["td"]
        assert type(made) is TensorDict and made.batch_size == torch.Size([2]) and made.names == ["sample"]
        assert made["inner"].batch_size == torch.Size([2, 3]) and made["inner"].names == ["sample", "place"]
        assert made.is_locked == (at == 1) and made.device == torch.device("cpu")
        assert (made["x"] == at + 1).all() and (made["inner", "z"] == at + 1).all()


def test_nothing_is_said_of_loaders_that_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from sidestream import _ranks
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

    monkeypatch.setattr(_ranks, "_said", set())
    monkeypatch.setattr(_ranks, "_world", lambda: 2)
    samples = data(8)

    class Stream(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with silence():
        list(prefetch(DataLoader(samples, sampler=DistributedSampler(samples, 2, 0)), "cpu"))
        list(prefetch(DataLoader(Stream()), "cpu"))
        list(prefetch([torch.ones(2)], "cpu"))
    for options in ({"shuffle": True}, {}):
        monkeypatch.setattr(_ranks, "_said", set())
        batches = prefetch(DataLoader(samples, **options), "cpu")
        with pytest.warns(
            UserWarning, match=r"each of the 2 ranks goes through all .*DistributedSampler\(dataset\)"
        ) as said:
            list(batches)
        with silence():
            list(batches)
        assert len(said) == 1 and said[0].filename == __file__
