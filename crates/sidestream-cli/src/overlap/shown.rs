//! The comparison as JSON and as text: the table, the pictures and the verdict.

use std::path::Path;

use serde_json::{Value, json};
use sidestream::engine::Profile;

use super::file::Streamed;
use super::job::Layout;
use super::verdict::describe;
use super::{Args, Compared, pipeline, size};
use crate::width::Lines;

impl Compared {
    pub fn as_json(&self, args: &Args, streamed: Option<&Streamed>) -> Value {
        let limit = &self.limit;
        let row = |layout: &str, k: u32, time_ns: u64| {
            json!({"layout": layout, "k": k, "time_ns": time_ns,
                   "share": limit.total_ns as f64 / time_ns as f64,
                   "gb_per_s": self.gb_per_s(time_ns)})
        };
        let raw = self.rows.iter();
        let raw = raw.map(|r| row(r.layout.name(), r.layout.k(), r.time_ns));
        let own = self
            .own_ns
            .map(|time_ns| row("pipeline", pipeline::SLOTS, time_ns));
        let mut object = json!({
            "schema": "sidestream.overlap/1",
            "device": args.device,
            "device_name": self.device_name,
            "simulated": self.profile.is_some(),
            "batch_bytes": if self.job.own.is_some() { None } else { Some(self.job.batch_bytes) },
            "count": self.job.count,
            "work": if self.job.own.is_some() { None } else { Some(self.job.work) },
            "stages": {"upload_ns": limit.upload_ns, "kernel_ns": limit.kernel_ns,
                       "download_ns": limit.download_ns, "both_ways_ns": limit.both_ways_ns},
            "long_run": limit.in_the_long_run(),
            "pageable_ns": self.pageable_ns,
            "rows": raw.chain(own).collect::<Vec<_>>(),
            "limit_ns": limit.total_ns,
            "verdict": self.verdict.text,
        });
        if let Some(rounds) = self.rounds {
            object["rounds"] = json!(rounds);
        }
        if let Some(streamed) = streamed {
            object["input"] = json!({"bytes": streamed.bytes, "batches": streamed.batches,
                "time_ns": streamed.time_ns, "checksum": format!("{:016x}", streamed.checksum),
                "device_bytes": streamed.device_bytes, "pinned_bytes": streamed.pinned_bytes});
        }
        object
    }

    pub fn as_text(&self, args: &Args, streamed: Option<&Streamed>, lines: Lines) -> String {
        let mut out = String::new();
        if let (Some(streamed), Some(path)) = (streamed, &args.input) {
            out += &(streamed.in_words(path) + "\n\n");
        }
        out += &self.head();
        out += "\n";
        out += &self.table(&Table::of(lines));
        let best = self.rows.get(self.verdict.best);
        let rates = [best, self.rows.first()].map(|row| self.gb_per_s(row?.time_ns));
        if let [Some(best), Some(one)] = rates {
            let ways = match self.job.download_bytes() {
                0 => "up",
                _ => "up and down",
            };
            out += &format!(
                "\nBytes {ways} in the time of the job: {best:.1} GB/s in the best arrangement, {one:.1} GB/s on one \
                 stream.\n"
            );
        }
        if self.job.own.is_some() {
            out += &format!(
                "\nThe more batches there are, the nearer it comes to {:.3} times as fast as stage after stage.\n",
                self.limit.in_the_long_run()
            );
        }
        if let Some(profile) = &self.profile {
            out += &self.pictures(profile, lines);
        }
        out += &format!("\n{}\n", self.verdict.text);
        lines.wrapped(&out)
    }

    /// Returns the copied bytes per time; `None` where only times are known.
    fn gb_per_s(&self, time_ns: u64) -> Option<f64> {
        let job = &self.job;
        let batch_bytes = job.upload_bytes() + job.download_bytes();
        let bytes = batch_bytes as f64 * f64::from(job.count);
        job.own.is_none().then(|| bytes / time_ns.max(1) as f64)
    }

    /// Returns the heading: the job, and what a batch of it takes.
    fn head(&self) -> String {
        let Compared { job, limit, .. } = self;
        let batches = match job.count {
            1 => "1 batch".to_owned(),
            count => format!("{count} batches"),
        };
        let what = match job.own {
            Some(_) => format!("{batches} of your own"),
            None => format!(
                "{batches} of {}, work {}",
                size::show(job.batch_bytes),
                job.work
            ),
        };
        let simulated = self.profile.as_ref().map_or("", |_| "a simulated ");
        let copy = |name: &str, ns: u64, bytes: u64| match bytes {
            0 => format!("no {name}"),
            _ => format!("{name} {}", time(ns)),
        };
        let both_ways = if job.upload_bytes() > 0 && job.download_bytes() > 0 {
            format!("; both ways at once {}", time(limit.both_ways_ns))
        } else {
            String::new()
        };
        let rounds = self.rounds.map_or(String::new(), |rounds| {
            format!("medians of {rounds} rounds, each of which runs all arrangements in turn; pinned memory is not refilled\n")
        });
        format!(
            "{what}, on {simulated}{}\none batch: {}, kernel {}, {}{both_ways}\n{rounds}",
            self.device_name,
            copy("upload", limit.upload_ns, job.upload_bytes()),
            time(limit.kernel_ns),
            copy("download", limit.download_ns, job.download_bytes()),
        )
    }

