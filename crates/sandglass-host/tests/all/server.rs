//! A small HTTP server that responds as a test specifies, slowly, or never.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// The response of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) after: Duration,
    pub(crate) never: bool,
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: String,
    /// Sends the body byte by byte, at this interval.
    pub(crate) drip: Option<Duration>,
    /// Responds with 401 to a request without this header line.
    pub(crate) wants_header: Option<String>,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(script: Script) -> Self {
        let socket = TcpSocket::new_v4().expect("there are sockets");
        if script.never {
            // So that a client that sends without end is soon blocked.
            socket.set_recv_buffer_size(4096).expect("it may be small");
        }
        let loopback = "127.0.0.1:0".parse().expect("an address");
        socket.bind(loopback).expect("loopback has ports");
        let listener = socket.listen(64).expect("it listens");
        let address = listener.local_addr().expect("it is bound");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script.clone(), Arc::clone(&seen)));
            }
        });
        Self { address, requests, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The heads of the requests so far, in lower case.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, script: Script, seen: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read_buf(&mut head).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    let chunked = head.to_ascii_lowercase().windows(7).any(|window| window == b"chunked");
    while chunked && !script.never && !head.ends_with(b"0\r\n\r\n") {
        match stream.read_buf(&mut head).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let wanted = script.wants_header.as_ref().map(|line| line.to_ascii_lowercase());
    let authorised = wanted.is_none_or(|wanted| head.contains(&wanted));
    seen.lock().expect("no panic").push(head);
    if script.never {
        return std::future::pending().await;
    }
    #[allow(clippy::disallowed_methods, reason = "the server's slowness is what is tested")]
    tokio::time::sleep(script.after).await;
    if let Some(between) = script.drip {
        return drip(stream, &script, between).await;
    }
    let status = if authorised { script.status } else { 401 };
    let answer = format!(
        "HTTP/1.1 {status} X\r\nconnection: close\r\n{}content-length: {}\r\n\r\n{}",
        script.headers,
        script.body.len(),
        script.body
    );
    drop(stream.write_all(answer.as_bytes()).await);
}

async fn drip(mut stream: TcpStream, script: &Script, between: Duration) {
    let head =
        format!("HTTP/1.1 {} X\r\ncontent-length: {}\r\n\r\n", script.status, script.body.len());
    drop(stream.write_all(head.as_bytes()).await);
    for byte in script.body.as_bytes() {
        drop(stream.write_all(&[*byte]).await);
        #[allow(clippy::disallowed_methods, reason = "the server's slowness is what is tested")]
        tokio::time::sleep(between).await;
    }
}
