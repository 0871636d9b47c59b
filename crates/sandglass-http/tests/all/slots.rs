//! Too many connections: which ones are closed, and which clients are still served.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use sandglass_http::Settings;
use tokio::sync::Semaphore;

use crate::world::{SHORT, World, keyed, read_until, request};

/// Longer than a test takes: what closes a connection is not the time.
const LONG: Duration = Duration::from_secs(3_600);

/// A world whose `/waits` answers once for each permit of the semaphore.
fn world(settings: Settings) -> (World, Arc<Semaphore>) {
    let may = Arc::new(Semaphore::new(0));
    let waits_for = Arc::clone(&may);
    let waits = get(async move || {
        waits_for.acquire().await.expect("it is not closed").forget();
        "waited"
    });
    let router = Router::new().route("/", get(async || "here")).route("/waits", waits);
    (World::new(router, settings), may)
}

fn patient() -> Settings {
    Settings { head_timeout: LONG, idle_timeout: LONG, ..Settings::default() }
}

/// Whether the server has closed it; what was sent before is dropped.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    match stream.read(&mut [0; 1 << 10]) {
        Ok(length) => length == 0,
        // The socket's own time limit would be another kind.
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

fn is_served(stream: &mut TcpStream, key: &str) -> bool {
    stream.write_all(keyed("/", key).as_bytes()).expect("it is open");
    read_until(stream, "here").contains(" 200 ")
}

#[test]
fn idle_and_slow_sockets_delay_no_client() {
    let (world, _) = world(patient());
    let mut client = world.connect();
    assert!(is_served(&mut client, "ann"));
    let idle: Vec<_> = (0..300).map(|_| world.connect()).collect();
    assert!(world.ask("GET", "/").ends_with("here"));
    let slow: Vec<_> = (0..300)
        .map(|_| {
            let mut slow = world.connect();
            // It may have been closed by now.
            let _ = slow.write_all(b"GET / HTTP/1.1\r\nhost: loc");
            slow
        })
        .collect();
    assert!(world.ask("GET", "/").ends_with("here"));
    assert!(is_served(&mut world.connect(), "bob"));
    assert!(is_served(&mut client, "ann"), "its connection is as it was");
    drop((idle, slow));
}

#[test]
fn the_oldest_silent_connection_of_an_address_is_shed() {
    let settings = Settings { max_unauthenticated_per_address: 2, ..patient() };
    let (world, _) = world(settings);
    let (mut first, mut second) = (world.connect(), world.connect());
    let mut third = world.connect();
    assert!(is_closed(&mut first));
    for open in [&mut second, &mut third] {
        open.write_all(request("GET", "/").as_bytes()).expect("it is open");
        read_until(open, "here");
    }
}

#[test]
fn a_slow_head_and_silence_are_cut_off_but_not_those_of_authenticated_clients() {
    let settings = Settings { head_timeout: SHORT, ..patient() };
    let (world, _) = world(settings);
    let mut client = world.connect();
    assert!(is_served(&mut client, "ann"));
    let mut slow = world.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nhost: loc").expect("it listens");
    let mut unauthenticated = world.connect();
    unauthenticated.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("it listens");
    read_until(&mut unauthenticated, "here");
    for closed in [&mut slow, &mut unauthenticated, &mut world.connect()] {
        assert!(is_closed(closed));
    }
    assert!(is_served(&mut client, "ann"));
}

#[test]
fn an_idle_authenticated_client_is_disconnected_in_time() {
    let (world, _) = world(Settings { idle_timeout: SHORT, ..patient() });
    let mut client = world.connect();
    assert!(is_served(&mut client, "ann"));
    assert!(is_closed(&mut client));
}

