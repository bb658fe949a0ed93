//! The end of a stream that others have too, which is asked of the driver, and of one that goes.

use std::sync::Arc;

use super::super::runtime::Thread;
use super::super::streams::Ended;
use super::super::telling::{Place, plain};
use super::super::threads::as_thread;
use super::Stream;
use crate::error::Result;
use crate::op::{Kind, OpId};

impl Stream {
    /// Asks the driver about the stream itself, with all that anybody has put into it. An event that is recorded for the
    /// question would not be over when it is asked about at once: who asks again and again would never hear "yes".
    ///
    /// # Errors
    /// What the back end answers.
    #[track_caller]
    pub(crate) fn query_itself(&self, at: Place) -> Result<bool> {
        let runtime = &self.runtime;
        let kind = |done| Kind::QueryStream {
            stream: self.core.id,
            done,
        };
        // What another thread submits while this one asks is not known to be over.
        let point = self.core.end();
        let asked = |thread: &mut Thread| plain(thread.id, kind(false), &mut None, at);
        let op = as_thread(runtime, asked);
        let done = runtime.seen(runtime.backend.query(&op))?;
        let learned = |thread: &mut _| runtime.learned(thread, &point, kind(true), OpId(0), at);
        let done = done && as_thread(runtime, learned)?;
        runtime.raise();
        Ok(done)
    }

    /// Records the end of a stream that goes, so that another may count on its chain. Every chain makes every clock
    /// longer.
    ///
    /// # Errors
    /// What the back end answers, or that the stream is being captured: then nobody does.
    pub(crate) fn ended(&self, at: Place) -> Result<Ended> {
        let event = self.runtime.event(self.core.device, false)?;
        let end = Arc::new(self.record_as(event, at)?);
        let clock = self.core.state.lock().clock.clone();
        Ok(Ended { clock, end })
    }

    /// A new stream goes on on the chain of another one, whose end it waits for: that is over, so it holds nothing up, and
    /// the log has it.
    ///
    /// # Errors
    /// What the back end answers; it has its own chain then.
    pub(crate) fn go_on_as(&self, ended: Ended, at: Place) -> Result<()> {
        self.begin(at, |step| {
            step.submit_wait(ended.end.event.id)?;
            let unused = std::mem::replace(&mut step.state.clock, ended.clock);
            self.runtime.leave_chain(unused.chain());
            step.state.clock.submitted(&step.thread.clock);
            Ok(())
        })
    }
}
