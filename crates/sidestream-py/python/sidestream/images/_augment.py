"""``Compose``: augments batches of pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from sidestream._arguments import truth, whole
from sidestream._sidestream import AugmentBatch, AugmentPlan
from sidestream.images import _operators as operators
from sidestream.images._operator import ARGUMENTS, Operator

if TYPE_CHECKING:
    from sidestream.images._loader import Batch


class Compose:
    """Operators that are applied to a batch of pictures: on a GPU in one launch, on the CPU on all cores.

    Geometric operators are composed into one map that is sampled once; blur, colours, erasing, mixing and
    normalization follow in the same launch. The result for a picture depends only on ``seed``, ``epoch`` and
    its number in ``samples``, not on its batch, the process that loaded it, or the number of times that the
    run was resumed. Only ``MixUp`` and ``CutMix`` mix in another picture of the batch.

    Args:
        transforms: Operators of ``sidestream.images``; ``from_torchvision`` makes them from torchvision's.
            Without operators the result is a copy.
        seed: The seed of the run.
        fuse: Whether operators are composed. If not, each operator samples and rounds to bytes, as in
            torchvision on tensors of bytes; this is meant for comparisons.
        channels_last: Whether results have PyTorch's memory format ``channels_last``.

    Raises:
        TypeError: A transform is not an operator.
        ValueError: The operators cannot follow each other in this order. An operator checks its own arguments
            when it is made.
    """

    def __init__(
        self, transforms: Iterable[Operator], *, seed: int = 0, fuse: bool = True, channels_last: bool = False
    ) -> None:
        """Check the operators."""
        self.transforms = list(transforms)
        for transform in self.transforms:
            if not isinstance(transform, Operator):
                raise TypeError(
                    f"{transform!r} is not an operator of sidestream.images; from_torchvision translates "
                    "those of torchvision"
                )
        truth("fuse", fuse)
        truth("channels_last", channels_last)
        self.seed = whole("seed", seed, 0, "the seed of the run")
        self._fuse = fuse
        self._channels_last = channels_last
        given = [(type(transform).__name__, transform._given) for transform in self.transforms]
        self._plan = AugmentPlan(given, fuse)
        kinds = [transform.dtype for transform in self.transforms if isinstance(transform, operators.ToDtype)]
        self._kind = kinds[-1] if kinds else "uint8"
        mixes = [
            transform
            for transform in self.transforms
            if isinstance(transform, (operators.MixUp, operators.CutMix))
        ]
        self._mixes = mixes[-1] if mixes else None
        #: The number of the next picture that is passed without a number.
        self._next = 0

    def __repr__(self) -> str:
        """Return the operators."""
        return f"Compose([{', '.join(map(repr, self.transforms))}])"

    def __call__(
        self, batch: Any, labels: Any = None, *, epoch: int = 0, samples: Sequence[int] | Any = None
    ) -> Any:
        """Return the augmented batch; if ``labels`` is given, return the batch and the labels.

        On a GPU the work is submitted to PyTorch's current stream, and the host does not wait. The result is
        a new tensor.

        Args:
            batch: A tensor of bytes of the shape (pictures, 3, height, width), contiguous or
                ``channels_last``.
            labels: Classes as whole numbers, or rows of weights. With ``MixUp`` or ``CutMix`` they become
                rows of weights.
            epoch: How often the data has been seen before.
            samples: The number of each picture in the data set. By default pictures are counted over all
                calls, so a result can be repeated only by repeating all earlier calls.

        Raises:
            TypeError: ``batch`` is not a tensor of bytes.
            ValueError: It has another shape, ``samples`` has not one number for each picture, or pictures are
                too small for an operator.
        """
        import torch

        if not isinstance(batch, torch.Tensor) or batch.dtype != torch.uint8:
            kind = batch.dtype if isinstance(batch, torch.Tensor) else type(batch).__name__
            raise TypeError(f"batch is of {kind}; give a tensor of torch.uint8")
        if batch.dim() != 4 or batch.shape[1] != 3:
            raise ValueError(f"batch has the shape {tuple(batch.shape)}; give (pictures, 3, height, width)")
        count, _, height, width = batch.shape
        numbers = self._numbers(samples, count)
        is_nhwc = not batch.is_contiguous() and batch.is_contiguous(memory_format=torch.channels_last)
        source = batch if is_nhwc else batch.contiguous()
        epoch = whole("epoch", epoch, 0, "how often the data was seen before")
        drawn = self._plan.draw((height, width), is_nhwc, self.seed, epoch, numbers)
        format_ = torch.channels_last if self._channels_last else torch.contiguous_format
        result = torch.empty(
            (count, 3, *drawn.size),
            dtype=getattr(torch, self._kind),
            device=batch.device,
            memory_format=format_,
        )
        self._run(torch, drawn, source, result)
        if labels is None:
            return result
        return result, labels if self._mixes is None else self._mixed(torch, drawn, labels)

    def of_loader(self, slab: Any, labels: Any, batch: Batch) -> tuple[Any, Any]:
        """Return the pictures of a loader's batch, augmented on the device that has its bytes, and their
        labels.

        The pictures may have different sizes, if the operators bring all of them to one size. The result for
        a picture depends on the seed of this object, the epoch and its number in the data.

        Args:
            slab: ``batch.slab``, or a copy of it on a device.
            labels: The classes as a tensor, on the same device. With ``MixUp`` or ``CutMix`` they become rows
                of weights.
            batch: The batch of a ``Loader``.

        Raises:
            ValueError: Results have different sizes, or less of a picture was decoded than its result needs.
        """
        import torch

        if self._mixes is not None:
            # Labels are checked here, on the host: on the device an invalid label would destroy the context.
            for sample, label in zip(batch.samples, batch.labels, strict=True):
                self._is_class(-1 if label is None else label, f"the label of sample {sample}")
        drawn = self._plan.draw_placed(
            batch.placed,  # type: ignore[arg-type]
            self.seed,
            batch.epoch,
            batch.samples,
        )
        format_ = torch.channels_last if self._channels_last else torch.contiguous_format
        shape = (len(batch), 3, *drawn.size)
        result = torch.empty(
            shape, dtype=getattr(torch, self._kind), device=slab.device, memory_format=format_
        )
        self._run(torch, drawn, slab, result)
        return result, labels if self._mixes is None else self._mixed(torch, drawn, labels)

    def region(
        self, height: int, width: int, *, epoch: int = 0, sample: int = 0
    ) -> tuple[int, int, int, int]:
        """Return left, top, width and height of the part of a picture that its result depends on. Only that
        part needs to be decoded.
        """
        return self._plan.region((self.seed, epoch, sample), height, width)

    def _numbers(self, samples: Any, count: int) -> list[int]:
        if samples is None:
            numbers = list(range(self._next, self._next + count))
            self._next += count
            return numbers
        numbers = samples.tolist() if hasattr(samples, "tolist") else list(samples)
        if len(numbers) != count:
            raise ValueError(
                f"samples has {len(numbers)} numbers, and the batch {count} pictures; give one for each"
            )
        if set(map(type, numbers)) == {int} and min(numbers) >= 0:
            return numbers
        return [whole("samples", number, 0, "numbers of pictures") for number in numbers]

    def _run(self, torch: Any, drawn: AugmentBatch, source: Any, result: Any) -> None:
        if not source.is_cuda:
            drawn.host(
                _piece(source, source.data_ptr()),
                _piece(result, result.data_ptr()),
                self._kind,
                self._channels_last,
            )
            return
        if getattr(torch.cuda, "is_simulated", False):
            plain = torch._C.TensorBase.data_ptr
            drawn.host(
                _piece(source, plain(source)), _piece(result, plain(result)), self._kind, self._channels_last
            )
            tell(_NAME, [(source, True, False, None), (result, False, True, None)])
            return
        records_bytes, even, odd, statistics = drawn.needs()
        # PyTorch caches pinned memory, and reuses it once the copy from it is complete.
        staged = torch.empty(records_bytes, dtype=torch.uint8, pin_memory=True)
        drawn.records(_piece(staged, staged.data_ptr()))
        with torch.cuda.device(source.device):
            records = staged.to(source.device, non_blocking=True)
            # For a plan without intermediate passes or statistics, any valid address does, since no bytes are
            # used.
            room = (
                torch.empty(even + odd, dtype=torch.uint8, device=source.device)
                if even + odd
                else records[:0]
            )
            words = (
                torch.zeros(statistics, dtype=torch.uint8, device=source.device)
                if statistics
                else records[:0]
            )
            at, zero = room.data_ptr() or records.data_ptr(), words.data_ptr() or records.data_ptr()
            pieces = [
                _piece(source, source.data_ptr()),
                (records.data_ptr(), records_bytes),
                (at, even),
                (at + even, odd),
                (zero, statistics),
                _piece(result, result.data_ptr()),
            ]
            drawn.launch(f"cuda:{source.device.index}", None, pieces, self._kind, self._channels_last)
        tell(_NAME, [(source, True, False, None), (records, True, False, None), (result, False, True, None)])

    def _mixed(self, torch: Any, drawn: AugmentBatch, labels: Any) -> Any:
        assert self._mixes is not None
        if not isinstance(labels, torch.Tensor):
            raise TypeError(
                f"labels is {type(labels).__name__}; give a tensor of whole numbers, or of rows of weights"
            )
        if labels.dim() == 1:
            classes = self._mixes.num_classes
            if classes is None:
                raise ValueError(
                    f"labels are numbers of classes, and {type(self._mixes).__name__} has no num_classes; "
                    "give it"
                )
            if labels.is_floating_point() or labels.dtype == torch.bool:
                raise ValueError(
                    f"labels is of {labels.dtype}; give whole numbers, or a row of weights for each picture"
                )
            if not labels.is_cuda:
                for label in labels.tolist():
                    self._is_class(label, "a label")
            labels = torch.nn.functional.one_hot(labels.long(), classes)
        rows = labels.float()
        partners, shares = zip(*drawn.mixed(), strict=True)
        share = torch.tensor(shares, dtype=torch.float32)
        other = torch.tensor(partners)
        if rows.is_cuda:
            share = share.pin_memory().to(rows.device, non_blocking=True)
            other = other.pin_memory().to(rows.device, non_blocking=True)
        return rows * share[:, None] + rows[other] * (1 - share)[:, None]


    def _is_class(self, label: int, what: str) -> None:
        """Refuse a label that is not a class."""
        assert self._mixes is not None
        name, classes = type(self._mixes).__name__, self._mixes.num_classes
        if label < 0:
            raise ValueError(
                f"{what} is {label}, which stands for none, and {name} mixes labels; label all pictures, "
                f"or leave {name} out"
            )
        if classes is not None and label >= classes:
            raise ValueError(
                f"{what} is {label}, and {name} has num_classes={classes}; "
                "give num_classes above all labels, or fix the label"
            )

    def _identity(self) -> dict[str, Any]:
        """Return everything besides the picture that a result depends on, for the state of a loader."""
        return {
            "seed": self.seed,
            "fuse": self._fuse,
            "operators": [repr(transform) for transform in self.transforms],
        }


def same_augmentation(state: dict[str, Any], augment: Compose | None) -> None:
    """Refuse the state of a loader whose pictures were augmented in a different way.

    Raises:
        ValueError: The augmentations differ. The message names both.
    """
    if not isinstance(state, dict):
        raise TypeError(f"state is {type(state).__name__}; give what `state_dict` returned")
    own = None if augment is None else augment._identity()
    if "augment" not in state:
        if own is None:
            return
        raise ValueError(
            "the state does not say how pictures were augmented, since an earlier version saved it, "
            "or a loader in Rust; "
            'start over, or set state["augment"] to loader.state_dict()["augment"] if it was as here'
        )
    saved = state["augment"]
    if saved == own:
        return
    remedy = "make the loader with the same `augment`, or start over"
    if saved is None or own is None:
        has, lacks = ("this loader has", "the state") if saved is None else ("the state has", "this loader")
        raise ValueError(f"{has} an augmentation, {_words(own or saved)}, and {lacks} none; {remedy}")
    if not isinstance(saved, dict) or saved.keys() != own.keys() or not isinstance(saved["operators"], list):
        raise ValueError(
            f"the state has the augmentation {saved!r}, which no loader of this version saves; {remedy}"
        )
    for name in ("seed", "fuse"):
        if saved[name] != own[name]:
            raise ValueError(
                f"the state has an augmentation with {name}={saved[name]}, "
                f"and this loader one with {name}={own[name]}; {remedy}"
            )
    for at, (there, here) in enumerate(zip_longest(saved["operators"], own["operators"], fillvalue="none")):
        if there != here:
            raise ValueError(
                f"operator {at} of the augmentation is {there} in the state, and {here} in this loader; "
                f"{remedy}"
            )


def _words(augmentation: Any) -> str:
    operators = augmentation.get("operators") if isinstance(augmentation, dict) else None
    return (
        f"Compose([{', '.join(map(str, operators))}])" if isinstance(operators, list) else repr(augmentation)
    )


def _piece(tensor: Any, address: int) -> tuple[int, int]:
    return address, tensor.numel() * tensor.element_size()


#: The name of the launch in a check's report.
_NAME = "sidestream.images.Compose"


def tell(name: str, given: list[tuple[Any, bool, bool, str | None]]) -> None:
    """Record a launch in the checks that are entered: for each tensor, whether it is read and written."""
    hooks = sys.modules.get("sidestream._check_hooks")
    for recorder in [] if hooks is None else hooks._listening:
        recorder.launched(name, given)


# ------------------------------------------------------------------ torchvision


def from_torchvision(
    transforms: Any, *, seed: int = 0, fuse: bool = True, channels_last: bool = False
) -> Compose:
    """Return a ``Compose`` of operators of ``torchvision.transforms.v2``, or of a ``Compose`` of them.

    Random numbers come from the same distributions, but have other values.

    Args:
        transforms: A ``Compose``, a sequence of operators, or one.
        seed: As for ``Compose``.
        fuse: As for ``Compose``.
        channels_last: As for ``Compose``.

    Raises:
        ValueError: ``transforms`` has operators or arguments that are not supported; all of them are named.
    """
    found: list[Operator] = []
    refused: list[str] = []
    for transform in _flat(transforms):
        name = type(transform).__name__
        if name not in ARGUMENTS:
            if name not in _DROPPED:
                refused.append(f"{name} is not known here")
            continue
        try:
            found.append(_translated(transform))
        except (TypeError, ValueError, AttributeError) as error:
            # An error of one of this package's operators already has the operator's name.
            refused.append(str(error) if str(error).startswith(f"{name}: ") else f"{name}: {error}")
    if refused:
        raise ValueError("sidestream.images cannot do this: " + "; ".join(refused))
    return Compose(found, seed=seed, fuse=fuse, channels_last=channels_last)


#: Operators of torchvision that are skipped: `Compose` works on tensors already, and `Identity` does nothing.
_DROPPED = ("ToImage", "PILToTensor", "ToPureTensor", "Identity")


def _flat(transforms: Any) -> Iterable[Any]:
    inner = transforms if isinstance(transforms, (list, tuple)) else getattr(transforms, "transforms", None)
    if inner is None or type(transforms).__name__ not in ("Compose", "list", "tuple", "Sequential"):
        yield transforms
        return
    for transform in inner:
        yield from _flat(transform)


def _translated(transform: Any) -> Operator:
    name = type(transform).__name__
    given = {}
    for argument, kind, _ in ARGUMENTS[name]:
        if kind == "Ignored":
            continue
        value = getattr(transform, argument)
        if isinstance(value, dict) and argument in ("fill", "dtype"):
            give = "a number or three" if argument == "fill" else "one type"
            raise ValueError(f"{argument} is a dictionary; give {give}")
        if value is None and kind == "Value":
            raise ValueError('value is "random"; give a number or three')
        if value is not None or argument != "fill":
            given[argument] = value
    made: Operator = getattr(operators, name)(**given)
    return made
