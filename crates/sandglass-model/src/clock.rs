//! Time as an argument: monotonic and wall-clock time, which are never mixed, and the trait that
//! provides both.

use std::fmt;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point on a clock that never goes back, in nanoseconds since an origin that is private to the
/// clock. For waiting and measuring; never persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(u64);

impl Monotonic {
    /// Later than every point that a clock can reach.
    pub const NEVER: Self = Self(u64::MAX);

    /// The point `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The point `ago` earlier, but not before the origin.
    #[must_use]
    pub fn before(self, ago: Duration) -> Self {
        let nanos = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }

    /// The point `wait` later, or [`Monotonic::NEVER`] if that is out of range.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// A moment of the calendar, in milliseconds since 1970-01-01T00:00:00Z. Records carry it. The clock
/// may be set, so nothing waits for such a moment directly.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WallTime(i64);

impl WallTime {
    /// The moment `millis` milliseconds after the epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Reads a moment in the form of RFC 3339. Without an offset, it is in UTC. `None` if `text` is no
    /// moment.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let in_utc = || {
            let moment: jiff::civil::DateTime = text.parse().ok()?;
            Some(moment.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
        };
        let moment: Option<jiff::Timestamp> = text.parse().ok();
        moment.or_else(in_utc).map(|moment| Self(moment.as_millisecond()))
    }

    /// How long after `earlier` this is; zero if the clock was set back.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The moment `wait` later, saturating.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let millis = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// The moment `ago` earlier, saturating.
    #[must_use]
    pub fn before(self, ago: Duration) -> Self {
        let millis = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(millis))
    }
}

/// RFC 3339 with milliseconds, in UTC.
impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(moment) => write!(f, "{moment:.3}"),
            Err(_) => write!(f, "{} ms since 1970", self.0),
        }
    }
}

/// What [`Clock::until`] returns.
pub type Until<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A source of time. Whatever is tested in virtual time takes one in its constructor.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The present moment for waiting and measuring.
    fn now(&self) -> Monotonic;
    /// The present moment for people and records.
    fn wall(&self) -> WallTime;
    /// A future that ends once this clock has reached `at`. `None` if the clock follows the timers of
    /// the caller's executor, so that the caller waits with those. A simulator that drives several
    /// hosts returns one: it decides when each of them goes on, and their executors need no timers.
    fn until(&self, at: Monotonic) -> Option<Until<'_>> {
        let _ = at;
        None
    }
    /// Whether it is the operating system's clock, so that the processor's counter may measure
    /// short intervals in its place.
    fn is_of_the_system(&self) -> bool {
        false
    }
}

/// The clocks of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// Creates a clock whose origin lies one second back, so that no point is zero.
    #[must_use]
    pub fn new() -> Self {
        #[allow(clippy::disallowed_methods, reason = "the real clock lives here")]
        let now = Instant::now();
        let origin = now.checked_sub(Duration::from_secs(1)).unwrap_or(now);
        Self { origin }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the real clock lives here")]
    fn now(&self) -> Monotonic {
        // A 64-bit number of nanoseconds lasts for 584 years.
        let elapsed = self.origin.elapsed();
        let whole = elapsed.as_secs().saturating_mul(1_000_000_000);
        Monotonic::from_nanos(whole.saturating_add(u64::from(elapsed.subsec_nanos())))
    }

    fn is_of_the_system(&self) -> bool {
        true
    }

    fn wall(&self) -> WallTime {
        #[allow(clippy::disallowed_methods, reason = "the real clock lives here")]
        let now = SystemTime::now();
        let millis = match now.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        };
        WallTime(millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_never_underflow() {
        let early = Monotonic::from_nanos(5);
        assert_eq!(early.since(Monotonic::from_nanos(9)), Duration::ZERO);
        assert_eq!(early.after(Duration::MAX), Monotonic::NEVER);
        let past = WallTime::from_millis(-3);
        assert_eq!(past.since(WallTime::from_millis(4)), Duration::ZERO);
        assert_eq!(past.after(Duration::from_millis(3)).as_millis(), 0);
    }

    #[test]
    fn wall_time_reads_as_rfc_3339() {
        assert_eq!(WallTime::from_millis(1_500).to_string(), "1970-01-01T00:00:01.500Z");
        assert_eq!(
            WallTime::from_millis(i64::MAX).to_string(),
            format!("{} ms since 1970", i64::MAX)
        );
    }
}
