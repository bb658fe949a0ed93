"""``images.Loader``: from picture files to batches."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
from sidestream import images
from sidestream.images import ImageError, Loader, _operator, _operators

if sys.platform != "linux":  # pragma: no cover
    pytest.skip("forks", allow_module_level=True)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures of four classes."""
    folder = tmp_path_factory.mktemp("samples")
    images.write_samples(folder, 1)
    return folder


@pytest.fixture
def few(samples: Path, tmp_path: Path) -> Path:
    """A list of five pictures, of which the fourth is truncated."""
    cut = tmp_path / "cut.jpg"
    cut.write_bytes((samples / "sea/03.jpg").read_bytes()[:2000])
    names = [samples / f"sea/0{number}.jpg" for number in (0, 1, 2)]
    lines = [*names, cut, samples / "sea/04.jpg"]
    (tmp_path / "list.txt").write_text("".join(f"{line},{label}\n" for label, line in enumerate(lines)))
    return tmp_path / "list.txt"


def test_the_classes_of_operators_are_those_of_the_table() -> None:
    written = Path(_operators.__file__)
    assert written.read_text() == _operator.source(), (
        f"run `python -m sidestream.images._operator FILE`, FILE being {written.name} in the sources"
    )
    assert {*_operators.__all__} <= {*images.__all__}


def digest(loader: Loader) -> list[tuple[list[int], bytes]]:
    """Return the rest of the epoch."""
    found = []
    for batch in loader:
        view = batch.view
        each = [bytes(view[at.offset : at.offset + at.width * at.height * 3]) for at in batch.placed]
        found.append((batch.samples, b"".join(each)))
    return found


def test_an_epoch_has_each_picture_once_with_its_class(samples: Path) -> None:
    with Loader(samples, batch_size=16, workers=2) as loader:
        assert (loader.classes, loader.samples, len(loader)) == (["city", "flowers", "hills", "sea"], 40, 3)
        batches = list(loader)
        assert [len(batch) for batch in batches] == [16, 16, 8]
        for batch in batches:
            assert batch.epoch == 0
            for sample, label, placed in zip(batch.samples, batch.labels, batch.placed, strict=True):
                assert label is not None and loader.classes[label] in loader.name(sample)
                assert (placed.width, placed.height) == (placed.full_width, placed.full_height)
                assert placed.offset % 16 == 0
        assert sorted(sample for batch in batches for sample in batch.samples) == list(range(40))
        assert (loader.epoch, loader.loaded, loader.broken) == (1, 40, 0)


def test_batches_depend_on_the_seed_and_not_on_the_workers(samples: Path) -> None:
    one, many, other = (
        Loader(samples, workers=workers, depth=workers, seed=seed)
        for workers, seed in [(1, 3), (4, 3), (2, 4)]
    )
    first = digest(one)
    assert first == digest(many)
    assert first != digest(other)
    assert first != digest(one)


def test_a_state_resumes_and_says_where_it_does_not_fit(samples: Path) -> None:
    loader = Loader(samples, batch_size=8, seed=3)
    batches = iter(loader)
    next(batches), next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = digest(loader)
    resumed = Loader(samples, batch_size=8, seed=3, workers=1)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)  # As loops do; the loader is in that epoch already.
    assert digest(resumed) == rest
    with pytest.raises(
        ValueError, match="the state has seed 3, and this loader 4; make the loader with the same options"
    ):
        Loader(samples, seed=4).load_state_dict(state)
    with pytest.raises(ValueError, match="the files or their labels have changed since"):
        Loader(samples, seed=3, classes=["sea", "city"]).load_state_dict(state)
    with pytest.raises(ValueError, match="this is not the state of a loader"):
        loader.load_state_dict({"epoch": 1})


