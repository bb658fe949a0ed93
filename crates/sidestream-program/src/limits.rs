//! What a reader is willing to hold in memory for one document.

/// Bounds on a document, so that text from anywhere can be read safely.
///
/// The defaults are far above any program that people or fuzzers write and far
/// below what would exhaust a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Longest text, in bytes.
    pub input_bytes: usize,
    /// Deepest nesting of lists and mappings. The format itself needs six.
    pub depth: usize,
    /// Most YAML nodes, counted as if every alias were written out.
    pub nodes: usize,
    /// Most operations in one program.
    pub ops: usize,
    /// Largest `repeat` of a kernel and largest `count` or `blocks`.
    pub repeat: u32,
    /// Largest buffer, in bytes.
    pub buffer_bytes: u64,
    /// Highest device number.
    pub device: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            input_bytes: 32 << 20,
            depth: 32,
            nodes: 4 << 20,
            ops: 1 << 20,
            repeat: 1_000_000_000,
            // A GPU's virtual address space; sums of two sizes stay in range.
            buffer_bytes: 1 << 48,
            device: 63,
        }
    }
}
