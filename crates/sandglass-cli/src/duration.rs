//! Durations as people read them.

use std::time::Duration;

/// As long as a wait is told: `850 ms`, `2.0 s`, `15m`.
pub(crate) fn told(time: Duration) -> String {
    told_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// The same of milliseconds.
pub(crate) fn told_millis(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        _ => humantime::format_duration(Duration::from_secs(millis / 1_000)).to_string(),
    }
}

/// To the millisecond: `1m 30s 5ms`.
pub(crate) fn exact_millis(millis: u64) -> String {
    humantime::format_duration(Duration::from_millis(millis)).to_string()
}

/// What was measured in microseconds, in about three digits: `85 us`, `1.5 ms`.
pub(crate) fn measured_micros(micros: u64) -> String {
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
    fn durations_read_as_people_say_them() {
        let said: Vec<String> = [850, 2_013, 59_999, 900_000].map(told_millis).into();
        assert_eq!(said, ["850 ms", "2.0 s", "59.9 s", "15m"]);
        assert_eq!(told(Duration::MAX), told_millis(u64::MAX));
        assert_eq!(exact_millis(90_005), "1m 30s 5ms");
        let said: Vec<String> = [85, 1_540, 2_345_678].map(measured_micros).into();
        assert_eq!(said, ["85 us", "1.5 ms", "2.35 s"]);
    }
}
