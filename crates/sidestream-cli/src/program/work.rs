//! Calls that make and end memory, and that submit work.

use sidestream::log::{Record, Within};
use sidestream::op::{Access, Accesses, BufferId, Kind, Memory, Mode};
use sidestream_inject::areas::Area;
use sidestream_inject::calls::{ApiCall, Does, Made, PARAMETER};

use super::translate::{ADDRESSES, Hears, Now, Process};

impl<T: Hears> Process<T> {
    /// A call that makes or ends memory, or submits work.
    pub(super) fn memory_or_work(&mut self, call: &ApiCall, now: &Now<'_>) {
        let word = |at| now.word(at);
        match call.what {
            // A variable that was told before.
            Does::Alloc(at, bytes, Made::Global) if self.memory.is(word(at), word(bytes)) => {}
            Does::Alloc(at, bytes, kind) | Does::Register(at, bytes, kind) => {
                let memory = match kind {
                    Made::Pinned | Made::Registered => Memory::Pinned,
                    Made::Managed => Memory::Managed,
                    Made::Device | Made::Mapped | Made::Global | Made::Foreign => Memory::Device,
                };
                self.made(now, word(at), word(bytes), memory, Kind::CudaMalloc);
            }
            Does::AllocPitch(at, pitch, height) => {
                let bytes = word(pitch).saturating_mul(word(height));
                self.made(now, word(at), bytes, Memory::Device, Kind::CudaMalloc);
            }
            Does::AllocAsync(at, bytes, stream) => {
                let stream = self.stream(now, word(stream));
                for event in self.memory.reused(word(at), word(bytes), stream) {
                    self.op(now, Kind::Wait { stream, event }, &[]);
                }
                let kind = Kind::MallocAsync { stream };
                self.made(now, word(at), word(bytes), Memory::Device, kind);
            }
            Does::Free(at, kind) => {
                if let Some(range) = self.memory.remove(word(at)) {
                    let kind = match kind {
                        Made::Registered => Kind::HostUnregister,
                        Made::Pinned => Kind::FreePinned,
                        _ => Kind::CudaFree {
                            stream_ordered: range.stream_ordered,
                        },
                    };
                    self.current(now);
                    self.op(now, kind, &[range.all(Mode::Write)]);
                }
            }
            Does::FreeAsync(at, stream) => {
                let stream = self.stream(now, word(stream));
                if let Some(range) = self.memory.remove(word(at)) {
                    let (kind, all) = (Kind::FreeAsync { stream }, [range.all(Mode::Write)]);
                    self.op(now, kind, &all);
                    // The pool may hand the memory on to another stream, and orders that itself (R32).
                    let event = match self.memory.free_event(range.start) {
                        Some(event) => event,
                        None => self.new_event(false),
                    };
                    self.op(now, Kind::Record { event, stream }, &[]);
                    self.memory.freed(&range, stream, event);
                }
            }
            _ => self.work(call, now),
        }
    }

    fn work(&mut self, call: &ApiCall, now: &Now<'_>) {
        let word = |at| now.word(at);
        match call.what {
            Does::Copy(..)
            | Does::Copy2D(..)
            | Does::Copy3D(..)
            | Does::CopyBatch(..)
            | Does::CopyWith(..) => self.copies(call, now),
            Does::WriteValue(stream, at, value, flags, shift) => {
                let at = (word(at), word(value));
                self.value(now, word(stream), at, word(flags) >> shift, true);
            }
            Does::WaitValue(stream, at, value, flags, shift) => {
                let at = (word(at), word(value));
                self.value(now, word(stream), at, word(flags) >> shift, false);
            }
            Does::Values(stream, all) => self.values(now, word(stream), now.array(all)),
            Does::Memset(at, count, bytes, stream) => {
                let bytes = word(count).saturating_mul(u64::from(bytes));
                self.memset(now, Area::of_bytes(word(at), bytes), stream.map(word));
            }
            Does::Memset2D(at, pitch, width, height, bytes, stream) => {
                let width = word(width).saturating_mul(u64::from(bytes));
                let area = Area::of_rows(word(at), width, word(pitch), word(height));
                self.memset(now, area, stream.map(word));
            }
            Does::Launch(kernel, stream, ..) => {
                let rest = now.words.get(call.end(now.words)..).unwrap_or_default();
                self.launch(now, word(kernel), word(stream), false, rest);
            }
            Does::LaunchEx(kernel, config, ..) => {
                let rest = now.words.get(call.end(now.words)..).unwrap_or_default();
                // `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
                let mut attributes = now.array(config + 7).chunks_exact(9);
                let early = attributes.any(|one| one[0] as u32 == 6 && one[1] as u32 != 0);
                self.launch(now, word(kernel), word(config + 4), early, rest);
            }
            Does::HostFunction(stream) => {
                let (stream, raises) = (self.stream(now, word(stream)), None);
                self.op(now, Kind::HostFunc { stream, raises }, &[]);
                self.host_functions += 1;
            }
            _ => self.graph(call, now),
        }
    }

