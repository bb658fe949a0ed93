//! Distinguishes a forked child from its parent: the child has copies of objects that belong to the parent.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The number of forks between this process and the first one that called [`Process::this`]; each forked child adds
/// one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process in which an object was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u32);

impl Process {
    /// Returns the current process.
    pub fn this() -> Process {
        watch();
        Process(FORKS.load(Relaxed))
    }

    /// Returns whether this is the current process, and not its parent. Part of every call: asking the system for the
    /// process id would take longer than the rest of some calls.
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
    // SAFETY: the function is the C library's, with its signature. The handler only adds to an atomic number, which
    // is allowed in a child right after the fork. The handler stays valid: this library is part of the program, or of
    // a Python module, which is never unloaded.
    WATCHES.call_once(|| unsafe {
        // The registration fails only if memory runs out; then forks go unnoticed, as they would without this call.
        pthread_atfork(None, None, Some(in_child));
    });
}

/// This target has no `fork`.
#[cfg(not(all(unix, not(miri))))]
fn watch() {}
