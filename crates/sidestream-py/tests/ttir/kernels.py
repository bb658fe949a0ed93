"""The kernels whose intermediate representation is in the other files of this folder, as Triton 3.6 made it
for `GPUTarget("cuda", 90, 32)`.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=m) + tl.load(y_ptr + offs, mask=m), mask=m)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = a_ptr + i[:, None] * K + i[None, :]
    b = b_ptr + i[:, None] * BLOCK + i[None, :]
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for _ in range(0, K, BLOCK):
        acc += tl.dot(tl.load(a), tl.load(b))
        a += BLOCK
        b += BLOCK * BLOCK
    tl.store(c_ptr + i[:, None] * BLOCK + i[None, :], acc)


@triton.jit
def histogram(x_ptr, bins_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.atomic_add(bins_ptr + v, 1, mask=offs < n)


@triton.jit(noinline=True)
def put(ptr, v):
    tl.store(ptr, v)


@triton.jit
def either(a_ptr, b_ptr, flag_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    if tl.load(flag_ptr) > 0:
        p = a_ptr + offs
    else:
        p = b_ptr + offs
    s = tl.sum(tl.load(p))
    put(out_ptr, s)


@triton.jit
def until(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    p = x_ptr + offs
    k = 0
    while k < n:
        tl.store(p, tl.load(p) + 1)
        p += BLOCK
        k += BLOCK
    tl.store(out_ptr, k)