    /// Returns the table of the arrangements, the pipeline, and the limit.
    fn table(&self, table: &Table) -> String {
        let share = |time_ns: u64| 100.0 * self.limit.total_ns as f64 / time_ns as f64;
        let mut rows = vec![table.head()];
        for (at, row) in self.rows.iter().enumerate() {
            let name = match row.layout {
                Layout::Streams(1) => "1 stream".to_owned(),
                Layout::Streams(k) => format!("{k} streams, a batch each"),
                Layout::Ring(d) => format!("stream per stage, {d} slots"),
            };
            let mark = if at == self.verdict.best {
                "  <- best"
            } else {
                ""
            };
            rows.push(table.share(&name, row.time_ns, share(row.time_ns)) + mark);
        }
        rows.extend(self.own_ns.map(|time_ns| {
            let name = format!("pipeline, {} slots", pipeline::SLOTS);
            table.share(&name, time_ns, share(time_ns))
        }));
        let gap = if table.is_narrow() { " " } else { "   " };
        let set_by = format!("{gap}set by {}", self.limit.set_by());
        rows.push(table.row("limit", &time(self.limit.total_ns), &set_by));
        if let (Some(time_ns), Some(profile)) = (self.pageable_ns, &self.profile) {
            let rates = self.pageable_rates(profile);
            rows.push(table.row(
                "1 stream, pageable memory",
                &time(time_ns),
                &(gap.to_owned() + &rates),
            ));
        }
        rows.iter()
            .map(|row| format!("{}\n", row.trim_end()))
            .collect()
    }

    /// Returns the rates of the job's copies from pageable and from pinned memory.
    fn pageable_rates(&self, profile: &Profile) -> String {
        let Compared { job, limit, .. } = self;
        let (what, bytes, pinned_ns, pageable) = match job.upload_bytes() {
            0 => (
                "downloads",
                job.download_bytes(),
                limit.download_ns,
                profile.pageable_download_gb_s,
            ),
            bytes => (
                "uploads",
                bytes,
                limit.upload_ns,
                profile.pageable_upload_gb_s,
            ),
        };
        let pinned = bytes as f64 / pinned_ns.max(1) as f64;
        format!("{what} at {pageable:.1} GB/s; pinned {pinned:.1} GB/s")
    }

    /// Draws the worst and the best arrangement.
    fn pictures(&self, profile: &Profile, lines: Lines) -> String {
        let Compared {
            job, rows, verdict, ..
        } = self;
        // Both pictures have one scale: the time of four batches in the worst arrangement.
        let worst_ns = rows[verdict.worst].time_ns;
        let until_ns = worst_ns.min(worst_ns * 4 / u64::from(job.count));
        let picture = |(what, at): (&str, usize)| {
            let layout = rows[at].layout;
            let trace = job.trace(layout, profile);
            let timeline = lines.timeline(&trace).between(0, until_ns).to_string();
            format!(
                "\nThe {what}, {}:\n{}\n",
                describe(layout),
                timeline.trim_end()
            )
        };
        [("worst", verdict.worst), ("best", verdict.best)]
            .map(picture)
            .concat()
    }
}

/// The columns of the table, which are closer together where lines are short.
struct Table {
    margin: usize,
    name: usize,
    time: usize,
    share: usize,
}

/// The length of a line of the usual table, with the mark of the best.
const USUAL_TABLE: usize = 64;

const USUAL: Table = Table {
    margin: 2,
    name: 28,
    time: 12,
    share: 9,
};
const NARROW: Table = Table {
    margin: 0,
    name: 25,
    time: 9,
    share: 4,
};

impl Table {
    fn of(lines: Lines) -> Table {
        match lines.columns {
            Some(columns) if columns < USUAL_TABLE => NARROW,
            _ => USUAL,
        }
    }

    fn head(&self) -> String {
        if self.is_narrow() {
            self.row("arrangement", "time", "    %")
        } else {
            self.row("arrangement", "time   ", " share of limit")
        }
    }

    fn row(&self, name: &str, time: &str, rest: &str) -> String {
        let (margin, n, t) = (self.margin, self.name, self.time);
        format!("{:margin$}{name:n$} {time:>t$}{rest}", "")
    }

    fn share(&self, name: &str, time_ns: u64, share: f64) -> String {
        let width = self.share;
        let unit = if self.is_narrow() { "" } else { " %" };
        self.row(name, &time(time_ns), &format!(" {share:>width$.1}{unit}"))
    }

    fn is_narrow(&self) -> bool {
        self.margin == 0
    }
}

impl Streamed {
    pub fn in_words(&self, path: &Path) -> String {
        let ended = if self.is_cut_short {
            "ended early: "
        } else {
            ""
        };
        format!(
            "{ended}{} bytes of {} went through the device in {} batches and came back intact, checksum \
             {:016x}\n{} of simulated time, reading and verifying aside; {} MiB of device memory and {} MiB \
             pinned",
            self.bytes,
            crate::failure::shown(path),
            self.batches,
            self.checksum,
            time(self.time_ns),
            self.device_bytes.div_ceil(1 << 20),
            self.pinned_bytes.div_ceil(1 << 20),
        )
    }
}

/// Returns a time in a unit that is easy to read.
pub fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.2} µs", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}
