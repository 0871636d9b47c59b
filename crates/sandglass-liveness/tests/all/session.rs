//! The session of the incident, as the tests of decisions use it.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_liveness::{Command, Decided, Entity, Input, Refusal, Spec, Terms, commands, decide};
use sandglass_model::{
    AskUntil, Asked, Cause, Completion, DeadlineOwner, DeadlineReport, DispatchId, Dispatched,
    EntityRef, Event, HandlerDeadlineExceeded, HandlerEnd, HostCalls, Incarnation, Object, Outcome,
    Position, Record, RulesVersion, TimeSplit, TraceContext, WallTime,
};
use serde_json::json;

pub(crate) const SESSION: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Executing", "Done", "Failed", "TimedOut", "Stopped"]
initial = "Idle"
terminal = ["Done", "Failed", "TimedOut", "Stopped"]
allow_indefinite_states = ["Idle"]

[[state]]
name = "rounds"
type = "counter"

[[state]]
name = "note"
type = "string"
initial = "none"

[[action]]
name = "ProcessToolCalls"
from = ["Idle"]
to = "Executing"
effect = ["trigger run_tools", "increment rounds"]

[[action]]
name = "Note"
from = ["Idle", "Executing"]
params = ["text"]
effect = [{ type = "set", var = "note", param = "text" }]

[[action]]
name = "Pause"
from = ["Executing"]
to = "Idle"

[[action]]
name = "Later"
from = ["Idle"]
effect = [{ type = "schedule", action = "ProcessToolCalls", delay_seconds = 60 }]

[[action]]
name = "Finish"
from = ["Executing"]
to = "Done"

[[action]]
name = "Fail"
from = ["Executing"]
to = "Failed"

[[action]]
name = "HandlerTimedOut"
from = ["Executing"]
to = "TimedOut"

[[action]]
name = "Stop"
from = ["Executing"]
to = "Stopped"

[[integration]]
name = "run_tools"
trigger = "run_tools"
type = "wasm"
module = "run_tools"
deadline = "900s"
on_failure = "Fail"
on_timeout = "HandlerTimedOut"
on_cancelled = "Stop"
region = "north"

[[state_timeout]]
state = "Executing"
after_seconds = 300
on_timeout = "Fail"
reset_on = ["PartnerReplied"]
max_occurrences = 2
params = { reason = "idle" }
"#;

/// An entity with its log, and a wall clock that the test moves. It may take turns
/// with others.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) spec: Arc<Spec>,
    pub(crate) entity: Option<Entity>,
    /// The entities that it isn't the turn of.
    pub(crate) others: BTreeMap<EntityRef, Entity>,
    who: EntityRef,
    pub(crate) log: Vec<Record>,
    pub(crate) now: i64,
}

impl Life {
    pub(crate) fn unborn(source: &str) -> Self {
        Self::unborn_under(source, RulesVersion::CURRENT)
    }

