//! A client of the host: one connection, one request at a time (RFC 9112). It does as little as
//! possible, because it shares the cores with the host that is measured.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::server::KEY;
use crate::Failure;

/// Largest head of a response, in bytes.
const HEAD_MAX_BYTES: usize = 16 << 10;
/// What identifies the counter of completed runs in the host's metrics.
const COMPLETED: [&str; 3] =
    ["entity_transitions_total{", "entity_type=\"OpenwopRun\"", "action=\"Complete\""];
/// What identifies the counter of dropped readers.
const DROPPED: [&str; 1] = ["openwop_readers_dropped_total "];

#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Creates a run, and returns its id.
    pub(super) async fn create(&mut self, body: &str) -> Result<String, Failure> {
        let request = format!(
            "POST /v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer: Value = serde_json::from_slice(&self.answer(&request, 201).await?)?;
        Ok(answer["runId"].as_str().ok_or("a run without an id")?.to_owned())
    }

    /// The number of runs that have completed since the host was started.
    pub(super) async fn completed(&mut self) -> Result<u64, Failure> {
        self.counter(&COMPLETED).await
    }

    /// The number of readers that were dropped since the host was started.
    pub(super) async fn dropped(&mut self) -> Result<u64, Failure> {
        self.counter(&DROPPED).await
    }

    /// The counter whose line contains all of `parts`; zero if it was never incremented.
    async fn counter(&mut self, parts: &[&str]) -> Result<u64, Failure> {
        let text = String::from_utf8(self.get("/metrics").await?)?;
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let line = lines.find(|line| parts.iter().all(|part| line.contains(part)));
        let Some(line) = line else { return Ok(0) };
        Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
    }

    /// The events of a run, as a list.
    pub(super) async fn events(&mut self, run: &str) -> Result<Vec<Value>, Failure> {
        let answer = self.get(&format!("/v1/runs/{run}/events")).await?;
        let mut answer: Value = serde_json::from_slice(&answer)?;
        match answer["events"].take() {
            Value::Array(events) => Ok(events),
            _ => Err("no list of events".into()),
        }
    }

    async fn get(&mut self, path: &str) -> Result<Vec<u8>, Failure> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n\
             authorization: Bearer {KEY}\r\n\r\n"
        );
        self.answer(&request, 200).await
    }

    /// Sends `request`, and returns the body of the response. Errors if the response does not have
    /// this status.
    async fn answer(&mut self, request: &str, status: u16) -> Result<Vec<u8>, Failure> {
        self.stream.write_all(request.as_bytes()).await?;
        let end = loop {
            if let Some(end) = head_end(&self.received) {
                break end;
            }
            self.receive().await?;
        };
        let head = String::from_utf8_lossy(&self.received[..end]).to_ascii_lowercase();
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.ok_or("an answer without a length")?.trim().parse()?;
        while self.received.len() < end + length {
            self.receive().await?;
        }
        let body = self.received[end..end + length].to_vec();
        self.received.drain(..end + length);
        if head.split(' ').nth(1) == Some(&status.to_string()) {
            Ok(body)
        } else {
            let first = head.lines().next().unwrap_or_default();
            Err(format!("{first}: {}", String::from_utf8_lossy(&body)).into())
        }
    }

    async fn receive(&mut self) -> Result<(), Failure> {
        match self.stream.read_buf(&mut self.received).await? {
            0 => Err("the host closed a connection".into()),
            _ => Ok(()),
        }
    }
}

/// The end of a response's head; `None` until the head is complete.
pub(super) fn head_end(received: &[u8]) -> Option<usize> {
    let within = &received[..received.len().min(HEAD_MAX_BYTES)];
    within.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}
