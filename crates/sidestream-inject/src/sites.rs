//! Where calls are made: each place is written once, and named by a number from then on.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use host_guard::hits::Hit;

use crate::python;
use crate::ring::SharedRing;
use crate::stack;
use crate::wire::{FRAMES, Tag};

/// The places that were written.
#[derive(Default)]
pub struct Sites(Mutex<Known>);

#[derive(Default)]
struct Known {
    sites: HashMap<u64, u32>,
    /// The load addresses of the modules that were written.
    modules: HashSet<usize>,
}

impl Sites {
    /// Returns the number of the place from which this thread has called CUDA.
    pub fn here(&self, ring: &SharedRing) -> u32 {
        if let Some(place) = python::line() {
            let names = || {
                let mut text = [0; 1024];
                let file = place.file(&mut text[..900]);
                text[file] = b'\n';
                let function = place.function(&mut text[file + 1..]);
                let names = &text[..file + 1 + function];
                (place.line(), String::from_utf8_lossy(names).into_owned())
            };
            return self.line(place.id, names, ring);
        }
        let mut frames = [0; FRAMES];
        let count = stack::here(&mut frames);
        self.native(&frames[..count], ring)
    }

    /// Returns the number of the place at which the host touched memory; `None` if that is in NVIDIA's libraries, or in a function
    /// that they call.
    pub fn of(&self, hit: &Hit, ring: &SharedRing) -> Option<u32> {
        let mut frames = [0; FRAMES];
        let from = [hit.stack.pc, hit.stack.sp, hit.stack.fp];
        let (count, is_skipped) = stack::saved(&mut frames, from, |at| hit.stack.word(at));
        let frames = &frames[..count];
        if is_skipped && hit.call.is_none()
            || frames.iter().skip(1).any(|at| stack::is_skipped(*at))
        {
            return None;
        }
        let line = hit.frames.lines().next();
        Some(match line {
            Some((file, function, line)) => {
                let place = || (line.max(0) as u32, format!("{file}\n{function}"));
                self.line(hit.frames.place().0 as u64, place, ring)
            }
            None => self.native(frames, ring),
        })
    }

    fn native(&self, frames: &[usize], ring: &SharedRing) -> u32 {
        let mix = |hash: u64, frame: &usize| {
            (hash ^ *frame as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(31)
        };
        let hash = frames.iter().fold(frames.len() as u64, mix);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = known.sites.len() as u32 + 1;
        let site = *known.sites.entry(hash).or_insert(fresh);
        if site == fresh {
            let mut words = vec![u64::from(site)];
            for &frame in frames {
                let Some((bias, path)) = stack::module_of(frame) else {
                    continue;
                };
                if known.modules.insert(bias) {
                    ring.write_text(Tag::Module, &[bias as u64], path.as_os_str().as_bytes());
                }
                words.extend([bias as u64, (frame - bias) as u64]);
            }
            ring.write_text(Tag::Site, &words, &[]);
        }
        site
    }

    /// Returns the number of a line of Python.
    fn line(&self, id: u64, place: impl FnOnce() -> (u32, String), ring: &SharedRing) -> u32 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = known.sites.len() as u32 + 1;
        let site = *known.sites.entry(id).or_insert(fresh);
        if site == fresh {
            let (line, names) = place();
            ring.write_text(
                Tag::Line,
                &[u64::from(site), u64::from(line)],
                names.as_bytes(),
            );
        }
        site
    }
}
