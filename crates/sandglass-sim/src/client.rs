//! The clients of one process: what they request, when, and what the ledger learns from the
//! answers. Clients repeat requests, give up before they are answered, and act at the very instant
//! of deadlines.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sandglass_liveness::Entity;
use sandglass_liveness::session::{Anchor, LimitSettings, RunPhase, Setting, Watched};
use sandglass_model::{
    DispatchId, EntityRef, Event, Limit, Position, Sequence, StopCause, WallTime,
};
use sandglass_runtime::{
    ActorError, Request, Retry, Runtime, SessionResume, SessionStop, Signal, Snapshot,
};
use serde_json::json;

use crate::automaton::{OWN, PARTNER};
use crate::invariant::Invariant;
use crate::ledger::{Answer, short};
use crate::scene::{Process, START};

/// Sessions with this many runs are not resumed at the end of a simulation.
const RUNS_MAX: u32 = 12;

#[derive(Clone, Debug)]
pub(crate) struct Clients {
    process: Process,
    runtime: Runtime,
}

/// What the driver does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Step,
    /// Shut the process down and start the next one.
    Restart,
}

impl Clients {
    pub(crate) const fn new(process: Process, runtime: Runtime) -> Self {
        Self { process, runtime }
    }

    pub(crate) const fn process(&self) -> &Process {
        &self.process
    }

    /// Takes one step of the simulation.
    pub(crate) async fn step(&self) -> Next {
        let dice = &self.process.scene.clients;
        let name = self.pick_focus();
        self.come_to_the_moment(name.as_ref()).await;
        let Some(name) = name.filter(|_| !self.is_to_create()) else {
            self.create();
            return Next::Step;
        };
        let stops = if self.process.scene.plan.is_coarse { 300 } else { 150 };
        if self.process.scene.automaton(&name).is_session() && dice.per_mille(stops) {
            self.stop_or_resume(name);
            return Next::Step;
        }
        match dice.below(100) {
            0..=49 => self.act(name),
            50..=59 => self.act_twice(name),
            60..=67 => self.signal(name),
            68..=75 => self.cancel(&name).await,
            76..=83 => self.retry(None),
            84..=92 => self.read_snapshot(name),
            93 | 94 => self.trouble_the_disk(),
            95 => self.reload(),
            96 if dice.per_mille(300) => return Next::Restart,
            _ => self.act(name),
        }
        Next::Step
    }

    /// Picks any entity. In a coarse world it is mostly the entity of the last step, so that much
    /// happens to one entity at one instant, and mostly one that has not ended.
    fn pick_focus(&self) -> Option<EntityRef> {
        let scene = &self.process.scene;
        let mut story = scene.story();
        let any =
            |names: &[EntityRef]| (!names.is_empty()).then(|| scene.clients.pick(names).clone());
        if !scene.plan.is_coarse {
            story.focus = any(&story.names);
            return story.focus.clone();
        }
        let mut names = story.names.clone();
        if scene.clients.per_mille(950) {
            let ledger = scene.ledger();
            names.retain(|name| ledger.may_go_on(name));
        }
        let focus = story.focus.take().filter(|focus| names.contains(focus));
        let stays = scene.clients.per_mille(800);
        story.focus = focus.filter(|_| stays).or_else(|| any(&names));
        story.focus.clone()
    }

    fn is_to_create(&self) -> bool {
        let (many, most) =
            (self.process.scene.story().names.len(), self.process.scene.plan.entities);
        many < most && self.process.scene.clients.per_mille(if most > 100 { 600 } else { 300 })
    }

