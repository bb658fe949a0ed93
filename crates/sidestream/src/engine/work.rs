//! The work of a task: plain data, without times.

/// The work of one task; a profile determines its time.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Work {
    /// A driver call, or other host time, on the lane of a thread.
    Call(Call),
    /// Copy from pinned host memory to the device.
    Upload {
        /// Bytes moved.
        bytes: u64,
    },
    /// Copy from the device to pinned host memory.
    Download {
        /// Bytes moved.
        bytes: u64,
    },
    /// Copy from pageable host memory: the part on the device; the host's part is [`Call::Stage`].
    UploadPageable {
        /// Bytes moved.
        bytes: u64,
    },
    /// Copy to pageable host memory.
    DownloadPageable {
        /// Bytes moved.
        bytes: u64,
    },
    /// Copy inside the device.
    DeviceCopy {
        /// Bytes copied (each is read and written).
        bytes: u64,
    },
    /// Copy between the stream's device and another device of the same host.
    PeerCopy {
        /// The other device.
        peer: u32,
        /// Bytes moved.
        bytes: u64,
    },
    /// Fill device memory.
    Memset {
        /// Bytes written.
        bytes: u64,
    },
    /// A kernel.
    Kernel(KernelCost),
    /// A host function, which the driver calls in stream order.
    HostFunc {
        /// Its duration, ns.
        ns: u64,
    },
    /// A point in a stream that takes no time and occupies no engine: a record, a wait, a join.
    Marker,
    /// Occupies one engine of the stream's device for exactly this long: for times that were measured, not modelled.
    Timed {
        /// The engine that is occupied.
        engine: Engines,
        /// The duration, ns.
        ns: u64,
    },
}

/// The engines of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engines {
    /// The copy engine for host to device.
    Upload,
    /// The path of small uploads inside the command stream.
    Inline,
    /// The copy engine for device to host.
    Download,
    /// The copy engine for copies inside the device and to other devices.
    Inner,
    /// The multiprocessors.
    Compute,
    /// The thread that runs host functions.
    Callback,
}

/// A driver call, with a cost on the calling host thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// Launch of one kernel.
    Launch,
    /// Asynchronous copy from pinned host memory; for a small one the host itself copies the bytes.
    UploadAsync {
        /// Bytes moved.
        bytes: u64,
    },
    /// Asynchronous copy in any other direction.
    CopyAsync,
    /// Asynchronous memset.
    MemsetAsync,
    /// The call of a pageable copy, including the host's own copy to or from the staging buffer.
    Stage {
        /// Bytes that the host copies.
        bytes: u64,
    },
    /// Event record.
    Record,
    /// Wait of a stream for an event.
    Wait,
    /// Query of an event or stream.
    Query,
    /// The end of a synchronize call: push it with `after` set to the tasks that it waits for.
    Sync,
    /// Enqueueing a host function.
    HostFunc,
    /// Stream-ordered allocation.
    MallocAsync,
    /// Stream-ordered free.
    FreeAsync,
    /// Allocation of device memory.
    Malloc,
    /// Free of device memory; `after` names the tasks that it waits for.
    Free,
    /// Launch of a graph, at a cost independent of its number of nodes.
    GraphLaunch,
    /// Creating or destroying a stream or an event.
    Create,
    /// Host time outside driver calls, ns.
    HostNs(u64),
}

/// The cost of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum KernelCost {
    /// A known duration with unknown blocks: they are assumed to be short, so the kernel yields to a more urgent one at once.
    Duration {
        /// Duration from the first block to the last when nothing else runs, ns.
        ns: u64,
        /// Fraction of the device that the kernel fills, from [`KernelCost::LEAST_SHARE`] to 1.
        share: f64,
    },
    /// Blocks of a known duration each, independent of what else runs on the device. No block is preempted for a more
    /// urgent kernel.
    Blocks {
        /// Number of blocks.
        blocks: u64,
        /// Threads per block, which limit how many blocks fit at once.
        threads_per_block: u32,
        /// Duration of each block, ns.
        block_ns: u64,
    },
    /// A grid, whose time is computed from its shape.
    Grid(Grid),
}

impl KernelCost {
    /// The smallest fraction of a device that a kernel can fill; with a smaller one, which rounding may produce, it
    /// would never run.
    pub const LEAST_SHARE: f64 = 1e-9;

    /// Whether a kernel with this cost completes in finite time.
    pub fn ends(&self) -> bool {
        match self {
            KernelCost::Duration { share, .. } => (Self::LEAST_SHARE..=1.0).contains(share),
            KernelCost::Blocks { .. } | KernelCost::Grid(_) => true,
        }
    }
}

/// The shape of a grid and the work in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Number of blocks.
    pub blocks: u64,
    /// Threads per block.
    pub threads_per_block: u32,
    /// Total steps (arithmetic instructions) of all threads.
    pub steps: u64,
    /// Dependent steps of the longest thread.
    pub chain_steps: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Bytes that one access of one thread moves: 4 for a float, 16 for a vector of four.
    pub access_bytes: u32,
}

impl Grid {
    /// Returns the shape of a typical element-wise kernel: every element is read once, goes through
    /// `steps_per_element` dependent steps, and is written once, in a grid-stride loop of at most `max_blocks` blocks.
    pub fn elementwise(
        elements: u64,
        element_bytes: u32,
        steps_per_element: u64,
        threads_per_block: u32,
        max_blocks: u64,
    ) -> Self {
        let threads = u64::from(threads_per_block.max(1));
        let blocks = elements.div_ceil(threads).clamp(1, max_blocks.max(1));
        let rounds = elements.div_ceil(blocks.saturating_mul(threads));
        Self {
            blocks,
            threads_per_block,
            steps: elements.saturating_mul(steps_per_element),
            chain_steps: rounds.saturating_mul(steps_per_element),
            bytes: elements.saturating_mul(2 * u64::from(element_bytes)),
            access_bytes: element_bytes,
        }
    }
}
