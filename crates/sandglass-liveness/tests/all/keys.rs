//! Idempotency keys: a request that is sent again is recognized, and does nothing.

use proptest::prelude::*;
use sandglass_liveness::entity::KEYS_MAX;
use sandglass_liveness::session::default_limits;
use sandglass_liveness::{Entity, Input, Refusal, Replay, Terms};
use sandglass_model::{
    AskUntil, Event, Idempotency, Object, RequestDigest, RulesVersion, Sequence, StopCause,
    TransitionCause,
};
use serde_json::json;

use crate::generated::divergences;
use crate::session::{Life, SESSION, ask_of, completed};

fn terms(key: &str, expected: Option<u64>) -> Terms {
    let key = Some(key.parse().expect("a valid key"));
    Terms { expected: expected.map(Sequence), key }
}

fn taken_before(sequence: u64) -> Result<(), Refusal> {
    Err(Refusal::TakenBefore { sequence: Sequence(sequence) })
}

fn reused(sequence: u64) -> Result<(), Refusal> {
    Err(Refusal::KeyReused { sequence: Sequence(sequence) })
}

fn note(text: &str) -> Object {
    Object::from([("text".to_owned(), json!(text))])
}

impl Life {
    fn note(&mut self, key: &str, expected: Option<u64>) -> Result<(), Refusal> {
        self.request("Note", note("x"), terms(key, expected)).map(drop)
    }
}

#[test]
fn a_request_that_is_sent_again_is_recognized_and_changes_nothing() {
    for rules in RulesVersion::ALL {
        let mut life = Life::under(SESSION, rules);
        assert_eq!(life.note("a", Some(0)), Ok(()));
        assert_eq!(life.note("b", None), Ok(()));
        let before = (life.entity().clone(), life.log.len());
        assert_eq!(life.note("a", Some(0)), taken_before(1), "although it is at sequence 2");
        assert_eq!(life.note("b", None), taken_before(2));
        // Each part of a request makes another one.
        assert_eq!(life.note("a", None), reused(1));
        assert_eq!(life.note("a", Some(2)), reused(1));
        let other = life.request("Later", note("x"), terms("b", None)).map(drop);
        assert_eq!(other, reused(2));
        assert_eq!(life.request("Note", note("y"), terms("b", None)).map(drop), reused(2));
        assert_eq!((life.entity().clone(), life.log.len()), before);
        assert_eq!(divergences(&life.log), 0);
    }
}

