"""The kernel of ``programs.py``. Triton requires that a kernel is in a file, with the names that it uses in
scope."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, out_ptr, end, first, BLOCK: tl.constexpr):
    at = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < end) * 2, mask=at < end)