    /// Waits: not at all, briefly, long, or until something of `name` is due, so that the next
    /// request arrives at that very instant.
    async fn come_to_the_moment(&self, name: Option<&EntityRef>) {
        let dice = &self.process.scene.clients;
        let due_ms = || {
            let ledger = self.process.scene.ledger();
            let entity = ledger.entity(name?)?;
            let spec = ledger.spec_of(entity)?;
            let idle = entity.idle_timer(spec);
            let idle = idle.map(|timer| timer.since.after(Duration::from_millis(timer.after_ms)));
            let scheduled = entity.schedules().next().map(|schedule| schedule.due);
            let deadline = ledger.runs.due(name?);
            let limits = entity.watched().map(limits_due).unwrap_or_default();
            let at = idle.into_iter().chain(scheduled).chain(deadline).chain(limits).min()?;
            u64::try_from(at.as_millis() - START.as_millis() - self.process.now_ms()).ok()
        };
        let second_ms = || 1_000 - u64::try_from(self.process.now_ms()).unwrap_or(0) % 1_000;
        let wait_ms = match dice.below(10) {
            choice if self.process.scene.plan.is_coarse => match choice {
                0..=2 => 0,
                3..=5 => match dice.within(0..=3) {
                    0 => 1,
                    // Long enough to breach limits of inactivity.
                    seconds => second_ms() + 1_000 * seconds,
                },
                6 => second_ms(),
                7 => second_ms() + 1,
                8 => due_ms().map_or(1, |due_ms| due_ms + 1),
                _ => due_ms().unwrap_or(0),
            },
            0..=3 => 0,
            4 | 5 => dice.within(0..=50),
            6 => dice.within(0..=5_000),
            7 => 1_000 * dice.within(1..=5),
            8 => due_ms().unwrap_or(1_000),
            _ if dice.per_mille(200) => dice.within(0..=120_000),
            _ => 0,
        };
        self.process.pause_ms(wait_ms).await;
    }

    fn create(&self) {
        let scene = &self.process.scene;
        let automaton = scene.clients.pick(&scene.automata).name.clone();
        let id = format!("e{}", scene.story().names.len());
        let Ok(name) = EntityRef::new(automaton, id) else { return };
        scene.story().names.push(name.clone());
        let is_small = scene.clients.per_mille(200);
        let this = self.clone();
        self.spawn_impatient(async move {
            let created = match is_small {
                true => this.runtime.create_for(name, "small").await,
                false => this.runtime.create(name).await,
            };
            this.check_snapshot(created);
        });
    }

    /// Requests an action, sometimes with the sequence at which the entity is expected.
    fn act(&self, name: EntityRef) {
        let expected = self.process.scene.clients.per_mille(200).then(|| self.sequence(&name));
        let action = self.action(&name);
        self.send(name, action, expected.flatten());
    }

    /// Sends one message twice, as a network may: the expected sequence lets only one succeed.
    fn act_twice(&self, name: EntityRef) {
        let (expected, action) = (self.sequence(&name), self.action(&name));
        self.send(name.clone(), action.clone(), expected);
        self.send(name, action, expected);
    }

    fn action(&self, name: &EntityRef) -> String {
        self.process.scene.action_for(name, &self.process.scene.clients)
    }

    fn sequence(&self, name: &EntityRef) -> Option<Sequence> {
        self.process.scene.ledger().entity(name).map(|entity| entity.sequence)
    }

    fn send(&self, name: EntityRef, action: String, expected: Option<Sequence>) {
        let (id, mut params) = self.process.scene.new_request();
        if self.process.scene.clients.per_mille(700) {
            params.insert("text".to_owned(), json!(format!("of {id}")));
        }
        let request = Request { expected, ..Request::new(action).params(params) };
        let this = self.clone();
        self.spawn_impatient(async move {
            let answer = this.runtime.request(&name, request).await;
            this.finish(id, answer.map(|accepted| Some(accepted.position)));
        });
    }

    /// Retries a handler: one of `of`, or one of any entity if that is `None`.
    fn retry(&self, of: Option<&EntityRef>) {
        let scene = &self.process.scene;
        let mut retriable = scene.ledger().runs.retriable();
        retriable.retain(|(name, _)| of.is_none_or(|of| of == name));
        if retriable.is_empty() {
            return;
        }
        let (name, (dispatch, attempt)) = scene.clients.pick(&retriable).clone();
        let (id, _) = self.process.scene.new_request();
        let retry = Retry {
            budget: scene.clients.per_mille(300).then(|| Duration::from_secs(2)),
            by: format!("request {id}"),
            reason: String::new(),
            expected_attempt: scene.clients.per_mille(700).then_some(attempt),
        };
        let this = self.clone();
        self.spawn_impatient(async move {
            let answer = this.runtime.retry(&name, dispatch, retry).await;
            this.finish(id, answer.map(|accepted| Some(accepted.position)));
        });
    }

