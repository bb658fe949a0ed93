//! What the host did to memory that copies use.

use std::collections::HashSet;

use sidestream::check::counted;
use sidestream::log::{Record, Within};
use sidestream::op::{Access, Accesses, BufferId, Kind, Memory, Mode, SiteId};
use sidestream_inject::wire::{Head, Heard};

use super::ring::text;
use super::translate::{ADDRESSES, Hears, Process};

/// How much of the copies between pinned memory and devices was watched.
#[derive(Default, Debug)]
pub struct HostSeen {
    copies: u64,
    bytes: u64,
    watched: u64,
    lost: u64,
    /// Why nothing was watched from some time on.
    problem: Option<String>,
    /// The places of calls of the system that failed, since they were given protected memory.
    refused: Vec<String>,
    /// What went wrong in this run, since copies were held back.
    proved: Vec<String>,
    proved_at: HashSet<[u64; 2]>,
}

impl HostSeen {
    /// Returns all of it, for programs.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "copies": self.copies,
            "bytes": self.bytes,
            "watched_bytes": self.watched,
            "lost": self.lost,
            "problem": self.problem,
            "refused": self.refused,
            "proved": self.proved,
        })
    }

    /// Returns what was not watched, as lines; none if all was.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if let Some(problem) = &self.problem {
            out += &format!(
                "\n  the host's accesses to pinned memory were not watched to the end: {problem}\n"
            );
        } else if self.watched < self.bytes {
            out += &format!(
                "\n  {} of {} bytes of pinned memory in {} could not be watched for the host's accesses\n",
                self.bytes - self.watched,
                self.bytes,
                counted(self.copies, "transfer")
            );
        }
        if self.lost > 0 {
            let lost = self.lost;
            out += &format!("\n  {lost} accesses of the host came too fast to be kept\n");
        }
        for proved in &self.proved {
            out += &format!("\n  proved: {proved}\n");
        }
        for place in &self.refused {
            out += &format!(
                "\n  a call of the system at {place} failed with EFAULT, since a copy uses its memory: without the check it would not\n"
            );
        }
        out
    }
}

impl<T: Hears> Process<T> {
    /// What the host did, by the words of its record.
    pub(super) fn host(&mut self, head: Head, record: &[u64]) {
        let Some((&[who, start, end, place, before, now], name)) = record.split_first_chunk()
        else {
            return;
        };
        let Some(heard) = Heard::of((who >> 32) as u8) else {
            return;
        };
        // A call that was refused says nothing of bytes.
        let (start, end) = match heard {
            Heard::Refused => (0, 1),
            _ => (start, end),
        };
        if end > ADDRESSES || start >= end {
            return;
        }
        let name = text(name, head.index);
        let from = self.memory.at(start).map_or(0, |range| range.start);
        let (first, last) = (start - from, end - from - 1);
        let shown = |at: u64| {
            if from == 0 {
                format!("{at:#x}")
            } else {
                at.to_string()
            }
        };
        let bytes = match last - first {
            0 => format!("byte {}", shown(first)),
            // Of each further page, the first byte that was touched is known.
            _ if name.is_empty() && matches!(heard, Heard::Load | Heard::Store) => {
                format!("bytes {} to {} or more", shown(first), shown(last))
            }
            _ => format!("bytes {} to {}", shown(first), shown(last)),
        };
        let hex = |word: u64| {
            let held = &word.to_ne_bytes()[..(end - start).min(8) as usize];
            let held = held.iter().map(|byte| format!("{byte:02x}"));
            held.collect::<Vec<_>>().join(" ")
        };
        // Of a place that touches more, the bytes are those that it touched first.
        let what = match heard {
            Heard::Load if name.is_empty() => format!("load of {bytes}"),
            Heard::Store if name.is_empty() => format!("store to {bytes}"),
            Heard::Changed => format!(
                "change of {bytes} from {} to {}, found",
                hex(before),
                hex(now)
            ),
            Heard::Load | Heard::Store => format!("{name} of {bytes}"),
            Heard::End | Heard::Refused => name,
        };
        let thread = self.thread(who as u32);
        self.hand_over(thread);
        self.told_by_functions(thread);
        self.told_by_kernels(thread);
        if heard == Heard::Refused {
            let place = self.place(place as u32, None).unwrap_or_default();
            if !self.host_seen.refused.contains(&place) {
                self.host_seen.refused.push(place);
            }
            return;
        }
        let site = self.host_site(heard, &what, place as u32);
        let (kind, mode) = match heard {
            Heard::Load => (Kind::HostAccess, Mode::Read),
            Heard::End => (Kind::FreePinned, Mode::Write),
            _ => (Kind::HostAccess, Mode::Write),
        };
        let mut accesses = Accesses::new();
        let mut at = start;
        while at < end {
            let next = match self.memory.at(at) {
                Some(range) => {
                    accesses.push(range.access(at, end - at, mode));
                    range.end
                }
                None => self.memory.next_after(at).unwrap_or(end).min(end),
            };
            if accesses.is_empty() {
                let access = self.of_host(at, next - at, mode);
                accesses.push(access);
            }
            at = next;
        }
        let now = self.at(thread, site);
        self.op(&now, kind, &accesses);
    }

