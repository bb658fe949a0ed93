//! The functions of the C library that the injected library uses; it has no dependencies, not even the crate `libc`.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlerror() -> *const c_char;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn mmap(
        at: *mut c_void,
        bytes: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: c_long,
    ) -> *mut c_void;
    fn kill(process: c_int, signal: c_int) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn atexit(function: extern "C" fn()) -> c_int;
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;

/// A library in the process.
#[derive(Clone, Copy)]
pub struct Library(*mut c_void);

// SAFETY: functions of a library may be looked up in any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads a library, or returns it if it is loaded already.
    pub fn open(file: &str) -> Option<Library> {
        Library::with(file, RTLD_LAZY)
    }

    /// Returns a library that is loaded already.
    pub fn loaded(file: &str) -> Option<Library> {
        Library::with(file, RTLD_LAZY | RTLD_NOLOAD)
    }

    /// Returns CUDA's driver, which the program has loaded.
    pub fn driver() -> Library {
        Library::loaded("libcuda.so.1").unwrap_or_else(Library::linked)
    }

    /// Returns why this thread could not load the last library.
    pub fn why_not() -> String {
        // SAFETY: it returns null, or a text that stays until the thread's next call of its kind.
        let why = unsafe { text(dlerror()) };
        String::from_utf8_lossy(why).into_owned()
    }

    /// Returns what the program itself was linked with, together.
    fn linked() -> Library {
        // `RTLD_DEFAULT`.
        Library(std::ptr::null_mut())
    }

    fn with(file: &str, flags: c_int) -> Option<Library> {
        let file = CString::new(file).ok()?;
        // SAFETY: the name ends with a zero. What the initialisers of the user's libraries do is theirs.
        let library = unsafe { dlopen(file.as_ptr(), flags) };
        (!library.is_null()).then_some(Library(library))
    }

    /// Returns a function of the library.
    ///
    /// # Safety
    /// `F` is the type of the function of this name: a pointer to a function.
    pub unsafe fn function<F: Copy>(self, name: &CStr) -> Option<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: the name ends with a zero, and the library is never unloaded.
        let found = unsafe { dlsym(self.0, name.as_ptr()) };
        // SAFETY: the caller promises the type, which has a pointer's size.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}

/// Returns the bytes of a text of C.
///
/// # Safety
/// It is null, or ends with a zero.
pub unsafe fn text<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: the caller promises it.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Maps a file into memory that other processes share.
pub fn map(file: &std::fs::File, bytes: usize) -> Option<*mut u64> {
    use std::os::fd::AsRawFd;
    const READ_AND_WRITE: c_int = 1 | 2;
    const SHARED: c_int = 1;
    // SAFETY: a new mapping; nothing else lies there.
    let at = unsafe {
        mmap(
            std::ptr::null_mut(),
            bytes,
            READ_AND_WRITE,
            SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    (at.addr() != usize::MAX).then_some(at.cast())
}

/// Whether there is a process with this number.
pub fn is_alive(process: i32) -> bool {
    // SAFETY: signal zero is none.
    process <= 0 || unsafe { kill(process, 0) } == 0
}

/// Returns the number of the calling thread.
pub fn thread() -> u32 {
    const GETTID: c_long = if cfg!(target_arch = "x86_64") {
        186
    } else {
        178
    };
    thread_local!(static MINE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    MINE.with(|mine| {
        if mine.get() == 0 {
            // SAFETY: the call takes no argument.
            mine.set(unsafe { syscall(GETTID) } as u32);
        }
        mine.get()
    })
}

/// Calls a function when the process ends by itself, and another in each child that is forked.
pub fn at_end(end: extern "C" fn(), in_child: extern "C" fn()) {
    // SAFETY: both functions stay: the library is never unloaded.
    unsafe {
        atexit(end);
        pthread_atfork(None, None, Some(in_child));
    }
}
