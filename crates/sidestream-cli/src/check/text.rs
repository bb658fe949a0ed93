//! What a check found, for people.

use std::path::Path;

use sidestream::check::{Fix, Lint, LintCode, Race, RaceKind, Severity};
use sidestream::op::{OpId, SiteId, ThreadId};
use sidestream::order::Chain;
use sidestream_program::{Checked, Program, written};

/// The report of one program, or of the log of a run.
pub fn report(path: &Path, program: Option<&Program>, checked: &Checked) -> String {
    let page = Page { program, checked };
    let name = &checked.name;
    let mut out = format!("{}: {name}: {}\n", path.display(), summary(checked));
    let races = &checked.report.races;
    for race in races.iter().take(SHOWN) {
        out += &page.race(race);
    }
    if races.len() > SHOWN {
        let more = races.len() - SHOWN;
        out += &format!("\n  {more} more races are not shown here; --json lists all\n");
    }
    for lint in &checked.report.lints {
        out += &page.lint(lint);
    }
    if let Some(refused) = &checked.report.error {
        out += &format!(
            "\n  this call fails, and the check ends there\n    {}\n  {}\n",
            page.op(refused.op, None, ""),
            refused.misuse
        );
    }
    if !races.is_empty() {
        // Op numbers move when a call is put in: the later ones first keep the earlier ones true.
        out += match races.len() {
            1 => "\n  Mend it and check again: what lies behind it may not be shown.\n",
            _ => {
                "\n  Mend them from the last to the first, and check again: what lies behind them may not be \
                  shown.\n"
            }
        };
    }
    out
}

/// How many races are shown in full.
const SHOWN: usize = 20;

/// What a report is about.
struct Page<'a> {
    /// The program, if it was not a log.
    program: Option<&'a Program>,
    checked: &'a Checked,
}

fn summary(checked: &Checked) -> String {
    let report = &checked.report;
    let errors = report
        .races
        .iter()
        .filter(|r| r.severity == Severity::Error)
        .count();
    let warnings = report.races.len() - errors;
    let mut parts = Vec::new();
    let mut count = |n: usize, one: &str, many: &str| match n {
        0 => {}
        1 => parts.push(format!("1 {one}")),
        n => parts.push(format!("{n} {many}")),
    };
    count(errors, "race", "races");
    count(
        warnings,
        "race that CUDA leaves open",
        "races that CUDA leaves open",
    );
    count(
        usize::from(report.error.is_some()),
        "call fails",
        "calls fail",
    );
    count(report.lints.len(), "remark", "remarks");
    if parts.is_empty() {
        "no race".to_owned()
    } else if errors + warnings == 0 && report.error.is_none() {
        format!("no race, {}", parts.join(", "))
    } else {
        parts.join(", ")
    }
}