    fn signal(&self, name: EntityRef) {
        let scene = &self.process.scene;
        let (id, _) = self.process.scene.new_request();
        let others = scene.story().names.clone();
        let from = Some(scene.clients.pick(&others).clone()).filter(|from| *from != name);
        // A signal resets the timer of a state only if it comes from elsewhere, and in these worlds
        // only the entity itself sends the signals of its handlers. So the obsolete entries of
        // `reset_on`, which list these signals, must make no difference.
        let (what, from) = match scene.clients.below(3) {
            0 => (*scene.clients.pick(&OWN[..2]), Some(name.clone())),
            1 => (PARTNER, None),
            _ => (PARTNER, from),
        };
        let signal = Signal { name: what.to_owned(), from, payload: json!({ "request": id }) };
        let this = self.clone();
        self.spawn_impatient(async move {
            let answer = this.runtime.signal(&name, signal).await;
            this.finish(id, answer.map(|()| None));
        });
    }

    async fn cancel(&self, name: &EntityRef) {
        let first = |entity: &Entity| entity.in_flight().first().map(|run| run.dispatched.dispatch);
        let dispatch: Option<DispatchId> = self.process.scene.ledger().entity(name).and_then(first);
        let dispatch = dispatch.filter(|_| self.process.scene.clients.per_mille(500));
        let answer = self.runtime.cancel(name, dispatch, "a client is tired of it").await;
        let which = dispatch.map_or_else(|| "all".to_owned(), short);
        self.process.ledger().add_line(|| format!("      {name} cancel {which}: {answer:?}"));
    }

    /// Stops the run of a session or resumes it, mostly the one that can succeed.
    fn stop_or_resume(&self, name: EntityRef) {
        let dice = &self.process.scene.clients;
        let session = {
            let ledger = self.process.scene.ledger();
            let session = ledger.entity(&name).and_then(Entity::session);
            session.map(|session| (session.run_seq, session.is_running()))
        };
        let run_seq = session.map(|(run_seq, _)| run_seq).filter(|_| dice.per_mille(500));
        let is_stopped = session.is_some_and(|(_, is_running)| !is_running);
        if is_stopped == dice.per_mille(100) {
            self.stop(name, run_seq)
        } else {
            self.resume(name, run_seq)
        }
    }

    /// Follows up on some records at the instant when they are published, more often on kinds that
    /// little else follows.
    pub(crate) fn follow_up(&self, name: &EntityRef, event: &Event) {
        let dice = &self.process.scene.clients;
        let chance = match event {
            Event::RunStopped(_) => 400,
            Event::LimitBreached(_) | Event::RunStarted { .. } | Event::SpecChanged { .. } => 300,
            Event::Created { .. } | Event::StateIdle { .. } | Event::ScheduleDue { .. } => 150,
            Event::Ended(_) => 150,
            _ => 70,
        };
        if !dice.per_mille(chance) {
            return;
        }
        match event {
            Event::RunStopped(_) => self.go_on(name),
            _ => match dice.below(10) {
                0..=3 => self.act(name.clone()),
                4 | 5 => self.retry(Some(name)),
                6 => self.signal(name.clone()),
                7 | 8 => self.stop(name.clone(), None),
                _ => self.reload(),
            },
        }
    }

    /// Resumes a stopped session, or stops it again.
    fn go_on(&self, name: &EntityRef) {
        let dice = &self.process.scene.clients;
        if dice.per_mille(300) {
            return self.stop(name.clone(), None);
        }
        self.resume(name.clone(), None);
        match dice.below(5) {
            0 => self.stop(name.clone(), None),
            1 => self.act(name.clone()),
            2 => self.signal(name.clone()),
            3 => self.retry(Some(name)),
            _ => {}
        }
    }

