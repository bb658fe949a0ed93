//! The key `expect`: what a right answer is.

use crate::error::{Fault, shown};
use crate::expect::{ErrorCode, Expect, Expected, HazardKind, LintCode, MustPair, Severity};
use crate::names::Names;
use crate::words::listed;
use crate::yaml::View;

use super::record::Record;
use super::scalars;

/// Reads what a program of so many ops expects.
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
            return Err(scalars::unknown(
                verdict,
                "a verdict",
                "`clean`, `race` or `error`",
            ));
        }
    };
    record.only(
        |key| keys.contains(&key),
        || format!("with this verdict the keys are {}", keys.join(", ")),
    )?;
    let lints = match record.get("lint") {
        Some(view) => {
            let codes = scalars::list(view, "lint codes")?;
            codes.iter().map(lint).collect::<Result<_, _>>()?
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
            Some(view) => {
                let word = scalars::text(view, "a severity")?;
                let words = listed(&Severity::ALL, Severity::word);
                Severity::from_word(word)
                    .ok_or_else(|| scalars::unknown(view, "a severity", &words))?
            }
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
    let word = scalars::text(kind, "the kind of a hazard")?;
    let words = listed(&HazardKind::ALL, HazardKind::word);
    let kind = HazardKind::from_word(word)
        .ok_or_else(|| scalars::unknown(kind, "the kind of a hazard", &words))?;
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
    kind: HazardKind,
    view: View<'_>,
    names: &Names<'_>,
) -> Result<Option<String>, Fault> {
    if kind == HazardKind::Timing {
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
    let word = scalars::text(code, "an error code")?;
    let words = listed(&ErrorCode::ALL, ErrorCode::word);
    let code = ErrorCode::from_word(word)
        .ok_or_else(|| scalars::unknown(code, "an error code", &words))?;
    let at = match record.get("at") {
        // What breaks the format need not be an op.
        Some(view) if code == ErrorCode::BadProgram && scalars::is_null(view) => None,
        None if code == ErrorCode::BadProgram => None,
        Some(view) => Some(op_number(view, ops)?),
        None => {
            let message = "`at` is missing; give the number of the op that fails";
            return Err(Fault::new(record.line, message));
        }
    };
    Ok(Expected::Error { at, code })
}

fn lint(view: View<'_>) -> Result<LintCode, Fault> {
    let word = scalars::text(view, "a lint code")?;
    let words = listed(&LintCode::ALL, LintCode::word);
    LintCode::from_word(word).ok_or_else(|| scalars::unknown(view, "a lint code", &words))
}
