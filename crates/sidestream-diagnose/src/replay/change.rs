//! Changes of a program that people make, by their names.

use std::fmt;
use std::mem::discriminant;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// One change. A set of them is made in this order, whoever states it: what comes later builds on what
/// comes before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Host memory of copies is pinned: they go at the speed of the link, and uploads do not hold up the host.
    Pinned,
    /// Copies have streams of their own, so many steps ahead of the kernels.
    Prefetch(usize),
    /// The host does not wait for the device inside a step.
    NoSync,
    /// What a step downloads is read a step later.
    AsyncOutput,
    /// What is launched inside ranges of this name in a step takes a few launches, as a fused optimizer does.
    Fused(String),
    /// Kernels of a step are submitted as one graph, as far as no wait lies between them.
    Graphs,
    /// So many workers load data.
    Workers(usize),
    /// So many times as many workers load data as there are.
    MoreWorkers(usize),
    /// So many workers do what the host does by itself for half a millisecond or more.
    HostWork(usize),
    /// Half of the kernels of a step run in a second stream, as if they did not depend on the others.
    SecondStream,
    /// What is called inside of these ranges are stages, each a step ahead of the next.
    Pipeline(Vec<String>),
    /// Streams do not wait for the legacy default stream, nor that for them.
    NonBlockingStreams,
    /// The first stream does not wait for events of the second, by the numbers of the trace; an upload waits for those
    /// of the step before.
    DropWait(i64, i64),
}

impl Change {
    /// Every change in their order: how it is written, and what it does.
    #[rustfmt::skip]
    pub const ALL: [(&str, &str); 13] = [
        ("pinned", "copies from and to pageable memory as if it were pinned"),
        ("prefetch=N", "pinned copies in streams of their own, up to N - 1 steps ahead; the loader stays as slow as it is"),
        ("no-sync", "the host waits for the device in no step"),
        ("async-output", "downloads are read a step later"),
        ("fused=RANGE", "what is launched in this range takes a few launches"),
        ("graphs", "the kernels of a step as one graph"),
        ("workers=N", "N workers load the data"),
        ("more-workers=N", "N times as many workers as there are load the data"),
        ("host-work=N", "N workers do the host's own work"),
        ("second-stream", "half of the kernels of a step beside the others"),
        ("pipeline=RANGE,RANGE", "these ranges as stages"),
        ("non-blocking-streams", "no stream waits for the default stream"),
        ("drop-wait=STREAM:STREAM", "the first stream no longer waits for the second"),
    ];

    /// How they are written, with commas between them.
    pub fn forms() -> String {
        Change::ALL.map(|(form, _)| form).join(", ")
    }
}

/// Why a text is no change, or no set of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownChange(String);

impl fmt::Display for UnknownChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnknownChange {}

/// How many slots, or workers, there may be: more has nobody.
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

fn drop_wait(text: &str, streams: Option<&str>) -> Result<Change, UnknownChange> {
    let both = streams.and_then(|streams| streams.split_once(':'));
    let both = both.and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    let (waits, on) = both.ok_or_else(|| {
        UnknownChange(format!(
            "`{}`: drop-wait takes the numbers of two streams, that which waits and that which is waited for; write \
             them as in drop-wait=20:7",
            text.trim()
        ))
    })?;
    Ok(Change::DropWait(waits, on))
}

fn fused(text: &str, range: Option<&str>) -> Result<Change, UnknownChange> {
    let range = range.filter(|range| !range.is_empty());
    let range = range.ok_or_else(|| {
        UnknownChange(format!(
            "`{}`: fused takes the name of a range; write it as in fused=Optimizer.step#Adam.step",
            text.trim()
        ))
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
        return Err(UnknownChange(format!(
            "`{}`: pipeline takes the names of two ranges or more, in the order of a step; write them as in \
             pipeline=encoder,decoder",
            text.trim()
        )));
    }
    Ok(Change::Pipeline(ranges))
}

/// The number behind the name of a change, if one is stated.
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
    /// Whether it is of use only if work does not depend on other work, which no trace says.
    pub fn is_conditional(&self) -> bool {
        matches!(self, Change::SecondStream | Change::Pipeline(_))
    }

    /// Whether it depends on how fast the link is.
    pub(crate) fn is_of_the_link(&self) -> bool {
        matches!(self, Change::Pinned | Change::AsyncOutput)
    }

    /// Whether it lets copies of both directions run at once.
    pub(crate) fn is_of_copies(&self) -> bool {
        matches!(
            self,
            Change::Prefetch(_) | Change::AsyncOutput | Change::DropWait(..)
        )
    }

    /// Whether it takes work of the host's own away, which takes longer or shorter from one run to the next.
    pub(crate) fn is_of_the_host(&self) -> bool {
        self.is_of_workers() || matches!(self, Change::HostWork(_))
    }

    /// Whether workers load data with it, or more of them.
    pub(crate) fn is_of_workers(&self) -> bool {
        matches!(self, Change::Workers(_) | Change::MoreWorkers(_))
    }

    /// Whether kernels may run at once that did not: then the time in which any ran is no floor.
    pub(crate) fn is_concurrent(&self) -> bool {
        matches!(
            self,
            Change::SecondStream
                | Change::Pipeline(_)
                | Change::NonBlockingStreams
                | Change::DropWait(..)
        )
    }

    /// The names of a set of changes, as [`Change::set`] reads them.
    pub fn names(set: &[Change]) -> String {
        let names: Vec<String> = set.iter().map(Change::to_string).collect();
        names.join(",")
    }

    /// A set of changes, separated by commas, in the order in which they are made. One that is stated
    /// twice counts once.
    ///
    /// # Errors
    /// One of them is no change, or two of them contradict each other.
    pub fn set(text: &str) -> Result<Vec<Change>, UnknownChange> {
        let mut set = Vec::new();
        // The ranges of a pipeline have commas between them too: those up to the next change are its own.
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
                    "`{text}` has a place without a change in it; write changes with one comma between \
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
