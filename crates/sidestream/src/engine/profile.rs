//! A device profile: the constants that turn work into time, each with the place that it came from.

use std::fmt;

/// Each figure once: what it is, its field, its place in the file and the range that is physically sensible.
/// Sections follow each other as in the files.
macro_rules! figures {
    ($($(#[$doc:meta])* $field:ident = $read:ident($place:literal, $min:literal, $max:literal);)*) => {
        /// The constants of one kind of device and of the host that feeds it.
        ///
        /// Read one with [`Profile::from_toml`], or take a built-in one: [`Profile::h200`], or any of
        /// [`Profile::NAMES`] by [`Profile::named`]. The fields are public so that a what-if can change one and run again.
        /// The files under `profiles/` name the source of every value.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct Profile {
            /// What people call the device.
            pub name: String,
            $($(#[$doc])* pub $field: f64,)*
            tensor: [Option<f64>; Dtype::ALL.len()],
            sources: Vec<(&'static str, String)>,
        }

        impl Reader {
            fn profile(&mut self) -> Result<Profile, ProfileError> {
                Ok(Profile {
                    name: self.name()?,
                    $($field: self.$read($place, $min, $max)?,)*
                    tensor: self.tensor()?,
                    sources: std::mem::take(&mut self.sources),
                })
            }
        }
    };
}

figures! {
    /// Streaming multiprocessors.
    sms = whole("chip.sms", 1.0, 4096.0);
    /// Clock under load, GHz.
    clock_ghz = real("chip.clock_ghz", 0.05, 20.0);
    /// Threads that one multiprocessor holds at once.
    threads_per_sm = whole("chip.threads_per_sm", 32.0, 65536.0);
    /// Blocks that one multiprocessor holds at once.
    blocks_per_sm = whole("chip.blocks_per_sm", 1.0, 1024.0);
    /// Device memory, GiB.
    memory_gib = real("chip.memory_gib", 0.1, 1e5);
    /// Device memory bandwidth, GB/s.
    memory_gb_s = real("chip.memory_gb_s", 1.0, 1e6);
    /// Level 2 cache, MiB.
    l2_mib = real("chip.l2_mib", 0.01, 1e5);
    /// Peak of single precision arithmetic, TFLOP/s.
    fp32_tflops = real("chip.fp32_tflops", 0.01, 1e5);
    /// Copy engines: with one, uploads and downloads share it.
    copy_engines = whole("chip.copy_engines", 1.0, 64.0);
    /// Cycles from one dependent step of a thread to the next, on an idle multiprocessor.
    chain_cycles = real("compute.chain_cycles", 0.1, 1000.0);
    /// Cycles of one scheduler (a quarter of a multiprocessor) for one step of one warp.
    issue_cycles = real("compute.issue_cycles", 0.1, 1000.0);
    /// Extra steps of a thread for every access of one element (load, store, address, loop).
    access_steps = real("compute.access_steps", 0.0, 1000.0);
    /// One dependent trip to device memory, ns.
    memory_latency_ns = real("compute.memory_latency_ns", 1.0, 1e5);
    /// One dependent trip to the level 2 cache, ns.
    l2_latency_ns = real("compute.l2_latency_ns", 1.0, 1e5);
    /// Raggedness of a kernel's end: warps of one scheduler end at different times when they compete for issue.
    /// In steps of the issue rate per step of the chain.
    ragged = real("compute.ragged", 0.0, 10.0);
    /// Kernels that are resident at once.
    max_kernels = whole("compute.max_kernels", 1.0, 4096.0);
    /// Link between host and device, one way, pinned memory, GB/s.
    link_gb_s = real("link.gb_s", 0.01, 1e5);
    /// Share of its speed that a copy keeps while the other direction is busy.
    both_ways = real("link.both_ways", 0.5, 1.0);
    /// The same for the set-up of a copy.
    both_ways_setup = real("link.both_ways_setup", 0.5, 1.0);
    /// Time an upload holds its copy engine before data flows, ns.
    upload_setup_ns = real("link.upload_setup_ns", 0.0, 1e6);
    /// The same for a download, ns.
    download_setup_ns = real("link.download_setup_ns", 0.0, 1e6);
    /// Added to the set-up of a copy that waited for other work of its stream, when the engine served another stream
    /// before, ns.
    switch_ns = real("link.switch_ns", 0.0, 1e6);
    /// Time a copy inside the device or a memset holds its engine before data flows, ns.
    device_copy_setup_ns = real("link.device_copy_setup_ns", 0.0, 1e6);
    /// Uploads up to this size travel inside the command stream, beside the copy engine; bytes.
    inline_bytes = whole("link.inline_bytes", 0.0, 1e9);
    /// Time such an upload takes before data flows, ns.
    inline_setup_ns = real("link.inline_setup_ns", 0.0, 1e6);
    /// Uploads from pageable memory, GB/s.
    pageable_upload_gb_s = real("link.pageable_upload_gb_s", 0.01, 1e5);
    /// Downloads to pageable memory, GB/s.
    pageable_download_gb_s = real("link.pageable_download_gb_s", 0.01, 1e5);
    /// The host's own copy between pageable and pinned memory, GB/s.
    stage_gb_s = real("link.stage_gb_s", 0.01, 1e5);
    /// Link to another device of the same host, GB/s.
    peer_gb_s = real("link.peer_gb_s", 0.01, 1e5);
    /// From the end of the call to the start of a kernel on an idle device, ns.
    submit_kernel_ns = real("latency.submit_kernel_ns", 0.0, 1e6);
    /// From the end of the call to the start of anything else on an idle device, ns.
    submit_ns = real("latency.submit_ns", 0.0, 1e6);
    /// From the end of one engine's work to the start of another engine's, inside one stream, ns.
    engine_hop_ns = real("latency.engine_hop_ns", 0.0, 1e6);
    /// From the end of a kernel to the start of the next one in the same stream, ns.
    kernel_gap_ns = real("latency.kernel_gap_ns", 0.0, 1e6);
    /// The same between two kernels of one graph, ns.
    graph_gap_ns = real("latency.graph_gap_ns", 0.0, 1e6);
    /// Added when the order comes from an event of another stream, ns.
    event_hop_ns = real("latency.event_hop_ns", 0.0, 1e6);
    /// Added when the event was recorded on another device, ns.
    device_hop_ns = real("latency.device_hop_ns", 0.0, 1e6);
    /// Added to the gap of a kernel while another stream of the device holds a pending wait, ns.
    pending_wait_ns = real("latency.pending_wait_ns", 0.0, 1e6);
    /// From the end of device work to the return of the host call that waits for it, ns.
    host_return_ns = real("latency.host_return_ns", 0.0, 1e6);
    /// From stream to host function and back, each way, ns.
    callback_hop_ns = real("latency.callback_hop_ns", 0.0, 1e6);
    /// Host cost of a kernel launch, ns.
    launch_ns = real("calls.launch_ns", 0.0, 1e7);
    /// Host cost of an asynchronous copy or memset call, ns.
    copy_ns = real("calls.copy_ns", 0.0, 1e7);
    /// Host cost of an event record, ns.
    record_ns = real("calls.record_ns", 0.0, 1e7);
    /// Host cost of a wait for an event, ns.
    wait_ns = real("calls.wait_ns", 0.0, 1e7);
    /// Host cost of a query, ns.
    query_ns = real("calls.query_ns", 1.0, 1e7);
    /// Host cost of a synchronise that has nothing to wait for, ns.
    sync_ns = real("calls.sync_ns", 0.0, 1e7);
    /// Host cost of enqueueing a host function, ns.
    host_func_ns = real("calls.host_func_ns", 0.0, 1e7);
    /// Host cost of a stream-ordered allocation, ns.
    malloc_async_ns = real("calls.malloc_async_ns", 0.0, 1e7);
    /// Host cost of a stream-ordered free, ns.
    free_async_ns = real("calls.free_async_ns", 0.0, 1e7);
    /// Host cost of an allocation of device memory, ns.
    malloc_ns = real("calls.malloc_ns", 0.0, 1e9);
    /// Host cost of a free of device memory once the device is idle, ns.
    free_ns = real("calls.free_ns", 0.0, 1e9);
    /// Host cost of a graph launch, ns.
    graph_launch_ns = real("calls.graph_launch_ns", 0.0, 1e7);
    /// Host cost of creating or destroying a stream or an event, ns.
    create_ns = real("calls.create_ns", 0.0, 1e7);
}

/// The built-in profiles: a short name and the file. The first two were measured. The others have published figures, and the
/// rest as the first.
const FILES: [(&str, &str); 6] = [
    ("h200", include_str!("../../profiles/h200.toml")),
    ("h100", include_str!("../../profiles/h100.toml")),
    ("a100", include_str!("../../profiles/a100.toml")),
    ("a100-sxm", include_str!("../../profiles/a100-sxm.toml")),
    ("a10g", include_str!("../../profiles/a10g.toml")),
    ("rtx4090", include_str!("../../profiles/rtx4090.toml")),
];

/// A type of numbers, as products of matrices take them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Dtype {
    /// Double precision.
    Fp64,
    /// Single precision, without tensor cores.
    Fp32,
    /// Single precision that tensor cores round to 10 bits.
    Tf32,
    /// The half type with the range of single precision.
    Bf16,
    /// Half precision.
    Fp16,
    /// Eight bits, of either kind.
    Fp8,
    /// Whole numbers of eight bits.
    Int8,
}

impl Dtype {
    /// All of them, in the order of the files.
    pub const ALL: [Dtype; 7] = [
        Dtype::Fp64,
        Dtype::Fp32,
        Dtype::Tf32,
        Dtype::Bf16,
        Dtype::Fp16,
        Dtype::Fp8,
        Dtype::Int8,
    ];

    /// Its short name.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Fp64 => "fp64",
            Dtype::Fp32 => "fp32",
            Dtype::Tf32 => "tf32",
            Dtype::Bf16 => "bf16",
            Dtype::Fp16 => "fp16",
            Dtype::Fp8 => "fp8",
            Dtype::Int8 => "int8",
        }
    }

    /// The type of this name, by CUDA's words or PyTorch's.
    pub fn named(name: &str) -> Option<Dtype> {
        let name = name.to_lowercase();
        let plain = match name.as_str() {
            "float64" | "double" | "f64" => "fp64",
            "float32" | "float" | "f32" => "fp32",
            "bfloat16" => "bf16",
            "float16" | "half" | "f16" => "fp16",
            "float8_e4m3fn" | "float8_e5m2" | "f8" => "fp8",
            "i8" => "int8",
            name => name,
        };
        Dtype::ALL.into_iter().find(|of| of.name() == plain)
    }

    fn field(self) -> Option<&'static str> {
        match self {
            Dtype::Fp32 => None,
            Dtype::Fp64 => Some("tensor.fp64_tflops"),
            Dtype::Tf32 => Some("tensor.tf32_tflops"),
            Dtype::Bf16 => Some("tensor.bf16_tflops"),
            Dtype::Fp16 => Some("tensor.fp16_tflops"),
            Dtype::Fp8 => Some("tensor.fp8_tflops"),
            Dtype::Int8 => Some("tensor.int8_tops"),
        }
    }
}

