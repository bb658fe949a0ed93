//! Begins to listen, and writes what is heard.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::sync::OnceLock;

use crate::activity;
use crate::calls::{ApiCall, Behind, CALLS, Does, Moment, Part, RUNTIME};
use crate::cupti::{Cupti, DRIVER, Data, NotSubscribed, OF_RUNTIME};
use crate::exact;
use crate::host::{Host, Teller};
use crate::kernels::{Kernels, LaunchArguments};
use crate::ring::SharedRing;
use crate::sites::Sites;
use crate::system::{self, Library, text};
use crate::wire::{CALL_WORDS, CUPTI, EXACT, FOLDER, Head, LIGHT, PROFILE, PROVOKE, READER, Tag};

struct Listener {
    ring: SharedRing,
    kernels: Kernels,
    /// `None` if call sites are not asked for.
    sites: Option<Sites>,
    /// `None` if the host's side is not asked for.
    host: Option<Host>,
    /// By CUPTI's number of a call: one more than its position in [`CALLS`], and the highest bit if a null stream is the
    /// thread's own.
    rows: Vec<u16>,
}

const PER_THREAD: u16 = 1 << 15;
/// The words of a call before its arguments, without the head.
const BEFORE: usize = CALL_WORDS - 1;
/// The largest number of words of an array that is written.
const MAX_BEHIND: u64 = 12_000;
/// The largest number of graphs of a conditional node that are written.
const MAX_BODIES: u64 = 64;

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// The entry point that CUDA's driver calls when a program initializes CUDA. Returns 1, as the driver expects; whatever goes
/// wrong here must not keep the program from running.
#[cfg_attr(injected, unsafe(no_mangle))]
#[allow(non_snake_case, reason = "the driver looks for this name")]
pub extern "C" fn InitializeInjection() -> c_int {
    let _ = catch_unwind(begin);
    1
}

fn begin() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let Ok(reader) = variable(READER).parse() else {
        return;
    };
    let Some(ring) = SharedRing::create(&variable(FOLDER), reader) else {
        return;
    };
    let (is_light, profile) = (variable(LIGHT) == "1", variable(PROFILE));
    let mut rows = vec![0; 2048];
    for (row, call) in CALLS.iter().enumerate() {
        for (id, per_thread) in call.ids.into_iter().zip([0, PER_THREAD]) {
            if id != 0 && profile.is_empty() {
                rows[usize::from(id)] = (row as u16 + 1) | per_thread;
            }
        }
    }
    let listener = Listener {
        ring,
        kernels: Kernels::new(),
        sites: (!is_light).then(Sites::default),
        host: (!is_light && profile.is_empty())
            .then(|| Host::begin(variable(PROVOKE).parse().ok())),
        rows,
    };
    if LISTENER.set(listener).is_err() {
        return;
    }
    let Some(listener) = LISTENER.get() else {
        return;
    };
    let rows = listener.rows.iter().enumerate();
    let ids = rows.filter(|(_, row)| **row != 0).map(|(id, _)| id as u16);
    let probe = variable(EXACT);
    let begun = if probe.is_empty() {
        system::at_end(end, in_child);
        let subscribed = subscribe(&variable(CUPTI), profile.is_empty());
        subscribed.and_then(|cupti| {
            if !profile.is_empty() {
                activity::begin(cupti.library, &listener.ring, &profile)?;
            }
            ids.for_each(|id| cupti.hear(id));
            Ok(())
        })
    } else {
        let begun = exact::begin(&probe, &listener.ring, heard, ids);
        // What comes last is called first: the probe ends before its own variables do.
        system::at_end(end, in_child);
        begun.map_err(|why| format!("exact {why}"))
    };
    if let Err(why) = begun {
        listener.ring.write_text(Tag::Problem, &[], why.as_bytes());
    }
}

fn subscribe(files: &str, shares: bool) -> Result<Cupti, String> {
    // A library that the program has loaded comes first: two in one process would be in each other's way.
    const LOADED: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];
    let loaded = LOADED.into_iter().find_map(Library::loaded);
    let given = || {
        files
            .split(':')
            .filter(|file| !file.is_empty())
            .find_map(Library::open)
    };
    let library = loaded
        .or_else(given)
        .or_else(|| LOADED.into_iter().find_map(Library::open));
    let library = library.ok_or("no CUPTI")?;
    Cupti::subscribe(library, heard, shares).map_err(|refused| match refused {
        NotSubscribed::Unknown => "CUPTI has no function cuptiSubscribe".to_owned(),
        NotSubscribed::Taken(name) => format!("taken {name}"),
        NotSubscribed::Error(code) => format!("CUPTI's error {code}"),
    })
}

