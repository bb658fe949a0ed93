//! The conformance suite: what a program can rely on, tested on every kind of device.
//!
//! A scenario is written once. It runs as `sim::…` on the simulated GPU, as `stand_in::…` through the CUDA back end
//! on the stand-in for its driver, and as `cuda::…` on a GPU, if there is one. The bytes and the codes that it checks
//! are equal everywhere: no scenario depends on anything that CUDA leaves open.
//!
//! Two environment variables are for users who run the suite on a machine with GPUs:
//! `SIDESTREAM_REQUIRE_CUDA=1` makes it fail where no GPU can be opened, `=2` where there are fewer than two.

#[path = "conformance/child.rs"]
mod child;
#[path = "../../sidestream/tests/drawn.rs"]
mod drawn;
#[path = "conformance/kernels.rs"]
mod kernels;
#[path = "conformance/target.rs"]
mod target;
#[path = "conformance/untracked.rs"]
mod untracked;

#[path = "conformance/captures.rs"]
mod captures;
#[path = "conformance/devices.rs"]
mod devices;
#[path = "conformance/events.rs"]
mod events;
#[path = "conformance/explicit.rs"]
mod explicit;
#[path = "conformance/failing.rs"]
mod failing;
#[path = "conformance/graphs.rs"]
mod graphs;
#[path = "conformance/host_functions.rs"]
mod host_functions;
#[path = "conformance/interprocess.rs"]
mod interprocess;
#[path = "conformance/launches.rs"]
mod launches;
#[path = "conformance/losses.rs"]
mod losses;
#[path = "conformance/memory.rs"]
mod memory;
#[path = "conformance/pipelines.rs"]
mod pipelines;
#[path = "conformance/prefetching.rs"]
mod prefetching;
#[path = "conformance/registered.rs"]
mod registered;
#[path = "conformance/shared.rs"]
mod shared;
#[path = "conformance/streams.rs"]
mod streams;
#[path = "conformance/threads.rs"]
mod threads;
#[path = "conformance/tracing.rs"]
mod tracing;
#[path = "conformance/updates.rs"]
mod updates;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};
use sidestream::device::Device;

use target::{Scenario, Target};

fn main() -> ExitCode {
    // A scenario that loses its device runs as a program of its own: this one, called again.
    if let Some(code) = child::run_if_asked() {
        return code;
    }
    let (timed, arguments) = arguments();
    let cuda = Cuda::find();
    let mut trials = Vec::new();
    for (target, prefix) in Target::ALL {
        let devices = match target {
            Target::Sim | Target::StandIn => 2,
            Target::Cuda => cuda.devices.len(),
        };
        let scenarios = scenarios().into_iter();
        let possible = scenarios.filter(|scenario| scenario.devices <= devices);
        trials.extend(possible.map(|scenario| trial(target, prefix, scenario)));
    }
    trials.extend(cuda.missing());
    let conclusion = libtest_mimic::run(&arguments, trials);
    if timed {
        for (name, seconds) in &*TIMES.lock().unwrap_or_else(PoisonError::into_inner) {
            println!("test {name} ... ran <{seconds:.3}s>");
        }
    }
    conclusion.exit_code()
}

/// Time of each scenario.
static TIMES: Mutex<Vec<(String, f64)>> = Mutex::new(Vec::new());

/// Returns whether times are requested, as from Rust's own test programs (`-Zunstable-options --report-time`), and
/// the other arguments.
fn arguments() -> (bool, Arguments) {
    let (times, others): (Vec<_>, Vec<_>) = std::env::args()
        .partition(|word| ["-Zunstable-options", "--report-time"].contains(&&**word));
    (!times.is_empty(), Arguments::from_iter(others))
}

fn scenarios() -> Vec<Scenario> {
    let mut all = streams::scenarios();
    all.extend(events::scenarios());
    all.extend(interprocess::scenarios());
    all.extend(memory::scenarios());
    all.extend(registered::scenarios());
    all.extend(launches::scenarios());
    all.extend(graphs::scenarios());
    all.extend(updates::scenarios());
    all.extend(captures::scenarios());
    all.extend(host_functions::scenarios());
    all.extend(explicit::scenarios());
    all.extend(shared::scenarios());
    all.extend(failing::scenarios());
    all.extend(pipelines::scenarios());
    all.extend(prefetching::scenarios());
    all.extend(devices::scenarios());
    all.extend(tracing::scenarios());
    all.extend(threads::scenarios());
    all.extend(losses::scenarios());
    all
}

/// Returns the trial of a scenario on a target. On a driver the trials run one after another: `cudaFree` waits for
/// the whole device, a capture forbids calls to all threads, and streams share a few hardware queues.
fn trial(target: Target, prefix: &'static str, scenario: Scenario) -> Trial {
    static ON_STAND_IN: Mutex<()> = Mutex::new(());
    static ON_CUDA: Mutex<()> = Mutex::new(());
    Trial::test(format!("{prefix}::{}", scenario.name), move || {
        let alone = match target {
            Target::Sim => None,
            Target::StandIn => Some(&ON_STAND_IN),
            Target::Cuda => Some(&ON_CUDA),
        };
        let _alone = alone.map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
        let started = Instant::now();
        (scenario.run)(target);
        let seconds = started.elapsed().as_secs_f64();
        let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
        times.push((format!("{prefix}::{}", scenario.name), seconds));
        Ok(())
    })
}

/// The available GPUs. Their handles are kept until the program ends, so that the driver does not create everything
/// again for each scenario.
struct Cuda {
    devices: Vec<Device>,
    /// Why no more GPUs were found.
    why: String,
    wanted: usize,
}

impl Cuda {
    fn find() -> Cuda {
        let wanted = std::env::var("SIDESTREAM_REQUIRE_CUDA");
        let wanted = wanted.map_or(0, |wanted| wanted.parse().unwrap_or(1));
        let mut cuda = Cuda {
            devices: Vec::new(),
            why: String::new(),
            wanted,
        };
        for count in 1..=2 {
            match Target::Cuda.try_open(count, &Target::Cuda.options()) {
                Ok(devices) => cuda.devices = devices,
                Err(error) => {
                    cuda.why = error.to_string();
                    break;
                }
            }
        }
        cuda
    }

    /// Returns a failure if fewer GPUs were found than requested.
    fn missing(self) -> Option<Trial> {
        let (found, wanted, why) = (self.devices.len(), self.wanted, Arc::new(self.why));
        std::mem::forget(self.devices);
        (found < wanted).then(|| {
            Trial::test("cuda::the_devices_that_are_required_are_there", move || {
                let missing = format!("{found} of {wanted} devices open: {why}");
                Err(Failed::from(missing))
            })
        })
    }
}
