//! `sidestream diagnose`: why a GPU idled, from a trace.

mod simulated;
mod tables;
mod written;

use std::collections::{BTreeMap, HashMap};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use clap::Parser;
use serde_json::{Value, json};
use sidestream_diagnose::{
    COMPARE_SCHEMA, Change, Comparison, Gate, LINK_GB_PER_S, Limits, Options, Rank, Ranks, Report,
    SCHEMA, TABLE_SCHEMA, Verdict, View, brief, comparison_text, gate_text, is_speed, ranks_text,
    read, table_json, table_text, text, traces,
};

use crate::failure::{Exit, Failure, SUCCESS, print, tell};
use crate::program::{self, Recorded};
use crate::width::{Width, terminal};
use simulated::Simulated;
use tables::Tables;
use written::Written;

/// Say why a GPU idled, from a trace of any program
///
/// Reads the JSON of PyTorch's profiler (.json or .json.gz), exports of Nsight Systems (`nsys export
/// --type sqlite`), and the traces that sidestream writes.
/// A folder means all traces in it, such as one for each rank: traces that state their ranks are also analyzed together; with
/// more than eight traces, only together. No GPU is needed, except for `diagnose -- PROGRAM`: that runs any CUDA program, records
/// it and reads the trace. With --simulate it runs a program of PyTorch on a simulated GPU.
///
/// Exit code: 0 every trace was read, 2 one was not, or two cannot be compared. With --gate: 0 no step is shown to be slower than
/// the gate allows, 1 one is, 2 a trace cannot be read, 3 the traces do not tell. If several apply, it is the first of 2, 1, 3.
#[derive(Parser)]
pub struct Args {
    /// Traces, or folders of traces
    #[arg(required_unless_present_any = ["program", "simulate"], value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Print one line of JSON for each trace instead of text
    #[arg(long)]
    json: bool,
    /// Say what changed from this trace, the baseline, to each TRACE, step by step
    #[arg(long, value_name = "BASELINE", conflicts_with_all = ["what_if", "html", "svg", "trace"])]
    against: Option<PathBuf>,
    /// End with 1 if a step takes more than PERCENT longer than in the baseline, such as 5%, and name what grew
    ///
    /// What counts is the lower bound of the slowdown, with 99.5 % confidence. Seven steps of each trace suffice for it. It includes
    /// that two runs of one program may differ by 0.75 %. Programs that the host limits may differ by far more: record the same
    /// program twice, and choose PERCENT above that difference.
    #[arg(long, value_name = "PERCENT", requires = "against", value_parser = percent, allow_negative_numbers = true)]
    gate: Option<f64>,
    /// The bandwidth of copies from and to pinned memory, in GB/s, from 0.1 to 10000; by default what the trace shows, or a
    /// table of devices
    #[arg(long, value_name = "GB/S", value_parser = link, allow_negative_numbers = true)]
    link_gbps: Option<f64>,
    #[arg(long, value_name = "CHANGES", value_parser = what_if, help = changes(), long_help = changes_told())]
    what_if: Vec<WhatIf>,
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    width: Width,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    recorded: Recorded,
    #[command(flatten)]
    simulated: Simulated,
    /// What to call traces, if not by their paths.
    #[arg(skip)]
    names: HashMap<PathBuf, String>,
}

impl Args {
    fn name(&self, path: &Path) -> String {
        let name = self.names.get(path).cloned();
        name.unwrap_or_else(|| path.display().to_string())
    }
}

/// Returns the short help of `--what-if`: the forms of its changes.
fn changes() -> String {
    format!(
        "Changes to predict together, separated by commas: {}. Repeat the option for another set. By default, or with \
         `all`, most of them alone, and some together",
        Change::forms()
    )
}

/// Returns the long help of `--what-if`, with the effect of each change.
fn changes_told() -> String {
    let told = Change::ALL.map(|(form, does)| format!("{form}: {does}."));
    format!("{}\n\n{}", changes(), told.join(" "))
}

/// The changes whose effect is to be predicted.
#[derive(Clone, PartialEq)]
enum WhatIf {
    /// The usual sets of changes.
    All,
    /// These changes together.
    Set(Vec<Change>),
}

