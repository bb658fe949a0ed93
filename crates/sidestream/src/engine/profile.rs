//! A device profile: the constants from which the engine computes times, each with its source.

use std::fmt;

use crate::error::closest;

/// Lists every figure once: its description, its field, its key in the file and the physically sensible range.
/// Sections are in the order of the files.
macro_rules! figures {
    ($($(#[$doc:meta])* $field:ident = $read:ident($place:literal, $min:literal, $max:literal);)*) => {
        /// The constants of one kind of device and of its host.
        ///
        /// Read a profile with [`Profile::from_toml`], or take a built-in one: [`Profile::h200`], or any of
        /// [`Profile::NAMES`] by [`Profile::named`]. The fields are public so that a what-if analysis can change one and
        /// run again. The files under `profiles/` name the source of every value.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct Profile {
            /// The name of the device, as shown to users.
            pub name: String,
            $($(#[$doc])* pub $field: f64,)*
            tensor: [Option<f64>; Dtype::ALL.len()],
            sources: Vec<(&'static str, String)>,
        }

        impl Reader {
            const FIELDS: &[&str] = &[$($place),*];

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
    /// Threads resident on one multiprocessor at once.
    threads_per_sm = whole("chip.threads_per_sm", 32.0, 65536.0);
    /// Blocks resident on one multiprocessor at once.
    blocks_per_sm = whole("chip.blocks_per_sm", 1.0, 1024.0);
    /// Device memory, GiB.
    memory_gib = real("chip.memory_gib", 0.1, 1e5);
    /// Device memory bandwidth, GB/s.
    memory_gb_s = real("chip.memory_gb_s", 1.0, 1e6);
    /// Level 2 cache, MiB.
    l2_mib = real("chip.l2_mib", 0.01, 1e5);
    /// Peak single precision arithmetic, TFLOP/s.
    fp32_tflops = real("chip.fp32_tflops", 0.01, 1e5);
    /// Copy engines; if there is one, uploads and downloads share it.
    copy_engines = whole("chip.copy_engines", 1.0, 64.0);
    /// Latency of one dependent step (instruction) of a thread on an idle multiprocessor, cycles.
    chain_cycles = real("compute.chain_cycles", 0.1, 1000.0);
    /// Time in which one warp scheduler (a quarter of a multiprocessor) issues one step of one warp, cycles.
    issue_cycles = real("compute.issue_cycles", 0.1, 1000.0);
    /// Extra steps of a thread for each element accessed (load, store, address, loop).
    access_steps = real("compute.access_steps", 0.0, 1000.0);
    /// Latency of one dependent access to device memory, ns.
    memory_latency_ns = real("compute.memory_latency_ns", 1.0, 1e5);
    /// Latency of one dependent access to the level 2 cache, ns.
    l2_latency_ns = real("compute.l2_latency_ns", 1.0, 1e5);
    /// Spread of warp end times at a kernel's end: warps of one scheduler end at different times when they compete for
    /// issue slots. In steps of the issue rate per step of the chain.
    ragged = real("compute.ragged", 0.0, 10.0);
    /// Kernels resident on the device at once.
    max_kernels = whole("compute.max_kernels", 1.0, 4096.0);
    /// Bandwidth of the link between host and device, one way, pinned memory, GB/s.
    link_gb_s = real("link.gb_s", 0.01, 1e5);
    /// Fraction of its bandwidth that a copy keeps while the other direction is busy.
    both_ways = real("link.both_ways", 0.5, 1.0);
    /// Fraction of its speed that the set-up of a copy keeps while the other direction is busy.
    both_ways_setup = real("link.both_ways_setup", 0.5, 1.0);
    /// Time for which an upload occupies its copy engine before data flows, ns.
    upload_setup_ns = real("link.upload_setup_ns", 0.0, 1e6);
    /// Time for which a download occupies its copy engine before data flows, ns.
    download_setup_ns = real("link.download_setup_ns", 0.0, 1e6);
    /// Extra set-up time of a copy that waited for other work of its stream, if the engine last served another
    /// stream, ns.
    switch_ns = real("link.switch_ns", 0.0, 1e6);
    /// Time for which a copy inside the device or a memset occupies its engine before data flows, ns.
    device_copy_setup_ns = real("link.device_copy_setup_ns", 0.0, 1e6);
    /// Largest upload that travels inside the command stream rather than on the copy engine, bytes.
    inline_bytes = whole("link.inline_bytes", 0.0, 1e9);
    /// Time for which such an upload is set up before data flows, ns.
    inline_setup_ns = real("link.inline_setup_ns", 0.0, 1e6);
    /// Bandwidth of uploads from pageable memory, GB/s.
    pageable_upload_gb_s = real("link.pageable_upload_gb_s", 0.01, 1e5);
    /// Bandwidth of downloads to pageable memory, GB/s.
    pageable_download_gb_s = real("link.pageable_download_gb_s", 0.01, 1e5);
    /// Bandwidth of the host's own copy between pageable and pinned memory, GB/s.
    stage_gb_s = real("link.stage_gb_s", 0.01, 1e5);
    /// Bandwidth of the link to another device of the same host, GB/s.
    peer_gb_s = real("link.peer_gb_s", 0.01, 1e5);
    /// Time from the end of the call to the start of a kernel on an idle device, ns.
    submit_kernel_ns = real("latency.submit_kernel_ns", 0.0, 1e6);
    /// Time from the end of the call to the start of any other work on an idle device, ns.
    submit_ns = real("latency.submit_ns", 0.0, 1e6);
    /// Time from the end of one engine's work to the start of another engine's, inside one stream, ns.
    engine_hop_ns = real("latency.engine_hop_ns", 0.0, 1e6);
    /// Time from the end of a kernel to the start of the next one in the same stream, ns.
    kernel_gap_ns = real("latency.kernel_gap_ns", 0.0, 1e6);
    /// Time from the end of a kernel to the start of the next one in the same graph, ns.
    graph_gap_ns = real("latency.graph_gap_ns", 0.0, 1e6);
    /// Extra latency when the order comes from an event of another stream, ns.
    event_hop_ns = real("latency.event_hop_ns", 0.0, 1e6);
    /// Extra latency when the event was recorded on another device, ns.
    device_hop_ns = real("latency.device_hop_ns", 0.0, 1e6);
    /// Extra gap before a kernel while another stream of the device has a pending wait, ns.
    pending_wait_ns = real("latency.pending_wait_ns", 0.0, 1e6);
    /// Time from the end of device work to the return of the host call that waits for it, ns.
    host_return_ns = real("latency.host_return_ns", 0.0, 1e6);
    /// Latency from a stream to its host function, and also from the function back to the stream, ns.
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
    /// Host cost of a synchronize call that has nothing to wait for, ns.
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

/// The built-in profiles: a short name and the file. The first two were measured. The others have published figures where
/// there are any, and the values of the first profile elsewhere.
const FILES: [(&str, &str); 6] = [
    ("h200", include_str!("../../profiles/h200.toml")),
    ("h100", include_str!("../../profiles/h100.toml")),
    ("a100", include_str!("../../profiles/a100.toml")),
    ("a100-sxm", include_str!("../../profiles/a100-sxm.toml")),
    ("a10g", include_str!("../../profiles/a10g.toml")),
    ("rtx4090", include_str!("../../profiles/rtx4090.toml")),
];

/// A number type of matrix multiplications.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Dtype {
    /// Double precision.
    Fp64,
    /// Single precision, without tensor cores.
    Fp32,
    /// Single precision with the mantissa rounded to 10 bits, as tensor cores take it.
    Tf32,
    /// The 16-bit type with the range of single precision.
    Bf16,
    /// Half precision.
    Fp16,
    /// An 8-bit floating-point type, either of the two.
    Fp8,
    /// 8-bit integers.
    Int8,
}

impl Dtype {
    /// All types, in the order of the files.
    pub const ALL: [Dtype; 7] = [
        Dtype::Fp64,
        Dtype::Fp32,
        Dtype::Tf32,
        Dtype::Bf16,
        Dtype::Fp16,
        Dtype::Fp8,
        Dtype::Int8,
    ];

    /// Returns the short name.
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

    /// Returns the type of this name, as CUDA or PyTorch spells it.
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

/// The reason why a profile was refused: the field, the problem and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileError {
    /// The field, as `section.key`; empty if the text is not valid TOML.
    pub field: String,
    /// The problem, and the remedy.
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
    /// Returns the profile with other bandwidths of uploads and downloads of pageable memory, GB/s, which depend on the
    /// host. A value that is not positive changes nothing.
    #[must_use]
    pub fn with_pageable_gb_s(mut self, upload: f64, download: f64) -> Self {
        for (rate, given) in [
            (&mut self.pageable_upload_gb_s, upload),
            (&mut self.pageable_download_gb_s, download),
        ] {
            if given > 0.0 {
                *rate = given.clamp(0.01, 1e5);
            }
        }
        self
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// If the text is not valid TOML, or a field is missing, unknown, without a source, or outside the physically
    /// sensible range; the error names the field and the remedy.
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        let table: toml::Table = text.parse().map_err(|e| ProfileError {
            field: String::new(),
            problem: format!("not valid TOML: {e}"),
        })?;
        let mut reader = Reader {
            table,
            sources: Vec::new(),
        };
        reader.only_known()?;
        reader.profile()
    }

    /// Returns the profile of NVIDIA H200, fitted to measurements on one.
    pub fn h200() -> Self {
        Self::built_in(FILES[0].1)
    }

    /// Returns the built-in profile of this short name, one of [`Profile::NAMES`], if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::text(name).map(Self::built_in)
    }

    /// Returns the built-in profile of a GPU by the name that its driver reports, if there is one.
    pub fn of_gpu(name: &str) -> Option<Self> {
        // Datasheets write "80 GB", the driver "80GB".
        let plain = |name: &str| name.to_lowercase().replace(' ', "");
        let mut profiles = Self::NAMES.iter().filter_map(|known| Self::named(known));
        profiles.find(|profile| plain(&profile.name) == plain(name))
    }

    /// Returns the file of the built-in profile of this short name, as a template for another device.
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

    /// Returns the size of the device memory, bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.memory_gib * f64::from(1 << 30)) as u64
    }

    /// Returns the peak bandwidth of the device memory, bytes per second.
    pub fn memory_bytes_per_s(&self) -> f64 {
        self.memory_gb_s * 1e9
    }

    /// Returns the peak rate of single precision arithmetic, operations per second.
    pub fn flops_per_s(&self) -> f64 {
        self.fp32_tflops * 1e12
    }

    /// Returns the peak rate of arithmetic in this type, operations per second, on tensor cores where they support it; `None` if
    /// the file does not state it, or the device has no such arithmetic.
    pub fn peak_flops_per_s(&self, dtype: Dtype) -> Option<f64> {
        match dtype {
            Dtype::Fp32 => Some(self.flops_per_s()),
            _ => self.tensor[dtype as usize].map(|tflops| tflops * 1e12),
        }
    }

    /// Returns the source of [`Profile::peak_flops_per_s`].
    pub fn peak_source(&self, dtype: Dtype) -> Option<&str> {
        let field = dtype.field().unwrap_or("chip.fp32_tflops");
        let mut sources = self.sources();
        sources
            .find(|(of, _)| *of == field)
            .map(|(_, source)| source)
    }

    /// Returns the bandwidth of one direction of the link to the host, bytes per second.
    pub fn link_bytes_per_s(&self) -> f64 {
        self.link_gb_s * 1e9
    }

    /// Returns every field with the source of its value, in the order of the file format.
    pub fn sources(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.sources
            .iter()
            .map(|(field, source)| (*field, source.as_str()))
    }

    fn built_in(text: &str) -> Self {
        match Self::from_toml(text) {
            Ok(profile) => profile,
            // The text is compiled in and a test parses all of them: this is not input from outside.
            Err(e) => panic!("a built-in profile is broken: {e}"),
        }
    }
}

/// Removes fields from the table one by one.
struct Reader {
    table: toml::Table,
    sources: Vec<(&'static str, String)>,
}

impl Reader {
    fn name(&mut self) -> Result<String, ProfileError> {
        let problem = match self.table.remove("name") {
            Some(toml::Value::String(name)) if !name.trim().is_empty() => return Ok(name),
            Some(_) => "must be a non-empty string, for example \"NVIDIA H200\"",
            None => "is missing; add name = \"NVIDIA H200\" at the top",
        };
        Err(wrong("name", problem.into()))
    }

    /// Reads the peaks by type, each of which may be missing.
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
            // Integers up to 2^53 are exact, and every range ends far below.
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

    /// Refuses what no file has. This comes first: a key that is missing may only be misspelt.
    fn only_known(&self) -> Result<(), ProfileError> {
        let fields = Self::FIELDS.iter().copied();
        let fields = fields.chain(Dtype::ALL.into_iter().filter_map(Dtype::field));
        let fields: Vec<_> = fields.filter_map(|field| field.split_once('.')).collect();
        let unknown = |place: &str, what: &str, meant: Option<&str>| {
            let remedy = match meant {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "remove it".to_owned(),
            };
            Err(wrong(place, format!("is not a {what}; {remedy}")))
        };
        for (section, value) in self.table.iter().filter(|(key, _)| *key != "name") {
            let has = fields.iter().filter(|(of, _)| of == section);
            let mut keys = has.map(|&(_, key)| key).peekable();
            if keys.peek().is_none() {
                let sections = fields.iter().map(|&(section, _)| section);
                let meant = closest(section, sections.chain(["name"]));
                return unknown(section, "section or key of a device profile", meant);
            }
            for key in value.as_table().into_iter().flat_map(toml::Table::keys) {
                if !keys.clone().any(|known| known == key) {
                    let (place, of) = (format!("{section}.{key}"), format!("key of [{section}]"));
                    return unknown(&place, &of, closest(key, keys));
                }
            }
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
