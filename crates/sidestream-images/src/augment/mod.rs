//! Augmentation with torchvision's operators: one definition for the CPU and the GPU.
//!
//! A [`Plan`] draws the parameters of its operators for each picture from the picture's [`Key`] alone. Geometric
//! operators are composed into one map, which is sampled once. Blur, colour operators, erasing, mixing and
//! normalisation follow in the same launch, as long as no step needs statistics of the whole picture.
//!
//! ```
//! use sidestream_images::augment::{Batch, Form, Kind, Layout, Operator, Plan, Target};
//! use sidestream_images::{Key, Size};
//!
//! let size = Size { width: 8, height: 8 };
//! let plan = Plan::new(vec![
//!     Operator::Resize { size: Target::Exact(size), antialias: true },
//!     Operator::RandomHorizontalFlip { p: 0.5 },
//!     Operator::ToDtype { scale: true },
//! ])?;
//! let batch = Batch::uniform(Size { width: 16, height: 12 }, 2, Layout::Nhwc);
//! let keys = [0, 1].map(|sample| Key { seed: 0, epoch: 0, sample });
//! let drawn = plan.draw(&batch, &keys)?;
//! let form = Form { layout: Layout::Nchw, kind: Kind::F32 };
//! let pictures = vec![128; 2 * 3 * 16 * 12];
//! let result = drawn.host(&pictures, form)?;
//! assert_eq!(result.len(), 2 * 3 * 8 * 8 * 4);
//! assert_eq!(result[..4], (128f32 * (1.0 / 255.0)).to_le_bytes());
//! # Ok::<(), sidestream::error::Error>(())
//! ```

mod argument;
mod batch;
mod draw;
mod drawn;
mod form;
mod geometry;
mod launch;
mod operator;
mod parse;
mod pass;
#[doc(hidden)]
pub mod record;
mod render;
mod statistics;
mod step;
mod upright;

#[doc(hidden)]
pub use argument::Argument;
pub use batch::Batch;
pub use drawn::{Drawn, Mixed};
pub use form::{Form, Kind, Layout};
pub use launch::{Buffers, Needs};
#[doc(hidden)]
pub use launch::{SIZES, codes};
pub use operator::{Interpolation, MAX_SIDE, Operator, Target};
#[doc(hidden)]
pub use operator::{Row, TABLE};
pub use parse::{Value, parse};

use sidestream::error::Result;

use crate::{Key, Region, Size};
use draw::Units;
use operator::invalid;

/// The largest radius of a blur: kernels have at most 31 taps.
pub const MAX_RADIUS: u32 = 15;

/// A checked sequence of operators.
#[derive(Clone, Debug)]
pub struct Plan {
    operators: Vec<Operator>,
    fuse: bool,
}

impl Plan {
    /// Creates a plan of these operators.
    ///
    /// # Errors
    /// [`Error::Invalid`](sidestream::error::Error::Invalid) if an argument or the sequence is invalid; the message
    /// names the operator and a valid value.
    pub fn new(operators: Vec<Operator>) -> Result<Plan> {
        operator::check(&operators)?;
        Ok(Plan {
            operators,
            fuse: true,
        })
    }

    /// Returns this plan without fusion: one operator after another as in torchvision, each of which resamples the
    /// picture and rounds its values to levels of bytes. It is meant for comparisons, and takes a launch for each
    /// operator.
    pub fn unfused(self) -> Plan {
        Plan {
            fuse: false,
            ..self
        }
    }

    /// Returns the operators.
    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// Returns whether the results are floating-point numbers, because of a `ToDtype`, and not levels of bytes.
    pub fn is_numeric(&self) -> bool {
        self.operators
            .iter()
            .any(|operator| matches!(operator, Operator::ToDtype { .. }))
    }

    /// Returns the region of a picture of this size that the result depends on; no other pixel needs to be decoded.
    /// The result is equal to that of the whole picture, to the last bit.
    ///
    /// # Errors
    /// If the picture is empty or too large.
    pub fn region(&self, key: Key, full: Size) -> Result<Region> {
        checked(full, || format!("the picture of sample {}", key.sample))?;
        Ok(self.passes(key, full).0[0].region())
    }

    /// Draws the parameters of each picture of a batch. `batch` and `keys` are in the same order.
    ///
    /// The parameters of a picture depend only on its key and its size, not on the rest of the batch. Only the
    /// picture that `MixUp` and `CutMix` mix in comes from the batch: it is the previous picture, and for the first
    /// one the last.
    ///
    /// # Errors
    /// If the numbers of keys and pictures differ, if results would have different sizes, if a picture is too small
    /// for a blur, or if a picture does not contain its [`region`](Plan::region).
    pub fn draw(&self, batch: &Batch, keys: &[Key]) -> Result<Drawn> {
        Drawn::new(self, batch, keys)
    }

    fn passes(&self, key: Key, full: Size) -> (Vec<pass::Pass>, draw::Acts) {
        let acts = draw::draw(&self.operators, key, full);
        // A single colour operator rounds as torchvision does. With others, values are rounded once, at the end.
        let is_one = matches!(acts.acts[..], [draw::Act::Colour(_)]) && !self.is_numeric();
        (pass::passes(&acts, full, self.fuse && !is_one), acts)
    }

    fn units(&self) -> Units {
        Units::behind(&self.operators)
    }
}

fn checked(size: Size, what: impl Fn() -> String) -> Result<()> {
    let fits = |length: u32| (1..=MAX_SIDE).contains(&length);
    if fits(size.width) && fits(size.height) {
        return Ok(());
    }
    let Size { width, height } = size;
    let what = what();
    Err(invalid(format!(
        "{what} is {height} x {width}; give 1 to {MAX_SIDE} pixels a side"
    )))
}
