//! A device profile: the constants that turn work into time, each with the place that it came from.

use std::fmt;

/// The constants of one kind of device and of the host that feeds it.
///
/// Read one with [`Profile::from_toml`], or take a built-in one: [`Profile::h200`], [`Profile::a100`],
/// [`Profile::a10g`], [`Profile::rtx4090`]. The fields are public so that a what-if can change one and run again.
/// The files under `profiles/` name the source of every value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// What people call the device.
    pub name: String,
    /// Streaming multiprocessors.
    pub sms: f64,
    /// Clock under load, GHz.
    pub clock_ghz: f64,
    /// Threads that one multiprocessor holds at once.
    pub threads_per_sm: f64,
    /// Blocks that one multiprocessor holds at once.
    pub blocks_per_sm: f64,
    /// Device memory, GiB.
    pub memory_gib: f64,
    /// Device memory bandwidth, GB/s.
    pub memory_gb_s: f64,
    /// Level 2 cache, MiB.
    pub l2_mib: f64,
    /// Peak of single precision arithmetic, TFLOP/s.
    pub fp32_tflops: f64,
    /// Copy engines: with one, uploads and downloads share it.
    pub copy_engines: f64,
    /// Cycles from one dependent step of a thread to the next, on an idle multiprocessor.
    pub chain_cycles: f64,
    /// Cycles of one scheduler (a quarter of a multiprocessor) for one step of one warp.
    pub issue_cycles: f64,
    /// Extra steps of a thread for every access of one element (load, store, address, loop).
    pub access_steps: f64,
    /// One dependent trip to device memory, ns.
    pub memory_latency_ns: f64,
    /// One dependent trip to the level 2 cache, ns.
    pub l2_latency_ns: f64,
    /// Raggedness of a kernel's end: warps of one scheduler end at different times when they compete for issue.
    /// In steps of the issue rate per step of the chain.
    pub ragged: f64,
    /// Kernels that are resident at once.
    pub max_kernels: f64,
    /// Link between host and device, one way, pinned memory, GB/s.
    pub link_gb_s: f64,
    /// Share of its speed that a copy keeps while the other direction is busy.
    pub both_ways: f64,
    /// The same for the set-up of a copy.
    pub both_ways_setup: f64,
    /// Time an upload holds its copy engine before data flows, ns.
    pub upload_setup_ns: f64,
    /// The same for a download, ns.
    pub download_setup_ns: f64,
    /// Added to the set-up of a copy that waited for other work of its stream, when the engine served another stream
    /// before, ns.
    pub switch_ns: f64,
    /// Time a copy inside the device or a memset holds its engine before data flows, ns.
    pub device_copy_setup_ns: f64,
    /// Uploads up to this size travel inside the command stream, beside the copy engine; bytes.
    pub inline_bytes: f64,
    /// Time such an upload takes before data flows, ns.
    pub inline_setup_ns: f64,
    /// Uploads from pageable memory, GB/s.
    pub pageable_upload_gb_s: f64,
    /// Downloads to pageable memory, GB/s.
    pub pageable_download_gb_s: f64,
    /// The host's own copy between pageable and pinned memory, GB/s.
    pub stage_gb_s: f64,
    /// Link to another device of the same host, GB/s.
    pub peer_gb_s: f64,
    /// From the end of the call to the start of a kernel on an idle device, ns.
    pub submit_kernel_ns: f64,
    /// From the end of the call to the start of anything else on an idle device, ns.
    pub submit_ns: f64,
    /// From the end of one engine's work to the start of another engine's, inside one stream, ns.
    pub engine_hop_ns: f64,
    /// From the end of a kernel to the start of the next one in the same stream, ns.
    pub kernel_gap_ns: f64,
    /// The same between two kernels of one graph, ns.
    pub graph_gap_ns: f64,
    /// Added when the order comes from an event of another stream, ns.
    pub event_hop_ns: f64,
    /// Added when the event was recorded on another device, ns.
    pub device_hop_ns: f64,
    /// Added to the gap of a kernel while another stream of the device holds a pending wait, ns.
    pub pending_wait_ns: f64,
    /// From the end of device work to the return of the host call that waits for it, ns.
    pub host_return_ns: f64,
    /// From stream to host function and back, each way, ns.
    pub callback_hop_ns: f64,
    /// Host cost of a kernel launch, ns.
    pub launch_ns: f64,
    /// Host cost of an asynchronous copy or memset call, ns.
    pub copy_ns: f64,
    /// Host cost of an event record, ns.
    pub record_ns: f64,
    /// Host cost of a wait for an event, ns.
    pub wait_ns: f64,
    /// Host cost of a query, ns.
    pub query_ns: f64,
    /// Host cost of a synchronise that has nothing to wait for, ns.
    pub sync_ns: f64,
    /// Host cost of enqueueing a host function, ns.
    pub host_func_ns: f64,
    /// Host cost of a stream-ordered allocation, ns.
    pub malloc_async_ns: f64,
    /// Host cost of a stream-ordered free, ns.
    pub free_async_ns: f64,
    /// Host cost of an allocation of device memory, ns.
    pub malloc_ns: f64,
    /// Host cost of a free of device memory once the device is idle, ns.
    pub free_ns: f64,
    /// Host cost of a graph launch, ns.
    pub graph_launch_ns: f64,
    /// Host cost of creating or destroying a stream or an event, ns.
    pub create_ns: f64,
    sources: Vec<(&'static str, String)>,
}

