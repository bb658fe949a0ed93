//! Parses decimal numbers into integers.
//!
//! A time such as `1365627910559.633` has more digits than an `f64` keeps.

/// The maximum number of digits that are read; further digits of a fraction are finer than any clock.
const MOST_DIGITS: u32 = 30;

/// Returns the number in units of ten to the minus `decimals`, rounded half away from zero: with 3, `12.5` is 12500. Returns
/// `None` if the text is not a decimal number, or the number is too large.
pub fn scaled(text: &[u8], decimals: i32) -> Option<i64> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let mut value: u128 = 0;
    let mut digits = 0;
    let mut seen_digit = false;
    // Position of the decimal point, counted from the right of the digits read.
    let mut fraction: Option<i32> = None;
    let mut exponent = 0;
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            b'0'..=b'9' if digits < MOST_DIGITS => {
                seen_digit = true;
                value = value * 10 + u128::from(byte - b'0');
                // Leading zeros do not count as digits.
                digits += u32::from(value != 0);
                fraction = fraction.map(|places| places + 1);
            }
            b'0'..=b'9' if fraction.is_some() => {}
            b'.' if fraction.is_none() => fraction = Some(0),
            b'e' | b'E' if seen_digit => {
                exponent = small(&text[at + 1..])?;
                break;
            }
            _ => return None,
        }
    }
    if !seen_digit {
        return None;
    }
    let shift = decimals + exponent - fraction.unwrap_or(0);
    let power = 10u128.checked_pow(shift.unsigned_abs());
    let value = match (shift >= 0, power) {
        (true, Some(power)) => value.checked_mul(power)?,
        (true, None) => (value == 0).then_some(0)?,
        (false, Some(power)) => value / power + u128::from(value % power >= power.div_ceil(2)),
        (false, None) => 0,
    };
    let value = i64::try_from(value).ok()?;
    Some(if negative { -value } else { value })
}

/// Parses an exponent. More than four digits are out of any range.
fn small(text: &[u8]) -> Option<i32> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 4 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0, |v, d| v * 10 + i32::from(d - b'0'));
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(scaled(text.as_bytes(), 3), expected, "{text}");
    }

    #[test]
    fn microseconds_are_nanoseconds_to_the_last_digit() {
        check("1365627910559.633", Some(1_365_627_910_559_633));
        check("1661203462718626", Some(1_661_203_462_718_626_000));
        check(
            "1661203462718626.123456789",
            Some(1_661_203_462_718_626_123),
        );
        check("0.224", Some(224));
        check("-1", Some(-1000));
        check("00012.5", Some(12_500));
        check("7.", Some(7000));
        check(".5", Some(500));
    }

    #[test]
    fn what_is_finer_is_rounded() {
        check("0.0004", Some(0));
        check("0.0005", Some(1));
        check("-0.0005", Some(-1));
        check("1.9999", Some(2000));
        check(&format!("0.{}", "9".repeat(100)), Some(1000));
    }

    #[test]
    fn exponents_move_the_point() {
        check("1.5e3", Some(1_500_000));
        check("15e-1", Some(1500));
        check("1e-9999", Some(0));
        check("0e9999", Some(0));
        check("1E+2", Some(100_000));
    }

    #[test]
    fn text_that_is_not_a_number_is_none() {
        for text in [
            "",
            "-",
            ".",
            "e5",
            "1e",
            "1e99999",
            "NaN",
            "Infinity",
            "0x10",
            "1.2.3",
            "12a",
            "null",
            "1e30",
            "99999999999999999999",
            "9223372036854775808",
        ] {
            check(text, None);
        }
        check(&"9".repeat(1000), None);
    }
}
