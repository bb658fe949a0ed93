"""Augmentation of tensors: on the processor, on a stand-in for CUDA's driver, under a check, and beside torchvision."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sidestream
from sidestream import images

pytestmark = pytest.mark.torch


def batch(count: int = 3, height: int = 40, width: int = 52) -> Any:
    import torch

    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    noise = torch.randint(0, 16, (count, 3, height, width), generator=torch.Generator().manual_seed(1))
    waves = torch.stack([110 + 60 * torch.sin(0.2 * x + c) + 50 * torch.cos(0.15 * y - c) for c in range(3)])
    return (waves + noise).clamp(0, 255).to(torch.uint8)


def usual(**more: Any) -> images.Compose:
    return images.Compose(
        [
            images.RandomResizedCrop(24),
            images.RandomHorizontalFlip(),
            images.ColorJitter(0.4, 0.4, 0.4, 0.1),
            images.GaussianBlur(5),
            images.ToDtype("float32", scale=True),
            images.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ],
        **more,
    )


def test_a_result_depends_on_seed_epoch_and_sample_alone() -> None:
    import torch

    pictures = batch()
    whole = usual(seed=3)(pictures, epoch=2, samples=[10, 11, 12])
    assert whole.shape == (3, 3, 24, 24) and whole.dtype == torch.float32
    for at in range(3):
        alone = usual(seed=3)(pictures[at : at + 1], epoch=2, samples=torch.tensor([10 + at]))
        assert torch.equal(alone[0], whole[at])
    for other in (usual(seed=4)(pictures, epoch=2, samples=[10, 11, 12]), usual(seed=3)(pictures, epoch=1, samples=[10, 11, 12])):
        assert not torch.equal(other, whole)
    # Without numbers they are counted.
    counting = usual(seed=3)
    counting(pictures, epoch=2)
    assert torch.equal(counting(pictures[:1], epoch=2), usual(seed=3)(pictures[:1], epoch=2, samples=[3]))


def test_memory_formats_and_types() -> None:
    import torch

    pictures = batch()
    plain = usual()(pictures, samples=[0, 1, 2])
    for given in (pictures.to(memory_format=torch.channels_last), batch(3, 40, 104)[..., ::2]):
        if torch.equal(given, pictures):
            assert torch.equal(usual()(given, samples=[0, 1, 2]), plain)
        else:
            assert torch.equal(usual()(given, samples=[0, 1, 2]), usual()(given.contiguous(), samples=[0, 1, 2]))
    last = usual(channels_last=True)(pictures, samples=[0, 1, 2])
    assert last.is_contiguous(memory_format=torch.channels_last) and torch.equal(last, plain)
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        half = images.Compose([images.Resize(24), images.ToDtype(dtype, scale=True)])(pictures)
        full = images.Compose([images.Resize(24), images.ToDtype(torch.float32, scale=True)])(pictures)
        assert half.dtype == dtype and torch.allclose(half.float(), full, atol=tolerance)
    assert images.Compose([images.CenterCrop(8)])(pictures).dtype == torch.uint8


def test_a_part_that_is_named_is_all_that_counts() -> None:
    import torch

    pictures = batch(1)
    compose = images.Compose([images.RandomResizedCrop(16, scale=(0.1, 0.2)), images.RandomRotation(10, "bilinear")])
    for sample in range(8):
        left, top, width, height = compose.region(40, 52, sample=sample)
        assert width * height < 40 * 52
        changed = torch.zeros_like(pictures)
        part = (..., slice(top, top + height), slice(left, left + width))
        changed[part] = pictures[part]
        assert torch.equal(compose(changed, samples=[sample]), compose(pictures, samples=[sample]))


def test_labels_are_mixed_as_pictures_are() -> None:
    import torch

    levels = torch.tensor([0, 100, 200], dtype=torch.uint8)[:, None, None, None].expand(3, 3, 20, 20)
    labels = torch.tensor([0, 1, 2])
    for mix in (images.MixUp(alpha=0.5, num_classes=3), images.CutMix(alpha=1.0, num_classes=3)):
        compose = images.Compose([images.ToDtype("float32"), mix])
        mixed, rows = compose(levels, labels, samples=[4, 5, 6])
        means = mixed.mean(dim=(1, 2, 3))
        assert torch.allclose(means, rows @ torch.tensor([0.0, 100.0, 200.0]), atol=1e-2)
        assert torch.allclose(rows.sum(dim=1), torch.ones(3)) and (rows.count_nonzero(dim=1) == 2).any()
        # The other picture is the one before.
        assert rows[1, 2] == 0 and rows[2, 0] == 0 and rows[0, 1] == 0
    with pytest.raises(ValueError, match="MixUp has no num_classes; give it"):
        images.Compose([images.MixUp()])(levels, labels)
    plain = images.Compose([images.CenterCrop(4)])(levels, labels)
    assert plain[1] is labels


def test_what_means_nothing_is_refused() -> None:
    import torch

    crop: Any = images.CenterCrop(4)
    with pytest.raises(TypeError, match="is no operator of sidestream.images; from_torchvision translates"):
        images.Compose([lambda batch: batch])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="operator 1, GaussianBlur: kernel_size is 8"):
        images.Compose([crop, images.GaussianBlur(8)])
    with pytest.raises(TypeError, match="batch is of torch.float32; give a tensor of torch.uint8"):
        images.Compose([crop])(batch().float())
    with pytest.raises(ValueError, match=r"give \(pictures, 3, height, width\)"):
        images.Compose([crop])(batch()[0])
    with pytest.raises(ValueError, match="samples has 2 numbers, and the batch 3 pictures"):
        images.Compose([crop])(batch(), samples=[1, 2])
    with pytest.raises(ValueError, match="the batch has no pictures"):
        images.Compose([crop])(torch.empty(0, 3, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match='interpolation of RandomRotation is .bicubic.; give "nearest" or "bilinear"'):
        images.RandomRotation(10, "bicubic")
    with pytest.raises(ValueError, match="dtype is int64; give float32"):
        images.ToDtype(torch.int64)


def test_what_torchvision_has_is_translated_or_named() -> None:
    """Objects with torchvision's attributes: it need not be installed."""

    def made(name: str, **attributes: Any) -> Any:
        return type(name, (SimpleNamespace,), {})(**attributes)

    jitter = made("ColorJitter", brightness=(0.6, 1.4), contrast=None, saturation=None, hue=None)
    rotation = made("RandomRotation", degrees=[-45.0, 45.0], interpolation="nearest", expand=False, center=None, fill=0)
    inner = made("Compose", transforms=[made("ToImage"), rotation])
    compose = images.from_torchvision(made("Compose", transforms=[inner, jitter]))
    assert [type(transform).__name__ for transform in compose.transforms] == ["RandomRotation", "ColorJitter"]
    ours = images.Compose([images.RandomRotation(45), images.ColorJitter(brightness=0.4)])
    assert ours(batch(), samples=[1, 2, 3]).equal(compose(batch(), samples=[1, 2, 3]))
    odd = made("Resize", size=[20], interpolation="bicubic", max_size=None, antialias=True)
    with pytest.raises(ValueError, match="ElasticTransform is not known here; Resize: interpolation of Resize is 'bicubic'"):
        images.from_torchvision([made("ElasticTransform"), odd, jitter])


