//! How to find a caller's frame, as the unwind table (`.eh_frame`) of a function says it for one instruction.

use std::ffi::{CStr, c_void};

/// Numbers that the tables give to the stack pointer, the frame pointer and the return address.
const SP: u64 = if cfg!(target_arch = "x86_64") { 7 } else { 31 };
const FP: u64 = if cfg!(target_arch = "x86_64") { 6 } else { 29 };
const RA: u64 = if cfg!(target_arch = "x86_64") { 16 } else { 30 };

/// The frame of a function that goes on at a certain return address. Its *CFA* is the value of the stack pointer before the
/// function was called. Packed into a word, so that it is read and written at once: 3 bits of kind, 1 for `skipped`, and offsets
/// in words of 20 bits each: of the CFA from its register, and of the saved frame pointer and the return address from the CFA.
#[derive(Clone, Copy)]
pub struct Rule(pub u64);

impl Rule {
    pub const FROM_SP: u64 = 1;
    pub const FROM_FP: u64 = 2;
    /// The frame pointer points at its own saved value, and the CFA was saved at an offset from there: gcc aligns stacks so.
    pub const SAVED: u64 = 3;
    /// There is no caller, or none that can be found.
    pub const END: u64 = 4;
    /// Something else, which only `_Unwind_Backtrace` can follow.
    pub const UNKNOWN: u64 = 5;
    /// The offset of a frame pointer that the function has not saved.
    pub const KEPT: isize = -(1 << 19) * 8;
    pub const CFA: u32 = 4;
    pub const FP: u32 = 24;
    pub const RA: u32 = 44;

    /// The rule at `pc`, which is the address after a call; `None` if there is no table.
    pub fn at(pc: usize) -> Option<Rule> {
        let mut bases = [0; 3];
        // SAFETY: the call looks up a table, and writes the three words of `bases`.
        let entry = unsafe { _Unwind_Find_FDE(pc.wrapping_sub(1) as *const c_void, &mut bases) };
        if entry.is_null() {
            return None;
        }
        // SAFETY: both entries are parts of loaded tables; a function's begins with the distance back to the one that it shares.
        let [function, shared] = unsafe {
            let function = content(entry);
            let back = function.as_ptr().cast::<i32>().read_unaligned() as isize;
            [function, content(function.as_ptr().offset(-back))]
        };
        let target = (pc - 1).wrapping_sub(bases[2]) as u64;
        Some(interpret(Bytes(function), Bytes(shared), target).unwrap_or(Rule(Rule::UNKNOWN)))
    }

    fn new(kind: u64, cfa: i64, fp: i64, ra: i64) -> Option<Rule> {
        let field = |offset: i64, at: u32| {
            let fits = offset % 8 == 0 && (Rule::KEPT..-Rule::KEPT).contains(&(offset as isize));
            fits.then_some(((offset / 8) as u64 & 0xF_FFFF) << at)
        };
        let offsets = field(cfa, Rule::CFA)? | field(fp, Rule::FP)? | field(ra, Rule::RA)?;
        Some(Rule(kind | offsets))
    }

    pub fn kind(self) -> u64 {
        self.0 & 7
    }

    pub fn skipped(self) -> bool {
        self.0 & 8 != 0
    }

    /// The offset of `CFA`, `FP` or `RA`.
    pub fn offset(self, of: u32) -> isize {
        ((self.0 << (44 - of)) as i64 >> 44 << 3) as isize
    }
}

/// The content of an entry of a table.
///
/// # Safety
///
/// `entry` points at an entry of a table that stays loaded while the content is used.
unsafe fn content<'a>(entry: *const u8) -> &'a [u8] {
    // SAFETY: the caller's promise; an entry begins with its length.
    unsafe {
        let length = entry.cast::<u32>().read_unaligned();
        std::slice::from_raw_parts(entry.add(4), length as usize)
    }
}

/// What a table says of one instruction; `None` for what no rule can express.
#[derive(Clone, Copy)]
struct Row {
    /// A register, or `SAVED`, and an offset.
    cfa: Option<(u64, i64)>,
    fp: Option<i64>,
    ra: Option<i64>,
}

/// In place of a register: the CFA was saved at an offset from the frame pointer.
const SAVED: u64 = u64::MAX;
/// In place of an offset: the frame pointer points at its own saved value.
const AT_ITSELF: i64 = 1;
/// In place of an offset: the function has no caller.
const UNDEFINED: i64 = 2;

/// Interprets the entry of a function, after the one that it shares with others, up to `target` bytes from the function's start.
fn interpret(mut function: Bytes, mut shared: Bytes, target: u64) -> Option<Rule> {
    // An identifier and a version.
    shared.skip(5)?;
    let augmentation = CStr::from_bytes_until_nul(shared.0).ok()?.to_bytes();
    shared.skip(augmentation.len() as u64 + 1)?;
    let align = (shared.unsigned()?, shared.signed()?);
    if shared.unsigned()? != RA {
        return None;
    }
    let [b'z', letters @ ..] = augmentation else {
        return None;
    };
    let mut pointer_size = 8;
    let length = shared.unsigned()?;
    let mut data = Bytes(shared.skip(length)?);
    for letter in letters {
        match letter {
            b'R' => pointer_size = size_of_pointer(data.number(1)?)?,
            b'P' => {
                let size = size_of_pointer(data.number(1)?)?;
                data.skip(size)?;
            }
            b'L' => drop(data.number(1)?),
            b'B' => {}
            // "S": what a signal interrupted has made no call.
            _ => return None,
        }
    }
    function.skip(4 + 2 * pointer_size)?;
    let length = function.unsigned()?;
    function.skip(length)?;
    let start = Row {
        cfa: None,
        fp: Some(Rule::KEPT as i64),
        ra: None,
    };
    let first = shared.run(start, align, u64::MAX)?;
    let row = function.run(first, align, target)?;
    let (fp, ra) = (row.fp?, row.ra?);
    match row.cfa? {
        _ if ra == UNDEFINED => Some(Rule(Rule::END)),
        (SP, offset) => Rule::new(Rule::FROM_SP, offset, fp, ra),
        (FP, offset) => Rule::new(Rule::FROM_FP, offset, fp, ra),
        (SAVED, offset) if fp == AT_ITSELF => Rule::new(Rule::SAVED, offset, 0, ra),
        _ => None,
    }
}

