//! The findings of a check as text: for a stream program, a log, or a running program.

use super::report::{Missing, one_line, shown};
use super::{Doubt, Fix, Lint, LintCode, Mend, Names, Race, RaceKind, Refused, Report};
use crate::op::{OpId, SiteId};
use crate::order::Chain;

/// A report, with the names and texts that are needed to print it.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    /// The findings.
    pub report: &'a Report,
    /// The names of its streams, threads, buffers, events and spans.
    pub names: &'a Names,
    /// The call sites, by id; an unknown one is empty or missing.
    pub sites: &'a [String],
    /// The text of the stream program; `None` for a run.
    pub listing: Option<&'a dyn Listing>,
}

/// The text of a stream program, whose operations have line numbers.
pub trait Listing {
    /// Returns an operation as written in the program.
    fn op(&self, op: OpId) -> Option<Listed>;
    /// Returns the streams that a fix names and that the program does not declare yet, as they would be written
    /// under `streams`.
    fn to_declare(&self, fix: &Fix) -> Vec<String>;
}

/// An operation in the text of a stream program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The line number.
    pub line: usize,
    /// The call, as written.
    pub call: String,
}

/// The maximum number of fixes shown, each with one race in full.
const SHOWN: usize = 20;
/// The maximum number of further races of one fix that are shown, in a line each.
const BESIDE: usize = 8;