    fn unborn_under(source: &str, rules: RulesVersion) -> Self {
        let parsed = Spec::parse_recorded(source, rules);
        let spec = Arc::new(parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics)));
        let registered = spec.registered();
        let mut life = Self {
            spec,
            entity: None,
            others: BTreeMap::new(),
            who: Self::name(),
            log: Vec::new(),
            now: 1_000,
        };
        life.record(None, registered);
        life
    }

    pub(crate) fn of(source: &str) -> Self {
        Self::under(source, RulesVersion::CURRENT)
    }

    /// An entity whose decisions are made by `rules`.
    pub(crate) fn under(source: &str, rules: RulesVersion) -> Self {
        let mut life = Self::unborn_under(source, rules);
        life.create([7; 16]);
        life
    }

    fn create(&mut self, incarnation: [u8; 16]) {
        let incarnation = Incarnation::from_bytes(incarnation);
        self.tell(Input::Create {
            name: self.who.clone(),
            incarnation,
            tenant: None,
            spawned_by: None,
        })
        .expect("a new entity");
    }

    pub(crate) fn other() -> EntityRef {
        "Session/two".parse().expect("a valid name")
    }

    /// It is the turn of `who`, which is created where it isn't yet.
    pub(crate) fn turn_to(&mut self, who: EntityRef) {
        let before = self.entity.take();
        self.others.extend(before.map(|entity| (entity.entity.clone(), entity)));
        self.entity = self.others.remove(&who);
        self.who = who;
        if self.entity.is_none() {
            self.create([8; 16]);
        }
    }

    /// The entity whose turn it is is asked for `action` by a handler of `by`.
    pub(crate) fn asked(&mut self, action: &str, asked: Asked) -> Result<Vec<Command>, Refusal> {
        let params = Object::new();
        let trace = self
            .entities()
            .find_map(|entity| Some(entity.in_flight_handler(asked.dispatch)?.dispatched.trace));
        let trace = trace.unwrap_or(TraceContext::root([5; 24]));
        self.tell(Input::Action {
            action: action.to_owned(),
            params,
            trace,
            asked: Some(asked),
            terms: Terms::default(),
        })
    }

    /// All entities, in whatever order.
    pub(crate) fn entities(&self) -> impl Iterator<Item = &Entity> {
        self.others.values().chain(&self.entity)
    }

    pub(crate) fn name() -> EntityRef {
        "Session/one".parse().expect("a valid name")
    }

    fn record(&mut self, entity: Option<EntityRef>, event: Event) {
        let position = Position(self.log.len() as u64 + 1);
        let at = WallTime::from_millis(self.now);
        let sequence =
            self.entity.as_ref().map(|entity| entity.sequence_with(&event)).unwrap_or_default();
        if let Some(entity) = &mut self.entity {
            entity.apply(&self.spec, &event, at);
        } else {
            self.entity = Entity::created(self.who.clone(), &event, at);
        }
        self.log.push(Record { position, at, entity, sequence, event });
    }

    pub(crate) fn tell(&mut self, input: Input) -> Result<Vec<Command>, Refusal> {
        let now = WallTime::from_millis(self.now);
        let before = self.entity.clone();
        let Decided { events, after } = decide(&self.spec, before.as_ref(), &input, now)?;
        for event in &events {
            self.record(Some(self.who.clone()), event.clone());
        }
        assert_eq!(*self.entity(), after, "the decision folds what a reader of the records folds");
        Ok(commands(before.as_ref(), &after, &events))
    }

    pub(crate) fn act(&mut self, action: &str) -> Result<Vec<Command>, Refusal> {
        self.act_with(action, Object::new())
    }

    pub(crate) fn act_with(
        &mut self,
        action: &str,
        params: Object,
    ) -> Result<Vec<Command>, Refusal> {
        self.request(action, params, Terms::default())
    }

    /// As `act_with`, with what the caller states besides.
    pub(crate) fn request(
        &mut self,
        action: &str,
        params: Object,
        terms: Terms,
    ) -> Result<Vec<Command>, Refusal> {
        let trace = TraceContext::root([5; 24]);
        self.tell(Input::Action { action: action.to_owned(), params, trace, asked: None, terms })
    }

    /// Starts the handler and answers its dispatch.
    pub(crate) fn start(&mut self) -> DispatchId {
        let commands = self.act("ProcessToolCalls").expect("taken in Idle");
        match &commands[..] {
            [Command::Start(dispatched)] => dispatched.dispatch,
            other => panic!("one start, not {other:?}"),
        }
    }

    pub(crate) fn end(
        &mut self,
        dispatch: DispatchId,
        outcome: Outcome,
    ) -> Result<Vec<Command>, Refusal> {
        self.tell(ended(dispatch, 1, outcome))
    }

    pub(crate) fn entity(&self) -> &Entity {
        self.entity.as_ref().expect("created")
    }

    pub(crate) fn state(&self) -> &str {
        &self.entity().state
    }

    pub(crate) fn kinds(&self, from: usize) -> Vec<&'static str> {
        self.log[from..].iter().map(|record| record.event.kind()).collect()
    }
}

/// The budget of the session's handler, in milliseconds.
const BUDGET_MS: u64 = 900_000;

/// The end of a run of the session's handler.
pub(crate) fn ended(dispatch: DispatchId, attempt: u32, outcome: Outcome) -> Input {
    Input::HandlerEnded(Arc::new(end_within(BUDGET_MS, dispatch, attempt, outcome)))
}

