//! How what is served ends.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use futures_util::stream;
use sandglass_http::Settings;
use tokio::sync::Notify;

use crate::world::{SHORT, World, read_until, request};

const LONG: Duration = Duration::from_secs(30);

/// A world that answers once it is let, and one whose streams never end.
fn world() -> (World, Arc<Notify>, Arc<Notify>) {
    let (came, may) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (comes, let_in) = (came.clone(), may.clone());
    let waits = get(async move || {
        comes.notify_one();
        let_in.notified().await;
        "answered"
    });
    let endless = get(async || {
        let events = stream::once(async { Ok::<_, Infallible>(Event::default().data("first")) });
        Sse::new(futures_util::StreamExt::chain(events, stream::pending()))
    });
    let router = Router::new().route("/waits", waits).route("/endless", endless);
    (World::new(router, Settings::default()), came, may)
}

fn wait(came: &Notify) {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
        .block_on(came.notified());
}

#[test]
fn requests_that_have_arrived_are_answered_after_the_address_is_free() {
    let (mut world, came, may) = world();
    let mut waits = world.connect();
    waits.write_all(request("GET", "/waits").as_bytes()).expect("it listens");
    wait(&came);
    world.stop_accepting();
    while !world.refuses_connections() {}
    may.notify_one();
    assert!(world.drain(LONG), "it was answered");
    let mut answer = String::new();
    waits.read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with("answered"), "{answer}");
}

#[test]
fn idle_connections_do_not_delay_the_shutdown() {
    let (mut world, ..) = world();
    let mut idle = world.connect();
    idle.write_all(b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("it listens");
    read_until(&mut idle, "`/nowhere`");
    assert!(world.drain(LONG), "nothing was in flight");
    assert_eq!(idle.read(&mut [0]).expect("it ended"), 0);
}

#[test]
fn endless_responses_are_cut_off_in_time() {
    let (mut world, ..) = world();
    let mut reader = world.connect();
    reader.write_all(request("GET", "/endless").as_bytes()).expect("it listens");
    read_until(&mut reader, "data: first");
    assert!(!world.drain(SHORT), "something was left");
    let mut rest = Vec::new();
    // By an end or a reset.
    let _ = reader.read_to_end(&mut rest);
}
