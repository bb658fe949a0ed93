"""``offload`` of weights that stay in their files: bits, memory that is pinned, and files that change."""

from __future__ import annotations

import copy
import importlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sidestream
import torch
from torch import nn

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not os.path.exists("/proc/self/pagemap"), reason="only Linux tells what is mapped"),
]
WIDTH = 192
LAYER = WIDTH * WIDTH * 4


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """A simulated GPU."""
    with sidestream.simulate("sim:h200"):
        yield


def linear() -> nn.Sequential:
    """Return layers that take turns."""
    torch.manual_seed(1)
    layers = [part for _ in range(6) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())]
    return nn.Sequential(*layers).requires_grad_(False)


def by_torch(path: Path, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Save and map weights as PyTorch does."""
    torch.save(state, path)
    loaded: dict[str, torch.Tensor] = torch.load(path, mmap=True)
    return loaded


def by_slices(path: Path, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Save and map weights as safetensors does: slices of one storage, behind a header."""
    header = 104
    path.write_bytes(b"h" * header + b"".join(of.numpy().tobytes() for of in state.values()))
    storage = torch.UntypedStorage.from_file(str(path), False, header + len(state) * LAYER)
    parts = [storage[header + at * LAYER : header + (at + 1) * LAYER] for at in range(len(state))]
    return {
        name: torch.asarray(part, dtype=torch.uint8).view(torch.float32).view(WIDTH, WIDTH)
        for name, part in zip(state, parts, strict=True)
    }


def mapped(path: Path, load: Callable[..., Any] = by_torch) -> tuple[nn.Sequential, nn.Sequential]:
    """Return a model whose weights are mapped from a file, and the same on the device."""
    model = linear()
    resident = copy.deepcopy(model).cuda()
    model.load_state_dict(load(path, dict(model.state_dict())), assign=True)
    return model, resident


def same(model: nn.Module, resident: nn.Module) -> bool:
    """Whether two models give the same bits."""
    x = torch.randn(3, WIDTH).cuda()
    with torch.no_grad():
        return bool(torch.equal(model(x), resident(x)))


@pytest.mark.parametrize("load", [by_torch, by_slices])
@pytest.mark.parametrize("layers", [2, 3, 5])
def test_layers_are_read_ahead_into_bounded_memory(
    tmp_path: Path, load: Callable[..., Any], layers: int
) -> None:
    model, resident = mapped(tmp_path / "weights", load)
    before = {name: of.data_ptr() for name, of in model.named_parameters()}
    with sidestream.check() as found:
        offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=layers * LAYER)
        assert offloaded.pinned_bytes <= layers * LAYER
        for _ in range(5):
            assert same(model, resident)
    assert not found.races, found
    stays = [name for name, of in model.named_parameters() if of.data_ptr() == before[name]]
    assert len(stays) == {2: 6, 3: 6, 5: 5}[layers]
    told = rf"{len(stays) * 147.456:.1f} kB are read from files; .* of the host are pinned"
    assert re.search(told, str(offloaded))
    assert same(offloaded.remove("cuda"), resident)


def test_without_a_bound_all_is_pinned(tmp_path: Path) -> None:
    model, resident = mapped(tmp_path / "weights")
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER)
    assert offloaded.pinned_bytes == 6 * LAYER and "files" not in str(offloaded)
    assert same(model, resident)


def test_where_the_host_has_no_room_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidestream._offload_model.available", lambda: 5 * LAYER)
    model, resident = mapped(tmp_path / "weights")
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER)
    assert offloaded.pinned_bytes == 2 * LAYER
    assert same(model, resident) and same(model, resident)
    # What is in no file is pinned as ever.
    assert sidestream.offload(linear(), "cuda", budget=2 * LAYER).pinned_bytes == 6 * LAYER


def test_a_file_may_be_deleted_but_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    model, resident = mapped(path)
    sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=2 * LAYER)
    with path.open("r+b") as writable:
        path.unlink()
        assert same(model, resident) and same(model, resident)
        size = os.fstat(writable.fileno()).st_size
        writable.truncate(size // 2)
    with pytest.raises(RuntimeError, match=rf"weights has changed .*{size} bytes then, {size // 2} now"):
        same(model, resident)
    with pytest.raises(RuntimeError, match="load the model again"):
        same(model, resident)


def test_a_file_that_is_written_in_place_has_another_time(tmp_path: Path) -> None:
    model, resident = mapped(tmp_path / "weights")
    sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=2 * LAYER)
    os.utime(tmp_path / "weights", (1, 1))
    with pytest.raises(RuntimeError, match=r"weights has changed .*\(its modification time differs\)"):
        same(model, resident)


def test_what_has_to_be_pinned_is_said(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    model, _ = mapped(path)
    with pytest.raises(
        ValueError, match=r"pinned is 100.0 kB, .*it needs room for two layers of .* at least 294.9 kB$"
    ):
        sidestream.offload(model, "cuda", budget=2 * LAYER, pinned="100 kB")
    (tmp_path / "new").write_bytes(path.read_bytes())
    (tmp_path / "new").replace(path)
    with pytest.raises(ValueError, match=rf"; {path} was deleted, replaced or written after loading$"):
        sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=2 * LAYER)


