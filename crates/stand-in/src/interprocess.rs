//! Events that processes share. The state of an event is in a file that its handle names: how many records were made,
//! and up to which record the event is complete.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sidestream::cuda::driver::IpcEventHandle;
use sidestream::op::{StreamId, ThreadId};

use crate::codes::{Answer, INVALID_CONTEXT, INVALID_HANDLE, MAP_FAILED};
use crate::state::State;
use crate::streams::run_on_host;

/// The state of an event that other processes can read.
#[derive(Clone, Debug)]
pub struct SharedEvent(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    file: File,
    handle: [u8; 64],
    /// Whether the event was created in this process: then the file is removed with the event.
    is_ours: bool,
}

/// Offsets of the two counts in the file.
const RECORDED: u64 = 0;
const COMPLETE: u64 = 8;
/// First bytes of a handle.
const MARK: &[u8; 8] = b"stand-in";

impl SharedEvent {
    pub fn new() -> Answer<SharedEvent> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut handle = [0; 64];
        handle[..8].copy_from_slice(MARK);
        handle[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        handle[12..16].copy_from_slice(&number.to_le_bytes());
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(path(&handle)).map_err(|_| MAP_FAILED)?;
        file.write_all_at(&[0; 16], 0).map_err(|_| MAP_FAILED)?;
        Ok(SharedEvent::of(file, handle, true))
    }

    /// Opens an event of another process.
    pub fn open(IpcEventHandle(handle): IpcEventHandle) -> Answer<SharedEvent> {
        if !handle.starts_with(MARK) {
            return Err(INVALID_HANDLE);
        }
        if handle[8..12] == std::process::id().to_le_bytes() {
            return Err(INVALID_CONTEXT);
        }
        let file = File::open(path(&handle)).map_err(|_| MAP_FAILED)?;
        Ok(SharedEvent::of(file, handle, false))
    }

    fn of(file: File, handle: [u8; 64], is_ours: bool) -> SharedEvent {
        SharedEvent(Arc::new(Kept {
            file,
            handle,
            is_ours,
        }))
    }

    pub fn handle(&self) -> IpcEventHandle {
        IpcEventHandle(self.0.handle)
    }

    /// Returns whether another process records the event.
    pub fn is_opened(&self) -> bool {
        !self.0.is_ours
    }

    /// Makes the work of the stream so far the event's next record.
    pub fn recorded(&self, state: &State, thread: ThreadId, stream: StreamId) -> Answer<()> {
        let number = self.count(RECORDED)? + 1;
        self.set(RECORDED, number);
        let shared = self.clone();
        let done = move || shared.set(COMPLETE, number.max(shared.count(COMPLETE).unwrap_or(0)));
        run_on_host(state, thread, stream, done)
    }

    /// Makes the stream wait until the last record is complete.
    pub fn awaited(&self, state: &State, thread: ThreadId, stream: StreamId) -> Answer<()> {
        let (shared, last) = (self.clone(), self.count(RECORDED)?);
        run_on_host(state, thread, stream, move || shared.wait(last))
    }

    pub fn is_complete(&self) -> Answer<bool> {
        Ok(self.count(COMPLETE)? >= self.count(RECORDED)?)
    }

    pub fn synchronize(&self) -> Answer<()> {
        self.wait(self.count(RECORDED)?);
        Ok(())
    }

    /// Waits until the record is complete. If the recording process has ended, its records never complete, and the
    /// wait returns.
    fn wait(&self, record: u64) {
        let [a, b, c, d] = [8, 9, 10, 11].map(|at| self.0.handle[at]);
        let maker = PathBuf::from(format!("/proc/{}", u32::from_le_bytes([a, b, c, d])));
        while self.count(COMPLETE).is_ok_and(|done| done < record) && maker.exists() {
            std::thread::park_timeout(Duration::from_micros(100));
        }
    }

    fn count(&self, at: u64) -> Answer<u64> {
        let mut bytes = [0; 8];
        let read = self.0.file.read_exact_at(&mut bytes, at);
        read.map_err(|_| MAP_FAILED)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn set(&self, at: u64, count: u64) {
        // If the write fails, other processes continue to wait.
        let _ = self.0.file.write_all_at(&count.to_le_bytes(), at);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = fs::remove_file(path(&self.handle));
        }
    }
}

fn path(handle: &[u8; 64]) -> PathBuf {
    let name: String = handle[8..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    std::env::temp_dir().join(format!("sidestream-stand-in-{name}"))
}
