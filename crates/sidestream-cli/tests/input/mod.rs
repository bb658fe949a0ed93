//! Files for the command to read.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::command::{FOLDER, Ran, sidestream};

/// Writes a file and returns its name, which is unique to the call, even where each test is a process of its own.
pub fn file(content: impl AsRef<[u8]>) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut test = DefaultHasher::new();
    std::thread::current().name().hash(&mut test);
    let test = test.finish() as u32;
    let name = format!("{test:x}_{number}.yaml");
    std::fs::write(Path::new(FOLDER).join(&name), content).expect("the folder is there");
    name
}

/// Runs a subcommand with these options on a file with this content, which is called `FILE` in the output.
#[track_caller]
pub fn ran_on(verb: &str, content: impl AsRef<[u8]>, options: &[&str]) -> Ran {
    let name = file(content);
    let mut ran = sidestream(&[&[verb][..], options, &[name.as_str()]].concat());
    ran.out = ran.out.replace(&name, "FILE");
    ran.err = ran.err.replace(&name, "FILE");
    ran
}
