//! `sidestream devices`: what there is to run on.

use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use sidestream::engine::Profile;

use crate::failure::{Failure, print};

/// List the devices to run on, and where the figures of simulated ones come from
#[derive(Parser)]
pub struct Args {
    /// Say of every figure where it comes from
    #[arg(long)]
    sources: bool,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<ExitCode, Failure> {
    let named = Profile::NAMES.iter();
    let profiles: Vec<(&str, Profile)> = named
        .filter_map(|&name| Some((name, Profile::named(name)?)))
        .collect();
    if args.json {
        let devices: Vec<_> = profiles.iter().map(|(name, p)| as_json(name, p)).collect();
        let all = json!({"schema": "sidestream.devices/1", "devices": devices});
        print(format_args!("{all}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = format!(
        "{:12} {:28} {:>5} {:>9} {:>12} {:>10}\n",
        "device", "simulates", "SMs", "memory", "memory GB/s", "link GB/s"
    );
    for (name, p) in &profiles {
        let (device, memory) = (format!("sim:{name}"), format!("{:.0} GiB", p.memory_gib));
        out += &format!(
            "{device:12} {:28} {:>5} {memory:>9} {:>12} {:>10}\n",
            p.name, p.sms, p.memory_gb_s, p.link_gb_s
        );
        if args.sources {
            for (field, source) in p.sources() {
                out += &format!("    {field:28} {source}\n");
            }
        }
    }
    out += "\nA device of your own: sim:FILE.toml, with the fields of crates/sidestream/profiles/h200.toml.\n";
    print(out)?;
    Ok(ExitCode::SUCCESS)
}

fn as_json(name: &str, profile: &Profile) -> serde_json::Value {
    let sources: serde_json::Map<_, _> = profile
        .sources()
        .map(|(field, source)| (field.to_owned(), source.into()))
        .collect();
    json!({"name": format!("sim:{name}"), "title": profile.name, "simulated": true,
           "sms": profile.sms as u64, "memory_gib": profile.memory_gib,
           "memory_gb_s": profile.memory_gb_s, "link_gb_s": profile.link_gb_s,
           "sources": sources})
}
