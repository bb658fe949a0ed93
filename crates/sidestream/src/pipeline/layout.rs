//! The buffers of an item: on the device, and their counterparts in pinned memory.

use std::marker::PhantomData;

use crate::buffer::{DeviceBuf, Pending, Pinned, Pod};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::graph::{Graph, PinnedKey};
use crate::stream::{Rows, Stream};

/// One buffer of an item: a number of values for each row, or a number of values for the whole item.
#[derive(Debug)]
pub struct Values<T> {
    count: usize,
    is_per_row: bool,
    holds: PhantomData<fn() -> T>,
}

/// Returns a buffer with `count` values for each row of an item. An item with fewer rows has fewer values.
pub fn per_row<T: Pod>(count: usize) -> Values<T> {
    Values {
        count,
        is_per_row: true,
        holds: PhantomData,
    }
}

/// Returns a buffer with `count` values for the whole item, independent of its rows, such as a sum or a header.
pub fn per_item<T: Pod>(count: usize) -> Values<T> {
    Values {
        count,
        is_per_row: false,
        holds: PhantomData,
    }
}

impl<T> Clone for Values<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Values<T> {}

/// The buffers of an item: one [`Values`], or a tuple of two to four; `()` for a pipeline that generates its data on the
/// device, or leaves its results there.
pub trait Layout: Clone + Send + 'static {
    /// The buffers on the device: [`DeviceBuf`]s.
    type Device: Send + 'static;
    /// The buffers on the host: [`Pinned`]s.
    type Host: Send + 'static;
    /// The keys of pinned memory that a graph owns: [`PinnedKey`]s.
    type Keys: Copy + Send + 'static;
    /// The buffers while they are copied.
    #[doc(hidden)]
    type Sent: Send + 'static;

    #[doc(hidden)]
    fn device(&self, stream: &Stream, rows: usize) -> Result<Self::Device>;
    #[doc(hidden)]
    fn host(&self, device: &Device, rows: usize) -> Result<Self::Host>;
    #[doc(hidden)]
    fn upload(
        &self,
        stream: &Stream,
        rows: usize,
        from: Self::Host,
        to: &mut Self::Device,
    ) -> Result<Self::Sent>;
    #[doc(hidden)]
    fn download(
        &self,
        stream: &Stream,
        rows: usize,
        from: &Self::Device,
        to: Self::Host,
    ) -> Result<Self::Sent>;
    #[doc(hidden)]
    fn arrived(sent: Self::Sent) -> Result<Self::Host>;
    #[doc(hidden)]
    fn lend(graph: &mut Graph, keys: Self::Keys) -> Result<Self::Host>;
    #[doc(hidden)]
    fn give_back(graph: &mut Graph, keys: Self::Keys, host: Self::Host) -> Result<()>;
    /// Fills the rest of the buffers of an item with fewer rows with zeros.
    #[doc(hidden)]
    fn pad(&self, rows: usize, host: &mut Self::Host);
}

impl<T> Values<T> {
    /// Returns the number of values of an item with this many rows.
    pub fn of(self, rows: usize) -> usize {
        if self.is_per_row {
            rows.saturating_mul(self.count)
        } else {
            self.count
        }
    }
}

impl<T: Pod + Send + Sync> Layout for Values<T> {
    type Device = DeviceBuf<T>;
    type Host = Pinned<T>;
    type Keys = PinnedKey<T>;
    type Sent = Pending<Pinned<T>>;

    fn device(&self, stream: &Stream, rows: usize) -> Result<DeviceBuf<T>> {
        stream.alloc(self.of(rows))
    }

    fn host(&self, device: &Device, rows: usize) -> Result<Pinned<T>> {
        device.pinned(self.of(rows))
    }

    fn upload(
        &self,
        stream: &Stream,
        rows: usize,
        from: Pinned<T>,
        to: &mut DeviceBuf<T>,
    ) -> Result<Pending<Pinned<T>>> {
        let part = part("upload", self.of(rows), from.len(), to.len())?;
        Ok(stream.upload_rows(from, part, to.view_mut(), part)?)
    }

