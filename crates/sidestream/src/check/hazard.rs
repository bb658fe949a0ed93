//! Classifies the race of two unordered accesses: its kind and its severity.

use super::spans::SpanId;
use crate::op::{Access, BufferId, Class, Kind, Memory, Mode, Op, OpId, SiteId, ThreadId};
use crate::order::{Chain, Epoch, Known, Near, Open};

/// The kind of a race between two unordered accesses, in order of precedence: where several kinds fit
/// one pair of operations and one buffer, the first is reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RaceKind {
    /// Use after free: one side frees the memory, or the two belong to an earlier and a later owner of the memory.
    Uaf,
    /// Use before allocation: the use is not ordered after the `cudaMallocAsync`.
    Uba,
    /// The host reads bytes that the device may be writing.
    HostRaw,
    /// The host writes bytes that the device may be reading.
    HostWar,
    /// The host and the device both write.
    HostWaw,
    /// On the device: the first writes, the second reads.
    Raw,
    /// On the device: the first reads, the second writes.
    War,
    /// On the device: both write.
    Waw,
    /// An elapsed time is queried while an event is not known to be complete.
    Timing,
}

impl RaceKind {
    /// Returns the name used in reports.
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

/// Whether a race is certain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// The program may be correct, for a reason that [`Doubt`] names.
    Warn,
    /// Nothing orders the two.
    Error,
}

impl Severity {
    /// Returns the name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Warn => "warn",
            Severity::Error => "error",
        }
    }
}

/// The reason why a race is not certain, and so only a warning.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doubt {
    /// CUDA does not say whether the first call blocks, or the second waits.
    Waits,
    /// A kernel receives the memory, and it is not known whether it writes.
    MayOnlyRead,
    /// The second kernel may start before the first is complete, unless it waits for it, which no call shows.
    MayStartEarly,
    /// An operation may not touch these bytes at all: it works on an unknown part of them.
    Elsewhere,
    /// One of the two comes after a wait for what no call shows, and that may order them.
    Outside,
}

impl Doubt {
    /// Returns the reason as a clause, without a full stop.
    pub fn text(self) -> &'static str {
        match self {
            Doubt::Waits => "CUDA leaves open whether the call waits",
            Doubt::MayOnlyRead => {
                "the kernel may only read these bytes: its parameter is not a pointer to const"
            }
            Doubt::MayStartEarly => {
                "the second kernel was launched to start early, and whether it waits itself is not seen"
            }
            Doubt::Elsewhere => {
                "the kernel stores by a tensor map, and in which part of the tensor is not seen"
            }
            Doubt::Outside => {
                "one of the two comes after a wait for what is not seen here, which may order them"
            }
        }
    }

    /// Returns what the program's author can do to settle the question, where that is another call than the fix.
    pub fn settled_by(self) -> Option<&'static str> {
        match self {
            Doubt::Waits | Doubt::Outside | Doubt::Elsewhere => None,
            Doubt::MayOnlyRead => {
                Some("declare the parameter a pointer to `const`, if the kernel only reads")
            }
            Doubt::MayStartEarly => Some(
                "call `cudaGridDependencySynchronize()` in the kernel before it touches these bytes",
            ),
        }
    }
}

/// The role of an operation towards the memory it touches, as far as race kinds and severities depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Role {
    /// Any other work or host access.
    Work,
    /// Work of a call that may block its caller if the memory is pageable.
    HoldsPageable,
    /// Work of a call that may block its caller if the memory is managed.
    HoldsManaged,
    /// `cudaMallocAsync`.
    Begin,
    /// A free.
    End,
    /// A free by a call that may wait for the device.
    OpenEnd,
}

