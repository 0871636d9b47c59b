//! Random lives: the guarantees hold for any inputs in any order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sandglass_liveness::session::{Due, Elapsed, LimitSettings, Watched, evaluate};
use sandglass_liveness::{Entity, Fold, Input, Replay, Resume, Retry, Terms, TimedOutCall};
use sandglass_model::{
    AskUntil, Asked, Cancellation, CancelledBy, DeadlineOwner, DispatchId, Dispatched, EntityRef,
    Event, Failure, FailureKind, Limit, LimitBreach, LimitKind, Object, Outcome, Overrun, Record,
    Rejection, RejectionKind, Retried, RulesVersion, RunLimits, Sequence, StopCause,
    TransitionCause, Trap, TrapKind, WallTime,
};
use serde_json::json;

use crate::session::{Life, SESSION, ask_of, completed, end_of_run, timed_out_of};

/// One step of a random life, in terms of what is there when it comes.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Act(usize),
    /// An action is requested with a key, perhaps a second time.
    ActOnce {
        action: usize,
        key: usize,
    },
    End {
        nth: usize,
        outcome: usize,
        attempt_off: u32,
    },
    Idle {
        early: bool,
    },
    Due(u64),
    Signal {
        name: usize,
        from: usize,
    },
    Wait(i64),
    /// It is another entity's turn.
    Turn,
    /// A handler asks the entity whose turn it is.
    Ask {
        nth: usize,
        action: usize,
        settled: bool,
        left_ms: u64,
    },
    /// Its run is stopped by one of the causes.
    Stop(usize),
    /// It is resumed with these limits.
    Resume(usize),
    /// The next limit that is measured comes due, or arrives too early.
    Limit {
        early: bool,
    },
    /// This limit is said to be breached by far.
    LimitOf(Limit),
    /// An operator retries a handler.
    Retry {
        nth: usize,
        budget_ms: Option<u64>,
    },
    /// A host call of a handler in flight has taken so much more than its limit, in milliseconds.
    CallTimedOut {
        nth: usize,
        over_ms: u64,
    },
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0usize..10).prop_map(Step::Act),
        2 => (0usize..4, 0usize..3).prop_map(|(action, key)| Step::ActOnce { action, key }),
        3 => (0usize..4, 0..OUTCOMES, 0u32..5)
            .prop_map(|(nth, outcome, off)| Step::End { nth, outcome, attempt_off: off / 4 }),
        1 => any::<bool>().prop_map(|early| Step::Idle { early }),
        1 => (0u64..4).prop_map(Step::Due),
        1 => (0usize..3, 0usize..3).prop_map(|(name, from)| Step::Signal { name, from }),
        1 => (0i64..400_000).prop_map(Step::Wait),
        1 => Just(Step::Turn),
        2 => (0usize..4, 0usize..10, any::<bool>(), 0u64..4_000)
            .prop_map(|(nth, action, settled, left_ms)| Step::Ask { nth, action, settled, left_ms }),
        2 => (0usize..6, proptest::option::of(0u64..9_000))
            .prop_map(|(nth, budget_ms)| Step::Retry { nth, budget_ms }),
        1 => (0usize..3).prop_map(Step::Stop),
        2 => (0usize..3).prop_map(Step::Resume),
        2 => any::<bool>().prop_map(|early| Step::Limit { early }),
        1 => (0usize..3, 0u64..3).prop_map(|(nth, over_ms)| Step::CallTimedOut { nth, over_ms }),
    ];
    proptest::collection::vec(step, 0..40)
}

/// A spec in which much can happen: staying, leaving, keeping, rerunning.
pub(crate) fn busy() -> String {
    let extra = r#"
[[action]]
name = "Fetch"
from = ["Idle", "Executing"]
effect = ["trigger fetch", "increment rounds", "schedule Fetch 5"]

[[action]]
name = "Fetched"
from = ["Idle", "Executing"]
guard = "rounds < 6 or note == 'none'"

[[action]]
name = "FetchLost"
from = ["Idle", "Executing"]

[[integration]]
name = "fetch"
module = "fetch"
deadline = "2s"
deadline_param = "text"
on_success = "Fetched"
on_failure = "FetchLost"
on_timeout = "FetchLost"
keep_on_exit = true
on_crash = "rerun"
"#;
    format!("{SESSION}{extra}")
}