impl Page<'_> {
    fn race(&self, race: &Race) -> String {
        let names = &self.checked.names;
        let what = match race.buffer {
            Some(buffer) => format!("{} on {}", race.kind.code(), names.buffer(buffer)),
            None => race.kind.code().to_owned(),
        };
        let open = match race.severity {
            Severity::Error => "",
            Severity::Warn => " CUDA leaves open whether that call waits.",
        };
        let [first, second] = [race.chains.0, race.chains.1].map(|chain| names.chain(chain));
        let reach = race.reach_text(names);
        let again = match race.count {
            1 => String::new(),
            2 => "\n    and one more pair of the same two call sites".to_owned(),
            n => format!("\n    and {} more pairs of the same two call sites", n - 1),
        };
        format!(
            "\n  {what}: {}.{open}\n    {}\n    {}\n{}    {reach}{again}\n{}",
            meaning(race),
            self.op(race.first, Some(race.first_site), &format!(" on {first}")),
            self.op(
                race.second,
                Some(race.second_site),
                &format!(" on {second}")
            ),
            self.handed_on(race),
            self.fix(race)
        )
    }

    /// How the memory of the first operation came to the second.
    fn handed_on(&self, race: &Race) -> String {
        let names = &self.checked.names;
        let Some((to, on)) = race.buffer.zip(race.handed_on) else {
            return String::new();
        };
        let (to, from) = (names.buffer(to), names.buffer(on.from));
        match on.freed {
            Some(free) => {
                let line = self.line(free);
                format!(
                    "    {to} lies on the memory of {from}, which op {}{line} freed\n",
                    free.0
                )
            }
            None => format!("    {to} lies on the memory of {from}\n"),
        }
    }

    /// What to put where.
    fn fix(&self, race: &Race) -> String {
        let names = &self.checked.names;
        let call = |verb: &str, fields: &[(&str, String)], thread: ThreadId| {
            let thread = match names.thread(thread) {
                name if name == "t0" => String::new(),
                name => format!(", t: {name}"),
            };
            let fields = fields
                .iter()
                .map(|(key, value)| format!(", {key}: {value}"));
            format!("- {{do: {verb}{}{thread}}}", fields.collect::<String>())
        };
        let at = |word: &str, op: OpId| format!("{word} op {}{}", op.0, self.line(op));
        let fix = match race.fix {
            Fix::WaitStream {
                stream,
                source,
                before,
                thread,
            } => {
                let fields = [("s", names.stream(stream)), ("src", names.stream(source))];
                format!(
                    "{}   {}",
                    call("wait_stream", &fields, thread),
                    at("before", before)
                )
            }
            Fix::SyncStream {
                stream,
                before,
                thread,
            } => {
                let fields = [("st", names.stream(stream))];
                format!(
                    "{}   {}",
                    call("sync_stream", &fields, thread),
                    at("before", before)
                )
            }
            Fix::SyncEvent {
                event,
                before,
                thread,
            } => {
                let fields = [("ev", names.event(event))];
                format!(
                    "{}   {}",
                    call("sync_event", &fields, thread),
                    at("before", before)
                )
            }
            Fix::RecordStream {
                buffer,
                stream,
                before,
                thread,
            } => {
                let fields = [("buf", names.buffer(buffer)), ("st", names.stream(stream))];
                format!(
                    "{}   {}",
                    call("record_stream", &fields, thread),
                    at("before", before)
                )
            }
            Fix::Flag {
                after,
                by,
                before,
                on,
            } => {
                let flag = [("flag", format!("done{}", after.0))];
                format!(
                    "{}   {}\n       {}   {}",
                    call("wait_flag", &flag, on),
                    at("before", before),
                    call("set_flag", &flag, by),
                    at("after", after)
                )
            }
        };
        let mut out = format!("  fix: {fix}\n");
        let declare = self.checked.to_declare(&race.fix);
        if !declare.is_empty() && self.program.is_some() {
            out += &format!("       with `streams: {{{}}}`\n", declare.join(", "));
        }
        // The caching allocator itself would have waited, had it known.
        if let Some((on, stream)) = race.handed_on.and_then(|on| Some((on, on.not_noted?)))
            && !matches!(race.fix, Fix::RecordStream { .. })
            && let Some(free) = on.freed
        {
            out += &format!(
                "   or: record_stream of {} on {} before op {}{}; the allocator then hands the memory out only\n       \
                 when {} is done with it (`after_events: true` at the alloc)\n",
                names.buffer(on.from),
                names.stream(stream),
                free.0,
                self.line(free),
                names.stream(stream)
            );
        }
        out
    }

    /// The line of an op, where there are lines.
    fn line(&self, id: OpId) -> String {
        let op = self
            .program
            .and_then(|program| program.ops.get(id.0 as usize));
        op.map_or_else(String::new, |op| format!(" (line {})", op.line))
    }

    fn lint(&self, lint: &Lint) -> String {
        let meaning = match lint.code {
            LintCode::UnpinnedAsyncCopy => {
                "a copy of pageable memory may block the host and does not overlap; use pinned memory"
            }
            LintCode::DefaultStreamSerialization => {
                "work in the default stream makes one stream wait for another; use a stream of your own"
            }
            LintCode::WaitOnUnrecordedEvent => {
                "the event has not been recorded yet, so this waits for nothing; record it first"
            }
            LintCode::SyncInLoop => {
                "the host waits in a loop, so nothing is queued ahead; wait once after it"
            }
            LintCode::ForeignDeviceLaunch => {
                "the stream belongs to another than the current device, which fails before CUDA 13"
            }
            LintCode::StreamPoolAlias => {
                "the pool holds fewer streams than were asked for, so some of them are the same one"
            }
        };
        format!(
            "\n  {}: {meaning}\n    {}\n",
            lint.code.code(),
            self.op(lint.op, None, "")
        )
    }

    /// An op: where it stands, where it runs, and what it says.
    fn op(&self, id: OpId, site: Option<SiteId>, place: &str) -> String {
        let known = self
            .program
            .and_then(|program| Some((program, program.ops.get(id.0 as usize)?)));
        if let Some((program, op)) = known {
            let text = written(program, op);
            let call = text.strip_prefix("do: ").unwrap_or(&text);
            return format!("op {} (line {}){place}: {call}", id.0, op.line);
        }
        let site = site.and_then(|site| self.checked.sites.get(site.0 as usize));
        match site.filter(|site| !site.is_empty()) {
            Some(site) => format!("op {}{place}, at {site}", id.0),
            None => format!("op {}{place}", id.0),
        }
    }
}

/// What a race means, for people who do not know the short name of its kind.
fn meaning(race: &Race) -> &'static str {
    let on_threads = matches!(race.chains, (Chain::Thread(_), Chain::Thread(_)));
    match race.kind {
        RaceKind::Uaf => "the memory is freed or handed on while it may still be used",
        RaceKind::Uba => "the memory is used before its allocation is known to the stream",
        RaceKind::HostRaw | RaceKind::HostWar | RaceKind::HostWaw if on_threads => {
            "two host threads touch the same bytes, and nothing orders them"
        }
        RaceKind::HostRaw => "the host reads and the device writes, in no certain order",
        RaceKind::HostWar => "the host writes and the device reads, in no certain order",
        RaceKind::HostWaw => "host and device both write, in no certain order",
        RaceKind::Raw => "the second may read before the first has written",
        RaceKind::War => "the second may write while the first still reads",
        RaceKind::Waw => "both write, in no certain order",
        RaceKind::Timing => "the time is asked before both events are known to be complete",
    }
}
