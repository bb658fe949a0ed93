//! Sizes as people write them: `65536`, `64KiB`, `4 MiB`, `1g`.

/// Reads a size in bytes. Units are powers of 1024 in either case; a bare number is bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let no_size = || format!("{text:?} is not a size; write a whole number and a unit, as in 4MiB");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(no_size());
    }
    let unit = text[digits.len()..].trim();
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => {
            return Err(format!(
                "{unit:?} is not a unit; use B, KiB, MiB, GiB or TiB"
            ));
        }
    };
    // Parsing digits fails only if there are too many of them.
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| {
            format!("{text:?} is more bytes than any machine has; write for example 4MiB")
        })
}

/// Returns a size in the largest unit that divides it.
pub fn show(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}
