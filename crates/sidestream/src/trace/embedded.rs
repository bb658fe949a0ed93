//! The op log inside a trace: in base64 under the key `op_log` of the top-level key `sidestream`.

use std::fmt;
use std::io::{self, BufReader, Read, Write};

use base64::engine::general_purpose::STANDARD;
use base64::{Engine, display::Base64Display};
use serde_core::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};

const KEY: &str = "sidestream";
const LOG_KEY: &str = "op_log";

/// Writes the log as the next key of the top-level object.
pub(super) fn write(log: &[u8], out: &mut impl Write) -> io::Result<()> {
    let text = Base64Display::new(log, &STANDARD);
    write!(out, ",\n\"{KEY}\": {{\"{LOG_KEY}\": \"{text}\"}}")
}

/// Returns the op log inside a trace, if there is one.
///
/// The trace is read once, and only the log is kept. A trace may be an object or, as Chrome allows, a bare list of
/// events, which contains no log.
///
/// # Errors
/// If the trace cannot be read, is not JSON, or has an invalid value in place of the log.
pub fn embedded_log(trace: impl Read) -> Result<Option<Vec<u8>>, EmbeddedError> {
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(trace));
    let found = Object::Trace
        .deserialize(&mut json)
        .map_err(EmbeddedError)?;
    json.end().map_err(EmbeddedError)?;
    Ok(found)
}

/// The error when the op log of a trace could not be read, with line and column.
#[derive(Debug)]
pub struct EmbeddedError(serde_json::Error);

impl fmt::Display for EmbeddedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = &self.0;
        write!(f, "cannot read the op log of the trace: {error}")?;
        if error.is_eof() {
            write!(f, "; the trace is cut off, copy or record it again")?;
        }
        Ok(())
    }
}

impl std::error::Error for EmbeddedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl From<EmbeddedError> for io::Error {
    fn from(error: EmbeddedError) -> io::Error {
        let kind = error.0.io_error_kind();
        io::Error::new(kind.unwrap_or(io::ErrorKind::InvalidData), error)
    }
}

/// The object being read: the whole trace, or the one under our key.
#[derive(Clone, Copy)]
enum Object {
    Trace,
    Ours,
}

type Found = Option<Vec<u8>>;

impl<'de> DeserializeSeed<'de> for Object {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Found, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Object {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Trace => write!(f, "a trace: an object, or a list of events"),
            Object::Ours => write!(f, "an object that holds `{LOG_KEY}`"),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let wanted = match self {
            Object::Trace => KEY,
            Object::Ours => LOG_KEY,
        };
        let mut found = None;
        while let Some(is_it) = map.next_key_seed(Key(wanted))? {
            if !is_it {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if found.is_some() {
                return Err(A::Error::custom(format_args!("`{wanted}` is there twice")));
            }
            found = match self {
                Object::Trace => map.next_value_seed(Object::Ours)?,
                Object::Ours => Some(map.next_value_seed(Log)?),
            };
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Found, A::Error> {
        if matches!(self, Object::Ours) {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// Compares a key with the wanted one.
struct Key(&'static str);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

/// Decodes the text of the log into bytes.
struct Log;

impl<'de> DeserializeSeed<'de> for Log {
    type Value = Vec<u8>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<u8>, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Log {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an op log in base64")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<u8>, E> {
        let decoded = STANDARD.decode(text);
        decoded.map_err(|error| E::custom(format_args!("`{LOG_KEY}` is not base64: {error}")))
    }
}
