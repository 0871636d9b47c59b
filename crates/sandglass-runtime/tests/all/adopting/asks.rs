//! Asks, signals and spawns between entities of different hosts.

#![allow(clippy::disallowed_methods, reason = "the network takes virtual time")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, pending};
use sandglass_model::{
    Answered, AskError, Cause, DeadlineOwner, EntityRef, Event, Object, Partition, Record,
    SignalError, TransitionCause,
};
use sandglass_runtime::{
    ActorError, Here, OtherHosts, RemoteRequest, RemoteResponse, Runtime, SessionStop, Signal,
    Undelivered,
};
use serde_json::{Value, json};

use super::hosts::{Host, JOB, Store, job_in, params};
use crate::partitions::{check, records};
use crate::world::{pass, pass_ms, settle};

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is done, and its response does not arrive.
    ResponseLost,
    /// It takes so many milliseconds to arrive.
    Late(u64),
    /// It never arrives, and nobody notices.
    Hangs,
}

/// Connects hosts. Requests and responses are text on the way.
#[derive(Default)]
struct Net {
    hosts: Mutex<BTreeMap<u8, Runtime>>,
    owners: Mutex<BTreeMap<usize, u8>>,
    faults: Mutex<VecDeque<Fault>>,
    /// What was sent.
    sent: Mutex<Vec<RemoteRequest>>,
}

struct Link {
    net: Arc<Net>,
    from: u8,
}

fn as_text<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("text");
    serde_json::from_str(&text).expect("what was written can be read")
}

impl OtherHosts for Link {
    fn send<'a>(
        &'a self,
        here: &'a Here,
        request: &'a RemoteRequest,
    ) -> BoxFuture<'a, Result<RemoteResponse, Undelivered>> {
        async move {
            self.net.sent.lock().expect("no panic").push(request.clone());
            let fault = self.net.faults.lock().expect("no panic").pop_front();
            match fault {
                Some(Fault::Late(millis)) => {
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                }
                Some(Fault::Hangs) => pending().await,
                _ => {}
            }
            let mut waited = 0;
            loop {
                let index = Partition::of(request.target()).index();
                let owner = self.net.owners.lock().expect("no panic").get(&index).copied();
                let hosts = self.net.hosts.lock().expect("no panic").clone();
                let request = as_text(&request.clone().after(Duration::from_millis(waited)));
                let delivered = match owner.and_then(|owner| hosts.get(&owner).zip(Some(owner))) {
                    Some((_, owner)) if owner == self.from => here.deliver(request).await,
                    Some((runtime, _)) => runtime.deliver(request).await,
                    None => Err(ActorError::Elsewhere(request.target().clone())),
                };
                match delivered {
                    _ if fault == Some(Fault::ResponseLost) => return Err(Undelivered::Unknown),
                    Ok(response) => return Ok(as_text(&response)),
                    Err(ActorError::Elsewhere(_)) if waited < 2_000 => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        waited += 10;
                    }
                    Err(ActorError::Elsewhere(_)) => return Err(Undelivered::Moving),
                    Err(error) => return Err(Undelivered::Refused(error.to_string())),
                }
            }
        }
        .boxed()
    }
}

impl Net {
    fn connect(self: &Arc<Self>, host: &Host) {
        self.hosts.lock().expect("no panic").insert(host.id, host.runtime.clone());
        let link = Link { net: Arc::clone(self), from: host.id };
        host.runtime.set_other_hosts(Arc::new(link));
    }

    async fn adopt(&self, host: &Host, partition: Partition) {
        host.adopt(partition).await;
        self.owners.lock().expect("no panic").insert(partition.index(), host.id);
    }

    fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().expect("no panic").extend(faults);
    }

    fn kinds(&self) -> Vec<&'static str> {
        let sent = self.sent.lock().expect("no panic");
        let kind = |request: &RemoteRequest| match request {
            RemoteRequest::Ask(_) => "ask",
            RemoteRequest::SessionOver(_) => "session_over",
            RemoteRequest::Signal(_) => "signal",
            RemoteRequest::Spawn(_) => "spawn",
            RemoteRequest::Waits(_) => "waits",
            RemoteRequest::Activity(_) => "activity",
        };
        sent.iter().map(kind).collect()
    }
}

/// Two hosts. `a` is a job of the first one, and `b` one of the second.
struct Two {
    store: Store,
    net: Arc<Net>,
    first: Host,
    second: Host,
    a: EntityRef,
    b: EntityRef,
}

fn part(number: u8) -> Partition {
    Partition::new(number).expect("there are more")
}

impl Two {
    async fn start() -> Self {
        Self::of(0, JOB).await
    }

    /// The clock of the first one is ahead by `ahead_ms`.
    async fn of(ahead_ms: i64, source: &str) -> Self {
        let (store, net) = (Store::new(), Arc::new(Net::default()));
        let first = Host::of(&store, 1, ahead_ms, source).await;
        let second = Host::of(&store, 2, 0, source).await;
        for (host, number) in [(&first, 1), (&second, 2)] {
            net.connect(host);
            net.adopt(host, part(number)).await;
        }
        let (a, b) = (job_in(part(1), "a"), job_in(part(2), "b"));
        first.runtime.create(a.clone()).await.expect("new");
        second.runtime.create(b.clone()).await.expect("new");
        Self { store, net, first, second, a, b }
    }

    /// The first job asks the second one with these parameters of its action.
    async fn ask(&self, more: Value) {
        let mut params = asks(&self.b, more);
        params.entry("seconds".to_owned()).or_insert(json!(0));
        self.first.runtime.send(&self.a, "Work", params).await.expect("taken");
    }

    async fn record(&self, of: &EntityRef, found: impl Fn(&Event) -> bool) -> Vec<Record> {
        let records = records(&self.store.journals[Partition::of(of).index()]).await;
        let of = records.into_iter().filter(|record| record.entity.as_ref() == Some(of));
        of.filter(|record| found(&record.event)).collect()
    }
}

/// Parameters of work that asks `target`.
fn asks(target: &EntityRef, more: Value) -> Object {
    let more = more.as_object().cloned().unwrap_or_default();
    more.into_iter().chain([("ask".to_owned(), json!(target.id()))]).collect()
}

#[track_caller]
fn answered(host: &Host) -> Answered {
    let answers = host.answers();
    let [Ok(answered)] = &answers[..] else { panic!("{answers:?}") };
    answered.clone()
}

#[track_caller]
fn refused(host: &Host) -> AskError {
    let answers = host.answers();
    let [Err(error)] = &answers[..] else { panic!("{answers:?}") };
    error.clone()
}

