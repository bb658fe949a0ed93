//! Finds which pointers a Triton kernel loads from and stores to, from its intermediate representation.
//!
//! A value that is computed from a pointer argument may point to the same memory. So each value has the set of
//! arguments that it may derive from, through arithmetic, loops, branches and calls, and a load or store counts for
//! all arguments in the set of its address. If the text does not suffice (it is too long, or an address is loaded
//! from memory), every pointer counts as loaded and stored. The analysis makes a bounded number of passes.

use std::collections::HashMap;

/// Longer texts are not read.
const MOST_BYTES: usize = 4 << 20;
/// The maximum number of passes; values that have not settled by then may derive from all arguments.
const MOST_PASSES: usize = 32;
/// The number of bits in a set of arguments.
const MOST_POINTERS: usize = 64;
/// The maximum number of names in one line.
const MOST_NAMES: usize = 4096;
/// The maximum nesting depth of blocks.
const MOST_DEPTH: usize = 256;

/// A pointer of a kernel: its index among the function's arguments, its name in the text, and whether the kernel may load
/// from it and store to it.
pub type Pointer = (usize, String, bool, bool);

/// The pointers of the first public function, and the number of its arguments. `None` if there is no such function.
pub fn pointers(text: &str) -> Option<(usize, Vec<Pointer>)> {
    let (lines, head) = kernel(text)?;
    let head = &lines[head];
    let all = head.arguments.iter().enumerate();
    let all: Vec<_> = all.filter(|(_, (_, kind))| is_pointer(kind)).collect();
    let is_long = |line: &Line<'_>| line.operands.len().max(line.results.len()) > MOST_NAMES;
    let found = match all.len() {
        _ if lines.iter().any(is_long) => Found::ALL,
        0 => Found::default(),
        1..=MOST_POINTERS => Flow::of(head, &lines).settled(&lines),
        _ => Found::ALL,
    };
    let all = all.into_iter().enumerate().map(|(place, (at, (name, _)))| {
        let bit = 1_u64.checked_shl(place as u32).unwrap_or(u64::MAX);
        let name = name.trim_start_matches('%').to_owned();
        (at, name, found.loads & bit != 0, found.stores & bit != 0)
    });
    Some((head.arguments.len(), all.collect()))
}

fn is_pointer(kind: &str) -> bool {
    kind.contains("!tt.ptr") || kind.contains("!tt.tensordesc")
}

/// The lines of a text, and the index of its first public function.
pub fn kernel(text: &str) -> Option<(Vec<Line<'_>>, usize)> {
    if text.len() > MOST_BYTES {
        return None;
    }
    let lines: Vec<Line<'_>> = text.lines().filter_map(Line::read).collect();
    let head = lines.iter().position(|line| line.is_public)?;
    Some((lines, head))
}

/// The sets of arguments that are loaded from and stored to.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Found {
    loads: u64,
    stores: u64,
}

impl Found {
    const ALL: Found = Found {
        loads: u64::MAX,
        stores: u64::MAX,
    };
}

