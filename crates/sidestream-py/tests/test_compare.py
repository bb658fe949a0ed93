"""Comparison of the times of two functions: the verdict that an interval gives, and functions that are not
compared."""

from __future__ import annotations

import json
import math
import pickle
import random
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import sidestream
import torch_double
from sidestream import _benchmark
from sidestream._compare import LOOKS, Comparison, interval, judged
from sidestream._moves import Moved


def told(difference: float, noise: float, drawn: random.Random) -> str | None:
    """Return the result of ``compare`` for two functions with this difference, measured with this much noise.
    """
    groups: list[float] = []
    for look in LOOKS:
        while len(groups) < look:
            # Times have a tail: now and then a measurement is interrupted.
            tail = drawn.expovariate(1 / noise) if drawn.random() < 0.1 else 0.0
            groups.append((1 + difference) * math.exp(drawn.gauss(0, noise) + tail * drawn.choice((-1, 1))))
        verdict = judged(*interval(groups))
        if verdict is not None:
            return verdict
    return None


@pytest.mark.parametrize("noise", [0.0005, 0.003, 0.01, 0.03, 0.1])
def test_what_differs_is_not_called_equal_nor_what_does_not_different(noise: float) -> None:
    seed = 20261123
    drawn = random.Random(seed)
    for difference in (0.03, -0.03 / 1.03):
        said = [told(difference, noise, drawn) for _ in range(300)]
        assert said.count("equal") <= 1, (seed, noise, difference, said.count("equal"))
    for difference in (0.005, 0.0, -0.004975):
        said = [told(difference, noise, drawn) for _ in range(300)]
        assert said.count("different") <= 1, (seed, noise, difference, said.count("different"))


