//! The specs that a runtime knows: for each type the one that new entities obey, every version that
//! a record names, and how they are replaced.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::try_join_all;
use sandglass_journal::{self as journal, Batch, Expected, Journal};
use sandglass_liveness::decide::directive;
use sandglass_liveness::session::{Ceilings, LimitSettings};
use sandglass_liveness::{Entity, Spec};
use sandglass_model::{Limit, Position, RunLimits, Sequence, SpecDigest, StopCause};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::{ExpectedEvents, ExpectedSessionEvents, ResumedBy};

use crate::error::ActorError;
use crate::shared::{Shared, recorded};

/// The specs at one moment.
#[derive(Debug, Default)]
pub(crate) struct Specs {
    /// What new entities obey, by type.
    pub(crate) types: Arc<BTreeMap<String, Arc<Spec>>>,
    /// All specs of the journal: as many as there ever were, because the history of an entity is
    /// read with the specs that it obeyed then.
    pub(crate) known: BTreeMap<SpecDigest, Arc<Spec>>,
}

/// What a reload did with each type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Types that are new.
    pub added: Vec<String>,
    /// Types with a new version.
    pub changed: Vec<String>,
    /// Types without a spec from now on: their entities continue, and no new ones are created.
    pub removed: Vec<String>,
    /// Types whose spec is unchanged.
    pub unchanged: Vec<String>,
}

/// Why a reload changed nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReloadError {
    /// Two specs are of the same type.
    #[error("two specs are of the type `{0}`; give one of them")]
    DoubledType(String),
    /// The specs cannot be recorded.
    #[error("the specs cannot be recorded: {0}")]
    NotRecorded(ActorError),
}

impl Specs {
    /// The specs with `types` in place of the present types, and what that changes.
    pub(crate) fn reloaded(&self, types: BTreeMap<String, Arc<Spec>>) -> (Self, Reloaded) {
        let mut reloaded = Reloaded::default();
        let types = Arc::new(types);
        for (name, spec) in &*types {
            let list = match self.types.get(name) {
                None => &mut reloaded.added,
                Some(before) if before.digest == spec.digest => &mut reloaded.unchanged,
                Some(_) => &mut reloaded.changed,
            };
            list.push(name.clone());
        }
        let removed = self.types.keys().filter(|name| !types.contains_key(*name));
        reloaded.removed.extend(removed.cloned());
        let mut known = self.known.clone();
        known.extend(types.values().map(|spec| (spec.digest, Arc::clone(spec))));
        (Self { types, known }, reloaded)
    }

    /// The specs that `before` does not contain.
    pub(crate) fn new_since(&self, before: &Self) -> Vec<Arc<Spec>> {
        let new = self.known.iter().filter(|(digest, _)| !before.known.contains_key(*digest));
        new.map(|(_, spec)| Arc::clone(spec)).collect()
    }

    /// The version that entities of this type are to obey, if `entity` obeys another one.
    pub(crate) fn newest(&self, entity: &Entity) -> Option<Arc<Spec>> {
        let newest = self.types.get(entity.entity.entity_type())?;
        (newest.digest != entity.spec).then(|| Arc::clone(newest))
    }
}

/// Records in the journal of every partition that is served that `specs` came into use: all of them, or
/// none. If one of several journals fails, others may contain them; they are recorded there again with
/// the next attempt. A partition that is lost meanwhile gets them when it is adopted again.
pub(crate) async fn register(shared: &Shared, specs: &[Arc<Spec>]) -> Result<(), journal::Error> {
    let holds = shared.table.lock().serving.holds();
    let each = holds.iter().map(|hold| async move {
        let Some(journal) = shared.journal.all().get(hold.index) else { return Ok(()) };
        match register_in(shared, &**journal, specs).await {
            Err(journal::Error::Disowned { .. }) if shared.journal.is_partitioned() => {
                shared.lose_disowned(hold);
                Ok(())
            }
            Err(_) if hold.is_gone() => Ok(()),
            registered => registered,
        }
    });
    try_join_all(each).await?;
    Ok(())
}

/// Records in one journal that `specs` came into use: all of them, or none.
pub(crate) async fn register_in(
    shared: &Shared,
    journal: &dyn Journal,
    specs: &[Arc<Spec>],
) -> Result<(), journal::Error> {
    if specs.is_empty() {
        return Ok(());
    }
    let records: Vec<_> = specs.iter().map(|spec| (Sequence(0), spec.registered())).collect();
    let at = shared.clock.wall();
    let batch = Batch::new(None, Expected::Any, at, records.clone());
    let first = shared.append_by(journal.append(batch)).await?;
    for ((sequence, event), place) in records.into_iter().zip(first.0..) {
        shared.publish(recorded(Position(place), at, None, sequence, event));
    }
    Ok(())
}

