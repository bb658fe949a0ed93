//! Names and lines of native code: what a return address in a program or a library belongs to.
//!
//! Lines come from the debug information (`-g`), names from there or from the symbol table. A file may be anything: what cannot be read
//! leaves a frame without name or line.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use addr2line::Context;
use addr2line::gimli::{Dwarf, EndianSlice, Error, LittleEndian};
use cpp_demangle::{BorrowedSymbol, DemangleNodeType, DemangleOptions, DemangleWrite};
use object::read::elf::ElfFile64;
use object::{
    CompressionFormat, Endianness, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable,
    SymbolKind,
};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// No file of more bytes is read.
const MOST_BYTES: u64 = 16 << 30;
/// No more functions that were inlined into each other are told for an address.
const MOST_INLINED: usize = 32;
/// No name of more bytes is shown in full.
const LONGEST_NAME: usize = 100;

/// How the names of functions begin that are between a program's own line and the driver: of the CUDA runtime that is linked into the
/// program, and of libraries that are compiled with it.
const BETWEEN: &str =
    "__cuda __device_stub__ libcudart_static_ cudart:: cuda:: thrust:: cub:: std:: __gnu_cxx::";

/// Names and lines of modules, of which each is read once.
pub struct Symbols {
    modules: HashMap<PathBuf, Option<Module>>,
    /// Paths in this folder are shown relative to it.
    folder: PathBuf,
}

struct Module {
    lines: Option<Context<EndianSlice<'static, LittleEndian>>>,
    /// Address, size and name of each function.
    functions: Vec<(u64, u64, &'static str)>,
}

/// One function at an address; there are several where functions were inlined.
#[derive(Default)]
struct CallFrame {
    /// The function's name for the linker; empty if it is not known.
    linked: String,
    /// The name for people; if the function is not known, the module and the address in it.
    name: String,
    line: Option<String>,
}

/// Shows paths relative to the current folder.
impl Default for Symbols {
    fn default() -> Symbols {
        Symbols::new(std::env::current_dir().unwrap_or_default())
    }
}

impl Symbols {
    /// Nothing is read yet. Paths in `folder` will be shown relative to it.
    pub fn new(folder: PathBuf) -> Symbols {
        let modules = HashMap::new();
        Symbols { modules, folder }
    }

    /// The place of the program that called CUDA, such as `pipeline.cu:42 in upload()`: the innermost function that is the program's own,
    /// preferably one whose line is known. `stack` has return addresses, innermost first: a module, and the address in its file.
    /// If the call launches a kernel, `kernel` is its name: the function of this name on the host is the compiler's.
    pub fn site(&mut self, stack: &[(PathBuf, u64)], kernel: Option<&str>) -> String {
        let frames = self.frames(stack);
        let is_kernel = |frame: &CallFrame| {
            kernel.is_some_and(|name| frame.name.strip_suffix("()") == Some(name))
        };
        let own: Vec<_> = frames
            .iter()
            .filter(|frame| !frame.is_between() && !is_kernel(frame))
            .collect();
        let with_line = own.iter().find(|frame| frame.line.is_some());
        match with_line.or(own.first()).copied().or(frames.first()) {
            Some(frame) => frame.to_string(),
            None => "an unknown place".to_owned(),
        }
    }

    /// All functions of a stack, innermost first.
    pub fn stack(&mut self, stack: &[(PathBuf, u64)]) -> Vec<String> {
        self.frames(stack)
            .iter()
            .map(CallFrame::to_string)
            .collect()
    }

    fn frames(&mut self, stack: &[(PathBuf, u64)]) -> Vec<CallFrame> {
        let mut frames = Vec::new();
        for (path, at) in stack {
            let module = self.modules.entry(path.clone());
            let module = module.or_insert_with(|| Module::read(path)).as_ref();
            let file = path.file_name().unwrap_or_default().display();
            // The call is before the address to which it returns.
            let call = at.saturating_sub(1);
            let mut inlined =
                module.map_or_else(Vec::new, |module| module.inlined(call, &self.folder));
            let symbol = module.and_then(|module| module.function(call));
            let Some(outermost) = inlined.last_mut() else {
                frames.push(match symbol {
                    Some((start, linked)) => CallFrame {
                        linked: linked.to_owned(),
                        name: format!("{}()+{:#x} in {file}", demangled(linked), at - start),
                        line: None,
                    },
                    None => CallFrame {
                        name: format!("{file}+{at:#x}"),
                        ..CallFrame::default()
                    },
                });
                continue;
            };
            if outermost.linked.is_empty() {
                outermost.linked = symbol.map_or_else(String::new, |(_, linked)| linked.to_owned());
            }
            for frame in &mut inlined {
                frame.name = match frame.linked.as_str() {
                    "" => format!("{file}+{at:#x}"),
                    linked => format!("{}()", demangled(linked)),
                };
            }
            frames.append(&mut inlined);
        }
        frames
    }
}

impl CallFrame {
    fn is_between(&self) -> bool {
        let is_runtime = |rest: &str| rest.starts_with(|c: char| c.is_ascii_uppercase());
        // Such as `memcpy`, or what `delete` calls.
        let is_of_library = |library: &&str| {
            self.name.starts_with(*library) || self.name.contains(&format!(" in {library}"))
        };
        let is_library = self.line.is_none()
            && ["libc.so", "libstdc++.so", "libc++"]
                .iter()
                .any(is_of_library);
        let is_known = !self.linked.is_empty();
        is_library
            || is_known
                && (self.name.strip_prefix("cuda").is_some_and(is_runtime)
                    || BETWEEN.split(' ').any(|start| self.name.starts_with(start)))
    }
}

impl fmt::Display for CallFrame {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match &self.line {
            Some(line) => write!(out, "{line} in {}", self.name),
            None => out.write_str(&self.name),
        }
    }
}

