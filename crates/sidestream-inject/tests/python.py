# Compares the library's idea of where this thread is with Python's own.
# ctypes releases the GIL around each call, as PyTorch does.
import ctypes
import gc
import sys
import threading

library = ctypes.CDLL("./libsites.so")
places = {}


# The place that the library finds, whose text it gives once.
exec(compile("""
def where():
    text, number = ctypes.create_string_buffer(4096), ctypes.c_uint64()
    length = library.place(text, ctypes.byref(number))
    assert places.setdefault(number.value, text.raw[:length].decode()) == text.raw[:length].decode()
    return places[number.value]

def through_library(f):
    return f()
""", "/x/site-packages/torch.py", "exec"))
exec(compile("def frozen(f): return f()", "<frozen importlib>", "exec"))
has_qualified_names = sys.version_info >= (3, 11)


def expect(found, line, function, file=__file__):
    if not has_qualified_names:
        function = function.rpartition(".")[2]
    wanted = f"{file}:{line} {function}"
    assert found == wanted, f"{found!r} instead of {wanted!r}"


def line():
    return sys._getframe(1).f_lineno


def nested():
    def inner():
        expect(where(), line(), "nested.<locals>.inner")

    inner()
    return where(), line()


class Module:
    def __call__(self):
        return where(), line()

    expect(where(), line(), "Module")


def generator():
    yield where(), line()
    found = where()
    yield found, line() - 1


def deep(depth):
    if depth == 0:
        return where(), line()
    return deep(depth - 1)


def check():
    expect(where(), line(), "check")
    found = [
        where(),
        where(),
    ]
    expect(found[0], line() - 3, "check")
    expect(found[1], line() - 3, "check")
    found, at = nested()
    expect(found, at, "nested")
    found, at = Module()()
    expect(found, at, "Module.__call__")
    for found, at in generator():
        expect(found, at, "generator")
    found, at = (lambda: (where(), line()))()
    expect(found, at, "check.<locals>.<lambda>")
    found, at = deep(100)
    expect(found, at, "deep")
    sorted([1], key=lambda _: expect(where(), line(), "check.<locals>.<lambda>") or 1)
    expect(through_library(lambda: frozen(where)), line(), "check.<locals>.<lambda>")


check()
expect(where(), line(), "<module>")

# Only libraries near by: the innermost line.
DEEP = "\ndef deep_library(depth):\n if depth == 0:\n  return where()\n return deep_library(depth - 1)"
exec(compile(DEEP, "/x/dist-packages/y.py", "exec"))
expect(deep_library(40), 4, "where", "/x/site-packages/torch.py")
expect(deep_library(10), line(), "<module>")

# Code in the place of code that was thrown away, and names that are not ASCII.
for number in range(2000):
    blank, file = "\n" * (number % 50), f"/tmp/{'größe' if number % 2 else number % 7}.py"
    names = {"where": where}
    exec(compile(f"{blank}def größe():\n return where()\nfound = größe()", file, "exec"), names)
    expect(names["found"], number % 50 + 2, "größe", file)

failures = []


def run(seed):
    try:
        for _ in range(200):
            check()
            found, at = deep(seed)
            expect(found, at, "deep")
    except AssertionError as error:
        failures.append(error)


threads = [threading.Thread(target=run, args=[seed]) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
assert library.elsewhere() == 0, "a thread without Python has a line"


# All lines of a thread, those of libraries too.
def all_lines(depth):
    if depth:
        return through_library(lambda: all_lines(depth - 1))
    found = (ctypes.c_uint32 * 12)()
    count, wanted, frame = library.lines(found, 12), [line()], sys._getframe(1)
    while frame and len(wanted) < 12:
        wanted.append(frame.f_lineno)
        frame = frame.f_back
    return list(found[:count]), wanted


for depth in (0, 1, 5):
    found, wanted = all_lines(depth)
    assert found == wanted, f"{found} instead of {wanted}"
