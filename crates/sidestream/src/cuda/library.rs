//! Shared libraries that may be there or not.

use std::fmt;

use libloading::{Library, Symbol};

/// Writes the table of a library's functions once: the fields of what has them, and the names under which they are found. A
/// macro, because the two lists have to agree. Functions answer with a `Code` of the caller's, unless they say otherwise.
macro_rules! functions {
    ($(#[$doc:meta])* $vis:vis $Library:ident: $($name:ident: fn($($arg:ty),*) $(-> $answer:ty)?;)+) => {
        $(#[$doc])*
        pub struct $Library {
            $($vis $name: unsafe extern "C" fn($($arg),*) -> $crate::cuda::library::answer!($($answer)?),)+
            /// Where it was found.
            $vis file: String,
            // What the functions point into; never unloaded, because its threads, or a profiler's, may still run.
            _library: std::mem::ManuallyDrop<libloading::Library>,
        }

        impl $Library {
            fn of((library, file): (libloading::Library, String)) -> Result<$Library, NotLoaded> {
                $(
                    // SAFETY: the library is the one that it was opened as, or whatever the caller named as such, and
                    // exports the function under this name with the type that its header gives it.
                    let $name = unsafe { *library::function(&library, &file, stringify!($name))? };
                )+
                Ok($Library { $($name,)+ file, _library: std::mem::ManuallyDrop::new(library) })
            }
        }
    };
}

/// The type of an answer.
macro_rules! answer {
    () => {
        Code
    };
    ($answer:ty) => {
        $answer
    };
}

pub(super) use {answer, functions};

/// Why a library cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotLoaded {
    /// None of the files could be loaded.
    NoFile {
        /// Each file with what the system said.
        tried: Vec<(String, String)>,
    },
    /// A function is missing.
    NoFunction {
        /// Where it was looked for.
        file: String,
        /// Which.
        function: String,
    },
}

/// Loads the first of these files that there is, and says which.
///
/// # Safety
/// Each, as far as it is there, may be loaded into this process.
pub(super) unsafe fn open(files: &[&str]) -> Result<(Library, String), NotLoaded> {
    let mut tried = Vec::new();
    for &file in files {
        // SAFETY: loading a library runs its initialisers, which the caller answers for.
        match unsafe { Library::new(file) } {
            Ok(library) => return Ok((library, file.to_owned())),
            Err(error) => tried.push((file.to_owned(), reason(&error))),
        }
    }
    Err(NotLoaded::NoFile { tried })
}

/// Looks a function up.
///
/// # Safety
/// If the library has a function of this name, `F` is its type.
pub(super) unsafe fn function<'a, F>(
    library: &'a Library,
    file: &str,
    name: &str,
) -> Result<Symbol<'a, F>, NotLoaded> {
    // SAFETY: the caller promises the type.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map_err(|_| NotLoaded::NoFunction {
        file: file.to_owned(),
        function: name.to_owned(),
    })
}

/// The system's words without the library's own around them.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error as _;
    match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotLoaded::NoFile { tried } => {
                write!(f, "no library could be loaded; tried")?;
                for (at, (file, why)) in tried.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    // The system begins with the file's name.
                    let why = why.strip_prefix(file.as_str()).unwrap_or(why);
                    let why = why.trim_start_matches([':', ' ']);
                    write!(f, "{comma} {file} ({why})")?;
                }
                Ok(())
            }
            NotLoaded::NoFunction { file, function } => write!(
                f,
                "{file} has no function {function}: it is too old, or it is no CUDA driver; a driver \
                 for CUDA 12 or later is needed"
            ),
        }
    }
}

impl std::error::Error for NotLoaded {}
