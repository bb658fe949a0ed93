//! The effects of tasks: bytes are read when a task starts and written when it ends.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::callback::Callback;
use super::command::{Effect, Launched};
use super::space::{Host, Illegal, Space};
use super::state::State;
use crate::backend::{Arg, Done, Fill, HostArg, HostBytes};
use crate::engine::{Event, TaskId, What};
use crate::error::Lost;
use crate::op::{EventId, Mode};

/// `CUDA_ERROR_ILLEGAL_ADDRESS`: an access outside all allocated memory.
const ILLEGAL_ADDRESS: i32 = 700;
/// `CUDA_ERROR_LAUNCH_FAILED`: a kernel that traps.
const LAUNCH_FAILURE: i32 = 719;

/// The reason why a device was lost.
struct Failure {
    code: i32,
    why: String,
}

impl From<Illegal> for Failure {
    fn from(illegal: Illegal) -> Failure {
        Failure {
            code: ILLEGAL_ADDRESS,
            why: illegal.to_string(),
        }
    }
}

impl State {
    /// Applies the effect of an event of the engine.
    pub(super) fn happen(&mut self, event: Event, callback: &Callback) {
        let task = event.task;
        let part = self.core.part_mut(task);
        let mut effect = std::mem::take(&mut part.effect);
        let device = part.device.0 as usize;
        let is_lost = self.lost[device].is_some();
        let outcome = match event.what {
            // Nothing has an effect on a lost device.
            _ if is_lost => Ok(()),
            _ if !self.computes && effect.is_data() => Ok(()),
            What::Started => self.start(&mut effect, callback),
            What::Finished => self.end(&mut effect, event),
        };
        if let Err(failure) = outcome {
            self.lose(task, failure);
        }
        if is_lost || self.lost[device].is_some() {
            self.dropped.push(std::mem::take(&mut effect));
        }
        let part = self.core.part_mut(task);
        part.effect = effect;
        match event.what {
            What::Started => part.start_ns = event.time_ns,
            What::Finished => {
                part.is_done = true;
                let effect = std::mem::take(&mut part.effect);
                if let Effect::Kernel(_) | Effect::HostFunc(_) = effect {
                    self.dropped.push(effect);
                }
                self.note_time(task, event.time_ns);
            }
        }
        if self.core.part(task).is_on_device {
            self.noes = 0;
        }
    }

    fn start(&mut self, effect: &mut Effect, callback: &Callback) -> Result<(), Failure> {
        match effect {
            Effect::Copy(moved) if !moved.is_staged => {
                moved.bytes = self.space.gather(&moved.copy, moved.from)?;
            }
            Effect::Gather(pieces) => {
                for moved in pieces {
                    moved.bytes = self.space.gather(&moved.copy, moved.from)?;
                }
            }
            Effect::Stage { copy, host, into } => {
                let bytes = self.space.gather(copy, *host)?;
                if let Effect::Copy(moved) = &mut self.core.part_mut(*into).effect {
                    moved.bytes = bytes;
                }
            }
            Effect::Kernel(launched) => {
                launched.copies = sample(&launched.args, &self.space)?;
            }
            Effect::HostFunc(_) => {
                self.handed_over += 1;
                let running = Effect::Running(self.handed_over);
                if let Effect::HostFunc(function) = std::mem::replace(effect, running) {
                    callback.run(function);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, effect: &mut Effect, event: Event) -> Result<(), Failure> {
        match effect {
            Effect::Copy(moved) => self.space.scatter(&moved.copy, &moved.bytes, moved.to)?,
            Effect::Gather(pieces) => {
                for moved in pieces {
                    self.space.scatter(&moved.copy, &moved.bytes, moved.to)?;
                }
            }
            Effect::Fill(fill) => self.space.write(fill.at, &pattern(fill), Host::Pinned)?,
            Effect::Kernel(launched) => {
                compute(launched)?;
                publish(launched, &mut self.space)?;
            }
            Effect::Record(id) => {
                let id = EventId(*id);
                self.tables.complete(id, event.task, event.time_ns);
            }
            _ => {}
        }
        Ok(())
    }

    fn lose(&mut self, task: TaskId, failure: Failure) {
        let part = self.core.part(task);
        let why = format!("op {} ({}): {}", part.op.0, part.call, failure.why);
        let lost = Lost {
            device: part.device,
            code: failure.code,
            why,
        };
        for device in &mut self.lost {
            device.get_or_insert_with(|| lost.clone());
        }
    }

    /// Notes when a task of an operation ran, and reports the operation after its last task.
    fn note_time(&mut self, task: TaskId, end_ns: u64) {
        let part = self.core.part(task);
        let Some(times) = self.times.get_mut(&part.serial) else {
            return;
        };
        let span = if part.is_on_device {
            &mut times.done.work_ns
        } else {
            &mut times.done.call_ns
        };
        let (first, last) = span.get_or_insert((part.start_ns, end_ns));
        *first = part.start_ns.min(*first);
        *last = end_ns.max(*last);
        times.left -= 1;
        if times.left == 0 {
            let done: Done = times.done;
            self.times.remove(&part.serial);
            self.done.push(done);
        }
    }
}

/// Reads the arguments of a kernel from memory.
fn sample(args: &[Arg], space: &Space) -> Result<Vec<HostArg>, Illegal> {
    let sample = |arg: &Arg| match *arg {
        Arg::Memory { at, bytes, .. } => {
            let mut copy = HostBytes::zeroed(bytes as usize);
            space.read(at, copy.bytes_mut(), Host::Pinned)?;
            Ok(HostArg::Memory(copy))
        }
        Arg::Scalar { bytes, len } => Ok(HostArg::Scalar { bytes, len }),
    };
    args.iter().map(sample).collect()
}

/// Runs a kernel on the copies of its arguments.
fn compute(launched: &mut Launched) -> Result<(), Failure> {
    let Launched {
        code, grid, copies, ..
    } = launched;
    let Some(host) = &code.host else {
        return Ok(());
    };
    catch_unwind(AssertUnwindSafe(|| host(*grid, copies))).map_err(|panic| Failure {
        code: LAUNCH_FAILURE,
        why: format!("`{}` trapped: {}", code.name, message(&*panic)),
    })
}

/// Writes the arguments that a kernel may have changed back to memory.
fn publish(launched: &Launched, space: &mut Space) -> Result<(), Illegal> {
    for (arg, copy) in launched.args.iter().zip(&launched.copies) {
        if let (Arg::Memory { at, mode, .. }, HostArg::Memory(copy)) = (arg, copy)
            && *mode == Mode::Write
        {
            space.write(*at, copy.bytes(), Host::Pinned)?;
        }
    }
    Ok(())
}

fn pattern(fill: &Fill) -> Vec<u8> {
    let word = fill.value.to_le_bytes();
    word[..usize::from(fill.width)].repeat(fill.count as usize)
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it panicked without a message")
}
