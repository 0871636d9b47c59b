//! Streams of events: on a connection of their own, or behind other answers.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};

use axum::Router;
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use futures_util::{StreamExt as _, stream};
use sandglass_http::Settings;

use crate::world::{SHORT, World, keyed, read_until, request};

/// How much a large event says.
const LARGE: usize = 1 << 20;

fn world(settings: Settings) -> World {
    let said = |text: &str| Ok::<_, Infallible>(Event::default().data(text));
    let three = async move || Sse::new(stream::iter(["one", "two", "three"].map(said)));
    let large = async move || {
        Sse::new(stream::repeat_with(move || said(&"x".repeat(LARGE))).take(64)).into_response()
    };
    let silent = async move || Sse::new(stream::iter([said("first")]).chain(stream::pending()));
    let router = Router::new()
        .route("/", get(async || "here"))
        .route("/three", get(three))
        .route("/large", get(large))
        .route("/silent", get(silent));
    World::new(router, settings)
}

#[test]
fn a_stream_is_equal_on_a_connection_of_its_own_and_after_another_response() {
    let world = world(Settings::default());
    let alone = world.ask("GET", "/three");
    let mut reused = world.connect();
    reused.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("it listens");
    read_until(&mut reused, "here");
    reused.write_all(request("GET", "/three").as_bytes()).expect("it listens");
    let mut behind = String::new();
    reused.read_to_string(&mut behind).expect("an answer");
    for answer in [&alone, &behind] {
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let mut lines: Vec<_> = head.lines().filter(|line| !line.starts_with("date: ")).collect();
        lines[1..].sort_unstable();
        assert_eq!(
            lines,
            [
                "HTTP/1.1 200 OK",
                "cache-control: no-cache",
                "connection: close",
                "content-type: text/event-stream",
                "transfer-encoding: chunked",
                "x-content-type-options: nosniff",
            ]
        );
        assert_eq!(head.matches("\r\ndate: ").count(), 1, "{head}");
        let text: String = chunks(body).concat();
        assert_eq!(text, "data: one\n\ndata: two\n\ndata: three\n\n");
    }
}

/// What the chunks of a body hold, up to the last, which is empty (RFC 9112, 7.1).
fn chunks(mut body: &str) -> Vec<&str> {
    let mut chunks = Vec::new();
    loop {
        let (size, rest) = body.split_once("\r\n").expect("a size");
        let size = usize::from_str_radix(size, 16).expect("a size");
        let (chunk, rest) = rest.split_at(size);
        body = rest.strip_prefix("\r\n").expect("its end");
        if size == 0 {
            assert_eq!(body, "", "something is behind the end");
            return chunks;
        }
        chunks.push(chunk);
    }
}

#[test]
fn a_head_request_of_a_stream_gets_only_the_head() {
    let answer = world(Settings::default()).ask("HEAD", "/three");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn an_old_client_gets_a_stream_without_chunks() {
    let answer = world(Settings::default()).exchange(b"GET /three HTTP/1.0\r\n\r\n");
    assert!(answer.ends_with("\r\n\r\ndata: one\n\ndata: two\n\ndata: three\n\n"), "{answer}");
}

#[test]
fn a_reader_that_reads_nothing_is_disconnected_and_frees_its_slot() {
    let world = world(Settings { max_connections: 1, write_timeout: SHORT, ..Settings::default() });
    let mut slow = world.connect();
    slow.write_all(keyed("/large", "operator").as_bytes()).expect("it listens");
    slow.peek(&mut [0]).expect("the answer begins");
    world.until_there_is_a_slot();
    let mut all = Vec::new();
    let _ = slow.read_to_end(&mut all);
    assert!(all.len() < 64 * LARGE, "it got all of it");
}

#[test]
fn a_large_stream_arrives_completely() {
    let answer = world(Settings::default()).ask("GET", "/large");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert_eq!(chunks(body).concat().len(), 64 * (LARGE + "data: \n\n".len()));
}

#[test]
fn a_reader_that_disconnects_frees_its_slot_without_waiting_for_an_event() {
    let world = world(Settings { max_connections: 1, ..Settings::default() });
    let mut reader = world.connect();
    reader.write_all(keyed("/silent", "operator").as_bytes()).expect("it listens");
    // The received bytes stay unread, so that closing the socket resets the connection.
    while reader.peek(&mut [0; 1]).expect("it says something") == 0 {}
    drop(reader);
    world.until_there_is_a_slot();
}

#[test]
fn a_reader_that_closed_its_sending_side_still_gets_events() {
    let world = world(Settings::default());
    let mut half = world.connect();
    half.write_all(request("GET", "/silent").as_bytes()).expect("it listens");
    half.shutdown(std::net::Shutdown::Write).expect("it is connected");
    read_until(&mut half, "data: first");
    half.set_read_timeout(Some(SHORT)).expect("a socket");
    let ended = half.read(&mut [0; 16]);
    assert!(!matches!(ended, Ok(0)), "it ended: {ended:?}");
}