/// Runs the command.
pub fn main(mut args: Args) -> Result<Exit, Failure> {
    let recorded = std::mem::take(&mut args.recorded);
    let simulated = std::mem::take(&mut args.simulated);
    if recorded.program.is_empty() && simulated.simulate.is_none() {
        return of_traces(&args);
    }
    let is_json = args.json;
    let report = |traces: Vec<(String, PathBuf)>| {
        args.traces = traces.iter().map(|(_, file)| file.clone()).collect();
        args.names = traces
            .into_iter()
            .map(|(name, file)| (file, name))
            .collect();
        of_traces(&args)
    };
    match &simulated.simulate {
        Some(device) => simulated.main(device, &recorded, is_json, report),
        None => program::profile(&recorded, is_json, report),
    }
}

fn of_traces(args: &Args) -> Result<Exit, Failure> {
    let options = Options {
        link_gb_per_s: args.link_gbps,
        what_if: sets(&args.what_if)?,
    };
    if let Some(view) = args.tables.view()? {
        return table(args, &options, &view);
    }
    match &args.against {
        Some(baseline) => compare(args, &options, baseline),
        None => explain(args, &options),
    }
}

/// Prints a report of each trace, and one of the ranks of a run together.
fn explain(args: &Args, options: &Options) -> Result<Exit, Failure> {
    let lines = args.width.lines();
    let files = files(&args.traces);
    let named: Vec<&Path> = files.iter().flatten().map(PathBuf::as_path).collect();
    args.written.check(&named)?;
    let mut ranks = Vec::new();
    let is_one = files.len() == 1;
    // With many ranks, only the report of all of them together is printed.
    let is_brief = files.len() <= MOST_BRIEF;
    let mut code = SUCCESS;
    each(&files, options, |at, report| {
        // One file that cannot be read does not keep the others from being reported.
        let path = files[at].as_ref().map_err(Unread::clone);
        match path.and_then(|path| Ok((path, report?))) {
            Ok((path, report)) => {
                let name = args.name(path);
                if args.json {
                    line(report.json(), &[("file", &name)])?;
                } else if is_one || report.rank.is_none() {
                    print(lines.wrapped(&text(&name, &report, columns(args.width))))?;
                } else if is_brief {
                    print(lines.wrapped(&brief(&name, &report)))?;
                }
                if is_one {
                    args.written.write(Path::new(&name), &report)?;
                }
                ranks.push(Rank::of(&name, &report));
            }
            Err(unread) => code = unread.say(args, SCHEMA)?,
        }
        Ok(())
    })?;
    let ranks = Ranks::of(ranks);
    match &ranks {
        Some(ranks) if args.json => print(format_args!("{}\n", ranks.json()))?,
        Some(ranks) => print(lines.wrapped(&ranks_text(ranks)))?,
        None => {}
    }
    if !is_one {
        let names: Vec<String> = args.traces.iter().map(|path| args.name(path)).collect();
        args.written
            .write_ranks(&names.join(", "), ranks.as_ref())?;
    }
    Ok(code)
}

/// Prints one table of each trace.
fn table(args: &Args, options: &Options, view: &View) -> Result<Exit, Failure> {
    let mut code = SUCCESS;
    let limits = Limits {
        needs_work: false,
        ..Limits::default()
    };
    for file in files(&args.traces) {
        let read = file.and_then(|path| {
            let report = report_within(&path, options, &limits, &mut Bar::new())?;
            Ok((args.name(&path), report))
        });
        match read {
            Ok((name, report)) if args.json => line(table_json(&report, view), &[("file", &name)])?,
            Ok((name, report)) => {
                let columns = args.width.lines().columns;
                print(table_text(&name, &report, view, columns))?;
            }
            Err(unread) => code = unread.say(args, TABLE_SCHEMA)?,
        }
    }
    Ok(code)
}

/// With more traces than this, the short reports of the single ranks are left out.
const MOST_BRIEF: usize = 8;

