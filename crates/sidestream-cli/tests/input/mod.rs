//! Files for the command to read.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::command::FOLDER;

/// Writes a file and gives its name, which no other test has.
pub fn file(content: impl AsRef<[u8]>) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}_{number}.yaml", env!("CARGO_CRATE_NAME"));
    std::fs::write(Path::new(FOLDER).join(&name), content).expect("the folder is there");
    name
}
