//! The end of a shared stream, which only a query of the driver can tell, and the end of a stream that is being
//! destroyed.

use std::sync::Arc;

use super::super::runtime::Thread;
use super::super::streams::Ended;
use super::super::telling::{Place, plain};
use super::super::threads::as_thread;
use super::Stream;
use crate::error::Result;
use crate::op::{Kind, OpId};

impl Stream {
    /// Queries the stream itself in the driver, which includes work that other code has put into it. An event recorded
    /// for the query would not be complete right away: a caller that polls would never get `true`.
    ///
    /// # Errors
    /// Any error that the back end returns.
    #[track_caller]
    pub(crate) fn query_itself(&self, at: Place) -> Result<bool> {
        let runtime = &self.runtime;
        let kind = |done| Kind::QueryStream {
            stream: self.core.id,
            done,
        };
        // Read before the query: work that another thread submits during the query is not known to be complete.
        let point = self.core.end();
        let asked = |thread: &mut Thread| plain(thread.id, kind(false), &mut None, at);
        let op = as_thread(runtime, asked);
        let done = runtime.seen(runtime.backend.query(&op))?;
        let learned = |thread: &mut _| runtime.learned(thread, &point, kind(true), OpId(0), at);
        let done = done && as_thread(runtime, learned)?;
        runtime.raise();
        Ok(done)
    }

    /// Records the end of a stream that is being destroyed, so that another stream can continue its chain: a new chain
    /// would make every clock longer.
    ///
    /// # Errors
    /// Any error that the back end returns, or that the stream is being captured: then its chain is not continued.
    pub(crate) fn ended(&self, at: Place) -> Result<Ended> {
        let event = self.runtime.event(self.core.device, false)?;
        let end = Arc::new(self.record_as(event, at)?);
        let clock = self.core.state.lock().clock.clone();
        Ok(Ended { clock, end })
    }

    /// Makes a new stream continue the chain of a destroyed one, whose end it waits for: that end is complete, so the
    /// wait does not delay it, and the log has the order.
    ///
    /// # Errors
    /// Any error that the back end returns; the stream has its own chain then.
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
