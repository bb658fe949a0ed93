//! Looks up names, which an export keeps in one table and references by number everywhere else.

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::database::{Database, TextsByNumber, integer, text};
use crate::model::{Api, Builder, Name};

const TABLE: &str = "StringIds";
/// The maximum number of names that are remembered. Programs have thousands of kernels, not millions.
const MOST_REMEMBERED: usize = 1 << 20;

/// The names of one file, looked up on demand: the table holds much that no row uses, including the program's output.
pub struct Strings<'a> {
    texts: Option<TextsByNumber<'a>>,
    names: HashMap<i64, Name>,
    functions: HashMap<i64, (Name, Api)>,
    /// Number of look-ups for which the file has no string.
    missing: u64,
}

impl<'a> Strings<'a> {
    /// Prepares for look-ups.
    pub fn new(database: &'a Database, builder: &mut Builder) -> Strings<'a> {
        let mut strings = Strings {
            texts: database.texts_by_number(TABLE, "id", "value"),
            names: HashMap::new(),
            functions: HashMap::new(),
            missing: 0,
        };
        // Without a key each look-up would scan the table.
        if strings.texts.is_none() {
            strings.read_all(database, builder);
        }
        strings
    }

    fn read_all(&mut self, database: &Database, builder: &mut Builder) {
        database.rows(TABLE, &[integer("id"), text("value")], |row| {
            if let (Some(id), Some(value)) = (row.integer(0), row.text(1)) {
                self.names.insert(id, builder.name(&value));
            }
            if self.names.len() < MOST_REMEMBERED {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
    }

    /// Returns the name with a number; `None` if the file has none.
    pub fn name(&mut self, builder: &mut Builder, id: Option<i64>) -> Option<Name> {
        let id = id?;
        if let Some(name) = self.names.get(&id) {
            return Some(*name);
        }
        let texts = self.texts.as_mut();
        let found = texts.and_then(|texts| texts.find(id, |text| builder.name(text)));
        self.missing += u64::from(found.is_none());
        let name = found?;
        if self.names.len() < MOST_REMEMBERED {
            self.names.insert(id, name);
        }
        Some(name)
    }

    /// Returns the function with a number; `None` if the file has no name for it.
    pub fn function(&mut self, builder: &mut Builder, id: Option<i64>) -> Option<(Name, Api)> {
        let id = id?;
        if let Some(function) = self.functions.get(&id) {
            return Some(*function);
        }
        let function = self.text(builder, Some(id), |builder, text| builder.function(text))?;
        if self.functions.len() < MOST_REMEMBERED {
            self.functions.insert(id, function);
        }
        Some(function)
    }

    /// Passes the text with a number to `use_it`.
    pub fn text<R>(
        &mut self,
        builder: &mut Builder,
        id: Option<i64>,
        use_it: impl FnOnce(&mut Builder, &str) -> R,
    ) -> Option<R> {
        let id = id?;
        let found = match &mut self.texts {
            Some(texts) => texts.find(id, |text| use_it(builder, text)),
            None => {
                let text = self
                    .names
                    .get(&id)
                    .map(|name| builder.trace.names.text(*name).to_owned());
                text.map(|text| use_it(builder, &text))
            }
        };
        self.missing += u64::from(found.is_none());
        found
    }

    /// Returns how many look-ups found nothing.
    pub fn missing(&self) -> u64 {
        self.missing
    }
}
