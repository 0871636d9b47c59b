//! Bodies that are too large, too slow or no bodies.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use sandglass_http::Settings;
use sandglass_http::body::{self, DuplicateKeys, Limits};
use serde_json::Value;

use crate::world::{SHORT, World};

const LIMITS: Limits = Limits { max_bytes: 100, timeout: SHORT };

async fn read(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let read = async {
        let bytes = body::bytes(&parts.headers, body, LIMITS, || Ok::<_, body::Error>(())).await?;
        body::json::<Value>(&parts.headers, &bytes, DuplicateKeys::LastWins)
    };
    match read.await {
        Ok(value) => format!("read {value:?}").into_response(),
        Err(error) => (error.status(), format!("rendered: {error}")).into_response(),
    }
}

fn world() -> World {
    World::new(Router::new().route("/", post(read)), Settings::default())
}

fn head(length: &str) -> String {
    format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\n{length}\r\n\r\n"
    )
}

#[test]
fn a_body_within_its_limits_is_read() {
    let answer = world().exchange(format!("{}{{\"a\":1}}", head("content-length: 7")).as_bytes());
    assert!(answer.contains(r#"read Some(Object {"a": Number(1)})"#), "{answer}");
    let none = world().exchange(head("content-length: 0").as_bytes());
    assert!(none.contains("read None"), "{none}");
}

#[test]
fn a_body_that_is_trickled_is_refused() {
    let world = world();
    let mut slow = world.connect();
    slow.write_all(head("content-length: 90").as_bytes()).expect("it listens");
    // A byte now and then, each in time, until there is a response; a server that waits for the
    // answer also waits between the bytes.
    slow.set_read_timeout(Some(SHORT / 4)).expect("a socket");
    let mut answer = Vec::new();
    for _ in 1..90 {
        let mut first = [0; 1];
        if let Ok(length) = slow.read(&mut first) {
            answer.extend_from_slice(&first[..length]);
            break;
        }
        let _ = slow.write_all(b" ");
    }
    slow.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    // It may be reset behind the answer.
    let _ = slow.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("text");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[test]
fn a_body_that_is_too_large_is_refused_with_or_without_an_announced_length() {
    let world = world();
    let announced = world.exchange(head("content-length: 101").as_bytes());
    assert!(announced.starts_with("HTTP/1.1 413 "), "{announced}");
    assert!(announced.contains("the body has 101 bytes, and 100 are allowed"), "{announced}");
    let mut chunked = head("transfer-encoding: chunked");
    chunked.push_str(&format!("65\r\n{}\r\n0\r\n\r\n", " ".repeat(0x65)));
    let chunked = world.exchange(chunked.as_bytes());
    assert!(chunked.starts_with("HTTP/1.1 413 "), "{chunked}");
}

#[test]
fn a_body_that_is_cut_off_is_reported() {
    let world = world();
    let mut broken = world.connect();
    broken.write_all(head("content-length: 90").as_bytes()).expect("it listens");
    broken.write_all(b"{").expect("it listens");
    broken.shutdown(Shutdown::Write).expect("it is connected");
    let mut answer = String::new();
    broken.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("ended early"), "{answer}");
}
