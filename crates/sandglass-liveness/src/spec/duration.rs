//! Times that a spec file states in seconds, converted to milliseconds.

use sandglass_source::duration::bounded;
use sandglass_source::{Diagnostics, Table, toml_value, wrong_type};
use toml::de::DeValue;

/// A number of seconds, in milliseconds; a string is read as a number.
pub(super) fn seconds(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Option<u64> {
    let help = "write the seconds as a number above zero, such as 300";
    seconds_as(from_seconds, help, table, key, out)
}

/// As [`from_seconds`], or zero.
pub(super) fn delay_seconds(
    table: &Table<'_, '_>,
    key: &str,
    out: &mut Diagnostics<'_>,
) -> Option<u64> {
    let help = "write the seconds as a number from zero, such as 300";
    seconds_as(delay_from_seconds, help, table, key, out)
}

fn seconds_as(
    millis: fn(f64) -> Result<u64, String>,
    help: &str,
    table: &Table<'_, '_>,
    key: &str,
    out: &mut Diagnostics<'_>,
) -> Option<u64> {
    let value = table.value(key)?;
    let read = match (number(value.get_ref()), value.get_ref().as_str()) {
        (Some(seconds), _) => millis(seconds),
        (None, Some(text)) => Err(format!("`{key}`: `{text}` is no number of seconds")),
        (None, None) => Err(wrong_type(key, &table.label, "a number of seconds", value)),
    };
    read.map_err(|message| out.error_with_help(&value.span(), message, help)).ok()
}

/// The number in a value, or in its text.
fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(number) => toml_value::integer(number)?.to_string().parse().ok(),
        DeValue::Float(number) => number.as_str().parse().ok(),
        DeValue::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// The milliseconds of `seconds`, from 1 ms to
/// [`MAX_BUDGET_MS`](sandglass_model::limit::MAX_BUDGET_MS), rounded up.
pub(super) fn from_seconds(seconds: f64) -> Result<u64, String> {
    if !seconds.is_finite() || seconds <= 0.0 {
        return Err(format!("{seconds} seconds is not above zero"));
    }
    let duration =
        std::time::Duration::try_from_secs_f64(seconds).unwrap_or(std::time::Duration::MAX);
    bounded(u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// The milliseconds of a delay of `seconds`: as [`from_seconds`], or zero.
pub(super) fn delay_from_seconds(seconds: f64) -> Result<u64, String> {
    if seconds == 0.0 { Ok(0) } else { from_seconds(seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_may_be_zero_but_not_negative() {
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