/// Why a profile was refused: which field, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileError {
    /// The field, as `section.key`; empty when the text is no TOML at all.
    pub field: String,
    /// What is wrong and what to write instead.
    pub problem: String,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "device profile: {}", self.problem)
        } else {
            write!(f, "device profile, `{}`: {}", self.field, self.problem)
        }
    }
}

impl std::error::Error for ProfileError {}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// When the text is no TOML, or a field is missing, unknown, without a source, or outside the range that is
    /// physically sensible; the error names the field and the remedy.
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        let table: toml::Table = text.parse().map_err(|e| ProfileError {
            field: String::new(),
            problem: format!("not valid TOML: {e}"),
        })?;
        let mut reader = Reader {
            table,
            sources: Vec::new(),
        };
        let profile = reader.profile()?;
        reader.nothing_left()?;
        Ok(profile)
    }

    /// NVIDIA H200: fitted to measurements on one.
    pub fn h200() -> Self {
        Self::built_in(FILES[0].1)
    }

    /// The built-in profile of this short name, one of [`Profile::NAMES`], if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::text(name).map(Self::built_in)
    }

    /// The built-in profile of a GPU by what its driver calls it, if there is one.
    pub fn of_gpu(name: &str) -> Option<Self> {
        // "80 GB" in a datasheet is "80GB" to the driver.
        let plain = |name: &str| name.to_lowercase().replace(' ', "");
        let mut profiles = Self::NAMES.iter().filter_map(|known| Self::named(known));
        profiles.find(|profile| plain(&profile.name) == plain(name))
    }

    /// The file of the built-in profile of this short name, to be changed into one of another device.
    pub fn text(name: &str) -> Option<&'static str> {
        let mut files = FILES.iter();
        files
            .find(|(known, _)| *known == name)
            .map(|(_, text)| *text)
    }

    /// The short names that [`Profile::named`] knows.
    pub const NAMES: [&'static str; FILES.len()] = {
        let mut names = [""; FILES.len()];
        let mut at = 0;
        while at < FILES.len() {
            names[at] = FILES[at].0;
            at += 1;
        }
        names
    };

    /// Device memory, bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.memory_gib * f64::from(1 << 30)) as u64
    }

    /// What the device reads and writes in its memory at most, bytes a second.
    pub fn memory_bytes_per_s(&self) -> f64 {
        self.memory_gb_s * 1e9
    }

    /// Peak of single precision arithmetic, operations a second.
    pub fn flops_per_s(&self) -> f64 {
        self.fp32_tflops * 1e12
    }

    /// Peak of arithmetic in this type, operations a second, with tensor cores where they take it; none if the file does not
    /// say, or the device has no such arithmetic.
    pub fn peak_flops_per_s(&self, dtype: Dtype) -> Option<f64> {
        match dtype {
            Dtype::Fp32 => Some(self.flops_per_s()),
            _ => self.tensor[dtype as usize].map(|tflops| tflops * 1e12),
        }
    }

    /// Where that peak comes from.
    pub fn peak_source(&self, dtype: Dtype) -> Option<&str> {
        let field = dtype.field().unwrap_or("chip.fp32_tflops");
        let mut sources = self.sources();
        sources
            .find(|(of, _)| *of == field)
            .map(|(_, source)| source)
    }

    /// What one direction of the link to the host carries, bytes a second.
    pub fn link_bytes_per_s(&self) -> f64 {
        self.link_gb_s * 1e9
    }

    /// Every field with the place its value came from, in the order of the file format.
    pub fn sources(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.sources
            .iter()
            .map(|(field, source)| (*field, source.as_str()))
    }

    fn built_in(text: &str) -> Self {
        match Self::from_toml(text) {
            Ok(profile) => profile,
            // The text is part of the program and a test reads all of them: this is not input from outside.
            Err(e) => panic!("a built-in profile is broken: {e}"),
        }
    }
}

