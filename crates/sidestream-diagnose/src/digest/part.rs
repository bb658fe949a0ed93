//! The parts of a step that are a rank's own: they show why the step of one rank takes longer than another's.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::idle::Cause;
use crate::measure::add;
use crate::words::words;

words! {
    /// A part of a step.
    pub enum Part {
        /// Kernels that compute.
        Compute = "compute",
        /// Copies that no kernel covers, and idle time caused by copies.
        Copies = "copies",
        /// Idle time in which the host waited for its data loader.
        Loader = "loader",
        /// Idle time in which the host was late for another reason.
        Host = "host",
        /// Idle time of another cause.
        Other = "other",
    }
}

impl Part {
    /// Returns the part to which idle time of this cause belongs.
    pub fn of(cause: Cause) -> Part {
        match cause {
            Cause::HostStarved => Part::Loader,
            Cause::BlockingCopy | Cause::PageableCopy => Part::Copies,
            Cause::HostWork | Cause::SyncInStep | Cause::LaunchBound => Part::Host,
            Cause::Initialisation | Cause::ProfilerOverhead => Part::Host,
            Cause::Startup | Cause::StreamWait | Cause::DeviceLatency | Cause::Unattributed => {
                Part::Other
            }
        }
    }
}

/// The time of each part, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    ns: [u64; Part::ALL.len()],
    /// Two names: that with the most loader time, and that with the most time of the host's own work; empty where there is
    /// none.
    pub names: [String; 2],
}

impl Parts {
    /// Returns the time of a part.
    pub fn ns(&self, part: Part) -> u64 {
        self.ns[part as usize]
    }

    /// Returns the name with most of a part's time, if there is one.
    pub fn name(&self, part: Part) -> Option<&str> {
        let name = match part {
            Part::Loader => &self.names[0],
            Part::Host => &self.names[1],
            Part::Compute | Part::Copies | Part::Other => return None,
        };
        (!name.is_empty()).then_some(name)
    }

    /// Adds time to a part.
    pub fn add(&mut self, part: Part, ns: u64) {
        add(&mut self.ns[part as usize], ns);
    }

    /// Divides sums over `steps` steps into figures per step.
    pub fn divide(&mut self, steps: u64) {
        self.ns.iter_mut().for_each(|ns| *ns /= steps.max(1));
    }

    /// Returns the parts as JSON.
    pub fn json(&self) -> Value {
        let each = Part::ALL.into_iter().zip(self.ns);
        json!(each.collect::<BTreeMap<Part, u64>>())
    }

    /// Reads the parts from their JSON; returns `None` if one is missing.
    pub fn of_json(value: &Value, names: [String; 2]) -> Option<Parts> {
        let mut parts = Parts {
            names,
            ..Parts::default()
        };
        for part in Part::ALL {
            parts.add(part, value[part.as_str()].as_u64()?);
        }
        Some(parts)
    }
}
