//! The faults of a job, and their fixes.

/// A fault that costs a job time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The program loads its batch itself, or has to wait for it, in every step or in every nth one. The fix: four or five
    /// workers load ahead.
    Loader {
        /// Time to load, in nanoseconds.
        ns: u64,
        /// The fault is in one of this many steps.
        every: usize,
        /// Whether the loader has workers already, which are too slow. The fix makes them fast enough.
        has_workers: bool,
    },
    /// Work of the host that needs no GPU, inside a named range. The fix: four workers do it ahead.
    HostWork {
        /// Time of the work, in nanoseconds.
        ns: u64,
        /// The fault is in one of this many steps.
        every: usize,
        /// The program's name for the range.
        name: &'static str,
        /// Number of CPU operators inside the range.
        operators: usize,
        /// Whether it is at the end of the step.
        is_last: bool,
    },
    /// A batch is uploaded from memory that is not pinned. The fix: from pinned memory, without blocking, in the same stream.
    PageableUpload {
        /// Size of the batch.
        bytes: u64,
        /// Whether it is uploaded in a separate stream.
        is_aside: bool,
    },
    /// A pinned batch is uploaded in the stream of the kernels. The fix: in a separate stream, a step ahead.
    UploadOnComputeStream {
        /// Size of the batch.
        bytes: u64,
    },
    /// A batch is uploaded in a separate stream, but each stream waits for all earlier work of the other. The fix: the kernels
    /// wait for the upload of the previous step only, and the next upload runs concurrently with them.
    MisplacedWaits {
        /// Size of the batch.
        bytes: u64,
    },
    /// The result is downloaded and waited for. The fix: to pinned memory, in the same stream, and read a step later.
    Download {
        /// Size of the result.
        bytes: u64,
        /// Whether it goes to pinned memory already.
        is_pinned: bool,
        /// Whether it is downloaded in a separate stream.
        is_aside: bool,
    },
    /// The host waits for the device. The fix: the host does not wait.
    Sync {
        /// How it waits.
        how: SyncBy,
        /// Number of waits in a step.
        times: usize,
    },
    /// Small kernels, launched one by one. The fix: the kernels of a step are a graph, as far as nothing else comes between
    /// them.
    Launches {
        /// Number of kernels.
        count: usize,
        /// Time of each kernel, in nanoseconds.
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

impl Fault {
    /// Returns the bytes that it uploads in each step.
    pub(crate) fn uploaded_bytes(&self) -> u64 {
        match self {
            Fault::PageableUpload { bytes, .. }
            | Fault::UploadOnComputeStream { bytes }
            | Fault::MisplacedWaits { bytes } => *bytes,
            _ => 0,
        }
    }

    /// Returns its cause, as a row of a table.
    pub fn cause(&self) -> &'static str {
        match self {
            Fault::Loader { every: 1, .. } => "loader",
            Fault::Loader { .. } => "loader, some steps",
            Fault::HostWork { .. } => "host work",
            Fault::PageableUpload { .. } => "pageable upload",
            Fault::UploadOnComputeStream { .. } => "upload in line",
            Fault::MisplacedWaits { .. } => "misplaced waits",
            Fault::Download { .. } => "download",
            Fault::Sync { .. } => "sync",
            Fault::Launches { .. } => "launches",
        }
    }
}