/// The end of a run with this budget, as a host reports it.
pub(crate) fn end_within(
    budget_ms: u64,
    dispatch: DispatchId,
    attempt: u32,
    outcome: Outcome,
) -> HandlerEnd {
    let deadline = match &outcome {
        Outcome::TimedOut(exceeded) => DeadlineReport {
            budget_ms,
            elapsed_ms: exceeded.elapsed_ms,
            overrun_us: exceeded.overrun_us,
            owner: exceeded.owner,
        },
        _ => DeadlineReport { budget_ms, ..DeadlineReport::default() },
    };
    let dying_span = match &outcome {
        Outcome::TimedOut(exceeded) => Some(exceeded.dying_span.clone()),
        _ => None,
    };
    HandlerEnd {
        dispatch,
        attempt,
        cause: match outcome {
            Outcome::TimedOut(_) => Cause::Deadline,
            Outcome::Cancelled(_) => Cause::Cancel,
            Outcome::Interrupted => Cause::HostLost,
            Outcome::Trapped(_) | Outcome::Limit(_) => Cause::Trap,
            Outcome::Rejected(_) => Cause::NotStarted,
            Outcome::Completed(_) | Outcome::Failed(_) => Cause::Returned,
        },
        outcome,
        started_at: None,
        deadline,
        dying_span,
        dying_call: None,
        ended_at: None,
        host_calls: HostCalls::default(),
        overruns: Vec::new(),
        time_split_us: TimeSplit::default(),
        account: None,
        recording: None,
        asker_remaining_ms: None,
    }
}

pub(crate) fn completed(action: Option<&str>) -> Outcome {
    Outcome::Completed(Completion {
        action: action.map(str::to_owned),
        params: Object::from([("answer".to_owned(), json!(42))]),
        result: json!({ "success": true }),
    })
}

/// An ask by the handler that `dispatched` says, of `by`.
pub(crate) fn ask_of(by: &EntityRef, dispatched: &Dispatched, until: AskUntil) -> Asked {
    Asked {
        by: by.clone(),
        dispatch: dispatched.dispatch,
        attempt: dispatched.attempt,
        until,
        remaining_ms: dispatched.budget_ms,
        depth: dispatched.depth + 1,
    }
}

/// The end of the run that was asked for with `dispatched`, as a host reports it.
pub(crate) fn end_of_run(dispatched: &Dispatched, outcome: Outcome) -> HandlerEnd {
    let Dispatched { dispatch, attempt, budget_ms, owner, .. } = dispatched;
    let mut end = end_within(*budget_ms, *dispatch, *attempt, outcome);
    end.deadline.owner = *owner;
    if (end.cause, owner) == (Cause::Deadline, &DeadlineOwner::Parent) {
        end.cause = Cause::ParentDeadline;
    }
    end
}

/// A timeout of the session's first handler.
pub(crate) fn timed_out() -> Outcome {
    let trace = TraceContext::root([5; 24]);
    Outcome::TimedOut(timeout_of("run_tools", "ProcessToolCalls", 1, BUDGET_MS, trace))
}

/// A timeout of the run of `entity` that was asked for with `dispatched`.
pub(crate) fn timed_out_of(entity: &EntityRef, dispatched: &Dispatched) -> Outcome {
    let Dispatched { integration, action, attempt, budget_ms, owner, trace, .. } = dispatched;
    let exceeded = timeout_of(integration, action, *attempt, *budget_ms, *trace);
    let entity_id = entity.id().to_owned();
    Outcome::TimedOut(Box::new(HandlerDeadlineExceeded { entity_id, owner: *owner, ..*exceeded }))
}

fn timeout_of(
    integration: &str,
    action: &str,
    attempt: u32,
    budget_ms: u64,
    trace: TraceContext,
) -> Box<HandlerDeadlineExceeded> {
    Box::new(HandlerDeadlineExceeded {
        integration: integration.to_owned(),
        entity_type: "Session".to_owned(),
        entity_id: "one".to_owned(),
        action: action.to_owned(),
        attempt,
        budget_ms,
        elapsed_ms: budget_ms + 1,
        overrun_us: 12,
        owner: DeadlineOwner::Handler,
        dying_span: "host_http_call".to_owned(),
        dying_call: None,
        backtrace: Vec::new(),
        host_calls: 3,
        time_split_us: TimeSplit::default(),
        trace_id: trace.trace_id,
    })
}
