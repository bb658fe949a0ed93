//! `cargo xtask bench`: every criterion benchmark, briefly, in one table.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cargo::{self, Workspace};

/// Runs the benchmarks and prints the table.
pub fn run() -> Result<bool> {
    let workspace = Workspace::read()?;
    let benches = workspace.targets("bench");
    if benches.is_empty() {
        println!("There are no benchmarks yet.");
        return Ok(true);
    }
    // Whatever is older than this is left over from another run.
    let started = SystemTime::now();
    for bench in benches {
        // One by one: `cargo bench --workspace` would hand criterion's flag to unit tests too.
        let (package, name) = (&*bench.package, &*bench.name);
        let args = [
            "bench",
            "--package",
            package,
            "--bench",
            name,
            "--",
            "--quick",
        ];
        let status = cargo::command(&args)
            .status()
            .with_context(|| format!("cannot run the benchmark `{name}`"))?;
        ensure!(
            status.success(),
            "the benchmark `{name}` of {package} failed"
        );
    }
    let mut results = Vec::new();
    collect(
        &workspace.target_dir.join("criterion"),
        started,
        &mut results,
    )?;
    results.sort_by(|a, b| a.id.cmp(&b.id));
    print!("\n{}", table(&results));
    Ok(true)
}

/// One measured benchmark.
#[derive(Debug, PartialEq)]
struct Measured {
    id: String,
    median_ns: f64,
    /// Elements or bytes that one iteration handles, with the word for one of them.
    per: Option<(f64, &'static str)>,
}

/// Reads every `new` folder below `dir` that this run has written.
fn collect(dir: &Path, started: SystemTime, results: &mut Vec<Measured>) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Ok(()); // Nothing was measured with criterion.
    };
    for entry in entries {
        let path = entry
            .with_context(|| format!("cannot list {}", dir.display()))?
            .path();
        if !path.is_dir() {
            continue;
        }
        let estimates = path.join("estimates.json");
        if path.ends_with("new") && estimates.is_file() {
            let written = fs::metadata(&estimates).and_then(|m| m.modified());
            if written.is_ok_and(|at| at >= started) {
                let measured = measured(&read(&path.join("benchmark.json"))?, &read(&estimates)?);
                results
                    .push(measured.with_context(|| format!("{} has no median", path.display()))?);
            }
        } else {
            collect(&path, started, results)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", path.display()))
}

fn measured(benchmark: &Value, estimates: &Value) -> Option<Measured> {
    let throughput = &benchmark["throughput"];
    let kinds = [
        ("Elements", "an element"),
        ("Bytes", "a byte"),
        ("BytesDecimal", "a byte"),
    ];
    Some(Measured {
        id: benchmark["full_id"].as_str()?.to_owned(),
        median_ns: estimates["median"]["point_estimate"].as_f64()?,
        per: kinds.iter().find_map(|(key, word)| {
            let count = throughput[key].as_f64().filter(|count| *count > 0.0)?;
            Some((count, *word))
        }),
    })
}

fn table(results: &[Measured]) -> String {
    let width = results.iter().map(|r| r.id.len()).max().unwrap_or(0).max(9);
    let mut out = format!(
        "{:width$}  {:>9}  {:4}  {}\n",
        "benchmark", "median", "unit", "each"
    );
    for Measured { id, median_ns, per } in results {
        let (median, unit) = scaled(*median_ns);
        let each = per.map_or(String::new(), |(count, word)| {
            let (each, unit) = scaled(median_ns / count);
            format!("{} {unit} {word}", number(each))
        });
        let line = format!("{id:width$}  {:>9}  {unit:4}  {each}", number(median));
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Nanoseconds in the unit that people read easily.
fn scaled(ns: f64) -> (f64, &'static str) {
    match ns {
        ns if ns >= 1e9 => (ns / 1e9, "s"),
        ns if ns >= 1e6 => (ns / 1e6, "ms"),
        ns if ns >= 1e3 => (ns / 1e3, "µs"),
        ns => (ns, "ns"),
    }
}

/// Three digits that count; more would claim more than a quick run knows.
fn number(value: f64) -> String {
    let decimals = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_of_medians() {
        let read = |id: &str, throughput: Value, ns: f64| {
            let benchmark = json!({"full_id": id, "throughput": throughput});
            measured(&benchmark, &json!({"median": {"point_estimate": ns}})).unwrap()
        };
        let results = [
            read("order/push/64 streams", json!({"Elements": 1000}), 51_000.0),
            read("sim/overlap", Value::Null, 2_340_000.0),
            read("trace/write", json!({"Bytes": 4096}), 512.0),
        ];
        assert_eq!(
            table(&results),
            "benchmark                 median  unit  each\n\
             order/push/64 streams       51.0  µs    51.0 ns an element\n\
             sim/overlap                 2.34  ms\n\
             trace/write                  512  ns    0.125 ns a byte\n"
        );
    }

    #[test]
    fn files_without_a_median_are_noticed() {
        assert_eq!(measured(&json!({"full_id": "x"}), &json!({})), None);
        assert_eq!(
            measured(&json!({}), &json!({"median": {"point_estimate": 1.0}})),
            None
        );
    }
}