def test_a_check_hears_of_the_launch() -> None:
    import torch

    compose = usual()

    def upload(ordered: bool) -> int:
        with sidestream.check(simulate=1) as run:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                pictures = batch().pin_memory().to("cuda", non_blocking=True)
            if ordered:
                torch.cuda.current_stream().wait_stream(side)
            pictures.record_stream(torch.cuda.current_stream())
            result = compose(pictures, samples=[0, 1, 2])
            assert torch.equal(result.cpu(), compose(batch(), samples=[0, 1, 2]))
        return len(run.races)

    assert upload(ordered=True) == 0
    assert upload(ordered=False) == 1


def test_a_stand_in_for_the_driver_has_the_result_of_the_processor(on_stand_in: Callable[[str], str]) -> None:
    """The launches, by addresses in memory of the device, as tensors of PyTorch would give them."""
    printed = on_stand_in(
        """
import ctypes
from sidestream import Stream, images
from sidestream._sidestream import AugmentPlan

cuda = ctypes.CDLL("libcuda.so.1")
stream = Stream("cuda:0")
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0

def on_device(data, size):
    at = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(max(size, 16))) == 0
    if data is not None:
        given = ctypes.create_string_buffer(data, size)
        assert cuda.cuMemcpy(at, ctypes.c_uint64(ctypes.addressof(given)), ctypes.c_size_t(size)) == 0
    elif size:
        assert cuda.cuMemsetD8_v2(at, ctypes.c_ubyte(0), ctypes.c_size_t(size)) == 0
    return at.value, size

pictures = bytes((x * 7 + x // 90 * 5) % 251 for x in range(2 * 3 * 30 * 30))
usual = [images.RandomCrop(20), images.Resize(28), images.RandomRotation(45, "bilinear")]
blurred = [*usual, images.GaussianBlur((5, 3))]
for operators in (usual, blurred, [*usual, images.ColorJitter(0.4, 0.4, 0.4, 0.1), images.GaussianBlur(5), images.RandAugment()]):
    plan = AugmentPlan([(type(one).__name__, one._given) for one in operators], True)
    drawn = plan.draw((30, 30), False, 0, 0, [5, 6])
    size = 2 * 3 * 28 * 28
    expected = ctypes.create_string_buffer(size)
    source = ctypes.create_string_buffer(pictures, len(pictures))
    drawn.host((ctypes.addressof(source), len(pictures)), (ctypes.addressof(expected), size), "uint8", False)
    records, even, odd, statistics = drawn.needs()
    output = on_device(None, size)
    told = ctypes.create_string_buffer(records)
    drawn.records((ctypes.addressof(told), records))
    rest = [on_device(told.raw, records), on_device(None, even), on_device(None, odd), on_device(None, statistics)]
    drawn.launch("cuda:0", stream, [on_device(pictures, len(pictures)), *rest, output], "uint8", False)
    stream.synchronize()
    found = ctypes.create_string_buffer(size)
    assert cuda.cuMemcpy(ctypes.c_uint64(ctypes.addressof(found)), ctypes.c_uint64(output[0]), ctypes.c_size_t(size)) == 0
    print(drawn.passes, found.raw == expected.raw)
"""
    )
    passes = [line.split() for line in printed.splitlines()]
    assert [same for _, same in passes] == ["True"] * 3
    assert int(passes[0][0]) == int(passes[1][0]) == 1 < int(passes[2][0])


