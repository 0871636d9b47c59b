//! Durations as people write them: `900s`, `500ms`, `1h30m`.

use std::ops::RangeInclusive;
use std::time::Duration;

use sandglass_model::limit::MAX_BUDGET_MS;

use crate::{printable, shortened};

/// Most characters of a text that a message quotes.
const ECHO_MAX_CHARS: usize = 60;
/// Most characters of the parser's reason that a message quotes: a sentence.
const WHY_MAX_CHARS: usize = 200;

/// Parses `900s`, `2s`, `500ms`, `15m`, `1h30m` as milliseconds, from 1 to [`MAX_BUDGET_MS`], rounded
/// up.
///
/// # Errors
/// The reason why the text is invalid.
pub fn from_text(text: &str) -> Result<u64, String> {
    let nanos = parse(text)?.as_nanos();
    bounded(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// As [`from_text`], but a duration of zero is allowed.
///
/// # Errors
/// The reason why the text is invalid.
pub fn from_text_or_zero(text: &str) -> Result<u64, String> {
    let duration = parse(text)?;
    if duration.is_zero() { Ok(0) } else { from_text(text) }
}

/// Parses a duration within `range`.
///
/// # Errors
/// The reason why the text is invalid.
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
        // The parser's reason may quote the text, however long it is.
        let (text, why) = (shortened(text, ECHO_MAX_CHARS), error.to_string());
        let (text, why) = (printable(&text), shortened(&why, WHY_MAX_CHARS));
        let why = printable(&why);
        format!("`{text}` is no duration ({why}): write \"900s\" or \"1h30m\", for instance")
    })
}

/// Checks that `millis` are from 1 to [`MAX_BUDGET_MS`].
///
/// # Errors
/// They are not.
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
    fn durations_of_people_are_parsed() {
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
    fn the_error_of_a_duration_out_of_range_states_the_range() {
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
