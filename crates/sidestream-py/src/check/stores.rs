//! Finds what a Triton kernel certainly stores, from its intermediate representation, the values of its arguments,
//! and its grid.
//!
//! The text is evaluated for some of the kernel's programs, as far as addresses and masks are made of known numbers:
//! arguments, program IDs, constants and ranges. Within a program such a value is a number plus a step for each row
//! and each column. A store counts if it is certain to run (it is in no branch, and in a loop only if the first
//! iteration is certain), if its address derives from one argument, and if its mask is known. Anything else makes a
//! value unknown, and a store that needs it does not count. So every store reported here happens in every run.

use std::collections::HashMap;

use super::ttir::{Line, kernel};

/// The number of programs that are evaluated at each end of the grid.
const PROGRAMS: u64 = 8;
/// The number of ranges that are kept for an argument.
const RANGES: usize = 16;

/// An integer for each row and column of a tensor: `first + row * by[0] + column * by[1]`. A scalar has no steps.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Number {
    first: i64,
    by: [i64; 2],
}

/// The first row and column for which a condition holds, and the first beyond.
type Bounds = [(i64, i64); 2];

const EVERY: Bounds = [(i64::MIN, i64::MAX); 2];
const NONE: Bounds = [(0, 0); 2];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Value {
    Number(Number),
    Condition(Bounds),
    /// An offset from the address in an argument, in elements.
    Address(usize, Number),
}

impl Number {
    fn of(first: i64) -> Number {
        Number { first, by: [0; 2] }
    }

    fn alone(self) -> Option<i64> {
        (self.by == [0; 2]).then_some(self.first)
    }

    /// The sum of this and `factor` times the other.
    fn plus(self, other: Number, factor: i64) -> Option<Number> {
        let sum = |one: i64, two: i64| one.checked_add(two.checked_mul(factor)?);
        Some(Number {
            first: sum(self.first, other.first)?,
            by: [sum(self.by[0], other.by[0])?, sum(self.by[1], other.by[1])?],
        })
    }

    /// Whether all values in a tensor of this shape fit into an integer with this many bits.
    fn fits(self, shape: [i64; 2], bits: u32) -> bool {
        let end = |of: fn(i64, i64) -> i64| {
            let most = |at: usize| Some(of(self.by[at].checked_mul((shape[at] - 1).max(0))?, 0));
            self.first.checked_add(most(0)?)?.checked_add(most(1)?)
        };
        let limit = i64::MAX >> (64 - bits);
        let is_within = |end: i64| -limit <= end && end <= limit;
        end(i64::min).is_some_and(is_within) && end(i64::max).is_some_and(is_within)
    }

    /// The rows and columns where the number is below zero.
    fn is_negative(self) -> Option<Bounds> {
        let mut bounds = EVERY;
        match self.by {
            [0, 0] => return Some(if self.first < 0 { EVERY } else { NONE }),
            [0, _] | [_, 0] => {
                let at = usize::from(self.by[0] == 0);
                let by = self.by[at];
                let after = |last: i64, by| last.checked_div_euclid(by)?.checked_add(1);
                bounds[at] = if by > 0 {
                    (i64::MIN, after(-1 - self.first, by)?)
                } else {
                    (after(self.first, by.checked_neg()?)?, i64::MAX)
                };
            }
            _ => return None,
        }
        Some(bounds)
    }
}