impl Role {
    #[inline]
    fn of(kind: &Kind) -> Role {
        match Open::of(kind) {
            Some(Open::Waits) => return Role::OpenEnd,
            Some(Open::Blocks(Memory::Pageable)) => return Role::HoldsPageable,
            Some(Open::Blocks(_)) => return Role::HoldsManaged,
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

/// The access mode, the role of the operation and the calling thread, packed into one word: the record of a buffer that
/// was never split then fits into three cache lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Deed(u32);

impl Deed {
    const READS: u32 = 1 << 3;
    const WRITES: u32 = 1 << 4;
    /// Set if the host makes the access: a thread, or a host function in stream order.
    const HOST: u32 = 1 << 5;
    /// Set if it is not known whether the access writes.
    const MAY: u32 = 1 << 6;
    /// Set if the access may come before earlier kernels of its stream are complete.
    const EARLY: u32 = 1 << 7;
    /// Set if the access is atomic.
    const ATOMIC: u32 = 1 << 8;
    /// The first bit of the thread's number. All numbers too large for the remaining bits share one value.
    const THREAD: u32 = 9;
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
            Mode::MayWrite => Deed(self.0 | Deed::READS | Deed::WRITES | Deed::MAY),
            // A race with it is named as one with a write.
            Mode::Atomic => Deed(self.0 | Deed::WRITES | Deed::ATOMIC),
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

/// The properties that all accesses of one step share.
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

    /// Returns the step as one that may come before earlier kernels of its stream are complete, and may not.
    pub(super) fn early(&self) -> Now {
        let deed = Deed(self.deed.0 | Deed::EARLY);
        Now { deed, ..*self }
    }

    #[inline]
    pub(super) fn chain(&self) -> u32 {
        self.epoch.chain
    }

    /// Returns one access of the step.
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

/// The span of an access in four bytes: zero for none, else one more than its id.
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

/// One access, as it is stored for the bytes that it touched.
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
    /// No access: a step ordered before all others.
    pub(super) const NONE: Use = Use {
        epoch: Epoch { chain: 0, tick: 0 },
        op: OpId(0),
        site: SiteId(0),
        span: Within(0),
        buffer: BufferId(0),
        deed: Deed(0),
    };

    /// Clears the epoch, so that [`Use::is_none`] returns true; the other fields keep their values.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.epoch = Use::NONE.epoch;
    }

    #[inline]
    pub(super) fn is_none(&self) -> bool {
        self.epoch.tick == 0
    }

    /// Whether the access is known to be ordered before the end of the chain whose clock is `known`. `false` may be
    /// wrong, as in [`Near`].
    #[inline(always)]
    pub(super) fn is_surely_before(&self, known: Near<'_>) -> bool {
        known.has(self.epoch)
    }

    /// Like [`Use::is_surely_before`], but exact: `false` is always right.
    pub(super) fn is_before(&self, known: &Known<'_>) -> bool {
        known.has(self.epoch)
    }

    pub(super) fn reads(&self) -> bool {
        self.deed.0 & Deed::READS != 0
    }

    pub(super) fn writes(&self) -> bool {
        self.deed.0 & Deed::WRITES != 0
    }

    /// Whether the access may come before earlier kernels of its stream are complete, and may not.
    pub(super) fn is_early(&self) -> bool {
        self.deed.0 & Deed::EARLY != 0
    }

    /// Returns the buffer of which the access is atomic, if it is: two of one buffer do not conflict.
    pub(super) fn atomic_of(&self) -> Option<BufferId> {
        (self.deed.0 & Deed::ATOMIC != 0).then_some(self.buffer)
    }

    fn surely_writes(&self) -> bool {
        self.deed.0 & (Deed::WRITES | Deed::MAY) == Deed::WRITES
    }

    /// Makes this entry represent a read as well.
    pub(super) fn add_read(&mut self) {
        self.deed.0 |= Deed::READS;
    }

    /// Returns the calling thread, unless its number is too large to be stored.
    pub(super) fn thread(&self) -> Option<ThreadId> {
        let thread = self.deed.0 >> Deed::THREAD;
        (thread != Deed::NO_THREAD).then_some(ThreadId(thread))
    }
}

/// Returns the race kind of two conflicting accesses that are unordered.
pub(super) fn kind_of(first: &Use, second: &Use) -> RaceKind {
    let roles = (first.deed.role(), second.deed.role());
    if roles.0.ends() || roles.1.ends() || first.buffer != second.buffer {
        return RaceKind::Uaf;
    }
    if roles.0 == Role::Begin || roles.1 == Role::Begin {
        return RaceKind::Uba;
    }
    // Two host accesses, or two device accesses, are named in call order; a host access against a device access is
    // named by the host's mode.
    let (earlier, later) = match (first.deed.is_host(), second.deed.is_host()) {
        (true, false) => (second, first),
        _ => (first, second),
    };
    let host = first.deed.is_host() || second.deed.is_host();
    // A write that is certain names the race before one that is not.
    let is_guess = is_guess(first, second);
    if later.reads() && earlier.writes() && (is_guess || earlier.surely_writes()) {
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

/// Whether two conflicting accesses conflict only if one of them writes that may only read.
pub(super) fn is_guess(first: &Use, second: &Use) -> bool {
    !first.surely_writes() && !second.surely_writes()
}

/// Returns the reason for doubt. `called_before` says whether the second access comes after the return of the call that
/// issued the first.
///
/// CUDA leaves open only whether a call blocks its caller. That matters only to the caller's next actions, and to
/// threads that synchronize with the caller after that. For any other thread, and for everything that the host did or
/// enqueued before the call, nothing is open.
pub(super) fn doubt_of(
    first: &Use,
    first_in_stream: bool,
    second: &Use,
    memory: Memory,
    called_before: impl FnOnce() -> bool,
) -> Option<Doubt> {
    if is_guess(first, second) {
        return Some(Doubt::MayOnlyRead);
    }
    if second.is_early() {
        return Some(Doubt::MayStartEarly);
    }
    let may_block = matches!(
        (first.deed.role(), memory),
        (Role::HoldsPageable, Memory::Pageable) | (Role::HoldsManaged, Memory::Managed)
    );
    let open = may_block && second.deed.is_host()
        // The free may wait for pending work, but not for work that is enqueued after it.
        || second.deed.role() == Role::OpenEnd && first_in_stream;
    (open && called_before()).then_some(Doubt::Waits)
}
