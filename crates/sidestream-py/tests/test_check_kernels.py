"""Kernels that are not operators, under a check: the accesses in Triton's intermediate representation, and
the reports of launches.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sidestream import _check_triton
from sidestream._check import CheckedRun, checking
from sidestream._sidestream import Recorder

pytestmark = pytest.mark.torch

#: The output of Triton 3.6 for our kernels, whose sources are in `kernels.py` in that folder.
TEXTS = Path(__file__).parent / "ttir"

#: For each kernel and pointer: whether it is loaded from and stored to.
KNOWN = {
    "add": {"x_ptr": (True, False), "y_ptr": (True, False), "out_ptr": (False, True)},
    # These pointers are advanced by a loop.
    "product": {"a_ptr": (True, False), "b_ptr": (True, False), "c_ptr": (False, True)},
    "histogram": {"x_ptr": (True, False), "bins_ptr": (True, True)},
    # These pointers are used in two branches, and through a called function.
    "either": {
        "a_ptr": (True, False),
        "b_ptr": (True, False),
        "flag_ptr": (True, False),
        "out_ptr": (False, True),
    },
    "until": {"x_ptr": (True, True), "out_ptr": (False, True)},
}


def text(name: str) -> str:
    return (TEXTS / f"{name}.ttir").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", KNOWN)
def test_what_a_kernel_does_with_its_pointers_is_read(name: str) -> None:
    assert _check_triton.pointers_of(text(name), None) == KNOWN[name]


@pytest.mark.parametrize("name", KNOWN)
def test_a_kernel_that_this_triton_compiles_says_the_same(name: str) -> None:
    compiler = pytest.importorskip("triton.compiler")
    backends = pytest.importorskip("triton.backends.compiler")
    kernels: Any = pytest.importorskip("ttir.kernels")
    function, pointer = getattr(kernels, name), "*i32" if name == "histogram" else "*fp32"
    signature = {each: pointer if each.endswith("ptr") else "i32" for each in function.arg_names}
    signature["BLOCK"] = "constexpr"
    source = compiler.ASTSource(fn=function, signature=signature, constexprs={"BLOCK": 16})
    # Triton 3.9 warns if the program leaves this option open.
    options, target = {"enable_fp_fusion": True}, backends.GPUTarget("cuda", 90, 32)
    kernel = compiler.compile(source, target=target, options=options)
    assert _check_triton._pointers(kernel) == KNOWN[name]


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("%0 = tt.load %x : !tt.ptr<f32>", {"x": (True, False), "y": (False, False)}),
        ("tt.store %x, %v : !tt.ptr<f32>", {"x": (False, True), "y": (False, False)}),
        # A pointer that is loaded from memory may point anywhere.
        (
            "%0 = tt.int_to_ptr %n : i64 -> !tt.ptr<f32>\n tt.store %0, %v : !tt.ptr<f32>",
            {"x": (True, True), "y": (True, True)},
        ),
        (
            "%0 = arith.select %c, %x, %y : !tt.ptr<f32>\n tt.store %0, %v : !tt.ptr<f32>",
            {"x": (False, True), "y": (False, True)},
        ),
        # External code may do anything with its arguments.
        (
            '%0 = tt.extern_elementwise %x {symbol = "f"} : (!tt.ptr<f32>) -> f32',
            {"x": (True, True), "y": (False, False)},
        ),
        (
            "cf.br ^bb1(%x : !tt.ptr<f32>)\n ^bb1(%p: !tt.ptr<f32>):\n tt.store %p, %v : !tt.ptr<f32>",
            {"x": (False, True), "y": (False, False)},
        ),
        ("tt.call @unknown(%y) : (!tt.ptr<f32>) -> ()", {"x": (False, False), "y": (True, True)}),
        (
            "%d = tt.make_tensor_descriptor %x, [%n], [%n] : <f32>, !tt.tensordesc<tensor<8xf32>>\n"
            "%v1 = tt.descriptor_load %d[%n] : !tt.tensordesc<tensor<8xf32>> -> tensor<8xf32>\n"
            "%e = tt.make_tensor_descriptor %y, [%n], [%n] : <f32>, !tt.tensordesc<tensor<8xf32>>\n"
            "tt.descriptor_store %e[%n], %v1 : !tt.tensordesc<tensor<8xf32>>, tensor<8xf32>",
            {"x": (True, False), "y": (True, True)},
        ),
    ],
)
def test_where_an_address_comes_from(body: str, known: dict[str, tuple[bool, bool]]) -> None:
    head = "tt.func public @k(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %v: f32, %c: i1, %n: i64) {"
    assert _check_triton.pointers_of(f"module {{\n{head}\n{body}\ntt.return\n}}\n}}", None) == known


def test_constants_are_not_arguments_of_the_function() -> None:
    renamed = text("add").replace("x_ptr", "arg0").replace("y_ptr", "arg1").replace("out_ptr", "arg2")
    signature = {"BLOCK": "constexpr", "x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
    assert _check_triton.pointers_of(renamed, signature) == KNOWN["add"]


def test_any_text_is_read_or_refused() -> None:
    assert Recorder.pointers("") is None and Recorder.pointers("tt.func public @k(") == (0, [])
    deep = "tt.func public @k(%x: !tt.ptr<f32>) {\n" + "scf.if %c {\n" * 100_000
    assert Recorder.pointers(deep) == (1, [(0, "x", True, True)])
    wide = ", ".join(f"%a{at} = %x" for at in range(200_000))
    assert Recorder.pointers(
        "tt.func public @k(%x: !tt.ptr<f32>) {\n%r = scf.for iter_args(" + wide + ") {\n"
    ) == (1, [(0, "x", True, True)])
    many = ", ".join(f"%p{at}: !tt.ptr<f32>" for at in range(100))
    read = Recorder.pointers(f"tt.func public @k({many}) {{\n}}")
    assert read is not None and read[0] == 100 and all(loads and stores for _, _, loads, stores in read[1])
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(300):
        known = list(text(draw.choice(list(KNOWN))))
        for _ in range(draw.randrange(1, 30)):
            at = draw.randrange(len(known))
            known[at : at + draw.randrange(4)] = draw.choice(
                ["%", "{", "}", "(", '"', "=", "é", "\n", "^bb", "scf.yield", ""]
            )
        Recorder.pointers("".join(known))
        Recorder.stores(
            "".join(known),
            (draw.randrange(40), 2, 1),
            {"n": draw.randrange(-5, 1 << 40), "K": draw.randrange(99)},
        )


class Kernel:
    """A compiled Triton kernel, with the attributes that are read."""

    def __init__(self, name: str) -> None:
        self.asm = {"ttir": text(name)}


def launched(
    found: CheckedRun, stream: int, name: str, grid: tuple[int, ...] | None = None, **tensors: Any
) -> None:
    recorder: Any = found._recorder
    recorder.pretend_stream(stream)
    kernel = Kernel(name)
    recorder.launched(
        name,
        _check_triton._given(tensors, _check_triton._pointers(kernel)),
        stored=_check_triton.stored(kernel, tensors, grid),
    )


@pytest.mark.parametrize(
    ("name", "grid", "values", "known"),
    [
        ("add", (4, 1, 1), {"n": 4096}, [(2, 0, 16384)]),
        # The last program instance has less to do, or nothing.
        ("add", (4, 1, 1), {"n": 3100}, [(2, 0, 12400)]),
        ("add", (5, 1, 1), {"n": 3072}, [(2, 0, 12288)]),
        ("add", (100, 1, 1), {"n": 1 << 20}, [(2, 0, 32768), (2, 92 * 4096, 100 * 4096)]),
        ("add", (4, 1, 1), {"n": 0}, []),
        ("add", (4, 1, 1), {}, []),
        ("add", (0, 1, 1), {"n": 4096}, []),
        # Addresses do not fit in i32, so nothing is certain for these program instances.
        ("add", (1 << 30, 1, 1), {"n": 1 << 30}, [(2, 0, 32768)]),
        ("product", (1, 1, 1), {"K": 64}, [(2, 0, 16 * 128)]),
        ("histogram", (1, 1, 1), {"n": 64}, []),
        ("either", (1, 1, 1), {}, []),
        ("until", (1, 1, 1), {"n": 64}, [(1, 0, 4)]),
    ],
)
def test_what_a_kernel_certainly_stores(
    name: str, grid: tuple[int, int, int], values: dict[str, int], known: list[tuple[int, int, int]]
) -> None:
    assert Recorder.stores(text(name), grid, values) == known


HEAD = "%c0 = arith.constant 0 : i32\n%c8 = arith.constant 8 : i32\n"
STORE = "tt.store %x, %v : !tt.ptr<f32>"


@pytest.mark.parametrize(
    ("body", "known"),
    [
        (STORE, [(0, 0, 4)]),
        (f"scf.if %c {{\n{STORE}\n}}", []),
        (f"scf.if %c {{\nscf.if %c {{\n}}\n{STORE}\n}} else {{\n{STORE}\n}}", []),
        (f"scf.if %c {{\n}} else {{\n}}\n{STORE}", [(0, 0, 4)]),
        (f"cf.cond_br %c, ^bb1, ^bb2\n^bb1:\n{STORE}", []),
        (f"tt.return\n{STORE}", []),
        (f"{HEAD}scf.for %i = %c0 to %c8 step %c8  : i32 {{\n{STORE}\n}}", [(0, 0, 4)]),
        (f"{HEAD}scf.for %i = %c8 to %c8 step %c8  : i32 {{\n{STORE}\n}}", []),
        (f"{HEAD}scf.for %i = %c0 to %n step %c8  : i32 {{\n{STORE}\n}}", []),
        # The first iteration of a loop counts, not the value of its address afterwards.
        (
            f"{HEAD}%r = scf.for %i = %c0 to %c8 step %c8 iter_args(%p = %x) -> (!tt.ptr<f32>)  : i32 {{\n"
            "%q = tt.addptr %p, %c8 : !tt.ptr<f32>, i32\ntt.store %q, %v : !tt.ptr<f32>\n"
            "scf.yield %q : !tt.ptr<f32>\n}\n"
            "tt.store %r, %v : !tt.ptr<f32>",
            [(0, 32, 36)],
        ),
        ("%y = tt.load %x : !tt.ptr<!tt.ptr<f32>>\ntt.store %y, %v : !tt.ptr<f32>", []),
        (
            f'%r = "tt.reduce"(%v) <{{axis = 0 : i32}}> ({{\n^bb0(%a: f32):\ntt.reduce.return %a : f32\n'
            f"}}) : (f32) -> f32\n{STORE}",
            [(0, 0, 4)],
        ),
        # The stores are to every other element, and to one column.
        (
            "%c2 = arith.constant dense<2> : tensor<4xi32>\n"
            "%r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>\n"
            "%o = arith.muli %r, %c2 : tensor<4xi32>\n"
            "%s = tt.splat %x : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>\n"
            "%p = tt.addptr %s, %o : tensor<4x!tt.ptr<f32>>, tensor<4xi32>\n"
            "tt.store %p, %v : tensor<4x!tt.ptr<f32>>",
            [(0, 0, 4), (0, 8, 12), (0, 16, 20), (0, 24, 28)],
        ),
        # The mask is read from memory.
        ("%m = tt.load %x : !tt.ptr<i1>\ntt.store %x, %v, %m : !tt.ptr<f32>", []),
    ],
)
def test_a_store_that_may_be_skipped_is_not_certain(body: str, known: list[tuple[int, int, int]]) -> None:
    head = "tt.func public @k(%x: !tt.ptr<f32>, %v: f32, %c: i1, %n: i32) {"
    assert Recorder.stores(f"module {{\n{head}\n{body}\ntt.return\n}}\n}}", (1, 1, 1), {}) == known


@pytest.mark.parametrize("waits", [False, True], ids=["racy", "repaired"])
def test_two_kernels_that_store_the_same_are_a_race(waits: bool) -> None:
    x, out = torch.ones(4096), torch.ones(4096)
    with checking(pretend=True, host=False) as found:
        recorder: Any = found._recorder
        launched(found, 7, "add", (4,), x_ptr=x, y_ptr=x, out_ptr=out, n=4096)
        if waits:
            recorder.event_record(1, 7)
            recorder.event_wait(1, 8)
        launched(found, 8, "add", (4,), x_ptr=x, y_ptr=x, out_ptr=out, n=4096)
    assert [(race.kind, race.severity, race.doubt, race.shape) for race in found.races] == (
        [] if waits else [("WAW", "error", None, (4096,))]
    )


def test_two_kernels_that_may_store_elsewhere_stay_a_warning() -> None:
    x, out = torch.ones(4096), torch.ones(4096)
    with checking(pretend=True, host=False) as found:
        launched(found, 7, "add", (1,), x_ptr=x, y_ptr=x, out_ptr=out[1024:], n=1024)
        # Only the first block of the range is stored here.
        launched(found, 8, "add", (1,), x_ptr=x, y_ptr=x, out_ptr=out, n=4096)
    assert [(race.kind, race.severity) for race in found.races] == [("WAW", "warn")]


@pytest.mark.parametrize("waits", [False, True], ids=["racy", "repaired"])
def test_a_race_with_a_kernel_is_a_warning_that_names_the_argument(waits: bool) -> None:
    x, y, out = (torch.ones(1024) for _ in range(3))
    with checking(pretend=True, host=False) as found:
        recorder: Any = found._recorder
        launched(found, 7, "add", x_ptr=x, y_ptr=y, out_ptr=out, n=1024)
        if waits:
            recorder.event_record(1, 7)
            recorder.event_wait(1, 0)
        recorder.pretend_stream(0)
        x.sum()
        out.sum()
    assert found.is_clean and bool(found.races) is not waits, str(found)
    for race in found.races:
        assert (
            (race.kind, race.severity, race.first.operator, race.second.operator)
            == ("RAW", "warn", "add", "sum")
        )
        assert race.doubt == (
            "the kernel `add` receives all of it as its argument `out_ptr`, and may touch only a part"
        )
        assert race.fix.startswith("call `torch.cuda.default_stream().wait_stream(stream")


def test_two_kernels_on_two_halves_are_one_warning_at_most() -> None:
    x, out = torch.ones(1024), torch.ones(1024)
    with checking(pretend=True, host=False) as found:
        for _ in range(3):
            for stream in (7, 8):
                launched(found, stream, "add", x_ptr=x, y_ptr=x, out_ptr=out, n=512)
    assert [race.severity for race in found.races] == ["warn"], str(found)
    with checking(pretend=True, host=False) as found:
        for stream, half in ((7, out[:512]), (8, out[512:])):
            launched(found, stream, "add", x_ptr=x, y_ptr=x, out_ptr=half, n=512)
    assert found.races == (), str(found)


def test_a_certain_race_raises_and_a_warning_does_not() -> None:
    import sidestream

    x, out = torch.ones(1024), torch.ones(1024)
    with pytest.raises(sidestream.RaceError), checking(True, pretend=True, host=False) as found:
        launched(found, 7, "add", x_ptr=x, y_ptr=x, out_ptr=out, n=1024)
        found._recorder.pretend_stream(0)
        out.sum()
        out.zero_()
        found._recorder.pretend_stream(9)
        out.sum()
    assert {race.severity for race in found.races} == {"warn", "error"}


def module(name: str, **contents: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(contents)
    return made


def test_launches_of_triton_and_inductor_are_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    import inspect

    def add(x_ptr: Any, y_ptr: Any, out_ptr: Any, n: int, BLOCK: int = 8) -> None: ...

    class JITFunction:
        __name__ = "add"
        signature = inspect.signature(add)

        def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Kernel:
            return Kernel("add")

    class CachingAutotuner:
        fn = JITFunction()
        triton_meta = {"signature": {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32"}}
        mutated_arg_names: tuple[str, ...] = ()
        launchers: tuple[Any, ...] = ()

        def run(self, *args: Any, stream: int) -> None: ...

    plain = JITFunction.run, CachingAutotuner.run
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module("jit", JITFunction=JITFunction))
    name = "torch._inductor.runtime.triton_heuristics"
    monkeypatch.setitem(sys.modules, name, module(name, CachingAutotuner=CachingAutotuner))
    x, out = torch.ones(1024), torch.ones(1024)
    with checking(pretend=True, host=False) as found:
        recorder: Any = found._recorder
        recorder.pretend_stream(7)
        JITFunction().run(x, x, grid=(1,), warmup=True, out_ptr=out, n=1024)
        assert found.operations == 0
        JITFunction().run(x, x, grid=(1,), warmup=False, out_ptr=out, n=1024)
        recorder.pretend_stream(8)
        # A store to a kernel's own result covers all of it.
        CachingAutotuner().run(x, out, 1024, stream=8)
    # A store by a hand-written kernel also counts as covering the whole tensor, if the kernel's code,
    # arguments and grid prove that it does.
    assert [(race.kind, race.first.operator, race.severity) for race in found.races] == [
        ("WAW", "add", "error")
    ]
    assert found.operations == 2
    with checking(pretend=True, host=False) as found:
        recorder = found._recorder
        recorder.pretend_stream(8)
        CachingAutotuner().run(x, out, 1024, stream=8)
        recorder.pretend_stream(0)
        out.sum()
        x.zero_()
    # A generated kernel uses some byte of each argument, so a store to the whole argument meets it.
    assert sorted((race.kind, race.severity) for race in found.races) == [("RAW", "error"), ("WAR", "error")]
    with checking(pretend=True, host=False) as found:
        recorder = found._recorder
        recorder.pretend_stream(8)
        x.zero_()
        recorder.pretend_stream(9)
        # Generated code passes the stream, which need not be the current one.
        CachingAutotuner().run(x, out, 1024, stream=8)
        assert not found.races, str(found)
        CachingAutotuner().run(x, out, 1024, stream=10)
    kinds = [(race.kind, race.severity) for race in found.races]
    assert sorted(kinds) == [("RAW", "error"), ("WAW", "error")], str(found)
    with checking(pretend=True, host=False) as found:
        found._recorder.pretend_stream(8)
        x[:512].zero_()
        # The kernel may read the other half only.
        CachingAutotuner().run(x, out, 1024, stream=10)
    assert [(race.kind, race.severity) for race in found.races] == [("RAW", "warn")], str(found)
    assert (JITFunction.run, CachingAutotuner.run) == plain


def test_kernels_of_cupy_are_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with CuPy's documented interface; CuPy itself did not run here."""
    class Memory:
        def __init__(self, ptr: int) -> None:
            self.ptr = ptr

    class Array:
        """A `cupy.ndarray` over the memory of a tensor."""

        def __init__(self, of: torch.Tensor) -> None:
            self.data, self.shape = Memory(of.data_ptr()), of.shape
            self.size, self.itemsize = of.numel(), of.element_size()
            self.strides = tuple(step * self.itemsize for step in of.stride())

    class RawKernel:
        def __init__(self, code: str, name: str) -> None:
            self.name = name

        def __call__(self, grid: Any, block: Any, args: Any) -> None: ...

    class RawModule:
        def __init__(self, code: str) -> None: ...

        def get_function(self, name: str) -> RawKernel:
            return RawKernel("", name)

    class Device:
        id = 0

    stream = types.SimpleNamespace(ptr=7)
    cuda = types.SimpleNamespace(get_current_stream=lambda: stream, Device=Device)
    fake: Any = module("cupy", RawKernel=RawKernel, RawModule=RawModule, cuda=cuda)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    x = torch.ones(1024)
    makers: list[Callable[[], Any]] = [
        lambda: fake.RawKernel("", "k"),
        lambda: fake.RawModule("").get_function("k"),
    ]
    for make in makers:
        with checking(pretend=True, host=False) as found:
            kernel = make()
            assert kernel.name == "k" and (
                isinstance(kernel, fake.RawKernel) and isinstance(RawKernel("", "k"), fake.RawKernel)
            )
            kernel((1,), (1,), (Array(x), 1024))
            x.sum()
        (race,) = found.races
        assert (
            (race.kind, race.severity, race.first.operator) == ("RAW", "warn", "k")
            and "`number 0`" in str(race.doubt)
        ), str(found)
    assert fake.RawKernel is RawKernel and fake.RawModule is RawModule


