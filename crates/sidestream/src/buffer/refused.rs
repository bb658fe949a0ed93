//! Programs that would race, and therefore do not compile. Each has a twin that does compile.
//!
//! # Reading pinned memory in flight
//! The copy owns the memory until it is complete:
//! ```compile_fail,E0382
//! # use sidestream::device::Device;
//! # let device = Device::open("sim:h200")?;
//! # let stream = device.stream("s")?;
//! # let mut buffer = stream.alloc::<u32>(4)?;
//! let page = device.pinned::<u32>(4)?;
//! let sent = stream.upload(page, buffer.view_mut())?;
//! println!("{}", page[0]);
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//! ```
//! # use sidestream::device::Device;
//! # let device = Device::open("sim:h200")?;
//! # let stream = device.stream("s")?;
//! # let mut buffer = stream.alloc::<u32>(4)?;
//! let page = device.pinned::<u32>(4)?;
//! let sent = stream.upload(page, buffer.view_mut())?;
//! let page = sent.synchronize()?;
//! println!("{}", page[0]);
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//!
//! # Writing what the same call reads
//! ```compile_fail,E0502
//! # use sidestream::device::Device;
//! # let stream = Device::open("sim:h200")?.stream("s")?;
//! let mut buffer = stream.alloc_zeroed::<u32>(4)?;
//! stream.memcpy_d2d(buffer.slice(..2), buffer.slice_mut(2..))?;
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//! ```
//! # use sidestream::device::Device;
//! # let stream = Device::open("sim:h200")?.stream("s")?;
//! let mut buffer = stream.alloc_zeroed::<u32>(4)?;
//! let (left, right) = buffer.view_mut().split_at(2);
//! stream.memcpy_d2d(left.as_view(), right)?;
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//!
//! # Writing while a view to read lives
//! ```compile_fail,E0502
//! # use sidestream::device::Device;
//! # let stream = Device::open("sim:h200")?.stream("s")?;
//! let mut slot = stream.alloc_zeroed::<u32>(4)?;
//! let read = slot.view();
//! stream.memset(slot.view_mut(), 1)?;
//! stream.memcpy_d2h(read, &mut [0; 4])?;
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//! ```
//! # use sidestream::device::Device;
//! # let stream = Device::open("sim:h200")?.stream("s")?;
//! let mut slot = stream.alloc_zeroed::<u32>(4)?;
//! stream.memset(slot.view_mut(), 1)?;
//! stream.memcpy_d2h(slot.view(), &mut [0; 4])?;
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//!
//! # A kernel in PTX without a promise
//! Only the author of the kernel knows what it touches:
//! ```compile_fail,E0133
//! use sidestream::kernel::{Kernel, Write};
//! let fill = Kernel::<(Write<u32>,)>::from_ptx(".version 8.0", "fill");
//! ```
//! ```
//! use sidestream::kernel::{Kernel, Write};
//! // SAFETY: it is never launched.
//! let fill = unsafe { Kernel::<(Write<u32>,)>::from_ptx(".version 8.0", "fill") };
//! ```
//!
//! # One buffer, written by two threads
//! ```compile_fail,E0499
//! # use sidestream::device::Device;
//! # let stream = Device::open("sim:h200")?.stream("s")?;
//! let mut buffer = stream.alloc_zeroed::<u32>(4)?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| stream.memset(buffer.view_mut(), 1));
//!     scope.spawn(|| stream.memset(buffer.view_mut(), 2));
//! });
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//! ```
//! # use sidestream::device::Device;
//! # let stream = Device::open("sim:h200")?.stream("s")?;
//! let mut buffer = stream.alloc_zeroed::<u32>(4)?;
//! let (left, right) = buffer.view_mut().split_at(2);
//! std::thread::scope(|scope| {
//!     scope.spawn(|| stream.memset(left, 1));
//!     scope.spawn(|| stream.memset(right, 2));
//! });
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//!
//! # One view, used for two writes
//! ```compile_fail,E0382
//! # use sidestream::device::Device;
//! # let stream = Device::open("sim:h200")?.stream("s")?;
//! let mut buffer = stream.alloc_zeroed::<u32>(4)?;
//! let view = buffer.view_mut();
//! std::thread::scope(|scope| {
//!     scope.spawn(|| stream.memset(view, 1));
//!     scope.spawn(|| stream.memset(view, 2));
//! });
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//!
//! # A span that ends on another thread
//! ```compile_fail,E0277
//! # use sidestream::device::Device;
//! # let device = Device::open("sim:h200")?;
//! let span = device.span("forward");
//! std::thread::spawn(move || drop(span));
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//! ```
//! # use sidestream::device::Device;
//! # let device = Device::open("sim:h200")?;
//! std::thread::spawn(move || drop(device.span("forward")));
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//!
//! # A function on the host that borrows
//! ```compile_fail,E0597
//! # use sidestream::device::Device;
//! # let stream = Device::open("sim:h200")?.stream("s")?;
//! let local = 3;
//! let borrowed: &i32 = &local;
//! let pending = stream.host_func(0, move |sum| *sum += *borrowed)?;
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//! ```
//! # use sidestream::device::Device;
//! # let stream = Device::open("sim:h200")?.stream("s")?;
//! let local = 3;
//! let pending = stream.host_func(0, move |sum| *sum += local)?;
//! assert_eq!(pending.synchronize()?, 3);
//! # Ok::<(), sidestream::error::Error>(())
//! ```
