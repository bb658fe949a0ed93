//! Exchanges of data with other ranks: collectives, sends and receives.

/// One exchange, as one rank saw it: its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// When it began.
    pub start_ns: i64,
    /// How long it lasted, waiting included.
    pub duration_ns: u64,
    /// Its number in its process group, where the trace says it. Collectives and sends have numbers of their own.
    pub seq: Option<u32>,
    /// What it is, as a place in [`Exchanges::kinds`].
    pub kind: u32,
}

/// What an exchange is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExchangeKind {
    /// PyTorch's name for it, such as `allreduce` or `_allgather_base`.
    pub operation: String,
    /// Between whom, as a place in [`Exchanges::groups`].
    pub group: u32,
    /// How many elements go in.
    pub elements: u64,
    /// Of which type.
    pub dtype: String,
    /// The other rank, of a send or a receive.
    pub peer: Option<u32>,
}

/// Who takes part in an exchange, as the trace says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProcessGroup {
    /// Its name; empty where the trace has none.
    pub name: String,
    /// What its maker calls it, such as `tp`.
    pub description: String,
    /// Its ranks as a list in brackets, which PyTorch cuts behind thirty.
    pub ranks: String,
    /// How many they are; 0 where the trace does not say.
    pub size: u32,
}

/// All exchanges of a trace.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    /// In the order of their starts.
    pub rows: Vec<Exchange>,
    /// What they are, each once.
    pub kinds: Vec<ExchangeKind>,
    /// The process groups, each once. The first is the one of which nothing is known.
    pub groups: Vec<ProcessGroup>,
}

impl ExchangeKind {
    /// What the name of a kernel says: `ncclDevKernel_AllReduce_Sum_f16_RING_LL`. It does not say between whom.
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

// A rank of a long run has a hundred thousand of them.
const _: () = assert!(size_of::<Exchange>() <= 32);
