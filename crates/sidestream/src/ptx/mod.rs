//! The library's own kernels, as PTX that every driver for CUDA 12 and 13 takes.
//!
//! Each constant is one module; the text says which entries it has. Their sources are in `kernels/` at the root of the
//! repository, and `cargo xtask kernels` builds them. Entries have the parameters that are written
//! here, in C. In all of them a thread goes on with a stride of the whole grid, so that every grid
//! in one dimension gives the same result.

/// `empty()`: nothing.
pub const EMPTY: &str = include_str!("empty.ptx");

/// `vector_add(const float* a, const float* b, float* sum, unsigned long long n)`: `sum = a + b`, for
/// `n` values.
pub const VECTOR_ADD: &str = include_str!("vector_add.ptx");

/// `overlap_step(const float* in, float* out, unsigned long long n, unsigned work)`: each of `n`
/// values goes through `work` steps `v = v * 1.0001 + 0.0001`, each rounded once.
pub const OVERLAP_STEP: &str = include_str!("overlap_step.ptx");

/// `gather(const Piece* table, unsigned pieces)`, with
/// `struct Piece { unsigned long long from, to, bytes; }`: copies each piece from pinned memory of the
/// host to device memory, at any alignment and length.
///
/// Pieces may not overlap. With `k` times as many blocks as pieces, `k` blocks copy each piece. A
/// block of 256 threads asks for up to 32 KB before the first bytes have come. The table may lie in
/// pinned memory too.
///
/// `copy_piece(unsigned long long from, unsigned long long to, unsigned long long bytes)` does the
/// same with one piece, in either direction.
pub const GATHER: &str = include_str!("gather.ptx");

/// `fill_pattern(unsigned* to, unsigned long long n, unsigned seed)` writes `n` values, and
/// `check_pattern(const unsigned* from, unsigned long long n, unsigned seed, unsigned* errors)` adds
/// to `errors` how many of them are others now.
pub const PATTERN: &str = include_str!("pattern.ptx");

/// `dense(const float* x, const float* w, float* y, unsigned long long rows, unsigned long long width)`: a layer of a
/// perceptron, `y = max(0, x * w)`, with `w` of `width` by `width` values, row by row. Blocks have 256 threads.
pub(crate) const DENSE: &str = include_str!("dense.ptx");

/// `mix(unsigned long long ns, unsigned long long seed, unsigned reads, unsigned writes, unsigned char*
/// at0, unsigned long long bytes0, …)`, with twelve pieces: what it writes to the `writes` pieces behind
/// the first `reads` ones tells the seed and what it has read there. It reads at its start and writes
/// when so many nanoseconds are over. It is launched with one block; its twin is
/// [`library::mix`](crate::kernel::library::mix).
pub(crate) const MIX: &str = include_str!("mix.ptx");

/// `spin(unsigned long long ns)`: keeps the device busy until its clock has gone on so far. One block
/// of one thread is enough.
pub const SPIN: &str = include_str!("spin.ptx");

/// `trap()` stops the device with an error, and `poke(unsigned long long address, unsigned value)`
/// writes four bytes, wherever that is.
pub const FAULT: &str = include_str!("fault.ptx");
