//! What kind of hazard two unordered accesses are, and how sure CUDA makes it.

use super::spans::SpanId;
use crate::op::{Access, BufferId, Kind, Memory, Mode, Op, OpId, SiteId};
use crate::order::{Chain, Epoch};

/// What two unordered accesses do to each other. In the order of precedence: of several that fit
/// one pair of operations and one buffer, the first is reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RaceKind {
    /// One side ends the life of the memory, or the sides are an earlier and a later tenant of it.
    Uaf,
    /// Used without being ordered after its `cudaMallocAsync`.
    Uba,
    /// The host reads what the device may be writing.
    HostRaw,
    /// The host writes what the device may be reading.
    HostWar,
    /// Host and device both write.
    HostWaw,
    /// On the device: the first writes, the second reads.
    Raw,
    /// On the device: the first reads, the second writes.
    War,
    /// On the device: both write.
    Waw,
    /// A time is asked of an event that is not known to be complete.
    Timing,
}

impl RaceKind {
    /// The name in reports.
    pub fn code(self) -> &'static str {
        match self {
            RaceKind::Uaf => "UAF",
            RaceKind::Uba => "UBA",
            RaceKind::HostRaw => "HOST_RAW",
            RaceKind::HostWar => "HOST_WAR",
            RaceKind::HostWaw => "HOST_WAW",
            RaceKind::Raw => "RAW",
            RaceKind::War => "WAR",
            RaceKind::Waw => "WAW",
            RaceKind::Timing => "TIMING",
        }
    }
}

/// Whether CUDA leaves the outcome open or promises nothing at all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// CUDA does not say whether the call blocks: it may happen to be right.
    Warn,
    /// Nothing orders the two.
    Error,
}

impl Severity {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Warn => "warn",
            Severity::Error => "error",
        }
    }
}

/// What an operation is to the memory it touches, as far as kinds and severities depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Any other work or host access.
    Work,
    /// `cudaMemcpyAsync`.
    CopyAsync,
    /// `cudaMemcpy` without a host side: it returns before it is done (R20).
    CopyOnDevice,
    /// `cudaMallocAsync`.
    Begin,
    /// The end of a life.
    End,
    /// The end of a life by a `cudaFree` that may wait for the device (R31).
    OpenEnd,
}

impl Role {
    #[inline]
    pub fn of(kind: &Kind) -> Role {
        match *kind {
            Kind::Copy { .. } => Role::CopyAsync,
            Kind::CopyBlocking { from, to } if !from.is_host() && !to.is_host() => {
                Role::CopyOnDevice
            }
            Kind::MallocAsync { .. } => Role::Begin,
            Kind::FreeAsync { .. }
            | Kind::FreePinned
            | Kind::CudaFree {
                stream_ordered: true,
            } => Role::End,
            Kind::CudaFree {
                stream_ordered: false,
            } => Role::OpenEnd,
            _ => Role::Work,
        }
    }

    fn ends(self) -> bool {
        matches!(self, Role::End | Role::OpenEnd)
    }
}

/// A step that performs accesses: what they have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    epoch: Epoch,
    op: OpId,
    site: SiteId,
    span: Within,
    role: Role,
    host: bool,
}

impl Now {
    #[inline]
    pub fn new(op: &Op, chain: Chain, epoch: Epoch, span: Option<SpanId>) -> Now {
        let on_thread = matches!(chain, Chain::Thread(_));
        Now {
            epoch,
            op: op.id,
            site: op.site,
            span: Within::new(span),
            role: Role::of(&op.kind),
            host: on_thread || matches!(op.kind, Kind::HostFunc { .. }),
        }
    }

    #[inline]
    pub fn chain(&self) -> u32 {
        self.epoch.chain
    }

    /// One of its accesses.
    #[inline]
    pub fn with(&self, access: &Access) -> Use {
        Use {
            epoch: self.epoch,
            op: self.op,
            site: self.site,
            span: self.span,
            buffer: access.buffer,
            role: self.role,
            host: self.host,
            reads: access.mode == Mode::Read,
            writes: access.mode == Mode::Write,
        }
    }
}

/// The span of an access, in as little room as there is: zero for none, else one more than its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Within(u32);

impl Within {
    fn new(span: Option<SpanId>) -> Within {
        Within(span.map_or(0, |span| span.0 + 1))
    }

    pub fn span(self) -> Option<SpanId> {
        self.0.checked_sub(1).map(SpanId)
    }
}

/// One access, as it is remembered beside the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Use {
    pub epoch: Epoch,
    pub op: OpId,
    pub site: SiteId,
    pub span: Within,
    pub buffer: BufferId,
    pub role: Role,
    /// Whether the host makes it: a thread, or a function in stream order.
    pub host: bool,
    pub reads: bool,
    pub writes: bool,
}

impl Use {
    /// No access: a step before all others.
    pub const NONE: Use = Use {
        epoch: Epoch { chain: 0, tick: 0 },
        op: OpId(0),
        site: SiteId(0),
        span: Within(0),
        buffer: BufferId(0),
        role: Role::Work,
        host: false,
        reads: false,
        writes: false,
    };

    /// Makes it [`Use::is_none`], and leaves the rest as it is.
    #[inline]
    pub fn forget(&mut self) {
        self.epoch = Use::NONE.epoch;
    }

    #[inline]
    pub fn is_none(&self) -> bool {
        self.epoch.tick == 0
    }

    /// Whether it lies before a point of which `known` is the clock.
    #[inline]
    pub fn is_before(&self, known: &[u32]) -> bool {
        let Epoch { chain, tick } = self.epoch;
        known.get(chain as usize).copied().unwrap_or(0) >= tick
    }

    fn is_host_access(&self) -> bool {
        self.host && !self.role.ends()
    }
}

/// The kind of two conflicting accesses that nothing orders.
pub(super) fn kind_of(first: &Use, second: &Use) -> RaceKind {
    if first.role.ends() || second.role.ends() || first.buffer != second.buffer {
        return RaceKind::Uaf;
    }
    if first.role == Role::Begin || second.role == Role::Begin {
        return RaceKind::Uba;
    }
    // Two accesses of one side are named in the order of the calls, host against device by what
    // the host does.
    let (earlier, later) = match (first.host, second.host) {
        (true, false) => (second, first),
        _ => (first, second),
    };
    let host = first.host || second.host;
    if later.reads && earlier.writes {
        if host {
            RaceKind::HostRaw
        } else {
            RaceKind::Raw
        }
    } else if earlier.reads {
        if host {
            RaceKind::HostWar
        } else {
            RaceKind::War
        }
    } else if host {
        RaceKind::HostWaw
    } else {
        RaceKind::Waw
    }
}

/// `warn` where CUDA leaves the behaviour open, and only there.
pub(super) fn severity_of(
    first: &Use,
    first_in_stream: bool,
    second: &Use,
    memory: Memory,
) -> Severity {
    let copies_beside_host = |copy: &Use, other: &Use| {
        copy.role == Role::CopyAsync && other.is_host_access() && memory == Memory::Pageable
    };
    // R22: an asynchronous copy of pageable memory may or may not block its caller.
    let r22 = copies_beside_host(first, second) || copies_beside_host(second, first);
    // R31: cudaFree may wait for the work that is pending.
    let r31 = second.role == Role::OpenEnd && first_in_stream;
    // R20, R26: a copy between device memories may or may not block where managed memory is one.
    let r26 =
        first.role == Role::CopyOnDevice && second.is_host_access() && memory == Memory::Managed;
    if r22 || r31 || r26 {
        Severity::Warn
    } else {
        Severity::Error
    }
}