/// Reads the files on all CPU cores and hands over their reports in the order of the files. At most one report per core is kept
/// at a time.
fn each(
    files: &[Result<PathBuf, Unread>],
    options: &Options,
    mut take: impl FnMut(usize, Result<Report, Unread>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let one = |file: &Result<PathBuf, Unread>, bar: &mut Bar| match file {
        Ok(path) => report(path, options, bar),
        Err(unread) => Err(unread.clone()),
    };
    if files.len() == 1 || threads == 1 {
        for (at, file) in files.iter().enumerate() {
            take(at, one(file, &mut Bar::new()))?;
        }
        return Ok(());
    }
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (made, reports) = sync_channel(threads);
        for _ in 0..threads.min(files.len()) {
            let made = made.clone();
            let (next, one) = (&next, &one);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    // The receiver is gone once something has failed.
                    let Some(file) = files.get(at) else { break };
                    if made.send((at, one(file, &mut Bar::none()))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(made);
        let mut waiting = BTreeMap::new();
        let mut expected = 0;
        for (at, report) in reports {
            waiting.insert(at, report);
            while let Some(report) = waiting.remove(&expected) {
                take(expected, report)?;
                expected += 1;
            }
        }
        Ok(())
    })
}

/// Prints what changed from a baseline to each trace.
fn compare(args: &Args, options: &Options, baseline: &Path) -> Result<Exit, Failure> {
    if baseline.is_dir() {
        return Err(Failure::input(format!(
            "{}: --against takes one trace, and this is a folder; name a trace in it",
            baseline.display()
        )));
    }
    let old = match report(baseline, options, &mut Bar::new()) {
        Ok(old) => old,
        Err(unread) => return unread.say(args, COMPARE_SCHEMA),
    };
    let old_name = baseline.display().to_string();
    let mut codes = vec![SUCCESS];
    for file in files(&args.traces) {
        let now = file.and_then(|path| {
            let now = report(&path, options, &mut Bar::new())?;
            Ok((path, now))
        });
        let (path, now) = match now {
            Ok(now) => now,
            Err(unread) => {
                codes.push(unread.say(args, COMPARE_SCHEMA)?);
                continue;
            }
        };
        let name = path.display().to_string();
        let compared = Comparison::of(&now, &old);
        let as_told = compared.as_ref().map_err(|why| *why);
        let gate = args.gate.map(|percent| Gate::of(as_told, percent));
        match &compared {
            Ok(compared) if args.json => {
                let mut json = compared.json();
                if let Some(gate) = &gate {
                    json["gate"] = gate.json();
                }
                line(json, &[("file", &name), ("against", &old_name)])?;
            }
            Ok(compared) => {
                let text = comparison_text(&name, &old_name, compared);
                let gate = gate.as_ref().map_or(String::new(), gate_text);
                print(args.width.lines().wrapped(&format!("{text}{gate}")))?;
            }
            Err(why) => match &gate {
                None => {
                    let why = format!("{name}: cannot be compared with {old_name}: {why}");
                    codes.push(Unread::new(&path, why).say(args, COMPARE_SCHEMA)?);
                }
                Some(gate) if args.json => {
                    let json = json!({"schema": COMPARE_SCHEMA, "gate": gate.json()});
                    line(json, &[("file", &name), ("against", &old_name)])?;
                }
                Some(gate) => {
                    let text = format!(
                        "{name} compared with the baseline {old_name}\n{}",
                        gate_text(gate)
                    );
                    print(args.width.lines().wrapped(&text))?;
                }
            },
        }
        codes.extend(gate.map(|gate| match gate.verdict {
            Verdict::Passed => SUCCESS,
            Verdict::Failed => 1,
            Verdict::Unknown => 3,
        }));
    }
    let worst = [2, 1, 3].into_iter().find(|code| codes.contains(code));
    Ok(worst.unwrap_or(SUCCESS))
}

/// A file that could not be read, and why.
#[derive(Clone)]
struct Unread {
    file: String,
    why: String,
}

impl Unread {
    fn new(path: &Path, why: impl ToString) -> Unread {
        Unread {
            file: path.display().to_string(),
            why: why.to_string(),
        }
    }

    /// Reports the failure: to people on standard error and, with `--json`, as a line of the output.
    fn say(&self, args: &Args, schema: &str) -> Result<Exit, Failure> {
        let failure = Failure::input(&self.why);
        tell(format_args!("sidestream: {failure}"));
        if args.json {
            let why = [("file", &*self.file), ("error", &*self.why)];
            line(json!({"schema": schema}), &why)?;
        }
        Ok(failure.code())
    }
}

/// Prints a line of JSON, with the fields that the library does not know.
fn line(mut json: Value, more: &[(&str, &str)]) -> Result<(), Failure> {
    for (key, value) in more {
        json[*key] = (*value).into();
    }
    print(format_args!("{json}\n"))
}

fn report(path: &Path, options: &Options, bar: &mut Bar) -> Result<Report, Unread> {
    report_within(path, options, &Limits::default(), bar)
}

fn report_within(
    path: &Path,
    options: &Options,
    limits: &Limits,
    bar: &mut Bar,
) -> Result<Report, Unread> {
    let trace = read(path, limits, &mut |done, of| bar.show(done, of));
    bar.clear();
    let trace = trace.map_err(|error| Unread::new(path, error))?;
    Ok(Report::of(trace, options))
}

/// Returns the width of the pictures, in columns.
fn columns(width: Width) -> usize {
    let of_terminal = || Some(terminal()?.min(MOST_COLUMNS));
    width.asked().or_else(of_terminal).unwrap_or(USUAL_COLUMNS)
}

/// A wider picture is hard to take in.
const MOST_COLUMNS: usize = 100;
/// The width where the output is not a terminal.
const USUAL_COLUMNS: usize = 80;

/// Returns the named files, and the traces in the named folders.
fn files(named: &[PathBuf]) -> Vec<Result<PathBuf, Unread>> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(Ok(path.clone()));
            continue;
        }
        match traces(path) {
            Ok(inside) => files.extend(inside.into_iter().map(Ok)),
            Err(why) => files.push(Err(Unread::new(path, why))),
        }
    }
    files
}

