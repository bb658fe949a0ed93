"""Nested containers that are taken apart and rebuilt."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from sidestream._tree import flatten


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    image: Any
    name: str = "none"


class Named(UserDict[str, Any]):
    """A mapping that has more than its items, like the results of tokenizers."""

    source = "text"


class Frozen(Mapping[str, Any]):
    def __init__(self, items: Any) -> None:
        self._items = dict(items)

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def array(value: int) -> Any:
    return np.full(2, value)


def doubled(tree: Any) -> Any:
    leaves, shape = flatten(tree)
    return shape.unflatten([2 * leaf for leaf in leaves])


def test_every_container_comes_back_as_what_it_was() -> None:
    counts: defaultdict[str, Any] = defaultdict(list, x=array(1))
    named = Named(x=array(2))
    named.source = "speech"
    tree: dict[str, Any] = {
        "list": [array(3), "text", None],
        "tuple": (array(4), 5),
        "pair": Pair(array(6), 7),
        "sample": Sample(array(8), "eight"),
        "counts": counts,
        "named": named,
        "ordered": OrderedDict(b=array(9), a=array(10)),
        "frozen": Frozen({"x": array(11)}),
    }
    made = doubled(tree)
    assert list(made) == list(tree)
    assert made["list"][0][0] == 6 and made["list"][1:] == ["text", None]
    assert made["tuple"][0][0] == 8 and made["tuple"][1] == 5
    assert type(made["pair"]) is Pair and made["pair"].image[1] == 12 and made["pair"].label == 7
    assert type(made["sample"]) is Sample and made["sample"].image[0] == 16 and made["sample"].name == "eight"
    assert type(made["counts"]) is defaultdict and made["counts"]["x"][0] == 2 and made["counts"]["new"] == []
    assert type(made["named"]) is Named and made["named"]["x"][0] == 4 and made["named"].source == "speech"
    assert type(made["ordered"]) is OrderedDict and list(made["ordered"]) == ["b", "a"]
    assert type(made["frozen"]) is Frozen and made["frozen"]["x"][0] == 22
    # The input is unchanged.
    assert tree["list"][0][0] == 3 and named["x"][0] == 2 and tree["sample"].image[0] == 8


def test_what_holds_no_array_is_the_same_object() -> None:
    plain = {
        "names": ["a", "b"],
        "when": np.array(["2026-01-01"], dtype="datetime64[D]"),
        "words": np.array(["x"]),
    }
    made = doubled({"plain": plain, "x": array(1)})
    assert made["plain"] is plain
    text = "a batch"
    assert doubled(text) is text


def test_an_array_alone_is_a_tree() -> None:
    assert doubled(array(3))[0] == 6


def test_the_shape_keeps_no_array_alive() -> None:
    trees: list[Any] = [[array(1)], {"x": array(1)}, Pair(array(1), 2), Sample(array(1)), Named(x=array(1))]
    for tree in trees:
        leaves, shape = flatten(tree)
        is_there = weakref.ref(leaves[0])
        kind = type(tree)
        tree = None
        leaves.clear()
        if kind in (list, dict, Pair, Sample, Named):
            trees[[type(one) for one in trees].index(kind)] = None
        assert is_there() is None, shape


@pytest.mark.parametrize(
    ("index", "path"), [(0, "['a'][0]"), (1, "['a'][1].image"), (2, "['b'].image"), (3, "[7]"), (4, "")]
)
def test_the_place_of_an_array_is_written_as_in_python(index: int, path: str) -> None:
    tree = {"a": [array(1), Pair(array(2), "text")], "b": Sample(array(3)), 7: array(4)}
    assert flatten(tree)[1].path_of(index) == path


def test_shapes_are_equal_where_only_the_arrays_differ() -> None:
    def is_same(tree: object, other: object) -> bool:
        return flatten(tree)[1].is_same(flatten(other)[1])

    one, two = array(1), array(2)
    assert is_same({"x": [one, 3], "y": one}, {"x": [two, 3], "y": two})
    assert is_same(one, two) and is_same(Pair(one, 3), Pair(two, 3)) and is_same(Sample(one), Sample(two))
    for different in (
        {"x": [two, 4], "y": two},
        {"x": [two], "y": two},
        {"x": (two, 3), "y": two},
        {"z": [two, 3], "y": two},
        {"x": [two, two], "y": two},
        OrderedDict(x=[two, 3], y=two),
        two,
    ):
        assert not is_same({"x": [one, 3], "y": one}, different), different
    assert not is_same(Pair(one, 3), (two, 3)) and not is_same(Sample(one, "a"), Sample(two, "b"))

    class Refuses:
        def __eq__(self, value: object) -> bool:
            raise TypeError("not to be compared")

    assert not is_same([one, Refuses()], [one, Refuses()])


def test_a_shape_takes_as_many_arrays_as_it_has_places() -> None:
    shape = flatten([array(1), array(2)])[1]
    with pytest.raises(ValueError, match="fewer arrays than places"):
        shape.unflatten([array(1)])
    with pytest.raises(ValueError, match="1 more arrays than places"):
        shape.unflatten([array(1)] * 3)


def test_what_contains_itself_is_refused() -> None:
    batch: list[Any] = [array(1)]
    batch.append(batch)
    with pytest.raises(RecursionError, match="contains itself"):
        flatten(batch)
    deep: Any = array(1)
    for _ in range(150):
        deep = (deep,)
    leaves, shape = flatten(deep)
    assert len(leaves) == 1 and shape.path_of(0) == "[0]" * 150 and shape.unflatten(leaves) == deep


def test_an_error_of_a_container_is_the_callers() -> None:
    class Breaks(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise KeyError("no page of it")

        def __iter__(self) -> Iterator[str]:
            return iter(["x"])

        def __len__(self) -> int:
            return 1

    with pytest.raises(KeyError, match="no page of it"):
        flatten([Breaks()])


def test_a_named_tuple_with_a_constructor_of_its_own_is_made_by_its_fields() -> None:
    class Named(NamedTuple):
        image: Any
        label: Any

    class Own(Named):
        def __new__(cls, both: Any) -> Own:
            return super().__new__(cls, both, both)

    made = doubled(Own(array(1)))
    assert type(made) is Own and made.image[0] == made.label[0] == 2


def test_a_field_that_is_not_there_yet_is_left_out() -> None:
    @dataclasses.dataclass
    class Later:
        image: Any
        found: Any = dataclasses.field(init=False, repr=False)

    made = doubled(Later(array(1)))
    assert made.image[0] == 2 and not hasattr(made, "found")


class Shared(UserDict[str, Any]):
    """A mapping whose shallow copy shares its items."""

    def __copy__(self) -> Shared:
        made = Shared.__new__(Shared)
        made.__dict__.update(self.__dict__)
        return made


def test_a_mapping_whose_copy_is_itself_is_refused_and_stays_as_it_was() -> None:
    shared = Shared(x=array(1), y=2)
    with pytest.raises(TypeError, match="a copy of Shared is not independent of it"):
        flatten([shared])
    assert shared["x"][0] == 1 and shared["y"] == 2


def test_a_dictionary_that_changes_meanwhile_keeps_its_pairs() -> None:
    batch: dict[str, Any] = {}

    class Changes(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            return array(5)

        def __iter__(self) -> Iterator[str]:
            batch.pop("a", None)
            return iter(["x"])

        def __len__(self) -> int:
            return 1

    batch.update(a=array(1), b=Changes(), c=array(3))
    leaves, shape = flatten(batch)
    assert [leaf[0] for leaf in leaves] == [1, 5, 3]
    assert [shape.path_of(at) for at in range(3)] == ["['a']", "['b']['x']", "['c']"]


def test_a_shape_says_whether_there_was_something_unknown() -> None:
    assert not flatten({"x": array(1), "n": 3, "t": "text", "b": b"bytes", "f": 1.5, "no": None, "is": True})[
        1
    ].has_objects
    assert flatten({"x": array(1), "o": object()})[1].has_objects


def test_what_reaches_its_own_shape_is_collected() -> None:
    class Holder:
        shape: Any

    holder = Holder()
    holder.shape = flatten([array(1), holder])[1]
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
