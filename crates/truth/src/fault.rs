//! What may be wrong with a job, and what takes it away.

/// Something that costs a job time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The program loads its batch itself, or has to wait for it, in every step or in every so many.
    /// Without it: four or five workers load ahead.
    Loader {
        /// For so long.
        ns: u64,
        /// In one of so many steps.
        every: usize,
        /// Whether the loader has workers already, which are too slow. Without it, they are fast enough.
        has_workers: bool,
    },
    /// Work of the host that needs no GPU, inside a named range. Without it: four workers do it ahead.
    HostWork {
        /// For so long.
        ns: u64,
        /// In one of so many steps.
        every: usize,
        /// What the program calls it.
        name: &'static str,
        /// How many operators of the processor show inside of it.
        operators: usize,
        /// Whether it comes at the end of the step.
        is_last: bool,
    },
    /// A batch is uploaded from memory that is not pinned. Without it: pinned, and not blocking, in the
    /// same stream.
    PageableUpload {
        /// So much.
        bytes: u64,
        /// Whether in a stream of its own.
        is_aside: bool,
    },
    /// A pinned batch is uploaded in the stream of the kernels. Without it: in a stream of its own, a
    /// step ahead.
    UploadOnComputeStream {
        /// So much.
        bytes: u64,
    },
    /// A batch is uploaded in a stream of its own, but each stream waits for all of the other in turn.
    /// Without it: the waits stand before the work.
    MisplacedWaits {
        /// So much.
        bytes: u64,
    },
    /// The result is downloaded and waited for. Without it: to pinned memory, in the same stream, and
    /// read a step later.
    Download {
        /// So much.
        bytes: u64,
        /// Whether it goes to pinned memory already.
        is_pinned: bool,
        /// Whether in a stream of its own.
        is_aside: bool,
    },
    /// The host waits for the device. Without it: it does not.
    Sync {
        /// How.
        how: SyncBy,
        /// How often in a step.
        times: usize,
    },
    /// Small kernels, launched one by one. Without it: the kernels of a step are a graph, as far as
    /// nothing else stands between them.
    Launches {
        /// So many.
        count: usize,
        /// Each for so long.
        kernel_ns: u64,
    },
}

/// How the host waits for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncBy {
    /// `.item()`, through memory that is not pinned: the copy waits.
    Item,
    /// `.item()`, through pinned memory, as of PyTorch 2.4: the synchronisation waits.
    PinnedItem,
    /// `torch.cuda.synchronize()`.
    Device,
    /// `stream.synchronize()`.
    Stream,
    /// `cudaFree` and `cudaMalloc` again.
    Free,
}

/// What is planted, as a row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// [`Fault::Loader`] in every step.
    Loader,
    /// [`Fault::Loader`] in some steps.
    LoaderInSome,
    /// [`Fault::HostWork`].
    HostWork,
    /// [`Fault::PageableUpload`].
    PageableUpload,
    /// [`Fault::UploadOnComputeStream`].
    UploadOnComputeStream,
    /// [`Fault::MisplacedWaits`].
    MisplacedWaits,
    /// [`Fault::Download`].
    Download,
    /// [`Fault::Sync`].
    Sync,
    /// [`Fault::Launches`].
    Launches,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 9] = [
        Cause::Loader,
        Cause::LoaderInSome,
        Cause::HostWork,
        Cause::PageableUpload,
        Cause::UploadOnComputeStream,
        Cause::MisplacedWaits,
        Cause::Download,
        Cause::Sync,
        Cause::Launches,
    ];

    /// The word for it in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Loader => "loader",
            Cause::LoaderInSome => "loader, some steps",
            Cause::HostWork => "host work",
            Cause::PageableUpload => "pageable upload",
            Cause::UploadOnComputeStream => "upload in line",
            Cause::MisplacedWaits => "misplaced waits",
            Cause::Download => "download",
            Cause::Sync => "sync",
            Cause::Launches => "launches",
        }
    }
}

impl Fault {
    /// What it uploads in each step.
    pub(crate) fn uploaded_bytes(&self) -> u64 {
        match self {
            Fault::PageableUpload { bytes, .. }
            | Fault::UploadOnComputeStream { bytes }
            | Fault::MisplacedWaits { bytes } => *bytes,
            _ => 0,
        }
    }

    /// Its row.
    pub fn cause(&self) -> Cause {
        match self {
            Fault::Loader { every: 1, .. } => Cause::Loader,
            Fault::Loader { .. } => Cause::LoaderInSome,
            Fault::HostWork { .. } => Cause::HostWork,
            Fault::PageableUpload { .. } => Cause::PageableUpload,
            Fault::UploadOnComputeStream { .. } => Cause::UploadOnComputeStream,
            Fault::MisplacedWaits { .. } => Cause::MisplacedWaits,
            Fault::Download { .. } => Cause::Download,
            Fault::Sync { .. } => Cause::Sync,
            Fault::Launches { .. } => Cause::Launches,
        }
    }
}
