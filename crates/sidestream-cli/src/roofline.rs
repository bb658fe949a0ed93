//! `sidestream roofline`: the least time of work on a device, and what limits it.

use std::path::PathBuf;

use clap::Parser;
use serde_json::json;
use sidestream::engine::{Dtype, Profile};

use crate::device::{self, Named};
use crate::failure::{Exit, Failure, SUCCESS};
use crate::measure::raw::devices::Started;
use crate::output;

/// Compute the least time of work on a GPU, and whether computing or memory limits it
///
/// From the operations of the work, the bytes of device memory that it must move, and the data type: the time of each alone,
/// the intensity (operations per byte), and the ridge point of the device, above which computing is the limit. The peaks are
/// those of the file that describes the device, with tensor cores where they support the type, and without sparsity.
///
/// Exit code: 0 if the time was computed, 2 if an argument, the device or its file is at fault.
#[derive(Parser)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Multiplications and additions, such as 2.1e12 or 2.1TFLOP
    #[arg(long, value_name = "COUNT", value_parser = operations)]
    flops: f64,
    /// Bytes read from device memory and written to it, such as 4e9, 4GB or 4GiB: kB, MB, GB and TB are powers of 1000, KiB,
    /// MiB, GiB and TiB of 1024
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    bytes: f64,
    /// Data type: fp64, fp32, tf32, bf16, fp16, fp8 or int8
    #[arg(long, value_name = "TYPE", default_value = "fp32", value_parser = dtype)]
    dtype: Dtype,
    /// The measured time in milliseconds, to show which share of the device's capability it reaches
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    measured_ms: Option<f64>,
    #[arg(long, default_value = "sim:h200", help = device::help("The GPU: {sim} or sim:FILE.toml; cuda:0 and so on, if there \
          is a description of it; auto: cuda:0 if there is one, otherwise sim:h200"))]
    pub device: String,
    /// The library of the CUDA driver, if not the system's own
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    json: bool,
}

/// A quantity on the command line, with the factors of its units in lower case.
struct Counted {
    units: &'static [(&'static str, f64)],
    /// The error text for another unit.
    instead: &'static str,
    /// Examples of valid values.
    such_as: &'static str,
}

const OPERATIONS: Counted = Counted {
    units: &[
        ("", 1.0),
        ("k", 1e3),
        ("m", 1e6),
        ("g", 1e9),
        ("t", 1e12),
        ("p", 1e15),
        ("e", 1e18),
    ],
    instead: "is not a unit of operations; use FLOP, kFLOP, MFLOP, GFLOP, TFLOP, PFLOP or EFLOP",
    such_as: "2.1e12 or 2.1TFLOP",
};

