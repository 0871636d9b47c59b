//! One entity's task: it does one thing at a time, and appends before it acts.

mod channels;
mod committing;
mod creation;
mod leaving;
mod messages;
mod pending;
mod reservations;
mod runs;
mod session_metrics;
mod sessions;
mod spawns;
mod timers;
mod versions;

use std::sync::Arc;
use std::time::Duration;

use sandglass_liveness::instant::Due;
use sandglass_liveness::session::Due as Breach;
use sandglass_liveness::{Entity, Input, Spec};
use sandglass_model::{Cause, Clock, LastSignal, Limit, Monotonic, Position, SpecDigest};
use sandglass_telemetry::metrics::{Level, LevelGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};

use crate::activity::Identity;
use crate::error::ActorError;
use crate::publish::{Event, Snapshot};
use crate::quota::SpawnSlot;
use crate::serving::Hold;
use crate::shared::Shared;
use crate::snapshot;
use crate::specs::Specs;
use crate::table::Sleep;
use crate::timer;
use crate::watch;
use channels::Shown;
pub(crate) use channels::{Channels, Handle, View, channels};
pub(crate) use creation::{Creation, First};
pub(crate) use leaving::LOST;
pub(crate) use messages::Message;
pub(crate) use runs::Stops;
use runs::{EndedHandler, Runs};
pub(crate) use session_metrics::Counted;
pub(crate) use timers::Timers;

pub use pending::SIGNALS_RECORDED_PER_RUN_MAX;
pub use runs::SIGNAL_QUEUE_MAX;

/// Requests that may wait for one entity: what it can do in about a second. Beyond that, a caller
/// is served better by an error than by a longer queue.
pub const MAILBOX_MAX: usize = 256;

/// An entity as its records make it.
pub(crate) struct Restored {
    pub(crate) spec: Arc<Spec>,
    pub(crate) entity: Entity,
    /// Its last record.
    pub(crate) last: Position,
    /// When its next snapshot is due.
    pub(crate) due: snapshot::Due,
}

/// Whether an entity's task may still write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ownership {
    Owner,
    /// Another process writes the entity's records.
    Fenced,
    /// Its partition was lost.
    Gone,
    /// The journal is closed.
    JournalClosed,
}

/// One entity's task.
pub(crate) struct Actor {
    shared: Arc<Shared>,
    spec: Arc<Spec>,
    entity: Entity,
    /// Its last record.
    last: Position,
    snapshot: snapshot::Due,
    mailbox: mpsc::Receiver<Message>,
    shown: Shown,
    hold: Hold,
    specs: watch::Receiver<Arc<Specs>>,
    /// The version of its spec that was last found not to fit, which was reported.
    held_back_from: Option<SpecDigest>,
    runs: Runs,
    timers: Timers,
    /// When it last had something to do.
    busy_at: Monotonic,
    /// Its permit, if a timer woke it, until it has done what the timer is for.
    permit: Option<OwnedSemaphorePermit>,
    /// Its slot, if it was spawned and has something to do.
    spawn_slot: Option<SpawnSlot>,
    /// When it tries again to create the entities that it spawns, if another host owns one of them.
    spawns_again: Option<Monotonic>,
    pending: pending::PendingRecords,
    /// A stop of its run that the journal has not taken.
    unrecorded: Option<sessions::Unrecorded>,
    /// The activity of its handlers that was last read when a limit was due.
    last_active: Option<(Identity, LastSignal)>,
    /// Is notified of the next activity of its handlers after a warning.
    activity: Arc<Notify>,
    session_metrics: session_metrics::SessionMetrics,
    ownership: Ownership,
    is_closing: bool,
    _counted: LevelGuard,
}

impl Actor {
    pub(crate) fn new(shared: Arc<Shared>, restored: Restored, channels: Channels) -> Self {
        let Restored { spec, entity, last, due } = restored;
        let mut actor = Self {
            runs: Runs::new(channels.stops),
            timers: Timers::default(),
            pending: pending::PendingRecords::default(),
            unrecorded: None,
            last_active: None,
            activity: Arc::default(),
            session_metrics: session_metrics::SessionMetrics::default(),
            ownership: Ownership::Owner,
            is_closing: false,
            busy_at: shared.clock.now(),
            permit: None,
            spawn_slot: None,
            _counted: shared.telemetry.metrics.hold(Level::Entities),
            mailbox: channels.mailbox,
            shown: channels.shown,
            hold: channels.hold,
            spawns_again: None,
            specs: shared.specs.subscribe(),
            held_back_from: None,
            shared,
            spec,
            entity,
            last,
            snapshot: due,
        };
        actor.count_status();
        actor.show();
        actor
    }