fn size_of_pointer(encoding: u64) -> Option<u64> {
    match encoding & 0x77 {
        0 | 4 | 0x10 | 0x14 => Some(8),
        3 | 0x13 => Some(4),
        2 | 0x12 => Some(2),
        _ => None,
    }
}

/// What is left of an entry. Each function reads on; `None` at the end.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn skip(&mut self, bytes: u64) -> Option<&'a [u8]> {
        let (skipped, rest) = self.0.split_at_checked(bytes as usize)?;
        self.0 = rest;
        Some(skipped)
    }

    fn number(&mut self, bytes: u64) -> Option<u64> {
        let number = self.skip(bytes)?;
        Some(
            number
                .iter()
                .rev()
                .fold(0, |value, &byte| value << 8 | u64::from(byte)),
        )
    }

    fn unsigned(&mut self) -> Option<u64> {
        Some(self.leb()?.0)
    }

    fn signed(&mut self) -> Option<i64> {
        let (value, bits) = self.leb()?;
        let unused = 64_u32.saturating_sub(bits);
        Some((value << unused) as i64 >> unused)
    }

    /// A number with seven bits a byte, the least significant first, and how many bits it has.
    fn leb(&mut self) -> Option<(u64, u32)> {
        let (mut value, mut bits) = (0, 0);
        loop {
            let byte = self.number(1)?;
            value |= (byte & 0x7F).checked_shl(bits)?;
            bits += 7;
            if byte < 0x80 {
                return Some((value, bits));
            }
        }
    }

    /// Follows the instructions to the end, or to the first that is about a place after `target`.
    fn run(
        &mut self,
        first: Row,
        (code_align, data_align): (u64, i64),
        target: u64,
    ) -> Option<Row> {
        let (mut row, mut place) = (first, 0_u64);
        let (mut remembered, mut depth) = ([first; 8], 0);
        while !self.0.is_empty() {
            let byte = self.number(1)?;
            // The upper two bits are an instruction whose operand is in the others, or none.
            let (code, low) = if byte < 0x40 {
                (byte, 0)
            } else {
                (byte & 0xC0, byte & 0x3F)
            };
            match code {
                0x00 => {}
                0x02..=0x04 => place += self.number(1 << (code - 2))? * code_align,
                0x40 => place += low * code_align,
                _ if place > target => break,
                // The return address is signed from here on, which `without_signature` undoes.
                0x2D if cfg!(target_arch = "aarch64") => {}
                0x2E => drop(self.unsigned()?),
                0x0A => {
                    *remembered.get_mut(depth)? = row;
                    depth += 1;
                }
                0x0B => {
                    depth = depth.checked_sub(1)?;
                    row = remembered[depth];
                }
                0x0C => row.cfa = Some((self.unsigned()?, self.unsigned()? as i64)),
                0x12 => row.cfa = Some((self.unsigned()?, self.signed()? * data_align)),
                0x0D => row.cfa = Some((self.unsigned()?, row.cfa?.1)),
                0x0E => row.cfa = Some((row.cfa?.0, self.unsigned()? as i64)),
                0x13 => row.cfa = Some((row.cfa?.0, self.signed()? * data_align)),
                0x0F => row.cfa = self.expression()?.filter(|it| it.1).map(|it| (SAVED, it.0)),
                _ => {
                    let register = if code < 0x40 { self.unsigned()? } else { low };
                    let held = match code {
                        0x80 | 0x05 => Some(self.unsigned()? as i64 * data_align),
                        0x11 => Some(self.signed()? * data_align),
                        0x10 => self
                            .expression()?
                            .filter(|it| *it == (0, false))
                            .map(|_| AT_ITSELF),
                        0xC0 | 0x06 if register == FP => first.fp,
                        0xC0 | 0x06 => first.ra,
                        0x07 => Some(UNDEFINED),
                        0x08 => Some(Rule::KEPT as i64),
                        0x09 | 0x14 | 0x15 => self.unsigned().and(None),
                        0x16 => self.expression()?.and(None),
                        _ => return None,
                    };
                    match register {
                        FP => row.fp = held,
                        RA => row.ra = held,
                        _ => {}
                    }
                }
            }
        }
        Some(row)
    }

    /// Reads an expression: an offset from the frame pointer, and whether a word is read there; within, `None` for another expression.
    fn expression(&mut self) -> Option<Option<(i64, bool)>> {
        let length = self.unsigned()?;
        let mut block = Bytes(self.skip(length)?);
        if block.number(1) != Some(0x70 + FP) {
            return Some(None);
        }
        let offset = block.signed()?;
        Some(
            [&[][..], &[6]]
                .iter()
                .position(|&rest| rest == block.0)
                .map(|read| (offset, read == 1)),
        )
    }
}

unsafe extern "C" {
    fn _Unwind_Find_FDE(pc: *const c_void, bases: &mut [usize; 3]) -> *const u8;
}
