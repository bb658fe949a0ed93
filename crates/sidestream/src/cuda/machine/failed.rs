//! Converts the driver's codes to results, and lists the pending work when a device is lost.

use std::sync::atomic::Ordering::Relaxed;

use super::Machine;
use crate::cuda::driver::{Code as Answer, SUCCESS};
use crate::cuda::failure::{NOT_READY, loses_the_device};
use crate::cuda::streams::Work;
use crate::error::{Error, Lost, Result};
use crate::op::{DeviceId, StreamId};

impl Machine {
    /// Converts the code of a call.
    #[inline]
    pub(super) fn answer(&self, call: &'static str, device: DeviceId, code: Answer) -> Result<()> {
        match code {
            SUCCESS => Ok(()),
            code => Err(self.failed(call, device, code)),
        }
    }

    /// Converts the code of a query.
    #[inline]
    pub(super) fn is_over(
        &self,
        call: &'static str,
        device: DeviceId,
        code: Answer,
    ) -> Result<bool> {
        match code {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            code => Err(self.failed(call, device, code)),
        }
    }

    /// Converts the result of a call that follows work already submitted to the stream: returns whether the call
    /// succeeded. An error would claim that the work was refused and that the device does not use its memory.
    ///
    /// # Errors
    /// Only if the device is lost.
    pub(super) fn behind_work(&self, answer: Result<()>) -> Result<bool> {
        match answer {
            Ok(()) => Ok(true),
            Err(error @ Error::DeviceLost(_)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    #[cold]
    pub(super) fn failed(&self, call: &'static str, device: DeviceId, code: Answer) -> Error {
        let words = self.driver().words(code);
        if !loses_the_device(code) {
            let why = words;
            return Error::Refused { call, code, why };
        }
        self.is_lost.store(true, Relaxed);
        let why = match self.unfinished() {
            unfinished if unfinished.is_empty() => words,
            unfinished => format!("{words}; not known to be done: {unfinished}"),
        };
        Error::DeviceLost(Lost { device, code, why })
    }

    /// Lists the work in streams that is not known to be complete, for an error message.
    pub(super) fn unfinished(&self) -> String {
        /// Maximum number of streams in the list; with more it would be too long to read.
        const STREAMS: usize = 8;
        let mut names: Vec<(StreamId, String)> = self.names.lock().clone().into_iter().collect();
        names.sort_by_key(|(id, _)| *id);
        let mut parts = Vec::new();
        for (id, name) in names {
            let (works, earlier) = self.streams.at(id.0).unfinished();
            if works.is_empty() {
                continue;
            }
            if parts.len() == STREAMS {
                parts.push("more on other streams".to_owned());
                break;
            }
            parts.push(format!(
                "{} on stream {name:?}",
                self.in_words(&works, earlier)
            ));
        }
        parts.join("; ")
    }

    pub(super) fn in_words(&self, works: &[Work], earlier: u64) -> String {
        let mut texts: Vec<(String, u64)> = Vec::new();
        for work in works {
            let text = match *work {
                Work::Kernel(name) => format!("kernel `{}`", self.kernels.name(name)),
                Work::Copy => "copy".to_owned(),
                Work::Memset => "memset".to_owned(),
                Work::HostFunc => "host function".to_owned(),
                Work::Graph => "graph".to_owned(),
            };
            match texts.last_mut() {
                Some((last, times)) if *last == text => *times += 1,
                _ => texts.push((text, 1)),
            }
        }
        let each = texts.into_iter().map(|(text, times)| match times {
            1 => text,
            times => format!("{times} × {text}"),
        });
        let earlier = (earlier > 0).then(|| format!("{earlier} earlier ones"));
        earlier
            .into_iter()
            .chain(each)
            .collect::<Vec<_>>()
            .join(", ")
    }
}
