//! A served router, and clients that are sockets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use sandglass_http::{
    ConnectionSlot, Holder, NoRoute, Serving, Settings, Tls, serve, with_fallbacks, with_guards,
};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// For what should fail soon.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

pub(crate) struct World {
    runtime: Runtime,
    serving: Option<Serving>,
    address: SocketAddr,
}

impl World {
    pub(crate) fn new(router: Router, settings: Settings) -> Self {
        Self::with_tls(router, settings, None)
    }

    pub(crate) fn with_tls(router: Router, settings: Settings, tls: Option<Tls>) -> Self {
        let runtime = Runtime::new().expect("threads");
        let router = with_fallbacks(router, render).layer(from_fn(door));
        let router = with_guards(router, panicked);
        let serving = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
            serve(listener, router, settings, tls).expect("it has an address")
        });
        let address = serving.local_addr();
        Self { runtime, serving: Some(serving), address }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        stream
    }

    /// What comes until the connection ends.
    pub(crate) fn exchange(&self, sent: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(sent).expect("it listens");
        let mut answer = Vec::new();
        // It may be reset behind the answer, where not all was read that was sent.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    }

    pub(crate) fn ask(&self, method: &str, path: &str) -> String {
        self.exchange(request(method, path).as_bytes())
    }

    /// Returns once an authenticated client has a slot again.
    pub(crate) fn until_there_is_a_slot(&self) {
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nauthorization: operator\r\n\
                        connection: close\r\n\r\n";
        while self.exchange(request).starts_with("HTTP/1.1 429 ") {}
    }

    pub(crate) fn stop_accepting(&self) {
        self.serving.as_ref().expect("it is served").stop_accepting();
    }

    pub(crate) fn drain(&mut self, time: Duration) -> bool {
        let serving = self.serving.take().expect("it is served");
        self.runtime.block_on(serving.drain(time)).is_ok()
    }

    pub(crate) fn refuses_connections(&self) -> bool {
        TcpStream::connect(self.address).is_err()
    }
}

pub(crate) fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
}

/// A request with a key, after which the connection stays open.
pub(crate) fn keyed(path: &str, key: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: {key}\r\n\r\n")
}

/// What comes until `end` has come.
pub(crate) fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    let mut piece = [0; 1 << 10];
    while !String::from_utf8_lossy(&read).contains(end) {
        let length = stream.read(&mut piece).expect("it says more");
        assert!(length > 0, "it ended: {}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&piece[..length]);
    }
    String::from_utf8(read).expect("text")
}

/// Requests with a key are of its holder, `operator` or another.
async fn door(request: Request, next: Next) -> Response {
    let key = request.headers().get(header::AUTHORIZATION).and_then(|key| key.to_str().ok());
    let slot = request.extensions().get::<ConnectionSlot>().expect("each connection has one");
    let holder = key.map(|key| match key {
        "operator" => Holder::Operator,
        "host" => Holder::Host,
        other => Holder::Client(other.into()),
    });
    match holder.map(|holder| slot.authenticate(&holder)) {
        Some(Err(refused)) => (StatusCode::TOO_MANY_REQUESTS, refused.to_string()).into_response(),
        None if slot.check_unauthenticated().is_err() && request.uri().path() != "/" => {
            (StatusCode::TOO_MANY_REQUESTS, "rendered: in reserve").into_response()
        }
        Some(Ok(())) | None => next.run(request).await,
    }
}

fn render(no_route: NoRoute) -> Response {
    let status = match no_route {
        NoRoute::Path { .. } => StatusCode::NOT_FOUND,
        NoRoute::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
    };
    (status, format!("rendered: {no_route}")).into_response()
}

fn panicked() -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, "rendered: it failed").into_response()
}
