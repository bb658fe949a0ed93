//! What kind of hazard two unordered accesses are, and how sure CUDA makes it.

use super::spans::SpanId;
use crate::op::{Access, BufferId, Class, Kind, Memory, Mode, Op, OpId, SiteId, ThreadId};
use crate::order::{Chain, Epoch, Known, Near, Open};

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
#[repr(u8)]
pub(super) enum Role {
    /// Any other work or host access.
    Work,
    /// It may hold up its caller, for what is pageable or managed of its memory.
    HoldsPageable,
    HoldsManaged,
    /// `cudaMallocAsync`.
    Begin,
    /// The end of a life.
    End,
    /// The end of a life by a call that may wait for the device.
    OpenEnd,
}

impl Role {
    #[inline]
    fn of(kind: &Kind) -> Role {
        match Open::of(kind) {
            Some(Open::Waits) => return Role::OpenEnd,
            Some(Open::HoldsUp(Memory::Pageable)) => return Role::HoldsPageable,
            Some(Open::HoldsUp(_)) => return Role::HoldsManaged,
            None => {}
        }
        match kind.class() {
            Class::MallocAsync => Role::Begin,
            Class::FreeAsync | Class::Free => Role::End,
            Class::Kernel
            | Class::Copy { .. }
            | Class::Memset { .. }
            | Class::HostFunc
            | Class::Graph
            | Class::Record
            | Class::Wait
            | Class::Sync(_)
            | Class::Query(_)
            | Class::Malloc
            | Class::Allocator
            | Class::Make
            | Class::HostAccess
            | Class::Told
            | Class::Host => Role::Work,
        }
    }

    fn ends(self) -> bool {
        matches!(self, Role::End | Role::OpenEnd)
    }
}

/// What an access does, for what sort of operation, and which thread called that: in one word, since
/// what is remembered of a buffer in one piece fills three lines of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Deed(u32);

impl Deed {
    const READS: u32 = 1 << 3;
    const WRITES: u32 = 1 << 4;
    /// The host makes it: a thread, or a function in stream order.
    const HOST: u32 = 1 << 5;
    /// The rest is the thread. One with a higher number is any of these.
    const THREAD: u32 = 8;
    const NO_THREAD: u32 = u32::MAX >> Deed::THREAD;

    #[inline]
    fn new(op: &Op, on_thread: bool) -> Deed {
        let host = on_thread || op.kind.class() == Class::HostFunc;
        let thread = op.thread.0.min(Deed::NO_THREAD) << Deed::THREAD;
        Deed(Role::of(&op.kind) as u32 | (u32::from(host) * Deed::HOST) | thread)
    }

    #[inline]
    fn with(self, mode: Mode) -> Deed {
        match mode {
            Mode::Read => Deed(self.0 | Deed::READS),
            Mode::Write => Deed(self.0 | Deed::WRITES),
        }
    }

    fn role(self) -> Role {
        use Role::*;
        [Work, HoldsPageable, HoldsManaged, Begin, End, OpenEnd][self.0 as usize % 8]
    }

    fn is_host(self) -> bool {
        self.0 & Deed::HOST != 0
    }
}

/// A step that performs accesses: what they have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    epoch: Epoch,
    op: OpId,
    site: SiteId,
    span: Within,
    deed: Deed,
}

impl Now {
    #[inline]
    pub(super) fn new(op: &Op, chain: Chain, epoch: Epoch, span: Option<SpanId>) -> Now {
        Now {
            epoch,
            op: op.id,
            site: op.site,
            span: Within::new(span),
            deed: Deed::new(op, matches!(chain, Chain::Thread(_))),
        }
    }

    #[inline]
    pub(super) fn chain(&self) -> u32 {
        self.epoch.chain
    }

    /// One of its accesses.
    #[inline]
    pub(super) fn with(&self, access: &Access) -> Use {
        Use {
            epoch: self.epoch,
            op: self.op,
            site: self.site,
            span: self.span,
            buffer: access.buffer,
            deed: self.deed.with(access.mode),
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

    pub(super) fn span(self) -> Option<SpanId> {
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
    pub deed: Deed,
}

impl Use {
    /// No access: a step before all others.
    pub(super) const NONE: Use = Use {
        epoch: Epoch { chain: 0, tick: 0 },
        op: OpId(0),
        site: SiteId(0),
        span: Within(0),
        buffer: BufferId(0),
        deed: Deed(0),
    };

    /// Makes it [`Use::is_none`], and leaves the rest as it is.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.epoch = Use::NONE.epoch;
    }

    #[inline]
    pub(super) fn is_none(&self) -> bool {
        self.epoch.tick == 0
    }

    /// Whether it lies before what is known. "No" may be wrong, as in [`Near`].
    #[inline(always)]
    pub(super) fn is_surely_before(&self, known: Near<'_>) -> bool {
        known.has(self.epoch)
    }

    /// The same, and "no" is right.
    pub(super) fn is_before(&self, known: &Known<'_>) -> bool {
        known.has(self.epoch)
    }

    pub(super) fn reads(&self) -> bool {
        self.deed.0 & Deed::READS != 0
    }

    pub(super) fn writes(&self) -> bool {
        self.deed.0 & Deed::WRITES != 0
    }

    /// It stands for a read, too.
    pub(super) fn add_read(&mut self) {
        self.deed.0 |= Deed::READS;
    }

    /// The thread that called it, unless there are more threads than can be told apart.
    pub(super) fn thread(&self) -> Option<ThreadId> {
        let thread = self.deed.0 >> Deed::THREAD;
        (thread != Deed::NO_THREAD).then_some(ThreadId(thread))
    }

    fn is_host_access(&self) -> bool {
        self.deed.is_host() && !self.deed.role().ends()
    }
}

/// The kind of two conflicting accesses that nothing orders.
pub(super) fn kind_of(first: &Use, second: &Use) -> RaceKind {
    let roles = (first.deed.role(), second.deed.role());
    if roles.0.ends() || roles.1.ends() || first.buffer != second.buffer {
        return RaceKind::Uaf;
    }
    if roles.0 == Role::Begin || roles.1 == Role::Begin {
        return RaceKind::Uba;
    }
    // Two accesses of one side are named in the order of the calls, host against device by what
    // the host does.
    let (earlier, later) = match (first.deed.is_host(), second.deed.is_host()) {
        (true, false) => (second, first),
        _ => (first, second),
    };
    let host = first.deed.is_host() || second.deed.is_host();
    if later.reads() && earlier.writes() {
        if host {
            RaceKind::HostRaw
        } else {
            RaceKind::Raw
        }
    } else if earlier.reads() {
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

/// `warn` where CUDA leaves the behaviour open, and only there. `called_before` says whether the second
/// access stands behind the return of the call that asked for the first.
///
/// What is open is whether a call holds up its caller. So it matters only to what the caller does
/// next, and to whoever hears of that. To another thread nothing is open, nor to what the host did
/// or asked for before the call.
pub(super) fn severity_of(
    first: &Use,
    first_in_stream: bool,
    second: &Use,
    memory: Memory,
    called_before: impl FnOnce() -> bool,
) -> Severity {
    let holds_up = matches!(
        (first.deed.role(), memory),
        (Role::HoldsPageable, Memory::Pageable) | (Role::HoldsManaged, Memory::Managed)
    );
    let open = holds_up && second.is_host_access()
        // It may wait for the work that is pending, and what nobody has called yet is not.
        || second.deed.role() == Role::OpenEnd && first_in_stream;
    if open && called_before() {
        Severity::Warn
    } else {
        Severity::Error
    }
}
