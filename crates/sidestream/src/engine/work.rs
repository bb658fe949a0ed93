//! What a task does: plain data, without times.

/// Work of one task. A profile turns it into time.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Work {
    /// A call of the driver, or host time, on a thread lane.
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
    /// Copy from the stream's device to another device of the host, or from it.
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
    /// A function that the driver calls on the host, in stream order.
    HostFunc {
        /// How long it runs.
        ns: u64,
    },
    /// A point in a stream that takes no time and no engine: a record, a wait, a join.
    Marker,
    /// Holds one engine of the stream's device for exactly this long: for times that were measured, not modelled.
    Timed {
        /// The engine that is held.
        engine: Engines,
        /// How long.
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

/// A call of the driver, with a cost on the calling host thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// Launch of one kernel.
    Launch,
    /// Asynchronous copy from pinned host memory: the host carries a small one itself.
    UploadAsync {
        /// Bytes moved.
        bytes: u64,
    },
    /// Asynchronous copy in any other direction.
    CopyAsync,
    /// Asynchronous memset.
    MemsetAsync,
    /// The host's own copy of pageable memory to or from the staging buffer, with the call.
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
    /// The end of a synchronise: push it with `after` set to what it waits for.
    Sync,
    /// Enqueueing a host function.
    HostFunc,
    /// Stream-ordered allocation.
    MallocAsync,
    /// Stream-ordered free.
    FreeAsync,
    /// Allocation of device memory.
    Malloc,
    /// Free of device memory; what it waits for is `after`.
    Free,
    /// Launch of a graph, whatever the number of its nodes.
    GraphLaunch,
    /// Creating or destroying a stream or an event.
    Create,
    /// Host time that is no driver call.
    HostNs(u64),
}

/// What a kernel costs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum KernelCost {
    /// A known duration, of blocks of which nothing is known: they are taken for short, and give way to a more urgent kernel at once.
    Duration {
        /// From the first block to the last when nothing else runs, ns.
        ns: u64,
        /// Share of the device that it fills, from [`KernelCost::LEAST_SHARE`] up to 1.
        share: f64,
    },
    /// Blocks that last a known time each, on whatever shares the device with them. None is stopped for a more urgent kernel.
    Blocks {
        /// Blocks.
        blocks: u64,
        /// Threads of a block, which decide how many fit at once.
        threads_per_block: u32,
        /// How long each runs, ns.
        block_ns: u64,
    },
    /// A grid, whose time follows from its shape.
    Grid(Grid),
}

impl KernelCost {
    /// Less of a device is rounding, and no room for a block: a kernel that fills less would never run.
    pub const LEAST_SHARE: f64 = 1e-9;

    /// Whether a kernel with this cost ever ends.
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
    /// Blocks.
    pub blocks: u64,
    /// Threads of a block.
    pub threads_per_block: u32,
    /// Steps (arithmetic instructions) of all threads together.
    pub steps: u64,
    /// Dependent steps of the longest thread.
    pub chain_steps: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Bytes that one access of one thread moves: 4 for a float, 16 for a vector of four.
    pub access_bytes: u32,
}

impl Grid {
    /// The usual element-wise kernel: every element is read once, goes through `steps_per_element` dependent steps, and
    /// is written once; at most `max_blocks` blocks walk over the elements in strides of the whole grid.
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
