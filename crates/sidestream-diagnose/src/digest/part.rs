//! What a step of a rank consists of, as far as it is the rank's own: why one takes longer than another.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::idle::Cause;
use crate::words::words;

words! {
    /// A part of a step.
    pub enum Part {
        /// Kernels that compute.
        Compute = "compute",
        /// Copies that nothing hides, and idle time that copies are to blame for.
        Copies = "copies",
        /// Idle time in which the host waited for its loader.
        Loader = "loader",
        /// Idle time in which the host was late for another reason.
        Host = "host",
        /// Idle time of another cause.
        Other = "other",
    }
}

impl Part {
    /// Where idle time of a cause belongs.
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

/// How long each part is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    ns: [u64; Part::ALL.len()],
    /// What stands for most of the loader's time, and of the host's own work; empty where nothing does.
    pub names: [String; 2],
}

impl Parts {
    /// The length of a part.
    pub fn ns(&self, part: Part) -> u64 {
        self.ns[part as usize]
    }

    /// What stands for a part by name, where anything does.
    pub fn name(&self, part: Part) -> Option<&str> {
        let name = match part {
            Part::Loader => &self.names[0],
            Part::Host => &self.names[1],
            Part::Compute | Part::Copies | Part::Other => return None,
        };
        (!name.is_empty()).then_some(name)
    }

    /// Makes a part longer.
    pub fn add(&mut self, part: Part, ns: u64) {
        let sum = &mut self.ns[part as usize];
        *sum = sum.saturating_add(ns);
    }

    /// From sums over steps to one step.
    pub fn divide(&mut self, steps: u64) {
        self.ns.iter_mut().for_each(|ns| *ns /= steps.max(1));
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let each = Part::ALL.into_iter().zip(self.ns);
        json!(each.collect::<BTreeMap<Part, u64>>())
    }

    /// From their JSON; none if one is missing.
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
