//! The findings for Python: JSON with places by number, which Python turns into lines.

use std::collections::{HashMap, HashSet};

use indexmap::IndexSet;
use pyo3::prelude::*;
use serde_json::{Value, json};
use sidestream::check::{Doubt, Fix, LintCode, Mend, Race, Report, Severity};
use sidestream::op::{BufferId, OpId, SiteId, StreamId, ThreadId};
use sidestream::order::Chain;

use super::Recorder;
use super::host::END_OF_SOURCE;
use super::names::Names;
use super::spine::{Core, Site};
use super::threads::{Deed, Unheard};
use super::touch::{Real, Touch};

/// What identifies a race of the checker: its two operations, and the buffer.
pub type Key = (OpId, OpId, Option<BufferId>);

/// What is known of races when they are found, and cannot be determined later.
pub type Details = HashMap<Key, Detail>;

#[derive(Default)]
pub struct Detail {
    /// Whether the touched bytes overlap.
    real: Real,
    /// The program's names for the two streams at the second operation.
    names: [Option<String>; 2],
    tensor: Option<(String, Vec<u64>)>,
    bytes: Option<(u64, u64)>,
}

/// The races as listed, and for each race of the checker's report its index in the list.
type Listed = (Vec<Value>, Vec<Option<usize>>);

