//! `sidestream run --device cuda:0`: the program's calls on a real GPU.

use serde_json::{Value, json};
use sidestream::device::{Device, Options};
use sidestream::sim::Schedule;
use sidestream_program::{OnDevice, Plan, Program, Seen, differing, run_on};

use super::{Args, Outcome, drawn, few, races, refuse, says_where, work_as_json, write_files};
use crate::failure::Failure;
use crate::output;

/// Refuses options that choose an order: a real GPU has its own.
pub fn refuse_choices(args: &Args) -> Result<(), Failure> {
    let asked = match (args.explore, args.schedule) {
        _ if args.repeat.is_some() => {
            return Err(Failure::input(
                "--repeat is for a simulated GPU; give --device sim:h200 with it",
            ));
        }
        _ if args.connections.is_some() => {
            return Err(Failure::input(
                "--connections is for a simulated GPU; for a real one set CUDA_DEVICE_MAX_CONNECTIONS before the command",
            ));
        }
        (Some(_), _) => "--explore",
        (None, Schedule::InOrder) => return Ok(()),
        (None, _) => "--schedule",
    };
    Err(Failure::input(format!(
        "{asked} is for a simulated GPU, which can run a chosen order; give \
         --device sim:h200 with it"
    )))
}

/// Runs one program, and also on the simulated H200 to compare the results.
pub fn one(args: &Args, ordinal: u32, program: &Program) -> Result<Outcome, Failure> {
    let cannot = |at: Option<usize>, code: &str, why: &dyn std::fmt::Display| {
        let why = format!("program {}: {why}", program.name);
        refuse(args, Some(&program.name), at, code, &why)
    };
    let plan = match Plan::of(program) {
        Ok(plan) => plan,
        Err(why) => return cannot(why.at, "NotOnDevice", &why),
    };
    let count = plan.devices();
    let expected = Device::open_all(&vec!["sim:h200"; count], &Options::new())
        .map_err(|error| error.to_string())
        .and_then(|devices| run_on(&plan, &devices).map_err(|why| why.to_string()));
    let expected = match expected {
        Ok(expected) => expected,
        Err(why) => return cannot(None, "CannotRun", &format!("on sim:h200, {why}")),
    };
    let names: Vec<String> = (0..count as u32)
        .map(|n| format!("cuda:{}", ordinal.saturating_add(n)))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let options = match &args.driver {
        // SAFETY: the user of the command names the driver.
        Some(file) => unsafe { Options::new().driver(file) },
        None => Options::new(),
    };
    let devices = Device::open_all(&names, &options)?;
    let mut ran = match run_on(&plan, &devices) {
        Ok(ran) => ran,
        Err(why) => return cannot(why.at, "Failed", &why),
    };
    write_files(args, program, &mut ran.trace)?;
    let compared = Compared {
        differing: differing(&ran, &expected),
        races: races(program),
    };
    output::say(
        args.json,
        || as_json(args, program, &ran, &compared),
        || as_text(args, &devices[0], program, &ran, &compared),
    )?;
    Ok(Outcome::of(compared.is_expected()))
}

/// The results, compared with those of the simulated GPU.
struct Compared<'r> {
    differing: Vec<&'r Seen>,
    races: bool,
}

impl Compared<'_> {
    /// Returns whether the results are as expected; a program that races may have any results.
    fn is_expected(&self) -> bool {
        self.races || self.differing.is_empty()
    }

    fn unmet(&self) -> Vec<String> {
        if self.is_expected() {
            Vec::new()
        } else {
            vec![format!(
                "there is no race, and yet the results differ: {}",
                listed(&self.differing)
            )]
        }
    }
}

fn listed(differing: &[&Seen]) -> String {
    let shown: Vec<String> = differing.iter().map(ToString::to_string).collect();
    few(&shown, 4)
}

fn as_json(args: &Args, program: &Program, ran: &OnDevice, compared: &Compared<'_>) -> Value {
    let differing = compared.differing.iter().map(|seen| match seen {
        Seen::Op(at) => json!({"op": at}),
        Seen::Buffer(name) => json!({"buffer": name}),
    });
    let elapsed = ran.elapsed.iter().map(|(at, answer)| match answer {
        Ok(ns) => json!({"op": at, "ns": ns}),
        Err(why) => json!({"op": at, "why": why}),
    });
    json!({
        "schema": "sidestream.run/1",
        "name": program.name,
        "device": args.device,
        "schedule": null,
        "time_ns": ran.trace.end_ns(),
        "work": work_as_json(&ran.trace),
        "error": null,
        "results": {"count": ran.results.len(), "differ": differing.collect::<Vec<_>>()},
        "elapsed": elapsed.collect::<Vec<_>>(),
        "as_expected": compared.is_expected(),
        "unmet": compared.unmet(),
    })
}

fn as_text(
    args: &Args,
    device: &Device,
    program: &Program,
    ran: &OnDevice,
    compared: &Compared<'_>,
) -> String {
    let mut out = format!(
        "{} on {}: {:.1} µs\n",
        program.name,
        device.name(),
        ran.trace.end_ns() as f64 / 1e3
    );
    out += &drawn(args, &ran.trace);
    out += "  times are from events around each operation, which cost the device about 2 µs each\n";
    for (at, answer) in &ran.elapsed {
        out += &match answer {
            Ok(ns) => format!("  op {at} (elapsed): {:.1} µs\n", ns / 1e3),
            Err(why) => format!("  op {at} (elapsed): {why}\n"),
        };
    }
    out += &match (&compared.differing[..], ran.results.len()) {
        (_, 0) => "  it leaves no results to compare\n".to_owned(),
        ([], count) => format!("  {count} results, all as on sim:h200 in order\n"),
        (some, count) => format!(
            "  of {count} results {} differ from sim:h200 in order: {}\n",
            some.len(),
            listed(some)
        ),
    };
    for unmet in compared.unmet() {
        out += &format!("  not as expected: {unmet}\n");
    }
    if compared.races {
        out += &says_where(args);
    }
    args.width.lines().wrapped(&out)
}
