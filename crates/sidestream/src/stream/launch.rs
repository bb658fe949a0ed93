//! Launches of kernels and functions on the host.

use std::panic::Location;
use std::sync::Arc;

use super::Stream;
use crate::backend::{Grid, Launch, Payload};
use crate::buffer::{Held, Pending};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelArgs, Passed};
use crate::op::Kind;
use crate::tracker::{Call, belong};

impl Stream {
    /// Launches a kernel with a grid and arguments.
    ///
    /// ```
    /// use sidestream::device::Device;
    /// use sidestream::kernel::{Grid, Kernel, Read, Write};
    ///
    /// let device = Device::open("sim:h200")?;
    /// let stream = device.stream("compute")?;
    /// let double = Kernel::<(Read<f32>, Write<f32>)>::on_host("double", |_, (x, y)| {
    ///     for (y, x) in y.iter_mut().zip(x) {
    ///         *y = 2.0 * x;
    ///     }
    /// });
    /// let (mut x, mut y) = (stream.alloc(4)?, stream.alloc(4)?);
    /// stream.memcpy_h2d(&[1.0, 2.0, 3.0, 4.0], x.view_mut())?;
    /// stream.launch(&double, Grid::cover(4, 256), (x.view(), y.view_mut()))?;
    /// let mut host = [0.0; 4];
    /// stream.memcpy_d2h(y.view(), &mut host)?;
    /// assert_eq!(host, [2.0, 4.0, 6.0, 8.0]);
    /// # Ok::<(), sidestream::error::Error>(())
    /// ```
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream, the last writes of what it reads and all uses of what it writes, on
    /// any stream. Does not block the host.
    ///
    /// # Errors
    /// [`Error::NoForm`] if the kernel has no form for this device, [`Error::Invalid`] if a buffer
    /// is on another device or the grid is empty, or any error that the driver returns.
    #[track_caller]
    pub fn launch<A: KernelArgs>(
        &self,
        kernel: &Kernel<A>,
        grid: Grid,
        args: A::Access<'_>,
    ) -> Result<()> {
        let at = Location::caller();
        let mut passed = Passed::default();
        A::pass(args, &mut passed);
        belong(self, "launch", &passed.touches)?;
        let elsewhere = |device| device != self.core.device;
        if passed.touches.iter().any(|t| elsewhere(t.block.device)) {
            return Err(Error::Invalid {
                call: "launch",
                why: format!(
                    "a buffer of kernel `{}` is on another device than the stream; copy it first",
                    kernel.name()
                ),
            });
        }
        not_empty(grid, kernel.name())?;
        self.issue(Call {
            kind: Kind::kernel(self.core.id),
            payload: Payload::Launch(Launch {
                code: kernel.code(),
                grid,
                args: &passed.args,
            }),
            touches: &passed.touches,
            sources: &mut [],
            behind: None,
            is_awaited: false,
            at,
        })?;
        Ok(())
    }

    /// Runs a function on the host, in stream order. The function owns the value that it works on; the [`Pending`]
    /// gives the value back.
    ///
    /// The function must not call the runtime, because CUDA forbids it. A panic is caught and returned by the call
    /// that waits for the value.
    ///
    /// # Ordering
    /// Starts when the earlier work of the stream is complete; later work waits for the function. Does not block the
    /// calling thread.
    ///
    /// # Errors
    /// Any error that the driver returns; the value is dropped then.
    #[track_caller]
    pub fn host_func<H: Send + 'static>(
        &self,
        owned: H,
        act: impl FnOnce(&mut H) + Send + 'static,
    ) -> Result<Pending<H>> {
        let (held, run) = Held::lend(owned, act);
        let mark = self.issue(Call {
            kind: Kind::HostFunc {
                stream: self.core.id,
                raises: None,
            },
            payload: Payload::HostFunc(run),
            touches: &[],
            sources: &mut [],
            behind: None,
            is_awaited: true,
            at: Location::caller(),
        });
        match mark {
            Ok(Some(mark)) => Ok(Pending::new(Arc::clone(&self.runtime), mark, held)),
            Ok(None) => unreachable!("a call that is awaited has a mark"),
            Err(error) => {
                held.leave();
                Err(error)
            }
        }
    }
}

pub(crate) fn not_empty(grid: Grid, kernel: &str) -> Result<()> {
    if grid.blocks.contains(&0) || grid.threads.contains(&0) {
        return Err(Error::Invalid {
            call: "launch",
            why: format!("the grid of kernel `{kernel}` is empty"),
        });
    }
    Ok(())
}