@pytest.mark.parametrize(
    ("offset", "known"),
    [
        ("%o = arith.muli %w, %two : tensor<4xi64>", [(0, 0, 4), (0, 8, 12), (0, 16, 20), (0, 24, 28)]),
        ("%o = arith.addi %w, %two : tensor<4xi64>", [(0, 8, 24)]),
        # These do not fit, so nothing is certain.
        ("%o = arith.addi %w, %most : tensor<4xi64>", []),
        ("%o = arith.muli %most, %two : tensor<4xi64>", []),
    ],
)
@pytest.mark.parametrize("mask", ["", "%m = arith.cmpi slt, %w, %most : tensor<4xi64>\n"])
def test_offsets_of_64_bits_are_followed(offset: str, mask: str, known: list[tuple[int, int, int]]) -> None:
    text = (
        "module {\ntt.func public @k(%x: !tt.ptr<f32>, %v: f32) {\n"
        f"%most = arith.constant dense<{(1 << 63) - 1}> : tensor<4xi64>\n"
        "%two = arith.constant dense<2> : tensor<4xi64>\n"
        "%r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>\n"
        f"%w = arith.extsi %r : tensor<4xi32> to tensor<4xi64>\n{mask}{offset}\n"
        "%s = tt.splat %x : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>\n"
        "%p = tt.addptr %s, %o : tensor<4x!tt.ptr<f32>>, tensor<4xi64>\n"
        f"tt.store %p, %v{', %m' * bool(mask)} : tensor<4x!tt.ptr<f32>>\ntt.return\n}}\n}}"
    )
    assert Recorder.stores(text, (1, 1, 1), {}) == known
