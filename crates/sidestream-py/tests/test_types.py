"""The package's type annotations: `cargo xtask python` type-checks this file, and running it shows that they
are true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sidestream
from sidestream import Prefetcher, prefetch
from typing_extensions import assert_type


def count(x: Any) -> int:
    return int(x)


def name(x: Any) -> str:
    return str(x)


def batches() -> Iterator[tuple[int, str]]:
    yield 1, "a"


def test_a_prefetcher_gives_what_its_loader_does() -> None:
    plain = assert_type(prefetch(batches(), "cpu"), Prefetcher[tuple[int, str]])
    for batch in plain:
        assert assert_type(batch, tuple[int, str]) == (1, "a")
    changed = prefetch(batches(), "cpu", transform=lambda batch: name(batch[0]), keep="copy")
    assert list(assert_type(changed, Prefetcher[str])) == ["1"]


@pytest.mark.torch
def test_branches_give_what_each_returns() -> None:
    first, second = sidestream.parallel(count, name)(3)
    assert (assert_type(first, int), assert_type(second, str)) == (3, "3")
    three = sidestream.parallel(count, name, count, mode="serial")("4")
    assert assert_type(three, tuple[int, str, int]) == (4, "4", 4)
    many = sidestream.parallel(*[count] * 5)(5)
    assert assert_type(many, tuple[int, ...]) == (5,) * 5


@pytest.mark.torch
def test_an_answer_is_what_the_model_returns() -> None:
    def scores(x: Any) -> dict[str, Any]:
        return {"score": x * 2}

    with sidestream.check(simulate=True):
        import torch

        with sidestream.Batcher(scores, sizes=(1, 2), graphs=False) as batcher:
            answer = batcher.submit(torch.ones(3))
            assert assert_type(answer.result(60), dict[str, Any])["score"].tolist() == [2, 2, 2]

            async def awaited() -> None:
                assert assert_type(await batcher.submit(torch.zeros(3)), dict[str, Any])[
                    "score"
                ].tolist() == [0, 0, 0]

            asyncio.run(awaited())