    /// An entity that was asleep. If another process has written its records meanwhile, this task
    /// gives it up.
    pub(crate) fn resumed(
        shared: Arc<Shared>,
        restored: Restored,
        sleep: Sleep,
        channels: Channels,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let is_own = sleep.last.is_none_or(|last| restored.last == last);
        let mut actor = Self::new(shared, restored, channels);
        actor.timers = sleep.timers;
        actor.spawn_slot = sleep.spawn_slot.map(|slot| *slot);
        actor.held_back_from = sleep.held_back_from.map(|version| *version);
        actor.permit = permit;
        if !is_own {
            actor.give_up_ownership();
        }
        actor
    }

    /// Runs until the entity falls asleep or the runtime shuts down. If this is dropped earlier, the
    /// journal stays as it is: the next recovery finds what is in flight.
    pub(crate) async fn run_loop(mut self) {
        loop {
            if self.hold.is_gone() {
                return self.end_gone().await;
            }
            if self.is_closing && self.is_done() {
                self.note_rest_at_shutdown();
                return;
            }
            self.follow_spec().await;
            self.begin_session().await;
            self.create_spawned().await;
            self.await_activity().await;
            self.update_timers(|_, _, _| ());
            self.count_spawned();
            let is_releasing = self.hold.is_releasing();
            let (wake, can_rest) = (self.wake_at(), self.can_rest() || self.can_leave());
            let is_kept = self.shown.is_watched() && !is_releasing;
            if wake > self.shared.clock.now() && self.pending.is_quiet() {
                self.permit = None;
            }
            let linger = if is_releasing { Duration::ZERO } else { self.shared.table.linger() };
            let rest = self.busy_at.after(linger);
            let clock = Arc::clone(&self.shared.clock);
            let mut recovered = self.shared.runtime.subscribe();
            let awaits_recovery = self.awaits_recovery();
            let (ends, signals) = self.runs.split();
            tokio::select! {
                // In the order that `sandglass_liveness::instant` defines. Signals, and host calls
                // that timed out, come last: there may be many, and what depends on them, the end
                // of their handler and limits on inactivity, takes them first.
                biased;
                Some(ended) = ends.next() => self.handler_ended(ended).await,
                () = timer::until(&*clock, wake) => self.on_wake().await,
                Ok(()) = self.hold.changed() => self.follow_phase().await,
                Ok(()) = self.specs.changed() => continue,
                message = self.mailbox.recv(), if !self.is_closing => match message {
                    Some(message) => self.handle_message(message).await,
                    None => self.close().await,
                },
                Some(signal) = signals.recv() => self.record_signals(Some(signal)).await,
                () = self.activity.notified() => continue,
                Ok(_) = recovered.wait_for(Option::is_some), if awaits_recovery => continue,
                // It stays awake while it is watched, because watchers see each change.
                () = self.shown.unwatched(), if can_rest && is_kept => continue,
                () = timer::until(&*clock, rest), if can_rest && !is_kept => {
                    if self.try_sleep() {
                        return;
                    }
                    continue;
                }
            }
            self.busy_at = self.shared.clock.now();
        }
    }

    /// Whether handlers are in flight that this task does not execute: those of a lost task.
    pub(crate) fn has_lost_runs(&self) -> bool {
        self.ownership == Ownership::Owner && self.runs.is_empty() && !self.entity.is_settled()
    }

    /// Ends without having taken anything: all requests get `error`.
    pub(crate) fn give_up(mut self, error: &ActorError) {
        channels::refuse_waiting(&mut self.mailbox, error);
    }

    /// Whether nothing executes, waits to be recorded or has to be retried, so that everything
    /// about the entity is in the journal.
    fn can_rest(&self) -> bool {
        self.ownership == Ownership::Owner
            && !self.is_closing
            && self.runs.is_empty()
            && self.entity.is_at_rest()
            && self.pending.is_quiet()
    }

