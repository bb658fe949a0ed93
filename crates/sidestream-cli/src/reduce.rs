//! `sidestream check --reduce`: the shortest program that still has a race of a run.

use std::path::Path;

use sidestream::check::MEMORY_BYTES;
use sidestream_program::{Program, record, reduce};

use crate::failure::{Failure, print, shown, tell};

/// Writes the reduced program of a program, as [`write`] does for a log.
pub fn write_of_program(
    program: &Program,
    path: &Path,
    to: &Path,
    json: bool,
) -> Result<(), Failure> {
    let log = record(program).map_err(|error| {
        Failure::input(format!("{}: it cannot be logged: {error}", shown(path)))
    })?;
    write(&log, path, to, json)
}

/// Writes the reduced program of the log of a run, and prints what was written.
pub fn write(log: &[u8], path: &Path, to: &Path, json: bool) -> Result<(), Failure> {
    let reduced = reduce(log, None, &[], MEMORY_BYTES)
        .map_err(|error| Failure::input(format!("{}: --reduce: {error}", shown(path))))?;
    let said = match reduced {
        None => format!(
            "{}: there is no race to reduce the run to; {} is not written",
            shown(path),
            shown(to)
        ),
        Some(reduced) => {
            let name = path.file_stem().unwrap_or(path.as_os_str());
            let text = reduced.text(&name.to_string_lossy(), |call| {
                let site = reduced.sites.get(call.site.0 as usize);
                site.cloned().unwrap_or_default()
            });
            std::fs::write(to, text).map_err(|error| Failure::file("write", to, &error))?;
            format!(
                "{}: {} of the {} operations are left in {}, with one of the races; `sidestream run {} --explore 100` \
                 shows what it does to the results",
                shown(path),
                reduced.program.ops.len(),
                reduced.operations,
                shown(to),
                shown(to)
            )
        }
    };
    match json {
        true => tell(said),
        false => print(format_args!("{said}\n"))?,
    }
    Ok(())
}
