//! Where calls are made: each place is written once, and named by a number from then on.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use crate::python::{self, Place};
use crate::ring::SharedRing;
use crate::stack;
use crate::wire::{FRAMES, Head, Tag};

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
            return self.line(&place, ring);
        }
        let mut frames = [0; FRAMES];
        let count = stack::here(&mut frames);
        let mix = |hash: u64, frame: &usize| {
            (hash ^ *frame as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(31)
        };
        let hash = frames[..count].iter().fold(count as u64, mix);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = known.sites.len() as u32 + 1;
        let site = *known.sites.entry(hash).or_insert(fresh);
        if site == fresh {
            let mut words = vec![u64::from(site)];
            for &frame in &frames[..count] {
                let Some((bias, path)) = stack::module_of(frame) else {
                    continue;
                };
                if known.modules.insert(bias) {
                    ring.write_text(Tag::Module, &[bias as u64], path.as_os_str().as_bytes());
                }
                words.extend([bias as u64, (frame - bias) as u64]);
            }
            ring.write(
                Head {
                    words: 0,
                    tag: Tag::Site,
                    index: 0,
                    per_thread: false,
                },
                &words,
            );
        }
        site
    }

    /// Returns the number of a line of Python.
    fn line(&self, place: &Place, ring: &SharedRing) -> u32 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = known.sites.len() as u32 + 1;
        let site = *known.sites.entry(place.id).or_insert(fresh);
        if site == fresh {
            let mut text = [0; 1024];
            let file = place.file(&mut text[..900]);
            text[file] = b'\n';
            let function = place.function(&mut text[file + 1..]);
            let before = [u64::from(site), u64::from(place.line())];
            ring.write_text(Tag::Line, &before, &text[..file + 1 + function]);
        }
        site
    }
}
