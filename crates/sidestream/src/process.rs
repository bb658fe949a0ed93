//! Which process something belongs to: a child of a fork has a copy of it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many forks lie between this process and the first one that asked. Every child counts for itself.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that something was made in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// The one that runs this.
    pub(crate) fn this() -> Process {
        watch();
        Process(FORKS.load(Relaxed))
    }

    /// Not a child of it. Part of every call: asking the system for its number takes longer than the rest of some.
    #[inline]
    pub(crate) fn is_this(self) -> bool {
        self.0 == FORKS.load(Relaxed)
    }
}

impl Default for Process {
    fn default() -> Process {
        Process::this()
    }
}

#[cfg(all(unix, not(miri)))]
fn watch() {
    use std::ffi::c_int;
    use std::sync::Once;

    type Handler = Option<unsafe extern "C" fn()>;

    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }

    unsafe extern "C" fn in_child() {
        FORKS.fetch_add(1, Relaxed);
    }

    static WATCHES: Once = Once::new();
    // SAFETY: the function is the C library's, with its signature. The handler adds to an atomic number, which
    // may be done in a child before anything else. It stays: this library is part of the program, or of a module
    // of Python's, which is not unloaded.
    WATCHES.call_once(|| unsafe {
        // It fails for want of memory alone, and then a fork goes unseen, as without it.
        pthread_atfork(None, None, Some(in_child));
    });
}

/// There are no forks.
#[cfg(not(all(unix, not(miri))))]
fn watch() {}