# ------------------------------------------------------------------ beside torchvision, where it is installed


def test_single_operators_are_torchvisions_within_a_level() -> None:
    vision = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not installed")
    functional = vision.functional
    import torch

    picture = batch(1, 60, 72)
    # What was drawn stands in the record: the map is what torchvision calls the coefficients.
    for sample in range(5):
        compose = images.Compose([images.RandomPerspective(0.6, p=1.0, fill=(9, 8, 7))])
        drawn = compose._plan.draw((60, 72), False, 0, 0, [sample])
        records = torch.empty(drawn.needs()[0], dtype=torch.uint8)
        drawn.records((records.data_ptr(), records.numel()))
        coefficients = struct.unpack_from("8f", records.numpy().tobytes(), 4 * 14)
        expected = functional.perspective(picture[0], None, None, coefficients=list(coefficients), fill=[9.0, 8.0, 7.0])
        difference = (compose(picture, samples=[sample])[0].int() - expected.int()).abs()
        assert difference.max() <= 1, sample
    for theirs in (
        vision.Resize(31),
        vision.Resize((90, 20)),
        vision.CenterCrop(64),
        vision.RandomHorizontalFlip(1.0),
        vision.RandomRotation((25, 25), interpolation=vision.InterpolationMode.BILINEAR, fill=50),
        vision.RandomAffine((10, 10), scale=(0.8, 0.8), shear=(5, 5, 0, 0), interpolation=vision.InterpolationMode.BILINEAR),
        vision.ColorJitter(contrast=(1.4, 1.4)),
        vision.ColorJitter(hue=(0.3, 0.3)),
        vision.Grayscale(3),
        vision.GaussianBlur(11, (2.5, 2.5)),
    ):
        for fuse in (True, False):
            ours = images.from_torchvision(theirs, fuse=fuse)(picture)[0]
            assert (ours.int() - theirs(picture[0]).int()).abs().max() <= 1, theirs
    numbers = vision.Compose([vision.ToDtype(torch.float32, scale=True), vision.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])])
    assert torch.allclose(images.from_torchvision(numbers)(picture)[0], numbers(picture[0]), atol=1e-6)
