//! What a campaign covers: every kind of record, cause, limit and directive, and every ordered pair
//! of triggers that were decided for one entity at one instant. What a campaign never produced, it
//! did not test.

use std::collections::BTreeMap;
use std::fmt;

mod simultaneous;

use sandglass_model::{
    Cause, Decision, EntityRef, Event, Limit, OutcomeKind, Record, StopCause, TransitionCause,
    WallTime,
};
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

/// Defines the triggers with one spelling each.
macro_rules! triggers {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// What makes an entity decide: the kind of an input.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Trigger { $($(#[$doc])* $name,)+ }

        impl Trigger {
            /// All triggers.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$name),+];

            /// Its name in reports.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

triggers! {
    /// The entity is created.
    Created = "created",
    /// The first run of an existing entity starts.
    Started = "started",
    /// A client requests an action.
    Action = "action",
    /// A handler of another entity asks for an action.
    Ask = "ask",
    /// A client requests one more attempt of a handler.
    Retry = "retry",
    /// A client resumes a session.
    Resume = "resume",
    /// An operator stops a run.
    StopOperator = "stop operator",
    /// An operator cancels a session that waits to be resumed.
    CancelBlocked = "cancel blocked",
    /// A parent's end stops a run.
    StopParent = "stop parent",
    /// A shutdown stops a run.
    StopShutdown = "stop shutdown",
    /// The grace of a stopping run is over.
    AbortTimeout = "abort_timeout",
    /// The limit of the session's time is breached.
    ExecutionTimeout = "execution_timeout",
    /// The limit of the run's time is breached.
    RunTimeout = "run_timeout",
    /// The limit of silence is breached.
    InactivityTimeout = "inactivity_timeout",
    /// The limit of time without progress is breached.
    ProgressTimeout = "progress_timeout",
    /// The warning threshold of silence is reached.
    InactivityWarn = "inactivity_warn",
    /// A handler succeeds.
    Completed = "completed",
    /// A handler fails.
    Failed = "failed",
    /// A handler misses its deadline.
    TimedOut = "timed_out",
    /// A handler traps.
    Trapped = "trapped",
    /// A handler hits a limit of its guest.
    Limited = "limit",
    /// A handler cannot start.
    Rejected = "rejected",
    /// A handler is cancelled.
    Cancelled = "cancelled",
    /// A handler is lost with its host.
    Interrupted = "interrupted",
    /// The state's timer fires.
    Idle = "idle",
    /// A scheduled action comes due.
    ScheduleDue = "schedule due",
    /// A handler sends a signal.
    HandlerSignal = "handler signal",
    /// A host call of a handler in flight reaches its time limit.
    CallTimedOut = "call timed out",
    /// A client or another entity sends a signal.
    OtherSignal = "other signal",
    /// The entity changes to another version of its spec.
    SpecChanged = "spec changed",
}

const TRIGGERS: usize = Trigger::ALL.len();

impl Trigger {
    /// What triggered the decision that begins with `event`; `None` for a record that begins none.
    fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::Created { .. } => Self::Created,
            Event::RunStarted { .. } => Self::Started,
            Event::Transition { cause: TransitionCause::Requested, .. } => Self::Action,
            Event::Transition { cause: TransitionCause::Asked(_), .. } => Self::Ask,
            Event::Dispatched(dispatched) => {
                dispatched.retried.as_ref()?;
                Self::Retry
            }
            Event::SessionResumed { to_cancel: true, .. } => Self::CancelBlocked,
            Event::SessionResumed { .. } => Self::Resume,
            Event::RunStopping(stopping) => match stopping.cause {
                StopCause::Operator { .. } => Self::StopOperator,
                StopCause::Parent { .. } => Self::StopParent,
                StopCause::Shutdown => Self::StopShutdown,
                StopCause::Limit { .. } | StopCause::Trap | StopCause::Completion => return None,
            },
            Event::LimitBreached(breach) => match breach.limit {
                Limit::AbortTimeout => Self::AbortTimeout,
                Limit::ExecutionTimeout => Self::ExecutionTimeout,
                Limit::RunTimeout => Self::RunTimeout,
                Limit::InactivityTimeout => Self::InactivityTimeout,
                Limit::ProgressTimeout => Self::ProgressTimeout,
                Limit::InactivityWarn => Self::InactivityWarn,
                Limit::HostCallTimeout if breach.dispatch.is_some() => Self::CallTimedOut,
                _ => return None,
            },
            Event::Ended(ended) => match ended.outcome.kind() {
                OutcomeKind::Completed => Self::Completed,
                OutcomeKind::Failed => Self::Failed,
                OutcomeKind::TimedOut => Self::TimedOut,
                OutcomeKind::Trapped => Self::Trapped,
                OutcomeKind::Limit => Self::Limited,
                OutcomeKind::Rejected => Self::Rejected,
                OutcomeKind::Cancelled => Self::Cancelled,
                OutcomeKind::Interrupted => Self::Interrupted,
            },
            Event::StateIdle { .. } => Self::Idle,
            Event::ScheduleDue { .. } => Self::ScheduleDue,
            Event::Signal { dispatch: Some(_), .. } => Self::HandlerSignal,
            Event::Signal { .. } => Self::OtherSignal,
            Event::SpecChanged { .. } => Self::SpecChanged,
            Event::SpecRegistered { .. }
            | Event::Transition { .. }
            | Event::Scheduled { .. }
            | Event::Emitted { .. }
            | Event::Spawning(_)
            // They follow from a transition, without an input from outside.
            | Event::Spawned { .. }
            | Event::SpawnRefused { .. }
            | Event::LimitCleared { .. }
            | Event::RunStopped(_) => return None,
        })
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How often each fact and each pair of triggers occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Records by kind and by what they state: keys such as `event` and `event.cause.CAUSE`.
    pub facts: BTreeMap<String, u64>,
    /// Ordered pairs of triggers of one entity at one instant.
    pub pairs: Pairs,
}

