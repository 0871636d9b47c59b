//! What a reader of events costs that hears nothing. In a process of its own, so that the
//! memory that is counted is that of these readers alone.
//!
//! `SANDGLASS_READERS=2000 cargo test --release -p sandglass-http --test idle -- --nocapture`
//! has the figures of many; each reader takes two file descriptors.

#![allow(clippy::print_stderr, reason = "the figures are for people")]

mod counting;

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::{StreamExt as _, stream};
use sandglass_http::{ConnectionSlot, Holder, Settings, serve};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// The most that an idle reader may take of the heap, in bytes: about twice what it takes,
/// and half of what it would take if a buffer of hyper's were kept with it.
const READER_MAX_BYTES: u64 = 4 << 10;

/// How many readers there are, unless it is said.
const READERS: u64 = 200;

/// Before those that are counted: what is made once is made by then.
const WARM_UP: u64 = 20;

#[test]
fn an_idle_reader_of_events_costs_little() {
    let readers = std::env::var("SANDGLASS_READERS")
        .map_or(READERS, |text| text.parse().expect("SANDGLASS_READERS is a number"));
    let runtime = Runtime::new().expect("threads");
    let serving = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
        let settings = Settings { max_connections: 100_000, ..Settings::default() };
        let router = Router::new().route(
            "/events",
            get(async |Extension(slot): Extension<ConnectionSlot>| events(&slot)),
        );
        serve(listener, router, settings, None).expect("it has an address")
    });
    let address = serving.local_addr();
    let warm: Vec<_> = (0..WARM_UP).map(|_| reader(address)).collect();
    let mut held = Vec::with_capacity(usize::try_from(readers).expect("a count"));
    let before = (counting::live_bytes(), resident_bytes());
    held.extend((0..readers).map(|_| reader(address)));
    let after = (counting::live_bytes(), resident_bytes());
    let heap = (after.0 - before.0) / readers;
    let resident = after.1.saturating_sub(before.1) / readers;
    eprintln!("{readers} idle readers: {heap} bytes of heap each, {resident} resident");
    assert!(heap <= READER_MAX_BYTES, "{heap} bytes each");
    drop((warm, held));
}

/// A first event, and then none.
fn events(slot: &ConnectionSlot) -> Response {
    slot.authenticate(&Holder::Operator).expect("there are slots");
    let first = stream::once(async { Ok::<_, Infallible>(Event::default().data("first")) });
    let alive = KeepAlive::new().interval(Duration::from_secs(3_600));
    Sse::new(first.chain(stream::pending())).keep_alive(alive).into_response()
}

/// A client that has heard the first event.
fn reader(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    let request = b"GET /events HTTP/1.1\r\nhost: localhost\r\n\
                    accept: text/event-stream\r\nauthorization: Bearer a-key-of-a-reader\r\n\r\n";
    stream.write_all(request).expect("it listens");
    let mut read = [0; 4 << 10];
    let mut length = 0;
    while !read[..length].ends_with(b"data: first\n\n\r\n") {
        let more = stream.read(&mut read[length..]).expect("it says more");
        assert!(more > 0, "it ended");
        length += more;
    }
    stream
}

/// Memory of this process that is in pages, in bytes (`proc(5)`, `statm`).
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    pages.unwrap_or_default() * 4_096
}
