//! Performs the tasks of the workers.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use super::desk::{Desk, Picture, Read, Task};
use super::slab::{Piece, Slab, Whole, cut};
use super::{At, Batch, BrokenPicture, Chooses, ForEngines, Makes, OnBroken, Options};
use crate::decode::{Decoder, is_within, message, size_bytes};
use crate::header::Header;
use crate::order::Order;
use crate::source::Dataset;
use crate::{Error, Key, Placed, Region, Result};

/// Alignment of pictures in a slab, for wide loads on a GPU.
pub const ALIGN_BYTES: u64 = 16;

/// What all workers share.
pub(super) struct Shared<S: Slab> {
    pub dataset: Arc<Dataset>,
    pub order: Order,
    pub options: Options,
    pub choose: Box<Chooses>,
    pub make: Box<Makes<S>>,
    pub desk: Desk<S>,
}

/// Amount by which the `nice` value of a worker exceeds that of the thread that started it.
#[cfg(target_os = "linux")]
const STEP_BACK: i32 = 10;

/// Lowers the priority of this worker. There may be as many workers as cores: without this, the thread that submits
/// the training's kernels would wait for a core each time that it wakes up, and the GPU with it. Workers decode ahead
/// and can afford to wait.
///
/// On Linux the value belongs to the thread; elsewhere it belongs to the whole process, whose priority must not
/// change.
fn step_back() {
    #[cfg(target_os = "linux")]
    if let Ok(now) = rustix::process::getpriority_process(None) {
        // Where this is not permitted, the workers keep their priority.
        let _ = rustix::process::setpriority_process(None, (now + STEP_BACK).min(19));
    }
}

