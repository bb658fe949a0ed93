//! Changes that people make to a program, by their names.

use std::fmt;
use std::mem::discriminant;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// One change. A set of changes is always made in this order, since later ones build on earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Host memory of copies is pinned: they run at the speed of the link, and uploads do not block the host.
    Pinned,
    /// Copies have their own streams, this many steps ahead of the kernels.
    Prefetch(usize),
    /// The host does not wait for the device inside a step.
    NoSync,
    /// The downloads of a step are read a step later.
    AsyncOutput,
    /// The work launched inside ranges of this name in a step takes a few launches, as with a fused optimizer.
    Fused(String),
    /// Kernels of a step are submitted as one graph, as far as no wait comes between them.
    Graphs,
    /// This number of workers loads data.
    Workers(usize),
    /// This many times as many workers as before load data.
    MoreWorkers(usize),
    /// This number of workers does the host's own work of half a millisecond or more.
    HostWork(usize),
    /// Half of the kernels of a step run in a second stream, as if they did not depend on the others.
    SecondStream,
    /// The calls inside these ranges are stages, each a step ahead of the next.
    Pipeline(Vec<String>),
    /// No stream waits for the legacy default stream, and the legacy default stream waits for no other.
    NonBlockingStreams,
    /// The first stream does not wait for events of the second, by the trace's stream numbers; an upload waits for those of the
    /// previous step.
    DropWait(i64, i64),
}

impl Change {
    /// Every change in order: its form, and its effect.
    #[rustfmt::skip]
    pub const ALL: [(&str, &str); 13] = [
        ("pinned", "copies from and to pageable memory as if it were pinned"),
        ("prefetch=N", "pinned copies in streams of their own, up to N - 1 steps ahead; the loader stays as slow as it is"),
        ("no-sync", "the host does not wait for the device inside a step"),
        ("async-output", "downloads are read a step later"),
        ("fused=RANGE", "the work launched in this range takes a few launches"),
        ("graphs", "the kernels of a step as one graph"),
        ("workers=N", "N workers load the data"),
        ("more-workers=N", "N times as many workers as there are load the data"),
        ("host-work=N", "N workers do the host's own work"),
        ("second-stream", "half of the kernels of a step beside the others"),
        ("pipeline=RANGE,RANGE", "these ranges as stages"),
        ("non-blocking-streams", "no stream waits for the default stream"),
        ("drop-wait=STREAM:STREAM", "the first stream no longer waits for the second"),
    ];

    /// Returns the forms of all changes, separated by commas.
    pub fn forms() -> String {
        Change::ALL.map(|(form, _)| form).join(", ")
    }
}

/// The reason why a string is not a change, or not a set of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownChange(String);

impl fmt::Display for UnknownChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnknownChange {}

/// The allowed numbers of slots or workers; no program needs more.
const NUMBERS: RangeInclusive<usize> = 1..=1024;

impl FromStr for Change {
    type Err = UnknownChange;

    fn from_str(text: &str) -> Result<Change, UnknownChange> {
        let parts = text.split_once('=');
        let name = parts.map_or(text, |(name, _)| name).trim();
        let number = parts.map(|(_, number)| number.trim());
        let change = match name {
            "drop-wait" => return drop_wait(text, number),
            "pipeline" => return pipeline(text, number),
            "fused" => return fused(text, number),
            "pinned" => Change::Pinned,
            "async-output" => Change::AsyncOutput,
            "host-work" => Change::HostWork(numbered(text, name, number)?.unwrap_or(4)),
            "prefetch" => Change::Prefetch(numbered(text, name, number)?.unwrap_or(2)),
            "no-sync" => Change::NoSync,
            "graphs" => Change::Graphs,
            "workers" => Change::Workers(numbered(text, name, number)?.unwrap_or(4)),
            "more-workers" => Change::MoreWorkers(numbered(text, name, number)?.unwrap_or(2)),
            "second-stream" => Change::SecondStream,
            "non-blocking-streams" => Change::NonBlockingStreams,
            _ => {
                return Err(UnknownChange(format!(
                    "there is no change `{name}`; there are {}",
                    Change::forms()
                )));
            }
        };
        let takes_number = matches!(
            change,
            Change::Prefetch(_) | Change::Workers(_) | Change::MoreWorkers(_) | Change::HostWork(_)
        );
        match number {
            Some(_) if !takes_number => Err(UnknownChange(format!(
                "`{}`: {name} takes no number; write `{name}`",
                text.trim()
            ))),
            _ => Ok(change),
        }
    }
}

fn refused(text: &str, why: &str) -> UnknownChange {
    UnknownChange(format!("`{}`: {why}", text.trim()))
}

fn drop_wait(text: &str, streams: Option<&str>) -> Result<Change, UnknownChange> {
    let both = streams.and_then(|streams| streams.split_once(':'));
    let both = both.and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    let (waits, on) = both.ok_or_else(|| {
        refused(text, "drop-wait takes the numbers of two streams, the one that waits and the one it waits for; write \
             them as in drop-wait=20:7")
    })?;
    Ok(Change::DropWait(waits, on))
}

fn fused(text: &str, range: Option<&str>) -> Result<Change, UnknownChange> {
    let range = range.filter(|range| !range.is_empty());
    let range = range.ok_or_else(|| {
        refused(
            text,
            "fused takes the name of a range; write it as in fused=Optimizer.step#Adam.step",
        )
    })?;
    Ok(Change::Fused(range.to_owned()))
}

