//! The position of a run in its data, and the data that it belongs to.

use serde::{Deserialize, Serialize};

use super::{Loader, Slab};
use crate::decode::Damage;
use crate::order::Uneven;
use crate::{Error, Result};

/// A position from which another process can continue: on any rank, with any number of workers and any batch size,
/// but with the same pictures in the same order.
///
/// The state is equal on all ranks, so one of them may save it for all. It is plain data (`serde`), and its size does
/// not grow with the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Version of this structure: 1.
    pub version: u32,
    /// Number of complete epochs.
    pub epoch: u64,
    /// Number of samples of this epoch that all ranks together have seen.
    pub seen: u64,
    /// Seed of the order.
    pub seed: u64,
    /// Whether the samples are shuffled.
    pub shuffle: bool,
    /// Whether samples are repeated for an even division among the ranks (otherwise they are dropped).
    pub repeat: bool,
    /// Number of samples in the data.
    pub samples: u64,
    /// Digest of the names and labels, in hexadecimal.
    pub data: String,
    /// Which decoders produced the pixels, and the share of each.
    pub decoder: String,
    /// Whether pictures are turned as their EXIF data says.
    pub oriented: bool,
    /// Whether pictures with faults are accepted.
    pub faulty: bool,
}

/// Larger than any run's number of epochs: no loader writes a state with more.
const MAX_EPOCHS: u64 = 1 << 32;

impl State {
    /// Returns the state as JSON, in one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and short texts")
    }

    /// Reads a state from JSON.
    ///
    /// # Errors
    /// [`Error::State`] if the text is not a state.
    pub fn from_json(text: &str) -> Result<State> {
        serde_json::from_str(text).map_err(|error| {
            let why = error.to_string();
            // The position in a line that a program wrote does not help the user.
            let why = why.split(" at line ").next().unwrap_or(&why);
            Error::State(format!(
                "this is not the state of a loader: {why}; give the saved text unchanged"
            ))
        })
    }
}

impl<S: Slab> Loader<S> {
    /// Returns the loader's position: after the last batch that it returned. Batches that its workers have prepared
    /// beyond it do not count.
    pub fn state(&self) -> State {
        let order = self.order();
        let options = self.options();
        // At the end of an epoch the position is the start of the next one, so that a resumed run does not begin with
        // an empty epoch.
        let (at, _) = self.plan().from(self.at());
        State {
            version: 1,
            epoch: at.epoch,
            seen: at.place * u64::from(order.world),
            seed: order.seed,
            shuffle: order.shuffle,
            repeat: order.uneven == Uneven::Repeat,
            samples: order.samples,
            data: format!("{:016x}", self.dataset().identity()),
            decoder: options.decoder(),
            oriented: options.decode.orient,
            faulty: options.decode.damage == Damage::Accept,
        }
    }

    /// Continues from the position in the state. Batches that the workers have prepared are discarded.
    ///
    /// # Errors
    /// [`Error::State`] if the state belongs to other data, another order, another decoder, or if the number of
    /// samples seen is not a multiple of the number of ranks. The loader then keeps its position.
    pub fn load_state(&mut self, state: &State) -> Result<()> {
        let here = self.state();
        let refuse = |what: &str,
                      there: &dyn std::fmt::Display,
                      here: &dyn std::fmt::Display,
                      remedy: &str| {
            Err(Error::State(format!(
                "the state has {what} {there}, and this loader {here}; {remedy}"
            )))
        };
        if state.version != here.version {
            return refuse(
                "version",
                &state.version,
                &here.version,
                "load it with the version that wrote it",
            );
        }
        if (state.samples, &state.data) != (here.samples, &here.data) {
            let shown =
                |state: &State| format!("{} samples with digest {}", state.samples, state.data);
            let remedy = "the files or their labels have changed since: restore the old ones, or start a new run";
            return refuse("data of", &shown(state), &shown(&here), remedy);
        }
        if state.decoder != here.decoder {
            let remedy = "the pixels would differ: use the same build and the same share of a GPU's engines, or start a new run";
            return refuse("pictures by", &state.decoder, &here.decoder, remedy);
        }
        let options = [
            ("seed", state.seed.to_string(), here.seed.to_string()),
            (
                "shuffle",
                state.shuffle.to_string(),
                here.shuffle.to_string(),
            ),
            ("repeat", state.repeat.to_string(), here.repeat.to_string()),
            (
                "oriented",
                state.oriented.to_string(),
                here.oriented.to_string(),
            ),
            ("faulty", state.faulty.to_string(), here.faulty.to_string()),
        ];
        for (name, there, here) in options {
            if there != here {
                return refuse(name, &there, &here, "make the loader with the same options");
            }
        }
        if state.epoch >= MAX_EPOCHS {
            return Err(Error::State(format!(
                "the state has epoch {}, and no run has more than {MAX_EPOCHS}; give the saved text unchanged",
                state.epoch
            )));
        }
        let order = self.order();
        let world = u64::from(order.world);
        if !state.seen.is_multiple_of(world) {
            let remedy = "use a number of ranks that divides it, as the saving run did";
            return refuse(
                "samples seen:",
                &state.seen,
                &format!("has {world} ranks"),
                remedy,
            );
        }
        if state.seen / world > order.len() {
            return refuse(
                "samples seen:",
                &state.seen,
                &format!("has {} an epoch", order.len() * world),
                "the state belongs to another loader",
            );
        }
        self.go_to(super::At {
            epoch: state.epoch,
            place: state.seen / world,
        });
        Ok(())
    }
}
