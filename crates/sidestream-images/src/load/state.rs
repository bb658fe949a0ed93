//! Where a run stands, and to which data it belongs.

use serde::{Deserialize, Serialize};

use super::{Loader, Slab};
use crate::decode::Damage;
use crate::order::Uneven;
use crate::{Error, Result};

/// A place in the data, to be continued from by another process: on any rank, with any number of workers and any size of
/// batches, but with the same pictures in the same order.
///
/// It is the same for all ranks, so that one of them may save it for all. It is plain data (`serde`), and stays as small as
/// this whatever the size of the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Of this structure: 1.
    pub version: u32,
    /// How many epochs are over.
    pub epoch: u64,
    /// How many samples of this epoch all ranks together have had.
    pub seen: u64,
    /// What the order is drawn from.
    pub seed: u64,
    /// Whether there is a drawn order.
    pub shuffle: bool,
    /// Whether uneven ends are repeated (else dropped).
    pub repeat: bool,
    /// How many samples the data has.
    pub samples: u64,
    /// The digest of their names and labels, in hexadecimal.
    pub data: String,
    /// Which decoders made the pixels, and which part each.
    pub decoder: String,
    /// Whether pictures are turned as EXIF says.
    pub oriented: bool,
    /// Whether faulty pictures are accepted.
    pub faulty: bool,
}

/// More epochs than any run has: a state with more was not written by a loader.
const MAX_EPOCHS: u64 = 1 << 32;

impl State {
    /// As JSON, in one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and short texts")
    }

    /// From JSON.
    ///
    /// # Errors
    /// [`Error::State`] if it is something else.
    pub fn from_json(text: &str) -> Result<State> {
        serde_json::from_str(text).map_err(|error| {
            let why = error.to_string();
            // Where it is in a line that nobody wrote by hand says nothing.
            let why = why.split(" at line ").next().unwrap_or(&why);
            Error::State(format!(
                "this is no state of a loader: {why}; give what was saved, as it was"
            ))
        })
    }
}

impl<S: Slab> Loader<S> {
    /// Where the loader stands: behind the last batch that it gave. What its workers have prepared beyond that does not count.
    pub fn state(&self) -> State {
        let order = self.order();
        let options = self.options();
        // At the end of an epoch the next one begins: whoever resumes there should not meet an epoch without batches.
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

    /// Goes where the state says. What workers have prepared is thrown away.
    ///
    /// # Errors
    /// [`Error::State`] if the state belongs to other data, another order, another decoder or a number of ranks that does not
    /// divide what was seen. The loader stays where it is.
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
            let remedy = "the files or their labels have changed since: bring back the old ones, or begin anew";
            return refuse("data of", &shown(state), &shown(&here), remedy);
        }
        if state.decoder != here.decoder {
            let remedy = "the pixels would be others: use the same build and the same share of a GPU's engines, or begin anew";
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
                "the state has epoch {}, and no run has more than {MAX_EPOCHS}; give what was saved, as it was",
                state.epoch
            )));
        }
        let order = self.order();
        let world = u64::from(order.world);
        if !state.seen.is_multiple_of(world) {
            let remedy = "use a number of ranks that divides it, as the one that saved it did";
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
                "this is no state of it",
            );
        }
        self.go_to(super::At {
            epoch: state.epoch,
            place: state.seen / world,
        });
        Ok(())
    }
}