/// Makes the counters of what can happen to entities of `specs` start at zero.
pub(crate) fn expect(metrics: &Metrics, specs: &Specs, ceilings: &Ceilings) {
    for (entity_type, spec) in &*specs.types {
        let actions = || spec.actions.values();
        let dispatching = actions().filter(|action| !action.dispatches.is_empty());
        let without_budget = spec.integrations.values().filter(|one| one.budget_defaulted);
        metrics.expect(&ExpectedEvents {
            entity_type,
            dispatching: dispatching.map(|action| &*action.name).collect(),
            actions: actions().map(|action| &*action.name).collect(),
            timed_states: spec.timeouts.keys().map(String::as_str).collect(),
            without_budget: without_budget.map(|integration| &*integration.name).collect(),
            sessions: ceilings.makes_sessions(spec).then(|| of_sessions(spec, ceilings)),
        });
    }
}

/// What can happen to sessions that obey `spec` with its own limits.
fn of_sessions(spec: &Spec, ceilings: &Ceilings) -> ExpectedSessionEvents {
    let holding = ceilings.effective(spec, &LimitSettings::default());
    let limits: Vec<Limit> =
        Limit::ALL.into_iter().filter(|limit| is_on(*limit, &holding)).collect();
    let retries = spec.limits.as_ref().map(|limits| &limits.retries);
    let retried = |limit: Limit| retries.is_some_and(|retries| retries.contains_key(&limit));
    let stopping = limits.iter().filter(|limit| limit.stops_runs());
    let by_limits = stopping.flat_map(|limit| {
        let cause = StopCause::Limit { limit: *limit };
        let becomes = [0, u64::from(retried(*limit))].map(|left| directive(&cause, left));
        becomes.map(|becomes| (cause.code(), Some(becomes)))
    });
    let operator = StopCause::Operator { by: String::new(), reason: String::new() };
    let parent = StopCause::Parent { parent: None, reason: String::new() };
    let others = [operator, parent, StopCause::Shutdown];
    let others = others.map(|cause| (cause.code(), Some(directive(&cause, 0))));
    let by_itself = [StopCause::Trap, StopCause::Completion].map(|cause| (cause.code(), None));
    let retry = limits.iter().any(|limit| retried(*limit)).then_some(ResumedBy::Retry);
    ExpectedSessionEvents {
        stops: by_limits.chain(others).chain(by_itself).collect(),
        resumes: std::iter::once(ResumedBy::Request).chain(retry).collect(),
        limits,
    }
}

/// Whether a run with these limits, or a handler in it, is subject to `limit`.
const fn is_on(limit: Limit, limits: &RunLimits) -> bool {
    match limit {
        // Every handler has these limits, and every run the last one.
        Limit::HostCallTimeout
        | Limit::ScheduleToStartTimeout
        | Limit::Deadline
        | Limit::AbortTimeout => true,
        Limit::InactivityWarn => limits.inactivity_warn_ms.is_some(),
        Limit::InactivityTimeout => limits.inactivity_timeout_ms.is_some(),
        Limit::ProgressTimeout => limits.progress_timeout_ms.is_some(),
        Limit::RunTimeout => limits.run_timeout_ms.is_some(),
        Limit::ExecutionTimeout => limits.execution_timeout_ms.is_some(),
        Limit::MaxLoopIterations => limits.max_loop_iterations.is_some(),
        Limit::MaxHandlerRuns => limits.max_handler_runs.is_some(),
        Limit::RepeatThreshold => limits.repeat_threshold.is_some(),
    }
}

/// Maps specs by their types.
///
/// # Errors
/// The type that two specs have.
pub(crate) fn by_type(specs: Vec<Arc<Spec>>) -> Result<BTreeMap<String, Arc<Spec>>, String> {
    let mut types: BTreeMap<String, Arc<Spec>> = BTreeMap::new();
    for spec in specs {
        let (name, digest) = (spec.name.to_string(), spec.digest);
        let before = types.insert(name.clone(), spec);
        if before.is_some_and(|before| before.digest != digest) {
            return Err(name);
        }
    }
    Ok(types)
}
