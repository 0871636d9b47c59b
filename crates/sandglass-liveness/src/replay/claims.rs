//! Checks what records state about handlers against their dispatches: how a handler ended, and
//! which one asked. Decisions do not question these statements, so deciding again cannot find a
//! false one.

use sandglass_model::report::OVERRUNS_MAX;
use sandglass_model::{
    Asked, Cause, DEFAULT_TENANT, DeadlineOwner, Dispatched, Ended, EntityRef, Event,
    HandlerDeadlineExceeded, Incarnation, Object, Observed, Outcome, Overrun, SpawnObstacle,
    SpawnedBy, TraceContext,
};

use crate::entity::Entity;

/// A statement that contradicts another one.
pub(super) struct Contradiction {
    pub(super) what: &'static str,
    pub(super) recorded: String,
    pub(super) expected: String,
}

/// The contradictions in `ended`, the end of a handler of `entity` that was dispatched by
/// `dispatched`.
pub(super) fn false_end(
    entity: &EntityRef,
    dispatched: &Dispatched,
    ended: &Ended,
) -> Vec<Contradiction> {
    let mut found = Found(Vec::new());
    found.of_cause(ended);
    found.of_deadline(dispatched, ended);
    found.of_asker(dispatched, ended);
    found.of_end_point(ended);
    found.of_overruns(ended);
    if let Outcome::TimedOut(exceeded) = &ended.outcome {
        found.of_timeout(entity, dispatched, ended, exceeded);
    }
    found.0
}

/// The contradictions between `asked`, in a transition of `entity` with the trace `trace`, and what
/// is known of the asker's entity.
pub(super) fn false_ask(
    entity: Option<&Entity>,
    asker: Option<&Entity>,
    asked: &Asked,
    trace: TraceContext,
) -> Vec<Contradiction> {
    let mut found = Found(Vec::new());
    // The asker may have ended by the time its ask was recorded, but not long before.
    let known = asker.and_then(|entity| {
        let run = entity.in_flight_handler(asked.dispatch).map(|run| &run.dispatched);
        let run = run.map(|run| (run.attempt, run.depth, run.budget_ms, run.trace));
        let past = || entity.ended_dispatch(asked.dispatch);
        run.or_else(|| past().map(|past| (past.attempt, past.depth, past.budget_ms, past.trace)))
    });
    let Some((attempt, depth, budget_ms, of_asker)) = known else {
        let expected = format!("a dispatch of {}, in flight or just ended", asked.by);
        found.push("dispatch of an asker", asked.dispatch.to_string(), expected);
        return found.0;
    };
    if let (Some(entity), Some(asker)) = (entity, asker) {
        found.same("tenant of an asker", &asker.tenant, &entity.tenant);
    }
    found.same("attempt of an asker", &asked.attempt, &attempt);
    found.same("depth of an ask", &asked.depth, &depth.saturating_add(1));
    found.same("trace_id of an ask", &trace.trace_id, &of_asker.trace_id);
    if asked.remaining_ms > budget_ms {
        let expected = format!("no more than its budget of {budget_ms} ms");
        found.push("remaining_ms of an asker", asked.remaining_ms.to_string(), expected);
    }
    found.0
}

/// The contradictions between `by`, in the creation of an entity, and what its parent has recorded.
pub(super) fn false_spawn(
    parent: Option<&Entity>,
    by: &SpawnedBy,
    (name, incarnation): (&EntityRef, Incarnation),
    tenant: Option<&str>,
) -> Vec<Contradiction> {
    let mut found = Found(Vec::new());
    let parent = parent.filter(|parent| parent.incarnation == by.incarnation);
    let spawn = parent.and_then(|parent| parent.spawn(by.sequence, by.index));
    let (Some(parent), Some(spawn)) = (parent, spawn) else {
        let recorded = format!("number {} of the transition to {}", by.index, by.sequence);
        found.push("spawned_by", recorded, format!("a spawn of {} in progress", by.parent));
        return found.0;
    };
    found.same("entity of a spawn", name, &spawn.entity);
    found.same("incarnation of a spawned entity", &incarnation, &by.derive_incarnation());
    found.same("tenant of a spawned entity", tenant.unwrap_or(DEFAULT_TENANT), &*parent.tenant);
    found.0
}

