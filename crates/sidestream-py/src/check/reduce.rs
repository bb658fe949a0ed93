//! The log of a checked run, and its reduction to a short program for one race.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use sidestream::check::MEMORY_BYTES;
use sidestream::log::{self, Record, Sink};
use sidestream::op::{BufferId, OpId, StreamId};
use sidestream_program::{CannotReduce, Pair, reduce};

use super::Recorder;

/// Receives the operations: the checker, and the log if there is one.
pub struct Told(pub Vec<Box<dyn Sink>>);

impl Told {
    #[inline]
    pub fn take(&mut self, record: &Record<'_>) {
        self.0.iter_mut().for_each(|sink| sink.take(record));
    }

    pub fn full(&mut self) {
        self.0.iter_mut().for_each(|sink| sink.full());
    }
}

/// A log in memory, which stops when it reaches its limit.
#[derive(Clone)]
struct Pages {
    bytes: Arc<Mutex<Vec<u8>>>,
    most: usize,
}

impl Write for Pages {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock();
        if bytes.len() + more.len() > self.most {
            return Err(io::ErrorKind::StorageFull.into());
        }
        bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A log that is kept during the check.
pub struct Kept {
    recording: log::Recorder<Pages>,
    pages: Pages,
}

#[pymethods]
impl Recorder {
    /// Keeps a log of all records, of this many bytes at most. Must be called before anything is recorded.
    fn keep_log(&self, most_bytes: usize) -> PyResult<()> {
        let pages = Pages {
            bytes: Arc::default(),
            most: most_bytes,
        };
        let (recording, sink) = log::Recorder::new(pages.clone())
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        self.core.lock().log_to(sink);
        *self.kept.lock() = Some(Kept { recording, pages });
        Ok(())
    }

    /// The shortest stream program with a race of the report, as text; the number of its ops, and the number of
    /// operations in the log that it was reduced from.
    ///
    /// `race` identifies the race by the numbers in the report, `called` has the names of its streams, and `told`
    /// returns the comment for an op from its stack and operator.
    fn reduced(
        &self,
        py: Python<'_>,
        race: (u32, u32, Option<u32>),
        name: &str,
        called: Vec<(String, String)>,
        told: &Bound<'_, PyAny>,
    ) -> PyResult<(String, usize, u64)> {
        let pages = {
            let kept = self.kept.lock();
            let Some(kept) = &*kept else {
                return Err(PyRuntimeError::new_err("no log of the run was kept"));
            };
            kept.recording.flush();
            kept.pages.clone()
        };
        let streams: Vec<(StreamId, String)> = {
            let core = self.core.lock();
            let all = (0..core.streams.all.len()).map(|at| StreamId(at as u32));
            let all: Vec<_> = all.map(|id| (id, core.streams.name(id))).collect();
            let known = |name: &str| all.iter().find(|(_, known)| known == name);
            let these = called.into_iter();
            these
                .filter_map(|(stream, name)| Some((known(&stream)?.0, name)))
                .collect()
        };
        let pair = Pair {
            first: OpId(race.0),
            second: OpId(race.1),
            buffer: race.2.map(BufferId),
        };
        let reduced = py.detach(|| {
            let bytes = pages.bytes.lock();
            reduce(&bytes, Some(pair), &streams, MEMORY_BYTES)
        });
        let reduced = match reduced {
            Ok(Some(reduced)) => reduced,
            Ok(None) | Err(CannotReduce::NotThere) => {
                return Err(PyRuntimeError::new_err(format!(
                    "the log of the run was full before the race, at {} bytes; check fewer steps with --steps, or allow more with --memory",
                    pages.most
                )));
            }
            Err(error) => return Err(PyRuntimeError::new_err(error.to_string())),
        };
        let mut remarks = Vec::new();
        for origin in reduced.origins.iter().flatten() {
            let (operator, stack) = {
                let (core, names) = (self.core.lock(), self.names.lock());
                let site = core.site_of(origin.site);
                (names.of(site.name).to_owned(), site.stack)
            };
            let text: String = told.call1((stack, operator))?.extract()?;
            remarks.push((origin.op, text));
        }
        let text = reduced.text(name, |origin| {
            let remark = remarks.iter().find(|(op, _)| *op == origin.op);
            remark.map(|(_, text)| text.clone()).unwrap_or_default()
        });
        Ok((text, reduced.program.ops.len(), reduced.operations))
    }
}