/// How often one trigger was decided before another of the same entity at the same instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs(Vec<u64>);

impl Default for Pairs {
    fn default() -> Self {
        Self(vec![0; TRIGGERS * TRIGGERS])
    }
}

impl Pairs {
    /// How often `first` came before `second`.
    #[must_use]
    pub fn times(&self, first: Trigger, second: Trigger) -> u64 {
        self.0[first as usize * TRIGGERS + second as usize]
    }

    fn count(&mut self, first: Trigger, second: Trigger) {
        self.0[first as usize * TRIGGERS + second as usize] += 1;
    }

    /// All pairs, and how often each occurred.
    pub fn all(&self) -> impl Iterator<Item = (Trigger, Trigger, u64)> {
        let firsts = Trigger::ALL.into_iter();
        let pairs =
            firsts.flat_map(|first| Trigger::ALL.into_iter().map(move |second| (first, second)));
        pairs.map(|(first, second)| (first, second, self.times(first, second)))
    }
}

impl Serialize for Pairs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (first, second, times) in self.all().filter(|(_, _, times)| *times > 0) {
            map.serialize_entry(&format!("{first}, {second}"), &times)?;
        }
        map.end()
    }
}

/// Includes what never occurred, as `missing`.
impl Serialize for Coverage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("facts", &self.facts)?;
        map.serialize_entry("pairs", &self.pairs)?;
        map.serialize_entry("missing", &self.missing())?;
        map.end()
    }
}

impl Coverage {
    /// Everything that is possible but never occurred: facts, and pairs as `first, second`.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let facts = facts().into_iter().filter(|fact| !self.facts.contains_key(fact));
        let pairs = self.pairs.all().filter(|(first, second, times)| {
            *times == 0 && simultaneous::why_impossible(*first, *second).is_none()
        });
        facts.chain(pairs.map(|(first, second, _)| format!("{first}, {second}"))).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "produced:")?;
        for (fact, times) in &self.facts {
            writeln!(f, "{times:>12}  {fact}")?;
        }
        writeln!(f, "at one instant, of one entity, the first before the second:")?;
        for (first, second, times) in self.pairs.all().filter(|(_, _, times)| *times > 0) {
            writeln!(f, "{times:>12}  {first}, {second}")?;
        }
        let missing = self.missing();
        writeln!(f, "never produced, though possible: {}", missing.len())?;
        missing.iter().try_for_each(|missing| writeln!(f, "              {missing}"))
    }
}

impl std::ops::AddAssign<&Self> for Coverage {
    fn add_assign(&mut self, other: &Self) {
        for (fact, times) in &other.facts {
            *self.facts.entry(fact.clone()).or_default() += times;
        }
        self.pairs.0.iter_mut().zip(&other.pairs.0).for_each(|(sum, times)| *sum += times);
    }
}

/// Collects the coverage of one log, batch by batch.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    coverage: Coverage,
    /// The triggers of each entity at its last instant.
    present: BTreeMap<EntityRef, (WallTime, Vec<Trigger>)>,
    facts: BTreeMap<(&'static str, &'static str, &'static str), u64>,
}

impl Collector {
    /// Counts the records of one batch. Returns a message if its trigger cannot follow an earlier
    /// trigger of this instant.
    pub(crate) fn batch(&mut self, records: &[Record]) -> Option<String> {
        for record in records {
            self.facts(&record.event);
        }
        let first = records.first()?;
        let (entity, trigger) = (first.entity.as_ref()?, Trigger::of(&first.event)?);
        let (at, before) =
            self.present.entry(entity.clone()).or_insert_with(|| (first.at, Vec::new()));
        if *at != first.at {
            (*at, *before) = (first.at, Vec::new());
        }
        for earlier in &*before {
            self.coverage.pairs.count(*earlier, trigger);
        }
        let unexpected = before.iter().find_map(|earlier| {
            let why = simultaneous::why_impossible(*earlier, trigger)?;
            Some(format!("{entity}: `{trigger}` behind `{earlier}` at one instant, though {why}"))
        });
        if !before.contains(&trigger) {
            before.push(trigger);
        }
        unexpected
    }