#[test]
fn a_refused_request_remembers_nothing() {
    let mut life = Life::of(SESSION);
    let finish = |life: &mut Life| life.request("Finish", Object::new(), terms("a", None));
    for _ in 0..2 {
        let refused = finish(&mut life).map(drop);
        assert!(matches!(refused, Err(Refusal::NotTaken { .. })), "{refused:?}");
    }
    let expected = Sequence(7);
    assert_eq!(life.note("a", Some(7)), Err(Refusal::NotAtSequence { expected }));
    assert_eq!(life.note("a", None), Ok(()));
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_request_is_recognized_in_every_later_state_and_run() {
    let mut life = Life::of(SESSION);
    let start = |life: &mut Life| {
        life.request("ProcessToolCalls", Object::new(), terms("start", Some(0))).map(drop)
    };
    start(&mut life).expect("taken in Idle");
    assert_eq!(start(&mut life), taken_before(1), "while its handler is in flight");
    let dispatch = life.entity().in_flight()[0].dispatched.dispatch;
    life.end(dispatch, completed(Some("Finish"))).expect("in flight");
    assert!(life.entity().has_ended(&life.spec));
    assert_eq!(start(&mut life), taken_before(1), "after its end");
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_request_is_recognized_after_its_run_was_stopped() {
    let mut life = Life::of(SESSION);
    life.tell(Input::Start { limits: default_limits() }).expect("its first run");
    life.note("a", None).expect("taken");
    let cause = StopCause::Operator { by: "ann".to_owned(), reason: String::new() };
    life.tell(Input::Stop { run_seq: None, cause }).expect("it runs");
    assert_eq!(life.note("a", None), taken_before(1));
    assert!(matches!(life.note("b", None), Err(Refusal::RunStopped { .. })));
}

#[test]
fn the_last_keys_are_remembered_in_bounded_space() {
    let mut life = Life::of(SESSION);
    let key = |number: usize| format!("key-{number}");
    let many = 3 * KEYS_MAX;
    for number in 0..many {
        life.note(&key(number), None).expect("taken");
        // Requests without a key forget none.
        life.act_with("Note", note("y")).expect("taken");
    }
    let snapshot = life.entity().to_snapshot().expect("at rest");
    assert!(snapshot.len() < 12 << 10, "{} bytes", snapshot.len());
    assert!(!snapshot.contains("key-"), "keys are in it as digests");
    let first = many - KEYS_MAX;
    for number in first..many {
        let sequence = 2 * u64::try_from(number).expect("small") + 1;
        assert_eq!(life.note(&key(number), None), taken_before(sequence));
    }
    assert_eq!(life.note(&key(first - 1), None), Ok(()), "it is forgotten, so it is new");
    assert_eq!(life.note(&key(first), None), Ok(()), "it was forgotten for that one");
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn snapshots_contain_the_keys_and_those_without_keys_are_as_before() {
    let mut life = Life::of(SESSION);
    life.act_with("Note", note("y")).expect("taken");
    let without = life.entity().to_snapshot().expect("at rest");
    assert!(!without.contains("keys"), "{without}");
    life.note("a", None).expect("taken");
    let text = life.entity().to_snapshot().expect("at rest");
    let read = Entity::of_snapshot(&text).expect("as it was written");
    assert_eq!(read, *life.entity());
    life.entity = Some(read);
    assert_eq!(life.note("a", None), taken_before(2));
    let mut replay = Replay::new();
    life.log.iter().for_each(|record| replay.feed(record));
    replay.snapshot(&Life::name(), &text);
    replay.snapshot(&Life::name(), &text.replace("\"keys\"", "\"keyz\""));
    let divergences = replay.finish().divergences;
    assert_eq!(divergences.len(), 1, "the one that lacks them: {divergences:#?}");
    assert_eq!(divergences[0].what, "snapshot");
}

#[test]
fn a_forged_key_is_a_divergence() {
    type Forge = fn(&mut Option<Box<Idempotency>>);
    let forgeries: [Forge; 5] = [
        |one| one.as_mut().expect("it has one").key = "forged".parse().expect("valid"),
        |one| one.as_mut().expect("it has one").expected = None,
        |one| one.as_mut().expect("it has one").expected = Some(Sequence(0)),
        |one| one.as_mut().expect("it has one").request = RequestDigest::from_bytes([1; 32]),
        // Consistent in itself, but its sequence was not the expected one.
        |one| {
            let key = "b".parse().expect("valid");
            let expected = Some(Sequence(0));
            *one = Some(Box::new(Idempotency::of(key, expected, "Note", &note("x"))));
        },
    ];
    for (which, forge) in forgeries.into_iter().enumerate() {
        let mut life = Life::of(SESSION);
        life.note("a", None).expect("taken");
        life.note("b", Some(1)).expect("taken");
        assert_eq!(divergences(&life.log), 0);
        let last = life.log.last_mut().map(|record| &mut record.event);
        let Some(Event::Transition { idempotency, .. }) = last else { panic!() };
        forge(idempotency);
        assert!(divergences(&life.log) >= 1, "forgery {which}");
    }
}

#[test]
fn a_record_that_repeats_a_key_or_has_one_without_a_request_is_a_divergence() {
    let mut life = Life::of(SESSION);
    life.note("a", None).expect("taken");
    life.act_with("Note", note("x")).expect("taken");
    let key = |life: &Life| match &life.log[2].event {
        Event::Transition { idempotency, .. } => idempotency.clone(),
        other => panic!("a transition, not {other:?}"),
    };
    let repeated = key(&life);
    let Event::Transition { idempotency, .. } = &mut life.log[3].event else { panic!() };
    *idempotency = repeated.clone();
    let mut replay = Replay::new();
    life.log.iter().for_each(|record| replay.feed(record));
    let found = replay.finish().divergences;
    assert_eq!(
        found[0].expected,
        "nothing: the request was taken before, by the transition to sequence 1"
    );
    // A handler asks without a key.
    let mut life = Life::of(SESSION);
    life.start();
    let dispatched = life.entity().in_flight()[0].dispatched.clone();
    let asked = ask_of(&Life::name(), &dispatched, AskUntil::Transition);
    life.turn_to(Life::other());
    life.asked("Note", asked).expect("taken");
    let last = life.log.last_mut().map(|record| &mut record.event);
    let Some(Event::Transition { idempotency, cause, .. }) = last else { panic!() };
    assert!(matches!(cause, TransitionCause::Asked(_)));
    *idempotency = repeated;
    assert!(divergences(&life.log) >= 1);
}

#[derive(Clone, Debug)]
struct Sent {
    key: Option<u8>,
    n: u8,
    expects: bool,
}

fn sent() -> impl Strategy<Value = Vec<Sent>> {
    let one = (prop::option::weighted(0.8, 0u8..100), 0u8..2, prop::bool::weighted(0.1));
    let one = one.prop_map(|(key, n, expects)| Sent { key, n, expects });
    prop::collection::vec(one, 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The entity agrees with a list of all requests that it has taken, of which it remembers the last.
    #[test]
    fn each_key_is_taken_once_while_it_is_remembered(all in sent()) {
        let mut life = Life::of(SESSION);
        let mut taken: Vec<(String, u8, Option<u64>, u64)> = Vec::new();
        for Sent { key, n, expects } in all {
            let at = life.entity().sequence.0;
            let expected = expects.then_some(at);
            let params = note(&n.to_string());
            let key = key.map(|key| format!("k{key}"));
            let terms = Terms {
                expected: expected.map(Sequence),
                key: key.as_deref().map(|key| key.parse().expect("valid")),
            };
            let result = life.request("Note", params, terms).map(drop);
            let remembered = &taken[taken.len().saturating_sub(KEYS_MAX)..];
            let before = remembered.iter().find(|one| Some(&one.0) == key.as_ref());
            match before {
                Some(one) if (one.1, one.2) == (n, expected) => {
                    prop_assert_eq!(result, taken_before(one.3));
                }
                Some(one) => prop_assert_eq!(result, reused(one.3)),
                None => {
                    prop_assert_eq!(result, Ok(()));
                    prop_assert_eq!(life.entity().sequence.0, at + 1);
                    taken.extend(key.map(|key| (key, n, expected, at + 1)));
                }
            }
        }
        prop_assert_eq!(divergences(&life.log), 0);
        let text = life.entity().to_snapshot().expect("at rest");
        prop_assert_eq!(&Entity::of_snapshot(&text).expect("as written"), life.entity());
    }
}