fn pipeline(text: &str, ranges: Option<&str>) -> Result<Change, UnknownChange> {
    let ranges = ranges.unwrap_or_default().split(',').map(str::trim);
    let ranges: Vec<String> = ranges
        .filter(|r| !r.is_empty())
        .map(str::to_owned)
        .collect();
    if ranges.len() < 2 {
        return Err(refused(
            text,
            "pipeline takes the names of two ranges or more, in the order of a step; write them as in \
             pipeline=encoder,decoder",
        ));
    }
    Ok(Change::Pipeline(ranges))
}

/// Returns the number after the name of a change, if one is given.
fn numbered(text: &str, name: &str, number: Option<&str>) -> Result<Option<usize>, UnknownChange> {
    let Some(number) = number else {
        return Ok(None);
    };
    match number.parse() {
        Ok(number) if NUMBERS.contains(&number) => Ok(Some(number)),
        _ => Err(UnknownChange(format!(
            "`{}`: the N of {name}=N is a whole number from {} to {}",
            text.trim(),
            NUMBERS.start(),
            NUMBERS.end()
        ))),
    }
}

impl Change {
    /// Returns whether the change helps only if work does not depend on other work, which no trace shows.
    pub fn is_conditional(&self) -> bool {
        matches!(self, Change::SecondStream | Change::Pipeline(_))
    }

    /// Returns whether the gain of the change depends on the speed of the link.
    pub(crate) fn is_of_the_link(&self) -> bool {
        matches!(self, Change::Pinned | Change::AsyncOutput)
    }

    /// Returns whether the change lets copies of both directions run concurrently.
    pub(crate) fn is_of_copies(&self) -> bool {
        matches!(
            self,
            Change::Prefetch(_) | Change::AsyncOutput | Change::DropWait(..)
        )
    }

    /// Returns whether the change removes the host's own work, whose time varies from run to run.
    pub(crate) fn is_of_the_host(&self) -> bool {
        self.is_of_workers() || matches!(self, Change::HostWork(_))
    }

    /// Returns whether the change makes workers load data, or adds workers.
    pub(crate) fn is_of_workers(&self) -> bool {
        matches!(self, Change::Workers(_) | Change::MoreWorkers(_))
    }

    /// Returns whether the change may make kernels concurrent: then the time in which any kernel ran is not a lower bound.
    pub(crate) fn is_concurrent(&self) -> bool {
        matches!(
            self,
            Change::SecondStream
                | Change::Pipeline(_)
                | Change::NonBlockingStreams
                | Change::DropWait(..)
        )
    }

    /// Returns the names of a set of changes, as [`Change::set`] reads them.
    pub fn names(set: &[Change]) -> String {
        let names: Vec<String> = set.iter().map(Change::to_string).collect();
        names.join(",")
    }

    /// Parses a set of changes, separated by commas; returns them in the order in which they are made. A repeated change counts
    /// once.
    ///
    /// # Errors
    /// One of them is not a change, or two of them contradict each other.
    pub fn set(text: &str) -> Result<Vec<Change>, UnknownChange> {
        let mut set = Vec::new();
        // The ranges of a pipeline are separated by commas too: those up to the next change belong to it.
        let mut stages: Option<String> = None;
        for part in text.split(',').map(str::trim) {
            if let Some(so_far) = &mut stages {
                if !part.is_empty() && part.parse::<Change>().is_err() {
                    so_far.push(',');
                    so_far.push_str(part);
                    continue;
                }
                set.push(stages.take().unwrap_or_default().parse()?);
            }
            if part.starts_with("pipeline") {
                stages = Some(part.to_owned());
                continue;
            }
            if part.is_empty() {
                return Err(UnknownChange(format!(
                    "`{text}` has an empty entry; write changes with one comma between \
                     them, such as pinned,prefetch=2"
                )));
            }
            set.push(part.parse()?);
        }
        if let Some(stages) = stages {
            set.push(stages.parse()?);
        }
        set.sort_unstable();
        set.dedup();
        for pair in set.windows(2) {
            let several = matches!(pair[0], Change::DropWait(..) | Change::Fused(_));
            if discriminant(&pair[0]) == discriminant(&pair[1]) && !several {
                return Err(UnknownChange(format!(
                    "`{}` and `{}` contradict each other; state one of them",
                    pair[0], pair[1]
                )));
            }
        }
        Ok(set)
    }
}

impl Serialize for Change {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Pinned => write!(f, "pinned"),
            Change::Prefetch(slots) => write!(f, "prefetch={slots}"),
            Change::NoSync => write!(f, "no-sync"),
            Change::AsyncOutput => write!(f, "async-output"),
            Change::HostWork(workers) => write!(f, "host-work={workers}"),
            Change::Fused(range) => write!(f, "fused={range}"),
            Change::Pipeline(ranges) => write!(f, "pipeline={}", ranges.join(",")),
            Change::DropWait(waits, on) => write!(f, "drop-wait={waits}:{on}"),
            Change::Graphs => write!(f, "graphs"),
            Change::Workers(workers) => write!(f, "workers={workers}"),
            Change::MoreWorkers(times) => write!(f, "more-workers={times}"),
            Change::SecondStream => write!(f, "second-stream"),
            Change::NonBlockingStreams => write!(f, "non-blocking-streams"),
        }
    }
}
