//! Reads from PTX what the stand-in needs: the entries, their parameters, and whether they do anything.

/// A kernel that the PTX declares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub name: String,
    pub params: Vec<Param>,
    /// Whether the entry only returns.
    pub is_empty: bool,
}

/// Where a parameter is among the parameters, and its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Param {
    pub offset: u64,
    pub bytes: u64,
}

/// Returns the entries of a PTX text.
///
/// # Errors
/// Why it is not PTX, as the driver would write it into its log.
pub fn entries(text: &str) -> Result<Vec<Entry>, String> {
    let text = without_comments(text);
    let words = words(&text);
    if !words.contains(&".version") {
        return Err("the text has no `.version`, so it is not PTX".into());
    }
    let mut found = Vec::new();
    let mut rest = &words[..];
    while let Some(at) = rest.iter().position(|&word| word == ".entry") {
        rest = &rest[at + 1..];
        found.push(entry(rest)?);
    }
    if found.is_empty() {
        Err("the text has no `.entry`, so there is nothing to run in it".into())
    } else {
        Ok(found)
    }
}

/// Parses the words after `.entry`.
fn entry(words: &[&str]) -> Result<Entry, String> {
    let name = *words.first().ok_or("the text ends after `.entry`")?;
    let mut params: Vec<Param> = Vec::new();
    let mut rest = words;
    if words.get(1) == Some(&"(") {
        let end = words.iter().position(|&word| word == ")");
        let end = end.ok_or_else(|| format!("the parameters of `{name}` do not end"))?;
        let declared = words[2..end].split(|&word| word == ",");
        for param in declared.filter(|param| !param.is_empty()) {
            let place = place(param, params.last());
            params.push(place.ok_or_else(|| {
                format!(
                    "the parameter `{}` of `{name}` has no known type",
                    param.join(" ")
                )
            })?);
        }
        rest = &words[end..];
    }
    let own = rest.iter().take_while(|&&word| word != ".entry");
    let mut body = own.skip_while(|&&word| word != "{").skip(1);
    Ok(Entry {
        name: name.to_owned(),
        params,
        is_empty: body.find(|&&word| word != "ret" && word != ";") == Some(&"}"),
    })
}

/// Returns the place of a parameter after another. Its size is that of its type, times the number of elements.
fn place(param: &[&str], before: Option<&Param>) -> Option<Param> {
    let (of_type, each) = (0..)
        .zip(param)
        .find_map(|(at, word)| Some((at, type_bytes(word)?)))?;
    let open = param.iter().position(|&word| word == "[");
    let count = match open {
        Some(open) => param.get(open + 1)?.parse().ok()?,
        None => 1,
    };
    let bytes = u64::checked_mul(each, count)?;
    // The alignment of what a pointer points to comes after the type.
    let align = param[..of_type].iter().position(|&word| word == ".align");
    let align = match align {
        Some(align) => param.get(align + 1)?.parse().ok()?,
        None => each,
    };
    let end = before.map_or(Some(0), |before| before.offset.checked_add(before.bytes))?;
    let offset = end.checked_next_multiple_of(align)?;
    Some(Param { offset, bytes })
}

fn type_bytes(word: &str) -> Option<u64> {
    Some(match word {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

/// Splits the text into names and numbers; brackets and commas are words of their own.
fn words(text: &str) -> Vec<&str> {
    let is_mark = |c: char| "(),[]{};".contains(c);
    let mut words = Vec::new();
    for mut part in text.split_whitespace() {
        while let Some(at) = part.find(is_mark) {
            if at > 0 {
                words.push(&part[..at]);
            }
            words.push(&part[at..=at]);
            part = &part[at + 1..];
        }
        if !part.is_empty() {
            words.push(part);
        }
    }
    words
}

/// Replaces each comment by a blank.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let end = match from.as_bytes().get(1) {
            Some(b'/') => from.find('\n').unwrap_or(from.len()),
            Some(b'*') => from[2..].find("*/").map_or(from.len(), |end| end + 4),
            _ => {
                out.push('/');
                rest = &from[1..];
                continue;
            }
        };
        out.push(' ');
        rest = &from[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, params: &[(u64, u64)], is_empty: bool) -> Entry {
        let place = |&(offset, bytes): &(u64, u64)| Param { offset, bytes };
        Entry {
            name: name.into(),
            params: params.iter().map(place).collect(),
            is_empty,
        }
    }

    #[test]
    fn entries_are_found_with_the_places_of_their_parameters() {
        let text = "// .entry no(\n.version 8.0 /* .entry neither() */\n.target sm_70\n\
                    .visible .entry a(\n\t.param .u32 a_param_0,\n\t.param .align 8 .b8 a_param_1[20],\n\
                    \t.param .u64 .ptr .global .align 4 a_param_2,.param .u8 a_param_3,.param .f32 a_param_4\n)\n{\n ret;\n}\n\
                    .visible .entry b()\n.maxntid 256, 1, 1\n{ ld.param.u64 %rd1, [a_param_0]; }\n\
                    .entry c\n{ }";
        let expected = vec![
            entry("a", &[(0, 4), (8, 20), (32, 8), (40, 1), (44, 4)], true),
            entry("b", &[], false),
            entry("c", &[], true),
        ];
        assert_eq!(entries(text), Ok(expected));
    }

    #[test]
    fn invalid_ptx_is_refused_with_a_reason() {
        for (text, why) in [
            ("", "no `.version`"),
            ("// .version 8.0\n.entry a()", "no `.version`"),
            (".version 8.0", "no `.entry`"),
            (".version 8.0 .entry", "ends after"),
            (".version 8.0 .entry a(.param .u64 x", "do not end"),
            (".version 8.0 .entry a(.param x)", "no known type"),
            (
                ".version 8.0 .entry a(.param .b8 x[99999999999999999999])",
                "no known type",
            ),
            (".version 8.0 .entry a(.param .b8 x[)", "no known type"),
            (".version 8.0 /* .entry a()", "no `.entry`"),
        ] {
            let refused = entries(text).unwrap_err();
            assert!(refused.contains(why), "{text:?}: {refused}");
        }
    }
}
