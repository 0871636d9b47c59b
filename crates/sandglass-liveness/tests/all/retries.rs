//! Retries: the same dispatch once more, at the request of a named operator, if the entity
//! can take however it ends.

use std::sync::Arc;

use sandglass_liveness::entity::ENDED_DISPATCHES_MAX;
use sandglass_liveness::{Command, Input, Refusal, Retry};
use sandglass_model::{Dispatched, Event, Object, Outcome, Retried};
use serde_json::json;

use crate::generated::{busy, divergences};
use crate::session::{Life, completed, end_of_run, timed_out_of};

fn retried(budget_ms: Option<u64>) -> Retried {
    Retried { by: "ops".to_owned(), reason: "the partner is back".to_owned(), budget_ms }
}

impl Life {
    fn retry(
        &mut self,
        dispatched: &Dispatched,
        retried: Retried,
    ) -> Result<Vec<Command>, Refusal> {
        self.retry_after(None, dispatched, retried)
    }

    fn retry_after(
        &mut self,
        expected_attempt: Option<u32>,
        dispatched: &Dispatched,
        retried: Retried,
    ) -> Result<Vec<Command>, Refusal> {
        let dispatched = Box::new(dispatched.clone());
        self.tell(Input::Retry(Box::new(Retry { dispatched, retried, expected_attempt })))
    }

    fn fetch(&mut self) -> Dispatched {
        let params = Object::from([("text".to_owned(), json!("as asked"))]);
        match &self.act_with("Fetch", params).expect("taken")[..] {
            [Command::Start(dispatched)] => (**dispatched).clone(),
            other => panic!("one start, not {other:?}"),
        }
    }

    fn ends(&mut self, dispatched: &Dispatched, outcome: Outcome) {
        let end = end_of_run(dispatched, outcome);
        self.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    }

    fn times_out(&mut self, dispatched: &Dispatched) {
        self.ends(dispatched, timed_out_of(&Self::name(), dispatched));
    }
}

