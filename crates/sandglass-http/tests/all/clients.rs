//! Clients that are silent, slow, too many or too long, and what no route serves.

use std::io::{Read as _, Write as _};

use axum::Router;
use axum::routing::get;
use sandglass_http::{HEAD_MIN_BYTES, Settings};

use crate::world::{SHORT, World, keyed};

fn world(settings: Settings) -> World {
    let router = Router::new()
        .route("/", get(async || "here"))
        .route("/large", get(async || "x".repeat(64 << 20)))
        .route("/panics", get(async || -> &'static str { panic!("as a test wants it") }));
    World::new(router, settings)
}

#[test]
fn the_interface_renders_errors_of_unknown_paths_and_methods() {
    let world = world(Settings::default());
    let path = world.ask("GET", "/nowhere");
    assert!(
        path.starts_with("HTTP/1.1 404 ") && path.ends_with("rendered: there is no `/nowhere`")
    );
    let method = world.ask("POST", "/");
    assert!(method.starts_with("HTTP/1.1 405 ") && method.contains("\r\nallow: GET,HEAD\r\n"));
    assert!(method.contains("rendered: the path does not support POST"), "{method}");
    let head = world.ask("HEAD", "/");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn a_panic_is_answered_and_affects_no_other_request() {
    let world = world(Settings::default());
    let answer = world.ask("GET", "/panics");
    assert!(
        answer.starts_with("HTTP/1.1 500 ") && answer.ends_with("rendered: it failed"),
        "{answer}"
    );
    assert!(world.ask("GET", "/").ends_with("here"));
}

#[test]
fn responses_forbid_sniffing_and_caching() {
    let answer = world(Settings::default()).ask("GET", "/");
    for header in ["x-content-type-options: nosniff", "cache-control: no-store"] {
        assert!(answer.contains(header), "{answer}");
    }
}

#[test]
fn a_client_that_never_completes_its_head_is_disconnected_and_frees_its_slot() {
    let world =
        world(Settings { max_unauthenticated: 1, head_timeout: SHORT, ..Settings::default() });
    let mut silent = world.connect();
    silent.write_all(b"GET / HTTP/1.1\r\nhost: loc").expect("it listens");
    assert!(world.ask("GET", "/").ends_with("here"));
    // By an end or a reset.
    let _ = silent.read_to_end(&mut Vec::new());
}

#[test]
fn a_client_that_reads_nothing_is_disconnected_and_frees_its_slot() {
    let world = world(Settings { max_connections: 1, write_timeout: SHORT, ..Settings::default() });
    let mut slow = world.connect();
    slow.write_all(keyed("/large", "operator").as_bytes()).expect("it listens");
    slow.peek(&mut [0]).expect("the answer begins");
    world.until_there_is_a_slot();
    let mut all = Vec::new();
    let _ = slow.read_to_end(&mut all);
    assert!(all.len() < 64 << 20, "it got all of it");
}

#[test]
fn a_head_has_a_size_and_a_number_of_headers() {
    let world = world(Settings { head_max_bytes: 0, headers_max: 4, ..Settings::default() });
    let with = |headers: &str| {
        world.exchange(
            format!("GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n")
                .as_bytes(),
        )
    };
    assert!(with("a: b\r\n").ends_with("here"));
    for bad in ["a: b\r\n".repeat(3), format!("a: {}\r\n", "b".repeat(2 * HEAD_MIN_BYTES))] {
        let answer = with(&bad);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
}
