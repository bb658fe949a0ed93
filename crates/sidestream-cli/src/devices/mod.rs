//! `sidestream devices`: lists the devices to run on.

mod measure;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use serde_json::json;
use sidestream::engine::Profile;
use sidestream::sim::Machine;

use crate::device;
use crate::failure::{Exit, Failure, SUCCESS, print, shown, tell};
use crate::measure::raw::devices::{Found, Started, in_words};
use crate::output::refuse_unwritable;

/// List the devices to run on, and the sources of the figures of simulated ones
///
/// A lower stream priority is more urgent; `sidestream overlap --background` shows what priorities are worth.
///
/// With --profile the file that describes a simulated device is printed: a starting point for the description of your own
/// device, which the other commands take as --device sim:FILE.toml. With --measure the figures that can be measured on a GPU
/// are measured (some seconds), and the others are the profile's.
///
/// Exit code: 0 also where there is no GPU, 2 if an argument is at fault.
#[derive(Parser)]
pub struct Args {
    /// Show where each figure comes from
    #[arg(long)]
    sources: bool,
    #[arg(long, value_name = "NAME", help = device::help("Print the file that describes this simulated device: {names}"),
          conflicts_with_all = ["sources", "json"])]
    profile: Option<String>,
    /// Measure this GPU and print the file that describes it; what cannot be measured is taken from --profile
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, default_missing_value = "cuda:0",
          conflicts_with_all = ["sources", "json"])]
    measure: Option<String>,
    /// Write the file of --measure here, and beside it, as FILE.torch.json, the times of PyTorch's operators on this GPU and
    /// its host, for `sidestream diagnose --simulate=FILE.toml` and `sidestream.simulate`; this takes minutes
    #[arg(short, long, value_name = "FILE.toml", requires = "measure")]
    output: Option<PathBuf>,
    /// The Python interpreter for --output; it needs the packages `sidestream` and PyTorch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// The library of the CUDA driver, if not the system's own
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<Exit, Failure> {
    if let Some(device) = &args.measure {
        let driver = args.driver.as_deref();
        let named = device::named(device, driver)?;
        let like = args.profile.as_deref().map(profile).transpose()?;
        let measured = || measure::file(&named, driver, like);
        return match &args.output {
            Some(to) => operators(device, to, &args.python, measured),
            None => print(measured()?).map(|()| SUCCESS),
        };
    }
    if let Some(name) = &args.profile {
        print(profile(name)?)?;
        return Ok(SUCCESS);
    }
    let named = Profile::NAMES.iter();
    let profiles: Vec<(&str, Profile)> = named
        .filter_map(|&name| Some((name, Profile::named(name)?)))
        .collect();
    let started = Started::open(args.driver.as_deref());
    let found = started.and_then(|started| {
        let with_priorities = |found: Found| {
            let priorities = found.priorities(&started.driver);
            (found, priorities)
        };
        let all: Vec<_> = started.all()?.into_iter().map(with_priorities).collect();
        Ok((in_words(started.version), all))
    });
    let real = found.as_ref().map_or(&[][..], |(_, found)| found);
    if args.json {
        let real = (0..)
            .zip(real)
            .map(|(number, (found, priorities))| real_as_json(number, found, *priorities));
        let simulated = profiles.iter().map(|(name, p)| as_json(name, p));
        let devices: Vec<_> = real.chain(simulated).collect();
        let absent = found.as_ref().err().map(Failure::to_string);
        let all = json!({"schema": "sidestream.devices/1", "devices": devices,
                         "no_cuda_because": absent});
        print(format_args!("{all}\n"))?;
        return Ok(SUCCESS);
    }
    let mut out = format!(
        "{:12} {:28} {:>5} {:>9} {:>12} {:>10} {:>11}\n",
        "device", "GPU", "SMs", "memory", "memory GB/s", "link GB/s", "priorities"
    );
    let range = |priorities: Option<(i32, i32)>| match priorities {
        Some((most_urgent, least_urgent)) => format!("{most_urgent} to {least_urgent}"),
        None => "-".to_owned(),
    };
    for (number, (found, priorities)) in real.iter().enumerate() {
        let (device, memory) = (format!("cuda:{number}"), gib(found.memory_bytes as f64));
        out += &format!(
            "{device:12} {:28} {:>5} {memory:>9} {:>12.0} {:>10} {:>11}\n",
            found.name,
            found.sms,
            found.memory_gb_s,
            "-",
            range(*priorities)
        );
    }
    for (name, p) in &profiles {
        let (device, memory) = (format!("sim:{name}"), format!("{:.0} GiB", p.memory_gib));
        out += &format!(
            "{device:12} {:28} {:>5} {memory:>9} {:>12} {:>10} {:>11}\n",
            p.name,
            p.sms,
            p.memory_gb_s,
            p.link_gb_s,
            range(Some(Machine::PRIORITIES))
        );
        if args.sources {
            for (field, source) in p.sources() {
                out += &format!("    {field:28} {source}\n");
            }
        }
    }
    out += &match &found {
        Ok((cuda, real)) if real.is_empty() => {
            format!("\nNo CUDA device: the driver for CUDA {cuda} finds none.\n")
        }
        Ok((cuda, _)) => format!("\nThe driver is for CUDA {cuda}.\n"),
        Err(why) => format!("\nNo CUDA device: {why}.\n"),
    };
    out += "A device of your own: sim:FILE.toml; `sidestream devices --measure` prints the file of a GPU, `--profile h200` one to start from.\n";
    print(out)?;
    Ok(SUCCESS)
}