    fn launch(
        &mut self,
        now: &Now<'_>,
        kernel: u64,
        stream: u64,
        is_dependent: bool,
        rest: &[u64],
    ) {
        self.current(now);
        let stream = self.stream(now, stream);
        if self.exact.is_on {
            return self.launch_exactly(now, stream, is_dependent);
        }
        let accesses = self.kernel_accesses(kernel, rest);
        let kind = if is_dependent {
            Kind::DependentKernel {
                stream,
                may_wait: true,
            }
        } else {
            Kind::kernel(stream)
        };
        self.op(now, kind, &accesses);
        self.tells(&accesses);
    }

    /// The host may learn from what a kernel writes to its memory that it ran.
    pub(super) fn tells(&mut self, accesses: &[Access]) {
        let mut written = accesses.iter().filter(|access| access.mode != Mode::Read);
        let tells = written.any(|access| self.memory.is_pinned(access.buffer));
        self.tellers += u32::from(tells);
    }

    /// Returns the accesses of a kernel, by what follows a launch's other words.
    pub(super) fn kernel_accesses(&mut self, kernel: u64, rest: &[u64]) -> Accesses {
        let mut accesses = Accesses::new();
        if let Some((&others, addresses)) = rest.split_first().filter(|_| !self.exact.is_on) {
            let kernel = self.kernels.entry(kernel).or_default();
            for pair in addresses
                .chunks_exact(2)
                .filter(|pair| pair[0] & PARAMETER != 0)
            {
                let (parameter, address) = ((pair[0] >> 32) as u32 & 0x7fff_ffff, pair[1]);
                let Some(range) = self.memory.at(address) else {
                    continue;
                };
                let is_by_number = kernel.launched(address, others);
                if range.is_in_parts && address == range.start && is_by_number {
                    continue;
                }
                let mode = if kernel.reads_only(parameter) {
                    Mode::Read
                } else {
                    Mode::MayWrite
                };
                accesses.push(range.access(address, 1, mode));
            }
        }
        accesses
    }

    pub(super) fn made(&mut self, now: &Now<'_>, at: u64, bytes: u64, memory: Memory, kind: Kind) {
        if at == 0 || bytes == 0 || at.saturating_add(bytes) > ADDRESSES {
            return;
        }
        let everything = self.everything();
        let buffers = &mut self.buffers;
        let stream_ordered = matches!(kind, Kind::MallocAsync { .. });
        let range = self.memory.add(at, bytes, memory, stream_ordered, || {
            let within = Some(Within {
                buffer: everything,
                start: at,
            });
            let name = format!(
                "{at:#x}{}",
                self.made_at
                    .get(now.site.0 as usize)
                    .map_or("", String::as_str)
            );
            self.told.take(&Record::buffer(memory, bytes, within, name));
            *buffers += 1;
            BufferId(*buffers - 1)
        });
        range.is_of_graph = self.graphs.is_captured(kind);
        let all = [range.all(Mode::Write)];
        self.op(now, kind, &all[usize::from(!stream_ordered)..]);
    }

    /// The buffer in which all others lie.
    pub(super) fn everything(&mut self) -> BufferId {
        *self.everything.get_or_insert_with(|| {
            let name = "all memory";
            self.told
                .take(&Record::buffer(Memory::Device, ADDRESSES, None, name));
            self.buffers += 1;
            BufferId(self.buffers - 1)
        })
    }
}
