//! Limits on the memory that a reader uses for one document.

/// Limits on a document, so that text from any source can be read safely.
///
/// The defaults are far above any program that people or fuzzers write, and far below what would exhaust a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of the text, in bytes.
    pub input_bytes: usize,
    /// Maximum nesting of lists and mappings. The format itself needs six.
    pub depth: usize,
    /// Maximum number of YAML nodes, with every alias expanded.
    pub nodes: usize,
    /// Maximum number of operations in one program.
    pub ops: usize,
    /// Maximum `repeat` of a kernel, and maximum `count` or `blocks`.
    pub repeat: u32,
    /// Maximum size of a buffer, in bytes.
    pub buffer_bytes: u64,
    /// Maximum device number.
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
            // The virtual address space of a GPU; the sum of two sizes does not overflow.
            buffer_bytes: 1 << 48,
            device: 63,
        }
    }
}
