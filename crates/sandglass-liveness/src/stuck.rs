//! When a handler in flight looks stuck to people who watch. This ends nothing: the deadline does.

use std::time::Duration;

/// The shortest silence that is marked: people do not notice a shorter one.
pub const STUCK_MIN: Duration = Duration::from_secs(1);
/// The longest silence without a mark: the default limit on a host call.
pub const STUCK_MAX: Duration = Duration::from_secs(300);

/// Whether a handler with this budget is marked STUCK after so long in one host call, or in its own
/// code without one: after half of its budget, but not before [`STUCK_MIN`] and not after
/// [`STUCK_MAX`].
#[must_use]
pub fn is_stuck(silent: Duration, budget: Duration) -> bool {
    silent > (budget / 2).clamp(STUCK_MIN, STUCK_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_budget_in_one_place_is_stuck_within_bounds() {
        let millis = Duration::from_millis;
        for (silent, budget, expected) in [
            (0, 0, false),
            (1_000, 100, false),
            (1_001, 100, true),
            (30_000, 60_000, false),
            (30_001, 60_000, true),
            (300_000, 3_600_000, false),
            (300_001, 3_600_000, true),
            (300_001, u64::MAX, true),
        ] {
            let found = is_stuck(millis(silent), millis(budget));
            assert_eq!(found, expected, "{silent} of {budget}");
        }
    }
}
