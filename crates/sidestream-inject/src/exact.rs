//! The probe, which hears calls in place of CUPTI, and which bytes kernels access: a library that the command has compiled on the
//! user's machine, against NVIDIA's Sanitizer API. What passes between both is C, and `probe.cpp` has the other side of it.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::calls::{CALLS, RUNTIME};
use crate::cupti::Callback;
use crate::learned::{Expected, Learned};
use crate::ring::SharedRing;
use crate::system::{self, Library, text};
use crate::wire::{EXACT_FIRST, EXACT_ONLY, EXACT_PATCHES, Head, MAX_WORDS, Tag};

/// What the probe gets. It may keep all of it.
#[repr(C)]
struct Calls {
    patches: *const c_char,
    only: *const c_char,
    ids_len: u32,
    heard: Callback,
    write: extern "C" fn(u32, *const u64, usize),
    /// The calls to hear; those of the runtime are numbered from [`PROBED_RUNTIME`] on.
    ids: *const u16,
    /// Says whether a launch is to be watched: its module, function, dimensions and number. Null: all are.
    watches: Option<extern "C" fn(u64, u64, *const u32, u64) -> c_int>,
    /// Returns modules whose kernels need not be watched any more.
    rest: extern "C" fn(*mut u64, usize) -> usize,
}

/// The number of dimensions: of the grid, its blocks, and clusters.
const DIMENSIONS: usize = 9;

const PROBED_RUNTIME: u16 = 4096;

type BeginFn = unsafe extern "C" fn(*const Calls) -> *const c_char;
type LaunchedFn = unsafe extern "C" fn(*mut u64, usize) -> usize;
type EndFn = unsafe extern "C" fn(u32);
/// `cuStreamGetCaptureInfo_v3`: stream; status, number, graph, nodes that come before what is captured next, edges, their number.
type CaptureFn = unsafe extern "C" fn(
    u64,
    *mut c_int,
    *mut u64,
    *mut u64,
    *mut *const u64,
    *mut u64,
    *mut usize,
) -> c_int;

struct Probe {
    ring: &'static SharedRing,
    launched: LaunchedFn,
    /// Returns the places of variables of modules, each once.
    variables: Option<LaunchedFn>,
    pass: extern "C" fn(),
    end: EndFn,
    capture: Option<CaptureFn>,
    child: Option<unsafe extern "C" fn(u64, *mut u64) -> c_int>,
    nodes: Option<unsafe extern "C" fn(u64, *mut u64, *mut usize) -> c_int>,
}

static PROBE: OnceLock<Probe> = OnceLock::new();
/// What is known of kernels that need not be watched; `None` if all are.
static LEARNED: Mutex<Option<Learned>> = Mutex::new(None);

/// How deep graphs inside graphs are followed.
const DEPTH: u32 = 4;
/// The largest number of launches in a record.
const ROOM: usize = MAX_WORDS / 2 - 1;
/// For how long the end of a program waits for kernels that still run.
const LAST_MS: u32 = 2000;

thread_local! {
    static WORDS: RefCell<Vec<u64>> = RefCell::new(vec![0; 1 + 2 * ROOM]);
    /// What this thread is about to launch.
    static EXPECTED: RefCell<Option<Expected>> = const { RefCell::new(None) };
}

