//! The connections of a device: the hardware queues through which it receives its work.
//!
//! CUDA has `CUDA_DEVICE_MAX_CONNECTIONS` of them for each device, 1 to 32 and 8 without that variable (CUDA programming guide,
//! environment variables). With more streams than that, some share one, and work that waits at the head of a connection
//! delays later work of other streams in it, though no rule orders the two. NVIDIA does not document which streams share a
//! connection. This is a model: the n-th stream of a device, in order of creation, has connection n modulo their number, and
//! an operation leaves its connection when everything that it waits for is complete.

use std::collections::HashMap;

use crate::engine::LaneId;
use crate::op::{DeviceId, StreamId};

/// The connections of streams; `P` is the meaning of a task of the engine.
pub(super) struct Connections<P> {
    /// The number of connections of each device.
    count: u32,
    /// Returns the meaning of the marker that represents a task's turn in its connection.
    pub turn: fn(&P) -> P,
    /// By stream: its device, and the number of earlier streams of that device.
    streams: HashMap<StreamId, (DeviceId, u32)>,
    /// The number of streams of each device.
    made: HashMap<DeviceId, u32>,
    /// The lane of each shared connection, on which turns follow each other.
    lanes: HashMap<(DeviceId, u32), LaneId>,
}

impl<P> Connections<P> {
    pub(super) fn new(count: u32, turn: fn(&P) -> P) -> Connections<P> {
        Connections {
            count: count.max(1),
            turn,
            streams: HashMap::new(),
            made: HashMap::new(),
            lanes: HashMap::new(),
        }
    }

    /// Adds a new stream.
    pub(super) fn add(&mut self, stream: StreamId, device: DeviceId) {
        let made = self.made.entry(device).or_default();
        self.streams.insert(stream, (device, *made));
        *made += 1;
    }

    /// Returns the lane of a stream's connection, if another stream shares it.
    pub(super) fn shared(
        &mut self,
        stream: StreamId,
        new: impl FnOnce() -> LaneId,
    ) -> Option<LaneId> {
        let &(device, nth) = self.streams.get(&stream)?;
        let connection = nth % self.count;
        let made = self.made.get(&device).copied().unwrap_or(0);
        (made > connection + self.count)
            .then(|| *self.lanes.entry((device, connection)).or_insert_with(new))
    }
}
