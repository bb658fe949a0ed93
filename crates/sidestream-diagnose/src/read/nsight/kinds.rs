//! The meanings of the numbers in an export.
//!
//! The numbers changed between versions, and those of memory kinds are not CUPTI's. Exports since schema 3 list them in
//! separate tables; the fixed numbers here are for exports without these tables.

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::database::{Database, integer, text};
use crate::model::{Direction, Memory, StreamFlag, SyncKind};

/// The maximum number of words in a list; real lists are far shorter.
const MOST_WORDS: usize = 4096;
const LONGEST_WORD_BYTES: usize = 100;

/// The meanings of numbers in one file.
#[derive(Debug)]
pub struct Kinds {
    copies: Words,
    memory: Words,
    syncs: Words,
    streams: Words,
    events: Words,
    classes: Words,
}

/// The API to which a class of calls belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// CUDA's runtime or driver.
    Cuda,
    /// Something else, or a second row for the same call.
    Other,
}

/// Numbers and their words, in upper case and without the prefix that all words of a list share.
#[derive(Debug)]
struct Words(HashMap<i64, String>);

impl Kinds {
    /// The tables that hold the lists.
    pub const TABLES: [&'static str; 6] = [
        "ENUM_CUDA_MEMCPY_OPER",
        "ENUM_CUDA_MEM_KIND",
        "ENUM_CUPTI_SYNC_TYPE",
        "ENUM_CUPTI_STREAM_TYPE",
        "ENUM_NSYS_EVENT_TYPE",
        "ENUM_NSYS_EVENT_CLASS",
    ];

    /// Reads the lists of a file.
    pub fn read(database: &Database) -> Kinds {
        let [copies, memory, syncs, streams, events, classes] = Kinds::TABLES;
        Kinds {
            copies: Words::read(
                database,
                copies,
                "CUDA_MEMCPY_KIND_",
                (
                    1,
                    "HTOD DTOH HTOA ATOH ATOA ATOD DTOA DTOD HTOH PTOP UVM_HTOD UVM_DTOH UVM_DTOD",
                ),
            ),
            memory: Words::read(
                database,
                memory,
                "CUDA_MEMOPR_MEMORY_KIND_",
                (
                    0,
                    "PAGEABLE PINNED DEVICE ARRAY MANAGED DEVICE_STATIC MANAGED_STATIC",
                ),
            ),
            syncs: Words::read(
                database,
                syncs,
                "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_",
                (
                    1,
                    "EVENT_SYNCHRONIZE STREAM_WAIT_EVENT STREAM_SYNCHRONIZE CONTEXT_SYNCHRONIZE",
                ),
            ),
            streams: Words::read(
                database,
                streams,
                "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_",
                (1, "DEFAULT NON_BLOCKING NULL"),
            ),
            events: Words::read(
                database,
                events,
                "",
                (59, "NVTXPUSHPOPRANGE NVTXSTARTENDRANGE"),
            ),
            classes: Words::read(
                database,
                classes,
                "TRACE_PROCESS_EVENT_",
                (0, "CUDA_RUNTIME CUDA_DRIVER"),
            ),
        }
    }

    /// Returns the direction of a copy.
    pub fn direction(&self, number: Option<i64>) -> Direction {
        match self.copies.word(number) {
            "HTOD" | "HTOA" | "UVM_HTOD" => Direction::Upload,
            "DTOH" | "ATOH" | "UVM_DTOH" => Direction::Download,
            "DTOD" | "DTOA" | "ATOD" | "ATOA" => Direction::OnDevice,
            // Pages migrate from one device to another.
            "PTOP" | "UVM_DTOD" => Direction::Peer,
            "HTOH" => Direction::OnHost,
            _ => Direction::Unknown,
        }
    }

    /// Returns whether a copy moved pages of unified memory.
    pub fn is_unified(&self, number: Option<i64>) -> bool {
        self.copies.word(number).starts_with("UVM_")
    }

    /// Returns a kind of memory.
    pub fn memory(&self, number: Option<i64>) -> Memory {
        match self.memory.word(number) {
            "PAGEABLE" => Memory::Pageable,
            "PINNED" => Memory::Pinned,
            "DEVICE" | "DEVICE_STATIC" => Memory::Device,
            "ARRAY" => Memory::Array,
            "MANAGED" | "MANAGED_STATIC" => Memory::Managed,
            _ => Memory::Unknown,
        }
    }

    /// Returns the kind of a wait: which side waits, and for what.
    pub fn sync(&self, number: Option<i64>) -> SyncKind {
        match self.syncs.word(number) {
            "EVENT_SYNCHRONIZE" => SyncKind::Event,
            "STREAM_WAIT_EVENT" => SyncKind::StreamWait,
            "STREAM_SYNCHRONIZE" => SyncKind::Stream,
            "CONTEXT_SYNCHRONIZE" => SyncKind::Context,
            _ => SyncKind::Unknown,
        }
    }

    /// Returns how a stream synchronizes with the legacy default stream.
    pub fn stream(&self, number: Option<i64>) -> StreamFlag {
        match self.streams.word(number) {
            "DEFAULT" => StreamFlag::Blocking,
            "NON_BLOCKING" => StreamFlag::NonBlocking,
            "NULL" => StreamFlag::Null,
            _ => StreamFlag::Unknown,
        }
    }

    /// Returns whether an NVTX row is a range, and not a mark or definition.
    pub fn is_range(&self, number: Option<i64>) -> bool {
        matches!(
            self.events.word(number),
            "NVTXPUSHPOPRANGE" | "NVTXSTARTENDRANGE"
        )
    }

    /// Returns the API of a call. Schema 2.9 has a second row for each call, of a class for backtraces.
    pub fn class(&self, number: Option<i64>) -> Class {
        match self.classes.word(number) {
            "CUDA_RUNTIME" | "CUDA_DRIVER" => Class::Cuda,
            _ => Class::Other,
        }
    }
}

impl Words {
    /// Reads a list; where there is none, these words count from a number on.
    fn read(
        database: &Database,
        table: &str,
        prefix: &str,
        (first, otherwise): (i64, &str),
    ) -> Words {
        let mut words = HashMap::new();
        database.rows(table, &[integer("id"), text("name")], |row| {
            if let (Some(id), Some(name)) = (row.integer(0), row.text(1)) {
                let name = name.to_ascii_uppercase();
                let word = name.strip_prefix(prefix).unwrap_or(&name);
                if word.len() <= LONGEST_WORD_BYTES {
                    words.insert(id, word.to_owned());
                }
            }
            if words.len() < MOST_WORDS {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        if words.is_empty() {
            words.extend((first..).zip(otherwise.split(' ').map(str::to_owned)));
        }
        Words(words)
    }

    fn word(&self, number: Option<i64>) -> &str {
        let word = number.and_then(|number| self.0.get(&number));
        word.map_or("", String::as_str)
    }
}
