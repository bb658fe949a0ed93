//! Loads pictures for training: finds the files, decodes them into pinned memory, uploads, augments and returns whole
//! batches; all of these stages run concurrently.
//!
//! - `source`, `order`, `decode` and `load` bring pictures of different sizes into the slabs of a ring, one batch per
//!   slab. A slab holds the pixels of its pictures one after another, as rows of red, green and blue bytes; a
//!   [`Placed`] says where in the slab a picture begins.
//! - `augment` draws the parameters of its operators for each picture from its [`Key`] alone, so that the result
//!   depends neither on the number of workers, nor on the depth of the ring, nor on whether the run was resumed. It
//!   applies the operators on the CPU or on the GPU.

pub mod augment;
pub mod decode;
mod encode;
mod error;
pub mod header;
pub mod load;
pub mod order;
mod placed;
mod random;
pub mod source;

pub use encode::encode_png;
pub use error::{Broken, Error, Result};
pub use placed::{Key, Placed, Region, Size};