/// Writes the file of a device, and that of PyTorch's operators on it.
fn operators(
    device: &str,
    to: &Path,
    python: &Path,
    measured: impl Fn() -> Result<String, Failure>,
) -> Result<Exit, Failure> {
    const MEASURE: &str = "import sys, torch; from sidestream import _measure; torch.cuda.set_device(sys.argv[1]); \
                           _measure.write(sys.argv[2], _measure.measured(torch))";
    if to.extension().is_none_or(|end| end != "toml") || !device.starts_with("cuda") {
        return Err(Failure::input(
            "--output is for a GPU, as in `sidestream devices --measure -o my_gpu.toml`",
        ));
    }
    refuse_unwritable("--output", Some(to))?;
    std::fs::write(to, measured()?).map_err(|error| Failure::file("write", to, &error))?;
    let tables = to.with_extension("torch.json");
    let mut command = Command::new(python);
    command.args(["-c", MEASURE, device]).arg(&tables);
    let status = command
        .status()
        .map_err(|error| Failure::input(format!("cannot start {}: {error}", shown(python))))?;
    if !status.success() {
        return Err(Failure::input(format!(
            "the operators of PyTorch were not measured: {} ended with {status}",
            shown(python)
        )));
    }
    let (to, tables) = (shown(to), shown(&tables));
    tell(format_args!(
        "wrote {to} and {tables}; `sidestream diagnose --simulate={to} -- python train.py` uses them"
    ));
    Ok(SUCCESS)
}

/// Returns the file of a built-in profile, by its name with or without `sim:`.
fn profile(name: &str) -> Result<&'static str, Failure> {
    let model = name.strip_prefix("sim:").unwrap_or(name);
    Profile::text(model).ok_or_else(|| {
        Failure::device(format!(
            "no simulated GPU is called {name:?}; there are {}",
            Profile::NAMES.join(", ")
        ))
    })
}

fn gib(bytes: f64) -> String {
    format!("{:.0} GiB", bytes / f64::from(1 << 30))
}

fn real_as_json(number: u32, found: &Found, priorities: Option<(i32, i32)>) -> serde_json::Value {
    let memory_gib = found.memory_bytes as f64 / f64::from(1 << 30);
    json!({"name": format!("cuda:{number}"), "title": found.name, "simulated": false,
           "sms": found.sms, "memory_gib": memory_gib, "memory_gb_s": found.memory_gb_s,
           "link_gb_s": null, "priorities": priorities, "sources": {}})
}

fn as_json(name: &str, profile: &Profile) -> serde_json::Value {
    let sources: serde_json::Map<_, _> = profile
        .sources()
        .map(|(field, source)| (field.to_owned(), source.into()))
        .collect();
    json!({"name": format!("sim:{name}"), "title": profile.name, "simulated": true,
           "sms": profile.sms as u64, "memory_gib": profile.memory_gib,
           "memory_gb_s": profile.memory_gb_s, "link_gb_s": profile.link_gb_s,
           "priorities": Machine::PRIORITIES,
           "sources": sources})
}