#[test]
fn idle_authenticated_connections_are_shed_oldest_first_and_busy_ones_never() {
    let settings = Settings { max_connections: 2, ..patient() };
    let (world, may) = world(settings);
    let mut busy = world.connect();
    busy.write_all(keyed("/waits", "operator").as_bytes()).expect("it listens");
    let mut idle = world.connect();
    assert!(is_served(&mut idle, "operator"));
    // As soon as the first one is busy, the second one is the only one that can be closed.
    let mut new = world.connect();
    assert!(is_served(&mut new, "operator"));
    assert!(is_closed(&mut idle));
    let mut other = world.connect();
    other.write_all(keyed("/waits", "operator").as_bytes()).expect("it listens");
    assert!(is_closed(&mut new));
    // Both are busy now: another client is refused, and who needs no key is served.
    let refused = world.exchange(
        b"GET / HTTP/1.1\r\nhost: localhost\r\nauthorization: ann\r\nconnection: close\r\n\r\n",
    );
    assert!(refused.starts_with("HTTP/1.1 429 ") && refused.contains(": all 2 are taken;"));
    assert!(world.ask("GET", "/").ends_with("here"));
    may.add_permits(2);
    read_until(&mut busy, "waited");
    read_until(&mut other, "waited");
}

#[test]
fn one_client_cannot_take_all_connections() {
    let settings = Settings { max_connections: 8, ..patient() };
    let (world, may) = world(settings);
    let wait = |key: &str| {
        let mut waits = world.connect();
        waits.write_all(keyed("/waits", key).as_bytes()).expect("it listens");
        waits
    };
    let mut waiting: Vec<_> = (0..20).map(|_| wait("ann")).collect();
    assert!(is_served(&mut world.connect(), "bob"));
    let refused = world.exchange(
        b"GET / HTTP/1.1\r\nhost: localhost\r\nauthorization: ann\r\nconnection: close\r\n\r\n",
    );
    assert!(refused.contains("this client already holds 4 of 8"), "{refused}");
    may.add_permits(4);
    let answers = waiting.iter_mut().map(|stream| read_until(stream, "\r\n\r\n"));
    assert_eq!(answers.filter(|answer| answer.contains(" 200 ")).count(), 4);
}

#[test]
fn operators_cannot_take_the_connections_of_hosts_nor_hosts_theirs() {
    let settings = Settings { max_connections: 4, ..patient() };
    let (world, may) = world(settings);
    let wait = |key: &str| {
        let mut waits = world.connect();
        waits.write_all(keyed("/waits", key).as_bytes()).expect("it listens");
        waits
    };
    let mut waiting: Vec<_> = (0..4).map(|_| wait("operator")).collect();
    let more = b"GET / HTTP/1.1\r\nhost: localhost\r\nauthorization: operator\r\nconnection: close\r\n\r\n";
    while !world.exchange(more).contains("all 4 are taken") {}
    waiting.extend((0..8).map(|_| wait("host")));
    assert!(is_served(&mut world.connect(), "host"));
    may.add_permits(12);
    waiting.iter_mut().for_each(|waits| drop(read_until(waits, "waited")));
    assert!(is_served(&mut world.connect(), "operator"));
}

#[test]
fn a_health_check_is_answered_while_all_others_are_busy() {
    let settings = Settings { max_unauthenticated: 2, max_reserve: 1, ..patient() };
    let (world, may) = world(settings);
    let mut busy: Vec<_> = (0..2)
        .map(|_| {
            let mut busy = world.connect();
            busy.write_all(b"GET /waits HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("it listens");
            busy
        })
        .collect();
    let silent: Vec<_> = (0..8).map(|_| world.connect()).collect();
    // It stays open for one request only, although the client would keep it.
    let answer = world.exchange(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(answer.contains("connection: close") && answer.ends_with("here"), "{answer}");
    assert!(world.ask("GET", "/waits").ends_with("rendered: in reserve"));
    // Authenticated, it is one of the others.
    assert!(is_served(&mut world.connect(), "ann"));
    may.add_permits(2);
    busy.iter_mut().for_each(|busy| drop(read_until(busy, "waited")));
    drop(silent);
}
