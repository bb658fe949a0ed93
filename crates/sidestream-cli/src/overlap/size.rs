//! Sizes as people write them: `65536`, `64KiB`, `4MiB`, `1GiB`.

/// Reads a size in bytes. Units are powers of 1024; a bare number is bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match text[digits.len()..].trim() {
        "" | "B" => 1,
        "K" | "KB" | "KiB" => 1 << 10,
        "M" | "MB" | "MiB" => 1 << 20,
        "G" | "GB" | "GiB" => 1 << 30,
        other => return Err(format!("{other:?} is no unit; use B, KiB, MiB or GiB")),
    };
    let number: u64 = digits
        .trim()
        .parse()
        .map_err(|_| format!("{text:?} is no size; write for example 4MiB"))?;
    number
        .checked_mul(unit)
        .ok_or_else(|| format!("{text} is more bytes than can be counted"))
}

/// Writes a size as people read it.
pub fn show(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}