impl Recorder {
    /// Records the details of the last operation's races. Returns the first race that is certain.
    pub(super) fn describe(
        &self,
        py: Python<'_>,
        touches: &[Touch],
        tensors: &[Bound<'_, PyAny>],
    ) -> Option<Key> {
        let mut fresh = Vec::new();
        {
            let (core, details) = (self.core.lock(), self.details.lock());
            for race in core.findings.report().races.iter().rev() {
                if race.second != core.last() && race.second.0 + 3 < core.last().0 {
                    break;
                }
                if details.contains_key(&key(race)) {
                    continue;
                }
                let detail = Detail {
                    real: core.notes.is_real(race.first, race.second, race.buffer),
                    bytes: race.buffer.and_then(|buffer| core.last_touched(buffer)),
                    ..Detail::default()
                };
                let handle = |chain| Some(core.streams.get(stream_of(chain)?)?.raw);
                let streams = [race.chains.0, race.chains.1].map(handle);
                fresh.push((key(race), race.severity(), streams, detail));
            }
        }
        let mut first = None;
        for (key, severity, streams, mut detail) in fresh {
            detail.tensor = detail.bytes.and_then(|(from, to)| {
                let mut pairs = touches.iter().zip(tensors);
                let (_, tensor) = pairs.find(|(touch, _)| touch.ptr < to && from < touch.end)?;
                shown(tensor)
            });
            if detail.real != Real::No {
                detail.names = self.torch.called(py, streams);
            }
            let mut core = self.core.lock();
            for (stream, name) in streams.into_iter().zip(&detail.names) {
                if let Some(stream) = stream {
                    core.learn_name(stream, name.clone());
                }
            }
            drop(core);
            if detail.real == Real::Yes && severity == Severity::Error {
                first = first.or(Some(key));
            }
            self.details.lock().insert(key, detail);
        }
        first
    }

    /// The race that is raised, as JSON.
    pub(super) fn raised(&self, race: Key) -> String {
        let (core, names) = (self.core.lock(), self.names.lock());
        let report = core.findings.report();
        let (races, places) = Shown(&core, &names).races(&report, &self.details.lock());
        let at = report.races.iter().position(|known| key(known) == race);
        let listed = at.and_then(|at| races.get(places[at]?));
        listed.unwrap_or_default().to_string()
    }
}

#[pymethods]
impl Recorder {
    /// The findings so far, as JSON.
    fn report(&self) -> String {
        let (core, names) = (self.core.lock(), self.names.lock());
        let shown = Shown(&core, &names);
        let report = core.findings.report();
        let (races, places) = shown.races(&report, &self.details.lock());
        let refused = report.error.map(|refused| refused.to_string());
        json!({
            "races": races,
            "mends": shown.mends(&report, &places),
            "lints": shown.lints(&report, self.stacks.is_some()),
            "noticed": core.shown_noticed(&names),
            "operations": core.operations,
            "ended": core.findings.ended().or(refused),
            "host": core.host.watch.shown(),
            "streams": core.streams.shown(),
        })
        .to_string()
    }
}

/// A call that fixes a race, as a user can copy it into the program:
///
/// - its kind: `wait` and `sync` if the program's names for the race's two streams are usable in it, `record_stream` or
///   `other`;
/// - the call, empty where no call of PyTorch fixes the race;
/// - the access that it belongs next to;
/// - the fix as a clause, in which `{first}` and `{second}` are placeholders for the places of the operations.
type Remedy = (&'static str, String, SiteId, String);

/// What findings are shown with: the state of the check, and the names.
struct Shown<'a>(&'a Core, &'a Names);

impl Shown<'_> {
    /// The races, with those at equal places merged.
    fn races(&self, report: &Report, details: &Details) -> Listed {
        let Shown(core, _) = self;
        let mut listed: Vec<Value> = Vec::new();
        let mut known: HashMap<(&'static str, Site, Site), usize> = HashMap::new();
        let mut places = vec![None; report.races.len()];
        for (at, race) in report.races.iter().enumerate() {
            // If a race has no details from when it was found, its bytes are not certain to overlap.
            let Some(detail) = details.get(&key(race)).filter(|of| of.real != Real::No) else {
                continue;
            };
            let [first, second] = [race.sites.0, race.sites.1].map(|site| core.site_of(site));
            // An uncertain race is listed once for two places, in either order and of any kind.
            let place = if detail.real == Real::Yes {
                (race.kind.code(), first, second)
            } else if (first.stack, first.name) <= (second.stack, second.name) {
                ("", first, second)
            } else {
                ("", second, first)
            };
            let equal = *known.entry(place).or_insert(listed.len());
            places[at] = Some(equal);
            if let Some(known) = listed.get_mut(equal) {
                let count = known["count"].as_u64().unwrap_or(0);
                known["count"] = count.saturating_add(race.count).into();
            } else {
                listed.push(self.race(race, detail));
            }
        }
        let threads = core.threads.iter();
        for pair in threads.flat_map(|threads| threads.found.values()) {
            let [first, second] = [&pair.first, &pair.second].map(|deed| core.site_of(deed.site));
            // A race that exists for any timing of the threads is listed only as a race of the checker.
            if !RACES
                .iter()
                .any(|kind| known.contains_key(&(*kind, first, second)))
            {
                listed.push(self.unheard(pair));
            }
        }
        (listed, places)
    }

    fn race(&self, race: &Race, detail: &Detail) -> Value {
        let Shown(core, _) = self;
        let buffer = race.buffer;
        let workspace = buffer.and_then(|buffer| core.graphs.workspace_of(buffer));
        let (_, _, _, fix) = self.remedy(noted(race).unwrap_or(race.fix), race);
        let doubt = self.doubt(race, detail.real);
        json!({
            "kind": race.kind.code(),
            "text": match workspace {
                Some(_) => "both use it, and nothing orders them",
                None => race.meaning(),
            },
            "workspace": workspace.map(|stream| core.streams.name(stream)),
            "severity": match doubt {
                Some(_) => Severity::Warn.name(),
                None => race.severity().name(),
            },
            "doubt": doubt.as_deref().or(race.doubt.map(Doubt::text)),
            "dtype": detail.tensor.as_ref().map(|tensor| &tensor.0),
            "shape": detail.tensor.as_ref().map(|tensor| &tensor.1),
            "bytes": detail.bytes,
            "first": self.side(race.sites.0, stream_of(race.chains.0)),
            "second": self.side(race.sites.1, stream_of(race.chains.1)),
            "freed_between": race.handed_on.is_some_and(|on| on.freed.is_some()),
            "fix": match workspace {
                Some(_) => format!(
                    "capture each graph on a separate stream (`torch.cuda.graph(graph, stream=torch.cuda.Stream())`), or {fix}"
                ),
                None => fix,
            },
            "names": detail.names,
            "count": race.count,
            "_ids": [Some(race.first.0), Some(race.second.0), buffer.map(|buffer| buffer.0)],
        })
    }

    /// Two calls by two threads without an observed order.
    fn unheard(&self, pair: &Unheard) -> Value {
        let side = |deed: &Deed| self.side(deed.site, deed.stream);
        json!({
            "kind": pair.kind(),
            "text": "two threads make these calls, and which comes first is left to their timing",
            "doubt": "no order between the two threads was observed",
            "workspace": null,
            "severity": Severity::Warn.name(),
            "dtype": null,
            "shape": null,
            "bytes": pair.bytes,
            "first": side(&pair.first),
            "second": side(&pair.second),
            "freed_between": false,
            "fix": "hand over between the threads: the first puts something into a queue, sets an event or ends after {first}, and the second takes it, waits or joins before {second}",
            "count": pair.count,
        })
    }

    fn side(&self, site: SiteId, stream: Option<StreamId>) -> Value {
        let mut side = self.1.shown(self.0.site_of(site));
        let name = stream.map_or_else(|| "host".to_owned(), |id| self.0.streams.name(id));
        side["stream"] = name.into();
        side
    }

    /// The reason why it is not certain that a race's bytes overlap.
    fn doubt(&self, race: &Race, real: Real) -> Option<String> {
        match real {
            Real::Yes | Real::No => None,
            Real::May(None) => {
                Some("one of the two receives all of it, and may touch only a part".to_owned())
            }
            Real::May(Some((argument, op))) => {
                let is_first = op == race.first;
                let kernel = if is_first { race.sites.0 } else { race.sites.1 };
                let kernel = self.1.of(self.0.site_of(kernel).name);
                let argument = self.1.of(argument);
                Some(format!(
                    "the kernel `{kernel}` receives all of it as its argument `{argument}`, and may touch only a part"
                ))
            }
        }
    }

    /// The calls that fix the races.
    fn mends(&self, report: &Report, places: &[Option<usize>]) -> Vec<Value> {
        // A wait that other races need anyway also orders the later use of the memory.
        let is_noted = |at: &usize| places[*at].is_none() || noted(&report.races[*at]).is_some();
        let plain = report.mends(|race| race.fix);
        let shared = plain.iter().filter(|mend| !mend.races.iter().all(is_noted));
        let ordered = shared.flat_map(|mend| mend.races.iter().map(|&at| places[at]));
        let ordered: HashSet<Option<usize>> = ordered.collect();
        let at_places = report.races.iter().zip(places);
        let ordered = at_places.filter(|(_, place)| ordered.contains(place));
        let ordered: HashSet<Key> = ordered.map(|(race, _)| key(race)).collect();
        let fix_of = |race: &Race| match noted(race) {
            Some(fix) if !ordered.contains(&key(race)) => fix,
            _ => race.fix,
        };
        let mends = report.mends(fix_of);
        let mends = mends.iter();
        mends
            .filter_map(|mend| self.mend(mend, report, places))
            .collect()
    }

    /// A suggested call, its place, and the races that it fixes by their indices in the list.
    fn mend(&self, mend: &Mend, report: &Report, places: &[Option<usize>]) -> Option<Value> {
        let races: IndexSet<usize> = mend.races.iter().filter_map(|&at| places[at]).collect();
        // The place is that of the first real race.
        let first = *mend
            .races
            .iter()
            .filter(|&&at| places[at].is_some())
            .min()?;
        let (kind, call, at, _) = self.remedy(mend.fix, &report.races[first]);
        (!call.is_empty()).then(|| {
            json!({
                "kind": kind,
                "call": call,
                "stack": self.0.site_of(at).stack,
                "first": places[first],
                "races": races.into_iter().collect::<Vec<_>>(),
            })
        })
    }

    /// The checker's remarks; with stacks, those at a line of the program.
    fn lints(&self, report: &Report, has_places: bool) -> Vec<Value> {
        let lints = report.lints.iter().filter_map(|lint| {
            // PyTorch sets the device around each call, so the device from which a stream is used has no meaning. Why
            // the host waits is analyzed in `idle`.
            let is_moot = matches!(
                lint.code,
                LintCode::ForeignDeviceLaunch | LintCode::SyncInLoop
            );
            let stack = self.0.noticed.remarked.1.get(&lint.op)?.stack;
            let (code, text) = (lint.code.code(), lint.code.meaning());
            let is_shown = !is_moot && (stack != 0 || !has_places);
            is_shown.then(|| json!({"code": code, "text": text, "stack": stack}))
        });
        lints.collect()
    }

    fn remedy(&self, fix: Fix, race: &Race) -> Remedy {
        let Shown(core, names) = self;
        let streams = &core.streams;
        let name = |stream| streams.in_code(stream);
        let [first, second] = [race.sites.0, race.sites.1];
        // The streams' variable names are usable only if the race is between exactly these two.
        let kind = |kind, usable| if usable { kind } else { "other" };
        let other = |call: &str, at, text: &str| ("other", call.to_owned(), at, text.to_owned());
        match fix {
            // If one line has both the copy and the end of its source, a wait before that line comes before the copy, too.
            Fix::SyncStream { .. } if names.of(core.site_of(second).name) == END_OF_SOURCE => {
                other(
                    "x = x.pin_memory()",
                    first,
                    "pin the source (`pin_memory()`, `pin_memory=True` of a loader), or keep it until the host has waited for {first}",
                )
            }
            Fix::WaitStream { source, .. } | Fix::SyncStream { stream: source, .. }
                if streams.is_collectives(source) =>
            {
                let text = "call `wait()` on the work that {first} returned before {second}";
                other("work.wait()", second, text)
            }
            Fix::WaitStream { stream, source, .. } => {
                let call = format!("{}.wait_stream({})", name(stream), name(source));
                let text = format!("call `{call}` before {{second}}");
                let usable = race.chains == (Chain::Stream(source), Chain::Stream(stream));
                (kind("wait", usable), call, second, text)
            }
            Fix::SyncStream { stream, .. } => {
                let (call, stream_name) = (
                    format!("{}.synchronize()", name(stream)),
                    streams.name(stream),
                );
                let text = format!(
                    "record an event on {stream_name} after {{first}} and call `event.synchronize()` before {{second}} (or `{call}`)"
                );
                let usable = race.chains.0 == Chain::Stream(stream);
                (kind("sync", usable), call, second, text)
            }
            Fix::SyncEvent { .. } => {
                let text = "call `event.synchronize()` before {second}";
                other("event.synchronize()", second, text)
            }
            Fix::RecordStream { stream, .. } => {
                let call = format!("x.record_stream({})", name(stream));
                let mut text =
                    format!("call `{call}` on the earlier tensor before its last reference dies");
                if noted(race).is_some() {
                    let stream = streams.name(stream);
                    text +=
                        &format!(", so that its memory is not reused while {stream} still uses it");
                }
                ("record_stream", call, first, text)
            }
            Fix::Flag { .. } => {
                let text = "let the second thread wait for the first before {second}";
                other("", second, text)
            }
        }
    }
}

/// The kinds of races between two accesses.
const RACES: [&str; 8] = [
    "UAF", "UBA", "HOST_RAW", "HOST_WAR", "HOST_WAW", "RAW", "WAR", "WAW",
];

fn key(race: &Race) -> Key {
    (race.first, race.second, race.buffer)
}

fn shown(tensor: &Bound<'_, PyAny>) -> Option<(String, Vec<u64>)> {
    let dtype = tensor.getattr("dtype").ok()?.str().ok()?.to_string();
    let shape = tensor.getattr("shape").ok()?.extract().ok()?;
    Some((dtype.trim_start_matches("torch.").to_owned(), shape))
}

/// The stream of a chain; `None` for the host.
fn stream_of(chain: Chain) -> Option<StreamId> {
    match chain {
        Chain::Thread(_) => None,
        Chain::Stream(stream) => Some(stream),
    }
}

/// The fix if PyTorch's allocator reused the memory because it did not know that a stream uses it.
fn noted(race: &Race) -> Option<Fix> {
    let on = race.handed_on?;
    Some(Fix::RecordStream {
        buffer: on.from,
        stream: on.not_noted?,
        before: on.freed.unwrap_or(race.second),
        thread: ThreadId(0),
    })
}
