//! How far the clocks of this machine and of the database are apart. This is for people: neither what
//! is written nor who owns a partition depends on a clock.

use std::sync::{Mutex, PoisonError};

use sandglass_model::{Clock as _, Monotonic, SystemClock, WallTime};
use tokio_postgres::Row;

use crate::link::Link;
use crate::settings::Settings;

/// How far apart they may be, in milliseconds. Clocks that are synchronized over a network are closer.
const TOLERATED_MS: i64 = 250;

/// A column with the database's time, in milliseconds. It has no schema, so that a test can replace it.
pub(crate) const TIME: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

const ADVICE: &str = "synchronize both clocks (NTP): records get the times of this machine, and \
                      scheduled actions come due by them";

/// The difference between the clocks, as the last statements have shown it.
#[derive(Debug, Default)]
pub(crate) struct Skew {
    clock: SystemClock,
    excess: Mutex<Option<i64>>,
}

/// When a statement was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    wall: WallTime,
    at: Monotonic,
}

impl Skew {
    pub(crate) fn sent(&self) -> Sent {
        Sent { wall: self.clock.wall(), at: self.clock.now() }
    }

    /// By how many milliseconds this machine is ahead of the database; negative if it is behind. `None`
    /// if they are not known to be further apart than is tolerated.
    pub(crate) fn excess(&self) -> Option<i64> {
        *self.excess.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns of the difference that a row with [`TIME`] as its first column shows: once when it begins, and
    /// once when it ends. The row has just arrived.
    pub(crate) fn note(&self, sent: Sent, row: Option<&Row>, place: &str) {
        let Some(database) = row.and_then(|row| row.try_get::<_, i64>(0).ok()) else { return };
        let round_trip = self.clock.now().since(sent.at).as_millis();
        let round_trip = i64::try_from(round_trip).unwrap_or(i64::MAX);
        let mut excess = self.excess.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *excess;
        *excess = estimate(sent.wall.as_millis(), round_trip, database, before);
        match (before, *excess) {
            (None, Some(ahead_ms)) => {
                let seconds = seconds(ahead_ms);
                let direction = if ahead_ms > 0 { "ahead of" } else { "behind" };
                tracing::warn!(
                    ahead_ms,
                    "the clock of this machine is {seconds} s {direction} that of {place}: {ADVICE}"
                );
            }
            (Some(_), None) => {
                tracing::info!("the clocks of this machine and of {place} agree again");
            }
            _ => {}
        }
    }

    /// Looks at the database's clock and at the times of the last records, when the database is opened.
    /// What cannot be read is no reason to refuse the database: other statements follow.
    pub(crate) async fn look(&self, link: &Link, settings: &Settings, place: &str) {
        let sql = format!(
            "SELECT {TIME}, (SELECT max(r.at_ms) FROM sandglass.partitions p CROSS JOIN LATERAL \
             (SELECT at_ms FROM sandglass.records WHERE partition = p.partition \
             ORDER BY position DESC LIMIT 1) r)"
        );
        let sent = self.sent();
        let Ok(rows) = link.query(settings.statement_limit, &sql, &[]).await else { return };
        self.note(sent, rows.first(), place);
        let last = rows.first().and_then(|row| row.try_get::<_, Option<i64>>(1).ok()?);
        let behind_ms = last.map_or(0, |last| last.saturating_sub(self.clock.wall().as_millis()));
        if behind_ms > TOLERATED_MS {
            let seconds = seconds(behind_ms);
            tracing::warn!(
                behind_ms,
                "the clock of this machine is {seconds} s behind the last record of {place}, which \
                 another process wrote: {ADVICE}"
            );
        }
    }
}

fn seconds(millis: i64) -> String {
    let millis = millis.unsigned_abs();
    format!("{}.{:03}", millis / 1_000, millis % 1_000)
}

/// The difference, if it exceeds what is tolerated. The database read its clock at some moment between
/// sending and arrival, so the estimate is off by half of the time between them at most. In doubt,
/// nothing begins and nothing ends.
fn estimate(sent: i64, round_trip: i64, database: i64, before: Option<i64>) -> Option<i64> {
    let half = round_trip / 2 + round_trip % 2;
    let ahead = sent.saturating_add(half).saturating_sub(database);
    let distance = ahead.saturating_abs();
    if distance.saturating_sub(half) > TOLERATED_MS {
        Some(ahead)
    } else if distance.saturating_add(half) <= TOLERATED_MS {
        None
    } else {
        before.map(|_| ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000;

    #[test]
    fn a_difference_is_known_to_half_of_the_round_trip() {
        assert_eq!(estimate(1_000, 10, 1_005, None), None);
        assert_eq!(estimate(DAY, 10, 5, None), Some(DAY));
        assert_eq!(estimate(0, 10, DAY + 5, None), Some(-DAY));
        assert_eq!(estimate(1_251, 0, 1_000, None), Some(251));
        assert_eq!(estimate(1_250, 0, 1_000, None), None);
    }

    #[test]
    fn in_doubt_nothing_begins_and_nothing_ends() {
        // It is anywhere between 0 and 600 ms.
        assert_eq!(estimate(1_000, 600, 1_000, None), None);
        assert_eq!(estimate(1_000, 600, 1_000, Some(500)), Some(300));
        assert_eq!(estimate(1_000, 600, 1_300, Some(500)), Some(0));
        assert_eq!(estimate(1_000, 400, 1_200, Some(500)), None);
    }

    #[test]
    fn clocks_at_the_ends_of_time_overflow_nothing() {
        assert!(estimate(i64::MIN, i64::MAX, i64::MAX, None).is_some());
        assert!(estimate(0, i64::MAX, 0, None).is_none());
        assert_eq!(estimate(i64::MIN, 0, i64::MAX, None), Some(i64::MIN));
        assert_eq!(seconds(i64::MIN), "9223372036854775.808");
    }
}