/// The same as a session, whose fetches are counted as `counted` says.
fn limited(counted: &str) -> String {
    let limits = r#"
[limits]
inactivity_warn = "20s"
inactivity_timeout = "1000s"
progress_timeout = "600s"
run_timeout = "2000s"
max_loop_iterations = 3
max_handler_runs = 8
repeat_threshold = 2
[limits.retry]
progress_timeout = 1
"#;
    let fetch = "name = \"fetch\"\nmodule";
    format!("{}{limits}", busy().replace(fetch, &format!("{counted}\n{fetch}")))
}

/// What a run is held by: as the spec says, by fewer repeats, and by nothing.
fn run_limits(which: usize, life: &Life) -> RunLimits {
    let none = LimitSettings::default();
    let declared = life.spec.limits.as_ref().map(|limits| limits.settings).unwrap_or_default();
    let limits = declared.effective(&none, &none);
    match which {
        0 => limits,
        1 => RunLimits { repeat_threshold: Some(1), max_handler_runs: Some(1), ..limits },
        _ => RunLimits { repeat_threshold: None, run_timeout_ms: None, ..limits },
    }
}

/// How long ago the anchors of a session, or of handlers without one, are by the wall clock.
fn elapsed(watched: Watched<'_>, now: i64) -> Elapsed {
    let mut elapsed = Elapsed::default();
    for (anchor, _, at) in watched.anchors() {
        elapsed.set(anchor, WallTime::from_millis(now).since(at));
    }
    elapsed
}

/// Lets time pass until the next limit is due, or just before that; returns the input that is due
/// then.
fn limit_due(life: &mut Life, early: bool) -> Option<Input> {
    let has_work = !life.entity().is_settled();
    let watched = life.entity().watched()?;
    let input = |due: Due| {
        let Due { limit, observed_ms } = due;
        Input::LimitDue { limit, observed_ms, doing: None, active: None }
    };
    let found = evaluate(watched, has_work, &elapsed(watched, life.now));
    if let Some(due) = found.due {
        return Some(input(due));
    }
    let next = found.next?;
    let wait = i64::try_from(next.as_nanos().div_ceil(1_000_000)).expect("soon");
    let now = life.now + wait - i64::from(early);
    let found = evaluate(watched, has_work, &elapsed(watched, now));
    assert_eq!(found.due.is_none(), early, "nothing is breached by what it allows");
    life.now = now;
    found.due.map(input)
}

const ACTIONS: [&str; 10] = [
    "ProcessToolCalls",
    "Note",
    "Pause",
    "Later",
    "Finish",
    "Fail",
    "HandlerTimedOut",
    "Fetch",
    "Fetched",
    "Nonsense",
];

/// How many outcomes [`outcomes`] knows.
pub(crate) const OUTCOMES: usize = 13;

fn outcomes(which: usize, entity: &EntityRef, dispatched: &Dispatched) -> Outcome {
    match which {
        0 => completed(Some("Finish")),
        1 => completed(Some("Pause")),
        2 => completed(None),
        3 => timed_out_of(entity, dispatched),
        4 => Outcome::Interrupted,
        5 => Outcome::Cancelled(Cancellation {
            by: CancelledBy::Operator,
            reason: "because".to_owned(),
            dying_span: None,
        }),
        6 => Outcome::Failed(Failure {
            kind: FailureKind::GuestFailure,
            message: "no".to_owned(),
            result: Some(json!(1)),
        }),
        // Actions that are not declared, not taken in the state, and refused for a parameter.
        7 => completed(Some("Nonsense")),
        8 => completed(Some("Later")),
        9 => completed(Some("Note")),
        10 => Outcome::Trapped(Trap {
            kind: TrapKind::Unreachable,
            message: "unreachable".to_owned(),
        }),
        11 => Outcome::Rejected(Rejection {
            kind: RejectionKind::HostUnavailable,
            message: "nothing runs it".to_owned(),
        }),
        _ => Outcome::Limit(LimitBreach { kind: LimitKind::WasmMemory, limit: 1, observed: 2 }),
    }
}

/// Lives through `steps`; what is refused changes nothing.
pub(crate) fn live(steps: &[Step]) -> Life {
    let mut life = Life::of(&busy());
    live_on(&mut life, steps);
    life
}

