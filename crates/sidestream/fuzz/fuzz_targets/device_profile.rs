//! A device profile of arbitrary bytes is either read or refused, without a panic.

#![cfg_attr(fuzzing, no_main)]

use fuzz_target::fuzz_target;
use sidestream::engine::{Call, Grid, KernelCost, Profile, overlap_limit};

fuzz_target!(|text: &str| {
    let Ok(profile) = Profile::from_toml(text) else {
        return;
    };
    // An accepted profile gives finite times.
    let kernel = KernelCost::Grid(Grid::elementwise(1 << 20, 4, 64, 256, 2112));
    let limit = overlap_limit(&profile, 32, 4 << 20, &kernel, 4 << 20);
    assert!(limit.ns().is_finite() && limit.ns() >= 0.0);
    assert!(profile.call_ns(Call::Launch).is_finite());
});
