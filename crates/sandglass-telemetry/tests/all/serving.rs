//! The metrics over HTTP, as a scraper sees them.

use std::net::{Ipv4Addr, SocketAddr};

use sandglass_telemetry::Prefix;
use sandglass_telemetry::prometheus::{Exporter, Serving};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

async fn ask(serving: &Serving, request: &str) -> String {
    let mut stream = TcpStream::connect(serving.local_addr()).await.expect("it listens");
    let head = format!("{request} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    answer
}

#[tokio::test]
async fn metrics_are_served_only_at_slash_metrics() {
    let exporter = Exporter::new(Prefix::default());
    exporter.metrics().transition("Session", "Ask");
    let serving = exporter.serve(ANY_PORT).await.expect("a free port");
    let answer = ask(&serving, "GET /metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    assert!(answer.contains(r#"entity_transitions_total{entity_type="Session",action="Ask"} 1"#));
    assert!(ask(&serving, "GET /").await.starts_with("HTTP/1.1 404 "));
    assert!(ask(&serving, "POST /metrics").await.starts_with("HTTP/1.1 405 "));
    assert!(ask(&serving, "what is this").await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn a_scraper_waits_while_all_connections_are_in_use() {
    let exporter = Exporter::new(Prefix::default());
    let serving = exporter.serve(ANY_PORT).await.expect("a free port");
    let mut silent = Vec::new();
    for _ in 0..16 {
        silent.push(TcpStream::connect(serving.local_addr()).await.expect("it listens"));
    }
    // All places are taken; the next scraper waits until one is free again.
    let waiting = ask(&serving, "GET /metrics");
    tokio::pin!(waiting);
    let none_free = tokio::select! {
        biased;
        _ = &mut waiting => false,
        () = yield_often() => true,
    };
    assert!(none_free);
    drop(silent.pop());
    assert!(waiting.await.starts_with("HTTP/1.1 200 "));
}

async fn yield_often() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_port_is_free_after_shutdown() {
    let exporter = Exporter::new(Prefix::default());
    let serving = exporter.serve(ANY_PORT).await.expect("a free port");
    let addr = serving.local_addr();
    serving.shutdown().await;
    assert!(TcpStream::connect(addr).await.is_err());
    let again = exporter.serve(addr).await.expect("free again");
    assert_eq!(again.local_addr(), addr);
}
