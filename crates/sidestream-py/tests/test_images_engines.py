"""Pictures that a GPU's engines decode: on a simulated GPU, where the CPU decodes for them, and on a stand-in
for nvJPEG.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sidestream
from sidestream import images
from sidestream.images import ImageError, Loader
from sidestream.images._engines import Engines

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of forty pictures, three of which engines cannot decode."""
    folder = tmp_path_factory.mktemp("mixed")
    images.write_samples(folder / "samples", 1)
    files = sorted((folder / "samples").rglob("*.jpg"))
    for at in (3, 13, 23):
        # The frame header declares extended coding, with unchanged data: engines cannot decode such a file.
        bytes_ = files[at].read_bytes()
        files[at].write_bytes(bytes_.replace(b"\xff\xc0\x00\x11", b"\xff\xc1\x00\x11"))
    (folder / "list.txt").write_text("".join(f"{file},{label}\n" for label, file in enumerate(files)))
    return folder / "list.txt"


def damage(mixed: Path, folder: Path, *, hidden: int, cut: int) -> Path:
    """Copy the list with two broken files: one whose error only a decoder notices, and a truncated one."""
    lines = mixed.read_text().splitlines()
    for at, name in ((hidden, "hidden.jpg"), (cut, "cut.jpg")):
        file = bytearray(Path(lines[at].rsplit(",", 1)[0]).read_bytes())
        if name == "hidden.jpg":
            # The table has more one-bit codes than are possible.
            file[file.index(b"\xff\xc4") + 5] = 9
        (folder / name).write_bytes(file if name == "hidden.jpg" else file[: len(file) // 2])
        lines[at] = f"{folder / name},{at}"
    (folder / "list.txt").write_text("\n".join(lines))
    return folder / "list.txt"


def compose() -> images.Compose:
    return images.Compose(
        [images.RandomResizedCrop(24), images.RandomHorizontalFlip(), images.ToDtype("float32", scale=True)],
        seed=7,
    )


def loader(data: Path, **more: Any) -> Loader:
    return Loader(data, **{"batch_size": 12, "seed": 3, "augment": compose(), **more})


def epoch(loader: Loader, device: str) -> list[tuple[Any, list[int]]]:
    """Return the rest of the epoch, from an ordinary loop."""
    return [(pictures.cpu().clone(), labels.tolist()) for pictures, labels in loader.prefetch(device)]


def same(one: list[tuple[Any, list[int]]], other: list[tuple[Any, list[int]]]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(
        pictures.equal(theirs) and labels == other_labels
        for (pictures, labels), (theirs, other_labels) in pairs
    )


def test_pictures_and_their_order_are_those_of_the_processor(mixed: Path, silent: Any) -> None:
    expected = epoch(loader(mixed), "cpu")
    assert [len(labels) for _, labels in expected] == [12, 12, 12, 4]
    for more in ({}, {"workers": 1, "depth": 1}, {"engine_share": 0.5}, {"engine_share": 0.0}):
        with loader(mixed, decode="gpu", **more) as engines:
            assert same(epoch(engines, "cuda"), expected), more
            assert (engines.loaded, engines.broken, engines.refused) == (40, 0, 0)


def test_without_the_wait_for_the_engines_it_races(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check gets enough information on the engines to find the race."""
    from sidestream.images import _engines

    monkeypatch.setattr(_engines.OnDevice, "take", lambda self: self.pixels)
    # The reading thread's wait is removed too: it alone would order most batches and hide the race.
    monkeypatch.setattr(_engines.Engines, "wait", lambda self: None)
    with sidestream.check(simulate=1) as run, loader(mixed, decode="gpu") as racy:
        for _ in racy.prefetch("cuda"):
            pass
    assert any("sidestream.images.Loader" in str(race) for race in run.races)


def test_a_batch_that_engines_refuse_is_decoded_on_the_processor(
    mixed: Path, tmp_path: Path, silent: Any
) -> None:
    data = damage(mixed, tmp_path, hidden=5, cut=6)
    for broken in ("skip", "replace"):
        with loader(data, broken=broken) as other:
            expected = epoch(other, "cpu")
            lost = other.broken
        with loader(data, broken=broken, decode="gpu") as engines:
            with pytest.warns(
                UserWarning,
                match=r"engines refused a batch of pictures \(it is damaged.*Loader.refused counts",
            ) as said:
                found = epoch(engines, "cuda")
            # The warning names the line of the loop.
            assert [warning.filename for warning in said] == [__file__]
            assert same(found, expected)
            assert (engines.refused, engines.broken) == (1, lost) == (1, 2)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert len(epoch(engines, "cuda")) == 4
    with loader(data, decode="gpu", batch_size=1, shuffle=False) as failing, warnings.catch_warnings():
        named = []
        warnings.simplefilter("ignore")
        for _ in range(3):
            try:
                epoch(failing, "cuda")
            except ImageError as error:
                named.append(str(error).split(":")[0].rsplit("/", 1)[1])
        assert named == ["hidden.jpg (sample 5)", "cut.jpg (sample 6)"]


def test_a_batch_of_broken_pictures_alone_does_not_come(mixed: Path, tmp_path: Path, silent: Any) -> None:
    data = damage(mixed, tmp_path, hidden=2, cut=3)
    with (
        loader(data, decode="gpu", batch_size=2, shuffle=False, broken="skip") as engines,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        assert [labels for _, labels in epoch(engines, "cuda")][:2] == [[0, 1], [4, 5]]


def test_a_run_resumes_where_its_batches_were_taken(mixed: Path, silent: Any) -> None:
    with loader(mixed, decode="gpu") as whole:
        expected = epoch(whole, "cuda")
    with (
        loader(mixed, decode="gpu") as left,
        loader(mixed, decode="gpu", workers=1) as resumed,
        loader(mixed) as other,
    ):
        for pictures, labels in left.prefetch("cuda"):
            first = pictures.cpu().clone(), labels.tolist()
            break
        gc.collect()
        state = left.state_dict()
        assert state["seen"] == 12 and state["decoder"].startswith(
            "engines of nvJPEG for 1 of baseline JPEG, else "
        )
        resumed.load_state_dict(state)
        for one in (left, resumed):
            assert same([first, *epoch(one, "cuda")], expected)
        with pytest.raises(ValueError, match="use the same build and the same share of a GPU's engines"):
            other.load_state_dict(state)


def test_what_engines_are_at_is_neither_counted_nor_kept(
    mixed: Path, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop is left while its thread lets the engines decode: the loader has returned this batch, and
    returns it again.
    """
    with loader(mixed, decode="gpu") as whole:
        expected = epoch(whole, "cuda")
    put = Engines.put
    entered, may_go_on = threading.Event(), threading.Event()
    calls = itertools.count()

    def slow(self: Engines, batch: Any) -> Any:
        if next(calls) == 1:
            entered.set()
            may_go_on.wait(60)
        return put(self, batch)

    monkeypatch.setattr(Engines, "put", slow)
    with loader(mixed, decode="gpu") as left:
        batches = iter(left.prefetch("cuda"))
        pictures, labels = next(batches)
        first = pictures.cpu().clone(), labels.tolist()
        assert entered.wait(60)
        assert left.state_dict()["seen"] == 12
        may_go_on.set()
        with pytest.raises(ValueError, match="this is not the state of a loader"):
            left.load_state_dict(left.state_dict() | {"data": 1})
        with pytest.raises(
            RuntimeError,
            match="another loop over this loader began, or it went to another state, which ended this loop",
        ):
            list(batches)
        assert same([first, *epoch(left, "cuda")], expected)


def test_what_cannot_be_is_refused_with_what_to_do(mixed: Path) -> None:
    with pytest.raises(ValueError, match='decode is .tpu.; give "cpu" or "gpu"'):
        loader(mixed, decode="tpu")
    with pytest.raises(ValueError, match=r'give `augment` too, and go through `prefetch\("cuda"\)`'):
        loader(mixed, decode="gpu", augment=None)
    with pytest.raises(
        ValueError, match='engine_share is 0.5, and decode "cpu": give decode="gpu", or leave it out'
    ):
        loader(mixed, engine_share=0.5)
    with pytest.raises(ValueError, match="`engine_share` is 2; give a share of the pictures, from 0 to 1"):
        loader(mixed, decode="gpu", engine_share=2.0)
    with loader(mixed, decode="gpu") as engines:
        with pytest.raises(
            ValueError, match=r'has no pixels: go through `prefetch\("cuda"\)`, or give decode="cpu"'
        ):
            next(iter(engines))
        with pytest.raises(ValueError, match="the pictures go to 'cpu': give `prefetch` a GPU"):
            engines.prefetch("cpu")


def test_a_stand_in_for_nvjpeg_decodes_to_where_pictures_belong(
    mixed: Path, tmp_path: Path, on_stand_in: Callable[[str], str]
) -> None:
    """Call the library with addresses in device memory, as it would be called with PyTorch tensors.
    """
    printed = on_stand_in(
        f"""
import ctypes
from pathlib import Path
from sidestream import Stream, images
from sidestream.images import Loader, _engines
from sidestream.images._loader import Batch

cuda = ctypes.CDLL("libcuda.so.1")
stream = Stream("cuda:0")
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
engines = _engines._opened(0, "13.0")
whole = dict(batch_size=16, seed=3, pin_memory=False)
# The result needs the whole picture.
augment = images.Compose([images.Resize((20, 20))])

def put(batch):
    start, end, size, many = batch.parts
    at = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)) == 0
    if end > start:
        source = ctypes.c_uint64(batch._address + start)
        assert cuda.cuMemcpy(at, source, ctypes.c_size_t(end - start)) == 0
    why = batch.decode_by(engines, at.value, stream.cuda_stream) if many else None
    stream.synchronize()
    found = ctypes.create_string_buffer(size)
    assert cuda.cuMemcpy(ctypes.c_uint64(ctypes.addressof(found)), at, ctypes.c_size_t(size)) == 0
    return why, many, found.raw

def pictures(batch, pixels):
    return [bytes(pixels[one.offset : one.offset + one.width * one.height * 3]) for one in batch.placed]

expected = [pictures(batch, batch.view) for batch in Loader({str(mixed)!r}, **whole)]
for share in (1.0, 0.9, 0.4):
    loader = Loader({str(mixed)!r}, augment=augment, decode="gpu", engine_share=share, **whole)
    for epoch in range(2):
        loader.set_epoch(0)
        for same in expected:
            batch = Batch(loader._loader.next())
            why, many, pixels = put(batch)
            assert (why, 0 < many <= 16) == (None, True), (why, many)
            assert pictures(batch, pixels) == same, share
        assert loader._loader.next() is None

# One call fails, and the next one succeeds.
loader.set_epoch(1)
fail = cuda.sidestream_stand_in_fail
assert fail(b"nvjpegDecodeBatched", 1, 6) == 0
print(*(put(Batch(loader._loader.next()))[0] for _ in range(3)), sep=chr(10))
given = Loader(
    {str(damage(mixed, tmp_path, hidden=0, cut=1))!r},
    shuffle=False, broken="skip", augment=augment, decode="gpu", pin_memory=False,
)
batch = Batch(given._loader.next())
print(put(batch)[0])
again = Batch(given._loader.on_processor(batch._batch))
print(len(again), put(again)[:2], [broken.name.rsplit("/", 1)[1] for broken in again.broken])
"""
    )
    assert printed.splitlines() == [
        "None",
        "nvjpegDecodeBatched failed: execution failed (6)",
        "None",
        "nvjpegDecodeBatched failed: bad JPEG (3)",
        "38 (None, 0) ['hidden.jpg', 'cut.jpg']",
    ]


@pytest.mark.parametrize("set_to", [None, "8"])
@pytest.mark.parametrize("answer", [None, 3, 0], ids=["no driver", "not started", "started"])
def test_cuda_is_asked_for_enough_connections(
    monkeypatch: pytest.MonkeyPatch, mixed: Path, answer: int | None, set_to: str | None
) -> None:
    """CUDA reads CUDA_DEVICE_MAX_CONNECTIONS at start-up. After that, the loader can only warn."""

    class Driver:
        def __init__(self, name: str) -> None:
            if answer is None:
                raise OSError(name)

        def cuCtxGetCurrent(self, context: Any) -> int | None:  # noqa: N802 - the driver's name.
            return answer

    monkeypatch.setattr("ctypes.CDLL", Driver)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", set_to or "")
    if set_to is None:
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        loader(mixed, decode="gpu", pin_memory=False).close()
    assert os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == (set_to or (None if answer == 0 else "32"))
    says = [str(one.message) for one in heard if "CUDA_DEVICE_MAX_CONNECTIONS=32" in str(one.message)]
    assert len(says) == (set_to is None and answer == 0)
    assert all(Path(one.filename).name == Path(__file__).name for one in heard)
