//! Stream programs: what host threads submit to CUDA streams, written as text.
