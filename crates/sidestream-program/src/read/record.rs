//! Reads mappings with known keys.

use std::collections::HashSet;

use crate::error::{Fault, shown};
use crate::yaml::{Kind, View};

/// The keys and values of a mapping without duplicate keys.
#[derive(Debug)]
pub(crate) struct Record<'t> {
    pub(crate) line: usize,
    pub(crate) entries: Vec<(&'t str, View<'t>)>,
}

impl<'t> Record<'t> {
    /// Reads a mapping; `what` describes the expected value for messages.
    pub(crate) fn read(view: View<'t>, what: &str) -> Result<Self, Fault> {
        let Kind::Mapping(items) = view.kind() else {
            return Err(view.is_not(what));
        };
        let mut entries = Vec::with_capacity(items.len() / 2);
        let mut children = items.iter();
        while let (Some(key), Some(value)) = (children.next(), children.next()) {
            let Kind::Scalar(text, _) = key.kind() else {
                return Err(key.is_not("a key"));
            };
            entries.push((text, value));
        }
        let record = Self {
            line: view.line(),
            entries,
        };
        match record.twice() {
            Some((key, again)) => {
                let fault = again.fault("this key appears twice in one mapping; remove one");
                Err(fault.in_field(key))
            }
            None => Ok(record),
        }
    }

    /// Returns the first duplicate key.
    fn twice(&self) -> Option<(&'t str, View<'t>)> {
        // Ops have a few keys; declarations may have thousands.
        if self.entries.len() <= 16 {
            let mut at = 0..self.entries.len();
            let at = at.find(|&at| {
                let key = self.entries[at].0;
                self.entries[..at].iter().any(|&(before, _)| before == key)
            })?;
            return Some(self.entries[at]);
        }
        let mut seen = HashSet::new();
        self.entries
            .iter()
            .copied()
            .find(|&(key, _)| !seen.insert(key))
    }

    pub(crate) fn get(&self, key: &str) -> Option<View<'t>> {
        let mut entries = self.entries.iter();
        entries.find(|entry| entry.0 == key).map(|entry| entry.1)
    }

    /// Reads a key, if present, and names it in any error.
    pub(crate) fn read_key<T>(
        &self,
        key: &str,
        read: impl FnOnce(View<'t>) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        let read = self.get(key).map(read).transpose();
        read.map_err(|fault| fault.in_field(key))
    }

    /// Returns the value of a key, or an error that says what is missing.
    pub(crate) fn need(&self, key: &str, missing: impl Into<String>) -> Result<View<'t>, Fault> {
        self.get(key).ok_or_else(|| self.fault(missing))
    }

    pub(crate) fn fault(&self, message: impl Into<String>) -> Fault {
        Fault::new(self.line, message)
    }

    /// Returns an error for the first unknown key.
    pub(crate) fn only(
        &self,
        known: impl Fn(&str) -> bool,
        remedy: impl Fn() -> String,
    ) -> Result<(), Fault> {
        match self.entries.iter().find(|&&(key, _)| !known(key)) {
            Some((key, value)) => {
                let message = format!("`{}` is not known here; {}", shown(key), remedy());
                Err(value.fault(message).in_field(key))
            }
            None => Ok(()),
        }
    }
}