/// The contradictions between `transition`, the first one of an entity that `by` spawned, and what its
/// parent has recorded.
pub(super) fn false_first_action(
    parent: Option<&Entity>,
    by: Option<&SpawnedBy>,
    transition: &Event,
) -> Vec<Contradiction> {
    let mut found = Found(Vec::new());
    let spawn = parent.zip(by).and_then(|(parent, by)| parent.spawn(by.sequence, by.index));
    let Event::Transition { action, params, trace, .. } = transition else { return found.0 };
    let Some(spawn) = spawn else {
        let expected = "a spawn in progress".to_owned();
        found.push("cause of a transition", "spawned".to_owned(), expected);
        return found.0;
    };
    let expected = spawn.action.as_deref().unwrap_or("nothing");
    found.same("first action of a spawned entity", action.as_str(), expected);
    if *params != spawn.params {
        let text = |params: &Object| serde_json::to_string(params).unwrap_or_default();
        found.push("params of a first action", text(params), text(&spawn.params));
    }
    found.same("trace of a first action", trace, &spawn.trace);
    found.0
}

/// The contradictions between `end`, the end of a spawn of `parent`, and what is known of the entity.
pub(super) fn false_spawn_end(
    parent: &Entity,
    child: Option<&Entity>,
    end: &Event,
) -> Vec<Contradiction> {
    let mut found = Found(Vec::new());
    let (Event::Spawned { spawned_at, index, .. } | Event::SpawnRefused { spawned_at, index, .. }) =
        end
    else {
        return found.0;
    };
    // If there is no such spawn, the decision reports that.
    let Some(spawn) = parent.spawn(*spawned_at, *index) else { return found.0 };
    let origin = parent.origin_of(*spawned_at, spawn);
    let by = child.and_then(Entity::spawned_by).filter(|by| by.is_same_spawn(&origin));
    match end {
        Event::SpawnRefused { reason, .. } if by.is_some() => {
            let expected = format!("that {} was spawned", spawn.entity);
            found.push("reason of a refused spawn", reason.to_string(), expected);
        }
        Event::SpawnRefused { reason: SpawnObstacle::Exists, .. } if child.is_none() => {
            let expected = format!("another entity {}", spawn.entity);
            found.push("reason of a refused spawn", "exists".to_owned(), expected);
        }
        Event::Spawned { action_refused, .. } => {
            let Some(by) = by else {
                let expected = format!("the creation of {} before it", spawn.entity);
                found.push("spawned entity", spawn.entity.to_string(), expected);
                return found.0;
            };
            let text = |refused: &Option<String>| refused.clone().unwrap_or_default();
            found.same("action_refused", &text(action_refused), &text(&by.action_refused));
        }
        _ => {}
    }
    found.0
}

/// The contradiction that `observed` is the state of an entity which does not exist in the same tenant.
pub(super) fn false_observation(observed: &Observed) -> Contradiction {
    let expected = format!("no {} of the same tenant", observed.entity);
    Contradiction { what: "observed", recorded: observed.to_string(), expected }
}

struct Found(Vec<Contradiction>);

impl Found {
    fn of_cause(&mut self, ended: &Ended) {
        if !fits(ended.cause, &ended.outcome) {
            let expected = format!("a cause that ends as {}", ended.outcome.kind());
            self.push("cause of an end", format!("{:?}", ended.cause), expected);
        }
    }

    fn of_deadline(&mut self, dispatched: &Dispatched, ended: &Ended) {
        let deadline = &ended.deadline;
        match deadline.owner {
            DeadlineOwner::Handler => {
                self.same("owner of a deadline", "handler", dispatched.owner.as_str());
                self.same("budget_ms of a deadline", &deadline.budget_ms, &dispatched.budget_ms);
            }
            DeadlineOwner::Parent => self.of_lent_time(dispatched, ended),
        }
        if ended.cause == Cause::Returned {
            self.same("overrun_us of a run that returned", &deadline.overrun_us, &0);
        }
    }

    /// The remaining time of the asker when the guest started is known to the host alone. But there
    /// must be an asker, and the time cannot exceed that at the ask.
    fn of_lent_time(&mut self, dispatched: &Dispatched, ended: &Ended) {
        let deadline = &ended.deadline;
        if dispatched.asker.is_none() {
            let expected = "handler, because no handler asked for it".to_owned();
            self.push("owner of a deadline", "parent".to_owned(), expected);
        }
        // A handler that never started waited within its asker's deadline, which may exceed its own
        // budget.
        let has_run = ended.started_at.is_some() || dispatched.owner == DeadlineOwner::Parent;
        if has_run && deadline.budget_ms > dispatched.budget_ms {
            let expected = format!("no more than {} ms", dispatched.budget_ms);
            self.push("budget_ms of a deadline", deadline.budget_ms.to_string(), expected);
        }
    }

