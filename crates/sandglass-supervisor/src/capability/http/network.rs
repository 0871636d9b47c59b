//! The HTTP client of the host: connections, redirects and transport errors.

mod address;
mod declared;
mod pools;
mod resolver;

use std::error::Error;
use std::io::{self, ErrorKind};
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::StatusCode;
use reqwest::header::HeaderValue;

use super::request::Body;
use super::{
    DEADLINE_HEADER, HttpCall, HttpClient, HttpError, Limits, MAX_REDIRECTS, Opened, Request,
    Response,
};
use crate::capability::outside::RequestCharge;
use crate::lease::Lease;
use crate::secret::Answer;
use declared::DeclaredBody;
use pools::{PooledClient, Pools};
use resolver::NotPublic;

/// The HTTP client of the host. Dispatches of one integration for one tenant share a pool of
/// connections.
#[derive(Debug)]
pub struct NetworkClient {
    pools: Pools,
    lease: Lease,
}

impl NetworkClient {
    /// Creates a client that keeps at most so many idle connections. It sends each request, and follows
    /// each redirect, only while `lease` is valid, and waits for that otherwise.
    pub fn new(idle_connections: u32, lease: Lease) -> Self {
        Self { pools: Pools::new(idle_connections as usize), lease }
    }

    async fn send_once(
        client: &reqwest::Client,
        request: &mut Request,
        remaining: Duration,
        traceparent: &str,
    ) -> Result<reqwest::Response, HttpError> {
        let has_body = request.body.is_some();
        let body = match &mut request.body {
            Body::Whole(bytes) => reqwest::Body::from(bytes.clone()),
            Body::Pieces { pieces, length } => match (pieces.take(), *length) {
                (Some(pieces), None) => reqwest::Body::wrap_stream(pieces),
                (Some(pieces), Some(length)) => {
                    reqwest::Body::wrap(DeclaredBody::new(pieces, length))
                }
                (None, _) => reqwest::Body::default(),
            },
        };
        client
            .request(request.method.clone(), request.url.clone())
            .headers(request.headers.clone())
            .header(DEADLINE_HEADER, remaining.as_millis().to_string())
            .header("traceparent", traceparent)
            .body(body)
            .send()
            .await
            .map_err(|error| {
                if let Some(refused) = caused_by::<NotPublic>(&error) {
                    HttpError::NotPublic(refused.to_string())
                } else if let Some(error) = caused_by::<HttpError>(&error) {
                    error.clone()
                } else if has_body && is_cut_off(&error) {
                    HttpError::Transport(CUT_OFF.to_owned())
                } else {
                    transport(error)
                }
            })
    }

    async fn follow(
        &self,
        call: HttpCall<'_>,
    ) -> Result<(reqwest::Response, PooledClient), HttpError> {
        let HttpCall { mut request, destinations, limits, traceparent, origin: _ } = call;
        #[allow(clippy::disallowed_methods, reason = "the network answers in real time")]
        let began = tokio::time::Instant::now();
        let private = Arc::new(destinations.private_names());
        for redirects_left in (0..=MAX_REDIRECTS).rev() {
            destinations.check(&request.url)?;
            let pooled = self.pools.client(&request.sender, &private, request.server()).await?;
            // The call began under a valid lease, which may have run out since.
            self.lease.park().await;
            #[allow(clippy::disallowed_methods, reason = "the network answers in real time")]
            let remaining = limits.remaining.saturating_sub(began.elapsed());
            let response =
                Self::send_once(&pooled.client, &mut request, remaining, traceparent).await?;
            let status = response.status();
            if let Some(journey) = &request.journey {
                journey.head(status.as_u16());
            }
            let follows = is_redirect(status) && matches!(request.body, Body::Whole(_));
            let location = response.headers().get("location").filter(|_| follows);
            let Some(location) = location else { return Ok((response, pooled)) };
            let journey = request.journey.clone();
            if redirects_left == 0 {
                if let Some(journey) = journey {
                    journey.redirected(status.as_u16());
                }
                break;
            }
            let location = location
                .to_str()
                .map_err(|_| HttpError::Transport("redirected to what is no URL".to_owned()))?;
            request = request.redirected(status, location)?;
            if let Some(journey) = journey {
                journey.goes_on(status.as_u16(), &request);
            }
        }
        Err(HttpError::TooManyRedirects)
    }
}

