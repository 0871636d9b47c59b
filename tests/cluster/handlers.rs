//! What handlers did: their attempts by the records, and their effects by the effect server.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::{Decision, DispatchId, OutcomeKind, WallTime};

use crate::history::{Effect, Kind, Observed, Silence, Violation};
use crate::verify::{Attempt, CONSEQUENCES_WITHIN, EFFECT_GRACE, Index, Rules};

pub(crate) fn verify(
    observed: &Observed,
    index: &Index<'_>,
    rules: &Rules,
    found: &mut Vec<Violation>,
) {
    let mut effects: BTreeMap<(DispatchId, u32), Vec<&Effect>> = BTreeMap::new();
    for effect in &observed.effects {
        effects.entry((effect.dispatch, effect.attempt)).or_default().push(effect);
    }
    for (dispatch, attempts) in &index.attempts {
        in_order(*dispatch, attempts, rules, found);
        for attempt in attempts {
            let effects = effects.remove(&(*dispatch, attempt.number)).unwrap_or_default();
            ended_well(*dispatch, attempt, observed, found);
            right_effects(observed, *dispatch, attempt, &effects, rules, found);
        }
    }
    for (id, effects) in effects {
        let what = format!("{id:?}: {effects:?}");
        found.push(Violation::new(Kind::UnrecordedEffect, what));
    }
    under_leases(observed, index, found);
}

/// No attempt but the first begins, except one after a crash if the spec allows it.
fn in_order(
    dispatch: DispatchId,
    attempts: &[Attempt<'_>],
    rules: &Rules,
    found: &mut Vec<Violation>,
) {
    let mut before: Option<&Attempt<'_>> = None;
    for attempt in attempts {
        let may = match before {
            None => attempt.number == 1,
            Some(before) => {
                let is_rerun = before.end.is_some_and(|end| *end.decision == Decision::Rerun);
                is_rerun
                    && attempt.number == before.number + 1
                    && attempt.integration == rules.reruns
            }
        };
        if !may {
            let what = format!("{dispatch}: {attempt:?} after {before:?}");
            found.push(Violation::new(Kind::FalseAttempt, what));
        }
        before = Some(attempt);
    }
}

fn ended_well(
    dispatch: DispatchId,
    attempt: &Attempt<'_>,
    observed: &Observed,
    found: &mut Vec<Violation>,
) {
    let kind = match attempt.end.map(|end| (end.outcome, end.at)) {
        None => Kind::NeverEnded,
        Some((OutcomeKind::Completed, _)) => return,
        Some((OutcomeKind::Interrupted, at)) => {
            let explains = observed.faults.iter().any(|fault| {
                fault.may_interrupt
                    && fault.begun <= at
                    && at <= fault.ended.after(CONSEQUENCES_WITHIN)
            });
            if explains {
                return;
            }
            Kind::Interrupted
        }
        Some(_) => Kind::UnexpectedEnd,
    };
    found.push(Violation::new(kind, format!("{dispatch}: {attempt:?}")));
}

fn right_effects(
    observed: &Observed,
    dispatch: DispatchId,
    attempt: &Attempt<'_>,
    effects: &[&Effect],
    rules: &Rules,
    found: &mut Vec<Violation>,
) {
    let mut report = |kind, what: String| {
        let id = format!("{dispatch}, attempt {}", attempt.number);
        found.push(Violation::new(kind, format!("{id}: {what}")));
    };
    let lives: BTreeSet<_> = effects.iter().map(|effect| effect.life).collect();
    if lives.len() > 1 {
        report(Kind::SplitAttempt, format!("{effects:?}"));
    }
    let calls: BTreeSet<u32> = effects.iter().map(|effect| effect.call).collect();
    if calls.len() < effects.len() {
        report(Kind::RepeatedEffect, format!("{effects:?}"));
    }
    let Some(end) = attempt.end else { return };
    let is_complete = (1..=rules.calls).all(|call| calls.contains(&call));
    if end.outcome == OutcomeKind::Completed && !is_complete {
        report(Kind::MissingEffect, format!("{effects:?}"));
    }
    for effect in effects {
        if effect.at > end.at.after(EFFECT_GRACE)
            && !observed.was_frozen_in_call(effect, Some(attempt.at))
        {
            let what = format!("ended at {}: {effect:?} of {effects:?}", end.at);
            report(Kind::LateEffect, what);
        }
    }
}

/// No effect begins while its host has no lease.
fn under_leases(observed: &Observed, index: &Index<'_>, found: &mut Vec<Violation>) {
    let silences = observed.faults.iter().flat_map(|fault| &fault.silences);
    for Silence { host, from, to } in silences {
        for effect in &observed.effects {
            let is_silent = effect.life.host == *host && *from < effect.at && effect.at < *to;
            if is_silent && !observed.was_frozen_in_call(effect, began(index, effect)) {
                let what = format!("{}, silent from {from} to {to}: {effect:?}", effect.life);
                found.push(Violation::new(Kind::EffectWithoutLease, what));
            }
        }
    }
}

fn began(index: &Index<'_>, effect: &Effect) -> Option<WallTime> {
    let attempts = index.attempts.get(&effect.dispatch)?;
    attempts.iter().find(|one| one.number == effect.attempt).map(|attempt| attempt.at)
}
