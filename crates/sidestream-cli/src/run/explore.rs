//! `sidestream run --explore N`: makes the effect of a race visible.

use serde_json::{Value, json};
use sidestream::engine::Profile;
use sidestream::op::OpId;
use sidestream::sim::Schedule;
use sidestream_program::{Difference, Explored, Program, Run, explore, written};

use super::{Args, Outcome, refuse};
use crate::failure::Failure;
use crate::output;

/// Explores one program. If all schedules give one result, the outcome is as expected.
pub fn main(
    args: &Args,
    profile: &Profile,
    program: &Program,
    count: usize,
) -> Result<Outcome, Failure> {
    let explored = match explore(program, profile, count) {
        Ok(explored) => explored,
        Err(error) => {
            let why = format!("program {}: {error}", program.name);
            return refuse(args, Some(&program.name), None, "CannotRun", &why);
        }
    };
    output::say(
        args.json,
        || as_json(args, program, &explored),
        || as_text(args, program, &explored),
    )?;
    Ok(match explored.difference {
        None => Outcome::AsExpected,
        Some(_) => Outcome::NotAsExpected,
    })
}

fn as_json(args: &Args, program: &Program, explored: &Explored) -> Value {
    let difference = explored.difference.as_ref().map(|d| {
        json!({
            "op": d.op.0,
            "buffer": buffer_name(program, d),
            "range": [d.range.0, d.range.1],
            "wrote": d.wrote,
            "schedules": [d.usual.0.to_string(), d.other.0.to_string()],
            "written_by": [d.writers.0.map(|op| op.0), d.writers.1.map(|op| op.0)],
        })
    });
    json!({
        "schema": "sidestream.explore/1",
        "name": program.name,
        "device": args.device,
        "schedules": explored.schedules,
        "results": explored.results,
        "differing": explored.differing,
        "difference": difference,
    })
}

fn as_text(args: &Args, program: &Program, explored: &Explored) -> String {
    let Explored {
        schedules,
        results,
        difference,
        ..
    } = explored;
    let name = &program.name;
    let Some(difference) = difference else {
        return format!("{name}: {schedules} legal schedules, all with the same result\n");
    };
    let what = if difference.wrote {
        "writes over"
    } else {
        "reads"
    };
    let (start, end) = difference.range;
    let mut out = format!(
        "{name}: {schedules} legal schedules, {results} different results\n\n  {} {what} bytes {start} to \
         {end} of {}, and finds there\n",
        op_text(program, difference.op),
        buffer_name(program, difference),
    );
    let runs = [
        (
            &difference.usual,
            difference.writers.0,
            difference.atomics.0,
        ),
        (
            &difference.other,
            difference.writers.1,
            difference.atomics.1,
        ),
    ];
    for ((schedule, _), writer, atomics) in runs {
        let mut found = match writer {
            Some(writer) => format!("what {} wrote", op_text(program, writer)),
            None => "what was there before".to_owned(),
        };
        if let Some(atomics) = atomics.filter(|_| difference.atomics.0 != difference.atomics.1) {
            found += &format!(", and {atomics} atomic accesses since");
        }
        out += &format!("    {}: {found}\n", schedule_text(*schedule));
    }
    for ((schedule, run), ..) in runs {
        out += &format!(
            "\n  {}\n{}",
            schedule_text(*schedule),
            picture(args, program, run)
        );
    }
    args.width.lines().wrapped(&out)
}

fn picture(args: &Args, program: &Program, run: &Run) -> String {
    let trace = run.trace(program);
    args.width.lines().timeline(&trace).to_string()
}

fn schedule_text(schedule: Schedule) -> String {
    match schedule {
        Schedule::InOrder => "in order, as a device mostly runs it".to_owned(),
        Schedule::Delaying(OpId(op)) => format!("with op {op} late (adversarial:{op})"),
        Schedule::DelayingCall(OpId(op)) => {
            format!("with the call of op {op} late (adversarial:call:{op})")
        }
        Schedule::Adversarial => "with everything late (adversarial)".to_owned(),
        Schedule::Seeded(seed) => format!("in a random legal order (seeded:{seed})"),
    }
}

fn buffer_name<'a>(program: &'a Program, difference: &Difference) -> &'a str {
    let lowered = &difference.usual.1.lowered;
    let name = lowered.buffers[difference.buffer.0 as usize].name;
    &program.buffers[name.0 as usize].name
}

fn op_text(program: &Program, id: OpId) -> String {
    let text = written(program, &program.ops[id.0 as usize]);
    let call = text.strip_prefix("do: ").unwrap_or(&text);
    format!("op {} ({call})", id.0)
}
