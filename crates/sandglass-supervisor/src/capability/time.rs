//! The wall time, as guests read it.

use sandglass_model::WallTime;

/// Formats `wall` as `YYYYMMDDTHHMMSSZ` (ISO 8601 basic format, as request signatures require);
/// `None` outside of the years 0 to 9999.
pub fn compact_utc(wall: WallTime) -> Option<String> {
    let moment = jiff::Timestamp::from_millisecond(wall.as_millis()).ok()?;
    let civil = moment.to_zoned(jiff::tz::TimeZone::UTC).datetime();
    (0..=9999).contains(&civil.year()).then(|| civil.strftime("%Y%m%dT%H%M%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_formatted_as_request_signatures_require() {
        let moment = WallTime::from_millis(1_795_219_199_999);
        assert_eq!(compact_utc(moment).as_deref(), Some("20261120T235959Z"));
        assert_eq!(compact_utc(WallTime::from_millis(i64::MAX)), None);
    }
}
