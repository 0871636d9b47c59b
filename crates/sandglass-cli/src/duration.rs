//! Formats durations for people.

use std::time::Duration;

/// Formats a wait in about two digits: `850 ms`, `2.0 s`, `15m`.
pub(crate) fn format_duration(time: Duration) -> String {
    format_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// [`format_duration`] of milliseconds.
pub(crate) fn format_millis(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        _ => humantime::format_duration(Duration::from_secs(millis / 1_000)).to_string(),
    }
}

/// Formats to the millisecond: `1m 30s 5ms`.
pub(crate) fn format_millis_exactly(millis: u64) -> String {
    humantime::format_duration(Duration::from_millis(millis)).to_string()
}

/// Formats a measurement in microseconds in about three digits: `85 us`, `1.5 ms`.
pub(crate) fn format_micros(micros: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
    let micros = micros as f64;
    if micros >= 1e6 {
        format!("{:.2} s", micros / 1e6)
    } else if micros >= 1e3 {
        format!("{:.1} ms", micros / 1e3)
    } else {
        format!("{micros} us")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_to_what_people_read() {
        let formatted: Vec<String> = [850, 2_013, 59_999, 900_000].map(format_millis).into();
        assert_eq!(formatted, ["850 ms", "2.0 s", "59.9 s", "15m"]);
        assert_eq!(format_duration(Duration::MAX), format_millis(u64::MAX));
        assert_eq!(format_millis_exactly(90_005), "1m 30s 5ms");
        let formatted: Vec<String> = [85, 1_540, 2_345_678].map(format_micros).into();
        assert_eq!(formatted, ["85 us", "1.5 ms", "2.35 s"]);
    }
}
