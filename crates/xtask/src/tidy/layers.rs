//! Which module may name which, inside the runtime and among the crates. ARCHITECTURE.md draws these tables and gives
//! the reasons.

use super::Complaint;
use super::rust::{Path, Source};

/// The folder to which the table applies.
const INSIDE: &str = "crates/sidestream/src/";

/// From the bottom up: a module names only those of the rows above its own in this table, and none of its own row. So
/// there can be no cycle of modules.
const LAYERS: &[&[&str]] = &[
    &["op", "ptx", "process"],
    &["error", "order"],
    &["engine"],
    &["backend"],
    &["log", "alloc"],
    // The state that the modules below share; the module is not visible outside.
    &["tracker"],
    &["event"],
    &["buffer"],
    &["kernel"],
    &["stream"],
    &["device"],
    &["benchmark", "graph", "explicit"],
    &["pipeline", "prefetch"],
    &["batcher"],
];

/// The files of `tracker`, in the same order: data comes before the runtime that has it, and queries and waits come
/// after.
const INSIDE_TRACKER: &[&[&str]] = &[
    &["elsewhere", "process", "telling", "undone", "vector"],
    &["captured", "recorded"],
    &["streams"],
    &["explicit", "mark"],
    &["uses"],
    &["gone", "registered"],
    &["cached"],
    &["runtime"],
    &["threads"],
    &["behind", "block"],
    &["asking"],
    &["memory", "pinning", "wakes"],
    &["stream"],
];

/// Modules outside the layers, each with the only modules that it may name. No layer names them.
const BESIDE: &[(&str, &[&str])] = &[
    ("check", &["op", "order", "log", "error"]),
    ("trace", &["op", "order", "log", "error"]),
    // The simulator knows when everything ran, and reports it as a `trace`.
    (
        "sim",
        &[
            "engine", "backend", "op", "order", "log", "error", "alloc", "trace",
        ],
    ),
    ("cuda", &["backend", "op", "log", "error", "ptx"]),
];

/// The back ends; only one module names them.
const BACK_ENDS: [&str; 2] = ["sim", "cuda"];
const NAMES_BACK_ENDS: &str = "device";
/// A device attaches the checker to a running program: this is the only reader of the log that a layer names.
const ATTACHES: (&str, &str) = ("device", "check");

/// The crates, each with those that it may depend on. Tests may use others.
const CRATES: &[(&str, &[&str])] = &[
    ("sidestream", &[]),
    ("sidestream-program", &["sidestream"]),
    ("sidestream-diagnose", &["sidestream"]),
    ("sidestream-images", &["sidestream"]),
    // Works on pages and signals, and knows nothing of streams.
    ("host-guard", &[]),
    // Is loaded into programs, and compiled without Cargo for that.
    ("sidestream-inject", &["host-guard"]),
    // The two interfaces: the terminal's, and Python's, which includes the command too.
    (
        "sidestream-cli",
        &[
            "sidestream",
            "sidestream-program",
            "sidestream-diagnose",
            "sidestream-inject",
        ],
    ),
    (
        "sidestream-py",
        &[
            "sidestream",
            "sidestream-program",
            "sidestream-diagnose",
            "sidestream-images",
            "sidestream-cli",
            "sidestream-inject",
            "host-guard",
        ],
    ),
    // Has a twin in Rust for each kernel of these two crates.
    ("stand-in", &["sidestream", "sidestream-images"]),
    ("benches", &["sidestream"]),
    // Measures what the command does, compared with the driver.
    ("bench-gpu", &["sidestream", "sidestream-cli"]),
    // An example, which no crate uses.
    ("serve-example", &["sidestream"]),
    // A development tool that xtask runs: it uses the product, and no crate uses it.
    ("truth", &["sidestream", "sidestream-diagnose"]),
    // Fuzz targets use this crate; no product crate does.
    ("fuzz-target", &[]),
    ("xtask", &[]),
];