extern "C" fn end() {
    activity::end();
    if LISTENER.get().is_some_and(|of| of.ring.is_open()) {
        exact::end();
    }
    if let Some(listener) = LISTENER.get()
        && let Some((host, to)) = listener.host()
    {
        host.end(to);
    }
}

extern "C" fn in_child() {
    // The ring belongs to the parent.
    if let Some(listener) = LISTENER.get() {
        listener.ring.close();
    }
}

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    static WORDS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

extern "C" fn heard(_: *mut c_void, domain: c_int, id: u32, data: *const Data) {
    let id = match domain {
        DRIVER => id,
        OF_RUNTIME => id.saturating_add(u32::from(RUNTIME)),
        _ => return,
    };
    if data.is_null() {
        return;
    }
    let (Some(listener), false) = (LISTENER.get(), IS_INSIDE.replace(true)) else {
        return;
    };
    // In a forked child, locks may be held by threads that do not exist there.
    if !listener.ring.is_open() {
        IS_INSIDE.set(false);
        return;
    }
    let _ = catch_unwind(|| {
        WORDS.with_borrow_mut(|words| {
            // SAFETY: CUPTI passes the data of the call, which are valid during the callback.
            unsafe { listener.call(id, &*data, words) }
        })
    });
    IS_INSIDE.set(false);
}

impl Listener {
    /// Writes a call.
    ///
    /// # Safety
    /// The data are those that CUPTI passes for the call with this number.
    unsafe fn call(&self, id: u32, data: &Data, words: &mut Vec<u64>) {
        let row = self.rows.get(id as usize).copied().unwrap_or(0);
        let Some(call) = usize::from(row & !PER_THREAD)
            .checked_sub(1)
            .map(|row| &CALLS[row])
        else {
            return;
        };
        let at = if data.site == 0 {
            Moment::Enter
        } else {
            Moment::Exit
        };
        if at == Moment::Exit && call.waits() {
            if let Some((host, to)) = self.host() {
                host.returned(to);
            }
            exact::pass();
            let thread = u64::from(system::thread());
            self.ring.write_text(Tag::Returned, &[thread], &[]);
            return;
        }
        let launches_into = call.launches_into();
        if at == Moment::Enter && launches_into.is_some() {
            exact::forget();
            // SAFETY: the caller promises it.
            unsafe { self.expect(call, data, words) };
        }
        let is_submitted = at == Moment::Exit && call.copies_in().is_some() && self.host.is_some();
        if (call.at != at && !is_submitted) || data.arguments.is_null() {
            return;
        }
        let result = match at {
            Moment::Enter => 0,
            // SAFETY: after the call, it points to the result.
            Moment::Exit if !data.result.is_null() => unsafe { *data.result as u32 },
            Moment::Exit => 0,
        };
        words.clear();
        words.push(u64::from(system::thread()) | u64::from(result) << 32);
        words.push(data.context);
        let site = self
            .sites
            .as_ref()
            .filter(|_| !is_submitted)
            .map_or(0, |sites| sites.here(&self.ring));
        words.push(u64::from(site));
        // SAFETY: the structure has so many words, as the table says.
        let arguments =
            unsafe { std::slice::from_raw_parts(data.arguments, usize::from(call.words)) };
        words.extend_from_slice(arguments);
        if result == 0 {
            // SAFETY: the driver has accepted the arguments, or is about to read them.
            unsafe {
                self.behind(call, words);
                self.last(call, data, words);
            }
            if let Some((at, bytes)) = call.makes(&words[BEFORE..]) {
                self.kernels.made(at, bytes);
            }
            if call.what == Does::Unload {
                self.kernels.forget();
                exact::unloaded();
            }
        }
        let per_thread = row & PER_THREAD != 0;
        // A capture ends even if that fails.
        let is_done = result == 0 || matches!(call.what, Does::EndCapture(..));
        if let Some((host, to)) = self.host().filter(|_| is_done) {
            if is_submitted {
                return host.submitted(call, &words[BEFORE..], per_thread);
            }
            host.before(call, &words[BEFORE..], per_thread, to);
        }
        if is_submitted {
            return;
        }
        let head = Head {
            words: 0,
            tag: Tag::Call,
            index: (row & !PER_THREAD) - 1,
            per_thread,
        };
        if let Some(stream) = launches_into {
            exact::variables(words[1]);
            let words = &words[BEFORE..];
            let kernel = call.kernel(words).filter(|_| result == 0);
            let stream = words.get(usize::from(stream)).filter(|_| kernel.is_some());
            if let (Some([kernel, parameters, extra]), true) = (kernel, exact::is_on()) {
                let (given, mut maps) = (LaunchArguments::new(parameters, extra), Vec::new());
                // SAFETY: as above.
                unsafe { self.kernels.maps(kernel, given, &mut maps) };
                exact::maps(&maps);
            }
            // `CU_STREAM_PER_THREAD`.
            let stream = stream.map(|stream| match stream {
                0 if per_thread => 2,
                stream => *stream,
            });
            exact::launched(stream);
        }
        self.ring.write(head, words);
        if let Some(host) = self.host.as_ref().filter(|_| call.at == Moment::Enter) {
            host.hold(call, &words[BEFORE..], per_thread);
        }
    }