/// Runs a worker until the loader is dropped.
pub(super) fn work<S: Slab>(shared: &Arc<Shared<S>>) {
    step_back();
    let mut decoder = Decoder::new(shared.options.decode);
    while let Some(task) = shared.desk.task() {
        let batch = task.batch();
        let done = catch_unwind(AssertUnwindSafe(|| shared.perform(task, &mut decoder)));
        if let Err(panic) = done {
            // The batch must not wait forever for the picture of this worker.
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
            } => match self.read(self.key(at.epoch, at.place), &mut buffer, decoder, true) {
                Ok(picture) => {
                    let picture = Picture::Read(Read {
                        bytes: buffer,
                        ..picture
                    });
                    self.desk.put(batch, index, picture, None);
                }
                Err(picture) => self.desk.put(batch, index, picture, Some(buffer)),
            },
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
                piece,
            } => {
                let picture = decode(&read, placed, piece, decoder);
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
        Key::new(self.order.seed, epoch, self.order.sample(epoch, place))
    }

    /// Reads a file into the buffer, and determines the region to decode and whether engines decode it.
    #[expect(
        clippy::result_large_err,
        reason = "either is moved to the desk at once"
    )]
    fn read(
        &self,
        key: Key,
        buffer: &mut Vec<u8>,
        decoder: &Decoder,
        has_engines: bool,
    ) -> Result<Read, Picture<S>> {
        self.dataset
            .read(key.sample, buffer)
            .map_err(Picture::Broken)?;
        let header = decoder.look(buffer).map_err(Picture::Broken)?;
        let size = decoder.size(&header);
        let is_upright = !self.options.decode.orient || header.orientation == Default::default();
        if has_engines
            && is_upright
            && self.options.engines_take(key.sample)
            && let Some(file) = Header::for_engines(buffer).map(<[u8]>::len)
        {
            buffer.truncate(file);
            return Ok(Read {
                key,
                bytes: Vec::new(),
                for_engines: true,
                header,
                size,
                region: Region::whole(size),
            });
        }
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
            for_engines: false,
            header,
            size,
            region,
        })
    }

    /// Determines the place of each picture, and gets a slab that has room for all.
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
        // Files come first, so that a picture that replaces a broken one has room after all others.
        let (mut files, mut pixels, mut written) = (0u64, 0u64, 0u64);
        let mut places = Vec::new();
        for picture in &pictures {
            if let Picture::Read(read) = picture {
                let of_pixels = size_bytes(read.region.size);
                let (end, size_bytes) = if read.for_engines {
                    (&mut files, read.bytes.len() as u64)
                } else {
                    (&mut pixels, of_pixels)
                };
                written += if read.for_engines { of_pixels } else { 0 };
                let offset = end.next_multiple_of(ALIGN_BYTES);
                *end = offset + size_bytes;
                places.push((read.for_engines, offset..*end));
            }
        }
        let first_pixel = files.next_multiple_of(ALIGN_BYTES);
        // The pixels that engines write are not in the slab, but they are limited too: a header may claim any number.
        let most = self.options.max_slab_bytes;
        if pixels + written > most {
            slab.into_iter().for_each(|slab| self.desk.give_back(slab));
            return Err(Error::Slab {
                size_bytes: pixels + written,
                max_bytes: most,
            });
        }
        let slab = self.large_enough(slab, first_pixel + pixels, 0)?;
        let of_kind = |kind: bool| {
            let places = places.iter().filter(move |(is_file, _)| *is_file == kind);
            places.map(|(_, range)| range.start as usize..range.end as usize)
        };
        let first = first_pixel as usize;
        let of_pixels = of_kind(false).map(|range| first + range.start..first + range.end);
        let many_files = of_kind(true).count();
        let (whole, mut pieces) = cut(slab, of_kind(true).chain(of_pixels));
        let of_pixels = pieces.split_off(many_files);
        let (mut of_files, mut of_pixels) = (pieces.into_iter(), of_pixels.into_iter());
        let mut places = places.into_iter();
        for picture in &mut pictures {
            if matches!(picture, Picture::Read(_))
                && let Picture::Read(read) = std::mem::replace(picture, Picture::Open)
                && let Some((is_file, range)) = places.next()
                && let Some(piece) = if is_file {
                    of_files.next()
                } else {
                    of_pixels.next()
                }
            {
                let placed = Placed {
                    offset: range.start,
                    held: read.region,
                    full: read.size,
                };
                *picture = Picture::Cut(read, placed, piece);
            }
        }
        Ok((pictures, whole))
    }

    /// Returns the slab if it has `needed` bytes, or a larger one with the first `kept` bytes copied to it.
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
            // The old slab is freed first: both at once may not fit into memory.
            old = None;
        }
        // A quarter more than needed, since the next batch will need slightly more or less.
        let wanted = (needed + needed / 4).next_multiple_of(1 << 16).min(most) as usize;
        let made = catch_unwind(AssertUnwindSafe(|| (self.make)(wanted)));
        let made = made.unwrap_or_else(|panic| Err(message(&*panic)));
        let mut slab = made.map_err(|why| Error::Memory(format!("{wanted} bytes: {why}")))?;
        if (slab.bytes().len() as u64) < needed {
            let got = slab.bytes().len();
            return Err(Error::Memory(format!(
                "{wanted} bytes were requested, and the slab has {got}"
            )));
        }
        if let Some(mut old) = old {
            slab.bytes()[..kept].copy_from_slice(&old.bytes()[..kept]);
        }
        Ok(slab)
    }

    /// Loads a batch again without engines, on threads that end when it is loaded.
    pub fn on_processor(self: &Arc<Self>, at: At, many: u64) -> Result<Batch<S>> {
        let read = |place: u64, decoder: &mut Decoder| {
            let mut buffer = Vec::new();
            match self.read(self.key(at.epoch, place), &mut buffer, decoder, false) {
                Ok(read) => Picture::Read(Read {
                    bytes: buffer,
                    ..read
                }),
                Err(picture) => picture,
            }
        };
        let pictures = self.each((at.place..at.place + many).collect(), read)?;
        let (pictures, whole) = self.lay_out(pictures, None)?;
        let pictures = self.each(pictures, |picture, decoder| match picture {
            Picture::Cut(read, placed, piece) => decode(&read, placed, piece, decoder),
            other => other,
        })?;
        self.finish(at, pictures, whole, &mut Decoder::new(self.options.decode))
    }

    fn each<T: Send, R: Send>(
        &self,
        all: Vec<T>,
        f: impl Fn(T, &mut Decoder) -> R + Sync,
    ) -> Result<Vec<R>> {
        let share = all.len().div_ceil(self.options.threads()).max(1);
        let mut all = all.into_iter();
        thread::scope(|scope| {
            let mut threads = Vec::new();
            while all.len() > 0 {
                let some: Vec<T> = all.by_ref().take(share).collect();
                let f = &f;
                threads.push(scope.spawn(move || {
                    let mut decoder = Decoder::new(self.options.decode);
                    let some = some.into_iter().map(|one| f(one, &mut decoder));
                    some.collect::<Vec<R>>()
                }));
            }
            let mut done = Vec::new();
            for thread in threads {
                let some = thread.join();
                done.extend(some.map_err(|panic| Error::Worker(message(&*panic)))?);
            }
            Ok(done)
        })
    }

    /// Skips or replaces the broken pictures, and makes the batch.
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
        let (mut files, mut pixels) = (0, 0);
        for picture in &pictures {
            match picture {
                Picture::Encoded(_, _, file) => files = file.end.max(files),
                Picture::Decoded(placed, _) => {
                    pixels = pixels.max(placed.offset + size_bytes(placed.held.size))
                }
                _ => {}
            }
        }
        let first_pixel = files.next_multiple_of(ALIGN_BYTES);
        let mut batch = Batch::new(self, at, first_pixel..first_pixel + pixels);
        for (picture, place) in pictures.into_iter().zip(at.place..) {
            match picture {
                Picture::Decoded(placed, key) => {
                    batch.add(placed, key, self.dataset.label(key.sample))
                }
                Picture::Encoded(placed, key, file) => {
                    let picture = batch.len();
                    batch.encoded.push(ForEngines { picture, file });
                    batch.add(placed, key, self.dataset.label(key.sample));
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
        batch.place_encoded();
        Ok(batch)
    }

    /// Replaces a broken picture by the next good one of the epoch. Its pixels go after all others, so that none of
    /// them moves. The good picture is decoded here, even if there are engines.
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
            let read = match self.read(key, &mut buffer, decoder, false) {
                Ok(read) => read,
                Err(Picture::Failed(error)) => return Err(error),
                Err(_) => continue,
            };
            let start = batch.decoded.end.next_multiple_of(ALIGN_BYTES);
            let end = start + size_bytes(read.region.size);
            slab = self.large_enough(Some(slab), end, batch.decoded.end as usize)?;
            let into = &mut slab.bytes()[start as usize..end as usize];
            if decoder
                .decode(&buffer, &read.header, read.region, into)
                .is_ok()
            {
                batch.decoded.end = end;
                let placed = Placed {
                    offset: start - batch.decoded.start,
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

/// Decodes a picture into its piece, or copies its file there.
fn decode<S: Slab>(
    read: &Read,
    placed: Placed,
    mut piece: Piece<S>,
    decoder: &mut Decoder,
) -> Picture<S> {
    // The piece is dropped when this function returns: the slab can be taken out only when no pieces are left.
    if read.for_engines {
        piece.copy_from_slice(&read.bytes);
        let file = placed.offset..placed.offset + read.bytes.len() as u64;
        return Picture::Encoded(placed, read.key, file);
    }
    match decoder.decode(&read.bytes, &read.header, read.region, &mut piece) {
        Ok(()) => Picture::Decoded(placed, read.key),
        Err(why) => Picture::Broken(why),
    }
}

/// Maximum number of pictures that are tried as a replacement.
const MAX_TRIES: u64 = 100;

impl<S: Slab> Batch<S> {
    fn new(shared: &Arc<Shared<S>>, at: At, decoded: Range<u64>) -> Batch<S> {
        Batch {
            slab: None,
            home: Arc::downgrade(shared),
            epoch: at.epoch,
            first_place: at.place,
            pixels_bytes: decoded.end - decoded.start,
            decoded,
            encoded: Vec::new(),
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

    /// Adds the pictures of the engines after all decoded ones.
    fn place_encoded(&mut self) {
        let mut end = self.decoded.end - self.decoded.start;
        for ForEngines { picture, .. } in &self.encoded {
            let placed = &mut self.placed[*picture];
            placed.offset = end.next_multiple_of(ALIGN_BYTES);
            end = placed.offset + size_bytes(placed.held.size);
        }
        self.pixels_bytes = end;
    }
}