    /// How much was watched, by the words of its record.
    pub(super) fn host_ended(&mut self, head: Head, record: &[u64]) {
        let Some((&[copies, bytes, guarded, compared, lost], why)) = record.split_first_chunk()
        else {
            return;
        };
        let problem = text(why, head.index);
        self.host_seen = HostSeen {
            copies,
            bytes,
            watched: guarded.saturating_add(compared),
            lost,
            problem: (!problem.is_empty()).then_some(problem),
            ..std::mem::take(&mut self.host_seen)
        };
    }

    /// A copy that was held back has copied another byte, by the words of its record.
    pub(super) fn proved(&mut self, record: &[u64]) {
        let &[heard, at, place, right, wrong] = record else {
            return;
        };
        let place = self.place(place as u32, None).unwrap_or_default();
        let proved = match Heard::of(heard as u8) {
            Some(Heard::Load) => format!(
                "the load at {place} read {wrong:02x} at {at:#x}, before the copy wrote {right:02x} there"
            ),
            Some(Heard::Changed) => format!(
                "of what was changed before {place}, {wrong:02x} arrived for the byte at {at:#x}, which was {right:02x} when it was submitted"
            ),
            _ => format!(
                "after the access at {place}, {wrong:02x} arrived for the byte at {at:#x}, which was {right:02x} when it was submitted"
            ),
        };
        // Of each place, once is enough.
        if self.host_seen.proved_at.insert([record[0], record[2]]) {
            self.host_seen.proved.push(proved);
        }
    }

    /// An access to memory of the host that no call of CUDA made known.
    pub(super) fn of_host(&mut self, start: u64, bytes: u64, mode: Mode) -> Access {
        let everything = self.everything();
        let buffer = *self.of_the_host.get_or_insert_with(|| {
            let within = Some(Within {
                buffer: everything,
                start: 0,
            });
            let name = "memory of the host";
            self.told
                .take(&Record::buffer(Memory::Pageable, ADDRESSES, within, name));
            self.buffers += 1;
            BufferId(self.buffers - 1)
        });
        Access {
            buffer,
            start: start.min(ADDRESSES),
            end: start.saturating_add(bytes).min(ADDRESSES),
            mode,
        }
    }

    fn host_site(&mut self, heard: Heard, what: &str, place: u32) -> SiteId {
        if let Some(&known) = self.host_sites.get(&(heard as u8, place)) {
            return known;
        }
        let at = self.place(place, None);
        let site = self.new_site(what, at.as_deref(), place);
        self.host_sites.insert((heard as u8, place), site);
        site
    }
}
