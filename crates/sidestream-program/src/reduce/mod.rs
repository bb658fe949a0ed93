//! Reduces a recorded run to the shortest stream program that still has one of its races.
//!
//! The race must remain as reported: the same two calls, kind of conflict and severity, and the same call as the fix.
//! Everything else may be dropped. [`cut`] reads the log and keeps the two calls, each with the one access that
//! conflicts with the other's, and the calls that determine whose memory it is. [`shortest`] drops what the race does
//! not need, with the checker as the judge. [`lift`] expresses the rest in the format. A wait only adds order, so two
//! racing accesses need none; only for an elapsed time of two events may a wait be needed, to show that it is the
//! other event that races.

mod cut;
mod lift;
mod shortest;

use std::fmt;

use sidestream::check::{Fix, Race, RaceKind, Report, Severity, counted, one_line, replay};
use sidestream::log::{Error, Reader};
use sidestream::op::{BufferId, OpId, SiteId, StreamId};
use sidestream::order::Chain;

use crate::check::{Checked, check};
use crate::expect::{Expect, Expected, MustPair};
use crate::judge::unmet;
use crate::limits::Limits;
use crate::program::Program;
use crate::read::parse;
use crate::write::write_commented;
use cut::Cut;
use shortest::shortest;

/// A race of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The operation that was called earlier.
    pub first: OpId,
    /// The operation that was called later.
    pub second: OpId,
    /// The buffer in which the second operation accesses the memory.
    pub buffer: Option<BufferId>,
}

/// The operation of the log from which an op was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// Number in the log.
    pub op: OpId,
    /// Call site.
    pub site: SiteId,
    /// Number of bytes in which the two accesses overlap; none if the op touches no memory.
    pub bytes: Option<u64>,
}

/// The result of reducing a run.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// The program, whose `expect` names the race.
    pub program: Program,
    /// By op of the program: its operation in the log. None for an op without a call in the log, which hands the
    /// bytes to a later buffer.
    pub origins: Vec<Option<Recorded>>,
    /// The race in the log.
    pub pair: Pair,
    /// Number of operations that were checked during the search.
    pub operations: u64,
    /// Whether no op can be dropped. Otherwise the search reached its limit first.
    pub is_shortest: bool,
    /// Call sites of the log by id; empty or missing where a site has no name.
    pub sites: Vec<String>,
    /// The fix of the race, as text.
    fix: String,
}

/// Why a run could not be reduced.
#[derive(Debug)]
pub enum CannotReduce {
    /// The log cannot be read.
    Log(Error),
    /// The log does not have the requested race.
    NotThere,
    /// No program that was tried has the race.
    Unsayable,
}

impl fmt::Display for CannotReduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CannotReduce::Log(error) => error.fmt(f),
            CannotReduce::NotThere => {
                f.write_str("the log has no such race; give one from its report")
            }
            CannotReduce::Unsayable => f.write_str(
                "no stream program shows this race as the log has it, for instance because an old name is used after a new one; the report of the log is still valid",
            ),
        }
    }
}

impl std::error::Error for CannotReduce {}

/// Maximum number of operations that are checked during the search.
const CHECKED: u64 = 20_000_000;
/// Maximum number of pairs of accesses that are tried.
const TRIED: usize = 1_000;

/// Reduces the log of a run to the shortest program that still has one of its races: the requested one, or otherwise
/// the first that the report shows. Returns none if there is no race. Equal logs give equal programs.
///
/// `called` has names for streams that are better than the log's. `memory_bytes` limits the memory of the check.
///
/// # Errors
/// [`CannotReduce`]. A truncated log is not an error: its complete part is used.
pub fn reduce(
    log: &[u8],
    asked: Option<Pair>,
    called: &[(StreamId, String)],
    memory_bytes: u64,
) -> Result<Option<Reduced>, CannotReduce> {
    let whole = Reader::new(log).and_then(|reader| replay(reader, memory_bytes));
    let whole = whole.map_err(CannotReduce::Log)?;
    let Some(race) = chosen(&whole.report, asked)? else {
        return Ok(None);
    };
    let cut = Cut::new(log, race, called).map_err(CannotReduce::Log)?;
    let face = Face::of(race);
    for (first, second) in cut.pairs(race).take(TRIED) {
        let lifted = |context: &[usize]| {
            let ops = cut.with(context, &first, &second);
            let lifted = lift::lift(&ops, &cut)?;
            let pair = places(&lifted.origins, race)?;
            let checked = check(&lifted.program);
            find(&checked.report, pair).filter(|race| Face::of(race) == face)?;
            Some(lifted)
        };
        let every: Vec<usize> = (0..cut.context.len()).collect();
        if lifted(&every).is_none() {
            continue;
        }
        let (context, is_shortest) = shortest(every, CHECKED, |context| lifted(context).is_some());
        let Some(lifted) = lifted(&context) else {
            continue;
        };
        let mut reduced = Reduced {
            program: lifted.program,
            origins: lifted.origins,
            pair: pair_of(race),
            operations: whole.ops,
            is_shortest,
            sites: whole.sites,
            fix: String::new(),
        };
        reduced.state(race)?;
        return Ok(Some(reduced));
    }
    Err(CannotReduce::Unsayable)
}

fn pair_of(race: &Race) -> Pair {
    Pair {
        first: race.first,
        second: race.second,
        buffer: race.buffer,
    }
}