#[test]
fn a_retry_is_the_same_dispatch_once_more_with_who_and_why() {
    let mut life = Life::of(&busy());
    let first = life.fetch();
    life.times_out(&first);
    let state = Object::from([("text".to_owned(), json!("changed since"))]);
    life.act_with("Note", state).expect("taken");
    let commands = life.retry(&first, retried(Some(60_000))).expect("it has ended");
    let [Command::Start(second)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((second.dispatch, second.attempt), (first.dispatch, 2));
    assert_eq!((second.budget_ms, second.budget_defaulted), (60_000, false));
    assert_eq!((&second.params, &second.config), (&first.params, &first.config));
    assert_eq!(second.variables["note"], json!("changed since"), "it sees the entity as it is");
    assert_eq!(second.trace.trace_id, first.trace.trace_id);
    assert_ne!(second.trace.span_id, first.trace.span_id);
    assert_eq!(second.retried, Some(retried(Some(60_000))));
    assert!(life.entity().idle_timer(&life.spec).is_none(), "it is in flight");
    let second = (**second).clone();
    life.times_out(&second);
    let commands = life.retry(&first, retried(None)).expect("it has ended again");
    let [Command::Start(third)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((third.attempt, third.budget_ms), (3, 60_000), "that of the last attempt");
    let third = (**third).clone();
    life.ends(&third, completed(None));
    assert_eq!(
        life.retry(&first, retried(None)),
        Err(Refusal::RetryOfSuccess { dispatch: first.dispatch })
    );
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_retry_of_an_attempt_that_is_not_the_last_is_refused() {
    let mut life = Life::of(&busy());
    let first = life.fetch();
    let dispatch = first.dispatch;
    life.times_out(&first);
    let since = |last| Err(Refusal::NotTheLastAttempt { dispatch, expected: 1, last });
    let commands = life.retry_after(Some(1), &first, retried(None)).expect("it was the last");
    let [Command::Start(second)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(life.retry_after(Some(1), &first, retried(None)), since(2), "in flight again");
    life.times_out(second);
    assert_eq!(life.retry_after(Some(1), &first, retried(None)), since(2), "ended again");
    let unheard_of = life.retry_after(Some(3), &first, retried(None));
    assert!(matches!(unheard_of, Err(Refusal::NotTheLastAttempt { expected: 3, .. })));
    let commands = life.retry_after(Some(2), &first, retried(None)).expect("it was the last");
    let [Command::Start(third)] = &commands[..] else { panic!("{commands:?}") };
    life.ends(third, completed(None));
    assert_eq!(life.retry_after(Some(1), &first, retried(None)), since(3), "and with success");
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn what_is_in_flight_unknown_or_forgotten_is_not_retried() {
    let mut life = Life::of(&busy());
    let first = life.fetch();
    let dispatch = first.dispatch;
    let refused = life.retry(&first, retried(None));
    assert_eq!(refused, Err(Refusal::StillInFlight { dispatch }));
    life.times_out(&first);
    let mut other = first.clone();
    other.params.insert("amount".to_owned(), json!(1_000_000));
    let refused = life.retry(&other, retried(None));
    assert_eq!(refused, Err(Refusal::NothingToRetry { dispatch }), "not what was asked for");
    for _ in 0..ENDED_DISPATCHES_MAX {
        let next = life.fetch();
        life.times_out(&next);
    }
    let refused = life.retry(&first, retried(None));
    assert_eq!(refused, Err(Refusal::NothingToRetry { dispatch }), "too long ago");
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_state_that_takes_not_all_endings_refuses_and_names_them() {
    let mut life = Life::of(&busy());
    life.start();
    let first = (*life.entity().in_flight()[0].dispatched).clone();
    life.act("Pause").expect("taken");
    life.times_out(&first);
    let refused = life.retry(&first, retried(None)).expect_err("Idle takes no end of run_tools");
    let Refusal::EndingsNotTaken { integration, state, missing } = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!((integration.as_str(), state.as_str()), ("run_tools", "Idle"));
    for ending in ["on_failure = Fail", "on_timeout = HandlerTimedOut", "on_cancelled = Stop"] {
        assert!(missing.contains(ending), "{ending} in {missing}");
    }
}

#[test]
fn a_retry_by_nobody_or_with_an_impossible_budget_is_refused() {
    let mut life = Life::of(&busy());
    let first = life.fetch();
    life.times_out(&first);
    let log = life.log.clone();
    for by in [String::new(), "a\u{1b}[31m".to_owned(), "x".repeat(200)] {
        let refused = life.retry(&first, Retried { by, ..retried(None) });
        assert!(matches!(refused, Err(Refusal::BadRetry(_))), "{refused:?}");
    }
    for budget_ms in [0, u64::MAX] {
        let refused = life.retry(&first, retried(Some(budget_ms)));
        assert_eq!(refused, Err(Refusal::BadBudget { budget_ms }));
    }
    let long = Retried { reason: "x".repeat(5_000), ..retried(None) };
    assert!(matches!(life.retry(&first, long), Err(Refusal::TooLarge { .. })));
    assert_eq!(life.log, log);
}

#[test]
fn a_retry_that_was_not_decided_like_this_is_a_divergence() {
    type Forge = fn(&mut Dispatched);
    let forgeries: [(&str, Forge); 5] = [
        ("attempt", |dispatched| dispatched.attempt = 3),
        ("budget", |dispatched| dispatched.budget_ms = 3),
        ("params", |dispatched| dispatched.params.clear()),
        ("module", |dispatched| dispatched.module = "other".to_owned()),
        ("nobody", |dispatched| dispatched.retried = None),
    ];
    for (what, forge) in forgeries {
        let mut life = Life::of(&busy());
        let first = life.fetch();
        life.times_out(&first);
        life.retry(&first, retried(Some(60_000))).expect("it has ended");
        let last = life.log.last_mut().expect("records");
        let Event::Dispatched(dispatched) = &mut last.event else { panic!("{last:?}") };
        forge(dispatched);
        assert!(divergences(&life.log) >= 1, "{what}");
    }
}