const H200: &str = include_str!("../../profiles/h200.toml");
const A100: &str = include_str!("../../profiles/a100.toml");
const A10G: &str = include_str!("../../profiles/a10g.toml");
const RTX4090: &str = include_str!("../../profiles/rtx4090.toml");

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
        Ok(Self {
            sources: reader.sources,
            ..profile
        })
    }

    /// NVIDIA H200: fitted to measurements on one.
    pub fn h200() -> Self {
        Self::built_in(H200)
    }

    /// NVIDIA A100 80 GB PCIe: published figures, the rest as on the H200.
    pub fn a100() -> Self {
        Self::built_in(A100)
    }

    /// NVIDIA A10G: published figures, the rest as on the H200.
    pub fn a10g() -> Self {
        Self::built_in(A10G)
    }

    /// NVIDIA GeForce RTX 4090: published figures, the rest as on the H200.
    pub fn rtx4090() -> Self {
        Self::built_in(RTX4090)
    }

    /// The built-in profile of this short name (`h200`, `a100`, `a10g`, `rtx4090`), if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::text(name).map(Self::built_in)
    }

    /// The file of the built-in profile of this short name, to be changed into one of another device.
    pub fn text(name: &str) -> Option<&'static str> {
        match name {
            "h200" => Some(H200),
            "a100" => Some(A100),
            "a10g" => Some(A10G),
            "rtx4090" => Some(RTX4090),
            _ => None,
        }
    }

    /// The short names that [`Profile::named`] knows.
    pub const NAMES: [&'static str; 4] = ["h200", "a100", "a10g", "rtx4090"];

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
            // The text is part of the program and a test reads all four: this is not input from outside.
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
    /// The list of fields, in one place, with the range that is physically sensible.
    fn profile(&mut self) -> Result<Profile, ProfileError> {
        let name = match self.table.remove("name") {
            Some(toml::Value::String(s)) if !s.trim().is_empty() => s,
            Some(_) => {
                return Err(wrong(
                    "name",
                    "must be a text that is not empty, for example \"NVIDIA H200\"".into(),
                ));
            }
            None => {
                return Err(wrong(
                    "name",
                    "is missing; add name = \"NVIDIA H200\" at the top".into(),
                ));
            }
        };
        Ok(Profile {
            name,
            sms: self.whole("chip.sms", 1.0, 4096.0)?,
            clock_ghz: self.real("chip.clock_ghz", 0.05, 20.0)?,
            threads_per_sm: self.whole("chip.threads_per_sm", 32.0, 65536.0)?,
            blocks_per_sm: self.whole("chip.blocks_per_sm", 1.0, 1024.0)?,
            memory_gib: self.real("chip.memory_gib", 0.1, 1e5)?,
            memory_gb_s: self.real("chip.memory_gb_s", 1.0, 1e6)?,
            l2_mib: self.real("chip.l2_mib", 0.01, 1e5)?,
            fp32_tflops: self.real("chip.fp32_tflops", 0.01, 1e5)?,
            copy_engines: self.whole("chip.copy_engines", 1.0, 64.0)?,
            chain_cycles: self.real("compute.chain_cycles", 0.1, 1000.0)?,
            issue_cycles: self.real("compute.issue_cycles", 0.1, 1000.0)?,
            access_steps: self.real("compute.access_steps", 0.0, 1000.0)?,
            memory_latency_ns: self.real("compute.memory_latency_ns", 1.0, 1e5)?,
            l2_latency_ns: self.real("compute.l2_latency_ns", 1.0, 1e5)?,
            ragged: self.real("compute.ragged", 0.0, 10.0)?,
            max_kernels: self.whole("compute.max_kernels", 1.0, 4096.0)?,
            link_gb_s: self.real("link.gb_s", 0.01, 1e5)?,
            both_ways: self.real("link.both_ways", 0.5, 1.0)?,
            both_ways_setup: self.real("link.both_ways_setup", 0.5, 1.0)?,
            upload_setup_ns: self.real("link.upload_setup_ns", 0.0, 1e6)?,
            download_setup_ns: self.real("link.download_setup_ns", 0.0, 1e6)?,
            switch_ns: self.real("link.switch_ns", 0.0, 1e6)?,
            device_copy_setup_ns: self.real("link.device_copy_setup_ns", 0.0, 1e6)?,
            inline_bytes: self.whole("link.inline_bytes", 0.0, 1e9)?,
            inline_setup_ns: self.real("link.inline_setup_ns", 0.0, 1e6)?,
            pageable_upload_gb_s: self.real("link.pageable_upload_gb_s", 0.01, 1e5)?,
            pageable_download_gb_s: self.real("link.pageable_download_gb_s", 0.01, 1e5)?,
            stage_gb_s: self.real("link.stage_gb_s", 0.01, 1e5)?,
            peer_gb_s: self.real("link.peer_gb_s", 0.01, 1e5)?,
            submit_kernel_ns: self.real("latency.submit_kernel_ns", 0.0, 1e6)?,
            submit_ns: self.real("latency.submit_ns", 0.0, 1e6)?,
            engine_hop_ns: self.real("latency.engine_hop_ns", 0.0, 1e6)?,
            kernel_gap_ns: self.real("latency.kernel_gap_ns", 0.0, 1e6)?,
            graph_gap_ns: self.real("latency.graph_gap_ns", 0.0, 1e6)?,
            event_hop_ns: self.real("latency.event_hop_ns", 0.0, 1e6)?,
            device_hop_ns: self.real("latency.device_hop_ns", 0.0, 1e6)?,
            pending_wait_ns: self.real("latency.pending_wait_ns", 0.0, 1e6)?,
            host_return_ns: self.real("latency.host_return_ns", 0.0, 1e6)?,
            callback_hop_ns: self.real("latency.callback_hop_ns", 0.0, 1e6)?,
            launch_ns: self.real("calls.launch_ns", 0.0, 1e7)?,
            copy_ns: self.real("calls.copy_ns", 0.0, 1e7)?,
            record_ns: self.real("calls.record_ns", 0.0, 1e7)?,
            wait_ns: self.real("calls.wait_ns", 0.0, 1e7)?,
            query_ns: self.real("calls.query_ns", 1.0, 1e7)?,
            sync_ns: self.real("calls.sync_ns", 0.0, 1e7)?,
            host_func_ns: self.real("calls.host_func_ns", 0.0, 1e7)?,
            malloc_async_ns: self.real("calls.malloc_async_ns", 0.0, 1e7)?,
            free_async_ns: self.real("calls.free_async_ns", 0.0, 1e7)?,
            malloc_ns: self.real("calls.malloc_ns", 0.0, 1e9)?,
            free_ns: self.real("calls.free_ns", 0.0, 1e9)?,
            graph_launch_ns: self.real("calls.graph_launch_ns", 0.0, 1e7)?,
            create_ns: self.real("calls.create_ns", 0.0, 1e7)?,
            sources: Vec::new(),
        })
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
        let (section, key) = field.split_once('.').unwrap_or((field, ""));
        let entry = match self.table.get_mut(section) {
            Some(toml::Value::Table(t)) => t.remove(key),
            Some(_) => return Err(wrong(section, format!("must be a section, [{section}]"))),
            None => None,
        };
        let Some(entry) = entry else {
            return Err(wrong(field, format!("is missing; {}", example(min))));
        };
        let number = |value: &toml::Value| match value {
            toml::Value::Float(v) => Some(*v),
            // Whole numbers up to 2^53 are exact, and every range ends far below.
            toml::Value::Integer(v) => Some(*v as f64),
            _ => None,
        };
        let toml::Value::Table(mut entry) = entry else {
            let stated = number(&entry).unwrap_or(min);
            return Err(wrong(field, format!("has no source; {}", example(stated))));
        };
        let value = match entry.remove("value").as_ref().and_then(number) {
            Some(value) => value,
            None => {
                return Err(wrong(
                    field,
                    format!("has no number as its value; {}", example(min)),
                ));
            }
        };
        let source = match entry.remove("source") {
            Some(toml::Value::String(s)) if !s.trim().is_empty() => s,
            _ => return Err(wrong(field, format!("has no source; {}", example(value)))),
        };
        if let Some(unknown) = entry.keys().next() {
            return Err(wrong(
                field,
                format!("has an unknown key `{unknown}`; only value and source belong here"),
            ));
        }
        if !value.is_finite() || value < min || value > max {
            return Err(wrong(
                field,
                format!(
                    "is {value}, but must be from {min} to {max}; check the unit, which is the end of the name"
                ),
            ));
        }
        self.sources.push((field, source));
        Ok(value)
    }

    fn nothing_left(&self) -> Result<(), ProfileError> {
        for (section, value) in &self.table {
            match value {
                toml::Value::Table(t) => {
                    if let Some(key) = t.keys().next() {
                        return Err(wrong(
                            &format!("{section}.{key}"),
                            "is not known; correct the spelling or remove it".into(),
                        ));
                    }
                    if !["chip", "compute", "link", "latency", "calls"].contains(&section.as_str())
                    {
                        return Err(wrong(
                            section,
                            "is not a known section; correct the spelling or remove it".into(),
                        ));
                    }
                }
                _ => {
                    return Err(wrong(
                        section,
                        "is not known; correct the spelling or remove it".into(),
                    ));
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