    fn host(&self) -> Option<(&Host, Teller<'_>)> {
        let sites = self.sites.as_ref()?;
        let ring = &self.ring;
        Some((self.host.as_ref()?, Teller { ring, sites }))
    }

    /// Says what a call is about to launch, where that is asked for.
    ///
    /// # Safety
    /// As of [`Listener::call`]; the driver is about to read the arguments.
    unsafe fn expect(&self, call: &ApiCall, data: &Data, words: &mut Vec<u64>) {
        if data.arguments.is_null() || !exact::learns() {
            return;
        }
        words.clear();
        words.extend([0; BEFORE]);
        // SAFETY: the table has the number of words of the structure; the caller promises the rest.
        unsafe {
            let count = usize::from(call.words);
            words.extend_from_slice(std::slice::from_raw_parts(data.arguments, count));
            self.behind(call, words);
            if let Some([kernel, parameters, extra]) = call.kernel(&words[BEFORE..]) {
                words.clear();
                let given = LaunchArguments::new(parameters, extra);
                self.addresses(kernel, given, std::ptr::null(), words);
                exact::expects(words);
            }
        }
    }

    /// Appends what is behind the pointers of a call.
    ///
    /// # Safety
    /// The pointers are as the driver requires.
    unsafe fn behind(&self, call: &ApiCall, words: &mut Vec<u64>) {
        let word = |words: &[u64], at: u8| words[BEFORE + usize::from(at)];
        for behind in call.behind {
            let (from, count) = match *behind {
                Behind::Words(at, count) => (word(words, at), usize::from(count)),
                Behind::Array(at, count, each) => {
                    let from = word(words, at);
                    // Half of the word may be padding.
                    let all = u64::from(word(words, count) as u32).saturating_mul(u64::from(each));
                    let all = if from == 0 { 0 } else { all.min(MAX_BEHIND) };
                    words.push(all);
                    (from, all as usize)
                }
            };
            for offset in 0..count {
                let from = from as *const u64;
                if from.is_null() {
                    words.push(0);
                } else {
                    // SAFETY: the driver reads or writes so many words there.
                    words.push(unsafe { *from.add(offset) });
                }
            }
        }
    }

    /// Appends the addresses among a kernel's parameters, the graphs of a conditional node, or the nodes inside a child graph's.
    ///
    /// # Safety
    /// The driver was given the arguments, and what they point to is still there.
    unsafe fn last(&self, call: &ApiCall, data: &Data, words: &mut Vec<u64>) {
        let Some([kernel, parameters, extra]) = call.kernel(&words[BEFORE..]) else {
            if let Some(Part::Conditional(first)) = call.part(&words[BEFORE..]) {
                let first = BEFORE + usize::from(first);
                let (count, graphs) = (words[first + 1] >> 32, words[first + 2] as *const u64);
                for at in 0..count.min(MAX_BODIES) as usize {
                    // SAFETY: the driver has made so many graphs.
                    words.push(unsafe { *graphs.add(at) });
                }
            }
            if let (Does::NodeAdd(node, ..), Some(Part::Child(_))) =
                (call.what, call.part(&words[BEFORE..]))
            {
                exact::inside(words[BEFORE + usize::from(node)], words);
            }
            return;
        };
        let given = LaunchArguments::new(parameters, extra);
        // CUPTI tells the name for launches only, the Sanitizer API for none that is launched with attributes.
        let is_told = call.part(&words[BEFORE..]).is_none() && !exact::is_on();
        let name = if is_told {
            data.kernel
        } else {
            std::ptr::null()
        };
        // SAFETY: the caller promises it; CUPTI's text ends with a zero.
        unsafe { self.addresses(kernel, given, name, words) };
    }

    /// Appends what [`Kernels::addresses`] does, and writes the kernel's name the first time; null: the driver is asked for it.
    ///
    /// # Safety
    /// As of [`Kernels::addresses`]; and the name ends with a zero.
    unsafe fn addresses(
        &self,
        kernel: u64,
        given: LaunchArguments,
        name: *const c_char,
        words: &mut Vec<u64>,
    ) {
        // SAFETY: the caller promises it.
        unsafe {
            if self.kernels.addresses(kernel, given, words) {
                let name = if name.is_null() {
                    self.kernels.name(kernel)
                } else {
                    text(name)
                };
                self.ring.write_text(Tag::Kernel, &[kernel], name);
            }
        }
    }
}
