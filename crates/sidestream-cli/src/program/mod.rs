//! Runs any CUDA program and listens to its calls: `check -- PROGRAM`, `record -- PROGRAM`; or to what its devices did:
//! `diagnose -- PROGRAM`.
//!
//! The program runs as it is. A library that CUDA's driver loads into it (`library`) writes each call into a ring
//! (`ring`), from which the command makes operations (`translate`) while the program runs.

mod awaited;
mod bytes;
mod check;
mod copies;
mod exact;
mod graphs;
mod host;
mod kernel;
mod library;
mod maps;
mod memory;
mod profile;
pub mod record;
mod ring;
mod session;
#[doc(hidden)]
pub mod symbols;
mod touched;
mod translate;
mod work;

/// Checks what a program may have written into its ring, for tests: words of records, each with its length before it. Returns
/// the number of calls, and the report.
#[doc(hidden)]
pub fn take_words(mut words: &[u64]) -> (u64, String) {
    let mut process = translate::Process::<check::Watch>::default();
    while let Some((&first, rest)) = words.split_first() {
        let Some(head) = sidestream_inject::wire::Head::of(first) else {
            break;
        };
        let len = usize::from(head.words - 1).min(rest.len());
        process.take(head, &rest[..len]);
        words = &rest[len..];
    }
    process.end();
    (process.calls, check::all(&process))
}

pub use check::main as check;
pub use profile::{Recorded, main as profile};
pub use session::Options;