impl Page<'_> {
    /// Returns the whole text: a paragraph for each call that fixes races, each remark and the call that fails.
    /// [`Report::summary`] returns the counts.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mends = self.report.mends(|race| race.fix);
        for mend in mends.iter().take(SHOWN) {
            out += &self.mend(mend);
        }
        let hidden: usize = mends.iter().skip(SHOWN).map(|mend| mend.races.len()).sum();
        if hidden > 0 {
            out += &format!(
                "\n  {hidden} more races are not shown here; the report as data (--json) lists all\n"
            );
        }
        for lint in self.report.lints.iter().take(SHOWN) {
            out += &self.lint(lint);
        }
        let hidden = self.report.lints.len().saturating_sub(SHOWN);
        if hidden > 0 {
            out += &format!("\n  {hidden} more remarks are not shown here\n");
        }
        out += &self.refused();
        if !mends.is_empty() {
            // An inserted call shifts the numbers of all later operations, so the last fix is applied first.
            out += match mends.len() {
                1 => "\n  Fix it and check again: it may hide other races.\n",
                _ => {
                    "\n  Fix them from the last to the first, and check again: they may hide other races.\n"
                }
            };
        }
        out
    }

    /// Returns the text of a fix and of the races that it fixes. Only the most telling race is shown in full.
    fn mend(&self, mend: &Mend) -> String {
        let races = &self.report.races;
        let (one, others) = match mend.races.split_first() {
            Some((&one, others)) => (&races[one], others),
            None => return String::new(),
        };
        let mut out = self.pair(one) + &self.fix(&races[mend.first]);
        if !others.is_empty() {
            let them = match others.len() {
                1 => "one more".to_owned(),
                n => format!("{n} more"),
            };
            out += &format!("  the same call fixes {them}:\n");
        }
        for &other in others.iter().take(BESIDE) {
            out += &self.line_of(&races[other]);
        }
        if others.len() > BESIDE {
            let hidden = others.len() - BESIDE;
            out += &format!(
                "    and {hidden} that are not shown here; the report as data (--json) lists all\n"
            );
        }
        out
    }

    /// Returns a race in one line.
    fn line_of(&self, race: &Race) -> String {
        let buffer = race.buffer.map(|buffer| shown(&self.names.buffer(buffer)));
        let [first, second] = self.sides(race).map(|side| {
            let (place, on) = (self.place(&side), side.on());
            format!("op {}{place}{on}", side.op.0)
        });
        let on = buffer.map_or_else(String::new, |buffer| format!(" on {buffer}"));
        format!("    {}{on}: {first}, {second}\n", race.kind.code())
    }

    /// Returns the text of the call at which the check ended, if a call failed.
    pub fn refused(&self) -> String {
        let Some(Refused { op, misuse }) = &self.report.error else {
            return String::new();
        };
        format!(
            "\n  this call fails, and the check ends there\n    {}\n  {misuse}\n",
            self.op(&Called::of(*op))
        )
    }

    /// Returns the text of one race: its kind, its two operations, and the fix.
    pub fn race(&self, race: &Race) -> String {
        self.pair(race) + &self.fix(race)
    }

    /// Returns the text of a race without its fix.
    fn pair(&self, race: &Race) -> String {
        let code = race.kind.code();
        let what = match race.buffer {
            Some(buffer) => format!("{code} on {}", shown(&self.names.buffer(buffer))),
            None => code.to_owned(),
        };
        let open = race.doubt.map_or_else(String::new, |doubt| {
            let text = doubt.text();
            format!(" {}{}.", text[..1].to_uppercase(), &text[1..])
        });
        let [first, second] = self.sides(race).map(|side| self.op(&side));
        let reach = race.reach_text(self.names);
        let again = match race.count {
            1 => String::new(),
            2 => "\n    and one more pair of the same two call sites".to_owned(),
            n => format!("\n    and {} more pairs of the same two call sites", n - 1),
        };
        format!(
            "\n  {what}: {}.{open}\n    {first}\n    {second}\n{}    {reach}{again}\n",
            race.meaning(),
            self.handed_on(race),
        )
    }

    /// Explains how the memory of the first operation was handed on to the second.
    fn handed_on(&self, race: &Race) -> String {
        let Some((to, on)) = race.buffer.zip(race.handed_on) else {
            return String::new();
        };
        let [to, from] = [to, on.from].map(|buffer| shown(&self.names.buffer(buffer)));
        match on.freed {
            Some(free) => {
                let line = self.line(free);
                format!(
                    "    {to} uses the memory of {from}, which op {}{line} freed\n",
                    free.0
                )
            }
            None => format!("    {to} uses the memory of {from}\n"),
        }
    }

    /// Returns the text of a fix: the call and its place.
    fn fix(&self, race: &Race) -> String {
        let call = |call: Missing| {
            let (side, op) = (call.side, call.op);
            let place = match self.sides(race).iter().find(|known| known.op == op) {
                Some(known) => self.place(known),
                None => self.line(op),
            };
            if self.listing.is_none() {
                // The program has no text in the format, and its reader knows CUDA.
                return format!("{}   {side} op {}{place}", call.in_cuda(), op.0);
            }
            let fields = call.fields.iter();
            let fields: String = fields
                .map(|(key, value)| format!(", {key}: {value}"))
                .collect();
            format!(
                "- {{do: {}{fields}}}   {side} op {}{place}",
                call.verb, op.0
            )
        };
        // The wait comes first: it belongs next to the second operation, where a reader looks.
        let calls = race.fix.calls(self.names).into_iter().rev().map(call);
        let fix = calls.collect::<Vec<_>>().join("\n       ");
        let mut out = format!("  fix: {fix}\n");
        let declare = self.listing.map(|listing| listing.to_declare(&race.fix));
        if let Some(declare) = declare.filter(|declare| !declare.is_empty()) {
            out += &format!("       with `streams: {{{}}}`\n", declare.join(", "));
        }
        // A kernel that starts early, as one that may.
        let is_early =
            matches!(race.fix, Fix::WaitStream { stream, source, .. } if stream == source);
        let doubt = race.doubt.or(is_early.then_some(Doubt::MayStartEarly));
        if let Some(settled) = doubt.and_then(Doubt::settled_by) {
            out += &format!("   or: {settled}\n");
        }
        // The caching allocator itself would have waited, had it known of the use.
        if let Some((on, stream)) = race.handed_on.and_then(|on| Some((on, on.not_noted?)))
            && !matches!(race.fix, Fix::RecordStream { .. })
            && let Some(free) = on.freed
        {
            let (buffer, stream) = (self.names.buffer(on.from), self.names.stream(stream));
            let [buffer, stream] = [buffer, stream].map(|name| shown(&name));
            out += &format!(
                "   or: record_stream of {buffer} on {stream} before op {}{}; the allocator then reuses the memory only\n       \
                 when {stream} has finished with it (`after_events: true` at the alloc)\n",
                free.0,
                self.line(free),
            );
        }
        out
    }

    /// Returns the line of an operation, or nothing where there is no listing.
    fn line(&self, id: OpId) -> String {
        let listed = self.listing.and_then(|listing| listing.op(id));
        listed.map_or_else(String::new, |op| format!(" (line {})", op.line))
    }

    /// Returns the place of an operation of a race: its line, or its call site.
    fn place(&self, side: &Called<'_>) -> String {
        match side.site {
            Some(site) if self.listing.is_none() => format!(" (at {})", one_line(site)),
            _ => self.line(side.op),
        }
    }

    fn sides(&self, race: &Race) -> [Called<'_>; 2] {
        [
            (race.first, race.chains.0, race.sites.0, race.spans.0),
            (race.second, race.chains.1, race.sites.1, race.spans.1),
        ]
        .map(|(op, chain, site, span)| Called {
            op,
            chain: Some(shown(&self.names.chain(chain))),
            site: self.site(site),
            span: span.map(|span| shown(&self.names.span(span))),
        })
    }

    fn site(&self, id: SiteId) -> Option<&str> {
        let site = self.sites.get(id.0 as usize)?;
        Some(site.as_str()).filter(|site| !site.is_empty())
    }

    fn lint(&self, lint: &Lint) -> String {
        let side = Called {
            site: lint.site.and_then(|site| self.site(site)),
            ..Called::of(lint.op)
        };
        let (code, meaning) = (lint.code.code(), lint.code.meaning());
        format!("\n  {code}: {meaning}\n    {}\n", self.op(&side))
    }

    /// Returns the text of an operation: its place, where it runs, and the call.
    fn op(&self, side: &Called<'_>) -> String {
        let (OpId(id), on) = (side.op, side.on());
        if let Some(Listed { line, call }) = self.listing.and_then(|listing| listing.op(side.op)) {
            return format!("op {id} (line {line}){on}: {call}");
        }
        let span = side.span.as_ref().map(|span| format!(", in span {span}"));
        let site = side.site.map(|site| format!(", at {}", one_line(site)));
        format!(
            "op {id}{on}{}{}",
            span.unwrap_or_default(),
            site.unwrap_or_default()
        )
    }
}