/// One line: an operation, or the head of a function or block.
pub struct Line<'a> {
    /// The operation's name, such as `tt.load`.
    pub op: &'a str,
    /// The line without its results.
    pub body: &'a str,
    pub results: Vec<&'a str>,
    pub operands: Vec<&'a str>,
    /// Pairs of a name in a block and its initial value.
    pub starts: Vec<(&'a str, &'a str)>,
    /// The arguments of a function, with their types.
    pub arguments: Vec<(&'a str, &'a str)>,
    is_function: bool,
    is_public: bool,
    /// The name after `@`.
    symbol: Option<&'a str>,
    pub opens: usize,
    pub closes: usize,
    /// Whether the operation makes a pointer from an integer.
    makes_pointer: bool,
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Option<Line<'a>> {
        let line = line.trim();
        if line.is_empty() || line.starts_with("//") || line.starts_with('#') {
            return None;
        }
        let line = line.find(" loc(").map_or(line, |at| {
            if line.contains("tt.func") {
                line
            } else {
                &line[..at]
            }
        });
        let is_function = line.starts_with("tt.func") || line.contains(" func.func ");
        let (left, right) = match line.split_once(" = ") {
            Some((left, right)) if left.starts_with('%') && !is_function => (left, right),
            _ => ("", line),
        };
        let body = right.trim_start();
        let end = body.find(|c: char| c.is_whitespace() || c == '(' || c == '<');
        let op = body[..end.unwrap_or(body.len())].trim_matches('"');
        let braces = |brace: char| unquoted(line).filter(|c| *c == brace).count();
        let mut read = Line {
            op,
            body,
            results: names(left),
            operands: Vec::new(),
            starts: Vec::new(),
            arguments: Vec::new(),
            is_function,
            is_public: is_function && line.contains(" public "),
            symbol: line.split_once('@').map(|(_, rest)| {
                let end = rest.find(|c: char| !(c.is_alphanumeric() || "_$.".contains(c)));
                &rest[..end.unwrap_or(rest.len())]
            }),
            opens: braces('{'),
            closes: braces('}'),
            makes_pointer: op == "tt.int_to_ptr"
                || (op == "tt.load" && line.contains("!tt.ptr<!tt.ptr")),
        };
        if is_function {
            read.arguments = parameters(line);
        } else {
            read.operands = names(right);
            read.starts = starts(right.find("iter_args(").map_or(right, |at| &right[at..]));
        }
        Some(read)
    }
}

/// The characters outside quotes.
fn unquoted(text: &str) -> impl Iterator<Item = char> {
    let mut quoted = false;
    text.chars().filter(move |c| {
        quoted ^= *c == '"';
        !quoted
    })
}

/// All value names: `%x`, `%x#1`.
fn names(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    for (at, _) in text.match_indices('%') {
        all.push(name_at(text, at));
    }
    all
}

/// The name that starts here, without the number of one of several results.
fn name_at(text: &str, at: usize) -> &str {
    let rest = &text[at + 1..];
    let end = rest.find(|c: char| !(c.is_alphanumeric() || "_$.-".contains(c)));
    &text[at..at + 1 + end.unwrap_or(rest.len())]
}

/// The pairs of `iter_args(%a = %b, …)` and similar lists.
fn starts(text: &str) -> Vec<(&str, &str)> {
    let mut all = Vec::new();
    for (at, _) in text.match_indices(" = %") {
        let before = text[..at].rfind('%').map(|from| name_at(text, from));
        if let Some(name) = before {
            all.push((name, name_at(text, at + 3)));
        }
    }
    all
}

/// The arguments of a function, with their types.
fn parameters(line: &str) -> Vec<(&str, &str)> {
    let mut all = Vec::new();
    // Types may contain parentheses and braces; only a comma at the outermost level separates.
    let Some(open) = line.find('(') else {
        return all;
    };
    let (mut depth, mut quoted, mut from) = (0_i64, false, open + 1);
    for (at, c) in line[open..].char_indices().map(|(at, c)| (at + open, c)) {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '{' | '<' | '[' => depth += 1,
            '>' if line[..at].ends_with('-') => {}
            ')' | '}' | '>' | ']' => depth -= 1,
            _ => {}
        }
        let ends = depth == 0;
        if (ends || (depth == 1 && c == ',' && !quoted)) && at > open {
            if let Some((name, kind)) = line[from..at].split_once(':') {
                all.push((name.trim(), kind.trim()));
            }
            from = at + c.len_utf8();
        }
        if ends && at > open {
            break;
        }
    }
    all
}

/// The sets of arguments by value, within its function.
struct Flow<'a> {
    /// By function and name.
    values: HashMap<(usize, &'a str), u64>,
    /// By function symbol: the function's index, and the set of its results.
    functions: HashMap<&'a str, (usize, u64)>,
    found: Found,
    changed: bool,
}

/// An open block, and the names that its results and arguments get their values from.
struct Block<'a> {
    depth: usize,
    fed: Vec<&'a str>,
}