/// Complains about the Cargo.toml of one crate.
pub fn manifest(file: &str, text: &str) -> Vec<Complaint> {
    let inside = file
        .strip_prefix("crates/")
        .and_then(|file| file.strip_suffix("/Cargo.toml"));
    // A crate inside a crate, such as fuzz targets, is not part of the product.
    let Some(name) = inside.filter(|name| !name.contains('/')) else {
        return Vec::new();
    };
    let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
        let what = format!(
            "the crate `{name}` is not in the table of crates; add it in crates/xtask/src/tidy/layers.rs"
        );
        return vec![Complaint::new(file, 1, what)];
    };
    let mut out = Vec::new();
    let mut of_tests = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            of_tests = line.contains("dev-dependencies");
        }
        let by_path = line.split("path = \"../").nth(1);
        // The workspace's table has path and version of crates that can be published.
        let by_table = line.strip_suffix(".workspace = true");
        let named = match by_path {
            Some(rest) => rest.split('"').next(),
            None => by_table.filter(|name| CRATES.iter().any(|(known, _)| known == name)),
        };
        if let Some(named) = named.filter(|named| !of_tests && !allowed.contains(named)) {
            let what = format!("`{name}` depends on `{named}`, which it may not use");
            out.push(Complaint::new(file, index + 1, what));
        }
    }
    out
}

/// Complains about one file of the runtime.
pub fn check(file: &str, source: &Source) -> Vec<Complaint> {
    let Some(home) = home(file) else {
        return Vec::new();
    };
    // The root lists all modules: it has no layer.
    let Some(from) = home.first() else {
        return Vec::new();
    };
    if !is_known(from) {
        let what = format!(
            "the module `{from}` is in no layer; add it to the table in crates/xtask/src/tidy/layers.rs"
        );
        return vec![Complaint::new(file, 1, what)];
    }
    let mut out = Vec::new();
    for path in &source.paths {
        let named = absolute(path, &home);
        let why = match (&home[..], &named[..]) {
            ([a, from, ..], [b, to, ..]) if a == "tracker" && b == "tracker" => within(from, to),
            (_, [to, ..]) => refusal(from, to),
            _ => None,
        };
        out.extend(why.map(|why| Complaint::new(file, path.line, why)));
    }
    out
}

/// Why `from` may not name `to`, if it may not.
fn refusal(from: &str, to: &str) -> Option<String> {
    if from == to {
        return None;
    }
    if !is_known(to) {
        let is_item = to.starts_with(|c: char| !c.is_lowercase());
        return Some(if is_item {
            format!("`crate::{to}` does not name its module; write the full path")
        } else {
            format!(
                "`{from}` names the module `{to}`, which is in no layer; add it to the table in crates/xtask/src/tidy/layers.rs"
            )
        });
    }
    if BACK_ENDS.contains(&to) {
        let allowed = from == NAMES_BACK_ENDS;
        return (!allowed)
            .then(|| format!("`{from}` names the back end `{to}`; only `{NAMES_BACK_ENDS}` may"));
    }
    if let Some((_, only)) = BESIDE.iter().find(|(name, _)| *name == from) {
        let allowed = only.contains(&to);
        return (!allowed).then(|| {
            format!(
                "`{from}` names `{to}`; it may only name {}",
                only.join(", ")
            )
        });
    }
    if (from, to) == ATTACHES {
        return None;
    }
    match (layer(LAYERS, from), layer(LAYERS, to)) {
        (mine, Some(other)) => upward((from, mine), (to, other)),
        (_, None) => Some(format!(
            "`{from}` names `{to}`, which only reads the log; no layer needs it"
        )),
    }
}

/// Like [`refusal`], for two files of `tracker`.
fn within(from: &str, to: &str) -> Option<String> {
    if from == to {
        return None;
    }
    let Some(mine) = layer(INSIDE_TRACKER, from) else {
        return Some(format!(
            "`tracker::{from}` is in no layer; add it to the table in crates/xtask/src/tidy/layers.rs"
        ));
    };
    match layer(INSIDE_TRACKER, to) {
        Some(other) => upward((from, Some(mine)), (to, other)),
        None => Some(format!(
            "`tracker::{to}` is not a file of a layer; name the file that defines it"
        )),
    }
}