impl HttpClient for NetworkClient {
    fn send<'a>(&'a self, call: HttpCall<'a>) -> Answer<'a, Result<Response, HttpError>> {
        let limits = call.limits;
        Box::pin(async move {
            let received = async {
                let charge = call.request.charge.clone();
                let (response, _pooled) = self.follow(call).await?;
                read(response, limits, charge.as_ref()).await
            };
            limits.bound(received).await
        })
    }

    fn open<'a>(&'a self, call: HttpCall<'a>) -> Answer<'a, Result<Opened, HttpError>> {
        let limits = call.limits;
        Box::pin(async move {
            let opened = async {
                let (response, pooled) = self.follow(call).await?;
                let status = response.status().as_u16();
                let headers = headers(&response);
                let body = response.bytes_stream().map(|piece| piece.map_err(transport));
                Ok(Opened { status, headers, body: Box::pin(body) }.holding(pooled))
            };
            limits.bound(opened).await
        })
    }
}

fn headers(response: &reqwest::Response) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

async fn read(
    mut response: reqwest::Response,
    limits: Limits,
    charge: Option<&RequestCharge>,
) -> Result<Response, HttpError> {
    let status = response.status().as_u16();
    let headers = headers(&response);
    let too_large = HttpError::TooLarge(limits.response_bytes);
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(transport)? {
        if (body.len() + chunk.len()) as u64 > limits.response_bytes {
            return Err(too_large);
        }
        if let Some(charge) = charge.filter(|_| body.capacity() - body.len() < chunk.len()) {
            // A growing vector doubles its capacity.
            charge.holds_body((body.capacity() * 2).max(body.len() + chunk.len()))?;
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Response { status, headers, body })
}

/// A server may respond before it has read the whole body. If it then waits, or closes its half of the
/// connection, the response is read. If it closes the connection, writing usually fails first, and the
/// client drops what it has not read.
const CUT_OFF: &str = "the server closed the connection, perhaps before it had read the whole \
    body; an answer that it gave is lost";

/// Whether the server closed the established connection.
fn is_cut_off(error: &reqwest::Error) -> bool {
    caused_by::<io::Error>(error).is_some_and(|error| {
        matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
    })
}

/// The first error of this type among the sources of `error`.
fn caused_by<T: Error + 'static>(error: &reqwest::Error) -> Option<&T> {
    sources(error).find_map(|source| source.downcast_ref())
}

fn sources(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    iter::successors(error.source(), |&error| error.source())
}

