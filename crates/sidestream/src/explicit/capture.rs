//! Stream capture: calls that become a graph instead of running.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::memory::Region;
use super::{Own, Stream};
use crate::backend::{Create, Destroy, Payload};
use crate::error::{Error, Result};
use crate::op::{Accesses, DeviceId, GraphId, Kind, Mode};
use crate::tracker::{Capture, Kept, Place, Runtime, outside_callbacks};

/// An executable graph that was captured.
///
/// It uses the memory that the captured calls named, and does not own it.
pub struct Graph {
    runtime: Arc<Runtime>,
    id: GraphId,
    device: DeviceId,
    touched: Vec<Kept>,
}

impl Capture {
    /// Notes what a captured call touches.
    pub(crate) fn takes(&self, call: &'static str, regions: &[(Region<'_>, Mode)]) -> Result<()> {
        let kept = regions.iter().map(|(region, mode)| region.kept(*mode));
        let kept: Option<Vec<Kept>> = kept.collect();
        let kept = kept.ok_or_else(|| Error::Invalid {
            call,
            why: "memory of the safe API cannot be captured, because the graph would use it when \
                  nobody tracks it; use memory of the explicit style"
                .into(),
        })?;
        self.touched.lock().extend(kept);
        Ok(())
    }
}

impl Stream {
    /// `cudaStreamBeginCapture`, global mode: what this stream is given from here on becomes a graph
    /// instead of running, and so does what is given to streams that wait for it.
    ///
    /// # Errors
    /// If it is the legacy default stream, a stream of the safe API, or captured already.
    #[track_caller]
    pub fn begin_capture(&self) -> Result<()> {
        let at = Location::caller();
        self.refuse_safe("begin_capture")?;
        let kind = Kind::BeginCapture { stream: self.id() };
        let capture = Arc::new(Capture::default());
        self.join(kind, &capture, at)?;
        let of_device = &self.runtime().device(self.device_id()).explicit;
        of_device.captures.lock().push(Arc::downgrade(&capture));
        Ok(())
    }

    /// `cudaStreamEndCapture` and `cudaGraphInstantiate`: the graph, ready to be launched. It has to
    /// be called where the capture began, by the thread that began it.
    ///
    /// # Errors
    /// If no capture began here, another thread began it, or a stream that was pulled in has work
    /// that this stream does not wait for. A driver may end the capture all the same: then nothing is left
    /// of it, and the streams that took part are streams like any others. On the simulated GPU it goes on.
    #[track_caller]
    pub fn end_capture(&self) -> Result<Graph> {
        let at = Location::caller();
        let runtime = self.runtime();
        let id = GraphId(runtime.graphs.fetch_add(1, Ordering::Relaxed));
        let touched = self.end_as(id, at)?;
        Ok(Graph {
            runtime: Arc::clone(runtime),
            id,
            device: self.device_id(),
            touched,
        })
    }

    /// `cudaStreamEndCapture` and `cudaGraphExecUpdate`: the graph does what was captured from here on,
    /// and is not made anew. The capture has to be of the same shape as the one that made the graph: as many
    /// calls of the same kinds, ordered in the same way, with other arguments, sizes and memory.
    ///
    /// # Ordering
    /// Does not wait: launches that were submitted still do what the graph did then.
    ///
    /// # Errors
    /// As [`Stream::end_capture`]; [`Error::Invalid`] if the graph belongs to another device, and then the
    /// capture goes on; [`Error::Refused`] with the driver's 910 if the shapes differ, and then the graph
    /// stays as it was and the capture is gone.
    #[track_caller]
    pub fn end_capture_into(&self, graph: &mut Graph) -> Result<()> {
        let at = Location::caller();
        graph.belongs_to("end_capture_into", self)?;
        graph.touched = self.end_as(graph.id, at)?;
        Ok(())
    }

    /// Ends the capture and makes it the graph with this id; gives what that touches.
    #[track_caller]
    fn end_as(&self, id: GraphId, at: Place) -> Result<Vec<Kept>> {
        let kind = Kind::EndCapture { stream: self.id() };
        let (runtime, device) = (self.runtime(), self.device_id());
        runtime.check()?;
        // The back end makes the capture that ended last on a device into the next graph without nodes:
        // nobody may come between.
        let alone = runtime.device(device).explicit.instantiates.lock();
        if let Err(error) = self.put(kind, false, None, at, |_| ()) {
            let is_answer = matches!(error, Error::Refused { .. });
            if is_answer && !runtime.backend.is_captured(self.id()) {
                self.close_capture();
            }
            return Err(error);
        }
        let nodes = &[];
        // SAFETY: the id is new, or that of a graph that its owner has lent to be made anew.
        let made = unsafe { runtime.backend.create(Create::Graph { id, device, nodes }) };
        let made = runtime.seen(made);
        drop(alone);
        // It has ended, whether it became a graph or not.
        let touched = self.close_capture();
        made.map(|()| touched)
    }

    /// The capture that began here is over; gives what it touches.
    fn close_capture(&self) -> Vec<Kept> {
        let capture = self.core().capture.take();
        capture.map(|capture| capture.end()).unwrap_or_default()
    }

    /// `cudaGraphLaunch`.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream and the earlier launches of the same graph. Does
    /// not hold up the host.
    ///
    /// # Safety
    /// As [`Stream::launch`], for all that the captured calls touch.
    ///
    /// # Errors
    /// What the driver answers, or that the graph belongs to another device.
    #[track_caller]
    pub unsafe fn launch_graph(&self, graph: &Graph) -> Result<()> {
        let at = Location::caller();
        graph.belongs_to("launch_graph", self)?;
        let kind = Kind::GraphLaunch {
            stream: self.id(),
            graph: graph.id,
        };
        let runs = self.own.captured_in().is_none();
        self.submit(kind, Payload::Graph, runs, at, |pen| {
            let touched = graph.touched.iter();
            touched.map(|kept| kept.access(pen)).collect::<Accesses>()
        })
    }
}

impl Own {
    /// The capture that the stream takes part in.
    #[inline]
    pub(super) fn captured_in(&self) -> Option<Arc<Capture>> {
        self.stream.core.capture.get()
    }
}

impl Graph {
    fn belongs_to(&self, call: &'static str, stream: &Stream) -> Result<()> {
        super::same_machine(call, stream.runtime(), &self.runtime)?;
        match self.device == stream.device_id() {
            true => Ok(()),
            false => Err(Error::Invalid {
                call,
                why: "the graph was captured on another device than the stream's".into(),
            }),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let (runtime, id) = (Arc::clone(&self.runtime), self.id);
        // SAFETY: it was made here, and its only handle goes.
        outside_callbacks(move || unsafe { runtime.backend.destroy(Destroy::Graph(id)) });
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:?})", self.id)
    }
}
