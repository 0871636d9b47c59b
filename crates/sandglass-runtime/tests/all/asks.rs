//! Asks between entities: answered in the asked entity's turn, inside what the asker
//! has left, and never in a circle.

use sandglass_model::{
    Answered, Ask, AskError, AskUntil, CancelledBy, Cause, Clock as _, DeadlineOwner, Decision,
    Dispatched, Ended, EntityRef, Event, Outcome, OutcomeKind, Record, TransitionCause,
};

use crate::world::{Act, SESSION, World, completed, counts, one, pass, settle, two};

const START: &str = "ProcessToolCalls";

fn session(id: &str) -> EntityRef {
    EntityRef::new("Session", id).expect("a valid id")
}

fn ask(target: EntityRef, action: &'static str, until: AskUntil) -> Act {
    Act::Ask(target, action, until, Box::new(Act::Answer(0, completed())))
}

/// A world with one more session, whose handlers do `acts` in turn.
async fn of_two(acts: &[Act]) -> World {
    let world = World::of(acts).await;
    world.runtime.create(two()).await.expect("a new entity");
    world
}

impl World {
    fn answers(&self) -> Vec<Result<Answered, AskError>> {
        self.script.answers.lock().expect("no panic").clone()
    }

    async fn ends_of(&self, entity: &EntityRef) -> Vec<Ended> {
        let of = |record: Record| match record.event {
            Event::Ended(ended) if record.entity.as_ref() == Some(entity) => Some(*ended),
            _ => None,
        };
        self.records().await.into_iter().filter_map(of).collect()
    }

