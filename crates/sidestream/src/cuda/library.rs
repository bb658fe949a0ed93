//! Shared libraries that may or may not be installed.

use std::fmt;

use libloading::{Library, Symbol};

/// Declares the table of a library's functions: the fields of the struct, and the names under which the functions are
/// exported. A macro, because the two lists have to agree. Functions return the calling module's `Code`, unless
/// stated otherwise.
macro_rules! functions {
    ($(#[$doc:meta])* $vis:vis $Library:ident: $($name:ident: fn($($arg:ty),*) $(-> $answer:ty)?;)+) => {
        $(#[$doc])*
        pub struct $Library {
            $($vis $name: unsafe extern "C" fn($($arg),*) -> $crate::cuda::library::answer!($($answer)?),)+
            /// The file from which the library was loaded.
            $vis file: String,
            // The library, which keeps the functions valid. It is never unloaded, because its threads, or a profiler's,
            // may still run.
            _library: std::mem::ManuallyDrop<libloading::Library>,
        }

        impl $Library {
            fn of((library, file): (libloading::Library, String)) -> Result<$Library, NotLoaded> {
                $(
                    // SAFETY: the library is the one that this table describes, by its system name or by the caller's
                    // promise, and exports the function under this name with the type in its header.
                    let $name = unsafe { *library::function(&library, &file, stringify!($name))? };
                )+
                Ok($Library { $($name,)+ file, _library: std::mem::ManuallyDrop::new(library) })
            }
        }
    };
}

/// The return type of a function.
macro_rules! answer {
    () => {
        Code
    };
    ($answer:ty) => {
        $answer
    };
}

pub(super) use {answer, functions};

/// The reason why a library cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotLoaded {
    /// The program is linked statically, and has no loader.
    Static,
    /// None of the files could be loaded.
    NoFile {
        /// Each file with the system's error message.
        tried: Vec<(String, String)>,
    },
    /// A function is missing.
    NoFunction {
        /// The library in which the function was looked for.
        file: String,
        /// The name of the function.
        function: String,
    },
}

/// Loads the first of these files that exists; returns the library and the file.
///
/// # Safety
/// Each file that exists may be loaded into this process.
pub(super) unsafe fn open(files: &[&str]) -> Result<(Library, String), NotLoaded> {
    if cfg!(all(target_env = "musl", target_feature = "crt-static")) {
        return Err(NotLoaded::Static);
    }
    let mut tried = Vec::new();
    for &file in files {
        // SAFETY: loading a library runs its initializers; the caller promises that this is allowed.
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

/// Returns the system's message without the text that `libloading` puts around it.
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
            NotLoaded::Static => f.write_str(
                "this program is linked statically and cannot load NVIDIA's driver; use the command of the Python \
                 package, or one that is built for the GNU C library",
            ),
            NotLoaded::NoFile { tried } => {
                write!(f, "no library could be loaded; tried")?;
                for (at, (file, why)) in tried.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    // The system's message begins with the file's name.
                    let why = why.strip_prefix(file.as_str()).unwrap_or(why);
                    let why = why.trim_start_matches([':', ' ']);
                    write!(f, "{comma} {file} ({why})")?;
                }
                Ok(())
            }
            NotLoaded::NoFunction { file, function } => write!(
                f,
                "{file} has no function {function}: it is too old, or it is not a CUDA driver; a driver \
                 for CUDA 12 or later is needed"
            ),
        }
    }
}

impl std::error::Error for NotLoaded {}
