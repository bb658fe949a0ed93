//! What is known of a kernel: its name, and which parameters point to memory that it only reads.

use std::collections::HashMap;

use super::symbols::{demangled, signature};

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
        let signature = signature(mangled).unwrap_or_default();
        KnownKernel {
            name: demangled(mangled),
            reads_only: parameters(&signature)
                .into_iter()
                .map(is_to_const)
                .collect(),
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

/// Returns the parameters of a function, from its signature such as `void scale<float>(float*, float const*)`.
fn parameters(signature: &str) -> Vec<&str> {
    let Some(end) = signature.rfind(')') else {
        return Vec::new();
    };
    // From the end, since template arguments may contain parentheses too.
    let (mut depth, mut last, mut found) = (0, end, Vec::new());
    for (at, letter) in signature[..end].char_indices().rev() {
        match letter {
            ')' | '>' | ']' | '}' => depth += 1,
            '(' | ',' if depth == 0 => {
                found.push(signature[at + 1..last].trim());
                last = at;
            }
            '(' | '<' | '[' | '{' => depth -= 1,
            _ => {}
        }
        if depth < 0 || letter == '(' && depth == 0 && last == at {
            break;
        }
    }
    found.reverse();
    found
}

/// Whether a type is a pointer to const, such as `float const*` or `float const* __restrict__`.
fn is_to_const(parameter: &str) -> bool {
    let pointer = parameter.trim_end_matches(|letter: char| letter != '*');
    pointer.trim_end_matches('*').ends_with(" const") && pointer.ends_with("const*")
}

#[cfg(test)]
mod tests {
    use super::KnownKernel;

    #[test]
    fn a_pointer_to_const_is_read_only() {
        let of = |mangled: &str| {
            let kernel = KnownKernel::new(mangled);
            let reads: Vec<bool> = (0..4).map(|at| kernel.reads_only(at)).collect();
            (kernel.name, reads)
        };
        let scale = of("_Z5scalePfPKffi");
        assert_eq!(scale, ("scale".into(), vec![false, true, false, false]));
        // `void f<float, int (*)(float)>(float const*, float*, float* const*)`
        let (name, reads) = of("_Z1fIfPFifEEvPKT_PS2_PKPf");
        assert_eq!(name, "f");
        assert_eq!(reads, [true, false, true, false]);
        assert_eq!(of("triton_poi_fused_0").0, "triton_poi_fused_0");
        assert_eq!(of("_Zbroken").1, [false; 4]);
    }
}
