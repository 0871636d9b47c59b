//! Durations as people write them: `900s`, `500ms`, `1h30m`.

use std::ops::RangeInclusive;
use std::time::Duration;

use sandglass_model::limit::MAX_BUDGET_MS;

use crate::{printable, shortened};

/// Most characters of a text that a message repeats.
const ECHO_MAX_CHARS: usize = 60;
/// Most characters of another's reason that a message repeats: a sentence.
const WHY_MAX_CHARS: usize = 200;

/// Reads `900s`, `2s`, `500ms`, `15m`, `1h30m`; the answer is from 1 ms to
/// [`MAX_BUDGET_MS`], rounded up.
///
/// # Errors
/// What is wrong with the text.
pub fn from_text(text: &str) -> Result<u64, String> {
    let nanos = parse(text)?.as_nanos();
    bounded(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// The same, and `0s` or the like, which is 0.
///
/// # Errors
/// What is wrong with the text.
pub fn from_text_or_zero(text: &str) -> Result<u64, String> {
    let duration = parse(text)?;
    if duration.is_zero() { Ok(0) } else { from_text(text) }
}

/// Reads a duration within `range`.
///
/// # Errors
/// What is wrong with the text.
pub fn within(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let duration = parse(text)?;
    let shown = |duration: &Duration| humantime::format_duration(*duration).to_string();
    if duration < *range.start() {
        Err(format!("{} is too short: {} at least", shown(&duration), shown(range.start())))
    } else if duration > *range.end() {
        Err(format!("{} is too long: {} at most", shown(&duration), shown(range.end())))
    } else {
        Ok(duration)
    }
}

fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim()).map_err(|error| {
        // What is said of a text may hold it, however long that is.
        let (text, why) = (shortened(text, ECHO_MAX_CHARS), error.to_string());
        let (text, why) = (printable(&text), shortened(&why, WHY_MAX_CHARS));
        let why = printable(&why);
        format!("`{text}` is no duration ({why}): write \"900s\" or \"1h30m\", for instance")
    })
}

/// `millis`, where they are from 1 ms to [`MAX_BUDGET_MS`].
///
/// # Errors
/// They aren't.
pub fn bounded(millis: u64) -> Result<u64, String> {
    match millis {
        0 => Err("a duration of zero leaves no time at all".to_owned()),
        1..=MAX_BUDGET_MS => Ok(millis),
        _ => Err("a duration may be 366 days at most".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, millis) in [
            ("500ms", 500),
            ("2s", 2_000),
            ("900s", 900_000),
            ("15m", 900_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1us", 1),
        ] {
            assert_eq!(from_text(text), Ok(millis), "{text}");
        }
        for bad in ["", "900", "s", "-3s", "0s", "367d", "9999999999999999999y", "2 fortnights"] {
            assert!(from_text(bad).is_err(), "{bad:?} must be refused");
        }
        assert_eq!((from_text_or_zero("0s"), from_text_or_zero("1us")), (Ok(0), Ok(1)));
        assert!(from_text_or_zero("0").is_ok() && from_text_or_zero("-1s").is_err());
        let error = from_text("soon").expect_err("no duration");
        assert!(error.contains("write \"900s\""), "{error}");
    }

    #[test]
    fn a_duration_out_of_its_range_says_the_range() {
        let range = Duration::ZERO..=Duration::from_secs(60);
        assert_eq!(within("0s", &range), Ok(Duration::ZERO));
        assert_eq!(within("61s", &range), Err("1m 1s is too long: 1m at most".to_owned()));
        let range = Duration::from_millis(1)..=Duration::from_secs(60);
        assert_eq!(within("1us", &range), Err("1us is too short: 1ms at least".to_owned()));
        let long = within(&"x".repeat(70_000), &range).expect_err("no duration");
        assert!(long.len() < 500, "{long}");
        let odd = within("1\u{1b}\0s", &range).expect_err("no duration");
        assert!(!odd.contains(char::is_control), "{odd:?}");
    }
}
