//! What a GPU is measured with: the runtime's side and the driver's, in turn. `overlap` uses it, and the bench of the
//! library.

pub mod jobs;
pub mod own;
pub mod raw;
pub mod rounds;