def test_a_state_belongs_to_its_augmentation(samples: Path) -> None:
    def loader(*operators: images.Operator, seed: int = 1, **more: Any) -> Loader:
        return Loader(samples, batch_size=8, augment=images.Compose(operators, seed=seed, **more))

    crop, flip = images.RandomResizedCrop(32), images.RandomHorizontalFlip()
    saving = loader(crop, flip)
    batches = iter(saving)
    next(batches)
    state = json.loads(json.dumps(saving.state_dict()))
    resumed = loader(images.RandomResizedCrop([32, 32]), images.RandomHorizontalFlip(0.5))
    resumed.load_state_dict(state)
    assert next(iter(resumed)).samples == next(batches).samples
    for other, says in [
        (
            loader(crop, flip, seed=2),
            "the state has an augmentation with seed=1, and this loader one with seed=2; "
            "make the loader with the same",
        ),
        (
            loader(crop, flip, fuse=False),
            "the state has an augmentation with fuse=True, and this loader one with fuse=False",
        ),
        (
            loader(crop, images.RandomHorizontalFlip(0.1)),
            r"operator 1 of the augmentation is RandomHorizontalFlip\(p=0.5\) in the state, "
            "and Random.*p=0.1",
        ),
        (
            loader(crop),
            r"operator 1 of the augmentation is RandomHorizontalFlip\(p=0.5\) in the state, "
            "and none in this loader",
        ),
        (
            Loader(samples, batch_size=8),
            r"the state has an augmentation, Compose\(\[RandomResizedCrop.*, and this loader none",
        ),
    ]:
        before = other.state_dict()
        with pytest.raises(ValueError, match=says):
            other.load_state_dict(state)
        assert other.state_dict() == before
    plain = Loader(samples, batch_size=8).state_dict()
    with pytest.raises(ValueError, match=r"this loader has an augmentation, Compose\(.*, and the state none"):
        saving.load_state_dict(plain)
    # A state that was saved by a version without this field.
    del state["augment"]
    with pytest.raises(
        ValueError,
        match="the state does not say how pictures were augmented, since an earlier version saved it",
    ):
        saving.load_state_dict(state)
    saving.load_state_dict({**state, "augment": saving.state_dict()["augment"]})
    del plain["augment"]
    Loader(samples, batch_size=8).load_state_dict(plain)


def test_a_loader_says_what_it_is(samples: Path) -> None:
    loader = Loader(samples, batch_size=16)
    expected = (
        f"Loader({str(samples)!r}: 40 pictures, 3 batches of 16 an epoch, decoded by {images.decoder()})"
    )
    assert repr(loader) == expected
    loader.close()
    assert repr(loader) == expected
    assert "40 pictures, rank 1 of 2, 2 batches of 16" in repr(
        Loader(samples, batch_size=16, rank=1, world=2)
    )
    with pytest.raises(
        TypeError, match="a Loader has threads, which cannot be sent to another process; send its arguments"
    ):
        pickle.dumps(loader)


def test_ranks_share_an_epoch(samples: Path) -> None:
    both = [Loader(samples, batch_size=7, rank=rank, world=2) for rank in (0, 1)]
    seen = [[sample for batch in loader for sample in batch.samples] for loader in both]
    assert len(seen[0]) == len(seen[1]) == 20
    assert sorted(seen[0] + seen[1]) == list(range(40))
    with pytest.raises(ValueError, match="`rank` and `world` belong together"):
        Loader(samples, rank=1)
    with pytest.raises(ValueError, match="`rank` is 2 and `world` is 2"):
        Loader(samples, rank=2, world=2)