    async fn state_of(&self, entity: &EntityRef) -> String {
        self.runtime.entity(entity).await.expect("there").state.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn an_ask_is_answered_after_its_transition_or_once_the_entity_has_settled() {
    for (until, state, after) in
        [(AskUntil::Transition, "Executing", 0), (AskUntil::Settled, "Done", 7)]
    {
        let acts = [ask(two(), START, until), Act::Answer(7, completed())];
        let world = of_two(&acts).await;
        world.send(START).await.expect("taken");
        assert_eq!(world.until("Done").await, after, "{until:?}");
        let answers = world.answers();
        let [Ok(answered)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(answered.state, state);
        assert_eq!(answered.fields["rounds"], 1);
        assert_eq!(world.runtime.settled(&two()).await.expect("it lives").state, "Done");
        world.replays().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_asked_handler_ends_at_its_askers_deadline_and_its_record_names_that() {
    let short = SESSION.replace("name = \"Session\"", "name = \"Short\"").replace("900s", "10s");
    let world =
        World::of_types(&[SESSION, &short], &[ask(one(), START, AskUntil::Settled), Act::Hang])
            .await;
    let asker: EntityRef = "Short/asker".parse().expect("valid");
    world.runtime.create(asker.clone()).await.expect("new");
    world.runtime.send(&asker, START, Default::default()).await.expect("taken");
    assert_eq!(world.until("TimedOut").await, 10);
    settle().await;
    assert_eq!(world.state_of(&asker).await, "TimedOut");
    let [asked] = &world.ends_of(&one()).await[..] else { panic!("one end") };
    assert_eq!((asked.cause, asked.deadline.owner), (Cause::ParentDeadline, DeadlineOwner::Parent));
    assert_eq!(asked.deadline.budget_ms, 10_000);
    let [by_itself] = &world.ends_of(&asker).await[..] else { panic!("one end") };
    assert_eq!(by_itself.deadline.owner, DeadlineOwner::Handler);
    let started = world.script.started.lock().expect("no panic").clone();
    assert_eq!(started[1].dispatched.owner, DeadlineOwner::Parent);
    assert_eq!(started[1].dispatched.budget_ms, 10_000);
    assert_eq!(started[1].budget.as_secs(), 900, "its own");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn the_handlers_of_a_settled_ask_end_when_their_asker_is_gone() {
    let world = of_two(&[ask(two(), START, AskUntil::Settled), Act::Hang]).await;
    world.send(START).await.expect("taken");
    pass(5).await;
    assert_eq!(counts(&world.script)["running"], 2);
    assert_eq!(world.runtime.cancel(&one(), None, "enough").await, Ok(1));
    assert_eq!(world.until("Stopped").await, 0);
    settle().await;
    assert_eq!(world.state_of(&two()).await, "Stopped", "its declared on_cancelled");
    let [asked] = &world.ends_of(&two()).await[..] else { panic!("one end") };
    assert_eq!(asked.cause, Cause::CallerGone);
    let Outcome::Cancelled(cancelled) = &asked.outcome else { panic!("{asked:?}") };
    assert_eq!(cancelled.by, CancelledBy::Caller);
    assert_eq!(counts(&world.script)["running"], 0);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn what_follows_an_asked_handler_ends_with_the_asker_too() {
    let again =
        SESSION.replace("on_success = \"Finish\"", "on_success = \"Again\"") + crate::world::AGAIN;
    let acts = [ask(two(), START, AskUntil::Settled), Act::Answer(1, completed()), Act::Hang];
    let world = World::with(&again, &acts).await;
    world.runtime.create(two()).await.expect("new");
    world.send(START).await.expect("taken");
    pass(5).await;
    assert_eq!(counts(&world.script), [("started", 3), ("running", 2)].into());
    world.runtime.cancel(&one(), None, "").await.expect("there");
    settle().await;
    assert_eq!(world.state_of(&two()).await, "Stopped");
    world.replays().await;
}

/// A session whose handlers are followed by another one, whatever they come to.
fn endless() -> String {
    let again = SESSION.replace("on_success = \"Finish\"", "on_success = \"Again\"");
    again.replace("on_timeout = \"HandlerTimedOut\"\non_i", "on_timeout = \"Again\"\non_i")
        + crate::world::AGAIN
}

#[tokio::test(start_paused = true)]
async fn what_follows_an_asked_handler_has_the_remaining_time_of_its_waiting_asker() {
    let short = SESSION.replace("name = \"Session\"", "name = \"Short\"").replace("900s", "10s");
    let own = endless().replace("900s", "4s");
    for (source, second, ends) in [(endless(), Act::Answer(6, completed()), 4), (own, Act::Hang, 2)]
    {
        let acts = [ask(one(), START, AskUntil::Settled), second, Act::Hang, Act::Hang, Act::Hang];
        let world = World::of_types(&[&source, &short], &acts).await;
        let asker: EntityRef = "Short/asker".parse().expect("valid");
        world.runtime.create(asker.clone()).await.expect("new");
        world.runtime.send(&asker, START, Default::default()).await.expect("taken");
        pass(9).await;
        assert_eq!(world.state_of(&asker).await, "Executing", "it waits on");
        pass(2).await;
        assert_eq!(world.state_of(&asker).await, "TimedOut");
        let started = world.script.started.lock().expect("no panic").clone();
        let followed = started.iter().filter(|run| run.entity == one()).collect::<Vec<_>>();
        let asker = started[0].dispatched.dispatch;
        let last = followed
            .iter()
            .rev()
            .find(|run| run.not_after.is_some())
            .expect("the asker's deadline");
        assert_eq!(last.dispatched.owner, DeadlineOwner::Parent);
        assert_eq!((last.dispatched.budget_ms, last.dispatched.asker), (ends * 1_000, Some(asker)));
        let ended = world.ends_of(&one()).await;
        let killed = ended.last().expect("it was killed");
        assert_eq!(
            (killed.cause, killed.deadline.owner),
            (Cause::ParentDeadline, DeadlineOwner::Parent)
        );
        let after = followed.last().expect("it cleans up");
        assert_eq!(
            (after.not_after, after.dispatched.asker),
            (None, None),
            "no asker waits for it"
        );
        world.replays().await;
    }
}

/// The stop, the end that it causes, and the next run are one batch, and only the end belongs to
/// the asker.
#[tokio::test(start_paused = true)]
async fn a_handler_of_an_automatically_retried_run_has_its_own_deadline() {
    let short = SESSION.replace("name = \"Session\"", "name = \"Short\"").replace("900s", "10s");
    let limits = "[limits]\nprogress_timeout = \"3s\"\nabort_timeout = \"1s\"\n\
                  [limits.retry]\nprogress_timeout = 1\n";
    let acts = [ask(one(), START, AskUntil::Settled), Act::Hang, Act::Answer(2, completed())];
    let world = World::of_types(&[&format!("{SESSION}\n{limits}"), &short], &acts).await;
    let asker: EntityRef = "Short/asker".parse().expect("valid");
    world.runtime.create(asker.clone()).await.expect("new");
    world.runtime.send(&asker, START, Default::default()).await.expect("taken");
    pass(20).await;
    let started = world.script.started.lock().expect("no panic").clone();
    let [_, first, second] = &started[..] else { panic!("three handlers, not {}", started.len()) };
    assert_eq!((first.dispatched.attempt, first.not_after.is_some()), (1, true));
    let Dispatched { attempt, asker, owner, .. } = &*second.dispatched;
    assert_eq!((*attempt, asker, *owner), (2, &None, DeadlineOwner::Handler));
    assert_eq!(second.not_after, None, "as its record states");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_ask_for_a_transition_leaves_its_handlers_to_themselves() {
    let hangs = Act::Ask(two(), START, AskUntil::Transition, Box::new(Act::Hang));
    let world = of_two(&[hangs, Act::Answer(60, completed())]).await;
    world.send(START).await.expect("taken");
    pass(5).await;
    world.runtime.cancel(&one(), None, "").await.expect("there");
    assert_eq!(world.until("Stopped").await, 0);
    pass(56).await;
    assert_eq!(world.state_of(&two()).await, "Done");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_cycle_of_settled_asks_is_refused_and_one_of_transitions_is_not() {
    let back = ask(one(), "Touch", AskUntil::Transition);
    let circle = Act::Ask(one(), "Touch", AskUntil::Settled, Box::new(back));
    let world = of_two(&[ask(two(), START, AskUntil::Settled), circle]).await;
    world.send(START).await.expect("taken");
    assert_eq!(world.until("Done").await, 0);
    let answers = world.answers();
    let [Err(AskError::Cycle), Ok(touched), Ok(settled)] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!((&*touched.state, &*settled.state), ("Executing", "Done"));
    assert_eq!(AskError::Cycle.kind(), "ask_cycle");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_entity_may_ask_itself_for_a_transition_and_not_wait_for_itself() {
    let then = ask(one(), "Touch", AskUntil::Transition);
    let world = World::of(&[Act::Ask(one(), "Touch", AskUntil::Settled, Box::new(then))]).await;
    world.send(START).await.expect("taken");
    assert_eq!(world.until("Done").await, 0);
    let answers = world.answers();
    assert!(matches!(&answers[..], [Err(AskError::Cycle), Ok(_)]), "{answers:?}");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn asks_are_nested_eight_deep_in_one_trace_and_no_deeper() {
    let names: Vec<EntityRef> = (1..=9).map(|number| session(&format!("deep-{number}"))).collect();
    let acts: Vec<Act> =
        names.iter().map(|name| ask(name.clone(), START, AskUntil::Settled)).collect();
    let world = World::of(&acts).await;
    for name in &names {
        world.runtime.create(name.clone()).await.expect("new");
    }
    world.send(START).await.expect("taken");
    assert_eq!(world.until("Done").await, 0);
    let answers = world.answers();
    assert_eq!(answers[0], Err(AskError::TooDeep(8)));
    assert!(answers[1..].iter().all(Result::is_ok) && answers.len() == 9, "{answers:?}");
    assert_eq!(world.state_of(&names[7]).await, "Done");
    assert_eq!(world.state_of(&names[8]).await, "Idle", "the ninth was not asked");
    let runs = world.script.started.lock().expect("no panic").clone();
    let depths: Vec<u32> = runs.iter().map(|run| run.dispatched.depth).collect();
    assert_eq!(depths, (0..=8).collect::<Vec<_>>());
    let traces = world.records().await.into_iter().filter_map(|record| match record.event {
        Event::Transition { trace, .. } => Some(trace.trace_id),
        _ => None,
    });
    let traces: std::collections::BTreeSet<_> = traces.collect();
    assert_eq!(traces.len(), 1);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_impossible_ask_is_an_error_of_its_kind_and_records_nothing() {
    let chain = [
        (session("nobody"), "Touch"),
        (two(), "Nonsense"),
        (two(), "Finish"),
        (session("theirs"), "Touch"),
    ];
    let act =
        chain.into_iter().rev().fold(Act::Answer(0, completed()), |then, (target, action)| {
            Act::Ask(target, action, AskUntil::Transition, Box::new(then))
        });
    let world = of_two(&[act]).await;
    world.runtime.create_for(session("theirs"), "another").await.expect("new");
    let before = world.records().await.len();
    world.send(START).await.expect("taken");
    assert_eq!(world.until("Done").await, 0);
    let kinds: Vec<_> =
        world.answers().into_iter().map(|answer| answer.expect_err("refused").kind()).collect();
    let unknown = "ask_unknown_target";
    assert_eq!(kinds, [unknown, unknown, "ask_refused", unknown]);
    assert_eq!(world.records().await.len(), before + 4, "only what the asker itself did");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_asked_entity_without_slots_is_busy_and_the_asker_continues() {
    let world = of_two(&[ask(two(), START, AskUntil::Settled)]).await;
    world.script.places.store(1, std::sync::atomic::Ordering::SeqCst);
    world.send(START).await.expect("there is room for one");
    assert_eq!(world.until("Done").await, 0);
    let answers = world.answers();
    assert!(matches!(&answers[..], [Err(AskError::Busy(_))]), "{answers:?}");
    assert_eq!(world.state_of(&two()).await, "Idle");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_interrupts_the_asker_and_the_asked_each_with_its_transition() {
    let world = of_two(&[ask(two(), START, AskUntil::Settled), Act::Hang]).await;
    world.send(START).await.expect("taken");
    pass(5).await;
    assert_eq!(counts(&world.script)["running"], 2);
    let world = world.restart_after(10).await;
    for name in [one(), two()] {
        assert_eq!(world.state_of(&name).await, "Waiting", "{name}: on_interrupted");
        let [end] = &world.ends_of(&name).await[..] else { panic!("one end") };
        assert_eq!((end.cause, end.outcome.kind()), (Cause::HostLost, OutcomeKind::Interrupted));
        assert!(matches!(end.decision, Decision::Take { .. }));
    }
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_asked_handler_that_is_started_again_has_its_own_budget_and_may_ask() {
    let source = SESSION.replace("on_success", "on_crash = \"rerun\"\non_success");
    let acts = [
        ask(two(), START, AskUntil::Settled),
        Act::Hang,
        // After the restart, by name: the asker asks anew, the asked one is at work.
        ask(two(), "Touch", AskUntil::Settled),
        Act::Answer(3, completed()),
    ];
    let world = World::with(&source, &acts).await;
    world.runtime.create(two()).await.expect("new");
    world.send(START).await.expect("taken");
    pass(5).await;
    let world = world.restart_after(10).await;
    assert_eq!(world.until("Done").await, 3);
    assert!(world.answers()[0].is_ok(), "{:?}", world.answers());
    let runs = world.script.started.lock().expect("no panic").clone();
    let again = runs.iter().find(|run| run.entity == two() && run.dispatched.attempt == 2);
    let again = again.expect("run again");
    assert_eq!((again.not_after, again.dispatched.owner), (None, DeadlineOwner::Handler));
    assert_eq!(again.dispatched.dispatch, runs[1].dispatched.dispatch);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_entity_that_an_ask_wakes_outlives_the_threads_of_its_asker() {
    let world = of_two(&[Act::Hang, Act::Answer(1, completed())]).await;
    world.send(START).await.expect("taken");
    settle().await;
    let asker = world.script.started.lock().expect("no panic")[0].clone();
    let not_after = world.clock.now().after(asker.budget);
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let threads = threads.expect("threads of a host's own");
    let asking = tokio::task::spawn_blocking(move || {
        let ask = Ask {
            target: two(),
            action: START.to_owned(),
            params: Default::default(),
            until: AskUntil::Transition,
            not_after,
            trace: asker.dispatched.trace,
        };
        threads.block_on(asker.asks.clone().ask(ask))
    });
    asking.await.expect("no panic").expect("taken");
    pass(2).await;
    assert_eq!(world.state_of(&two()).await, "Done", "its threads are the runtime's");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn entities_that_ask_each_other_at_once_all_settle() {
    let names: Vec<EntityRef> = (0..40).map(|number| session(&number.to_string())).collect();
    // Each asks the next one, the last one the first: at least one is refused.
    let acts: Vec<Act> = (0..40)
        .map(|number| ask(names[(number + 1) % 40].clone(), "Touch", AskUntil::Settled))
        .collect();
    let world = World::of(&acts).await;
    for name in &names {
        world.runtime.create(name.clone()).await.expect("new");
    }
    for name in &names {
        world.runtime.send(name, START, Default::default()).await.expect("taken");
    }
    for name in &names {
        assert_eq!(world.runtime.settled(name).await.expect("it lives").state, "Done");
    }
    let answers = world.answers();
    assert_eq!(answers.len(), 40);
    for refused in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        // One that has ended takes no action any more.
        assert!(matches!(refused, AskError::Cycle | AskError::Refused(_)), "{refused:?}");
    }
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_asked_transition_names_its_asker() {
    let world = of_two(&[ask(two(), "Touch", AskUntil::Transition)]).await;
    world.send(START).await.expect("taken");
    world.until("Done").await;
    let asked = world.records().await.into_iter().find_map(|record| match record.event {
        Event::Transition { cause: TransitionCause::Asked(asked), .. } => Some(asked),
        _ => None,
    });
    let asked = asked.expect("recorded");
    let asker = world.script.started.lock().expect("no panic")[0].clone();
    assert_eq!((asked.by, asked.dispatch), (one(), asker.dispatched.dispatch));
    assert_eq!((asked.depth, asked.attempt, asked.remaining_ms), (1, 1, 900_000));
}
