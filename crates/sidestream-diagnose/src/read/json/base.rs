//! Reads the time of a step before the profiler started, which `sidestream.profile` writes into its trace.

use serde_json::Value;

use crate::model::Unprofiled;

/// The key of the outermost object.
pub const KEY: &[u8] = b"sidestream.unprofiled";
/// The longest time of a step that is accepted: a day.
const MOST_NS: f64 = 86_400e9;

/// Reads the measurement.
///
/// # Errors
/// Which part of it is invalid, in a few words.
pub fn unprofiled(value: &Value) -> Result<Unprofiled, String> {
    let time = |name: &str, value: &Value| -> Result<u64, String> {
        let ns = value.as_f64().filter(|ns| (0.0..=MOST_NS).contains(ns));
        ns.map(|ns| ns as u64)
            .ok_or(format!("its {name} is not a time"))
    };
    let count = |name: &str| -> Result<u32, String> {
        let count = value[name].as_u64().and_then(|n| n.try_into().ok());
        count.ok_or(format!("its {name} is not a count"))
    };
    let is = |name: &str| {
        value[name]
            .as_bool()
            .ok_or(format!("its {name} is not true or false"))
    };
    let read = Unprofiled {
        median_ns: time("median_ns", &value["median_ns"])?,
        mean_ns: time("mean_ns", &value["mean_ns"])?,
        quartiles_ns: (
            time("first quartile", &value["quartiles_ns"][0])?,
            time("third quartile", &value["quartiles_ns"][1])?,
        ),
        edge_ns: time("edge_ns", &value["edge_ns"])?,
        drift: value["drift"].as_f64().ok_or("its drift is not a number")?,
        agreed: is("agreed")?,
        window_steps: count("window_steps")?,
        dropped: count("dropped")?,
        taken: count("taken")?,
        after_profiler: is("after_profiler")?,
    };
    let (first, third) = read.quartiles_ns;
    match () {
        () if read.median_ns == 0 => Err("its median is not a time".to_owned()),
        () if read.median_ns < first || third < read.median_ns => {
            Err("its median is not between its quartiles".to_owned())
        }
        () if read.drift.abs() > 1.0 => Err("its drift is more than the whole".to_owned()),
        () if read.taken == 0 || read.window_steps == 0 => Err("it covers no steps".to_owned()),
        () => Ok(read),
    }
}
