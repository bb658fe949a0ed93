"""Augmentation of tensors: on the CPU, on a stand-in for CUDA's driver, under a check, and compared
with torchvision.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sidestream
import torch
from sidestream import images

pytestmark = pytest.mark.torch


def batch(count: int = 3, height: int = 40, width: int = 52) -> Any:
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
    pictures = batch()
    whole = usual(seed=3)(pictures, epoch=2, samples=[10, 11, 12])
    assert whole.shape == (3, 3, 24, 24) and whole.dtype == torch.float32
    for at in range(3):
        alone = usual(seed=3)(pictures[at : at + 1], epoch=2, samples=torch.tensor([10 + at]))
        assert torch.equal(alone[0], whole[at])
    for other in (
        usual(seed=4)(pictures, epoch=2, samples=[10, 11, 12]),
        usual(seed=3)(pictures, epoch=1, samples=[10, 11, 12]),
    ):
        assert not torch.equal(other, whole)
    # Without sample numbers, pictures are counted.
    counting = usual(seed=3)
    counting(pictures, epoch=2)
    assert torch.equal(counting(pictures[:1], epoch=2), usual(seed=3)(pictures[:1], epoch=2, samples=[3]))


def test_memory_formats_and_types() -> None:
    pictures = batch()
    plain = usual()(pictures, samples=[0, 1, 2])
    for given in (pictures.to(memory_format=torch.channels_last), batch(3, 40, 104)[..., ::2]):
        if torch.equal(given, pictures):
            assert torch.equal(usual()(given, samples=[0, 1, 2]), plain)
        else:
            assert torch.equal(
                usual()(given, samples=[0, 1, 2]), usual()(given.contiguous(), samples=[0, 1, 2])
            )
    last = usual(channels_last=True)(pictures, samples=[0, 1, 2])
    assert last.is_contiguous(memory_format=torch.channels_last) and torch.equal(last, plain)
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        half = images.Compose([images.Resize(24), images.ToDtype(dtype, scale=True)])(pictures)
        full = images.Compose([images.Resize(24), images.ToDtype(torch.float32, scale=True)])(pictures)
        assert half.dtype == dtype and torch.allclose(half.float(), full, atol=tolerance)
    assert images.Compose([images.CenterCrop(8)])(pictures).dtype == torch.uint8


def test_a_part_that_is_named_is_all_that_counts() -> None:
    pictures = batch(1)
    compose = images.Compose(
        [images.RandomResizedCrop(16, scale=(0.1, 0.2)), images.RandomRotation(10, "bilinear")]
    )
    for sample in range(8):
        left, top, width, height = compose.region(40, 52, sample=sample)
        assert width * height < 40 * 52
        changed = torch.zeros_like(pictures)
        part = (..., slice(top, top + height), slice(left, left + width))
        changed[part] = pictures[part]
        assert torch.equal(compose(changed, samples=[sample]), compose(pictures, samples=[sample]))


def test_labels_are_mixed_as_pictures_are() -> None:
    levels = torch.tensor([0, 100, 200], dtype=torch.uint8)[:, None, None, None].expand(3, 3, 20, 20)
    labels = torch.tensor([0, 1, 2])
    for mix in (images.MixUp(alpha=0.5, num_classes=3), images.CutMix(alpha=1.0, num_classes=3)):
        compose = images.Compose([images.ToDtype("float32"), mix])
        mixed, rows = compose(levels, labels, samples=[4, 5, 6])
        means = mixed.mean(dim=(1, 2, 3))
        assert torch.allclose(means, rows @ torch.tensor([0.0, 100.0, 200.0]), atol=1e-2)
        assert torch.allclose(rows.sum(dim=1), torch.ones(3)) and (rows.count_nonzero(dim=1) == 2).any()
        # The picture that is mixed in is the previous one.
        assert rows[1, 2] == 0 and rows[2, 0] == 0 and rows[0, 1] == 0
    with pytest.raises(ValueError, match="MixUp has no num_classes; give it"):
        images.Compose([images.MixUp()])(levels, labels)
    plain = images.Compose([images.CenterCrop(4)])(levels, labels)
    assert plain[1] is labels


def test_what_means_nothing_is_refused() -> None:
    crop: Any = images.CenterCrop(4)
    says = "is not an operator of sidestream.images; from_torchvision translates"
    with pytest.raises(TypeError, match=says):
        images.Compose([lambda batch: batch])  # type: ignore[list-item]
    with pytest.raises(
        ValueError, match="operator 0, Normalize: it takes floating-point numbers; put ToDtype before it"
    ):
        images.Compose([images.Normalize((0, 0, 0), (1, 1, 1))])
    with pytest.raises(TypeError, match="batch is of torch.float32; give a tensor of torch.uint8"):
        images.Compose([crop])(batch().float())
    with pytest.raises(ValueError, match=r"give \(pictures, 3, height, width\)"):
        images.Compose([crop])(batch()[0])
    with pytest.raises(ValueError, match="samples has 2 numbers, and the batch 3 pictures"):
        images.Compose([crop])(batch(), samples=[1, 2])
    with pytest.raises(ValueError, match="the batch has no pictures"):
        images.Compose([crop])(torch.empty(0, 3, 4, 4, dtype=torch.uint8))


#: Stands for arguments that type checkers would refuse.
wrong: Any = "often"
half: Any = 0.5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: images.GaussianBlur(8), "GaussianBlur: kernel_size is 8; give an odd number"),
        (
            lambda: images.RandomHorizontalFlip(1.5),
            "RandomHorizontalFlip: p is 1.5; give a probability, from 0 to 1",
        ),
        (lambda: images.RandomGrayscale(wrong), "RandomGrayscale: p is 'often'; give a number"),
        (
            lambda: images.RandomResizedCrop(8, scale=(0.5, 0.1)),
            "RandomResizedCrop: scale is from 0.5 to 0.1; give",
        ),
        (
            lambda: images.RandomResizedCrop(8, scale=half),
            "RandomResizedCrop: scale is 0.5; give two numbers",
        ),
        (
            lambda: images.RandomResizedCrop(8, ratio=(0, 1)),
            "RandomResizedCrop: ratio is from 0 to 1; give numbers above 0",
        ),
        (lambda: images.RandomResizedCrop(2**40), "RandomResizedCrop: size is .*, which is out of range"),
        (
            lambda: images.RandomResizedCrop(8, interpolation="nearest"),
            'RandomResizedCrop: interpolation is .nearest.; give "bilinear"',
        ),
        (lambda: images.RandomRotation(-5), "RandomRotation: degrees is -5; give a non-negative number"),
        (lambda: images.RandomRotation((5, -5)), "RandomRotation: degrees is from 5 to -5; give"),
        (
            lambda: images.RandomRotation(float("nan")),
            "RandomRotation: degrees is from NaN to NaN; give finite numbers",
        ),
        (
            lambda: images.RandomRotation(10, "bicubic"),
            'RandomRotation: interpolation is .bicubic.; give "nearest" or "bilinear"',
        ),
        (lambda: images.RandomAffine(0, shear=(1, 2, 3)), "RandomAffine: shear is "),
        (lambda: images.RandomAffine(0, translate=(2, 0)), "RandomAffine: translate has 2; give shares"),
        (lambda: images.RandomCrop(8, padding=-1), "RandomCrop: padding is -1; give"),
        (
            lambda: images.RandomCrop(8, fill=(1, 2)),
            r"RandomCrop: fill is \[1, 2\]; give one number, or three",
        ),
        (lambda: images.CenterCrop(0), "CenterCrop: size is 0; give one length"),
        (lambda: images.Resize(64, max_size=32), "Resize: max_size is 32, and size 64"),
        (lambda: images.ColorJitter(brightness=-1), "ColorJitter: brightness is -1; give 0 or more"),
        (
            lambda: images.ColorJitter(hue=0.6),
            "ColorJitter: hue is from -0.6 to 0.6; give two numbers from -0.5 to 0.5",
        ),
        (lambda: images.RandomErasing(value="random"), "RandomErasing: value is "),
        (lambda: images.RandAugment(magnitude=40), "RandAugment: magnitude is 40 of 31 bins"),
        (lambda: images.RandAugment(-1), "RandAugment: num_ops is -1; give a number of operators, 0 or more"),
        (lambda: images.RandAugment(17), "RandAugment: num_ops is 17; give 0 to 16"),
        (lambda: images.MixUp(alpha=0), "MixUp: alpha is 0; give a number above 0"),
        (
            lambda: images.CutMix(num_classes=0),
            "CutMix: num_classes is 0; give how many classes there are, 1 or more",
        ),
        (lambda: images.Normalize((0, 0, 0), (1, 0, 1)), "Normalize: std has 0; give numbers above 0"),
        (lambda: images.ToDtype("int64"), "ToDtype: dtype is 'int64'; give float32"),
    ],
)
def test_an_operator_refuses_its_own_arguments(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_arguments_are_what_they_are_in_torchvision_too() -> None:
    """Arguments may be numbers of any kind, or a single one instead of several."""
    assert (
        repr(images.RandomHorizontalFlip(torch.tensor(1)))
        == repr(images.RandomHorizontalFlip(1.0))
        == "RandomHorizontalFlip(p=1.0)"
    )
    assert repr(images.GaussianBlur(3, 1)) == repr(images.GaussianBlur([3, 3], (1.0, 1.0)))
    assert repr(images.ToDtype(torch.float16, scale=True)) == "ToDtype(float16, scale=True)"
    assert repr(images.CutMix(num_classes=4)) == "CutMix(alpha=1.0, num_classes=4)"
    assert repr(images.RandomCrop(8, padding=(1, 2))) == repr(images.RandomCrop((8, 8), padding=(1, 2, 1, 2)))


def test_no_operators_give_a_copy() -> None:
    pictures = batch()
    for compose in (images.Compose([]), images.from_torchvision([])):
        copy = compose(pictures)
        assert torch.equal(copy, pictures) and copy.data_ptr() != pictures.data_ptr()
        assert compose.region(40, 52) == (0, 0, 52, 40)


def test_labels_that_are_no_classes_are_refused() -> None:
    mix = images.Compose([images.MixUp(num_classes=3)])
    for labels, says in [
        (
            torch.tensor([0, 1, 3]),
            "a label is 3, and MixUp has num_classes=3; give num_classes above all labels",
        ),
        (torch.tensor([0, -1, 1]), "a label is -1, which stands for none, and MixUp mixes labels"),
        (torch.tensor([0.0, 1.0, 2.0]), "labels is of torch.float32; give whole numbers"),
    ]:
        with pytest.raises(ValueError, match=says):
            mix(batch(), labels)
    with pytest.raises(TypeError, match="labels is list; give a tensor"):
        mix(batch(), [0, 1, 2])
    assert mix(batch(), torch.tensor([0, 1, 2], dtype=torch.int32))[1].shape == (3, 3)



def test_what_torchvision_has_is_translated_or_named() -> None:
    """Objects with torchvision's attributes, so that torchvision need not be installed."""

    def made(name: str, **attributes: Any) -> Any:
        return type(name, (SimpleNamespace,), {})(**attributes)

    jitter = made("ColorJitter", brightness=(0.6, 1.4), contrast=None, saturation=None, hue=None)
    rotation = made(
        "RandomRotation", degrees=[-45.0, 45.0], interpolation="nearest", expand=False, center=None, fill=0
    )
    inner = made("Compose", transforms=[made("ToImage"), rotation])
    compose = images.from_torchvision(made("Compose", transforms=[inner, jitter]))
    assert [type(transform).__name__ for transform in compose.transforms] == ["RandomRotation", "ColorJitter"]
    ours = images.Compose([images.RandomRotation(45), images.ColorJitter(brightness=0.4)])
    assert ours(batch(), samples=[1, 2, 3]).equal(compose(batch(), samples=[1, 2, 3]))
    odd = made("Resize", size=[20], interpolation="bicubic", max_size=None, antialias=True)
    with pytest.raises(
        ValueError, match="ElasticTransform is not known here; Resize: interpolation is 'bicubic'"
    ):
        images.from_torchvision([made("ElasticTransform"), odd, jitter])


