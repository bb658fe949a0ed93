//! What a worker does with a task.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::desk::{Desk, Picture, Read, Task};
use super::slab::{Slab, Whole, cut};
use super::{At, Batch, BrokenPicture, Chooses, Makes, OnBroken, Options};
use crate::decode::{Decoder, is_within, message, size_bytes};
use crate::order::Order;
use crate::source::Dataset;
use crate::{Error, Key, Placed, Result};

/// Where pictures begin in a slab: at whole multiples, as wide loads of a GPU want it.
pub const ALIGN_BYTES: u64 = 16;

/// What all workers have.
pub(super) struct Shared<S: Slab> {
    pub dataset: Arc<Dataset>,
    pub order: Order,
    pub options: Options,
    pub choose: Box<Chooses>,
    pub make: Box<Makes<S>>,
    pub desk: Desk<S>,
}

/// A worker, until the loader is gone.
pub(super) fn work<S: Slab>(shared: &Arc<Shared<S>>) {
    let mut decoder = Decoder::new(shared.options.decode);
    while let Some(task) = shared.desk.task() {
        let batch = task.batch();
        let done = catch_unwind(AssertUnwindSafe(|| shared.perform(task, &mut decoder)));
        if let Err(panic) = done {
            // Nobody may wait for ever for what this worker had.
            decoder = Decoder::new(shared.options.decode);
            shared
                .desk
                .finished(batch, Err(Error::Worker(message(&*panic))));
        }
    }
}

impl<S: Slab> Shared<S> {
    fn perform(self: &Arc<Self>, task: Task<S>, decoder: &mut Decoder) {
        match task {
            Task::Read {
                batch,
                index,
                at,
                mut buffer,
            } => {
                let key = self.key(at.epoch, at.place);
                match self.read(key, &mut buffer, decoder) {
                    Ok(picture) => {
                        let picture = Picture::Read(Read {
                            bytes: buffer,
                            ..picture
                        });
                        self.desk.put(batch, index, picture, None);
                    }
                    Err(picture) => self.desk.put(batch, index, picture, Some(buffer)),
                }
            }
            Task::LayOut {
                batch,
                pictures,
                slab,
            } => match self.lay_out(pictures, slab) {
                Ok((pictures, whole)) => self.desk.laid_out(batch, pictures, whole),
                Err(error) => self.desk.finished(batch, Err(error)),
            },
            Task::Decode {
                batch,
                index,
                read,
                placed,
                mut piece,
            } => {
                let decoded = decoder.decode(&read.bytes, &read.header, read.region, &mut piece);
                // Before it counts as done: the slab can be had back only without pieces.
                drop(piece);
                let picture = match decoded {
                    Ok(()) => Picture::Decoded(placed, read.key),
                    Err(why) => Picture::Broken(why),
                };
                self.desk.put(batch, index, picture, Some(read.bytes));
            }
            Task::Finish {
                batch,
                at,
                pictures,
                whole,
            } => {
                let result = self.finish(at, pictures, whole, decoder);
                self.desk.finished(batch, result);
            }
        }
    }

    fn key(&self, epoch: u64, place: u64) -> Key {
        Key {
            seed: self.order.seed,
            epoch,
            sample: self.order.sample(epoch, place),
        }
    }

