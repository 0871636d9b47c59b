//! Loads the entities whose timers fire soon from the journal into the table, before they fire.

use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::{self as journal, EntityEntry, SELECTED_MAX, Select, SelectedPlace};
use sandglass_model::{Monotonic, WallTime};

use crate::shared::Shared;
use crate::table::HORIZON;
use crate::timer;
use crate::watch;

/// How long after a round the next one begins. It loads what is due within [`HORIZON`] from then on,
/// so each entity is loaded at least this long before its timer fires.
const ROUND: Duration = Duration::from_secs(HORIZON.as_secs() / 2);
/// The wait after the journal could not be read.
const AGAIN: Duration = Duration::from_secs(5);
/// Most entries that are loaded and not woken yet. They are loaded in the order in which they wake,
/// so a host that was down for a day does not load all that is overdue at once.
const LOADED_MAX: usize = 10_000;

/// One round of loading.
#[derive(Debug)]
pub(crate) struct Round {
    /// The partition whose entities it loads; `None` for all that are served.
    of: Option<usize>,
    until: WallTime,
    after: Option<SelectedPlace>,
}

impl Round {
    /// Loads what is due within [`HORIZON`] from now on.
    pub(crate) fn begin(shared: &Shared, of: Option<usize>) -> Self {
        Self { of, until: shared.clock.wall().after(HORIZON), after: None }
    }

    /// Loads one page. Returns whether there is more.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(crate) async fn load_page(&mut self, shared: &Shared) -> Result<bool, journal::Error> {
        let which = Select::Due { until: self.until };
        let (of, after) = (shared.served(self.of), self.after.clone());
        let page = shared.journal.select_of(&of, which, after, SELECTED_MAX).await?;
        for entry in &page.entries {
            load(shared, entry);
        }
        self.after = page.next;
        Ok(self.after.is_some())
    }

    /// Loads what is left, as fast as it wakes.
    pub(crate) async fn load_rest(&mut self, shared: &Shared) {
        loop {
            shared.table.has_room_to_load(LOADED_MAX).await;
            match self.load_page(shared).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "the entities whose timers fire soon cannot be read; it is tried again"
                    );
                    timer::until(&*shared.clock, shared.clock.now().after(AGAIN)).await;
                }
            }
        }
    }
}

/// Adds an entry for a sleeping entity to the table.
fn load(shared: &Shared, EntityEntry { entity, rest, .. }: &EntityEntry) {
    let now = shared.clock.now();
    let alarm = match rest {
        // How it rests was not noted, so it is woken in order to find out.
        None => now,
        Some(rest) => match rest.wake_at {
            Some(at) if !rest.is_listed => now.after(at.since(shared.clock.wall())),
            // Those that are listed were read at the start, and have an entry if they need one.
            Some(_) | None => return,
        },
    };
    let spec = rest.as_ref().and_then(|rest| rest.spec);
    let spec = spec.and_then(|digest| shared.specs().known.get(&digest).cloned());
    shared.table.load(entity, spec, alarm);
}

/// Loads round by round, beginning with `round`, until the runtime shuts down.
pub(crate) async fn load_rounds(
    shared: Arc<Shared>,
    mut round: Round,
    mut closing: watch::Receiver<bool>,
) {
    loop {
        let work = async {
            let begun: Monotonic = shared.clock.now();
            round.load_rest(&shared).await;
            timer::until(&*shared.clock, begun.after(ROUND)).await;
        };
        tokio::select! {
            biased;
            _ = closing.changed() => return,
            () = work => {}
        }
        round = Round::begin(&shared, None);
    }
}