fn upward((from, mine): (&str, Option<usize>), (to, other): (&str, usize)) -> Option<String> {
    match mine {
        Some(mine) if other < mine => None,
        Some(mine) if other == mine => Some(format!(
            "`{from}` names `{to}`, which is in the same row: that could become a cycle"
        )),
        _ => Some(format!(
            "`{from}` names `{to}`, which is built on it: upward"
        )),
    }
}

fn layer(rows: &[&[&str]], module: &str) -> Option<usize> {
    rows.iter().position(|row| row.contains(&module))
}

fn is_known(module: &str) -> bool {
    layer(LAYERS, module).is_some() || BESIDE.iter().any(|(name, _)| *name == module)
}

/// The module of a file of the runtime; `None` for other files.
fn home(file: &str) -> Option<Vec<String>> {
    let inner = file.strip_prefix(INSIDE)?.strip_suffix(".rs")?;
    let mut parts: Vec<String> = inner.split('/').map(str::to_owned).collect();
    let last = parts.last()?;
    if last == "mod" || inner == "lib" {
        parts.pop();
    }
    Some(parts)
}

/// A path from the root of the crate; empty if it does not begin there.
fn absolute(path: &Path, home: &[String]) -> Vec<String> {
    let mut base = [home, &path.inside].concat();
    let mut rest = &path.segments[..];
    match rest.first().map(String::as_str) {
        Some("crate") => base.clear(),
        Some("self" | "super") => {}
        _ => return Vec::new(),
    }
    while let [word, tail @ ..] = rest {
        match word.as_str() {
            "crate" | "self" => {}
            "super" => _ = base.pop(),
            _ => break,
        }
        rest = tail;
    }
    base.extend_from_slice(rest);
    base
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn complaints(file: &str, text: &str) -> Vec<String> {
        let file = format!("{INSIDE}{file}");
        lines(check(&file, &Source::read(&file, text).unwrap()))
    }

    #[test]
    fn downward_and_inward_is_right() {
        let text = "use crate::{op::Op, order::{self, Order}};\nuse super::engine::Engine;\npub(crate) fn f() {}";
        assert_eq!(complaints("backend.rs", text), [""; 0]);
        assert_eq!(
            complaints(
                "order/clocks.rs",
                "use super::Step;\nuse super::super::op::Op;"
            ),
            [""; 0]
        );
        assert_eq!(
            complaints("device.rs", "use crate::{sim, cuda, stream::Stream};"),
            [""; 0]
        );
        assert_eq!(
            complaints("lib.rs", "pub use crate::pipeline::Pipeline;"),
            [""; 0]
        );
    }

    #[test]
    fn upward_is_refused_however_it_is_written() {
        let upward = "`order` names `engine`, which is built on it: upward";
        for text in [
            "use crate::engine::Profile;",
            "use crate::{op::Op, engine::Profile};",
            "use super::engine;",
            "fn f() { crate::engine::walk() }",
            "mod tests { use super::super::engine; }",
            "fn f() { assert!(crate::engine::walk()) }",
        ] {
            assert_eq!(
                complaints("order/mod.rs", text),
                [format!("1: {upward}")],
                "{text}"
            );
        }
        assert_eq!(
            complaints("order/clocks.rs", "\nuse super::super::engine;"),
            [format!("2: {upward}")]
        );
    }

    #[test]
    fn a_circle_of_modules_is_refused() {
        // Streams record events and devices create streams: neither may name its users.
        assert_eq!(
            complaints("stream/mod.rs", "use crate::event::Event;"),
            [""; 0]
        );
        assert_eq!(
            complaints("event.rs", "use crate::stream::Stream;"),
            ["1: `event` names `stream`, which is built on it: upward"]
        );
        assert_eq!(
            complaints("tracker/runtime.rs", "use crate::device::Device;"),
            ["1: `tracker` names `device`, which is built on it: upward"]
        );
        let beside = "which is in the same row: that could become a cycle";
        for (one, other) in [("graph", "explicit"), ("explicit", "graph")] {
            assert_eq!(
                complaints(
                    &format!("{one}/mod.rs"),
                    &format!("use crate::{other}::Graph;")
                ),
                [format!("1: `{one}` names `{other}`, {beside}")]
            );
        }
    }

    #[test]
    fn the_files_of_the_tracker_have_layers_too() {
        let found = |file: &str, text: &str| complaints(&format!("tracker/{file}"), text);
        let downward =
            "use super::super::runtime::Thread;\nuse super::Stream;\nuse super::held::Held;";
        assert_eq!(found("stream/issue.rs", downward), [""; 0]);
        assert_eq!(found("mod.rs", "pub use stream::Stream;"), [""; 0]);
        assert_eq!(
            found("runtime.rs", "use super::threads::as_thread;"),
            ["1: `runtime` names `threads`, which is built on it: upward"]
        );
        assert_eq!(
            found("memory.rs", "use crate::tracker::wakes::Asked;"),
            ["1: `memory` names `wakes`, which is in the same row: that could become a cycle"]
        );
        assert_eq!(
            found("block.rs", "use super::Mark;"),
            ["1: `tracker::Mark` is not a file of a layer; name the file that defines it"]
        );
        let table = "add it to the table in crates/xtask/src/tidy/layers.rs";
        assert_eq!(
            found("extra.rs", "use super::mark::Mark;"),
            [format!("1: `tracker::extra` is in no layer; {table}")]
        );
    }

    #[test]
    fn readers_and_back_ends_see_only_their_part() {
        assert_eq!(
            complaints("check.rs", "use crate::device::Device;"),
            ["1: `check` names `device`; it may only name op, order, log, error"]
        );
        assert_eq!(
            complaints("cuda/mod.rs", "use crate::engine::Profile;"),
            ["1: `cuda` names `engine`; it may only name backend, op, log, error, ptx"]
        );
        assert_eq!(
            complaints("stream.rs", "use crate::sim::Machine;"),
            ["1: `stream` names the back end `sim`; only `device` may"]
        );
        assert_eq!(
            complaints("pipeline.rs", "use crate::check::Race;"),
            ["1: `pipeline` names `check`, which only reads the log; no layer needs it"]
        );
    }

    #[test]
    fn every_module_has_a_place() {
        let table = "add it to the table in crates/xtask/src/tidy/layers.rs";
        assert_eq!(
            complaints("extra/mod.rs", ""),
            [format!("1: the module `extra` is in no layer; {table}")]
        );
        assert_eq!(
            complaints("graph.rs", "use crate::extra::Extra;"),
            [format!(
                "1: `graph` names the module `extra`, which is in no layer; {table}"
            )]
        );
        assert_eq!(
            complaints("graph.rs", "use crate::Device;"),
            ["1: `crate::Device` does not name its module; write the full path"]
        );
    }

    #[test]
    fn crates_know_only_those_below() {
        let text = "[dependencies]\nsidestream.workspace = true\nsidestream-py = { path = \"../sidestream-py\" }\n[dev-dependencies]\nsidestream-stand-in = { path = \"../stand-in\" }\n";
        let found = |file: &str| lines(manifest(file, text));
        assert_eq!(
            found("crates/sidestream-cli/Cargo.toml"),
            ["3: `sidestream-cli` depends on `sidestream-py`, which it may not use"]
        );
        assert_eq!(found("crates/xtask/Cargo.toml").len(), 2);
        assert_eq!(found("crates/sidestream-diagnose/fuzz/Cargo.toml"), [""; 0]);
        assert_eq!(
            found("crates/extra/Cargo.toml"),
            [
                "1: the crate `extra` is not in the table of crates; add it in crates/xtask/src/tidy/layers.rs"
            ]
        );
    }

    #[test]
    fn other_crates_have_no_layers() {
        let source = Source::read("x", "use crate::pipeline::Pipeline;").unwrap();
        assert_eq!(check("crates/sidestream-cli/src/main.rs", &source), []);
    }
}