    /// Reads a file into the buffer, and finds out what is wanted of it.
    #[expect(
        clippy::result_large_err,
        reason = "either is moved to the desk at once"
    )]
    fn read(&self, key: Key, buffer: &mut Vec<u8>, decoder: &Decoder) -> Result<Read, Picture<S>> {
        self.dataset
            .read(key.sample, buffer)
            .map_err(Picture::Broken)?;
        let header = decoder.look(buffer).map_err(Picture::Broken)?;
        let size = decoder.size(&header);
        let name = || self.dataset.name(key.sample);
        let chosen = catch_unwind(AssertUnwindSafe(|| (self.choose)(key, size)));
        let region = chosen.map_err(|panic| {
            Picture::Failed(Error::Function {
                name: name(),
                what: message(&*panic),
            })
        })?;
        if !is_within(region, size) {
            return Err(Picture::Failed(Error::Region {
                name: name(),
                region,
                size,
            }));
        }
        Ok(Read {
            key,
            bytes: Vec::new(),
            header,
            size,
            region,
        })
    }

    /// Says where each picture goes, and has a slab that holds them all.
    fn lay_out(
        &self,
        pictures: Vec<Picture<S>>,
        slab: Option<S>,
    ) -> Result<(Vec<Picture<S>>, Whole<S>)> {
        let mut pictures = pictures;
        if let Some(failed) = pictures
            .iter_mut()
            .find(|picture| matches!(picture, Picture::Failed(_)))
        {
            if let Some(slab) = slab {
                self.desk.give_back(slab);
            }
            return match std::mem::replace(failed, Picture::Open) {
                Picture::Failed(error) => Err(error),
                _ => Err(Error::Worker("a failure was lost".into())),
            };
        }
        let mut end = 0u64;
        let mut all = Vec::new();
        for picture in &pictures {
            if let Picture::Read(read) = picture {
                let placed = Placed {
                    offset: end.next_multiple_of(ALIGN_BYTES),
                    held: read.region,
                    full: read.size,
                };
                end = placed.offset + size_bytes(read.region.size);
                all.push((placed, end));
            }
        }
        let slab = self.large_enough(slab, end, 0)?;
        let ranges = all
            .iter()
            .map(|(placed, end)| placed.offset as usize..*end as usize);
        let (whole, pieces) = cut(slab, ranges);
        let mut cuts = all.iter().zip(pieces);
        for picture in &mut pictures {
            if matches!(picture, Picture::Read(_))
                && let Picture::Read(read) = std::mem::replace(picture, Picture::Open)
                && let Some(((placed, _), piece)) = cuts.next()
            {
                *picture = Picture::Cut(read, *placed, piece);
            }
        }
        Ok((pictures, whole))
    }

    /// The slab if it has so many bytes, or a larger one with the first `kept` bytes of it.
    fn large_enough(&self, slab: Option<S>, needed: u64, kept: usize) -> Result<S> {
        let mut old = slab;
        if let Some(slab) = &mut old
            && slab.bytes().len() as u64 >= needed
        {
            return old.ok_or_else(|| Error::Worker("a slab was lost".into()));
        }
        let most = self.options.max_slab_bytes;
        if needed > most {
            if let Some(slab) = old {
                self.desk.give_back(slab);
            }
            return Err(Error::Slab {
                size_bytes: needed,
                max_bytes: most,
            });
        }
        if kept == 0 {
            // Before the larger one is made: two at once may be more than there is.
            old = None;
        }
        // A quarter more than is needed now, since the next batch will need a little more or less.
        let wanted = (needed + needed / 4).next_multiple_of(1 << 16).min(most) as usize;
        let made = catch_unwind(AssertUnwindSafe(|| (self.make)(wanted)));
        let made = made.unwrap_or_else(|panic| Err(message(&*panic)));
        let mut slab = made.map_err(|why| Error::Memory(format!("{wanted} bytes: {why}")))?;
        if (slab.bytes().len() as u64) < needed {
            let got = slab.bytes().len();
            return Err(Error::Memory(format!(
                "{wanted} bytes were asked for, and {got} came"
            )));
        }
        if let Some(mut old) = old {
            slab.bytes()[..kept].copy_from_slice(&old.bytes()[..kept]);
        }
        Ok(slab)
    }

    /// Deals with the broken pictures, and makes the batch.
    fn finish(
        self: &Arc<Self>,
        at: At,
        pictures: Vec<Picture<S>>,
        whole: Whole<S>,
        decoder: &mut Decoder,
    ) -> Result<Batch<S>> {
        let slab = whole.take();
        let mut slab =
            slab.ok_or_else(|| Error::Worker("a piece of a slab is still in use".into()))?;
        let ends = pictures.iter().map(|picture| match picture {
            Picture::Decoded(placed, _) => placed.offset + size_bytes(placed.held.size),
            _ => 0,
        });
        let mut batch = Batch::new(self, at, ends.max().unwrap_or(0));
        for (picture, place) in pictures.into_iter().zip(at.place..) {
            match picture {
                Picture::Decoded(placed, key) => {
                    batch.add(placed, key, self.dataset.label(key.sample))
                }
                Picture::Failed(error) => return Err(error),
                Picture::Broken(why) => {
                    let sample = self.order.sample(at.epoch, place);
                    let name = self.dataset.name(sample);
                    let mut broken = BrokenPicture {
                        sample,
                        name,
                        why,
                        replaced_by: None,
                    };
                    match self.options.broken {
                        OnBroken::Fail => {
                            self.desk.give_back(slab);
                            let BrokenPicture {
                                sample, name, why, ..
                            } = broken;
                            return Err(Error::Picture { sample, name, why });
                        }
                        OnBroken::Skip => {}
                        OnBroken::Replace => {
                            let (placed, key, held) =
                                self.replace(at, place, &broken, slab, &mut batch, decoder)?;
                            slab = held;
                            broken.replaced_by = Some(key.sample);
                            batch.add(placed, key, self.dataset.label(key.sample));
                        }
                    }
                    batch.broken.push(broken);
                }
                Picture::Open | Picture::Read(_) | Picture::Cut(..) => {
                    return Err(Error::Worker("a picture was left out".into()));
                }
            }
        }
        batch.slab = Some(slab);
        Ok(batch)
    }

    /// The next good picture of the epoch takes the place of a broken one. Its pixels go behind all others, so that none of
    /// them moves.
    fn replace(
        &self,
        at: At,
        place: u64,
        broken: &BrokenPicture,
        mut slab: S,
        batch: &mut Batch<S>,
        decoder: &mut Decoder,
    ) -> Result<(Placed, Key, S)> {
        let places = self.order.len();
        let tries = (places - 1).min(MAX_TRIES);
        let mut buffer = Vec::new();
        for step in 1..=tries {
            let key = self.key(at.epoch, (place + step) % places);
            let read = match self.read(key, &mut buffer, decoder) {
                Ok(read) => read,
                Err(Picture::Failed(error)) => return Err(error),
                Err(_) => continue,
            };
            let offset = batch.used_bytes.next_multiple_of(ALIGN_BYTES);
            let end = offset + size_bytes(read.region.size);
            slab = self.large_enough(Some(slab), end, batch.used_bytes as usize)?;
            let into = &mut slab.bytes()[offset as usize..end as usize];
            if decoder
                .decode(&buffer, &read.header, read.region, into)
                .is_ok()
            {
                batch.used_bytes = end;
                let placed = Placed {
                    offset,
                    held: read.region,
                    full: read.size,
                };
                return Ok((placed, key, slab));
            }
        }
        self.desk.give_back(slab);
        Err(Error::NoReplacement {
            name: broken.name.clone(),
            why: broken.why.clone(),
            tried: tries,
        })
    }
}

/// How many pictures are tried in place of a broken one.
const MAX_TRIES: u64 = 100;

impl<S: Slab> Batch<S> {
    fn new(shared: &Arc<Shared<S>>, at: At, used_bytes: u64) -> Batch<S> {
        Batch {
            slab: None,
            home: Arc::downgrade(shared),
            epoch: at.epoch,
            first_place: at.place,
            used_bytes,
            placed: Vec::new(),
            keys: Vec::new(),
            labels: Vec::new(),
            broken: Vec::new(),
        }
    }

    fn add(&mut self, placed: Placed, key: Key, label: Option<u32>) {
        self.placed.push(placed);
        self.keys.push(key);
        self.labels.push(label);
    }
}