    fn resume(&self, name: EntityRef, run_seq: Option<u32>) {
        let dice = &self.process.scene.clients;
        let ((id, _), this) = (self.process.scene.new_request(), self.clone());
        let mut limits = LimitSettings::default();
        if dice.per_mille(300) {
            limits.set(Limit::RunTimeout, Setting::At(dice.within(100_000..=200_000)));
        }
        // This limit is measured from the start of the session, so it may be breached at this very
        // instant.
        if self.process.scene.plan.is_coarse && dice.per_mille(200) {
            limits.set(Limit::ExecutionTimeout, Setting::At(1_000 * dice.within(1..=12)));
        }
        let (by, reason) = (format!("request {id}"), String::new());
        let resume = SessionResume { by, reason, expected_run: run_seq, limits };
        self.spawn_impatient(async move {
            let answer = this.runtime.resume_session(&name, resume).await;
            this.finish(id, answer.map(|accepted| Some(accepted.position)));
        });
    }

    fn stop(&self, name: EntityRef, run_seq: Option<u32>) {
        let dice = &self.process.scene.clients;
        let ((id, _), this) = (self.process.scene.new_request(), self.clone());
        let reason = String::new();
        let cause = match dice.below(10) {
            0..=2 => StopCause::Operator { by: format!("request {id}"), reason },
            3 => StopCause::Parent { parent: None, reason },
            // Not final, so that there is something to resume.
            _ => StopCause::Shutdown,
        };
        let is_named = matches!(cause, StopCause::Operator { .. });
        let stop = SessionStop { run_seq, cause };
        self.spawn_impatient(async move {
            match this.runtime.stop_session(&name, stop).await {
                _ if this.process.has_crashed() => {}
                Ok(stopped) if stopped.is_recorded && is_named => {
                    this.process.ledger().note_answer(id, Answer::Accepted(None));
                }
                Ok(_) => {}
                Err(error) => this.note_refusal(Some(id), &error),
            }
        });
    }

    /// Resumes each blocked session among `names` once, so that it finishes the work that it still
    /// has, and returns how many there were. Sessions with [`RUNS_MAX`] runs stay blocked.
    pub(crate) async fn resume_all(&self, names: &BTreeSet<EntityRef>) -> usize {
        let blocked: Vec<EntityRef> = {
            let ledger = self.process.scene.ledger();
            let is_blocked = |entity: &Entity| {
                let session = entity.session();
                session.is_some_and(|session| {
                    let is_stopped = matches!(session.phase, RunPhase::Stopped(_));
                    is_stopped && !session.is_over() && session.run_seq < RUNS_MAX
                })
            };
            let blocked = ledger.entities().filter(|(entity, _)| is_blocked(entity));
            let blocked = blocked.map(|(entity, _)| &entity.entity);
            blocked.filter(|name| names.contains(name)).cloned().collect()
        };
        for name in &blocked {
            let (id, _) = self.process.scene.new_request();
            let (by, reason) = (format!("request {id}"), String::new());
            // Turn these limits off, because a stop by one of them would hide work that the session
            // still has.
            let mut limits = LimitSettings::default();
            for limit in [Limit::RunTimeout, Limit::ExecutionTimeout] {
                limits.set(limit, Setting::Off);
            }
            let resume = SessionResume { by, reason, expected_run: None, limits };
            let answer = self.runtime.resume_session(name, resume).await;
            self.finish(id, answer.map(|accepted| Some(accepted.position)));
        }
        blocked.len()
    }

    fn read_snapshot(&self, name: EntityRef) {
        let this = self.clone();
        tokio::spawn(async move {
            this.check_snapshot(this.runtime.entity(&name).await);
        });
    }

    fn trouble_the_disk(&self) {
        let scene = &self.process.scene;
        if scene.plan.failing_appends > 0 {
            let until_ms = self.process.now_ms() + *scene.clients.pick(&[10, 1_000, 20_000]);
            self.process.ledger().add_line(|| format!("      the disk fails until {until_ms} ms"));
            scene.disk().fail_until(until_ms);
        }
    }

