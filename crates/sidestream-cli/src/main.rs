//! The command `sidestream`.
fn main() {}
