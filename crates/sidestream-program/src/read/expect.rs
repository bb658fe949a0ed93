//! Reads the key `expect`: the expected result of a check.

use sidestream::check::{RaceKind, Severity};

use crate::error::{Fault, shown};
use crate::expect::{Expect, Expected, Failure, MustPair};
use crate::names::Names;
use crate::words::{FAILURES, LINT_CODES, RACE_KINDS, SEVERITIES};
use crate::yaml::View;

use super::record::Record;
use super::scalars;

/// Reads what a program with this many ops expects.
pub(super) fn read(view: View<'_>, names: &Names<'_>, ops: usize) -> Result<Expect, Fault> {
    let record = Record::read(view, "a mapping with `v`")?;
    let verdict = record.get("v").ok_or_else(|| {
        Fault::new(
            record.line,
            "`v` is missing; use `clean`, `race` or `error`",
        )
    })?;
    let (verdict, keys): (_, &[&str]) = match scalars::text(verdict, "a verdict")? {
        "clean" => (Expected::Clean, &["v", "lint"]),
        "race" => (
            race(&record, names, ops)?,
            &["v", "must", "severity", "distinct", "lint"],
        ),
        "error" => (error(&record, ops)?, &["v", "at", "code", "lint"]),
        _ => {
            let words = "`clean`, `race` or `error`";
            return Err(scalars::unknown(verdict, "a verdict", words));
        }
    };
    record.only(
        |key| keys.contains(&key),
        || format!("with this verdict the keys are {}", keys.join(", ")),
    )?;
    let lints = match record.get("lint") {
        Some(view) => {
            let codes = scalars::list(view, "lint codes")?;
            let code = |view| scalars::word(view, &LINT_CODES, "a lint code");
            codes.iter().map(code).collect::<Result<_, _>>()?
        }
        None => Vec::new(),
    };
    Ok(Expect { verdict, lints })
}

fn race(record: &Record<'_>, names: &Names<'_>, ops: usize) -> Result<Expected, Fault> {
    let must = record.get("must").ok_or_else(|| {
        let message = "`must` is missing; list the hazards, as in `must: [[RAW, A, 0, 1]]`";
        Fault::new(record.line, message)
    })?;
    let must = scalars::list(must, "hazards")?;
    Ok(Expected::Race {
        must: must
            .iter()
            .map(|view| must_pair(view, names, ops))
            .collect::<Result<_, _>>()?,
        severity: match record.get("severity") {
            Some(view) => scalars::word(view, &SEVERITIES, "a severity")?,
            None => Severity::Error,
        },
        distinct: match record.get("distinct") {
            Some(view) => Some(scalars::integer(view, 0, u64::from(u32::MAX))?),
            None => None,
        },
    })
}

fn must_pair(view: View<'_>, names: &Names<'_>, ops: usize) -> Result<MustPair, Fault> {
    let items = scalars::list(view, "a kind, a buffer and two ops")?;
    let parts = (items.get(0), items.get(1), items.get(2), items.get(3));
    let (Some(kind), Some(buffer), Some(first), Some(second)) = parts else {
        return Err(wrong_length(view, items.len()));
    };
    if items.len() > 4 {
        return Err(wrong_length(view, items.len()));
    }
    let kind = scalars::word(kind, &RACE_KINDS, "the kind of a hazard")?;
    let pair = MustPair {
        kind,
        buffer: hazard_buffer(kind, buffer, names)?,
        first: op_number(first, ops)?,
        second: op_number(second, ops)?,
    };
    if pair.first >= pair.second {
        let message = format!(
            "op {} is not listed before op {}; the earlier op comes first",
            pair.first, pair.second
        );
        return Err(Fault::new(view.line(), message));
    }
    Ok(pair)
}

fn wrong_length(view: View<'_>, length: usize) -> Fault {
    Fault::new(
        view.line(),
        format!(
            "a hazard has four parts and this has {length}; write [kind, buffer, first, second]"
        ),
    )
}

fn hazard_buffer(
    kind: RaceKind,
    view: View<'_>,
    names: &Names<'_>,
) -> Result<Option<String>, Fault> {
    if kind == RaceKind::Timing {
        if scalars::is_null(view) {
            return Ok(None);
        }
        let message = "a TIMING hazard has no buffer; write `null`";
        return Err(Fault::new(view.line(), message));
    }
    let name = scalars::name(view)?;
    if names.knows_buffer(name) {
        return Ok(Some(name.to_owned()));
    }
    let message = format!(
        "buffer `{}` is not declared; name it as op `second` does",
        shown(name)
    );
    Err(Fault::new(view.line(), message))
}

fn op_number(view: View<'_>, ops: usize) -> Result<usize, Fault> {
    let most = u64::try_from(ops).unwrap_or(u64::MAX);
    let number = scalars::integer(view, 0, most)? as usize;
    if number < ops {
        return Ok(number);
    }
    let message = format!("there is no op {number}; the program has {ops}, numbered from 0");
    Err(Fault::new(view.line(), message))
}

fn error(record: &Record<'_>, ops: usize) -> Result<Expected, Fault> {
    let code = record.get("code").ok_or_else(|| {
        Fault::new(
            record.line,
            "`code` is missing; say how the op fails, as in `code: CapturedEvent`",
        )
    })?;
    let code = scalars::word(code, &FAILURES, "an error code")?;
    let at = match record.get("at") {
        // An error in the format need not belong to an op.
        Some(view) if code == Failure::BadProgram && scalars::is_null(view) => None,
        None if code == Failure::BadProgram => None,
        Some(view) => Some(op_number(view, ops)?),
        None => {
            let message = "`at` is missing; give the number of the op that fails";
            return Err(Fault::new(record.line, message));
        }
    };
    Ok(Expected::Error { at, code })
}
