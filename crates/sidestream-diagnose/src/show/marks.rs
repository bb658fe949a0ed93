//! Formats figures and words for people.

/// Returns a part of a whole in percent.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Returns a number with separated thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a string with a capital first letter.
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(letters).collect()
}

/// Returns a part of a whole as a bar.
pub fn meter(part: f64) -> String {
    let part = 100.0 * part.clamp(0.0, 1.0);
    format!(
        "<svg aria-hidden=\"true\"><rect class=\"track\" width=\"100%\" height=\"100%\"/><rect \
         class=\"fill\" width=\"{part:.1}%\" height=\"100%\"/></svg>"
    )
}