    pub(crate) fn finish(self) -> Coverage {
        let facts = self.facts.into_iter().map(|((kind, of, what), times)| {
            let name = if of.is_empty() { kind.to_owned() } else { format!("{kind}.{of}.{what}") };
            (name, times)
        });
        Coverage { facts: facts.collect(), ..self.coverage }
    }

    fn facts(&mut self, event: &Event) {
        let kind = event.kind();
        let mut count = |of, what| *self.facts.entry((kind, of, what)).or_default() += 1;
        count("", "");
        match event {
            Event::Ended(ended) => {
                count("outcome", ended.outcome.kind().as_str());
                count("cause", of_end(ended.cause));
                count("decision", of_decision(&ended.decision));
            }
            Event::LimitBreached(breach) => count("limit", breach.limit.as_str()),
            Event::RunStopping(stopping) => {
                count("cause", stopping.cause.code());
                count("directive", stopping.directive.as_str());
            }
            Event::RunStopped(stopped) => {
                count("cause", stopped.cause.code());
                count("directive", stopped.directive.map_or("none", |one| one.as_str()));
            }
            Event::Transition { cause, .. } => count("cause", of_transition(cause)),
            Event::SpawnRefused { reason, .. } => count("reason", reason.as_str()),
            _ => {}
        }
    }
}

const fn of_decision(decision: &Decision) -> &'static str {
    match decision {
        Decision::Take { .. } => "take",
        Decision::Superseded { .. } => "superseded",
        Decision::Rerun => "rerun",
        Decision::Held => "held",
        Decision::Dropped => "dropped",
    }
}

const fn of_end(cause: Cause) -> &'static str {
    match cause {
        Cause::Returned => "returned",
        Cause::Deadline => "deadline",
        Cause::ParentDeadline => "parent_deadline",
        Cause::Cancel => "cancel",
        Cause::StateLeft => "state_left",
        Cause::Shutdown => "shutdown",
        Cause::CallerGone => "caller_gone",
        Cause::Trap => "trap",
        Cause::HostLost => "host_lost",
        Cause::NotStarted => "not_started",
        Cause::RunStopped => "run_stopped",
        Cause::OwnershipLost => "ownership_lost",
    }
}

const fn of_transition(cause: &TransitionCause) -> &'static str {
    match cause {
        TransitionCause::Requested => "requested",
        TransitionCause::Asked(_) => "asked",
        TransitionCause::HandlerEnded { .. } => "handler_ended",
        TransitionCause::StateIdle => "state_idle",
        TransitionCause::Scheduled { .. } => "scheduled",
        TransitionCause::Spawned => "spawned",
    }
}

/// Every key that [`Coverage::facts`] can have.
fn facts() -> Vec<String> {
    let transitions = ["requested", "asked", "handler_ended", "state_idle", "scheduled", "spawned"];
    let causes = [
        "returned",
        "deadline",
        "parent_deadline",
        "cancel",
        "state_left",
        "shutdown",
        "caller_gone",
        "trap",
        "host_lost",
        "not_started",
        "run_stopped",
    ];
    let decisions = ["take", "superseded", "rerun", "held", "dropped"];
    let stopping = Limit::ALL.into_iter().filter(|limit| limit.stops_runs());
    let limits = stopping.map(|limit| StopCause::Limit { limit }.code());
    let stops: Vec<&str> = ["operator_cancelled", "parent_stopped", "host_shutdown"]
        .into_iter()
        .chain(limits)
        .collect();
    let directives = ["wait", "retry", "unstuck", "cancel"];
    let outcomes = OutcomeKind::ALL.iter().map(|outcome| outcome.as_str());
    let mut all: Vec<String> = Event::KINDS.map(str::to_owned).into();
    let mut add = |of: &str, names: &mut dyn Iterator<Item = &'static str>| {
        all.extend(names.map(|name| format!("{of}.{name}")));
    };
    add("transition.cause", &mut transitions.into_iter());
    add("spawn_refused.reason", &mut ["exists", "too_many"].into_iter());
    add("ended.outcome", &mut outcomes.into_iter());
    add("ended.cause", &mut causes.into_iter());
    add("ended.decision", &mut decisions.into_iter());
    add("limit.breached.limit", &mut Limit::ALL.into_iter().map(Limit::as_str));
    add("run.stopping.cause", &mut stops.iter().copied());
    add("run.stopping.directive", &mut directives.into_iter());
    add("run.stopped.cause", &mut stops.iter().copied().chain(["trap", "completed"]));
    add("run.stopped.directive", &mut directives.into_iter().chain(["none"]));
    all
}