fn link(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(speed) if is_speed(speed) => Ok(speed),
        _ => Err(format!(
            "this is not a link speed; write GB/s as a number from {} to {}, such as 25",
            LINK_GB_PER_S.start(),
            LINK_GB_PER_S.end()
        )),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err(
            "this is not a slowdown; write percent as a number from 0 to 1000, such as 5%".into(),
        ),
    }
}

fn what_if(text: &str) -> Result<WhatIf, String> {
    match text.trim() {
        "all" => Ok(WhatIf::All),
        _ => Change::set(text)
            .map(WhatIf::Set)
            .map_err(|error| error.to_string()),
    }
}

/// Returns the requested sets of changes; `None` for the usual ones.
fn sets(asked: &[WhatIf]) -> Result<Option<Vec<Vec<Change>>>, Failure> {
    let mut sets = Vec::new();
    for one in asked {
        match one {
            WhatIf::All if asked.iter().all(|other| *other == WhatIf::All) => return Ok(None),
            WhatIf::All => {
                return Err(Failure::input(
                    "--what-if all means the usual sets of changes; give it alone, or give sets",
                ));
            }
            // Each set is predicted once.
            WhatIf::Set(set) if sets.contains(set) => {}
            WhatIf::Set(set) => sets.push(set.clone()),
        }
    }
    Ok((!sets.is_empty()).then_some(sets))
}

/// A progress bar for reading a long file.
struct Bar {
    watched: bool,
    shown: u64,
}

/// A shorter file is read before a bar would be noticed.
const LONG_BYTES: u64 = 100_000_000;

impl Bar {
    fn new() -> Bar {
        Bar {
            watched: std::io::stderr().is_terminal(),
            shown: 0,
        }
    }

    /// Returns no bar, for when several files are read at once.
    fn none() -> Bar {
        Bar {
            watched: false,
            shown: 0,
        }
    }

    fn show(&mut self, done: u64, of: u64) {
        let percent = 100 * done.min(of) / of.max(1);
        if self.watched && of >= LONG_BYTES && percent > self.shown {
            self.shown = percent;
            let filled = "#".repeat(percent as usize / 4);
            // A bar that cannot be drawn is no reason to stop.
            let _ = write!(std::io::stderr(), "\rreading [{filled:25}] {percent:3} %");
        }
    }

    fn clear(&self) {
        if self.shown > 0 {
            let _ = write!(std::io::stderr(), "\r{:42}\r", "");
        }
    }
}