    /// Falls asleep, unless a request has just arrived. Returns whether it did.
    fn try_sleep(&mut self) -> bool {
        let timers = std::mem::take(&mut self.timers);
        let spec = (!self.has_ended()).then(|| Arc::clone(&self.spec));
        let counted = Counted::asleep(&self.shared, &self.entity);
        let is_counted = counted.is_some() || self.spawn_slot.is_some();
        let rest = self.shared.rest_of(&self.spec, &self.entity, timers.next(), is_counted);
        let sleep = Sleep::new(spec, self.last, timers).held_back_from(self.held_back_from);
        let sleep = sleep.counted(counted).with_slot(self.spawn_slot.take());
        let sleep = sleep.no_later_than(self.spawns_again.unwrap_or(Monotonic::NEVER));
        self.session_metrics = session_metrics::SessionMetrics::default();
        let entity = &self.entity.entity;
        let has_new_work = || {
            let outdated = self.specs.has_changed().unwrap_or(false);
            let is_kept = self.shown.is_watched() || outdated;
            if !self.mailbox.is_empty() || (is_kept && !self.hold.is_releasing()) {
                return true;
            }
            // Before its partition can be given away.
            if self.entity.is_at_rest() {
                self.shared.rests.add(entity, self.last, rest);
            }
            false
        };
        match self.shared.table.fall_asleep((entity, &self.hold), has_new_work, sleep) {
            Ok(()) => {
                if self.hold.is_releasing() || self.hold.is_gone() {
                    self.shown.move_away(entity);
                }
                true
            }
            Err((timers, slot)) => {
                (self.timers, self.spawn_slot) = (timers, slot.map(|slot| *slot));
                self.count_status();
                false
            }
        }
    }

    /// Has the journal note how the entity rests, so that the next start need not read it.
    fn note_rest_at_shutdown(&mut self) {
        let is_at_rest = self.entity.is_at_rest() && self.pending.is_quiet();
        if !is_at_rest || self.unrecorded.is_some() || self.ownership != Ownership::Owner {
            return;
        }
        let next = self.update_timers(|timers, _, _| timers.next());
        let is_counted =
            Counted::asleep(&self.shared, &self.entity).is_some() || self.spawn_slot.is_some();
        let rest = self.shared.rest_of(&self.spec, &self.entity, next, is_counted);
        self.shared.rests.add(&self.entity.entity, self.last, rest);
    }

    /// Another process writes the entity's records.
    fn give_up_ownership(&mut self) {
        let entity = &self.entity.entity;
        tracing::error!(%entity, "another process writes this entity; it is given up");
        self.ownership = Ownership::Fenced;
        self.shown.finish();
        self.runs.stops.kill(None, Cause::Shutdown, "another process took over");
    }

    fn is_done(&self) -> bool {
        let waits = !self.pending.is_empty() || self.unrecorded.is_some();
        self.runs.is_empty() && !(waits && self.ownership == Ownership::Owner)
    }

    fn wake_at(&self) -> Monotonic {
        match self.pending.retry_at() {
            // What has to end meanwhile does so.
            Some(retry) => retry.min(self.kill_at()).min(self.next_stop()),
            None if self.ownership != Ownership::Owner => Monotonic::NEVER,
            // The journal works again, but what waited for it need not be recorded yet.
            None if !self.pending.is_empty() || self.unrecorded.is_some() => {
                self.shared.clock.now()
            }
            None if self.is_closing => self.timers.next_limit(),
            None => {
                let again = self.spawns_again.unwrap_or(Monotonic::NEVER);
                self.timers.next().min(self.held_back_at()).min(again)
            }
        }
    }

    /// When a limit is breached that stops its run, if that is not happening already.
    fn next_stop(&self) -> Monotonic {
        let is_stopping = self.unrecorded.is_some() || self.ownership != Ownership::Owner;
        if is_stopping { Monotonic::NEVER } else { self.timers.next_stop() }
    }

    /// Arms and disarms the timers as the entity requires now, and returns what `look` finds in
    /// them.
    fn update_timers<T>(&mut self, look: impl FnOnce(&Timers, &Entity, &dyn Clock) -> T) -> T {
        let clock = &*self.shared.clock;
        let has_work =
            !self.entity.is_settled() && (self.pending.is_empty() || !self.runs.is_empty());
        let entity = self.pending.with_waiting_activity(&self.entity, &self.spec);
        self.timers.follow(&entity, has_work, &self.spec, clock);
        look(&self.timers, &entity, clock)
    }

    /// The limit of its session that is breached now.
    fn find_breach(&mut self) -> Option<Breach> {
        self.find_due(|timers, entity, clock| timers.limit_due(entity, clock).map(Due::Limit))
            .and_then(|due| match due {
                Due::Limit(breach) => Some(breach),
                Due::Idle { .. } | Due::Schedule(_) => None,
            })
    }

    /// What `look` finds to be due. If that is a limit on inactivity, host calls of the handlers are
    /// considered as well, which are read only now.
    fn find_due(
        &mut self,
        look: impl Fn(&Timers, &Entity, &dyn Clock) -> Option<Due>,
    ) -> Option<Due> {
        let due = self.update_timers(&look)?;
        let measures_activity = matches!(
            due,
            Due::Limit(Breach { limit: Limit::InactivityWarn | Limit::InactivityTimeout, .. })
        );
        if measures_activity && self.read_activity() { self.update_timers(look) } else { Some(due) }
    }

