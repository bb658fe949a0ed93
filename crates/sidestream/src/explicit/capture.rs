//! Stream capture: calls become a graph instead of running.

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

/// An executable graph made by stream capture.
///
/// The graph uses the memory that the captured calls named, but does not own it.
pub struct Graph {
    runtime: Arc<Runtime>,
    id: GraphId,
    device: DeviceId,
    touched: Vec<Kept>,
}

impl Capture {
    /// Records the accesses of a captured call.
    pub(crate) fn takes(&self, call: &'static str, regions: &[(Region<'_>, Mode)]) -> Result<()> {
        let kept = regions.iter().map(|(region, mode)| region.kept(*mode));
        let kept: Option<Vec<Kept>> = kept.collect();
        let kept = kept.ok_or_else(|| Error::Invalid {
            call,
            why: "memory of the safe API cannot be captured, because the graph would use it \
                  without tracking; use memory of the explicit style"
                .into(),
        })?;
        self.touched.lock().extend(kept);
        Ok(())
    }
}

impl Stream {
    /// `cudaStreamBeginCapture`, global mode: work submitted to this stream from here on becomes a graph instead of
    /// running, and so does work submitted to streams that wait for it.
    ///
    /// # Errors
    /// If the stream is the legacy default stream, belongs to the safe API, or is already being captured.
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

    /// `cudaStreamEndCapture` and `cudaGraphInstantiate`: returns the executable graph. Call it on the stream on
    /// which the capture began, from the thread that began it.
    ///
    /// # Errors
    /// If no capture began on this stream, another thread began it, or a stream that joined it has work that this
    /// stream does not wait for. A driver may end the capture all the same: then the capture is discarded, and the
    /// streams that took part run work again. On the simulated GPU the capture continues.
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

    /// `cudaStreamEndCapture` and `cudaGraphExecUpdate`: updates the graph to the captured calls, without instantiating
    /// it again. The capture must have the same shape as the graph: equally many calls of the same kinds, ordered in
    /// the same way, but with other arguments, sizes and memory.
    ///
    /// # Ordering
    /// Does not wait: launches that were submitted still do what the graph described then.
    ///
    /// # Errors
    /// As for [`Stream::end_capture`]; [`Error::Invalid`] if the graph belongs to another device, and then the
    /// capture continues; [`Error::Refused`] with the driver's code 910 if the shapes differ, and then the graph
    /// stays as it was and the capture is discarded.
    #[track_caller]
    pub fn end_capture_into(&self, graph: &mut Graph) -> Result<()> {
        let at = Location::caller();
        graph.belongs_to("end_capture_into", self)?;
        graph.touched = self.end_as(graph.id, at)?;
        Ok(())
    }

    /// Ends the capture and makes it the graph with this id; returns the graph's accesses.
    #[track_caller]
    fn end_as(&self, id: GraphId, at: Place) -> Result<Vec<Kept>> {
        let kind = Kind::EndCapture { stream: self.id() };
        let (runtime, device) = (self.runtime(), self.device_id());
        runtime.check()?;
        // The back end makes the next graph without nodes from an ended capture of the device: the lock keeps other
        // threads from ending a capture in between.
        let alone = runtime.device(device).explicit.instantiates.lock();
        if let Err(error) = self.put(kind, false, None, at, |_| ()) {
            let is_answer = matches!(error, Error::Refused { .. });
            if is_answer && !runtime.backend.is_captured(self.id()) {
                self.close_capture();
            }
            return Err(error);
        }
        let nodes = &[];
        // SAFETY: the id is new, or that of a graph that its owner has borrowed out for the update.
        let made = unsafe { runtime.backend.create(Create::Graph { id, device, nodes }) };
        let made = runtime.seen(made);
        drop(alone);
        // The capture has ended, whether it became a graph or not.
        let touched = self.close_capture();
        made.map(|()| touched)
    }

    /// Closes the capture that began on this stream; returns its accesses.
    fn close_capture(&self) -> Vec<Kept> {
        let capture = self.core().capture.take();
        capture.map(|capture| capture.end()).unwrap_or_default()
    }

    /// `cudaGraphLaunch`.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream and the earlier launches of the same graph. Does not block the host.
    ///
    /// # Safety
    /// As for [`Stream::launch`], for all memory that the captured calls touch.
    ///
    /// # Errors
    /// Any error that the driver returns, or that the graph belongs to another device.
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
    /// Returns the capture that the stream takes part in.
    #[inline]
    pub(super) fn captured_in(&self) -> Option<Arc<Capture>> {
        self.stream.core.capture.get()
    }
}

impl Graph {
    fn belongs_to(&self, call: &'static str, stream: &Stream) -> Result<()> {
        super::same_machine(call, stream.runtime(), &self.runtime)?;
        if self.device == stream.device_id() {
            Ok(())
        } else {
            Err(Error::Invalid {
                call,
                why: "the graph was captured on another device than the stream's".into(),
            })
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let (runtime, id) = (Arc::clone(&self.runtime), self.id);
        // SAFETY: the graph was created here, and its only handle is being dropped.
        outside_callbacks(move || unsafe { runtime.backend.destroy(Destroy::Graph(id)) });
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:?})", self.id)
    }
}
