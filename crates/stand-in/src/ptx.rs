//! Reads from PTX what the stand-in needs: the entries and the sizes of their parameters.

/// A kernel that the PTX declares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub name: String,
    /// Size of each parameter in bytes.
    pub params: Vec<u64>,
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
    match found.is_empty() {
        true => Err("the text has no `.entry`, so there is nothing to run in it".into()),
        false => Ok(found),
    }
}

/// Parses the words after `.entry`.
fn entry(words: &[&str]) -> Result<Entry, String> {
    let name = *words.first().ok_or("the text ends after `.entry`")?;
    let mut params = Vec::new();
    if words.get(1) == Some(&"(") {
        let end = words.iter().position(|&word| word == ")");
        let end = end.ok_or_else(|| format!("the parameters of `{name}` do not end"))?;
        let declared = words[2..end].split(|&word| word == ",");
        for param in declared.filter(|param| !param.is_empty()) {
            let bytes = param_bytes(param);
            params.push(bytes.ok_or_else(|| {
                format!(
                    "the parameter `{}` of `{name}` has no known type",
                    param.join(" ")
                )
            })?);
        }
    }
    let name = name.to_owned();
    Ok(Entry { name, params })
}

/// Returns the size of a parameter: that of its type, times the number of elements.
fn param_bytes(param: &[&str]) -> Option<u64> {
    let each = param.iter().find_map(|word| type_bytes(word))?;
    let open = param.iter().position(|&word| word == "[");
    let count = match open {
        Some(open) => param.get(open + 1)?.parse().ok()?,
        None => 1,
    };
    u64::checked_mul(each, count)
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

    fn entry(name: &str, params: &[u64]) -> Entry {
        Entry {
            name: name.into(),
            params: params.to_vec(),
        }
    }

    #[test]
    fn entries_are_found_with_the_lengths_of_their_parameters() {
        let text = "// .entry no(\n.version 8.0 /* .entry neither() */\n.target sm_70\n\
                    .visible .entry a(\n\t.param .u64 a_param_0,\n\t.param .align 8 .b8 a_param_1[24],\n\
                    \t.param .u64 .ptr .global .align 4 a_param_2,.param .f32 a_param_3\n)\n{\n ret;\n}\n\
                    .visible .entry b()\n.maxntid 256, 1, 1\n{ ld.param.u64 %rd1, [a_param_0]; }\n\
                    .entry c\n{ }";
        let expected = vec![entry("a", &[8, 24, 8, 4]), entry("b", &[]), entry("c", &[])];
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
