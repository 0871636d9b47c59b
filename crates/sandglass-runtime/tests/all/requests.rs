//! Requests: what is answered, what is refused, and what is bounded.

use sandglass_model::{Object, Sequence};
use sandglass_runtime::{ActorError, ErrorClass, MAILBOX_MAX, Request};

use crate::world::{Act, SESSION, World, completed, one, two};

#[tokio::test(start_paused = true)]
async fn an_accepted_action_is_durable_and_names_its_dispatches() {
    let world = World::of(&[Act::Answer(1, completed())]).await;
    let accepted =
        world.runtime.send(&one(), "ProcessToolCalls", Object::new()).await.expect("taken");
    assert_eq!((accepted.sequence, &*accepted.state), (Sequence(1), "Executing"));
    assert_eq!(accepted.dispatches.len(), 1);
    let record =
        world.records().await.into_iter().find(|record| record.position == accepted.position);
    assert_eq!(record.map(|record| record.event.kind()), Some("transition"));
    let snapshot = world.runtime.settled(&one()).await.expect("it lives");
    assert_eq!(snapshot.state, "Done");
}

#[tokio::test(start_paused = true)]
async fn refusals_state_why_and_change_nothing() {
    let world = World::of(&[]).await;
    let error = world.send("Finish").await.expect_err("Idle doesn't take it");
    assert_eq!(error.to_string(), "Session/one refuses: state `Idle` doesn't take `Finish`");
    assert_eq!(error.class(), ErrorClass::Permanent);
    let error = world.send("Tuch").await.expect_err("no such action");
    assert!(error.to_string().ends_with("did you mean `Touch`?"), "{error}");
    assert_eq!(world.runtime.create(one()).await, Err(ActorError::EntityExists(one())));
    let unknown = world.runtime.send(&two(), "Touch", Object::new()).await;
    assert_eq!(unknown, Err(ActorError::UnknownEntity(two())));
    let typeless = world.runtime.create("Order/1".parse().expect("a valid name")).await;
    assert!(matches!(typeless, Err(ActorError::UnknownType { .. })));
    assert_eq!(world.kinds().await, ["spec_registered", "created"]);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_unexpected_sequence_is_a_conflict() {
    let world = World::of(&[]).await;
    let at = |sequence| Request::new("Touch").expecting(Sequence(sequence));
    world.runtime.request(&one(), at(0)).await.expect("it is there");
    let error = world.runtime.request(&one(), at(0)).await.expect_err("it has moved on");
    assert_eq!(error, ActorError::Conflict { entity: one(), expected: Sequence(0) });
    world.runtime.request(&one(), at(1)).await.expect("it is there");
}

#[tokio::test(start_paused = true)]
async fn the_mailbox_is_bounded_and_says_so() {
    let world = World::of(&[]).await;
    let mut asked = Vec::new();
    for _ in 0..MAILBOX_MAX + 10 {
        let runtime = world.runtime.clone();
        asked.push(Box::pin(async move { runtime.send(&one(), "Touch", Object::new()).await }));
    }
    // All are asked before the entity's task gets a turn.
    let mut answers = Vec::new();
    let mut polled: Vec<_> = Vec::new();
    for mut one in asked {
        let first = std::future::poll_fn(|cx| std::task::Poll::Ready(one.as_mut().poll(cx))).await;
        match first {
            std::task::Poll::Ready(answer) => answers.push(answer),
            std::task::Poll::Pending => polled.push(one),
        }
    }
    assert_eq!(answers, vec![Err(ActorError::MailboxFull(one())); 10]);
    for waiting in polled {
        waiting.await.expect("taken");
    }
    assert_eq!(world.now().await.sequence, Sequence(MAILBOX_MAX as u64));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn actions_are_taken_one_at_a_time_for_any_number_of_callers() {
    let world = World::of(&[]).await;
    let asked: Vec<_> = (0..100)
        .map(|_| {
            let runtime = world.runtime.clone();
            tokio::spawn(async move {
                let request = Request::new("Touch").expecting(Sequence(0));
                runtime.request(&one(), request).await.is_ok()
            })
        })
        .collect();
    let mut won = 0;
    for one in asked {
        won += usize::from(one.await.expect("no panic"));
    }
    assert_eq!(won, 1);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_entities_live_side_by_side() {
    let world = World::of(&vec![Act::Answer(372, completed()); 1_000]).await;
    let names: Vec<sandglass_model::EntityRef> =
        (0..1_000).map(|number| format!("Session/{number}").parse().expect("valid")).collect();
    for name in &names {
        world.runtime.create(name.clone()).await.expect("new");
        world.runtime.send(name, "ProcessToolCalls", Object::new()).await.expect("taken");
    }
    for name in &names {
        assert_eq!(world.runtime.settled(name).await.expect("it lives").state, "Done");
    }
    let first = world.runtime.entities(None, 1_000).await.expect("readable");
    assert_eq!(first.len(), 1_000);
    assert!(first.is_sorted());
    assert_eq!(world.runtime.entities(first.last(), 1_000).await.expect("readable"), [one()]);
    assert_eq!(
        world.runtime.entities(None, usize::MAX).await.expect("readable"),
        first,
        "a page is bounded"
    );
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_action_that_schedules_itself_at_once_starves_no_others() {
    let again = "[[action]]\nname = \"Loop\"\nfrom = [\"Idle\"]\neffect = \"schedule Loop 0\"\n";
    let world = World::with(&(SESSION.to_owned() + again), &[]).await;
    world.send("Loop").await.expect("taken");
    for _ in 0..3 {
        world.send("Touch").await.expect("it has its turn");
    }
    world.runtime.create(two()).await.expect("others live on");
    world.send("Wait").await.expect("it leaves the state that loops");
    assert_eq!(world.until("Abandoned").await, 300);
    world.replays().await;
}
