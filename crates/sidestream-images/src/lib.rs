//! Pictures for training: found, decoded into pinned memory, uploaded, augmented and handed over, each beside the
//! others.
//!
//! - `source`, `order`, `decode` and `load` bring pictures of different sizes into the slabs of a ring, whole batches
//!   at a time. A slab holds the bytes of its pictures behind each other, as rows of red, green and blue bytes; a
//!   [`Placed`] says where one lies.
//! - `augment` draws the parameters of its operators for each picture by its [`Key`] alone, so that neither the number
//!   of workers nor the depth of the ring nor a resumed run changes a result, and applies them on the processor or on
//!   the GPU.

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