/// A session whose fetches are counted in one of the ways that there are, in its first run.
pub(crate) fn limited_life(rules: RulesVersion, counted: usize) -> Life {
    let source = limited(["", "turn = true", "continues = true"][counted]);
    let mut life = Life::under(&source, rules);
    let limits = run_limits(0, &life);
    life.tell(Input::Start { limits }).expect("a new session");
    life
}

/// The same, having lived through `steps`.
fn live_as_session(steps: &[Step], counted: usize) -> Life {
    let mut life = limited_life(RulesVersion::CURRENT, counted);
    live_on(&mut life, steps);
    life
}

pub(crate) fn live_on(life: &mut Life, steps: &[Step]) {
    for step in steps {
        let before = (life.entity().clone(), life.log.len());
        let taken = match step {
            Step::Wait(millis) => {
                life.now += millis;
                continue;
            }
            Step::Act(which) => {
                let text = if which % 2 == 0 { json!("none") } else { json!(7) };
                life.act_with(ACTIONS[*which], Object::from([("text".to_owned(), text)]))
            }
            Step::ActOnce { action, key } => {
                let key = format!("key-{key}").parse().expect("valid");
                let terms = Terms { expected: None, key: Some(key) };
                life.request(ACTIONS[*action], Object::new(), terms)
            }
            Step::End { nth, outcome, attempt_off } => {
                let runs = life.entity().in_flight();
                let Some(run) = runs.get(*nth) else { continue };
                let asked = run.dispatched.clone();
                let outcome = outcomes(*outcome, &life.entity().entity, &asked);
                let mut end = end_of_run(&asked, outcome);
                end.attempt += attempt_off;
                if *nth == 1 {
                    let (allowed, took) = (Duration::from_millis(5), Duration::from_millis(6));
                    let once = Overrun::once(Limit::HostCallTimeout, allowed, took);
                    end.overruns = vec![
                        once.clone(),
                        Overrun { host_call: Some("host_http_call".into()), times: 2, ..once },
                    ];
                }
                life.tell(Input::HandlerEnded(Arc::new(end)))
            }
            Step::Turn => {
                let is_first = life.entity().entity == Life::name();
                life.turn_to(if is_first { Life::other() } else { Life::name() });
                continue;
            }
            Step::Ask { nth, action, settled, left_ms } => {
                let askers = life.entities().flat_map(|entity| {
                    entity.in_flight().into_iter().map(|run| (&entity.entity, &run.dispatched))
                });
                let Some((by, dispatched)) = askers.into_iter().nth(*nth) else { continue };
                let until = if *settled { AskUntil::Settled } else { AskUntil::Transition };
                let asked = ask_of(by, dispatched, until);
                let remaining_ms = asked.remaining_ms.min(*left_ms);
                life.asked(ACTIONS[*action], Asked { remaining_ms, ..asked })
            }
            Step::Retry { nth, budget_ms } => {
                let who = life.entity().entity.clone();
                let of_it = life.log.iter().filter(|record| record.entity.as_ref() == Some(&who));
                let mut dispatched = of_it.filter_map(|record| match &record.event {
                    Event::Dispatched(dispatched) => Some(dispatched.clone()),
                    _ => None,
                });
                let Some(dispatched) = dispatched.nth(*nth) else { continue };
                let by = "ann".to_owned();
                let retried = Retried { by, reason: String::new(), budget_ms: *budget_ms };
                let retry = Retry { dispatched, retried, expected_attempt: None };
                life.tell(Input::Retry(Box::new(retry)))
            }
            Step::CallTimedOut { nth, over_ms } => {
                let runs = life.entity().in_flight();
                let Some(run) = runs.get(*nth) else { continue };
                life.tell(Input::CallTimedOut(TimedOutCall {
                    dispatch: run.dispatched.dispatch,
                    host_call: "host_http_call".to_owned(),
                    since: WallTime::from_millis(life.now),
                    threshold_ms: 5,
                    observed_ms: 5 + over_ms,
                }))
            }
            Step::Idle { early } => {
                let timer = life.entity().idle_timer(&life.spec);
                let idle_ms = timer.map_or(0, |timer| timer.after_ms - u64::from(*early));
                let generation = timer.map_or(0, |timer| timer.generation);
                life.tell(Input::StateIdle { generation, idle_ms })
            }
            Step::Stop(which) => {
                let (by, reason) = ("ann".to_owned(), String::new());
                let cause = match which {
                    0 => StopCause::Operator { by, reason },
                    1 => StopCause::Parent { parent: None, reason },
                    _ => StopCause::Shutdown,
                };
                life.tell(Input::Stop { run_seq: None, cause })
            }
            Step::Resume(which) => {
                let limits = run_limits(*which, life);
                let (by, reason, expected_run) = ("ann".to_owned(), String::new(), None);
                let resume = Resume { by, reason, expected_run, limits };
                life.tell(Input::Resume(Box::new(resume)))
            }
            Step::Limit { early } => {
                let Some(input) = limit_due(life, *early) else { continue };
                life.tell(input)
            }
            Step::LimitOf(limit) => {
                let observed_ms = u64::from(u32::MAX);
                life.tell(Input::LimitDue { limit: *limit, observed_ms, doing: None, active: None })
            }
            Step::Due(schedule) => life.tell(Input::ScheduleDue { schedule: *schedule }),
            Step::Signal { name, from } => {
                let names = ["PartnerReplied", "progress", "Other"];
                let from = match from {
                    0 => None,
                    1 => Some(Life::name()),
                    _ => Some("Session/two".parse().expect("a valid name")),
                };
                let name = names[*name].to_owned();
                life.tell(Input::Signal { name, from, dispatch: None, payload: json!(1) })
            }
        };
        if taken.is_err() {
            assert_eq!(before, (life.entity().clone(), life.log.len()), "{step:?}");
        }
    }
}

