//! Sizes in bytes as people write them: `64MiB`, `1 KiB`, `65536`.

use crate::shortened;

/// Most characters of a text that a message quotes.
const ECHO_MAX_CHARS: usize = 60;

/// The units with their factors, binary and decimal.
const UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tib", 1 << 40),
];

/// Parses a size in bytes, above zero.
///
/// # Errors
/// The reason why the text is invalid, and what to write.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    // One space is allowed before a unit, and none around the whole.
    let unit = unit.strip_prefix(' ').filter(|unit| !unit.is_empty()).unwrap_or(unit);
    let unit = unit.to_lowercase();
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let size = number.parse::<u64>().ok().zip(factor).and_then(|(n, by)| n.checked_mul(by));
    size.filter(|size| *size > 0).ok_or_else(|| {
        let text = shortened(text, ECHO_MAX_CHARS);
        format!("`{}` is no size in bytes: write \"64MiB\", for instance", text.escape_debug())
    })
}

/// Checks that a number of bytes is above zero.
///
/// # Errors
/// It is not.
pub fn positive(bytes: i64) -> Result<u64, String> {
    let bytes = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "a size is above zero".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_people_are_parsed() {
        for (text, bytes) in
            [("64MiB", 64 << 20), ("1 KiB", 1024), ("65536", 65_536), ("2gb", 2_000_000_000)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        let numbers = ["", "0", "1.5MiB", "-1", "99999999999999999999", "99999999tib"];
        let units = ["MiB", "64 miles", "1MiB ", " 1MiB", "1  MiB", "1 ", "1\tMiB"];
        for bad in numbers.into_iter().chain(units) {
            assert!(parse(bad).is_err(), "{bad:?} must be refused");
        }
    }
}
