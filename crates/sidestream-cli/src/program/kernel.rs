//! What is known of a kernel: its name, and which parameters point to memory that it only reads.

use std::collections::HashMap;

/// A kernel of the program.
#[derive(Default, Debug)]
pub struct KnownKernel {
    /// Its name, as a reader knows it.
    pub name: String,
    /// By parameter: whether it is a pointer to const.
    reads_only: Vec<bool>,
    /// By the first address that it got: the other parameters. With others at the same address, it works on parts of the
    /// memory that the address does not tell.
    seen: HashMap<u64, u64>,
    is_by_number: bool,
}

impl KnownKernel {
    /// Returns a kernel of this name, mangled or not.
    pub fn new(mangled: &str) -> KnownKernel {
        KnownKernel {
            name: mangled.to_owned(),
            ..KnownKernel::default()
        }
    }

    /// Whether a parameter is a pointer to memory that the kernel only reads.
    pub fn reads_only(&self, parameter: u32) -> bool {
        self.reads_only
            .get(parameter as usize)
            .copied()
            .unwrap_or(false)
    }

    /// Takes note of a launch, and returns whether numbers among the parameters were seen to tell which part of the memory
    /// at an address the kernel works on.
    pub fn launched(&mut self, address: u64, others: u64) -> bool {
        if !self.is_by_number {
            if self.seen.len() > 64 {
                self.seen.clear();
            }
            self.is_by_number = *self.seen.entry(address).or_insert(others) != others;
        }
        self.is_by_number
    }
}
