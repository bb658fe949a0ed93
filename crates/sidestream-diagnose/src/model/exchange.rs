//! Exchanges of data with other ranks: collectives, sends and receives.

use serde::{Deserialize, Serialize};

/// One exchange as one rank recorded it: its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Start of the kernel.
    pub start_ns: i64,
    /// Duration of the kernel, including waiting.
    pub duration_ns: u64,
    /// Its sequence number in its process group, where the trace states it. Collectives and sends are numbered separately.
    pub seq: Option<u32>,
    /// Index of its kind in [`Exchanges::kinds`].
    pub kind: u32,
}

/// The kind of an exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExchangeKind {
    /// PyTorch's name for it, such as `allreduce` or `_allgather_base`.
    pub operation: String,
    /// Index of its process group in [`Exchanges::groups`].
    pub group: u32,
    /// Number of input elements.
    pub elements: u64,
    /// Type of the elements.
    pub dtype: String,
    /// The other rank of a send or a receive.
    pub peer: Option<u32>,
}

/// The ranks that take part in an exchange, as the trace states them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessGroup {
    /// Its name; empty where the trace has none.
    pub name: String,
    /// Its description by the program, such as `tp`.
    pub description: String,
    /// Its ranks as a list in brackets, which PyTorch truncates after thirty.
    pub ranks: String,
    /// Number of its ranks; 0 where the trace does not state it.
    pub size: u32,
}

/// All exchanges of a trace.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    /// The exchanges in the order of their starts.
    pub rows: Vec<Exchange>,
    /// Their kinds, each once.
    pub kinds: Vec<ExchangeKind>,
    /// The process groups, each once. The first is the one of which nothing is known.
    pub groups: Vec<ProcessGroup>,
}

impl ExchangeKind {
    /// Returns the kind that a kernel's name states: `ncclDevKernel_AllReduce_Sum_f16_RING_LL`. The name does not state the
    /// group.
    pub fn of_kernel(name: &str) -> ExchangeKind {
        const WORDS: [(&str, &str); 7] = [
            ("AllReduce", "allreduce"),
            ("AllGather", "allgather"),
            ("ReduceScatter", "reduce_scatter"),
            ("Broadcast", "broadcast"),
            ("SendRecv", "send or receive"),
            ("Reduce", "reduce"),
            ("all_reduce", "allreduce"),
        ];
        let found = WORDS.iter().find(|(word, _)| name.contains(word));
        ExchangeKind {
            operation: found
                .map_or("collective", |(_, operation)| *operation)
                .to_owned(),
            ..ExchangeKind::default()
        }
    }
}

// A rank of a long run has a hundred thousand exchanges.
const _: () = assert!(size_of::<Exchange>() <= 32);