/// Replays a log, and answers how many divergences there are.
pub(crate) fn divergences(log: &[Record]) -> u64 {
    let mut replay = Replay::new();
    log.iter().for_each(|record| replay.feed(record));
    replay.finish().divergence_count
}

proptest! {
    #[test]
    fn state_is_the_fold_of_the_log_after_any_prefix(steps in steps(), cut in any::<prop::sample::Index>()) {
        let life = live(&steps);
        let cut = cut.index(life.log.len()) + 1;
        let mut fold = Fold::new();
        let mut by_hand: Option<Entity> = None;
        for record in &life.log[..cut] {
            prop_assert_eq!(fold.apply(record), Ok(()));
            if record.entity != Some(Life::name()) {
                continue;
            }
            match &mut by_hand {
                Some(entity) => entity.apply(&life.spec, &record.event, record.at),
                None => by_hand = Entity::created(Life::name(), &record.event, record.at),
            }
        }
        prop_assert_eq!(fold.entity(&Life::name()), by_hand.as_ref());
        for record in &life.log[cut..] {
            prop_assert_eq!(fold.apply(record), Ok(()));
        }
        for entity in life.entities() {
            prop_assert_eq!(fold.entity(&entity.entity), Some(entity));
        }
    }

    #[test]
    fn a_snapshot_at_any_position_leads_to_the_same_entity_as_its_records(
        steps in steps(),
        cut in any::<prop::sample::Index>(),
    ) {
        let log = live(&steps).log;
        let (before, behind) = log.split_at(cut.index(log.len()) + 1);
        let mut whole = Fold::new();
        before.iter().for_each(|record| whole.apply(record).expect("it fits"));
        let mut from_snapshots = Fold::of(whole.specs().clone());
        for entity in whole.entities() {
            // What is in flight has no snapshot, and goes on from its records.
            let snapshot = entity.to_snapshot();
            prop_assert_eq!(snapshot.is_some(), entity.is_settled());
            let kept = snapshot.map(|text| Entity::of_snapshot(&text).expect("it was written so"));
            prop_assert_eq!(kept.as_ref(), entity.is_settled().then_some(entity));
            prop_assert!(from_snapshots.put(kept.unwrap_or_else(|| entity.clone())));
        }
        for record in behind {
            prop_assert_eq!(whole.apply(record), from_snapshots.apply(record));
        }
        prop_assert!(whole.entities().eq(from_snapshots.entities()));
    }

    #[test]
    fn a_snapshot_is_compared_with_the_records_before_it(
        steps in steps(),
        cut in any::<prop::sample::Index>(),
        rounds in 100u32..,
    ) {
        let log = live(&steps).log;
        let cut = cut.index(log.len()) + 1;
        let mut fold = Fold::new();
        log[..cut].iter().for_each(|record| fold.apply(record).expect("it fits"));
        let replayed = |alter: &dyn Fn(&mut Entity)| {
            let mut replay = Replay::new();
            log[..cut].iter().for_each(|record| replay.feed(record));
            for entity in fold.entities() {
                let mut altered = entity.clone();
                alter(&mut altered);
                let text = altered.to_snapshot();
                text.into_iter().for_each(|text| replay.snapshot(&entity.entity, &text));
            }
            log[cut..].iter().for_each(|record| replay.feed(record));
            let summary = replay.finish();
            (summary.snapshots, summary.divergence_count)
        };
        let settled = fold.entities().filter(|entity| entity.is_settled()).count() as u64;
        prop_assert_eq!(replayed(&|_| {}), (settled, 0));
        let forgeries: [&dyn Fn(&mut Entity); 3] = [
            &|entity| drop(entity.variables.insert("rounds".to_owned(), json!(rounds))),
            &|entity| entity.sequence = entity.sequence.next(),
            &|entity| entity.state.push('x'),
        ];
        for forge in forgeries {
            prop_assert_eq!(replayed(forge), (settled, settled));
        }
    }

    #[test]
    fn the_state_timer_never_runs_while_a_handler_is_in_flight(steps in steps()) {
        let life = live(&steps);
        if !life.entity().is_settled() {
            prop_assert_eq!(life.entity().idle_timer(&life.spec), None);
        }
    }

    #[test]
    fn every_end_is_recorded_once_and_with_its_transition(steps in steps()) {
        let life = live(&steps);
        let dispatched = life.log.iter().filter(|r| matches!(r.event, Event::Dispatched(_))).count();
        let ended = life.log.iter().filter(|r| matches!(r.event, Event::Ended(_))).count();
        let in_flight: usize = life.entities().map(Entity::in_flight_count).sum();
        prop_assert_eq!(dispatched, ended + in_flight);
    }

    #[test]
    fn a_generated_life_replays_without_a_divergence(steps in steps()) {
        let life = live(&steps);
        prop_assert_eq!(divergences(&life.log), 0);
    }

    #[test]
    fn a_generated_session_replays_without_a_divergence(steps in steps(), counted in 0usize..3) {
        let life = live_as_session(&steps, counted);
        prop_assert_eq!(divergences(&life.log), 0);
    }

    #[test]
    fn each_run_of_a_session_stops_once_and_has_the_next_number(steps in steps(), counted in 0usize..3) {
        let life = live_as_session(&steps, counted);
        let of_it = life.log.iter().filter(|record| record.entity == Some(Life::name()));
        let (mut run, mut stopping, mut is_over) = (0, None, true);
        let mut in_flight = BTreeSet::new();
        for record in of_it {
            match &record.event {
                Event::RunStarted { run_seq, .. } => {
                    prop_assert!(is_over && *run_seq == run + 1, "run {run_seq} behind {run}");
                    (run, stopping, is_over) = (*run_seq, None, false);
                }
                Event::RunStopping(stop) => {
                    prop_assert!(!is_over && stop.run_seq == run && stopping.is_none());
                    stopping = Some(stop.cause.clone());
                }
                Event::RunStopped(stopped) => {
                    prop_assert!(!is_over && stopped.run_seq == run && in_flight.is_empty());
                    // Or it came to its end by itself in the time that it was given for that.
                    let has_completed =
                        stopped.cause == StopCause::Completion && stopped.directive.is_none();
                    let is_first = stopping.as_ref().is_none_or(|first| *first == stopped.cause);
                    prop_assert!(is_first || has_completed, "{stopped:?}");
                    is_over = true;
                }
                Event::LimitBreached(breach) => prop_assert!(breach.observed > breach.threshold),
                Event::Dispatched(dispatched) => {
                    in_flight.insert(dispatched.dispatch);
                }
                Event::Ended(ended) => {
                    in_flight.remove(&ended.dispatch);
                }
                Event::StateIdle { .. } | Event::ScheduleDue { .. } => {
                    prop_assert!(stopping.is_none() && !is_over, "{:?}", record.event);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_session_is_what_its_records_or_its_snapshot_make_it(steps in steps(), counted in 0usize..3) {
        let life = live_as_session(&steps, counted);
        let mut fold = Fold::new();
        life.log.iter().for_each(|record| fold.apply(record).expect("it fits"));
        for entity in life.entities() {
            prop_assert_eq!(fold.entity(&entity.entity), Some(entity));
            if let Some(text) = entity.to_snapshot() {
                let kept = Entity::of_snapshot(&text).expect("it was written so");
                prop_assert_eq!(&kept, entity);
            }
        }
    }

    #[test]
    fn no_jumbled_journal_makes_a_replay_panic(
        steps in steps(),
        jumble in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0usize..13), 0..20),
    ) {
        let mut log = live(&steps).log;
        for (from, to, how) in jumble {
            let mut moved = log[from.index(log.len())].clone();
            falsify(&mut moved, how);
            let to = to.index(log.len());
            if how == 12 {
                log[to] = moved;
            } else {
                log.insert(to, moved);
            }
        }
        divergences(&log);
    }

    #[test]
    fn any_changed_field_is_a_divergence(steps in steps(), which in any::<prop::sample::Index>(), how in 0usize..12) {
        let mut life = live(&steps);
        let which = which.index(life.log.len());
        if falsify(&mut life.log[which], how) {
            prop_assert!(divergences(&life.log) >= 1, "{:?}", life.log[which]);
        }
    }
}

/// Changes one field of a record; false where it has no such field.
fn falsify(record: &mut Record, how: usize) -> bool {
    let name = || "Forged".to_owned();
    match (&mut record.event, how) {
        (_, 0) => record.sequence.0 += 1,
        (_, 1) => record.position.0 += 1,
        (Event::Transition { action, .. }, 2) => *action = name(),
        (Event::Transition { to, .. }, 3) => *to = name(),
        (Event::Transition { from, .. }, 4) => *from = name(),
        (Event::Transition { variables, .. } | Event::Created { variables, .. }, 5) => {
            variables.insert("rounds".to_owned(), json!(999));
        }
        (Event::Created { state, .. } | Event::StateIdle { state, .. }, 3) => *state = name(),
        (Event::Ended(ended), 2) => {
            ended.decision = sandglass_model::Decision::Take { action: name() };
        }
        (Event::Ended(ended), 3) => ended.attempt += 1,
        (Event::Dispatched(dispatched), 2) => dispatched.budget_ms += 1,
        (Event::Dispatched(dispatched), 3) => dispatched.attempt += 1,
        (Event::Dispatched(dispatched), 4) => dispatched.integration = name(),
        (Event::Scheduled { due, .. }, 2) => {
            *due = due.after(Duration::from_millis(1));
        }
        (Event::Scheduled { action, .. } | Event::ScheduleDue { action, .. }, 3) => {
            *action = name()
        }
        (Event::ScheduleDue { taken, .. } | Event::StateIdle { taken, .. }, 4) => *taken = !*taken,
        (Event::StateIdle { occurrence, .. }, 5) => *occurrence += 1,
        (Event::Signal { resets_idle, .. }, 2) => *resets_idle = !*resets_idle,
        (Event::SpecRegistered { source, .. }, 2) => source.push('#'),
        (Event::Transition { idempotency: Some(one), .. }, 6) => {
            one.key = "forged".parse().expect("valid");
        }
        (Event::Transition { idempotency: Some(one), .. }, 7) => one.expected = Some(Sequence(99)),
        (Event::Transition { cause: TransitionCause::Asked(asked), .. }, how) => match how {
            6 => asked.depth += 1,
            7 => asked.remaining_ms = u64::MAX,
            8 => asked.dispatch = DispatchId::from_bytes([0xee; 16]),
            9 => asked.attempt += 1,
            10 => asked.by = "Session/three".parse().expect("a valid name"),
            _ => return false,
        },
        (Event::Dispatched(dispatched), 5) => {
            dispatched.owner = match dispatched.owner {
                DeadlineOwner::Handler => DeadlineOwner::Parent,
                DeadlineOwner::Parent => DeadlineOwner::Handler,
            };
        }
        (Event::Dispatched(dispatched), 6) => {
            let forged = DispatchId::from_bytes([0xee; 16]);
            dispatched.asker = dispatched.asker.xor(Some(forged));
        }
        (Event::Dispatched(dispatched), 7) => dispatched.depth += 1,
        (Event::Dispatched(dispatched), 8) => {
            let budget_ms = Some(dispatched.budget_ms + 1);
            let by = "forger".to_owned();
            dispatched.retried = Some(Retried { by, reason: String::new(), budget_ms });
        }
        (Event::Dispatched(dispatched), 9) => {
            dispatched.params.insert("forged".to_owned(), json!(true));
        }
        (Event::Dispatched(dispatched), 10) => return dispatched.retried.take().is_some(),
        (Event::Dispatched(dispatched), 11) => dispatched.state = name(),
        _ => return false,
    }
    true
}
