//! What an operation is called in a trace, and what it shows as.

use super::{Waits, What};
use crate::op::{Access, DeviceId, Kind, Mode, Op, OpId};

impl What {
    /// What the work of an operation shows as, if it shows: the record of an event does not. For a
    /// wait: which operation recorded the event.
    pub fn of(op: &Op, recorded_by: Option<OpId>) -> Option<What> {
        let bytes = || {
            let written = op.accesses.iter().filter(|a| a.mode == Mode::Write);
            written.map(Access::len_bytes).fold(0, u64::saturating_add)
        };
        match op.kind {
            Kind::Wait { .. } | Kind::WaitStream { .. } => Some(What::Wait { recorded_by }),
            Kind::Kernel { .. } | Kind::GraphLaunch { .. } => Some(What::Kernel),
            Kind::Copy { from, to, .. } | Kind::CopyBlocking { from, to } => Some(What::Copy {
                from,
                to,
                bytes: bytes(),
            }),
            Kind::Memset { .. } | Kind::MemsetBlocking { .. } => {
                Some(What::Memset { bytes: bytes() })
            }
            Kind::HostFunc { .. } => Some(What::HostFunc),
            _ => None,
        }
    }
}

impl Waits {
    /// What a call waits for, if it waits: the present device of its thread where it names none, and
    /// which operation recorded its event.
    pub fn of(op: &Op, present: DeviceId, recorded_by: Option<OpId>) -> Option<Waits> {
        match op.kind {
            Kind::SyncStream { stream } => Some(Waits::Stream(stream)),
            Kind::SyncEvent { .. } => Some(Waits::Event { recorded_by }),
            Kind::SyncDevice { device } => Some(Waits::Device(device.unwrap_or(present))),
            _ => None,
        }
    }
}

/// The function of CUDA's runtime that makes a call; ours have names of their own.
pub fn function(kind: &Kind) -> &'static str {
    match kind {
        Kind::Kernel { .. } => "cudaLaunchKernel",
        Kind::Copy { .. } => "cudaMemcpyAsync",
        Kind::Memset { .. } => "cudaMemsetAsync",
        Kind::CopyBlocking { .. } => "cudaMemcpy",
        Kind::MemsetBlocking { .. } => "cudaMemset",
        Kind::HostFunc { .. } => "cudaLaunchHostFunc",
        Kind::GraphLaunch { .. } => "cudaGraphLaunch",
        Kind::MallocAsync { .. } => "cudaMallocAsync",
        Kind::FreeAsync { .. } => "cudaFreeAsync",
        Kind::Record { .. } => "cudaEventRecord",
        Kind::Wait { .. } => "cudaStreamWaitEvent",
        Kind::WaitStream { .. } => "cudaStreamWaitEvent",
        Kind::SyncStream { .. } => "cudaStreamSynchronize",
        Kind::SyncEvent { .. } => "cudaEventSynchronize",
        Kind::SyncDevice { .. } => "cudaDeviceSynchronize",
        Kind::QueryStream { .. } => "cudaStreamQuery",
        Kind::QueryEvent { .. } => "cudaEventQuery",
        Kind::CudaMalloc => "cudaMalloc",
        Kind::CudaFree { .. } => "cudaFree",
        Kind::FreePinned => "cudaFreeHost",
        Kind::Elapsed { .. } => "cudaEventElapsedTime",
        Kind::CreateEvent { .. } => "cudaEventCreate",
        Kind::DestroyEvent { .. } => "cudaEventDestroy",
        Kind::CreateStream { .. } => "cudaStreamCreate",
        Kind::DestroyStream { .. } => "cudaStreamDestroy",
        Kind::SetDevice { .. } => "cudaSetDevice",
        Kind::BeginCapture { .. } => "cudaStreamBeginCapture",
        Kind::EndCapture { .. } => "cudaStreamEndCapture",
        Kind::SetFlag { .. } => "raise flag",
        Kind::WaitFlag { .. } => "wait for flag",
        Kind::HostAccess => "host access",
        Kind::Alloc { .. } => "allocate",
        Kind::RecordStream { .. } => "record_stream",
        Kind::Free { .. } => "free",
    }
}