def test_a_check_observes_the_launch() -> None:
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
    """The launches use addresses in device memory, as they would with PyTorch tensors."""
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
for operators in (
    usual,
    blurred,
    [*usual, images.ColorJitter(0.4, 0.4, 0.4, 0.1), images.GaussianBlur(5), images.RandAugment()],
):
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
    rest = [on_device(told.raw, records), *(on_device(None, room) for room in (even, odd, statistics))]
    drawn.launch("cuda:0", stream, [on_device(pictures, len(pictures)), *rest, output], "uint8", False)
    stream.synchronize()
    found = ctypes.create_string_buffer(size)
    to, place = ctypes.c_uint64(ctypes.addressof(found)), ctypes.c_uint64(output[0])
    assert cuda.cuMemcpy(to, place, ctypes.c_size_t(size)) == 0
    print(drawn.passes, found.raw == expected.raw)
"""
    )
    passes = [line.split() for line in printed.splitlines()]
    assert [same for _, same in passes] == ["True"] * 3
    assert int(passes[0][0]) == int(passes[1][0]) == 1 < int(passes[2][0])


# ------------------------------------------------------------------ compared with torchvision, if it is
# installed


def test_single_operators_are_torchvisions_within_a_level() -> None:
    vision = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not installed")
    functional = vision.functional
    picture = batch(1, 60, 72)
    # The record has the drawn values: its map is what torchvision calls the coefficients.
    for sample in range(5):
        compose = images.Compose([images.RandomPerspective(0.6, p=1.0, fill=(9, 8, 7))])
        drawn = compose._plan.draw((60, 72), False, 0, 0, [sample])
        records = torch.empty(drawn.needs()[0], dtype=torch.uint8)
        drawn.records((records.data_ptr(), records.numel()))
        coefficients = struct.unpack_from("8f", records.numpy().tobytes(), 4 * 14)
        expected = functional.perspective(
            picture[0], None, None, coefficients=list(coefficients), fill=[9.0, 8.0, 7.0]
        )
        difference = (compose(picture, samples=[sample])[0].int() - expected.int()).abs()
        assert difference.max() <= 1, sample
    for theirs in (
        vision.Resize(31),
        vision.Resize((90, 20)),
        vision.CenterCrop(64),
        vision.RandomHorizontalFlip(1.0),
        vision.RandomRotation((25, 25), interpolation=vision.InterpolationMode.BILINEAR, fill=50),
        vision.RandomAffine(
            (10, 10), scale=(0.8, 0.8), shear=(5, 5, 0, 0), interpolation=vision.InterpolationMode.BILINEAR
        ),
        vision.ColorJitter(contrast=(1.4, 1.4)),
        vision.ColorJitter(hue=(0.3, 0.3)),
        vision.Grayscale(3),
        vision.GaussianBlur(11, (2.5, 2.5)),
    ):
        for fuse in (True, False):
            ours = images.from_torchvision(theirs, fuse=fuse)(picture)[0]
            assert (ours.int() - theirs(picture[0]).int()).abs().max() <= 1, theirs
    numbers = vision.Compose(
        [vision.ToDtype(torch.float32, scale=True), vision.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])]
    )
    assert torch.allclose(images.from_torchvision(numbers)(picture)[0], numbers(picture[0]), atol=1e-6)
