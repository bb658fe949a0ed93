//! The connections of a device: the queues through which it is given its work.
//!
//! CUDA has `CUDA_DEVICE_MAX_CONNECTIONS` of them for each device, 1 to 32 and 8 without that variable (CUDA programming guide,
//! environment variables). With more streams than that, some share one, and what waits at the head of a connection holds up
//! what other streams put into it later, though no rule orders the two. Which streams share one, NVIDIA does not say. This
//! is a model: the n-th stream of a device, in the order in which they were made, has connection n modulo their number, and
//! an operation leaves its connection when all that it has to wait for is complete.

use std::collections::HashMap;

use crate::engine::LaneId;
use crate::op::{DeviceId, StreamId};

/// Which stream has which connection; `P` is what a task of the engine stands for.
pub(super) struct Connections<P> {
    /// So many for each device.
    count: u32,
    /// What the turn of a part in its connection stands for.
    pub turn: fn(&P) -> P,
    /// By stream: its device, and how many that has from before it.
    streams: HashMap<StreamId, (DeviceId, u32)>,
    /// How many streams each device has.
    made: HashMap<DeviceId, u32>,
    /// The turns in each connection that is shared, one after the other.
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

    /// A stream was made.
    pub(super) fn add(&mut self, stream: StreamId, device: DeviceId) {
        let made = self.made.entry(device).or_default();
        self.streams.insert(stream, (device, *made));
        *made += 1;
    }

    /// The lane of a stream's connection, if another stream has the same.
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