const BYTES: Counted = Counted {
    units: &[
        ("", 1.0),
        ("b", 1.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("tb", 1e12),
        ("pb", 1e15),
        ("kib", 1024.0),
        ("mib", 1048576.0),
        ("gib", 1073741824.0),
        ("tib", 1099511627776.0),
    ],
    instead: "is not a unit of bytes; use B, kB, MB, GB or TB (by 1000), or KiB, MiB, GiB or TiB (by 1024)",
    such_as: "4e9, 4GB or 4GiB",
};

fn operations(text: &str) -> Result<f64, String> {
    amount(text, &OPERATIONS, |unit| {
        unit.trim_end_matches('s').trim_end_matches("flop")
    })
}

fn bytes(text: &str) -> Result<f64, String> {
    amount(text, &BYTES, |unit| unit)
}

fn milliseconds(text: &str) -> Result<f64, String> {
    positive(text.trim().parse().ok()).ok_or_else(|| {
        format!("{text:?} is not a time; give a number of milliseconds above 0, such as 2.5")
    })
}

fn positive(number: Option<f64>) -> Option<f64> {
    number.filter(|number| *number > 0.0 && *number < 1e30)
}

/// Parses a number with an optional unit; `short` maps the unit to its form in the table.
fn amount(text: &str, counted: &Counted, short: fn(&str) -> &str) -> Result<f64, String> {
    let text = text.trim();
    // The longest prefix that is a number: `5E` is not a number, so `5EFLOP` is five with a unit.
    let ends = text
        .char_indices()
        .map(|(at, letter)| at + letter.len_utf8());
    let number = ends
        .rev()
        .find_map(|end| Some((text[..end].trim().parse::<f64>().ok()?, end)));
    let no_amount = || {
        let such_as = counted.such_as;
        format!("{text:?} is not an amount; give a number above 0, such as {such_as}")
    };
    let (number, end) = number.ok_or_else(no_amount)?;
    let unit = text[end..].trim();
    let lower = unit.to_ascii_lowercase();
    if lower.ends_with("/s") {
        let such_as = counted.such_as;
        return Err(format!(
            "{unit:?} is a rate; give the total of the work, such as {such_as}"
        ));
    }
    let known = counted
        .units
        .iter()
        .find(|(name, _)| *name == short(&lower));
    let (_, factor) = known.ok_or_else(|| format!("{unit:?} {}", counted.instead))?;
    positive(Some(number * factor)).ok_or_else(no_amount)
}

fn dtype(text: &str) -> Result<Dtype, String> {
    Dtype::named(text).ok_or_else(|| {
        let names = Dtype::ALL.map(Dtype::name).join(", ");
        format!("{text:?} is not a data type; choose from {names}")
    })
}

/// Runs the command.
pub fn main(args: &Args) -> Result<Exit, Failure> {
    let (json, text) = shown(args)?;
    output::say(args.json, || json, || text)?;
    Ok(SUCCESS)
}

/// Returns what the command would print, as JSON and as text.
pub fn shown(args: &Args) -> Result<(serde_json::Value, String), Failure> {
    let (profile, is_simulated) = match device::named(&args.device, args.driver.as_deref())? {
        Named::Simulated(profile) => (*profile, true),
        Named::Cuda(number) => (of_gpu(args, number)?, false),
    };
    let dtype = args.dtype;
    let peak = profile.peak_flops_per_s(dtype).ok_or_else(|| {
        let known = Dtype::ALL
            .into_iter()
            .filter(|&of| profile.peak_flops_per_s(of).is_some());
        let known: Vec<&str> = known.map(Dtype::name).collect();
        Failure::input(format!(
            "the description of {} has no peak in {}; it has {}, and your own device file can state more under [tensor]",
            profile.name,
            dtype.name(),
            known.join(", ")
        ))
    })?;
    let memory = profile.memory_bytes_per_s();
    let (compute_ns, memory_ns) = (1e9 * args.flops / peak, 1e9 * args.bytes / memory);
    let floor_ns = compute_ns.max(memory_ns);
    let (intensity, ridge) = (args.flops / args.bytes, peak / memory);
    let is_compute = compute_ns >= memory_ns;
    let share = args.measured_ms.map(|ms| floor_ns / (ms * 1e6));
    let json = json!({
        "schema": "sidestream.roofline/1",
        "device": args.device,
        "device_name": profile.name,
        "dtype": dtype.name(),
        "flops": args.flops,
        "bytes": args.bytes,
        "compute_ns": compute_ns,
        "memory_ns": memory_ns,
        "floor_ns": floor_ns,
        "intensity": intensity,
        "ridge": ridge,
        "bound": if is_compute { "arithmetic" } else { "memory" },
        "peak_flops_per_s": peak,
        "peak_bytes_per_s": memory,
        "peak_source": profile.peak_source(dtype),
        "share": share,
    });
    let source = profile.peak_source(dtype).unwrap_or("");
    let mut text = format!(
        "{} in {} and {} on {}{}\n\n",
        scaled(args.flops, "FLOP"),
        dtype.name(),
        scaled(args.bytes, "B"),
        if is_simulated { "a simulated " } else { "" },
        profile.name
    );
    let mut line = |name: &str, value: String, rest: String| {
        text += format!("  {name:<12} {value:>12}   {rest}").trim_end();
        text.push('\n');
    };
    let (at, of) = (scaled(peak, "FLOP/s"), scaled(memory, "B/s"));
    line("computing", time(compute_ns), format!("at {at} ({source})"));
    line("memory", time(memory_ns), format!("at {of}"));
    line(
        "intensity",
        format!("{intensity:.1}"),
        "operations for each byte".to_owned(),
    );
    line(
        "ridge point",
        format!("{ridge:.1}"),
        "above it computing is the limit".to_owned(),
    );
    line(
        "least time",
        time(floor_ns),
        if is_compute {
            "set by computing".to_owned()
        } else {
            format!(
                "set by memory; computing reaches {:.1} % of its peak at most",
                100.0 * compute_ns / memory_ns
            )
        },
    );
    if let (Some(ms), Some(share)) = (args.measured_ms, share) {
        let rest = if share > 1.0 {
            "less than the least time: check the counts and the data type".to_owned()
        } else {
            format!("{:.1} % of what the device can do", 100.0 * share)
        };
        line("measured", time(ms * 1e6), rest);
    }
    Ok((json, text))
}

/// Returns the description of a GPU of this machine, by its name.
fn of_gpu(args: &Args, number: u32) -> Result<Profile, Failure> {
    let started =
        Started::open(args.driver.as_deref()).map_err(|why| Failure::device(why.to_string()))?;
    let found = started.all()?;
    let Some(found) = found.get(number as usize) else {
        return Err(Failure::device(format!(
            "there is no device cuda:{number}; the driver finds {}",
            found.len()
        )));
    };
    Profile::of_gpu(&found.name).ok_or_else(|| {
        Failure::device(format!(
            "there are no figures for {}; describe it in a file and give --device sim:FILE.toml, as docs/reference/devices.md says",
            found.name
        ))
    })
}

/// Returns a figure with a decimal prefix.
fn scaled(value: f64, unit: &str) -> String {
    for (prefix, size) in [("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)] {
        if value >= size {
            let digits = format!("{:.4}", value / size);
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            return format!("{digits} {prefix}{unit}");
        }
    }
    format!("{value} {unit}")
}

/// Returns a time in a unit that is easy to read.
fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.1} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.3} ms", ns / 1e6),
        ns => format!("{:.3} s", ns / 1e9),
    }
}