    fn download(
        &self,
        stream: &Stream,
        rows: usize,
        from: &DeviceBuf<T>,
        to: Pinned<T>,
    ) -> Result<Pending<Pinned<T>>> {
        let part = part("download", self.of(rows), from.len(), to.len())?;
        Ok(stream.download_rows(from.view(), part, to, part)?)
    }

    fn arrived(sent: Pending<Pinned<T>>) -> Result<Pinned<T>> {
        sent.synchronize()
    }

    fn lend(graph: &mut Graph, key: PinnedKey<T>) -> Result<Pinned<T>> {
        graph.lend_pinned(key)
    }

    fn give_back(graph: &mut Graph, key: PinnedKey<T>, host: Pinned<T>) -> Result<()> {
        Ok(graph.return_pinned(key, host)?)
    }

    fn pad(&self, rows: usize, host: &mut Pinned<T>) {
        let used = self.of(rows).min(host.len());
        host[used..].fill(T::zeroed());
    }
}

/// Returns the copy of the first `len` values of both sides.
fn part(call: &'static str, len: usize, from: usize, to: usize) -> Result<Rows> {
    let room = from.min(to);
    if len > room {
        let why = format!("an item has {len} values here, but the buffer has room for {room}");
        return Err(Error::Invalid { call, why });
    }
    Ok(Rows {
        len,
        count: 1,
        pitch: len,
    })
}

/// Implements [`Layout`] for tuples: Rust has no generics over the length of a tuple.
macro_rules! tuple {
    ($($part:ident $at:tt $one:ident $other:ident),*) => {
        #[allow(unused_variables, reason = "one has no parts")]
        impl<$($part: Layout),*> Layout for ($($part,)*) {
            type Device = ($($part::Device,)*);
            type Host = ($($part::Host,)*);
            type Keys = ($($part::Keys,)*);
            type Sent = ($($part::Sent,)*);

            fn device(&self, stream: &Stream, rows: usize) -> Result<Self::Device> {
                Ok(($(self.$at.device(stream, rows)?,)*))
            }

            fn host(&self, device: &Device, rows: usize) -> Result<Self::Host> {
                Ok(($(self.$at.host(device, rows)?,)*))
            }

            fn upload(
                &self,
                stream: &Stream,
                rows: usize,
                ($($one,)*): Self::Host,
                ($($other,)*): &mut Self::Device,
            ) -> Result<Self::Sent> {
                Ok(($(self.$at.upload(stream, rows, $one, $other)?,)*))
            }

            fn download(
                &self,
                stream: &Stream,
                rows: usize,
                ($($other,)*): &Self::Device,
                ($($one,)*): Self::Host,
            ) -> Result<Self::Sent> {
                Ok(($(self.$at.download(stream, rows, $other, $one)?,)*))
            }

            fn arrived(($($one,)*): Self::Sent) -> Result<Self::Host> {
                Ok(($($part::arrived($one)?,)*))
            }

            fn lend(graph: &mut Graph, keys: Self::Keys) -> Result<Self::Host> {
                Ok(($($part::lend(graph, keys.$at)?,)*))
            }

            fn give_back(
                graph: &mut Graph,
                keys: Self::Keys,
                ($($one,)*): Self::Host,
            ) -> Result<()> {
                $($part::give_back(graph, keys.$at, $one)?;)*
                Ok(())
            }

            fn pad(&self, rows: usize, ($($one,)*): &mut Self::Host) {
                $(self.$at.pad(rows, $one);)*
            }
        }
    };
}

tuple!();
tuple!(A 0 a x, B 1 b y);
tuple!(A 0 a x, B 1 b y, C 2 c z);
tuple!(A 0 a x, B 1 b y, C 2 c z, D 3 d w);
