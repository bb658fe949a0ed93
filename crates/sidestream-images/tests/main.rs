//! Each file drives one public boundary of the crate.

mod pictures;

mod augment;
#[cfg(feature = "command")]
mod command;
mod decode;
mod engines;
mod load;
mod order;
mod source;
mod workers;
