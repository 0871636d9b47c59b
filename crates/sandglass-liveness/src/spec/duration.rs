//! Durations as people write them in a spec file, in milliseconds.

use sandglass_model::limit::MAX_BUDGET_MS;

/// Reads `900s`, `2s`, `500ms`, `15m`, `1h30m`; the answer is from 1 ms to
/// [`MAX_BUDGET_MS`], rounded up.
pub(super) fn from_text(text: &str) -> Result<u64, String> {
    let duration = humantime::parse_duration(text.trim())
        .map_err(|error| format!("`{text}` is no duration ({error})"))?;
    let nanos = duration.as_nanos();
    bounded(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// The milliseconds of `seconds`, from 1 ms to [`MAX_BUDGET_MS`], rounded up.
pub(super) fn from_seconds(seconds: f64) -> Result<u64, String> {
    if !seconds.is_finite() || seconds <= 0.0 {
        return Err(format!("{seconds} seconds is not above zero"));
    }
    let duration =
        std::time::Duration::try_from_secs_f64(seconds).unwrap_or(std::time::Duration::MAX);
    bounded(u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// The milliseconds of a delay of `seconds`: as [`from_seconds`], or none at all.
pub(super) fn delay_from_seconds(seconds: f64) -> Result<u64, String> {
    if seconds == 0.0 { Ok(0) } else { from_seconds(seconds) }
}

fn bounded(millis: u64) -> Result<u64, String> {
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
    }

    #[test]
    fn a_delay_may_be_nothing_and_not_less() {
        assert_eq!(delay_from_seconds(0.0), Ok(0));
        assert_eq!(delay_from_seconds(0.25), Ok(250));
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(delay_from_seconds(bad).is_err(), "{bad} must be refused");
        }
    }

    #[test]
    fn reads_seconds_with_fractions() {
        assert_eq!(from_seconds(1.5), Ok(1_500));
        assert_eq!(from_seconds(0.000_1), Ok(1));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(from_seconds(bad).is_err(), "{bad} must be refused");
        }
    }
}