    /// Takes no new requests, stops the handlers, and records their ends. If it is a session with
    /// work in flight, its run is stopped, which is recorded, too.
    async fn close(&mut self) {
        self.is_closing = true;
        self.mailbox.close();
        channels::refuse_waiting(&mut self.mailbox, &ActorError::Closed);
        if self.runs.is_empty() || !self.stopped_for_shutdown().await {
            self.runs.stops.kill(None, Cause::Shutdown, "");
        }
    }

    /// Whether something new may be decided: ends that wait for the journal come first, because the
    /// next decision depends on them.
    async fn ready_to_write(&mut self) -> Result<(), ActorError> {
        self.record_ends().await;
        match self.ownership {
            Ownership::Fenced => Err(ActorError::Fenced { entity: self.entity.entity.clone() }),
            Ownership::Gone => Err(ActorError::Elsewhere(self.entity.entity.clone())),
            Ownership::JournalClosed => Err(ActorError::Closed),
            Ownership::Owner => {
                // A stop that is carried out is recorded before anything else.
                match self.pending.obstacle().or_else(|| self.why_stop_waits()) {
                    Some(what) => Err(ActorError::JournalUnavailable { what: what.to_owned() }),
                    None => Ok(()),
                }
            }
        }
    }

    async fn handler_ended(&mut self, ended: EndedHandler) {
        if self.hold.is_gone() {
            return;
        }
        // Signals that it sent before its end come before its end.
        self.record_signals(None).await;
        let EndedHandler { attempt, report } = ended;
        // A report may be large: it is copied only for subscribers, and otherwise moved into the
        // journal.
        if self.shared.events.receiver_count() > 0 {
            let (entity, report) = (self.entity.entity.clone(), Arc::new(report.clone()));
            self.shared.publish(Event::RunEnded { entity, report });
        }
        self.pending.push(attempt, report, self.shared.accounts);
        self.record_ends().await;
    }

    /// A timer has fired, or the journal has to be tried again.
    async fn on_wake(&mut self) {
        self.kill_unrecorded();
        if self.pending.retry_at().is_none_or(|at| at <= self.shared.clock.now()) {
            self.pending.try_again();
        }
        // Signals that were sent during a long append are activity.
        self.record_signals(None).await;
        if self.ready_to_write().await.is_err() {
            self.enforce_unrecorded().await;
            return;
        }
        self.record_held_back(self.shared.clock.now()).await;
        // What was just recorded may have stopped a timer, or begun a run with limits of its own.
        let due = self.find_due(Timers::due);
        if let Some(due) = due.filter(|due| !self.is_closing || matches!(due, Due::Limit(_))) {
            match self.take_due(due).await {
                Ok(()) => {}
                Err(
                    ActorError::JournalUnavailable { .. }
                    | ActorError::Fenced { .. }
                    | ActorError::Elsewhere(_)
                    | ActorError::Closed,
                ) => return,
                Err(error) => {
                    // The timers follow the entity, so this is a defect; it must not spin.
                    tracing::error!(entity = %self.entity.entity, %error, "a timer cannot fire");
                    self.timers.drop_due(due);
                }
            }
        }
        self.give_way().await;
    }

    async fn take_due(&mut self, due: Due) -> Result<(), ActorError> {
        let input = match due {
            Due::Limit(breach) => return self.limit_due(breach).await,
            Due::Idle { generation, idle_ms } => Input::StateIdle { generation, idle_ms },
            Due::Schedule(schedule) => Input::ScheduleDue { schedule },
        };
        self.commit_input(&input).await.map(|_| ())
    }

    /// Lets others proceed after a timer has fired: an action that schedules itself at once must
    /// keep out neither other actions nor other entities.
    async fn give_way(&mut self) {
        tokio::task::yield_now().await;
        // Limits come first: only a few can be due at one instant.
        if self.hold.is_gone() || self.find_breach().is_some() {
            return;
        }
        if !self.is_closing && self.hold.is_closing() {
            self.close().await;
        } else if let Ok(message) = self.mailbox.try_recv() {
            self.handle_message(message).await;
        }
    }

    fn show(&self) {
        let held_back = self.held_back().map(|refusal| refusal.to_string());
        self.shown.show(Snapshot { held_back, ..Snapshot::of(&self.entity) });
    }
}