impl Module {
    fn read(path: &Path) -> Option<Module> {
        let elf = ElfFile64::<Endianness>::parse(mapped(path)?).ok()?;
        let section = |name: &str| {
            let data = elf.section_by_name(name)?.compressed_data().ok()?;
            (data.format == CompressionFormat::None).then_some(data.data)
        };
        let load = |name| {
            let data = section(name).unwrap_or_default();
            Ok::<_, Error>(EndianSlice::new(data, LittleEndian))
        };
        let dwarf = Dwarf::load(|id| load(id.name())).ok();
        let lines = dwarf.and_then(|dwarf| Context::from_dwarf(dwarf).ok());
        let table = elf.symbol_table().or_else(|| elf.dynamic_symbol_table());
        let symbols = table.iter().flat_map(|table| table.symbols());
        let functions =
            symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
        let mut functions: Vec<_> = functions
            .filter_map(|it| Some((it.address(), it.size(), it.name().ok()?)))
            .collect();
        functions.sort_unstable();
        Some(Module { lines, functions })
    }

    /// What debug information says of an address, without names for people; the innermost function first.
    fn inlined(&self, at: u64, folder: &Path) -> Vec<CallFrame> {
        let mut frames = Vec::new();
        let Some(Ok(mut inlined)) = self
            .lines
            .as_ref()
            .map(|lines| lines.find_frames(at).skip_all_loads())
        else {
            return frames;
        };
        while frames.len() < MOST_INLINED
            && let Ok(Some(found)) = inlined.next()
        {
            let mut frame = CallFrame::default();
            if let Some(Ok(linked)) = found.function.as_ref().map(|function| function.raw_name()) {
                frame.linked = linked.into_owned();
            }
            if let Some(location) = found.location
                && let (Some(file), Some(line)) = (location.file, location.line)
            {
                let file = Path::new(file);
                frame.line = Some(format!(
                    "{}:{line}",
                    file.strip_prefix(folder).unwrap_or(file).display()
                ));
            }
            frames.push(frame);
        }
        frames
    }

    /// The beginning and the name of the function that holds an address.
    fn function(&self, at: u64) -> Option<(u64, &'static str)> {
        let after = self.functions.partition_point(|(start, ..)| *start <= at);
        let &(start, size, name) = self.functions.get(after.checked_sub(1)?)?;
        (at - start < size).then_some((start, name))
    }
}

/// The content of a file, for as long as the command runs.
fn mapped(path: &Path) -> Option<&'static [u8]> {
    let about = path.metadata().ok()?;
    if !about.is_file() || !(1..MOST_BYTES).contains(&about.len()) {
        return None;
    }
    let (file, bytes) = (File::open(path).ok()?, about.len() as usize);
    let (access, flags) = (ProtFlags::READ, MapFlags::PRIVATE);
    // SAFETY: the mapping is new, and never undone. Linkers and package managers replace a file that is in use, and do not change it.
    unsafe {
        let start = mmap(std::ptr::null_mut(), bytes, access, flags, &file, 0).ok()?;
        Some(std::slice::from_raw_parts(start.cast(), bytes))
    }
}

/// A function's name as it is written in the source, without its parameters and those of templates.
pub(super) fn demangled(linked: &str) -> String {
    let options = DemangleOptions::new().no_params().no_return_type();
    let name = read(linked, &options, true).map(|name| name.replace("<>", ""));
    let mut shown = name.unwrap_or_else(|| linked.to_owned());
    // Rust adds a hash.
    if let Some((path, hash)) = shown.rsplit_once("::h")
        && hash.len() == 16
        && hash.bytes().all(|c| c.is_ascii_hexdigit())
    {
        shown.truncate(path.len());
    }
    if let Some((end, _)) = shown.char_indices().nth(LONGEST_NAME) {
        shown.replace_range(end.., "…");
    }
    shown
}

/// A function's whole signature, such as `void scale<float>(float*, float const*)`; `None` if the name is not C++'s.
pub(super) fn signature(linked: &str) -> Option<String> {
    read(linked, &DemangleOptions::new(), false)
}

fn read(linked: &str, options: &DemangleOptions, is_brief: bool) -> Option<String> {
    if !linked.starts_with("_Z") || linked.len() >= 10_000 {
        return None;
    }
    let (symbol, _) = BorrowedSymbol::with_tail(linked.as_bytes()).ok()?;
    let mut name = Name {
        text: String::new(),
        is_brief,
        nodes: Vec::new(),
        writes: 0,
    };
    symbol.structured_demangle(&mut name, options).ok()?;
    Some(name.text)
}

/// What is written of a name.
struct Name {
    text: String,
    /// Whether the parameters of templates are left out.
    is_brief: bool,
    /// Whether the parts that are being written are parameters of templates.
    nodes: Vec<bool>,
    writes: usize,
}

impl DemangleWrite for Name {
    fn push_demangle_node(&mut self, node: DemangleNodeType) {
        self.nodes.push(node == DemangleNodeType::TemplateArgs);
    }

    fn write_string(&mut self, text: &str) -> fmt::Result {
        // A short name can stand for a very long one.
        self.writes += 1;
        if self.writes > 100_000 || self.text.len() > 100_000 {
            return Err(fmt::Error);
        }
        if !(self.is_brief && self.nodes.contains(&true)) {
            self.text.push_str(text);
        }
        Ok(())
    }

    fn pop_demangle_node(&mut self) {
        self.nodes.pop();
    }
}