/// The bytes that are certainly stored, by pointer argument: the first and the last offset from its address.
///
/// # Arguments
/// `argument` returns the value of a numeric argument, by its index and its name in the text.
pub fn certain(
    text: &str,
    grid: [u64; 3],
    argument: impl Fn(usize, &str) -> Option<i64>,
) -> Vec<(usize, i64, i64)> {
    let mut all = Vec::new();
    let Some((lines, head)) = kernel(text).filter(|_| !grid.contains(&0)) else {
        return all;
    };
    let last = grid.map(|count| count - 1);
    let ends = (0..grid[0]).take(PROGRAMS as usize);
    let ends = ends.chain((0..grid[0]).rev().take(PROGRAMS as usize));
    for program in ends.map(|x| [x, 0, 0]).chain([last]) {
        Follow {
            values: HashMap::new(),
            grid,
            program,
            found: &mut all,
        }
        .run(&lines[head..], &argument);
    }
    all.sort_unstable();
    let mut merged: Vec<(usize, i64, i64)> = Vec::new();
    for (at, start, end) in all {
        match merged.last_mut() {
            Some(known) if known.0 == at && start <= known.2 => known.2 = known.2.max(end),
            _ => merged.push((at, start, end)),
        }
    }
    let mut kept = HashMap::<usize, usize>::new();
    merged.retain(|(at, ..)| {
        let count = kept.entry(*at).or_default();
        *count += 1;
        *count <= RANGES
    });
    merged
}

/// The evaluation of one program of the kernel.
struct Follow<'a, 'f> {
    values: HashMap<&'a str, Value>,
    grid: [u64; 3],
    program: [u64; 3],
    found: &'f mut Vec<(usize, i64, i64)>,
}

