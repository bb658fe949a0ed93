//! Finds which part of a step a range is, by the names that PyTorch uses.

/// A part of a step on which advice depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// One-time work: the capture of a graph, compilation.
    SetUp,
    /// Code that is compiled already.
    Compiled,
    /// The optimizer changes parameters, or gradients are cleared.
    Optimizer,
    /// The backward pass.
    Backward,
    /// A cell of a recurrent network, called individually.
    Cell,
    /// Results are read.
    Reading,
}

impl Section {
    /// Returns the part for a range of this name, if the name shows it.
    pub fn of(name: &str) -> Option<Section> {
        const SET_UP: [&str; 7] = [
            "CUDAGraphNode.record",
            "compile_inner",
            "compile_fx",
            "backend_compile",
            "entire_frame_compile",
            "async_compile.wait",
            "triton.compile",
        ];
        const CELLS: [&str; 4] = ["lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"];
        let lower = name.to_ascii_lowercase();
        let is_set_up = SET_UP.iter().any(|part| name.contains(part)) || lower.contains("nvrtc");
        let is_compiled = name.contains("CompiledFxGraph")
            || name.contains("Torch-Compiled Region")
            || name.contains("CompiledFunction");
        let operator = name.strip_prefix("aten::");
        Some(match operator {
            _ if is_set_up => Section::SetUp,
            _ if is_compiled => Section::Compiled,
            _ if name.starts_with("Optimizer.") => Section::Optimizer,
            Some(op) if op.starts_with("_foreach_") || op.starts_with("_fused_") => {
                Section::Optimizer
            }
            Some(op) if CELLS.contains(&op) => Section::Cell,
            Some("item" | "_local_scalar_dense" | "is_nonzero") => Section::Reading,
            None if lower.contains("detokeni") => Section::Reading,
            _ if lower.contains("zero_grad") => Section::Optimizer,
            _ if lower.contains("backward") || name.starts_with("autograd::engine::") => {
                Section::Backward
            }
            _ => return None,
        })
    }

    /// Returns whether another thread or process could do the host's own work in this part.
    pub fn is_movable(self) -> bool {
        matches!(self, Section::Cell | Section::Reading)
    }
}

/// Returns whether this is a usual name of a range that makes data for the device.
pub fn prepares_data(name: &str) -> bool {
    const VERBS: [&str; 7] = ["load", "make", "get", "next", "prepare", "read", "fetch"];
    const NOUNS: [&str; 5] = ["batch", "data", "image", "sample", "input"];
    const WHOLE: [&str; 6] = [
        "dataload",
        "dataset",
        "augment",
        "preprocess",
        "collate",
        "tokeniz",
    ];
    if name.starts_with("aten::") || Section::of(name).is_some() {
        return false;
    }
    let name = name.to_ascii_lowercase();
    let has = |part: &str| name.contains(part);
    WHOLE.iter().any(|part| has(part))
        || VERBS.iter().any(|part| has(part)) && NOUNS.iter().any(|part| has(part))
}

/// The forms of a PyTorch optimizer besides a loop over its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forms {
    /// `foreach=True` and `fused=True`.
    Fused,
    /// `foreach=True` only.
    Foreach,
}

/// Returns the forms of the optimizer whose step a range is, if it is one of PyTorch's own.
pub fn optimizer(name: &str) -> Option<Forms> {
    let class = name
        .strip_prefix("Optimizer.step#")?
        .strip_suffix(".step")?;
    match class {
        "SGD" | "Adam" | "AdamW" | "Adagrad" => Some(Forms::Fused),
        "NAdam" | "RAdam" | "RMSprop" | "Rprop" | "Adadelta" | "Adamax" | "ASGD" => {
            Some(Forms::Foreach)
        }
        _ => None,
    }
}
