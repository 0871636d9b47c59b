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
}