impl<'a> Follow<'a, '_> {
    fn run(mut self, lines: &[Line<'a>], argument: &impl Fn(usize, &str) -> Option<i64>) {
        let [head, lines @ ..] = lines else {
            return;
        };
        for (at, (name, kind)) in head.arguments.iter().enumerate() {
            let value = if kind.contains("!tt.ptr") {
                Some(Value::Address(at, Number::of(0)))
            } else {
                let value = argument(at, name.trim_start_matches('%'));
                value.map(|value| Value::Number(Number::of(value)))
            };
            self.values.extend(value.map(|value| (*name, value)));
        }
        // `depth` is the number of open blocks; from depth `passed` on, nothing is certain to run.
        let (mut depth, mut passed) = (1_usize, usize::MAX);
        for line in lines {
            let is_certain = depth < passed;
            depth = (depth + line.opens).saturating_sub(line.closes);
            if depth == 0 {
                break;
            }
            if is_certain {
                // Stores before the branch are certain to run.
                let op = line.op;
                if op.starts_with("cf.") || op.starts_with('^') || op == "tt.return" {
                    break;
                }
                let value = self.line(line);
                for name in &line.results {
                    self.values.remove(name);
                }
                if let (Some(value), [name]) = (value, &line.results[..]) {
                    self.values.insert(name, value);
                }
                if line.opens > line.closes && !(op == "scf.for" && self.begins(line)) {
                    passed = depth;
                }
            }
            if depth < passed {
                passed = usize::MAX;
            }
        }
    }

    /// Whether a loop has a first iteration: its names then get the values of that iteration.
    fn begins(&mut self, line: &Line<'a>) -> bool {
        let [index, from, to, ..] = line.operands[..] else {
            return false;
        };
        let [from, to] = [from, to].map(|name| self.number(name).and_then(Number::alone));
        let Some(from) = from.filter(|from| to.is_some_and(|to| *from < to)) else {
            return false;
        };
        self.values.insert(index, Value::Number(Number::of(from)));
        for &(name, start) in &line.starts {
            match self.values.get(start).copied() {
                Some(value) => self.values.insert(name, value),
                None => self.values.remove(name),
            };
        }
        true
    }

    fn number(&self, name: &str) -> Option<Number> {
        match self.values.get(name) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// The value of an operation, if it is known. A store is recorded.
    fn line(&mut self, line: &Line<'a>) -> Option<Value> {
        let Line {
            op, body, operands, ..
        } = line;
        let value = |at: usize| self.values.get(*operands.get(at)?).copied();
        let number = |at: usize| self.number(operands.get(at)?);
        let kind = body.rsplit_once(" -> ").or_else(|| body.rsplit_once(" : "));
        let kind = kind.map_or("", |(_, kind)| kind);
        let made = match *op {
            "arith.constant" if body.contains("true") => Value::Condition(EVERY),
            "arith.constant" => Value::Number(Number::of(constant(body)?)),
            "tt.get_program_id" => Value::Number(Number::of(along(body, self.program)?)),
            "tt.get_num_programs" => Value::Number(Number::of(along(body, self.grid)?)),
            "tt.make_range" => Value::Number(Number {
                first: after(body, "start = ")?,
                by: [0, 1],
            }),
            "tt.splat" | "arith.extsi" | "arith.index_cast" => value(0)?,
            "tt.broadcast" => spread(value(0)?, shape(body)?),
            "tt.expand_dims" => turned(value(0)?, after(body, "axis = ")?)?,
            "arith.addi" => Value::Number(number(0)?.plus(number(1)?, 1)?),
            "arith.subi" => Value::Number(number(0)?.plus(number(1)?, -1)?),
            "arith.muli" => {
                let (one, two) = (number(0)?, number(1)?);
                let (of, factor) = match two.alone() {
                    Some(factor) => (one, factor),
                    None => (two, one.alone()?),
                };
                Value::Number(Number::of(0).plus(of, factor)?)
            }
            "arith.divsi" | "arith.remsi" | "arith.minsi" | "arith.maxsi" => {
                let (one, two) = (number(0)?.alone()?, number(1)?.alone()?);
                let positive = one >= 0 && two > 0;
                Value::Number(Number::of(match *op {
                    "arith.divsi" => positive.then(|| one / two)?,
                    "arith.remsi" => positive.then(|| one % two)?,
                    "arith.minsi" => one.min(two),
                    _ => one.max(two),
                }))
            }
            "arith.cmpi" => compared(body, number(0)?, number(1)?)?,
            "arith.andi" => match (value(0)?, value(1)?) {
                (Value::Condition(one), Value::Condition(two)) => Value::Condition(both(one, two)),
                _ => return None,
            },
            "tt.addptr" => match value(0)? {
                Value::Address(at, from) => Value::Address(at, from.plus(number(1)?, 1)?),
                _ => return None,
            },
            "tt.store" => {
                self.store(operands, kind);
                return None;
            }
            _ => return None,
        };
        match made {
            Value::Number(number) if !number.fits(shape(kind)?, bits(kind)?) => None,
            made => Some(made),
        }
    }

    fn store(&mut self, operands: &[&str], kind: &str) -> Option<()> {
        let Some(Value::Address(at, to)) = self.values.get(*operands.first()?).copied() else {
            return None;
        };
        let mask = match operands.get(2).map(|name| self.values.get(name)) {
            None => EVERY,
            Some(Some(Value::Condition(bounds))) => *bounds,
            Some(_) => return None,
        };
        let (shape, size) = (shape(kind)?, element(kind)?);
        let [rows, columns] = both(mask, shape.map(|count| (0, count)));
        if columns.0 >= columns.1 {
            return None;
        }
        for row in (rows.0..rows.1).take(RANGES) {
            let place = |column: i64| {
                let place = to.first.checked_add(to.by[0].checked_mul(row)?)?;
                place
                    .checked_add(to.by[1].checked_mul(column)?)?
                    .checked_mul(size)
            };
            let dense = to.by[1] == 1 || columns.1 - columns.0 == 1;
            let columns = if dense {
                vec![(columns.0, columns.1 - 1)]
            } else {
                (columns.0..columns.1)
                    .take(RANGES)
                    .map(|one| (one, one))
                    .collect()
            };
            for (first, last) in columns {
                self.found
                    .push((at, place(first)?, place(last)?.checked_add(size)?));
            }
        }
        Some(())
    }
}

fn both(one: Bounds, two: Bounds) -> Bounds {
    [0, 1].map(|at| (one[at].0.max(two[at].0), one[at].1.min(two[at].1)))
}

/// Turns a row into a column, or leaves it a row.
fn turned(value: Value, axis: i64) -> Option<Value> {
    let number = |number: Number| (number.by[0] == 0).then_some(number);
    match (value, axis) {
        (_, 0) => Some(value),
        (Value::Number(of), 1) => {
            let by = [number(of)?.by[1], 0];
            Some(Value::Number(Number { by, ..of }))
        }
        (Value::Condition([(i64::MIN, i64::MAX), columns]), 1) => {
            Some(Value::Condition([columns, (i64::MIN, i64::MAX)]))
        }
        (Value::Address(at, of), 1) => {
            let by = [number(of)?.by[1], 0];
            Some(Value::Address(at, Number { by, ..of }))
        }
        _ => None,
    }
}

/// Broadcasts a value that has one row or column. `from` is the value's shape.
fn spread(value: Value, from: [i64; 2]) -> Value {
    let steps = |of: Number| {
        let by = [0, 1].map(|at| if from[at] == 1 { 0 } else { of.by[at] });
        Number { by, ..of }
    };
    match value {
        Value::Number(of) => Value::Number(steps(of)),
        Value::Address(at, of) => Value::Address(at, steps(of)),
        Value::Condition(bounds) => Value::Condition([0, 1].map(|at| match bounds[at] {
            bounds if from[at] != 1 => bounds,
            (first, end) if first <= 0 && end > 0 => EVERY[at],
            _ => NONE[at],
        })),
    }
}

fn compared(body: &str, one: Number, two: Number) -> Option<Value> {
    let less = |one: Number, two: Number, by: i64| {
        let difference = one.plus(two, -1)?.plus(Number::of(by), 1)?;
        difference.is_negative().map(Value::Condition)
    };
    let how = body.strip_prefix("arith.cmpi")?.trim_start();
    match how.split([',', ' ']).next()? {
        "slt" => less(one, two, 0),
        "sle" => less(one, two, -1),
        "sgt" => less(two, one, 0),
        "sge" => less(two, one, -1),
        "eq" | "ne" => {
            let same = one.alone()? == two.alone()?;
            let holds = same == how.starts_with("eq");
            Some(Value::Condition(if holds { EVERY } else { NONE }))
        }
        _ => None,
    }
}

/// The number after a word.
fn after(body: &str, word: &str) -> Option<i64> {
    let rest = &body[body.find(word)? + word.len()..];
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '-'));
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

