//! Measures a GPU with the runtime's calls and with the driver's, in turn. `overlap` uses it, and so does the library's
//! benchmark.

pub mod jobs;
pub mod own;
pub mod raw;
pub mod rounds;