def test_broken_pictures_raise_are_skipped_or_replaced(few: Path) -> None:
    with pytest.raises(ImageError, match=r"cut\.jpg \(sample 3\): it ends before the picture does"):
        list(Loader(few, shuffle=False))
    skipping = Loader(few, shuffle=False, broken="skip")
    (batch,) = skipping
    assert (batch.labels, skipping.broken) == ([0, 1, 2, 4], 1)
    (broken,) = batch.broken
    assert broken.name.endswith("cut.jpg") and broken.replaced_by is None
    (batch,) = Loader(few, shuffle=False, broken="replace")
    assert batch.labels == [0, 1, 2, 4, 4]
    assert batch.broken[0].replaced_by == 4
    (batch,) = Loader(few, shuffle=False, faulty=True)
    assert batch.labels == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match='broken is .maybe.; give "raise", "skip" or "replace"'):
        Loader(few, broken="maybe")  # type: ignore[arg-type]


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="nothing: "):
        Loader(tmp_path / "nothing")
    with pytest.raises(ImageError, match="there are no pictures"):
        Loader(tmp_path)
    (tmp_path / "bad.tar").write_bytes(b"x" * 2048)
    with pytest.raises(ImageError, match=r"bad\.tar: it is damaged after the beginning"):
        Loader([tmp_path / "bad.tar"])
    with pytest.raises(ValueError, match='uneven is 1; give "drop" or "repeat"'):
        Loader(tmp_path, uneven=1)  # type: ignore[arg-type]


def test_memory_stays_as_long_as_anybody_has_it(samples: Path) -> None:
    loader = Loader(samples, batch_size=8, pin_memory=False)
    batch = next(iter(loader))
    at, view = batch.placed[3], batch.view
    before = bytes(view[at.offset : at.offset + 300])
    gone = weakref.ref(batch)
    del batch
    gc.collect()
    assert gone() is None
    digest(loader)
    loader.close()
    assert bytes(view[at.offset : at.offset + 300]) == before
    with pytest.raises(RuntimeError, match="the loader was closed"):
        loader.epoch  # noqa: B018


@pytest.mark.torch
def test_pictures_are_tensors_over_the_slab(samples: Path) -> None:
    import torch

    loader = Loader(samples, batch_size=5, pin_memory=False)
    batch = next(iter(loader))
    tensors = batch.tensors()
    assert tensors["table"].shape == (5, 7) and tensors["labels"].tolist() == batch.labels
    picture, placed = batch.picture(2), batch.placed[2]
    assert (picture.dtype, picture.shape) == (torch.uint8, (placed.height, placed.width, 3))
    assert picture.data_ptr() == batch.slab.data_ptr() + placed.offset
    del batch, tensors
    gc.collect()
    before = picture.clone()
    digest(loader)
    assert torch.equal(picture, before)


