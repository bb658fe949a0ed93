//! What guarding one copy costs, beside the raw system calls: `cargo run --release -p host-guard --example cost`.

use std::ffi::c_void;
use std::time::Instant;

use host_guard::{is_ready, protect, release};

/// The least time of a call in a hundred rounds, in nanoseconds: what disturbs a round is not the guard's.
fn least(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 500;
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..100).map(round).fold(f64::INFINITY, f64::min)
}

fn main() {
    host_guard::begin(true);
    let page = host_guard::page();
    println!("bytes,loads,protected besides,raw ns,guarded ns,more ns");
    for (pages, loads, besides) in [
        (1, false, 0),
        (16, false, 0),
        (256, false, 0),
        (16, true, 0),
        (16, false, 32),
    ] {
        // SAFETY: pages of their own, which no device accesses, and which stay.
        unsafe {
            let new = |pages: usize| {
                let (bytes, how) = (pages * page, libc::PROT_READ | libc::PROT_WRITE);
                let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
                libc::mmap(std::ptr::null_mut(), bytes, how, kind, -1, 0) as usize
            };
            let others = (0..besides).map(|_| new(3) + page);
            let others: Vec<_> = others
                .filter_map(|at| protect(at, at + page, false))
                .collect();
            let (start, bytes) = (new(pages + 2) + page, pages * page);
            let raw = least(|| {
                let how = if loads {
                    libc::PROT_NONE
                } else {
                    libc::PROT_READ
                };
                libc::mprotect(start as *mut c_void, bytes, how);
                libc::mprotect(
                    start as *mut c_void,
                    bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                );
            });
            let guarded = least(|| {
                assert!(is_ready());
                release(protect(start, start + bytes, loads).expect("it is the program's memory"));
            });
            println!(
                "{bytes},{loads},{besides},{raw:.0},{guarded:.0},{:.0}",
                guarded - raw
            );
            others.into_iter().for_each(release);
        }
    }
}
