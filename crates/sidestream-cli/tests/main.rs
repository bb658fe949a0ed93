//! The tests of the command, as one program, so that each crate is linked only once.

mod bad_input;
mod bench_requests;
mod check;
mod command;
mod dependent;
mod devices;
mod diagnose;
mod diagnose_files;
#[cfg(target_os = "linux")]
mod exact;
mod guide;
mod input;
mod json;
mod overlap;
mod overlap_own;
mod patterns;
#[cfg(target_os = "linux")]
mod profile;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod program_exact;
mod program_graphs;
#[cfg(target_os = "linux")]
mod program_host;
mod readme;
mod record;
mod recorded;
mod reduce;
mod roofline;
mod run;
mod run_real;
mod suppress;
#[cfg(target_os = "linux")]
mod symbols;
mod text;
mod trace;