    fn reload(&self) {
        let version = self.process.scene.clients.below(crate::automaton::VERSIONS);
        self.process.scene.story().version = version;
        let (this, specs) = (self.clone(), self.process.scene.specs[version].clone());
        tokio::spawn(async move {
            // If the reload cannot be recorded, the next start tries again.
            let is_recorded = this.runtime.reload(specs).await.is_ok();
            this.process
                .ledger()
                .add_line(|| format!("      reload of version {version}: {is_recorded}"));
        });
    }

    /// Sends a request, and sometimes gives up before the answer arrives.
    fn spawn_impatient(&self, asking: impl Future<Output = ()> + Send + 'static) {
        let dice = &self.process.scene.clients;
        let patience_ms = dice.per_mille(100).then(|| dice.within(0..=3));
        let process = self.process.clone();
        tokio::spawn(async move {
            let Some(patience_ms) = patience_ms else { return asking.await };
            tokio::select! {
                // In a fixed order, so that the result depends on the seed alone.
                biased;
                () = asking => {}
                () = process.pause_ms(patience_ms) => {}
            }
        });
    }

    /// Notes the answer to a request: the position of its record, if the answer contains one.
    fn finish(&self, id: u64, answer: Result<Option<Position>, ActorError>) {
        match answer {
            // An answer of a crashed process reaches no client.
            _ if self.process.has_crashed() => {}
            Ok(position) => self.process.ledger().note_answer(id, Answer::Accepted(position)),
            Err(error) => self.note_refusal(Some(id), &error),
        }
    }

    fn check_snapshot(&self, read: Result<Arc<Snapshot>, ActorError>) {
        match read {
            _ if self.process.has_crashed() => {}
            Ok(snapshot) => self.process.ledger().check_snapshot(&snapshot),
            Err(error) => self.note_refusal(None, &error),
        }
    }

    /// Notes a refusal, and reports a violation if the refusal cannot be right.
    fn note_refusal(&self, id: Option<u64>, error: &ActorError) {
        if self.process.has_crashed() {
            return;
        }
        let mut ledger = self.process.ledger();
        ledger.add_line(|| format!("      request {id:?} is refused: {error}"));
        let is_wrong = match error {
            ActorError::Fenced { .. } => Some(Invariant::AppendsFit),
            ActorError::Journal(_) => Some(Invariant::AppendsFit),
            ActorError::UnknownEntity(name) if ledger.entity(name).is_some() => {
                Some(Invariant::NobodyStuck)
            }
            _ => None,
        };
        if let Some(invariant) = is_wrong {
            ledger.report(invariant, error.to_string());
        }
        let Some(id) = id else { return };
        let answer = match error {
            // After these errors, the client does not know whether the request had an effect.
            ActorError::Closed | ActorError::HandlerDeadlineExceeded(_) => return,
            ActorError::JournalUnavailable { .. } => Answer::NotWritten,
            _ => Answer::Refused,
        };
        ledger.note_answer(id, answer);
    }
}

/// When the time limits of a session, or of handlers without one, are reached, if nothing happens
/// before.
fn limits_due(watched: Watched<'_>) -> Vec<WallTime> {
    let limits = watched.session().map(|session| &session.limits);
    let threshold_ms = |anchor| match anchor {
        Anchor::Session => limits?.execution_timeout_ms,
        Anchor::Run => limits?.run_timeout_ms,
        Anchor::Activity => watched.inactivity_warn_ms().or_else(|| limits?.inactivity_timeout_ms),
        Anchor::Progress => limits?.progress_timeout_ms,
        Anchor::Stop => limits.map(|limits| limits.abort_timeout_ms),
    };
    let due = |(anchor, _, since): (Anchor, u64, WallTime)| {
        let is_measured = (anchor == Anchor::Stop) != watched.is_running();
        let after = Duration::from_millis(threshold_ms(anchor).filter(|_| is_measured)?);
        Some(since.after(after))
    };
    watched.anchors().into_iter().filter_map(due).collect()
}
