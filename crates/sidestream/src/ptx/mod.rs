//! The library's own kernels, as PTX that every driver for CUDA 12 and 13 takes.
//!
//! Each text is one module, whose page says which entries it has; it is kept compressed, and unpacked when it is first asked for. Their sources are in `kernels/` at the root of the
//! repository, and `cargo xtask kernels` builds them. Entries have the parameters that are written
//! here, in C. In all of them a thread goes on with a stride of the whole grid, so that every grid
//! in one dimension gives the same result.

use std::io;
use std::sync::LazyLock;

use flate2::read::GzDecoder;

/// The text of a compressed module, as `cargo xtask kernels` writes it.
///
/// # Panics
/// If the bytes are no text that gzip compressed. They are part of the program.
pub fn unpacked(bytes: &[u8]) -> String {
    io::read_to_string(GzDecoder::new(bytes)).expect("what the program carries is whole")
}

/// `empty()`: nothing.
pub static EMPTY: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("empty.ptx.gz")));

/// `vector_add(const float* a, const float* b, float* sum, unsigned long long n)`: `sum = a + b`, for
/// `n` values.
pub static VECTOR_ADD: LazyLock<String> =
    LazyLock::new(|| unpacked(include_bytes!("vector_add.ptx.gz")));

/// `overlap_step(const float* in, float* out, unsigned long long n, unsigned work)`: each of `n`
/// values goes through `work` steps `v = v * 1.0001 + 0.0001`, each rounded once.
pub static OVERLAP_STEP: LazyLock<String> =
    LazyLock::new(|| unpacked(include_bytes!("overlap_step.ptx.gz")));

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
pub static GATHER: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("gather.ptx.gz")));

/// `fill_pattern(unsigned* to, unsigned long long n, unsigned seed)` writes `n` values, and
/// `check_pattern(const unsigned* from, unsigned long long n, unsigned seed, unsigned* errors)` adds
/// to `errors` how many of them are others now.
pub static PATTERN: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("pattern.ptx.gz")));

/// `dense(const float* x, const float* w, float* y, unsigned long long rows, unsigned long long width)`: a layer of a
/// perceptron, `y = max(0, x * w)`, with `w` of `width` by `width` values, row by row. Blocks have 256 threads.
pub(crate) static DENSE: LazyLock<String> =
    LazyLock::new(|| unpacked(include_bytes!("dense.ptx.gz")));

/// `mix(unsigned long long ns, unsigned long long seed, unsigned reads, unsigned writes, unsigned char*
/// at0, unsigned long long bytes0, …)`, with twelve pieces: what it writes to the `writes` pieces behind
/// the first `reads` ones tells the seed and what it has read there. It reads at its start and writes
/// when so many nanoseconds are over. It is launched with one block; its twin is
/// [`library::mix`](crate::kernel::library::mix).
pub(crate) static MIX: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("mix.ptx.gz")));

/// `spin(unsigned long long ns)`: keeps the device busy until its clock has gone on so far. One block
/// of one thread is enough.
pub static SPIN: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("spin.ptx.gz")));

/// `trap()` stops the device with an error, and `poke(unsigned long long address, unsigned value)`
/// writes four bytes, wherever that is.
pub static FAULT: LazyLock<String> = LazyLock::new(|| unpacked(include_bytes!("fault.ptx.gz")));