/// An integer constant, scalar or the same in all places of a tensor.
fn constant(body: &str) -> Option<i64> {
    let (value, kind) = body.strip_prefix("arith.constant")?.rsplit_once(" : ")?;
    let value = value.trim();
    let value = value
        .strip_prefix("dense<")
        .map_or(Some(value), |inner| inner.strip_suffix('>'))?;
    bits(kind).and_then(|_| value.parse().ok())
}

/// The width in bits of an integer type.
fn bits(kind: &str) -> Option<u32> {
    let kind = kind.trim_end_matches('>');
    let of = |ends: &str| kind.ends_with(ends);
    if of("i32") {
        Some(32)
    } else {
        (of("i64") || of("index")).then_some(64)
    }
}

/// The number for this operation's axis.
fn along(body: &str, of: [u64; 3]) -> Option<i64> {
    let axis = body.split_whitespace().nth(1)?;
    let at = ["x", "y", "z"].iter().position(|name| *name == axis)?;
    i64::try_from(of[at]).ok()
}

/// Rows and columns of a type; a one-dimensional tensor is one row.
fn shape(kind: &str) -> Option<[i64; 2]> {
    let Some((_, inner)) = kind.split_once("tensor<") else {
        return Some([1, 1]);
    };
    let sizes = inner.split('x').map_while(|part| part.parse().ok());
    match sizes.collect::<Vec<i64>>()[..] {
        [columns] => Some([1, columns]),
        [rows, columns] => Some([rows, columns]),
        _ => None,
    }
}

/// The size in bytes of an element that a pointer of this type points to.
fn element(kind: &str) -> Option<i64> {
    let (_, inner) = kind.split_once("!tt.ptr<")?;
    let end = inner.find(|c: char| !c.is_ascii_alphanumeric());
    match &inner[..end.unwrap_or(inner.len())] {
        "i1" | "i8" | "f8E4M3FN" | "f8E5M2" => Some(1),
        "i16" | "f16" | "bf16" => Some(2),
        "i32" | "f32" => Some(4),
        "i64" | "f64" => Some(8),
        _ => None,
    }
}