    /// The remaining time of the asker for what follows is known to the asker alone, but it cannot
    /// have grown.
    fn of_asker(&mut self, dispatched: &Dispatched, ended: &Ended) {
        const WHAT: &str = "asker_remaining_ms of an end";
        let Some(remaining_ms) = ended.asker_remaining_ms else { return };
        if dispatched.asker.is_none() {
            let expected = "nothing, because no handler asked for it".to_owned();
            self.push(WHAT, remaining_ms.to_string(), expected);
        }
        let is_parents = dispatched.owner == DeadlineOwner::Parent;
        if remaining_ms == 0 || (is_parents && remaining_ms > dispatched.budget_ms) {
            let expected = format!("from 1 to {} ms", dispatched.budget_ms);
            self.push(WHAT, remaining_ms.to_string(), expected);
        }
    }

    /// The number of calls bounds the call in which the handler ended.
    fn of_end_point(&mut self, ended: &Ended) {
        let Some(at) = ended.ended_at else { return };
        self.same("ended_at of an end", &at.calls_begun(), &ended.host_calls.count);
        if ended.dying_span.is_none() {
            let expected = "nothing, because nothing was running".to_owned();
            self.push("ended_at of an end", at.to_string(), expected);
        }
    }

    /// A breach exceeds its limit, occurred at least once, and no more are listed than may be.
    fn of_overruns(&mut self, ended: &Ended) {
        for overrun in &ended.overruns {
            let Overrun { limit, threshold_ms, observed_ms, times, .. } = overrun;
            if observed_ms <= threshold_ms || *times == 0 {
                let recorded = format!("{limit}: {observed_ms} ms, {times} times");
                let expected = format!("more than {threshold_ms} ms, at least once");
                self.push("overruns of an end", recorded, expected);
            }
        }
        if ended.overruns.len() > OVERRUNS_MAX {
            let expected = format!("at most {OVERRUNS_MAX}");
            self.push("overruns of an end", ended.overruns.len().to_string(), expected);
        }
    }

    fn of_timeout(
        &mut self,
        entity: &EntityRef,
        dispatched: &Dispatched,
        ended: &Ended,
        exceeded: &HandlerDeadlineExceeded,
    ) {
        if exceeded.elapsed_ms <= exceeded.budget_ms {
            let expected = format!("more than the budget of {} ms", exceeded.budget_ms);
            self.push("elapsed_ms of a timeout", exceeded.elapsed_ms.to_string(), expected);
        }
        self.same("entity_type of a timeout", &*exceeded.entity_type, entity.entity_type());
        self.same("entity_id of a timeout", &*exceeded.entity_id, entity.id());
        self.same("integration of a timeout", &exceeded.integration, &dispatched.integration);
        self.same("action of a timeout", &exceeded.action, &dispatched.action);
        self.same("attempt of a timeout", &exceeded.attempt, &dispatched.attempt);
        self.same("trace_id of a timeout", &exceeded.trace_id, &dispatched.trace.trace_id);
        let deadline = &ended.deadline;
        self.same("budget_ms of a timeout", &exceeded.budget_ms, &deadline.budget_ms);
        self.same("elapsed_ms of a timeout", &exceeded.elapsed_ms, &deadline.elapsed_ms);
        self.same("owner of a timeout", exceeded.owner.as_str(), deadline.owner.as_str());
        if let Some(dying_span) = &ended.dying_span {
            self.same("dying_span of a timeout", &exceeded.dying_span, dying_span);
        }
    }

    fn same<T: PartialEq + ToString + ?Sized>(
        &mut self,
        what: &'static str,
        recorded: &T,
        expected: &T,
    ) {
        if recorded != expected {
            self.push(what, recorded.to_string(), expected.to_string());
        }
    }

    fn push(&mut self, what: &'static str, recorded: String, expected: String) {
        self.0.push(Contradiction { what, recorded, expected });
    }
}

/// Whether a handler that `cause` ended can have this outcome.
fn fits(cause: Cause, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Completed(_) | Outcome::Failed(_) => cause == Cause::Returned,
        Outcome::TimedOut(exceeded) => match exceeded.owner {
            DeadlineOwner::Handler => cause == Cause::Deadline,
            DeadlineOwner::Parent => cause == Cause::ParentDeadline,
        },
        // The executor may find any of these when it reads the result.
        Outcome::Trapped(_) | Outcome::Limit(_) | Outcome::Rejected(_) => {
            matches!(cause, Cause::Trap | Cause::NotStarted | Cause::Returned)
        }
        Outcome::Cancelled(_) => {
            matches!(
                cause,
                Cause::Cancel
                    | Cause::StateLeft
                    | Cause::Shutdown
                    | Cause::CallerGone
                    | Cause::RunStopped
                    | Cause::OwnershipLost
            )
        }
        Outcome::Interrupted => cause == Cause::HostLost,
    }
}