def test_little_noise_is_decided_and_much_noise_is_not() -> None:
    drawn = random.Random(7)
    assert [told(0.0, 0.003, drawn) for _ in range(20)] == ["equal"] * 20
    assert [told(0.03, 0.003, drawn) for _ in range(20)] == ["different"] * 20
    assert told(0.0, 0.3, drawn) is None
    assert interval([1.0] * 3) == (0.0, math.inf) and judged(0.0, math.inf) is None


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces PyTorch with its double during one test. The double has no operators that could be observed.
    """
    monkeypatch.setattr("sidestream._compare.moved", lambda call: (call(), Moved())[1])
    # Both modules are restored afterwards.
    for name in ("torch", "torch.cuda"):
        monkeypatch.setitem(sys.modules, name, None)
    torch_double.install()


def shorter() -> None:
    torch_double.work(200_000)


def longer() -> None:
    torch_double.work(206_000)


@pytest.mark.usefixtures("double")
def test_device_times_are_told_apart_in_both_directions() -> None:
    one, other = (
        sidestream.compare(*pair, device="cuda:0", seconds=20.0)
        for pair in ((shorter, longer), (longer, shorter))
    )
    assert (
        (one.verdict, other.verdict) == ("different", "different")
        and one.ratio == pytest.approx(1.03)
        and other.ratio == pytest.approx(1 / 1.03)
    )
    assert str(one).startswith("longer takes 1.030 times as long as shorter (from 1.0")
    assert str(other).startswith("longer takes 1.030 times as long as shorter (from 1.0")
    assert not one.includes_host and one.calls[0] > 1
    same = sidestream.compare(shorter, shorter, device="cuda:0", seconds=20.0)
    # The interval is as wide as this process stalled between calls, for which the device's clock continued.
    low, high = same.interval
    assert same.verdict == "equal" and 1 / 1.03 < low <= 1 <= high < 1.03
    assert same.smallest == pytest.approx(0.005 + high - low)
    with pytest.raises(
        ValueError, match=r"calls of <function spin at .* took no time on the current stream of cuda:0"
    ):
        sidestream.compare(spin, spin, 1, device="cuda:0")


def spin(count: int) -> int:
    return sum(range(count))


def test_twice_the_work_is_told_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    # A fake clock, because with other programs running a real one may show any ratio.
    now = 0
    monkeypatch.setattr(_benchmark, "time", SimpleNamespace(perf_counter_ns=lambda: now))

    def work(ns: int) -> None:
        nonlocal now
        now += ns

    def twice(ns: int) -> None:
        work(ns)
        work(ns)

    result = sidestream.compare(work, twice, 2_000, device="cpu", seconds=20.0)
    assert (result.verdict, result.ratio, *result.median_ns) == ("different", 2.0, 2_000.0, 4_000.0), str(
        result
    )
    assert str(result).startswith("twice takes 2.000 times as long as work (from 2.000 to 2.000 times)\n")
    assert "on cpu; 16 groups of" in str(result)
    assert json.loads(result.json())["schema"] == "sidestream.compare/1"
    assert pickle.loads(pickle.dumps(result)) == result


def test_too_little_time_gives_no_verdict() -> None:
    result = sidestream.compare(spin, spin, 2_000, device="cpu", seconds=1e-6)
    assert result.verdict == "unknown" and result.names == ("f", "g")
    first, second = str(result).split("\n")
    assert first == (
        "cannot tell which is faster: the time sufficed for 1 of at least 16 groups; "
        "give more (seconds=)"
    )
    assert second.endswith("on cpu; 1 group of two samples of each")
    figures = json.loads(result.json())
    assert figures["interval"][1] is None and figures["smallest"] is None


def test_what_would_have_been_seen_is_stated() -> None:
    made = Comparison(
        ("a", "b"), "cpu", "x", "unknown", 1.004, (0.99, 1.02), 0.035, (1e6, 1.004e6), 12, (1, 1), False, None
    )
    times = "b takes 1.004 times as long as a (from 0.990 to 1.020 times)"
    says = (
        "cannot tell which is faster: {}; a difference of 3.5 % would have been seen, and a smaller one with "
        "more time (seconds=)"
    )
    assert str(made).split("\n")[0] == says.format(times)
    # In the other order, the bounds are those of the inverse ratio.
    other = "a takes 1.004 times as long as b (from 0.990 to 1.020 times)"
    turned = replace(made, ratio=1 / 1.004, interval=(1 / 1.02, 1 / 0.99))
    assert str(turned).split("\n")[0] == says.format(other)
    equal = replace(made, verdict="equal")
    assert str(equal).startswith(f"equal within 3 %: {times}\n")


@pytest.mark.torch
def test_functions_that_do_not_do_the_same_are_refused(found: sidestream.CheckedRun) -> None:
    import torch

    x = torch.ones(1000, device="cuda")

    def downloads() -> Any:
        return (x * 2).cpu()

    def keeps() -> Any:
        return x * 2

    def waits() -> None:
        keeps()
        torch.cuda.synchronize()

    def uploads() -> Any:
        return torch.ones(10).to("cuda") * x[:10]

    def through_backward() -> None:
        class Double(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, value: Any) -> Any:
                return value * 2

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                gradient.sum().item()
                return gradient * 2

        y = torch.ones(10, device="cuda", requires_grad=True)
        Double.apply(y).sum().backward()

    for other, why in (
        (
            downloads,
            "keeps downloads 0 B a call and downloads 4000 B, and keeps waits for the device 0 times a call "
            "and downloads 1 times",
        ),
        (waits, r"keeps waits for the device 0 times a call and waits 1 times \(synchronize\)"),
        (uploads, "keeps uploads 0 B a call and uploads 40 B"),
        (through_backward, r"1 times \(item\)"),
    ):
        with pytest.raises(ValueError, match=why):
            sidestream.compare(keeps, other)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match="g is 3; give two functions"):
        sidestream.compare(spin, 3, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="same_work is 1; give True or False"):
        sidestream.compare(spin, spin, same_work=1, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seconds is 0"):
        sidestream.compare(spin, spin, seconds=0, device="cpu")
