//! The library's own kernels, as PTX that every driver for CUDA 12 and 13 accepts.
//!
//! Each string is one module, and its documentation lists the module's entries. The modules are stored compressed, and
//! decompressed at their first use. The sources are in `kernels/` at the root of the repository, and `cargo xtask
//! kernels` builds them. The parameters of the entries are given here in C. In each kernel a thread continues with a
//! stride of the whole grid, so that every one-dimensional grid gives the same result.

use std::io;
use std::sync::LazyLock;

use flate2::read::GzDecoder;

/// Decompresses a module, as written by `cargo xtask kernels`.
///
/// # Panics
/// If the bytes are not gzip-compressed text. They are part of the program.
pub fn unpacked(bytes: &[u8]) -> String {
    io::read_to_string(GzDecoder::new(bytes)).expect("the embedded module is valid gzip")
}

/// `empty()`: does nothing.
pub static EMPTY: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("empty.ptx.gz")));

/// `vector_add(const float* a, const float* b, float* sum, unsigned long long n)`: `sum = a + b`, for
/// `n` values.
pub static VECTOR_ADD: LazyLock<String> =
    LazyLock::new(|| unpacked(include_bytes!("vector_add.ptx.gz")));

/// `overlap_step(const float* in, float* out, unsigned long long n, unsigned work)`: applies `work` steps `v = v *
/// 1.0001 + 0.0001`, each rounded once, to each of `n` values.
pub static OVERLAP_STEP: LazyLock<String> =
    LazyLock::new(|| unpacked(include_bytes!("overlap_step.ptx.gz")));

/// `gather(const Piece* table, unsigned pieces)`, with `struct Piece { unsigned long long from, to, bytes; }`: copies
/// each piece from pinned host memory to device memory, at any alignment and length.
///
/// Pieces must not overlap. With `k` times as many blocks as pieces, `k` blocks copy each piece. A block of 256
/// threads requests up to 32 KB before the first bytes arrive. The table may be in pinned memory too.
///
/// `copy_piece(unsigned long long from, unsigned long long to, unsigned long long bytes)` copies a single piece, in
/// either direction.
pub static GATHER: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("gather.ptx.gz")));

/// `fill_pattern(unsigned* to, unsigned long long n, unsigned seed)` writes `n` values, and `check_pattern(const
/// unsigned* from, unsigned long long n, unsigned seed, unsigned* errors)` adds to `errors` the number of values that
/// differ from them.
pub static PATTERN: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("pattern.ptx.gz")));

/// `dense(const float* x, const float* w, float* y, unsigned long long rows, unsigned long long width)`: a layer of a
/// perceptron, `y = max(0, x * w)`, with a row-major `w` of `width` by `width` values. Blocks have 256 threads.
pub(crate) static DENSE: LazyLock<String> =
    LazyLock::new(|| unpacked(include_bytes!("dense.ptx.gz")));

/// `mix(unsigned long long ns, unsigned long long seed, unsigned reads, unsigned writes, unsigned char* at0, unsigned
/// long long bytes0, …)`, with twelve regions: the kernel reads the first `reads` regions and writes the `writes`
/// regions after them; the bytes that it writes depend on the seed and on all bytes that it read. It reads at its start
/// and writes when `ns` nanoseconds have passed. It is launched with one block;
/// [`library::mix`](crate::kernel::library::mix) has the form in Rust.
pub(crate) static MIX: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("mix.ptx.gz")));

/// `spin(unsigned long long ns)`: keeps the device busy until its clock has advanced by `ns`. One block of one thread
/// is enough.
pub static SPIN: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("spin.ptx.gz")));

/// `trap()` stops the device with an error, and `poke(unsigned long long address, unsigned value)` writes the four
/// bytes of `value` at any address.
pub static FAULT: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("fault.ptx.gz")));