/// Chooses the race to keep: the first in the report, preferring errors over races that CUDA leaves open.
fn chosen(report: &Report, asked: Option<Pair>) -> Result<Option<&Race>, CannotReduce> {
    if let Some(asked) = asked {
        let mut races = report.races.iter();
        let race = races.find(|race| pair_of(race) == asked);
        return race.map(Some).ok_or(CannotReduce::NotThere);
    }
    let fixes = report.mends(|race| race.fix);
    let shown = || fixes.iter().flat_map(|fix| &fix.races);
    let shown = || shown().filter_map(|&at| report.races.get(at));
    let error = shown().find(|race| race.severity() == Severity::Error);
    Ok(error.or_else(|| shown().next()))
}

/// Returns the places of a race's two operations in the program that was made of them.
fn places(origins: &[Option<Recorded>], race: &Race) -> Option<(usize, usize)> {
    let place = |op| {
        let mut origins = origins.iter();
        origins.position(|origin| origin.is_some_and(|origin| origin.op == op))
    };
    Some((place(race.first)?, place(race.second)?))
}

fn find(report: &Report, (first, second): (usize, usize)) -> Option<&Race> {
    let mut races = report.races.iter();
    races.find(|race| (race.first.0 as usize, race.second.0 as usize) == (first, second))
}

/// The properties of a race that must remain, without the numbers.
#[derive(PartialEq)]
struct Face {
    kind: RaceKind,
    severity: Severity,
    in_streams: [bool; 2],
    handed_on: Option<(bool, bool)>,
    remedy: &'static str,
}

impl Face {
    fn of(race: &Race) -> Face {
        let in_stream = |chain: Chain| matches!(chain, Chain::Stream(_));
        let handed_on = race.handed_on;
        let is_told_late = handed_on.is_some_and(|on| on.freed.is_some() && on.not_noted.is_some());
        let remedy = match race.fix {
            _ if is_told_late => "record_stream",
            Fix::RecordStream { .. } => "record_stream",
            Fix::WaitStream { .. } => "wait_stream",
            Fix::SyncStream { .. } => "sync_stream",
            Fix::SyncEvent { .. } => "sync_event",
            Fix::Flag { .. } => "flag",
        };
        Face {
            kind: race.kind,
            severity: race.severity(),
            in_streams: [in_stream(race.chains.0), in_stream(race.chains.1)],
            handed_on: handed_on.map(|on| (on.freed.is_some(), on.not_noted.is_some())),
            remedy,
        }
    }
}

impl Reduced {
    /// Writes the expected race into the program, and checks the text as a reader will read it.
    fn state(&mut self, race: &Race) -> Result<(), CannotReduce> {
        let pair = places(&self.origins, race).ok_or(CannotReduce::Unsayable)?;
        let checked = check(&self.program);
        let found = find(&checked.report, pair).ok_or(CannotReduce::Unsayable)?;
        let must = MustPair {
            kind: found.kind,
            buffer: found.buffer.map(|buffer| checked.names.buffer(buffer)),
            first: pair.0,
            second: pair.1,
        };
        let lints = checked.report.lints.iter().map(|lint| lint.code);
        let lints: std::collections::BTreeSet<_> = lints.collect();
        self.program.expect = Some(Expect {
            verdict: Expected::Race {
                must: vec![must],
                severity: found.severity(),
                distinct: None,
            },
            lints: lints.into_iter().collect(),
        });
        self.fix = fix_text(&checked, found);
        // The program that is read back from the text must be the one that was checked.
        let text = self.text("reduced", |_| String::new());
        let read = parse(&text, &Limits::default()).map_err(|_| CannotReduce::Unsayable)?;
        let Some(Ok(read)) = read.programs.into_iter().next() else {
            return Err(CannotReduce::Unsayable);
        };
        let is_same = read.expect == self.program.expect
            && (self.program.expect.iter()).all(|expect| unmet(expect, &check(&read)).is_empty());
        if is_same {
            Ok(())
        } else {
            Err(CannotReduce::Unsayable)
        }
    }

    /// Returns the program as text, with a comment after each op that has a call in the log: its number, and the
    /// place that `told` returns.
    pub fn text(&self, name: &str, told: impl Fn(&Recorded) -> String) -> String {
        let mut program = self.program.clone();
        program.name = crate::names::as_name(name).unwrap_or_else(|| "reduced".to_owned());
        let remark = |origin: &Option<Recorded>| match origin {
            None => "the later owner of the bytes".to_owned(),
            Some(origin) => {
                let bytes = origin.bytes.map_or(String::new(), |bytes| {
                    format!(", {}", counted(bytes, "byte"))
                });
                let told = told(origin);
                let place = if told.is_empty() {
                    String::new()
                } else {
                    format!(": {told}")
                };
                format!("call {}{bytes}{place}", origin.op.0)
            }
        };
        let remarks: Vec<String> = self.origins.iter().map(remark).collect();
        let operations = self.operations;
        let rest = if self.is_shortest {
            "without any one of its ops the race is gone"
        } else {
            "the search for a shorter one was ended"
        };
        let ops = counted(program.ops.len() as u64, "op");
        program.note = Some(format!(
            "what is left of {operations} recorded calls: {ops} with one of their races; {rest}; sizes are made small"
        ));
        let mut text = write_commented(&program, &remarks);
        text.push_str(&format!("# {}\n", one_line(&self.fix)));
        text
    }
}

/// Returns the fix of a race as the report shows it.
fn fix_text(checked: &Checked, race: &Race) -> String {
    let fix = race.fix.text(&checked.names);
    match checked.to_declare(&race.fix)[..] {
        [] => format!("fix: {fix}"),
        ref streams => format!("fix: {fix}, with streams: {{{}}}", streams.join(", ")),
    }
}