/// Loads the probe, which hears these calls from here on.
pub fn begin(
    file: &str,
    ring: &'static SharedRing,
    heard: Callback,
    calls: impl Iterator<Item = u16>,
) -> Result<(), String> {
    let library = Library::open(file).ok_or_else(Library::why_not)?;
    // SAFETY: the types are those of `probe.cpp`.
    let (begin, launched, pass, end) = unsafe {
        (
            library.function::<BeginFn>(c"sidestream_exact_begin"),
            library.function(c"sidestream_exact_launched"),
            library.function(c"sidestream_exact_pass"),
            library.function(c"sidestream_exact_end"),
        )
    };
    let (Some(begin), Some(launched), Some(pass), Some(end)) = (begin, launched, pass, end) else {
        return Err(format!("{file} lacks a function"));
    };
    let driver = Library::driver();
    // SAFETY: the types are those of `cuda.h`; drivers from CUDA 12.3 on have the first function, and all have the others.
    let (capture, child, nodes) = unsafe {
        (
            driver.function(c"cuStreamGetCaptureInfo_v3"),
            driver.function(c"cuGraphChildGraphNodeGetGraph"),
            driver.function(c"cuGraphGetNodes"),
        )
    };
    let probe = Probe {
        ring,
        launched,
        // SAFETY: as above.
        variables: unsafe { library.function(c"sidestream_exact_variables") },
        pass,
        end,
        capture,
        child,
        nodes,
    };
    if PROBE.set(probe).is_err() {
        return Err("it has begun before".to_owned());
    }
    let variable = |name| std::env::var(name).unwrap_or_default();
    let text_of = |name| CString::new(variable(name)).unwrap_or_default().into_raw();
    let renumbered = |id: u16| match id.checked_sub(RUNTIME) {
        Some(of_runtime) => PROBED_RUNTIME + of_runtime,
        None => id,
    };
    let ids: Vec<u16> = calls.map(renumbered).collect();
    let is_first = variable(EXACT_FIRST) == "1";
    *learned() = is_first.then(Learned::default);
    let calls = Box::leak(Box::new(Calls {
        patches: text_of(EXACT_PATCHES),
        only: text_of(EXACT_ONLY),
        ids_len: ids.len() as u32,
        heard,
        write,
        ids: ids.leak().as_ptr(),
        watches: is_first.then_some(watches),
        rest,
    }));
    // SAFETY: what it gets stays for good; it returns null, or a text.
    let why = unsafe {
        let why = begin(calls);
        (!why.is_null()).then(|| text(why))
    };
    why.map_or(Ok(()), |why| Err(String::from_utf8_lossy(why).into_owned()))
}

fn learned() -> MutexGuard<'static, Option<Learned>> {
    LEARNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether launches are watched only until what they touch is known.
pub fn learns() -> bool {
    is_on() && learned().is_some()
}

/// Takes what this thread is about to launch, as [`Kernels::addresses`](crate::kernels::Kernels::addresses) appends it.
pub fn expects(words: &[u64]) {
    EXPECTED.set(Expected::new(words));
}

/// Forgets what is known of kernels: their handles may be used again.
pub fn unloaded() {
    if let Some(learned) = &mut *learned() {
        learned.forget();
    }
}

extern "C" fn watches(module: u64, function: u64, dimensions: *const u32, number: u64) -> c_int {
    let (expected, mut learned) = (EXPECTED.take(), learned());
    let (Some(probe), Some(learned)) = (PROBE.get(), &mut *learned) else {
        return 1;
    };
    // SAFETY: the probe passes this many.
    let dimensions = unsafe { std::slice::from_raw_parts(dimensions, DIMENSIONS) };
    let write = |tag, words: &[u64]| probe.ring.write_words(tag, words);
    c_int::from(learned.watches(module, (function, dimensions), number, expected, write))
}

