//! What a check found, for people.

use std::path::Path;

use sidestream::check::{Lint, LintCode, Race, RaceKind, Reach, Severity};
use sidestream::op::{OpId, SiteId};
use sidestream_program::{Checked, Program, written};

/// The report of one program, or of the log of a run.
pub fn report(path: &Path, program: Option<&Program>, checked: &Checked) -> String {
    let page = Page { program, checked };
    let name = &checked.name;
    let mut out = format!("{}: {name}: {}\n", path.display(), summary(checked));
    for race in &checked.report.races {
        out += &page.race(race);
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
    out
}

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
        let reach = match race.ordered_up_to {
            Reach::Nothing => format!("nothing makes {second} wait for {first}"),
            Reach::UpTo(op) => format!("{second} waits for {first} only up to op {}", op.0),
            Reach::LongAgo => format!("{second} waited for {first} only long ago"),
        };
        let again = match race.count {
            1 => String::new(),
            2 => "\n    and one more pair of the same two call sites".to_owned(),
            n => format!("\n    and {} more pairs of the same two call sites", n - 1),
        };
        format!(
            "\n  {what}: {}.{open}\n    {}\n    {}\n    {reach}{again}\n  fix: {}\n",
            meaning(race.kind),
            self.op(race.first, Some(race.first_site), &format!(" on {first}")),
            self.op(
                race.second,
                Some(race.second_site),
                &format!(" on {second}")
            ),
            race.fix.text(names)
        )
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

/// What a kind of race means, for people who do not know the short name.
fn meaning(kind: RaceKind) -> &'static str {
    match kind {
        RaceKind::Uaf => "the memory is freed or handed on while it may still be used",
        RaceKind::Uba => "the memory is used before its allocation is known to the stream",
        RaceKind::HostRaw => "the host reads what the device may still be writing",
        RaceKind::HostWar => "the host writes what the device may still be reading",
        RaceKind::HostWaw => "the host writes what the device may still be writing",
        RaceKind::Raw => "the second may read before the first has written",
        RaceKind::War => "the second may write while the first still reads",
        RaceKind::Waw => "both write, in no certain order",
        RaceKind::Timing => "the time is asked before both events are known to be complete",
    }
}
