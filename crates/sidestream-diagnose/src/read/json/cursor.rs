//! Reads JSON as profilers write it, which is not always valid JSON.
//!
//! Names with unescaped quotes, control characters, bytes that are not UTF-8, and numbers such as `NaN` all occur. A quote ends
//! a string only if what follows can follow a string, so that `"name": "f("a", 1)", "pid": 3` has one name. What is
//! still not a value gives [`Stop::Bad`], and the caller must skip it.
//!
//! The cursor reads a window of the file. At the end of the window it stops with [`Stop::More`], and the caller starts the
//! value again with a longer window.

use std::borrow::Cow;

use memchr::{memchr2, memmem};

/// Why reading a value stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The window ends inside the value.
    More,
    /// The text is not a value.
    Bad,
}

/// The deepest nesting that is read. Profilers need four levels.
const MOST_DEEP: u32 = 64;
/// The longest key: profilers write no key of more than forty characters.
const LONGEST_KEY: usize = 256;

/// Reads values from a window of the file.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// What encloses a string, which determines what may follow it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Object,
    Array,
}

/// A string as it is in the file, without its quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Text<'a> {
    bytes: &'a [u8],
    /// Whether it contains escape sequences.
    has_escapes: bool,
}

/// A value whose contents have not been parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A string.
    Text(Text<'a>),
    /// A number, or a word such as `null` or `NaN`.
    Bare(&'a [u8]),
    /// An object, whole.
    Object(&'a [u8]),
    /// An array, whole.
    Array(&'a [u8]),
}

impl<'a> Cursor<'a> {
    /// Returns a cursor at the start of a window.
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Returns the current position; after a failure, about how far was read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Returns the next byte that is not white space.
    pub fn peek(&mut self) -> Result<u8, Stop> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(byte) => return Ok(*byte),
                None => return Err(Stop::More),
            }
        }
    }

    /// Consumes a byte that must come next.
    pub fn expect(&mut self, byte: u8) -> Result<(), Stop> {
        if self.peek()? != byte {
            return Err(Stop::Bad);
        }
        self.at += 1;
        Ok(())
    }

    /// Returns the next key of an object, after consuming its colon, or `None` where the object ends. The opening brace of the
    /// object must have been consumed.
    pub fn key(&mut self) -> Result<Option<&'a [u8]>, Stop> {
        loop {
            match self.peek()? {
                b'}' => {
                    self.at += 1;
                    return Ok(None);
                }
                // A surplus comma is tolerated.
                b',' => self.at += 1,
                b'"' => break,
                _ => return Err(Stop::Bad),
            }
        }
        let start = self.at + 1;
        let rest = &self.bytes[start..];
        let end = match memchr2(b'"', b'\\', &rest[..rest.len().min(LONGEST_KEY)]) {
            Some(end) if rest[end] == b'"' => end,
            None if rest.len() < LONGEST_KEY => return Err(Stop::More),
            _ => return Err(Stop::Bad),
        };
        self.at = start + end + 1;
        self.expect(b':')?;
        Ok(Some(&rest[..end]))
    }

    /// Returns the value of a key.
    pub fn value(&mut self) -> Result<Value<'a>, Stop> {
        let start = {
            self.peek()?;
            self.at
        };
        match self.bytes[start] {
            b'"' => Ok(Value::Text(self.string(Within::Object)?)),
            open @ (b'{' | b'[') => {
                self.skip_nested()?;
                let whole = &self.bytes[start..self.at];
                Ok(match open {
                    b'{' => Value::Object(whole),
                    _ => Value::Array(whole),
                })
            }
            _ => Ok(Value::Bare(self.bare()?)),
        }
    }

    /// Returns a number or a word: everything up to what can follow it.
    fn bare(&mut self) -> Result<&'a [u8], Stop> {
        let start = self.at;
        let rest = &self.bytes[start..];
        let ends = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
        let end = rest.iter().position(ends).ok_or(Stop::More)?;
        if end == 0 || rest[..end].iter().any(|b| matches!(b, b'"' | b'{' | b'[')) {
            return Err(Stop::Bad);
        }
        self.at = start + end;
        Ok(&rest[..end])
    }

    /// Skips an object or an array without parsing its contents.
    fn skip_nested(&mut self) -> Result<(), Stop> {
        // One bit for each level: whether it is an array. No recursion, since the file determines the depth.
        let mut arrays: u64 = 0;
        let mut depth = 0;
        loop {
            match self.bytes.get(self.at).ok_or(Stop::More)? {
                open @ (b'{' | b'[') => {
                    if depth == MOST_DEEP {
                        return Err(Stop::Bad);
                    }
                    arrays = arrays << 1 | u64::from(*open == b'[');
                    depth += 1;
                }
                close @ (b'}' | b']') => {
                    if (arrays & 1 == 1) != (*close == b']') {
                        return Err(Stop::Bad);
                    }
                    arrays >>= 1;
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        return Ok(());
                    }
                }
                b'"' => {
                    let within = match arrays & 1 {
                        1 => Within::Array,
                        _ => Within::Object,
                    };
                    self.string_or_key(within)?;
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Skips a string; in an object, a string followed by a colon is a key.
    fn string_or_key(&mut self, within: Within) -> Result<(), Stop> {
        if within == Within::Object {
            let mut ahead = self.clone();
            match ahead.key() {
                Ok(Some(_)) => {
                    *self = ahead;
                    return Ok(());
                }
                Err(Stop::More) => return Err(Stop::More),
                Ok(None) | Err(Stop::Bad) => {}
            }
        }
        self.string(within).map(|_| ())
    }

    /// Reads a string. Its opening quote comes next.
    fn string(&mut self, within: Within) -> Result<Text<'a>, Stop> {
        let start = self.at + 1;
        let mut has_escapes = false;
        self.at = start;
        loop {
            let rest = self.bytes.get(self.at..).ok_or(Stop::More)?;
            self.at += memchr2(b'"', b'\\', rest).ok_or(Stop::More)?;
            if self.bytes[self.at] == b'\\' {
                has_escapes = true;
                self.at += 2;
                continue;
            }
            let mut behind = self.clone();
            behind.at += 1;
            self.at += 1;
            if behind.can_follow(within)? {
                break;
            }
        }
        let bytes = &self.bytes[start..self.at - 1];
        // A string that swallowed the start of an event was never closed.
        if bytes.len() > 16 && memmem::find(bytes, b"\"ph\":").is_some() {
            return Err(Stop::Bad);
        }
        Ok(Text { bytes, has_escapes })
    }

    /// Returns whether what comes next can follow a string.
    fn can_follow(&mut self, within: Within) -> Result<bool, Stop> {
        match (self.peek()?, within) {
            (b'}', Within::Object) | (b']', Within::Array) => Ok(true),
            (b',', Within::Object) => {
                self.at += 1;
                match self.peek()? {
                    b'"' => match self.key() {
                        Ok(key) => Ok(key.is_some()),
                        Err(Stop::Bad) => Ok(false),
                        Err(Stop::More) => Err(Stop::More),
                    },
                    // A surplus comma at the end of an object.
                    byte => Ok(byte == b'}'),
                }
            }
            (b',', Within::Array) => Ok(true),
            _ => Ok(false),
        }
    }
}

impl<'a> Text<'a> {
    /// Returns the bytes as they are in the file.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the decoded text. Invalid UTF-8 and unknown escapes are kept as well as possible: the name is only displayed.
    pub fn decoded(self) -> Cow<'a, str> {
        let text = String::from_utf8_lossy(self.bytes);
        if !self.has_escapes {
            return text;
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = &*text;
        while let Some((before, behind)) = rest.split_once('\\') {
            out.push_str(before);
            let (letter, used) = escape(behind);
            out.push(letter);
            rest = &behind[used..];
        }
        out.push_str(rest);
        Cow::Owned(out)
    }
}

/// Decodes what follows a backslash: returns the character, and how many bytes of the text it took.
fn escape(text: &str) -> (char, usize) {
    let short = match text.as_bytes().first() {
        Some(b'"') => '"',
        Some(b'\\') => '\\',
        Some(b'/') => '/',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => {
            let Some(first) = hex(text, 1) else {
                return ('\\', 0);
            };
            // Characters beyond the first 65,536 are written as two surrogates.
            let second = text
                .get(5..7)
                .filter(|t| *t == "\\u")
                .and_then(|_| hex(text, 7));
            let halves = [Some(first), second].into_iter().flatten();
            return match char::decode_utf16(halves).next() {
                Some(Ok(letter)) => (
                    letter,
                    1 + 4 * letter.len_utf16() + 2 * (letter.len_utf16() - 1),
                ),
                _ => (char::REPLACEMENT_CHARACTER, 5),
            };
        }
        // An unescaped backslash, as in a path.
        _ => return ('\\', 0),
    };
    (short, 1)
}

fn hex(text: &str, at: usize) -> Option<u16> {
    let digits = text.get(at..at + 4)?;
    let all_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    all_hex.then(|| u16::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the values of an object, as text.
    #[track_caller]
    fn check(json: &str, expected: &[(&str, &str)]) {
        let read = values(json.as_bytes());
        let expected: Vec<(String, String)> = expected
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        assert_eq!(read, Ok(expected), "{json}");
    }

    fn values(json: &[u8]) -> Result<Vec<(String, String)>, Stop> {
        let mut cursor = Cursor::new(json);
        cursor.expect(b'{')?;
        let mut out = Vec::new();
        while let Some(key) = cursor.key()? {
            let value = match cursor.value()? {
                Value::Text(text) => text.decoded().into_owned(),
                Value::Bare(b) | Value::Object(b) | Value::Array(b) => {
                    String::from_utf8_lossy(b).into_owned()
                }
            };
            out.push((String::from_utf8_lossy(key).into_owned(), value));
        }
        Ok(out)
    }

    #[test]
    fn an_object_is_its_keys_and_values() {
        check(
            r#"{"a": "x", "b" : -1.5e3 ,"c":{"d":["]"]}, "e": [1, {"f":"}"}],"g":null}"#,
            &[
                ("a", "x"),
                ("b", "-1.5e3"),
                ("c", r#"{"d":["]"]}"#),
                ("e", r#"[1, {"f":"}"}]"#),
                ("g", "null"),
            ],
        );
        check("{}", &[]);
        check(
            r#"{"a": NaN, "b": -Infinity,}"#,
            &[("a", "NaN"), ("b", "-Infinity")],
        );
    }

    #[test]
    fn escapes_stand_for_letters() {
        check(
            r#"{"a": "q\"b\\s\/n\nu\u00e4s\ud83d\ude00x", "b": "C:\Users\x", "c": "\ud83d", "d": "\u12"}"#,
            &[
                ("a", "q\"b\\s/n\nu\u{e4}s\u{1f600}x"),
                ("b", "C:\\Users\\x"),
                ("c", "\u{fffd}"),
                ("d", "\\u12"),
            ],
        );
    }

    #[test]
    fn unescaped_quotes_belong_to_the_name() {
        check(
            r#"{"name": "f("a", "b")", "pid": 1}"#,
            &[("name", r#"f("a", "b")"#), ("pid", "1")],
        );
        check(
            r#"{"name": ""quoted"", "args": {"x": "say "hi"", "y": 1}}"#,
            &[
                ("name", r#""quoted""#),
                ("args", r#"{"x": "say "hi"", "y": 1}"#),
            ],
        );
        check(
            r#"{"a": ["in "an" array", "x"], "b": 1}"#,
            &[("a", r#"["in "an" array", "x"]"#), ("b", "1")],
        );
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced() {
        let json = b"{\"name\": \"a\xff\xfeb\x01\", \"pid\": 1}";
        let read = values(json).unwrap();
        assert_eq!(read[0].1, "a\u{fffd}\u{fffd}b\u{1}");
    }

    #[test]
    fn a_window_that_ends_asks_for_more() {
        let json = r#"{"name": "f("a", "b")", "args": {"x": ["y\"", 1.5], "z": "w"}, "t": 1 }"#;
        for end in 0..json.len() {
            assert_eq!(values(&json.as_bytes()[..end]), Err(Stop::More), "{end}");
        }
        assert!(values(json.as_bytes()).is_ok());
    }

    #[test]
    fn invalid_values_are_bad() {
        for json in [
            r#"{"a" 1}"#,
            r#"{a: 1}"#,
            r#"{"a": }"#,
            r#"{"a": [1}}"#,
            r#"{"a": {"b": 1]}"#,
            r#"{"a": 1"x"}"#,
            r#"[1]"#,
            r#"{"a": "never closed, {"ph": "X", "name": "b", "pid": 1}"#,
        ] {
            assert_eq!(values(json.as_bytes()), Err(Stop::Bad), "{json}");
        }
        let deep = format!("{{\"a\": {}", "[".repeat(100_000));
        assert_eq!(values(deep.as_bytes()), Err(Stop::Bad));
        let long = format!("{{\"{}\": 1}}", "k".repeat(1000));
        assert_eq!(values(long.as_bytes()), Err(Stop::Bad));
    }
}