extern "C" fn rest(modules: *mut u64, room: usize) -> usize {
    let all = learned()
        .as_mut()
        .map_or(Vec::new(), |learned| learned.rest(room));
    // SAFETY: the probe has room for this many, and no more are returned.
    unsafe { modules.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
    all.len()
}

/// Writes a record for the probe, in any thread.
extern "C" fn write(tag: u32, words: *const u64, len: usize) {
    let tags = [Tag::Launches, Tag::Touched, Tag::Boxes, Tag::Map];
    let tag = tags.into_iter().find(|known| *known as u32 == tag);
    if let (Some(probe), Some(tag)) = (PROBE.get(), tag)
        && !words.is_null()
        && len < MAX_WORDS
    {
        // SAFETY: the probe passes this many words.
        let words = unsafe { std::slice::from_raw_parts(words, len) };
        if let Some(learned) = &mut *learned() {
            learned.takes(tag, words);
        }
        probe.ring.write_words(tag, words);
    }
}

/// Whether the probe is there.
pub fn is_on() -> bool {
    PROBE.get().is_some()
}

/// Forgets what this thread has launched: by calls that are not heard.
pub fn forget() {
    if let Some(probe) = PROBE.get() {
        probe.launches(|_| ());
    }
    EXPECTED.take();
}

/// Writes the places of new variables that kernels of a context may use.
pub fn variables(context: u64) {
    if let Some(probe) = PROBE.get() {
        probe.variables(context);
    }
}

/// Writes what a call of this thread has launched, before the call itself is written: if nothing, the kernel that it has added to the
/// capture of this stream.
pub fn launched(into: Option<u64>) {
    let Some(probe) = PROBE.get() else {
        return;
    };
    let mut is_any = false;
    probe.launches(|record| {
        is_any = true;
        probe.ring.write_words(Tag::Launches, record);
    });
    if let (Some(stream), false) = (into, is_any)
        && let Some(node) = probe.captured(stream)
    {
        probe
            .ring
            .write_words(Tag::Launches, &[u64::from(system::thread()), node, 0]);
    }
}

/// Writes the tensor maps among the parameters of a kernel, before its launch is written.
pub fn maps(words: &[u64]) {
    if let (Some(probe), false) = (PROBE.get(), words.is_empty()) {
        let thread = u64::from(system::thread());
        probe
            .ring
            .write_words(Tag::Maps, &[&[thread], words].concat());
    }
}

/// Passes on what launches that are complete have touched: what the program has waited for is told even if it is killed next.
pub fn pass() {
    if let Some(probe) = PROBE.get() {
        (probe.pass)();
    }
}

/// Appends the nodes of the copy of a graph that a node executes, and those inside them.
pub fn inside(node: u64, into: &mut Vec<u64>) {
    if let Some(probe) = PROBE.get() {
        probe.inside(node, into, 0);
    }
}

/// Waits for kernels that still run, and ends the probe.
pub fn end() {
    if let Some(probe) = PROBE.get() {
        // SAFETY: the type is that of `probe.cpp`.
        unsafe { (probe.end)(LAST_MS) };
    }
}

impl Probe {
    /// Passes the records of what this thread has launched since it was last asked.
    fn launches(&self, mut each: impl FnMut(&[u64])) {
        WORDS.with_borrow_mut(|words| {
            words[0] = u64::from(system::thread());
            loop {
                // SAFETY: there is room for this many pairs behind the first word.
                let count = unsafe { (self.launched)(words[1..].as_mut_ptr(), ROOM) }.min(ROOM);
                if count > 0 {
                    each(&words[..1 + 2 * count]);
                }
                if count < ROOM {
                    return;
                }
            }
        });
    }

    /// Writes calls that would have returned the places of new variables.
    fn variables(&self, context: u64) {
        let row = CALLS
            .iter()
            .position(|call| call.name == "cuModuleGetGlobal_v2");
        let (Some(variables), Some(row)) = (self.variables, row) else {
            return;
        };
        let head = Head {
            words: 0,
            tag: Tag::Call,
            index: row as u16,
            per_thread: false,
        };
        let mut places = [[0; 2]; 64];
        loop {
            // SAFETY: there is room for this many pairs.
            let count = unsafe { variables(places.as_flattened_mut().as_mut_ptr(), places.len()) };
            for [at, bytes] in &places[..count.min(places.len())] {
                let thread = u64::from(system::thread());
                let words = [thread, context, 0, 0, 0, 0, 0, *at, *bytes];
                self.ring.write(head, &words);
            }
            if count == 0 {
                return;
            }
        }
    }

    fn inside(&self, node: u64, into: &mut Vec<u64>, depth: u32) {
        let (Some(child), Some(nodes)) = (self.child, self.nodes) else {
            return;
        };
        let (mut graph, mut room, mut count) = (0, [0; 1024], 1024);
        // SAFETY: the program has just made the node, or it is inside of that one; of others the call says so. There is room for so
        // many nodes.
        let is_told = unsafe {
            child(node, &mut graph) == 0 && nodes(graph, room.as_mut_ptr(), &mut count) == 0
        };
        for &inner in room.iter().take(if is_told { count } else { 0 }) {
            if into.len() < MAX_WORDS / 2 {
                into.push(inner);
            }
            if depth < DEPTH {
                self.inside(inner, into, depth + 1);
            }
        }
    }

    /// Returns the node that the last call has added to the capture of a stream.
    fn captured(&self, stream: u64) -> Option<u64> {
        // `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
        const ACTIVE: c_int = 1;
        let (mut status, mut number, mut graph, mut edges, mut count) = (0, 0, 0, 0, 0);
        let mut nodes: *const u64 = std::ptr::null();
        // SAFETY: the stream is one into which the program has just launched; the pointers are valid for the call.
        let answer = unsafe {
            (self.capture?)(
                stream,
                &mut status,
                &mut number,
                &mut graph,
                &mut nodes,
                &mut edges,
                &mut count,
            )
        };
        let is_any = answer == 0 && status == ACTIVE && count > 0 && !nodes.is_null();
        // SAFETY: the driver's array has this many nodes, and no other thread may capture into the stream now.
        is_any.then(|| unsafe { *nodes.add(count - 1) })
    }
}
