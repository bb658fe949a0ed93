//! `cargo xtask nightly`: the long searches, which are too slow for every change.
//!
//! A search whose tool is missing is skipped, and named.

use anyhow::Result;

use crate::cargo::{self, has_nightly, nightly};
use crate::miri;
use crate::model;
use crate::python;
use crate::steps::Run;

/// Seconds that each fuzz target searches.
const FUZZ_S: u32 = 120;

/// The crates that have fuzz targets.
const FUZZED: [&str; 5] = [
    "sidestream",
    "sidestream-program",
    "sidestream-cli",
    "sidestream-diagnose",
    "sidestream-images",
];

/// Runs all searches. Returns whether none found a failure.
pub fn run() -> Result<bool> {
    let mut run = Run::new()?;
    let mut left_out = Vec::new();
    if let Some(built) = run.build()? {
        // Tests with random programs draw the number that docs/developers/reliability.md states.
        run.tests(&built, &[("SIDESTREAM_NIGHTLY", "1")])?;
    }
    run.step("model", "cargo xtask model", |_| model::run())?;
    run.cargo("truth", &["xtask", "truth", "100000", "1"])?;
    run.cargo("truth of ranks", &["xtask", "truth", "--ranks", "100", "1"])?;
    run.cargo("frameworks", &["xtask", "python", "--frameworks"])?;
    run.cargo("probe", &["xtask", "probe"])?;
    if python::runs_oldest(&python::version_of_python()?) {
        run.cargo("oldest PyTorch", &["xtask", "python", "--oldest"])?;
    } else {
        left_out.push("the oldest PyTorch, for which this Python is too new")
    }
    if has_nightly("miri") {
        run.step("miri", "cargo xtask miri", |_| miri::run(None))?;
    } else {
        left_out.push("Miri, which is missing")
    }
    if has_nightly("fuzz") {
        FUZZED.iter().try_for_each(|name| fuzz(&mut run, name))?
    } else {
        left_out.push("fuzzing: `cargo +nightly fuzz` is missing")
    }
    let all_well = run.finish();
    for what in left_out {
        println!("left out: {what}");
    }
    Ok(all_well)
}

/// Runs each fuzz target of a crate.
fn fuzz(run: &mut Run, name: &str) -> Result<()> {
    let folder = cargo::root().join("crates").join(name);
    let listed = nightly(&["fuzz", "list"]).current_dir(&folder).output()?;
    for target in String::from_utf8_lossy(&listed.stdout).lines() {
        let limit = format!("-max_total_time={FUZZ_S}");
        let args = ["fuzz", "run", target, "--", &*limit];
        let repeat = format!("(cd crates/{name}; cargo +nightly {})", args.join(" "));
        run.step(&format!("fuzz {target}"), &repeat, |_| {
            let mut fuzz = nightly(&args);
            fuzz.current_dir(&folder);
            cargo::succeeds(fuzz)
        })?;
    }
    Ok(())
}
