//! Stream programs: the work that host threads submit to CUDA streams, as text.
//!
//! A stream program is a YAML document that lists CUDA calls in the order in
//! which they are made, so that a checker can say whether the work they submit
//! is ordered. [`parse`] reads a document into [`Program`]s, [`write()`] turns
//! programs back into text. The format is described in `docs/reference/stream-programs.md`.
//!
//! Two kinds of failures are distinguished. Text that is not a YAML document of this format is an [`Error`]. A
//! program in a document that breaks the format is a [`BadProgram`]; the other programs of that document are still
//! read.
//!
//! ```
//! use sidestream_program::{Limits, Verb, parse, write};
//!
//! let text = "
//! name: upload_then_use
//! ops:
//! - {do: copy_async, s: s1, from: H, to: A}
//! - {do: kernel, s: s1, r: [A], w: [B]}
//! expect: {v: clean}
//! ";
//! let document = parse(text, &Limits::default())?;
//! let program = document.programs[0].as_ref().expect("follows the format");
//! assert_eq!(program.streams[0].name, "s1");
//! assert_eq!(program.ops[1].verb, Verb::Kernel);
//! assert!(write(&[program]).contains("- {do: kernel, s: s1, r: [A], w: [B]}"));
//! # Ok::<(), sidestream_program::Error>(())
//! ```

mod check;
mod error;
mod expect;
mod explore;
mod judge;
mod limits;
mod lower;
mod names;
mod on_device;
mod page;
mod program;
mod read;
mod record;
mod reduce;
mod repeat;
mod run;
mod verbs;
mod words;
mod write;
mod yaml;

pub use check::{Checked, bad_json, check, checked_json, unreadable_json};
pub use error::{BadProgram, Error};
pub use expect::{Expect, Expected, Failure, MustPair};
pub use explore::{Difference, Explored, explore};
pub use judge::unmet;
pub use limits::Limits;
pub use lower::{Buffer, Command, Lowered, POOL_STREAMS, Stream, lower};
pub use on_device::{Ended, NotOnDevice, OnDevice, Plan, Seen, differing, run_on};
pub use program::{
    Access, BufferDecl, BufferRef, Document, EventDecl, Fields, Level, Op, Origin, Program,
    StreamDecl, StreamRef,
};
pub use read::{parse, parse_bytes};
pub use record::record;
pub use reduce::{CannotReduce, Pair, Recorded, Reduced, reduce};
pub use repeat::mark_steps;
pub use run::{CONNECTIONS, CannotRun, ProgramNames, Run, Unmet, run, run_connected};
pub use verbs::Verb;
pub use write::{write, written};