/// Formats `error` with all its sources, in one line. Without its URL, whose query may contain a secret.
fn transport(error: reqwest::Error) -> HttpError {
    let error = error.without_url();
    let mut text = error.to_string();
    for cause in sources(&error).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    HttpError::Transport(text)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use bytes::Bytes;
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

    use super::super::{Destination, Destinations, Limits, Pieces, Sender};
    use super::*;
    use crate::capability::streams;

    /// Longer than these tests take on a busy machine.
    const LONG: Duration = Duration::from_secs(30);

    /// More than the buffers of both ends of a connection hold.
    const LARGE: usize = 64 << 20;

    const LIMITS: Limits = Limits { timeout: LONG, remaining: LONG, response_bytes: 1 << 20 };

    const ANSWER: &str =
        "HTTP/1.1 413 X\r\nconnection: close\r\ncontent-length: 9\r\n\r\ntoo large";

    /// What a server does after it has read a few bytes of a request.
    #[derive(Clone, Copy, Debug)]
    enum Then {
        AnswersAndWaits,
        AnswersAndClosesItsHalf,
        AnswersAndCloses,
        Closes,
    }

    /// Starts a server that serves each connection, which is passed with its number.
    async fn server<F: Future<Output = ()> + Send + 'static>(
        serve: impl Fn(TcpStream, usize) -> F + Send + 'static,
    ) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            for number in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                tokio::spawn(serve(stream, number));
            }
        });
        address
    }

    async fn serve(mut stream: TcpStream, then: Then) {
        // With unread bytes, closing resets the connection.
        drop(stream.read(&mut [0; 16]).await);
        if !matches!(then, Then::Closes) {
            drop(stream.write_all(ANSWER.as_bytes()).await);
        }
        match then {
            Then::AnswersAndWaits => std::future::pending().await,
            Then::AnswersAndClosesItsHalf => {
                drop(stream.shutdown().await);
                drop(tokio::io::copy(&mut stream, &mut tokio::io::sink()).await);
            }
            Then::AnswersAndCloses | Then::Closes => {}
        }
    }

    fn client() -> NetworkClient {
        NetworkClient::new(100, Lease::default())
    }

    fn reached(address: SocketAddr) -> (String, Destinations) {
        let destination: Destination = address.to_string().parse().expect("a host");
        (format!("http://{address}/"), Destinations::from_iter([destination]))
    }

    fn call(request: Request, destinations: &Destinations) -> HttpCall<'_> {
        let origin = crate::testing::call_origin();
        HttpCall { request, destinations, limits: LIMITS, traceparent: "00", origin }
    }

    /// Sends a whole body, and returns the status and the body of the response.
    async fn sent(then: Then) -> Result<(u16, String), HttpError> {
        let (url, destinations) = reached(server(move |stream, _| serve(stream, then)).await);
        let request = Request::new("POST", &url, [], vec![0; LARGE]).expect("valid");
        let response = client().send(call(request, &destinations)).await?;
        Ok((response.status, String::from_utf8_lossy(&response.body).into_owned()))
    }

    /// Writes a body until that fails, and returns the status and the body of the response.
    async fn written(then: Then) -> Result<(u16, String), HttpError> {
        let (url, destinations) = reached(server(move |stream, _| serve(stream, then)).await);
        let (pieces, body) = streams::body();
        let request = Request::streamed("POST", &url, [], body).expect("valid");
        let response = Box::pin(async move { client().open(call(request, &destinations)).await });
        let mut outgoing = streams::OutgoingRequest::new(pieces, response);
        while outgoing.write(Bytes::from_static(&[0; 1 << 16])).await.is_ok() {}
        let mut response = outgoing.finish().await?;
        let body = response.read(1000).await?;
        Ok((response.status, String::from_utf8_lossy(&body).into_owned()))
    }

    #[tokio::test]
    async fn a_response_is_read_even_if_the_server_did_not_read_the_body() {
        for then in [Then::AnswersAndWaits, Then::AnswersAndClosesItsHalf] {
            let answer = Ok((413, "too large".to_owned()));
            assert_eq!(sent(then).await, answer, "{then:?}");
            assert_eq!(written(then).await, answer, "{then:?}");
        }
    }

    #[tokio::test]
    async fn the_error_of_a_lost_response_says_so() {
        let lost = HttpError::Transport(CUT_OFF.to_owned());
        assert_eq!(sent(Then::Closes).await, Err(lost.clone()));
        assert_eq!(written(Then::Closes).await, Err(lost.clone()));
        for came in [sent(Then::AnswersAndCloses).await, written(Then::AnswersAndCloses).await] {
            match came {
                Ok(answer) => assert_eq!(answer, (413, "too large".to_owned())),
                Err(error) => assert_eq!(error, lost),
            }
        }
    }

    /// A server that keeps its connections open, and reports each request: the number of its
    /// connection, its head and its body.
    async fn keeping_server() -> (SocketAddr, mpsc::UnboundedReceiver<(usize, String, Vec<u8>)>) {
        let (seen, requests) = mpsc::unbounded_channel();
        (server(move |stream, number| answer_all(stream, number, seen.clone())).await, requests)
    }

    async fn answer_all(
        stream: TcpStream,
        number: usize,
        seen: mpsc::UnboundedSender<(usize, String, Vec<u8>)>,
    ) {
        let mut stream = BufReader::new(stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                match stream.read_line(&mut head).await {
                    Ok(1..) => {}
                    _ => return,
                }
            }
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().expect("digits"))];
            if stream.read_exact(&mut body).await.is_err() {
                return;
            }
            let _ = seen.send((number, head, body));
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn of(tenant: &str, integration: &str) -> Sender {
        Sender { tenant: tenant.into(), integration: integration.into() }
    }

    /// Responds with a redirect to `/next`, before which the lease ends, and then with success.
    async fn redirect(stream: TcpStream, lease: Lease, seen: mpsc::UnboundedSender<String>) {
        let mut stream = BufReader::new(stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                match stream.read_line(&mut head).await {
                    Ok(1..) => {}
                    _ => return,
                }
            }
            let answer = if head.starts_with("GET /next ") {
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
            } else {
                lease.expire();
                "HTTP/1.1 302 Found\r\nlocation: /next\r\ncontent-length: 0\r\n\r\n"
            };
            let _ = seen.send(head);
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    #[tokio::test]
    async fn a_redirect_is_followed_only_under_a_valid_lease() {
        let lease = Lease::expired();
        let (seen, mut requests) = mpsc::unbounded_channel();
        let serve = {
            let lease = lease.clone();
            move |stream, _| redirect(stream, lease.clone(), seen.clone())
        };
        let (url, destinations) = reached(server(serve).await);
        let client = NetworkClient::new(100, lease.clone());
        let request = Request::new("GET", &url, [], Vec::new()).expect("valid");
        let mut sent = client.send(call(request, &destinations));
        for path in ["/", "/next"] {
            // It waits before it sends anything.
            while lease.parked() == 0 {
                tokio::select! {
                    biased;
                    answer = &mut sent => panic!("it was sent: {answer:?}"),
                    () = tokio::task::yield_now() => {}
                }
            }
            assert!(requests.try_recv().is_err(), "{path}");
            lease.extend(lease.now().after(LONG));
            let head = tokio::select! {
                head = requests.recv() => head.expect("it came"),
                answer = &mut sent => {
                    assert_eq!((path, answer.map(|answer| answer.status)), ("/next", Ok(200)));
                    requests.recv().await.expect("it came")
                }
            };
            assert!(head.starts_with(&format!("GET {path} ")), "{head}");
        }
    }

    #[tokio::test]
    async fn tenants_and_integrations_share_no_connections() {
        let (address, mut seen) = keeping_server().await;
        let (url, destinations) = reached(address);
        let client = client();
        let senders = [of("a", "x"), of("a", "x"), of("b", "x"), of("a", "y"), of("b", "x")];
        let mut connections = Vec::new();
        for sender in senders {
            let mut request = Request::new("GET", &url, [], Vec::new()).expect("valid");
            request.sender = sender;
            client.send(call(request, &destinations)).await.expect("answered");
            connections.push(seen.recv().await.expect("it came").0);
        }
        assert_eq!(connections, [0, 0, 1, 2, 1]);
    }

    #[tokio::test]
    async fn a_declared_length_is_sent_and_enforced() {
        let (address, mut seen) = keeping_server().await;
        let (url, destinations) = reached(address);
        let client = client();
        let send = async |method: &str, declared: &str, body: &'static str| {
            let headers = [("content-length".to_owned(), declared.to_owned())];
            let piece = Ok(Bytes::from_static(body.as_bytes()));
            let pieces: Pieces = Box::pin(futures_util::stream::iter([piece]));
            let request = Request::streamed(method, &url, headers, pieces).expect("valid");
            client.open(call(request, &destinations)).await.map(|opened| opened.status)
        };
        for method in ["POST", "GET"] {
            assert_eq!(send(method, "03", "abc").await, Ok(200), "{method}");
            let (_, head, body) = seen.recv().await.expect("it came");
            assert!(head.contains("\r\ncontent-length: 3\r\n"), "{head}");
            assert!(!head.contains("transfer-encoding"), "{head}");
            assert_eq!(body, b"abc");
        }
        let smuggled = "abcGET /admin HTTP/1.1\r\nhost: x\r\n\r\n";
        for (declared, body) in [("3", smuggled), ("300", "abc")] {
            let error = send("POST", declared, body).await.expect_err("another length");
            assert!(matches!(error, HttpError::InvalidRequest(_)), "{error:?}");
        }
        assert_eq!(send("POST", "3", "abc").await, Ok(200));
        let (_, head, body) = seen.recv().await.expect("it came");
        assert!(
            head.starts_with("POST / ") && body == b"abc",
            "nothing was smuggled in between: {head}"
        );
    }

    #[tokio::test]
    async fn a_name_of_this_machine_is_refused_unless_it_is_granted() {
        let (address, mut seen) = keeping_server().await;
        let url = format!("http://localhost:{}/", address.port());
        let client = client();
        // DNS could resolve any name to this machine; only `localhost` is granted with its addresses.
        let request = || Request::new("GET", &url, [], Vec::new()).expect("valid");
        let granted: Destination = "localhost".parse().expect("a host");
        let granted = Destinations::from_iter([granted]);
        client.send(call(request(), &granted)).await.expect("answered");
        seen.recv().await.expect("it came");
        let server = "localhost".to_owned();
        let pooled = client.pools.client(&Sender::default(), &Arc::default(), server).await;
        let pooled = pooled.expect("a client");
        let error = pooled.client.get(&url).send().await.expect_err("it is not public");
        assert!(caused_by::<NotPublic>(&error).is_some(), "{error:?}");
    }
}