impl<'a> Flow<'a> {
    fn of(head: &Line<'a>, lines: &[Line<'a>]) -> Flow<'a> {
        let mut flow = Flow {
            values: HashMap::new(),
            functions: HashMap::new(),
            found: Found::default(),
            changed: false,
        };
        for (at, line) in lines
            .iter()
            .enumerate()
            .filter(|(_, line)| line.is_function)
        {
            if let Some(symbol) = line.symbol {
                flow.functions.entry(symbol).or_insert((at, 0));
            }
            if std::ptr::eq(line, head) {
                let mut bit = 1_u64;
                for (name, kind) in &line.arguments {
                    if is_pointer(kind) {
                        flow.values.insert((at, *name), bit);
                        bit = bit.wrapping_shl(1);
                    }
                }
            }
        }
        flow
    }

    /// The result once nothing changes any more.
    fn settled(mut self, lines: &[Line<'a>]) -> Found {
        for _ in 0..MOST_PASSES {
            self.changed = false;
            if !self.pass(lines) {
                return Found::ALL;
            }
            if !self.changed {
                return self.found;
            }
        }
        Found::ALL
    }

    fn value(&self, function: usize, name: &str) -> u64 {
        let known = self.values.get(&(function, name));
        known.copied().unwrap_or(0)
    }

    fn join(&mut self, function: usize, name: &'a str, from: u64) {
        let known = self.values.entry((function, name)).or_insert(0);
        if *known | from != *known {
            *known |= from;
            self.changed = true;
        }
    }

    /// Makes one pass over the text. Returns whether the text can be analyzed.
    fn pass(&mut self, lines: &[Line<'a>]) -> bool {
        let mut function = 0;
        let mut depth = 0_usize;
        let mut blocks: Vec<Block<'a>> = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            if line.is_function {
                function = at;
            }
            if line.makes_pointer {
                self.found = Found::ALL;
                return true;
            }
            if line.closes > 0 && line.op.starts_with('}') {
                // `} else {` continues the same block.
                let after = (depth + line.opens).saturating_sub(line.closes);
                blocks.retain(|block| block.depth < after);
            }
            let from = line
                .operands
                .iter()
                .fold(0, |all, name| all | self.value(function, name));
            for &(name, start) in &line.starts {
                let start = self.value(function, start);
                self.join(function, name, start);
            }
            let mut gives = from;
            let address = line
                .operands
                .first()
                .map_or(0, |name| self.value(function, name));
            match line.op {
                "tt.load" => {
                    self.touch(address, 0);
                    gives = 0;
                }
                "tt.store" => self.touch(0, address),
                _ if line.op.contains("atomic") => {
                    self.touch(address, address);
                    gives = 0;
                }
                "tt.return" => self.gives(lines, function, from),
                "tt.call" => gives = self.call(lines, function, line, from),
                "scf.yield" | "scf.condition" | "tt.reduce.return" | "tt.scan.return" => {
                    if let Some(block) = blocks.last() {
                        self.hand_on((function, line, from), (function, &block.fed));
                    }
                    gives = 0;
                }
                _ if line.op.contains("descriptor") || line.op.contains("tma") => {
                    let is_one = |words: &[&str]| words.iter().any(|word| line.op.contains(word));
                    if is_one(&["_load", "_gather"]) {
                        self.touch(from, 0);
                        gives = 0;
                    }
                    if is_one(&["_store", "_scatter", "_reduce"]) {
                        self.touch(from, from);
                    }
                }
                _ if line.op.starts_with("cf.") || line.op.starts_with('^') => {
                    self.branch(function, line, from, blocks.last());
                }
                _ if from != 0 && !is_pure(line.op) => {
                    // External code may do anything with its arguments.
                    self.touch(from, from);
                }
                _ => {}
            }
            for name in &line.results {
                self.join(function, name, gives);
            }
            if line.opens > line.closes && !line.is_function {
                if blocks.len() >= MOST_DEPTH {
                    return false;
                }
                let mut fed: Vec<&'a str> = line.results.clone();
                if !line.starts.is_empty() {
                    // A loop: its results and its block arguments, each fed from the same index.
                    let inner = line.starts.iter().map(|(name, _)| *name);
                    let inner: Vec<&'a str> = inner.filter(|name| !fed.contains(name)).collect();
                    self.feed(function, &line.results, &inner);
                    fed = inner;
                }
                blocks.push(Block { depth, fed });
            }
            depth = (depth + line.opens).saturating_sub(line.closes);
        }
        true
    }

    /// The operands of a line, a terminator or a call, feed names, by index if the numbers agree.
    fn hand_on(
        &mut self,
        (function, line, from): (usize, &Line<'a>, u64),
        (to, fed): (usize, &[&'a str]),
    ) {
        for (place, name) in fed.iter().enumerate() {
            let from = match line.operands.get(place) {
                Some(own) if fed.len() == line.operands.len() => self.value(function, own),
                _ => from,
            };
            self.join(to, name, from);
        }
    }

    /// Branch targets are not followed: a branch's values feed every block.
    fn branch(&mut self, function: usize, line: &Line<'a>, from: u64, block: Option<&Block<'a>>) {
        let mut all = self.value(function, BRANCHES) | from;
        self.join(function, BRANCHES, all);
        if line.op.starts_with('^') {
            // The second region of a loop gets the values that the first one passes on.
            let fed = block.into_iter().flat_map(|block| &block.fed);
            all = fed.fold(all, |all, name| all | self.value(function, name));
            for name in &line.operands {
                self.join(function, name, all);
            }
        }
    }

    /// The results of a loop get the sets of its block arguments.
    fn feed(&mut self, function: usize, results: &[&'a str], inner: &[&'a str]) {
        let all = inner
            .iter()
            .fold(0, |all, name| all | self.value(function, name));
        for name in results {
            self.join(function, name, all);
        }
    }

    fn touch(&mut self, loads: u64, stores: u64) {
        let found = Found {
            loads: self.found.loads | loads,
            stores: self.found.stores | stores,
        };
        self.changed |= found != self.found;
        self.found = found;
    }

    fn gives(&mut self, lines: &[Line<'a>], function: usize, from: u64) {
        let symbol = lines.get(function).and_then(|line| line.symbol);
        if let Some((_, given)) = symbol.and_then(|symbol| self.functions.get_mut(symbol)) {
            self.changed |= *given | from != *given;
            *given |= from;
        }
    }

    fn call(&mut self, lines: &[Line<'a>], function: usize, line: &Line<'a>, from: u64) -> u64 {
        let known = line.symbol.and_then(|symbol| self.functions.get(symbol));
        let Some(&(at, given)) = known else {
            self.touch(from, from);
            return from;
        };
        let inner: Vec<&'a str> = lines[at].arguments.iter().map(|(name, _)| *name).collect();
        self.hand_on((function, line, from), (at, &inner));
        given
    }
}

/// The key for the values of branches, which no value has as its name.
const BRANCHES: &str = "^";

/// Whether an operation only computes.
fn is_pure(op: &str) -> bool {
    let dialects = [
        "arith.", "math.", "scf.", "ub.", "}", "tt.func", "module", "gpu.",
    ];
    let known = [
        "tt.addptr",
        "tt.splat",
        "tt.broadcast",
        "tt.expand_dims",
        "tt.reshape",
        "tt.trans",
        "tt.bitcast",
        "tt.cat",
        "tt.join",
        "tt.split",
        "tt.make_range",
        "tt.ptr_to_int",
        "tt.make_tensor_ptr",
        "tt.advance",
        "tt.dot",
        "tt.dot_scaled",
        "tt.reduce",
        "tt.scan",
        "tt.gather",
        "tt.unsplat",
        "tt.histogram",
        "tt.assert",
        "tt.print",
        "tt.fp_to_fp",
        "tt.mulhiui",
        "tt.clampf",
        "tt.precise_sqrt",
        "tt.precise_divf",
        "tt.get_program_id",
        "tt.get_num_programs",
        "tt.map_elementwise",
    ];
    known.contains(&op) || dialects.iter().any(|dialect| op.starts_with(dialect))
}
