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
    let words = "`clean`, `race` or `error`";
    let verdict = record.need("v", format!("`v` is missing; use {words}"))?;
    let (verdict, keys): (_, &[&str]) = match scalars::text(verdict, "a verdict")? {
        "clean" => (Expected::Clean, &["v", "lint"]),
        "race" => (
            race(&record, names, ops)?,
            &["v", "must", "severity", "distinct", "lint"],
        ),
        "error" => (error(&record, ops)?, &["v", "at", "code", "lint"]),
        _ => return Err(scalars::unknown(verdict, "a verdict", words)),
    };
    record.only(
        |key| keys.contains(&key),
        || format!("with this verdict the keys are {}", keys.join(", ")),
    )?;
    let lints = |view| {
        let codes = scalars::list(view, "lint codes")?;
        let code = |view| scalars::word(view, &LINT_CODES, "a lint code");
        codes.iter().map(code).collect::<Result<_, _>>()
    };
    let lints = record.get("lint").map(lints).transpose()?;
    Ok(Expect {
        verdict,
        lints: lints.unwrap_or_default(),
    })
}

fn race(record: &Record<'_>, names: &Names<'_>, ops: usize) -> Result<Expected, Fault> {
    let missing = "`must` is missing; list the hazards, as in `must: [[RAW, A, 0, 1]]`";
    let must = scalars::list(record.need("must", missing)?, "hazards")?;
    let must = must.iter().map(|view| must_pair(view, names, ops));
    let must = must.collect::<Result<_, _>>()?;
    let severity = |view| scalars::word(view, &SEVERITIES, "a severity");
    let severity = record.get("severity").map(severity).transpose()?;
    let distinct = |view| scalars::integer(view, 0, u64::from(u32::MAX));
    Ok(Expected::Race {
        must,
        severity: severity.unwrap_or(Severity::Error),
        distinct: record.get("distinct").map(distinct).transpose()?,
    })
}

fn must_pair(view: View<'_>, names: &Names<'_>, ops: usize) -> Result<MustPair, Fault> {
    let items = scalars::list(view, "a kind, a buffer and two ops")?;
    let [kind, buffer, first, second] = items.iter().take(5).collect::<Vec<_>>()[..] else {
        let length = items.len();
        return Err(view.fault(format!(
            "a hazard has four parts and this has {length}; write [kind, buffer, first, second]"
        )));
    };
    let kind = scalars::word(kind, &RACE_KINDS, "the kind of a hazard")?;
    let pair = MustPair {
        kind,
        buffer: hazard_buffer(kind, buffer, names)?,
        first: op_number(first, ops)?,
        second: op_number(second, ops)?,
    };
    if pair.first >= pair.second {
        return Err(view.fault(format!(
            "op {} is not listed before op {}; the earlier op comes first",
            pair.first, pair.second
        )));
    }
    Ok(pair)
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
        return Err(view.fault("a TIMING hazard has no buffer; write `null`"));
    }
    let name = scalars::name(view)?;
    if names.knows_buffer(name) {
        return Ok(Some(name.to_owned()));
    }
    let name = shown(name);
    Err(view.fault(format!(
        "buffer `{name}` is not declared; name it as op `second` does"
    )))
}

fn op_number(view: View<'_>, ops: usize) -> Result<usize, Fault> {
    let most = u64::try_from(ops).unwrap_or(u64::MAX);
    let number = scalars::integer(view, 0, most)? as usize;
    if number < ops {
        return Ok(number);
    }
    Err(view.fault(format!(
        "there is no op {number}; the program has {ops}, numbered from 0"
    )))
}

fn error(record: &Record<'_>, ops: usize) -> Result<Expected, Fault> {
    let missing = "`code` is missing; say how the op fails, as in `code: CapturedEvent`";
    let code = scalars::word(record.need("code", missing)?, &FAILURES, "an error code")?;
    let at = match record.get("at") {
        // An error in the format need not belong to an op.
        Some(view) if code == Failure::BadProgram && scalars::is_null(view) => None,
        None if code == Failure::BadProgram => None,
        Some(view) => Some(op_number(view, ops)?),
        None => {
            return Err(record.fault("`at` is missing; give the number of the op that fails"));
        }
    };
    Ok(Expected::Error { at, code })
}
