//! Systems on which nothing is protected: the guard is written for the signals, the loader and the system calls of Linux,
//! and for the faults of 64-bit x86 and ARM.

/// A protected range, of which there are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {}

/// The reason why nothing is protected.
pub fn why_off() -> Option<String> {
    Some(
        "the page guard is for Linux on x86-64 and ARM64; check the program there to observe them"
            .to_owned(),
    )
}

/// Ranges of memory of which the end is to be heard, of which there are none.
pub mod ends {
    /// A range of which the end is to be heard.
    #[derive(Debug)]
    pub enum Watched {}

    /// Watches nothing.
    pub fn watch(_: usize, _: usize) -> Option<Watched> {
        None
    }

    /// Stops watching a range, of which there are none.
    pub fn leave(watched: Watched) -> bool {
        match watched {}
    }
}

/// Leaves everything as it is.
pub fn begin(_: bool) {}

/// Leaves everything as it is.
pub fn end() {}

/// Leaves the guard off, for the reason that [`why_off`] returns.
pub fn off(_: &str) {}

/// Whether memory may be protected: never.
pub fn is_ready() -> bool {
    false
}

/// The unit of ranges. No page is protected, so the system's is not asked for.
pub fn page() -> usize {
    4096
}

/// Protects nothing.
///
/// # Safety
/// As on Linux, so that callers are written for both.
pub unsafe fn protect(_: usize, _: usize, _: bool) -> Option<Piece> {
    None
}

/// Releases a range, of which there are none.
pub fn release(piece: Piece) {
    match piece {}
}

/// The address of the stand-in for a function of the C library: there are none.
pub fn in_place_of(_: usize) -> Option<usize> {
    None
}

/// Reads nothing.
pub fn read(_: usize, _: &mut [u8]) -> bool {
    false
}

/// Reads nothing.
pub fn read_some(_: usize, _: &mut [u8]) -> usize {
    0
}

/// The name of the function with the code at this address: accesses are not recorded, so none is asked for.
pub fn function_at(_: usize) -> Option<String> {
    None
}

/// The number of the calling thread in recorded accesses, of which there are none.
pub fn this_thread() -> i32 {
    0
}

/// Whether the program has one thread: not known.
pub fn is_alone() -> bool {
    false
}
