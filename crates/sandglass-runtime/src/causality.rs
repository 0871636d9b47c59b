//! The order of causes and effects in different partitions. Records of one journal are in its order;
//! those of different ones are read in the order of their times. So an effect in another partition gets
//! a later time than its cause.
//!
//! Two things are not waited for, so that what follows from them may have their time: states that guards
//! read, and the answers of asks. The asker's records after an answer may have the time of the transition
//! of the asked entity, and be read before it.

use std::time::Duration;

use sandglass_model::{EntityRef, WallTime};

use crate::shared::Shared;
use crate::timer;

/// The precision of the times of records.
const PRECISION: Duration = Duration::from_millis(1);
/// How far the clock of another host may be ahead of this one's without an effect before its cause.
const SKEW_MAX: Duration = Duration::from_millis(250);

impl Shared {
    /// Waits until what `effect` decides from then on has a later time than what `cause` decided at `at`,
    /// if they are in different partitions. Takes at most [`PRECISION`], and nearly always no time,
    /// because making the cause durable takes longer.
    pub(crate) async fn wait_behind(&self, at: WallTime, cause: &EntityRef, effect: &EntityRef) {
        if self.journal.index_of(cause) == self.journal.index_of(effect) {
            return;
        }
        let left = at.after(PRECISION).since(self.clock.wall());
        // A clock that was set back is not waited for.
        if left <= PRECISION {
            timer::until(&*self.clock, self.clock.now().after(left)).await;
        }
    }
    /// As [`Shared::wait_behind`], for a cause that another host decided at `at` on its own clock. Takes
    /// at most [`SKEW_MAX`], after which the effect may be read before its cause.
    pub(crate) async fn wait_behind_other_host(&self, at: WallTime) {
        let left = at.after(PRECISION).since(self.clock.wall());
        if left > SKEW_MAX {
            tracing::warn!(
                ahead_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
                "the clock of another host is ahead of this one's by more than 250 ms; records may be \
                 read in the wrong order. Synchronize the clocks of all hosts"
            );
        }
        timer::until(&*self.clock, self.clock.now().after(left.min(SKEW_MAX))).await;
    }
}