/// A call of a finding, as far as it is known.
struct Called<'a> {
    op: OpId,
    /// The name of its stream or thread.
    chain: Option<String>,
    site: Option<&'a str>,
    span: Option<String>,
}

impl Called<'_> {
    fn of(op: OpId) -> Self {
        let (chain, site, span) = (None, None, None);
        Called {
            op,
            chain,
            site,
            span,
        }
    }

    fn on(&self) -> String {
        let chain = self.chain.as_ref().map(|chain| format!(" on {chain}"));
        chain.unwrap_or_default()
    }
}

impl Race {
    /// Returns an explanation of the race, for readers who do not know the code of its kind.
    pub fn meaning(&self) -> &'static str {
        let on_threads = matches!(self.chains, (Chain::Thread(_), Chain::Thread(_)));
        match self.kind {
            RaceKind::Uaf => "the memory is freed or reused while it may still be in use",
            RaceKind::Uba => "the memory is used by work that is not ordered after its allocation",
            RaceKind::HostRaw | RaceKind::HostWar | RaceKind::HostWaw if on_threads => {
                "two host threads touch the same bytes, and nothing orders them"
            }
            RaceKind::HostRaw => "the host reads and the device writes, in no defined order",
            RaceKind::HostWar => "the host writes and the device reads, in no defined order",
            RaceKind::HostWaw => "host and device both write, in no defined order",
            RaceKind::Raw => "the second may read before the first has written",
            RaceKind::War => "the second may write while the first still reads",
            RaceKind::Waw => "both write, in no defined order",
            RaceKind::Timing => "the time is queried before both events are known to be complete",
        }
    }
}

impl LintCode {
    /// Returns an explanation of the remark, for readers who do not know its code.
    pub fn meaning(self) -> &'static str {
        match self {
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
                "the host waits in a loop, so nothing is queued ahead; wait once, after the loop"
            }
            LintCode::ForeignDeviceLaunch => {
                "the stream does not belong to the current device, which fails before CUDA 13"
            }
            LintCode::StreamPoolAlias => {
                "the pool holds fewer streams than were asked for, so some of them are the same stream"
            }
        }
    }
}