#[tokio::test(start_paused = true)]
async fn an_ask_is_answered_after_its_transition_or_once_the_entity_has_settled() {
    for (until, state, after_s) in [("transition", "Working", 0), ("settled", "Idle", 7)] {
        let two = Two::start().await;
        let begun = two.first.clock_ms();
        two.ask(json!({ "until": until, "action": "Work", "then": { "seconds": 7 } })).await;
        two.first.runtime.settled(&two.a).await.expect("it lives");
        assert_eq!((two.first.clock_ms() - begun) / 1_000, after_s, "{until}");
        assert_eq!(answered(&two.first).state, state);
        let asked = two.record(&two.b, |event| event.kind() == "dispatched").await;
        let Event::Dispatched(asked) = &asked[0].event else { panic!("{asked:?}") };
        assert_eq!(asked.depth, 1);
        let caused = two
            .record(&two.b, |event| {
                let Event::Transition { cause, .. } = event else { return false };
                matches!(cause, TransitionCause::Asked(asked) if asked.by == two.a && asked.depth == 1)
            })
            .await;
        assert_eq!(caused.len(), 1);
        two.second.runtime.settled(&two.b).await.expect("it lives");
        check(&two.store.journals).await;
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_are_those_of_an_ask_on_one_host() {
    let two = Two::start().await;
    two.ask(json!({ "action": "Ring" })).await;
    pass(1).await;
    assert!(matches!(refused(&two.first), AskError::Refused(_)));

    let two = Two::start().await;
    two.ask(json!({ "action": "Fly" })).await;
    pass(1).await;
    assert!(matches!(refused(&two.first), AskError::UnknownTarget(_)));

    let two = Two::start().await;
    let nobody = job_in(part(2), "nobody");
    two.first.runtime.send(&two.a, "Work", asks(&nobody, json!({}))).await.expect("taken");
    pass(1).await;
    assert!(matches!(refused(&two.first), AskError::UnknownTarget(_)));

    // An entity of another tenant is as one that does not exist.
    let two = Two::start().await;
    let theirs = job_in(part(2), "theirs");
    two.second.runtime.create_for(theirs.clone(), "acme").await.expect("new");
    two.first.runtime.send(&two.a, "Work", asks(&theirs, json!({}))).await.expect("taken");
    pass(1).await;
    let AskError::UnknownTarget(text) = refused(&two.first) else { panic!("it is not theirs") };
    assert!(text.contains("there is no entity"), "{text}");
    assert_eq!(two.store.transitions(&theirs).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_budget_travels_as_the_time_that_is_left() {
    let two = Two::start().await;
    // The wait for the partition is part of it.
    two.net.owners.lock().expect("no panic").remove(&part(2).index());
    let ask = json!({ "budget": 10, "action": "Work", "then": { "seconds": 3_600 } });
    two.ask(ask).await;
    pass(1).await;
    two.net.owners.lock().expect("no panic").insert(part(2).index(), 2);
    pass(1).await;
    let dispatched = two.record(&two.b, |event| event.kind() == "dispatched").await;
    let Event::Dispatched(dispatched) = &dispatched[0].event else { panic!("{dispatched:?}") };
    assert_eq!(dispatched.owner, DeadlineOwner::Parent);
    assert!((8_900..=9_010).contains(&dispatched.budget_ms), "{}", dispatched.budget_ms);
}

#[tokio::test(start_paused = true)]
async fn handlers_of_a_settled_ask_end_when_their_asker_is_gone() {
    let two = Two::start().await;
    two.ask(json!({ "action": "Work", "then": { "seconds": 3_600 } })).await;
    pass(4).await;
    assert_eq!(two.second.runtime.in_flight().len(), 1);
    assert_eq!(two.first.runtime.cancel(&two.a, None, "enough").await, Ok(1));
    settle().await;
    assert_eq!(two.second.killed(), [Cause::CallerGone]);
    assert_eq!(two.second.job(&two.b).await.state, "Idle");
    assert_eq!(two.net.kinds(), ["waits", "ask"]);
    check(&two.store.journals).await;

    // So they do if its host has lost it.
    let two = Two::start().await;
    two.ask(json!({ "action": "Work", "then": { "seconds": 3_600 } })).await;
    pass(5).await;
    two.first.runtime.lose(part(1));
    settle().await;
    assert_eq!(two.second.killed(), [Cause::CallerGone]);

    // One that has its answer is not gone.
    let two = Two::start().await;
    let ask = json!({ "until": "transition", "action": "Work", "then": { "seconds": 60 } });
    two.ask(ask).await;
    pass(5).await;
    assert_eq!(two.second.runtime.in_flight().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_askers_session_travels_before_the_ask_is_ended() {
    let limits = "\n[limits]\nstop_with_parent = true\nabort_timeout = \"3s\"\n";
    let two = Two::of(0, &format!("{JOB}{limits}")).await;
    two.ask(json!({ "action": "Work", "then": { "seconds": 3_600 } })).await;
    pass(5).await;
    let stop = SessionStop {
        run_seq: None,
        cause: sandglass_model::StopCause::Operator {
            by: "ann".to_owned(),
            reason: "enough".to_owned(),
        },
    };
    two.first.runtime.stop_session(&two.a, stop).await.expect("it runs");
    pass(10).await;
    let stopping = two.record(&two.b, |event| event.kind() == "run.stopping").await;
    let [Record { event: Event::RunStopping(stopping), .. }] = &stopping[..] else {
        panic!("{stopping:?}, {:?}", two.net.kinds())
    };
    assert_eq!(&*stopping.stop_reason_code, "parent_stopped");
    assert!(two.net.kinds().contains(&"session_over"));
    check(&two.store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn an_ask_finds_an_entity_that_moves_and_says_so_if_it_does_not() {
    // To the other host, and to the one that asks.
    for back in [false, true] {
        let two = Two::start().await;
        assert!(two.second.runtime.release(part(2), Duration::from_secs(1)).await);
        two.ask(json!({})).await;
        pass(1).await;
        assert_eq!(two.first.answers(), []);
        let owner = if back { &two.first } else { &two.second };
        two.net.adopt(owner, part(2)).await;
        pass(1).await;
        assert_eq!(answered(&two.first).fields["count"], 1);
    }
    let two = Two::start().await;
    two.second.runtime.lose(part(2));
    two.ask(json!({})).await;
    pass(5).await;
    let AskError::Unavailable(text) = refused(&two.first) else { panic!("nobody has it") };
    assert!(text.contains("nothing was done"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_ask_whose_response_is_lost_may_have_been_taken_and_is_not_sent_again() {
    let two = Two::start().await;
    two.net.fail([Fault::ResponseLost]);
    two.ask(json!({ "until": "transition" })).await;
    pass(5).await;
    let AskError::Unavailable(text) = refused(&two.first) else { panic!("it is not known") };
    assert!(text.contains("may have been done"), "{text}");
    assert_eq!(two.net.kinds(), ["ask"]);
    assert_eq!(two.second.job(&two.b).await.variables["count"], 1);
}

#[tokio::test(start_paused = true)]
async fn no_effect_has_an_earlier_time_than_its_cause_on_a_host_whose_clock_is_ahead() {
    for (ahead_ms, is_in_order) in [(0, true), (200, true), (-200, true), (1_000, false)] {
        let two = Two::of(ahead_ms, JOB).await;
        two.ask(json!({ "until": "transition" })).await;
        let child = job_in(part(2), "child");
        let other = job_in(part(1), "other");
        two.first.runtime.create(other.clone()).await.expect("new");
        let split = params("id", child.id());
        two.first.runtime.send(&other, "Split", split).await.expect("taken");
        pass(5).await;
        let time = async |of: &EntityRef, kind: &str| {
            let records = two.record(of, |event| event.kind() == kind).await;
            records.last().unwrap_or_else(|| panic!("{of} has no {kind}")).at.as_millis()
        };
        for (cause, kind, effect, then) in
            [(&two.a, "dispatched", &two.b, "transition"), (&other, "spawning", &child, "created")]
        {
            let (cause, effect) = (time(cause, kind).await, time(effect, then).await);
            assert_eq!(cause < effect, is_in_order, "{ahead_ms}: {cause}, {effect}");
        }
        if is_in_order {
            assert!(time(&child, "created").await < time(&other, "spawned").await, "{ahead_ms}");
        }
        check(&two.store.journals).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cycle_over_hosts_is_refused_at_once() {
    // The job of the second host asks that of the first one back.
    let two = Two::start().await;
    let back = json!(asks(&two.a, json!({})));
    two.ask(json!({ "action": "Work", "then": back })).await;
    pass(1).await;
    assert_eq!(refused(&two.second), AskError::Cycle);
    assert_eq!(answered(&two.first).state, "Idle");

    // Over a third job, whose host asks nobody else.
    let two = Two::start().await;
    let c = job_in(part(1), "c");
    two.first.runtime.create(c.clone()).await.expect("new");
    let to_a = json!(asks(&two.a, json!({})));
    let to_c = json!(asks(&c, json!({ "action": "Work", "then": to_a })));
    two.ask(json!({ "action": "Work", "then": to_c })).await;
    pass(1).await;
    assert!(two.first.answers().contains(&Err(AskError::Cycle)), "{:?}", two.first.answers());
    assert!(two.first.runtime.in_flight().is_empty() && two.second.runtime.in_flight().is_empty());

    // The last wait is between two jobs of one host.
    let two = Two::start().await;
    let c = job_in(part(1), "c");
    two.first.runtime.create(c.clone()).await.expect("new");
    // c waits for b, which waits for a, which asks c.
    let b_to_a =
        json!(asks(&two.a, json!({ "action": "Work", "then": asks(&c, json!({ "seconds": 5 })) })));
    let c_to_b = asks(&two.b, json!({ "action": "Work", "then": b_to_a }));
    two.first.runtime.send(&c, "Work", c_to_b).await.expect("taken");
    pass(6).await;
    assert!(two.first.answers().contains(&Err(AskError::Cycle)), "{:?}", two.first.answers());
    check(&two.store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_handlers_that_close_a_cycle_at_once_one_goes_on() {
    for late in [[0, 0], [5, 5], [0, 5], [5, 0]] {
        let two = Two::start().await;
        two.net.fail(late.map(Fault::Late));
        let works = |to: &EntityRef| asks(to, json!({ "seconds": 1 }));
        two.first.runtime.send(&two.a, "Work", works(&two.b)).await.expect("taken");
        two.second.runtime.send(&two.b, "Work", works(&two.a)).await.expect("taken");
        pass(2).await;
        let cycle = || vec![Err(AskError::Cycle)];
        let answers = [two.first.answers(), two.second.answers()];
        let refused = answers.iter().filter(|answers| **answers == cycle()).count();
        assert_eq!(refused, 1, "{late:?}: {answers:?}");
        assert_eq!(two.second.runtime.in_flight(), []);
        assert_eq!(two.first.runtime.in_flight(), []);
        if late == [5, 5] {
            // Both have found the wait of the other one.
            assert_eq!(answers[0], cycle(), "{} is before {}", two.a, two.b);
        }
        check(&two.store.journals).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_does_not_respond_to_a_question_delays_an_ask_by_a_second() {
    let two = Two::start().await;
    two.net.fail([Fault::Hangs]);
    let begun = two.first.clock_ms();
    two.ask(json!({})).await;
    two.first.runtime.settled(&two.a).await.expect("it lives");
    assert_eq!(answered(&two.first).fields["count"], 1);
    assert!((1_000..1_100).contains(&(two.first.clock_ms() - begun)));
}

#[tokio::test(start_paused = true)]
async fn signals_are_recorded_on_the_host_of_their_entity() {
    let two = Two::start().await;
    two.ask(json!({ "signal": "Note" })).await;
    pass(1).await;
    assert_eq!(two.first.signals(), [Ok(())]);
    let signals = two.record(&two.b, |event| event.kind() == "signal").await;
    let [Record { event: Event::Signal { name, from, payload, .. }, .. }] = &signals[..] else {
        panic!("{signals:?}")
    };
    assert_eq!((name.as_str(), from.as_ref()), ("Note", Some(&two.a)));
    assert_eq!(*payload, json!({ "from": "work" }));
    check(&two.store.journals).await;

    for (target, tenant) in [("nobody", None), ("theirs", Some("acme"))] {
        let two = Two::start().await;
        let target = job_in(part(2), target);
        if let Some(tenant) = tenant {
            two.second.runtime.create_for(target.clone(), tenant).await.expect("new");
        }
        let send = asks(&target, json!({ "signal": "Note" }));
        two.first.runtime.send(&two.a, "Work", send).await.expect("taken");
        pass(1).await;
        let sent = two.first.signals();
        assert!(matches!(&sent[..], [Err(SignalError::UnknownTarget(_))]), "{sent:?}");
    }

    let two = Two::start().await;
    two.net.fail([Fault::ResponseLost]);
    two.ask(json!({ "signal": "Note" })).await;
    pass(1).await;
    let sent = two.first.signals();
    assert!(matches!(&sent[..], [Err(SignalError::Unavailable(_))]), "{sent:?}");
    assert_eq!(two.record(&two.b, |event| event.kind() == "signal").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_spawn_creates_its_entity_once_however_often_it_is_sent() {
    for faults in [vec![], vec![Fault::ResponseLost; 3], vec![Fault::Hangs, Fault::ResponseLost]] {
        let two = Two::start().await;
        let sent = faults.len() + 1;
        two.net.fail(faults);
        let child = job_in(part(2), "child");
        let split = params("id", child.id());
        two.first.runtime.send(&two.a, "Split", split).await.expect("taken");
        pass(10).await;
        assert_eq!(two.net.kinds().len(), sent);
        let created = two.record(&child, |event| event.kind() == "created").await;
        assert_eq!(created.len(), 1);
        assert_eq!(two.second.job(&child).await.variables["count"], 1, "its first action");
        let spawned = two.record(&two.a, |event| event.kind() == "spawned").await;
        let [Record { event: Event::Spawned { entity, action_refused, .. }, .. }] = &spawned[..]
        else {
            panic!("{spawned:?}")
        };
        assert_eq!(*entity, child);
        assert_eq!(*action_refused, None);
        check(&two.store.journals).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_spawn_waits_for_a_partition_that_nobody_serves() {
    let two = Two::start().await;
    two.second.runtime.lose(part(2));
    let child = job_in(part(2), "child");
    let split = params("id", child.id());
    two.first.runtime.send(&two.a, "Split", split).await.expect("taken");
    pass(60).await;
    two.net.adopt(&two.second, part(2)).await;
    pass(10).await;
    assert_eq!(two.second.job(&child).await.variables["count"], 1);
    assert_eq!(two.record(&two.a, |event| event.kind() == "spawned").await.len(), 1);
    check(&two.store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_a_partition_that_is_given_away_gets_the_answer_of_a_chain_through_it() {
    let two = Two::start().await;
    let c = job_in(part(2), "c");
    two.second.runtime.create(c.clone()).await.expect("new");
    // b works, asks a on the other host, and that asks c in the partition of b.
    let to_c = json!(asks(&c, json!({ "seconds": 5 })));
    let works = asks(&two.a, json!({ "action": "Work", "then": to_c }));
    two.second.runtime.send(&two.b, "Work", works).await.expect("taken");
    pass(1).await;
    assert!(two.second.runtime.release(part(2), Duration::from_secs(60)).await);
    two.net.adopt(&two.second, part(2)).await;
    assert_eq!(answered(&two.second).state, "Idle");
    assert_eq!(two.second.job(&c).await.variables["count"], 1);
    pass_ms(1).await;
    check(&two.store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn the_activity_of_an_entity_of_another_host_is_that_of_its_asker() {
    let limits = "\n[limits]\ninactivity_timeout = \"30s\"\n";
    for (signals, is_silent) in [(true, false), (false, true)] {
        let two = Two::of(0, &format!("{JOB}{limits}")).await;
        two.ask(json!({ "action": "Work", "then": { "seconds": 90 } })).await;
        for _ in 0..9 {
            pass(10).await;
            if signals {
                let note = Signal { name: "Note".to_owned(), from: None, payload: json!(1) };
                two.second.runtime.signal(&two.b, note).await.expect("it works");
            }
        }
        let silent = two.record(&two.a, |event| event.kind() == "limit.breached").await;
        assert_eq!(!silent.is_empty(), is_silent, "{silent:?}");
    }
}