def test_what_is_not_needed_any_more_gives_room_to_what_comes(tmp_path: Path) -> None:
    class Some(nn.Module):  # type: ignore[misc]
        """Of all layers, the first ones."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = linear()
            self.load_state_dict(by_torch(tmp_path / "weights", dict(self.state_dict())), assign=True)

        def forward(self, x: torch.Tensor, parts: int) -> torch.Tensor:
            for layer in self.layers[: 2 * parts]:
                x = layer(x)
            return x

    model = Some()
    resident = copy.deepcopy(model).cuda()
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=3 * LAYER)
    for parts in (6, 6, 3, 3, 3, 3):
        x = torch.randn(3, WIDTH).cuda()
        with torch.no_grad():
            assert torch.equal(model(x, parts), resident(x, parts))
    # Which layers are in the slabs now depends on the threads that read.
    assert offloaded.pinned_bytes <= 3 * LAYER


def test_weights_that_were_changed_are_not_read_from_the_file(tmp_path: Path) -> None:
    model, resident = mapped(tmp_path / "weights")
    with torch.no_grad():
        for each in (model, resident):
            each[4].weight[WIDTH // 2 :].mul_(2)
    with pytest.raises(
        ValueError, match=r"pinned is 294.9 kB, .* too little: .*, or were changed and two layers"
    ):
        sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=2 * LAYER)
    # A page may have bytes of the layer before it or after it, too.
    sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=5 * LAYER)
    assert model[4].weight.is_pinned()
    assert same(model, resident)


def test_weights_in_files_are_neither_trained_nor_changed(tmp_path: Path) -> None:
    model, _ = mapped(tmp_path / "weights")
    model.requires_grad_()
    sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=2 * LAYER)
    with pytest.raises(RuntimeError, match=r"weight was changed, or is trained, but stays in .*weights"):
        model(torch.randn(3, WIDTH).cuda())
    with torch.no_grad():
        model[2].weight.add_(1)
        with pytest.raises(RuntimeError, match="leave out `pinned`, or raise it"):
            model(torch.randn(3, WIDTH).cuda())
    few = r"pinned is 100.0 kB, 784.7 kB too little: it needs room for 884.7 kB of weights that are not"
    with pytest.raises(ValueError, match=few):
        sidestream.offload(linear(), "cuda", budget=2 * LAYER, pinned="100 kB")


def zero(model: nn.Sequential, _: Any) -> None:
    """Change a weight in place."""
    model[6].weight.zero_()


def load(model: nn.Sequential, _: Any) -> None:
    """Load other values."""
    state = model.state_dict()
    model.load_state_dict({**state, "6.weight": state["6.weight"] + 1}, strict=False)


def through_data(model: nn.Sequential, offloaded: Any) -> None:
    """Change a weight in a way that PyTorch does not count."""
    model[6].weight.data.mul_(2)
    offloaded.changed()


@pytest.mark.parametrize("passes", [0, 1, 3])
@pytest.mark.parametrize("change", [zero, load, through_data])
def test_changes_of_weights_in_files_are_refused_whenever_they_happen(
    tmp_path: Path, change: Callable[..., None], passes: int
) -> None:
    model, resident = mapped(tmp_path / "weights")
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=2 * LAYER)
    for _ in range(passes):
        assert same(model, resident)
    with torch.no_grad():
        change(model, offloaded)
    named = "0" if change is load else "6"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=rf'"{named}", Linear\'s weight was changed, .*weights'):
            same(model, resident)


def test_changed_is_no_error_where_nothing_changed(tmp_path: Path) -> None:
    model, resident = mapped(tmp_path / "weights")
    offloaded = sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=2 * LAYER)
    for _ in range(3):
        offloaded.changed()
        assert same(model, resident)


def test_frozen_weights_in_files_carry_gradients_to_others(tmp_path: Path) -> None:
    model, resident = mapped(tmp_path / "weights")
    sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=2 * LAYER)
    for _ in range(4):
        x = torch.randn(3, WIDTH)
        given = [x.cuda().requires_grad_() for _ in range(2)]
        for each, on_device in zip((model, resident), given, strict=True):
            each(on_device).square().sum().backward()
        assert torch.equal(given[0].grad, given[1].grad)


def test_after_a_read_that_fails_the_next_pass_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, resident = mapped(tmp_path / "weights")
    sidestream.offload(model, "cuda", budget=2 * LAYER, pinned=2 * LAYER)
    pages: Any = importlib.import_module("sidestream._offload_pages")

    fails, read_at = [1], pages.read_at

    def failing(descriptor: int, at: int, into: memoryview) -> int:
        fails[0] -= 1
        if fails[0] == 0:
            raise OSError(5, "Input/output error")
        return int(read_at(descriptor, at, into))

    monkeypatch.setattr(pages, "read_at", failing)
    with pytest.raises(OSError, match="Input/output error"):
        same(model, resident)
    assert same(model, resident) and same(model, resident)
