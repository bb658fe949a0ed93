//! Reads programs from text.

mod expect;
mod op;
mod program;
mod record;
mod scalars;

use std::collections::HashSet;

use crate::error::{BadProgram, Error, Fault};
use crate::limits::Limits;
use crate::program::{Document, Program};
use crate::yaml::{Kind, Tree, View};

use record::Record;

/// Reads a document.
///
/// # Errors
///
/// Fails if the text is too long, not YAML, or neither a mapping nor a list of programs under `cases`. A program that
/// breaks the format does not make the document fail: it is listed as a [`BadProgram`] among the others.
pub fn parse(text: &str, limits: &Limits) -> Result<Document, Error> {
    // Indices into tables and line numbers are at most the length of the text.
    let longest = limits.input_bytes.min(u32::MAX as usize);
    if text.len() > longest {
        return Err(at_start(format!(
            "the text is {} bytes long and may be {longest}; split it",
            text.len()
        )));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let tree = Tree::read(text, limits)?;
    read_document(tree.root(), limits)
}

/// Reads a document from bytes, which must be UTF-8.
///
/// # Errors
///
/// As [`parse`], and if the bytes are not UTF-8.
pub fn parse_bytes(bytes: &[u8], limits: &Limits) -> Result<Document, Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(text, limits),
        Err(error) => {
            let valid = &bytes[..error.valid_up_to()];
            let line_start = valid
                .iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(0, |at| at + 1);
            let in_line = String::from_utf8_lossy(&valid[line_start..]);
            Err(Error {
                line: valid.iter().filter(|&&byte| byte == b'\n').count() + 1,
                column: in_line.chars().count() + 1,
                message: "the text is not UTF-8; save the file as UTF-8".to_owned(),
            })
        }
    }
}

fn at_start(message: String) -> Error {
    Error {
        line: 1,
        column: 1,
        message,
    }
}

fn read_document(root: View<'_>, limits: &Limits) -> Result<Document, Error> {
    let error = |view: View<'_>, message: String| Error {
        line: view.line(),
        column: view.column(),
        message,
    };
    let Kind::Mapping(_) = root.kind() else {
        return Err(error(
            root,
            format!(
                "{root} is given where a program is expected; a program is a mapping with `name:` \
                 and `ops:`, several are a list under `cases:`"
            ),
        ));
    };
    let top = match Record::read(root, "a document") {
        Ok(top) if top.get("cases").is_some() && top.get("ops").is_none() => top,
        _ => {
            let program = program::read(root, None, limits);
            return Ok(Document {
                programs: vec![program],
            });
        }
    };
    let Some(cases) = top.get("cases") else {
        return Err(error(root, "`cases` is missing".to_owned()));
    };
    let Kind::Sequence(cases_listed) = cases.kind() else {
        let fault = cases.is_not("the list of programs under `cases`");
        return Err(error(cases, fault.message));
    };

    // An error outside of the programs is reported for each of them.
    let fault = document_fault(&top).err();
    if let (Some(fault), 0) = (&fault, cases_listed.len()) {
        return Err(error(root, fault.message.clone()));
    }
    let mut names = HashSet::new();
    let programs = cases_listed.iter().map(|case| {
        let program = program::read(case, fault.clone(), limits)?;
        if names.insert(program.name.clone()) {
            return Ok(program);
        }
        Err(Box::new(same_name(program, case)))
    });
    Ok(Document {
        programs: programs.collect(),
    })
}

/// Checks the keys besides `cases`.
fn document_fault(top: &Record<'_>) -> Result<(), Fault> {
    top.only(
        |key| key == "cases" || key == "version",
        || "besides `cases`, only `version` is allowed".to_owned(),
    )?;
    program::check_version(top)
}

fn same_name(program: Program, case: View<'_>) -> BadProgram {
    BadProgram {
        message: "a case further up has the same name; give each case a name of its own".to_owned(),
        name: Some(program.name),
        at: None,
        line: case.line(),
        verb: None,
        field: Some("name".to_owned()),
        expect: program.expect,
    }
}