@pytest.mark.torch
def test_slabs_may_be_tensors_that_pytorch_made(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from sidestream.images import _loader

    made: list[Any] = []

    def unpinned(size_bytes: int) -> tuple[torch.Tensor, int]:
        made.append(torch.empty(size_bytes, dtype=torch.uint8))
        return made[-1], made[-1].data_ptr()

    monkeypatch.setattr(_loader, "_pinned", unpinned)
    expected = digest(Loader(samples, batch_size=8, pin_memory=False))
    loader = Loader(samples, batch_size=8, pin_memory=True)
    batches = list(loader)
    assert len({batch.slab.data_ptr() for batch in batches}) == 5
    assert {batch.slab.data_ptr() for batch in batches} <= {tensor.data_ptr() for tensor in made}
    assert [batch.samples for batch in batches] == [samples for samples, _ in expected]
    # The loader's workers call into the interpreter for tensors: while the workers end, no thread may hold
    # the interpreter's lock.
    del loader, batches
    gc.collect()

    def refuse(size_bytes: int) -> Any:
        raise MemoryError(f"no {size_bytes} bytes")

    monkeypatch.setattr(_loader, "_pinned", refuse)
    with pytest.raises(MemoryError, match=r"no memory for a slab: .*no \d+ bytes"):
        next(iter(Loader(samples, pin_memory=True)))


def test_other_threads_run_while_one_waits(samples: Path) -> None:
    loaders = [Loader(samples, workers=1) for _ in range(3)]
    results: dict[int, int] = {}

    def drain(number: int) -> None:
        results[number] = sum(len(batch) for batch in loaders[number])

    threads = [threading.Thread(target=drain, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: 40, 1: 40, 2: 40}


def test_a_loader_may_be_left_behind_at_exit(samples: Path) -> None:
    """Neither a working nor a waiting loader blocks the end of the interpreter."""
    script = f"""
from sidestream.images import Loader
kept = iter(Loader({str(samples)!r}, batch_size=4))
next(kept)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_a_signal_ends_a_wait(samples: Path) -> None:
    """Ctrl-C comes while the workers wait for memory that never becomes free."""
    script = f"""
import os, signal, threading
from sidestream.images import Loader, _loader
def never(size_bytes):
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
_loader._pinned = never
loader = Loader({str(samples)!r}, workers=1, pin_memory=True)
try:
    next(iter(loader))
except KeyboardInterrupt:
    os._exit(7)
"""
    ended = subprocess.run([sys.executable, "-c", script], timeout=300)
    assert ended.returncode == 7


def test_a_pipe_is_not_a_picture(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never.jpg")
    (tmp_path / "list.txt").write_text("never.jpg\n")
    with pytest.raises(ImageError, match="it is not a file"):
        next(iter(Loader(tmp_path / "list.txt")))


def test_a_forked_child_makes_its_own_loader(samples: Path) -> None:
    loader = Loader(samples, batch_size=4)
    next(iter(loader))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(iter(loader))
        except RuntimeError as error:
            if "make a loader in each process" in str(error) and len(digest(Loader(samples))) == 1:
                del loader
                gc.collect()
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_that_is_killed_while_it_loads_leaves_its_parent_working(samples: Path) -> None:
    expected = digest(Loader(samples, batch_size=4, seed=5))
    loader = Loader(samples, batch_size=4, seed=5)
    batches = iter(loader)
    first = next(batches).samples
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            own = Loader(samples, batch_size=4, workers=2)
            while True:
                for _ in own:
                    os.write(writes, b"!")
        finally:
            os._exit(1)
    os.close(writes)
    assert os.read(reads, 1) == b"!"
    os.kill(child, signal.SIGKILL)
    os.close(reads)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert [first, *(batch.samples for batch in batches)] == [samples for samples, _ in expected]
    assert digest(Loader(samples, batch_size=4, seed=5)) == expected


@pytest.mark.torch
def test_a_worker_of_pytorch_is_told_to_make_its_own(samples: Path) -> None:
    import torch

    class Pictures(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]
        def __init__(self, loader: Loader | None) -> None:
            self.loader = loader

        def __iter__(self) -> Any:
            loader = Loader(samples, batch_size=16, seed=2) if self.loader is None else self.loader
            return (batch.samples for batch in loader)

    loader = Loader(samples, batch_size=16, seed=2)
    load = {"batch_size": None, "num_workers": 1, "multiprocessing_context": "fork"}
    wanted = [batch.samples for batch in Loader(samples, batch_size=16, seed=2)]
    assert list(torch.utils.data.DataLoader(Pictures(None), **load)) == wanted
    with pytest.raises(RuntimeError, match="from which this one was forked; make a loader in each process"):
        list(torch.utils.data.DataLoader(Pictures(loader), **load))
    assert [batch.samples for batch in loader] == wanted


def test_what_goes_wrong_with_pictures_reads_as_itself_behind_prefetch(few: Path) -> None:
    pytest.importorskip("torch")
    augment = images.Compose([images.Resize((16, 16))])
    with Loader(few, shuffle=False, augment=augment) as loader, pytest.raises(ImageError) as raised:
        list(loader.prefetch("cpu"))
    assert str(raised.value).startswith(str(few.parent / "cut.jpg"))
    with Loader(few, augment=images.Compose([images.MixUp(num_classes=4)]), broken="skip") as loader:
        with pytest.raises(ValueError, match="the label of sample 4 is 4, and MixUp has num_classes=4"):
            list(loader.prefetch("cpu"))


def test_a_loader_gives_augmented_batches_on_a_device(samples: Path) -> None:
    torch = pytest.importorskip("torch")
    operators = [
        images.RandomResizedCrop(32),
        images.RandomHorizontalFlip(),
        images.ToDtype("float32", scale=True),
    ]
    augment = images.Compose(operators, seed=7)
    with (
        Loader(samples, batch_size=16, seed=3) as whole,
        Loader(samples, batch_size=16, seed=3, augment=augment) as parts,
    ):
        wanted = [augment.of_loader(batch.slab, torch.tensor(batch.labels), batch) for batch in whole]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = list(parts.prefetch("cpu"))
        assert [len(labels) for _, labels in found] == [16, 16, 8]
        for (pictures, labels), (same, classes) in zip(found, wanted, strict=True):
            assert torch.equal(pictures, same) and torch.equal(labels, classes)
        # With the augmentation, less of each picture was decoded.
        assert sum(len(batch.slab) for batch in parts) < sum(len(batch.slab) for batch in whole) / 1.2
        with pytest.raises(ValueError, match="has no `augment`"):
            whole.prefetch("cpu")


@pytest.mark.torch
def test_a_program_that_does_not_import_pytorch_gets_its_tensors(samples: Path) -> None:
    script = f"""
import sys
from sidestream import images
loader = images.Loader({str(samples)!r}, augment=images.Compose([images.Resize((8, 8))]))
assert "torch" not in sys.modules
batches = loader.prefetch("cpu")
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_what_was_read_ahead_and_not_taken_comes_again(samples: Path) -> None:
    torch = pytest.importorskip("torch")
    augment = images.Compose([images.Resize((16, 16))])
    with Loader(samples, batch_size=4, seed=3, augment=augment) as whole_epoch:
        wanted = [labels.tolist() for _, labels in whole_epoch.prefetch("cpu")]
    with (
        Loader(samples, batch_size=4, seed=3, augment=augment) as loader,
        Loader(samples, batch_size=4, seed=3, augment=augment) as other,
    ):
        found = []
        for _, labels in loader.prefetch("cpu"):
            found.append(labels.tolist())
            if len(found) == 3:
                break
        assert loader.state_dict()["seen"] == 12
        other.load_state_dict(loader.state_dict())
        found += [labels.tolist() for _, labels in loader.prefetch("cpu")]
        assert found == wanted
        assert [torch.tensor(batch.labels).tolist() for batch in other] == wanted[3:]


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"workers": -1}, ValueError, "workers"),
        ({"seed": -1}, ValueError, "seed"),
        ({"augment": [images.Resize(3)]}, TypeError, "give a Compose"),
        ({"batch_size": 2**40}, ValueError, r"batch_size is \d+; give a number of pictures, below 2\*\*32"),
        ({"rank": -1, "world": 2}, ValueError, "rank is -1; give the number of this process, 0 or more"),
        ({"max_pixels": -1}, ValueError, "max_pixels is -1; give"),
        ({"max_file_bytes": "1 MB"}, TypeError, "max_file_bytes is '1 MB'; give a number of bytes"),
        ({"shuffle": "no"}, TypeError, "shuffle is 'no'; give True or False"),
        ({"pin_memory": 1}, TypeError, "pin_memory is 1; give True or False"),
        ({"broken": None}, ValueError, 'broken is None; give "raise", "skip" or "replace"'),
        ({"classes": "sea"}, TypeError, "classes is 'sea'; give a sequence of names"),
    ],
)
def test_arguments_are_refused_by_name(
    samples: Path, given: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        Loader(samples, **given)


def test_invalid_data_is_refused(samples: Path) -> None:
    nothing: Any
    for nothing in (5, None, [], [5], b"train"):
        with pytest.raises(
            TypeError,
            match="; give a folder, a list or an archive, as a string or a path, or a sequence of archives",
        ):
            Loader(nothing)
    loader = Loader(samples)
    state: Any = None
    with pytest.raises(TypeError, match="state is NoneType; give what `state_dict` returned"):
        loader.load_state_dict(state)
    with pytest.raises(ValueError, match="epoch is -1; give the number of an epoch"):
        loader.set_epoch(-1)
    with pytest.raises(ValueError, match="sample is -1; give the number of a picture"):
        loader.name(-1)
