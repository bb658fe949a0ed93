//! The findings for Python: JSON with places by number, which Python turns into lines.

use std::collections::{HashMap, HashSet};

use pyo3::prelude::*;
use serde_json::{Value, json};
use sidestream::check::{Doubt, Fix, LintCode, Mend, Race, Report, Severity};
use sidestream::op::{BufferId, OpId, SiteId, StreamId, ThreadId};
use sidestream::order::Chain;

use super::host::END_OF_SOURCE;
use super::spine::{Core, Site};
use super::streams::{COLLECTIVES, RawStream, Stream};
use super::threads::{Deed, Unheard};
use super::touch::{Real, Touch};
use super::{Names, Recorder};

/// What is known of races when they are found, and cannot be determined later.
#[derive(Default)]
pub struct Details {
    by_race: HashMap<(OpId, OpId, Option<BufferId>), Detail>,
}

#[derive(Clone, Default)]
struct Detail {
    /// Whether the touched bytes overlap.
    real: bool,
    /// The reason why the race is not certain, if it is not.
    doubt: Option<String>,
    /// The program's names for the two streams at the second operation.
    names: Option<(Option<String>, Option<String>)>,
    tensor: Option<(String, Vec<u64>)>,
    bytes: Option<(u64, u64)>,
}

impl Recorder {
    /// Records the details of the last operation's races. Returns the first race that is certain, by the numbers in
    /// the report.
    pub(super) fn describe(
        &self,
        py: Python<'_>,
        touches: &[Touch],
        tensors: &[Bound<'_, PyAny>],
    ) -> Option<(OpId, OpId, Option<BufferId>)> {
        let mut fresh = Vec::new();
        {
            let core = self.core.lock();
            let (names, details) = (self.names.lock(), self.details.lock());
            for race in core.findings.report().races.iter().rev() {
                if race.second != core.last() && race.second.0 + 3 < core.last().0 {
                    break;
                }
                if details.by_race.contains_key(&key(race)) {
                    continue;
                }
                let real = core.notes.is_real(race.first, race.second, race.buffer);
                let doubt = match real {
                    Real::Yes | Real::No => None,
                    Real::May(None) => Some(
                        "one of the two receives all of it, and may touch only a part".to_owned(),
                    ),
                    Real::May(Some((argument, op))) => {
                        let is_first = op == race.first;
                        let kernel = if is_first { race.sites.0 } else { race.sites.1 };
                        let name = |at: u32| {
                            names
                                .operators
                                .get_index(at as usize)
                                .map_or("", |name| name)
                        };
                        Some(format!(
                            "the kernel `{}` receives all of it as its argument `{}`, and may touch only a part",
                            name(core.site_of(kernel).name),
                            name(argument)
                        ))
                    }
                };
                let detail = Detail {
                    real: real != Real::No,
                    doubt,
                    bytes: race.buffer.and_then(|buffer| core.last_touched(buffer)),
                    ..Detail::default()
                };
                let streams = [race.chains.0, race.chains.1].map(|chain| handle(chain, &core));
                fresh.push((key(race), race.severity(), streams, detail));
            }
        }
        let mut first = None;
        for (key, severity, streams, mut detail) in fresh {
            detail.tensor = detail.bytes.and_then(|bytes| {
                let mut pairs = touches.iter().zip(tensors);
                let (_, tensor) = pairs.find(|(t, _)| t.ptr < bytes.1 && bytes.0 < t.end)?;
                shown(tensor)
            });
            if detail.real {
                detail.names = self.torch.called(py, streams);
            }
            self.learn_names(streams, detail.names.clone());
            if detail.real && detail.doubt.is_none() && severity == Severity::Error {
                first = first.or(Some(key));
            }
            self.details.lock().by_race.insert(key, detail);
        }
        first
    }

    fn learn_names(
        &self,
        streams: [Option<RawStream>; 2],
        names: Option<(Option<String>, Option<String>)>,
    ) {
        let mut core = self.core.lock();
        let (first, second) = names.unwrap_or_default();
        for (stream, name) in streams.into_iter().zip([first, second]) {
            if let Some(stream) = stream {
                core.learn_name(stream, name);
            }
        }
    }

    /// The race that is raised, as JSON.
    pub(super) fn raised(&self, (first, second, buffer): (OpId, OpId, Option<BufferId>)) -> String {
        let core = self.core.lock();
        let races = self.races(&core);
        let ids = json!([first.0, second.0, buffer.map(|buffer| buffer.0)]);
        let found = races.0.into_iter().find(|race| race["_ids"] == ids);
        found.unwrap_or_default().to_string()
    }

    /// The races as listed, with those at equal places merged; and for each race of the report, its index in the
    /// list.
    fn races(&self, core: &Core) -> (Vec<Value>, Vec<Option<usize>>) {
        let names = self.names.lock();
        let details = self.details.lock();
        let report = core.findings.report();
        let mut listed: Vec<Value> = Vec::new();
        let mut known: HashMap<(&'static str, Site, Site), usize> = HashMap::new();
        let mut places = vec![None; report.races.len()];
        for (at, race) in report.races.iter().enumerate() {
            let detail = details.by_race.get(&key(race)).cloned();
            // If a race has no details from when it was found, its bytes are not certain to overlap.
            let detail = detail.unwrap_or_default();
            if !detail.real {
                continue;
            }
            let [first, second] = [race.sites.0, race.sites.1].map(|site| core.site_of(site));
            // An uncertain race is listed once for two places, in either order and of any kind.
            let place = match detail.doubt {
                None => (race.kind.code(), first, second),
                Some(_) if (first.stack, first.name) <= (second.stack, second.name) => {
                    ("", first, second)
                }
                Some(_) => ("", second, first),
            };
            if let Some(&equal) = known.get(&place) {
                let count = listed[equal]["count"].as_u64().unwrap_or(0);
                listed[equal]["count"] = count.saturating_add(race.count).into();
                places[at] = Some(equal);
                continue;
            }
            known.insert(place, listed.len());
            places[at] = Some(listed.len());
            listed.push(shown_race(race, &detail, (first, second), core, &names));
        }
        let unheard = core
            .threads
            .iter()
            .flat_map(|threads| threads.found.values());
        for pair in unheard {
            let sites = [pair.first.site, pair.second.site].map(|site| core.site_of(site));
            // A race that exists for any timing of the threads is listed only as a race of the checker.
            let is_listed = |kind: &str| {
                RACES.contains(&kind) && known.contains_key(&(kind, sites[0], sites[1]))
            };
            if !RACES.iter().any(|kind| is_listed(kind)) {
                listed.push(shown_unheard(pair, sites, core, &names));
            }
        }
        (listed, places)
    }
}

#[pymethods]
impl Recorder {
    /// The findings so far, as JSON.
    fn report(&self) -> String {
        let core = self.core.lock();
        let (races, places) = self.races(&core);
        let names = self.names.lock();
        let report = core.findings.report();
        // A wait that other races need anyway also orders the later use of the memory.
        let is_noted = |at: &usize| places[*at].is_none() || noted(&report.races[*at]).is_some();
        let plain = report.mends(|race| race.fix);
        let shared = plain.iter().filter(|mend| !mend.races.iter().all(is_noted));
        let ordered: HashSet<Option<usize>> = shared
            .flat_map(|mend| mend.races.iter().map(|&at| places[at]))
            .collect();
        let ordered: HashSet<_> = report
            .races
            .iter()
            .zip(&places)
            .filter(|(_, place)| ordered.contains(place))
            .map(|(race, _)| key(race))
            .collect();
        let fix_of = |race: &Race| {
            if ordered.contains(&key(race)) {
                race.fix
            } else {
                noted(race).unwrap_or(race.fix)
            }
        };
        let mends: Vec<Value> = report
            .mends(fix_of)
            .iter()
            .filter_map(|mend| shown_mend(mend, &report, &places, &core, &names))
            .collect();
        let lints = report.lints.iter();
        // PyTorch sets the device around each call, so the device from which a stream is used has no meaning. Why the
        // host waits is analyzed in `idle`.
        let lints = lints.filter(|lint| {
            !matches!(
                lint.code,
                LintCode::ForeignDeviceLaunch | LintCode::SyncInLoop
            )
        });
        let has_places = self.stacks.lock().is_some();
        let lints: Vec<Value> = lints
            .filter_map(|lint| {
                let site = *core.noticed.remarked.1.get(&lint.op)?;
                (site.stack != 0 || !has_places).then(|| {
                    json!({
                        "code": lint.code.code(),
                        "text": lint.code.meaning(),
                        "stack": site.stack,
                    })
                })
            })
            .collect();
        let refused = report.error.map(|refused| refused.to_string());
        json!({
            "races": races,
            "mends": mends,
            "lints": lints,
            "noticed": core.shown_noticed(&names),
            "operations": core.operations,
            "ended": core.findings.ended().or(refused),
            "host": core.host.watch.shown(),
            "streams": core.streams.all.iter().enumerate().filter(|(_, stream)| stream.raw.raw & COLLECTIVES == 0).map(|(at, stream)| json!({
                "name": stream_name(StreamId(at as u32), &core), "device": stream.raw.device, "handle": stream.raw.raw,
            })).collect::<Vec<_>>(),
        })
        .to_string()
    }
}

fn key(race: &Race) -> (OpId, OpId, Option<BufferId>) {
    (race.first, race.second, race.buffer)
}

fn shown(tensor: &Bound<'_, PyAny>) -> Option<(String, Vec<u64>)> {
    let dtype = tensor.getattr("dtype").ok()?.str().ok()?.to_string();
    let shape = tensor.getattr("shape").ok()?.extract().ok()?;
    Some((dtype.trim_start_matches("torch.").to_owned(), shape))
}

fn shown_side(site: Site, stream: Option<StreamId>, core: &Core, names: &Names) -> Value {
    let mut side = shown_site(site, names);
    let name = stream.map_or_else(|| "host".to_owned(), |stream| stream_name(stream, core));
    side["stream"] = name.into();
    side
}

pub(super) fn shown_site(site: Site, names: &Names) -> Value {
    let operator = names.operators.get_index(site.name as usize);
    let thread = names.threads.get(site.thread as usize);
    let [operator, thread] = [operator, thread].map(|name| name.map_or("", |name| name));
    json!({"operator": operator, "thread": thread, "stack": site.stack})
}

fn shown_race(
    race: &Race,
    detail: &Detail,
    sites: (Site, Site),
    core: &Core,
    names: &Names,
) -> Value {
    let side = |site, chain| shown_side(site, stream_of(chain), core, names);
    let workspace = race
        .buffer
        .and_then(|buffer| core.graphs.workspace_of(buffer));
    let fix = remedy(noted(race).unwrap_or(race.fix), race, core, names).text;
    json!({
        "kind": race.kind.code(),
        "text": match workspace {
            Some(_) => "both use it, and nothing orders them",
            None => race.meaning(),
        },
        "workspace": workspace.map(|stream| stream_name(stream, core)),
        "severity": match detail.doubt {
            Some(_) => Severity::Warn.name(),
            None => race.severity().name(),
        },
        "doubt": detail.doubt.as_deref().or(race.doubt.map(Doubt::text)),
        "dtype": detail.tensor.as_ref().map(|tensor| &tensor.0),
        "shape": detail.tensor.as_ref().map(|tensor| &tensor.1),
        "bytes": detail.bytes.map(|(start, end)| [start, end]),
        "first": side(sites.0, race.chains.0),
        "second": side(sites.1, race.chains.1),
        "freed_between": race.handed_on.is_some_and(|on| on.freed.is_some()),
        "fix": match workspace {
            Some(_) => format!(
                "capture each graph on a separate stream (`torch.cuda.graph(graph, stream=torch.cuda.Stream())`), or {fix}"
            ),
            None => fix,
        },
        "names": detail.names.clone().unwrap_or_default(),
        "count": race.count,
        "_ids": [Some(race.first.0), Some(race.second.0), race.buffer.map(|buffer| buffer.0)],
    })
}

/// The kinds of races between two accesses.
const RACES: [&str; 8] = [
    "UAF", "UBA", "HOST_RAW", "HOST_WAR", "HOST_WAW", "RAW", "WAR", "WAW",
];

/// Two calls by two threads without an observed order.
fn shown_unheard(pair: &Unheard, sites: [Site; 2], core: &Core, names: &Names) -> Value {
    let side = |site, deed: &Deed| shown_side(site, deed.stream, core, names);
    json!({
        "kind": pair.kind(),
        "text": "two threads make these calls, and which comes first is left to their timing",
        "doubt": "no order between the two threads was observed",
        "workspace": null,
        "severity": "warn",
        "dtype": null,
        "shape": null,
        "bytes": pair.bytes.map(|(start, end)| [start, end]),
        "first": side(sites[0], &pair.first),
        "second": side(sites[1], &pair.second),
        "freed_between": false,
        "fix": "hand over between the threads: the first puts something into a queue, sets an event or ends after {first}, and the second takes it, waits or joins before {second}",
        "count": pair.count,
    })
}

/// The stream of a chain; `None` for the host.
fn stream_of(chain: Chain) -> Option<StreamId> {
    match chain {
        Chain::Thread(_) => None,
        Chain::Stream(stream) => Some(stream),
    }
}

/// The stream's name in the report: the program's name for it, unless another stream has this name, too.
pub(super) fn stream_name(stream: StreamId, core: &Core) -> String {
    let Some(known) = core.streams.get(stream) else {
        return format!("stream{}", stream.0);
    };
    if let Some(name) = &known.called {
        let is_other =
            |other: &Stream| other.raw != known.raw && other.called.as_ref() == Some(name);
        let has_name = |other: &Stream| is_other(other) || other.name == *name;
        if !core.streams.all.iter().any(has_name) {
            return name.clone();
        }
    }
    known.name.clone()
}

/// The stream's name in a call that a user can copy into the program.
fn stream_in_code(stream: StreamId, core: &Core) -> String {
    let name = stream_name(stream, core);
    match core.streams.get(stream) {
        Some(known) if matches!(known.raw.raw, 0 | 1) && known.name == name => {
            match known.raw.device {
                0 => "torch.cuda.default_stream()".to_owned(),
                device => format!("torch.cuda.default_stream({device})"),
            }
        }
        _ => name,
    }
}

/// Whether a stream is that of a group's collectives.
fn is_collectives(stream: StreamId, core: &Core) -> bool {
    let known = core.streams.get(stream);
    known.is_some_and(|known| known.raw.raw & COLLECTIVES != 0)
}

/// The handle of a stream; `None` for the host.
fn handle(chain: Chain, core: &Core) -> Option<RawStream> {
    Some(core.streams.get(stream_of(chain)?)?.raw)
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

/// A suggested call, its place, and the races that it fixes by their indices in the list.
fn shown_mend(
    mend: &Mend,
    report: &Report,
    places: &[Option<usize>],
    core: &Core,
    names: &Names,
) -> Option<Value> {
    let mut races: Vec<usize> = Vec::new();
    for listed in mend.races.iter().filter_map(|&at| places[at]) {
        if !races.contains(&listed) {
            races.push(listed);
        }
    }
    // The place is that of the first real race.
    let first = mend.races.iter().filter(|&&at| places[at].is_some()).min();
    let race = &report.races[*first?];
    let call = remedy(mend.fix, race, core, names);
    if call.call.is_empty() {
        return None;
    }
    let stack = core
        .sites
        .get_index(call.at.0 as usize)
        .map_or(0, |site| site.stack);
    let first = places[*first?];
    Some(
        json!({"kind": call.kind, "call": call.call, "stack": stack, "first": first, "races": races}),
    )
}

/// A call that fixes a race, as a user can copy it into the program.
struct Remedy {
    /// `wait` and `sync` if the program's names for the race's two streams are usable in it, or `record_stream`.
    kind: &'static str,
    /// Empty where no call of PyTorch fixes the race.
    call: String,
    /// The access that it belongs next to.
    at: SiteId,
    /// The fix as a clause. `{first}` and `{second}` are placeholders for the places of the operations.
    text: String,
}

fn remedy(fix: Fix, race: &Race, core: &Core, names: &Names) -> Remedy {
    let name = |stream| stream_in_code(stream, core);
    let [first, second] = [race.sites.0, race.sites.1];
    // The streams' variable names are usable only if the race is between exactly these two.
    let kind = |kind, usable| if usable { kind } else { "other" };
    let other = |call: &str, at, text: &str| ("other", call.to_owned(), at, text.to_owned());
    let (kind, call, at, text) = match fix {
        // If one line has both the copy and the end of its source, a wait before that line comes before the copy, too.
        Fix::SyncStream { .. } if is_end_of_source(second, core, names) => other(
            "x = x.pin_memory()",
            first,
            "pin the source (`pin_memory()`, `pin_memory=True` of a loader), or keep it until the host has waited for {first}",
        ),
        Fix::WaitStream { source, .. } | Fix::SyncStream { stream: source, .. }
            if is_collectives(source, core) =>
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
                stream_name(stream, core),
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
                let stream = stream_name(stream, core);
                text += &format!(", so that its memory is not reused while {stream} still uses it");
            }
            ("record_stream", call, first, text)
        }
        Fix::Flag { .. } => {
            let text = "let the second thread wait for the first before {second}";
            other("", second, text)
        }
    };
    Remedy {
        kind,
        call,
        at,
        text,
    }
}

/// Whether the host's access is the end of a tensor whose copy may still read it.
fn is_end_of_source(second: SiteId, core: &Core, names: &Names) -> bool {
    let site = core.sites.get_index(second.0 as usize);
    let name = site.and_then(|site| names.operators.get_index(site.name as usize));
    name.is_some_and(|name| name == END_OF_SOURCE)
}