/// Takes fields out of the table one by one, so that what is left over is unknown.
struct Reader {
    table: toml::Table,
    sources: Vec<(&'static str, String)>,
}

impl Reader {
    fn name(&mut self) -> Result<String, ProfileError> {
        let problem = match self.table.remove("name") {
            Some(toml::Value::String(name)) if !name.trim().is_empty() => return Ok(name),
            Some(_) => "must be a text that is not empty, for example \"NVIDIA H200\"",
            None => "is missing; add name = \"NVIDIA H200\" at the top",
        };
        Err(wrong("name", problem.into()))
    }

    /// The peaks by type, each of which may be left out.
    fn tensor(&mut self) -> Result<[Option<f64>; Dtype::ALL.len()], ProfileError> {
        let mut peaks = [None; Dtype::ALL.len()];
        for dtype in Dtype::ALL {
            let Some(field) = dtype.field() else {
                continue;
            };
            let key = field.split_once('.').map_or("", |(_, key)| key);
            let section = self.table.get("tensor").and_then(toml::Value::as_table);
            if section.is_some_and(|section| section.contains_key(key)) {
                peaks[dtype as usize] = Some(self.real(field, 0.001, 1e6)?);
            }
        }
        Ok(peaks)
    }

    fn whole(&mut self, field: &'static str, min: f64, max: f64) -> Result<f64, ProfileError> {
        let value = self.real(field, min, max)?;
        if value.fract() != 0.0 {
            return Err(wrong(
                field,
                format!("is {value}, but must be a whole number"),
            ));
        }
        Ok(value)
    }

    fn real(&mut self, field: &'static str, min: f64, max: f64) -> Result<f64, ProfileError> {
        let example = |value: f64| {
            format!("write it as {{ value = {value}, source = \"where the number came from\" }}")
        };
        let refuse = |problem| Err(wrong(field, problem));
        let (section, key) = field.split_once('.').unwrap_or((field, ""));
        let entry = match self.table.get_mut(section) {
            Some(toml::Value::Table(t)) => t.remove(key),
            Some(_) => return Err(wrong(section, format!("must be a section, [{section}]"))),
            None => None,
        };
        let Some(entry) = entry else {
            return refuse(format!("is missing; {}", example(min)));
        };
        let number = |value: &toml::Value| match value {
            toml::Value::Float(v) => Some(*v),
            // Whole numbers up to 2^53 are exact, and every range ends far below.
            toml::Value::Integer(v) => Some(*v as f64),
            _ => None,
        };
        let toml::Value::Table(mut entry) = entry else {
            let stated = number(&entry).unwrap_or(min);
            return refuse(format!("has no source; {}", example(stated)));
        };
        let Some(value) = entry.remove("value").as_ref().and_then(number) else {
            return refuse(format!("has no number as its value; {}", example(min)));
        };
        let source = match entry.remove("source") {
            Some(toml::Value::String(s)) if !s.trim().is_empty() => s,
            _ => return refuse(format!("has no source; {}", example(value))),
        };
        if let Some(unknown) = entry.keys().next() {
            return refuse(format!(
                "has an unknown key `{unknown}`; only value and source belong here"
            ));
        }
        if !value.is_finite() || value < min || value > max {
            return refuse(format!(
                "is {value}, but must be from {min} to {max}; check the unit, which is the end of the name"
            ));
        }
        self.sources.push((field, source));
        Ok(value)
    }

    fn nothing_left(&self) -> Result<(), ProfileError> {
        const SECTIONS: [&str; 6] = ["chip", "tensor", "compute", "link", "latency", "calls"];
        for (section, value) in &self.table {
            let (place, what) = match value.as_table().map(|table| table.keys().next()) {
                Some(None) if SECTIONS.contains(&section.as_str()) => continue,
                Some(None) => (section.clone(), "a known section"),
                Some(Some(key)) => (format!("{section}.{key}"), "known"),
                None => (section.clone(), "known"),
            };
            let problem = format!("is not {what}; correct the spelling or remove it");
            return Err(wrong(&place, problem));
        }
        Ok(())
    }
}

fn wrong(field: &str, problem: String) -> ProfileError {
    ProfileError {
        field: field.to_string(),
        problem,
    }
}
