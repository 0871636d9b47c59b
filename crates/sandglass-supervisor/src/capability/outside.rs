//! Outgoing HTTP requests of one run, with its grants, deadline and trace. Every request passes here
//! and is noted.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_model::{Clock, DispatchId};

use super::Grants;
use super::http::{HttpCall, HttpClient, HttpError, Limits, Opened, Request, Response, Sender};
use super::requests::{RequestInFlight, Requests};
use crate::covered;
use crate::dispatch::Dispatch;
use crate::host_memory::{Charge, HostMemory, OutOfHostMemory};
use crate::run::Run;
use crate::secret::Answer;
use crate::sync::lock;

/// Sends the requests of one run. Clones share its state.
#[derive(Debug, Clone)]
pub struct Outside {
    pub(super) grants: Arc<Grants>,
    pub(super) dispatch: Arc<Dispatch>,
    pub(super) id: DispatchId,
    pub(super) traceparent: Arc<str>,
    /// The run that sends requests.
    pub run: Arc<Run>,
    /// The clock of the host.
    pub clock: Arc<dyn Clock>,
    pub(super) requests: Requests,
    pub(super) sender: Sender,
    /// How many requests of the run are open.
    pub(super) open: Arc<AtomicU32>,
    /// The account of the run.
    pub memory: HostMemory,
}

// Each request is charged as long as it exists; `Guest` measures the list of the last ones.
covered!(Outside: grants, dispatch, id, traceparent, run, clock, requests, sender, open, memory);

/// What one open request occupies besides its head and bodies, in bytes: the head of its
/// response, and the buffers of its connection.
const OPEN_REQUEST_BYTES: u64 = 256 << 10;

/// The charge of one request that is being sent. The client that reads the response resizes it;
/// clones share it.
#[derive(Clone, Debug)]
pub(super) struct RequestCharge {
    charge: Arc<Mutex<Charge>>,
    /// Bytes without the bodies.
    open_bytes: u64,
}

impl RequestCharge {
    fn new(memory: &HostMemory, request: &Request) -> Result<Self, OutOfHostMemory> {
        let open_bytes = OPEN_REQUEST_BYTES.saturating_add(request.head_bytes());
        let charge = Arc::new(Mutex::new(memory.charge(open_bytes)?));
        Ok(Self { charge, open_bytes })
    }

    /// Charges `body_bytes` of the response besides the open request.
    pub(super) fn holds_body(&self, body_bytes: usize) -> Result<(), OutOfHostMemory> {
        self.resize(self.open_bytes.saturating_add(body_bytes as u64))
    }

    /// Charges `response` alone: the request is no longer open.
    fn holds_only(&self, response: &Response) -> Result<(), OutOfHostMemory> {
        let Response { status: _, headers, body } = response;
        self.resize(headers_bytes(headers) + body.capacity() as u64)
    }

    /// Charges the `headers` of an arrived response, besides the open request.
    fn holds_head(&self, headers: &[(String, String)]) -> Result<(), OutOfHostMemory> {
        /// As they were read, as these texts, and as an object of `wasi:http`.
        const COPIES: u64 = 3;
        self.resize(self.open_bytes.saturating_add(COPIES * headers_bytes(headers)))
    }

    fn resize(&self, bytes: u64) -> Result<(), OutOfHostMemory> {
        lock(&self.charge).resize(bytes)
    }
}

/// What the headers of a response occupy, in bytes.
pub(super) fn headers_bytes(headers: &[(String, String)]) -> u64 {
    let texts = headers.iter().map(|(name, value)| name.capacity() + value.capacity());
    texts.sum::<usize>() as u64 + size_of_val(headers) as u64
}

/// A whole response, charged until this is dropped.
#[derive(Debug)]
pub struct ReceivedResponse {
    /// The response.
    pub response: Response,
    _charge: RequestCharge,
}

impl Outside {
    /// Most time that a request may take from now on, unless its host call has a limit of its own.
    pub fn timeout(&self) -> Duration {
        self.left().min(self.grants.host_call_timeout)
    }

    /// Sends `request` and reads the whole response.
    pub fn send(self, request: Request) -> Answer<'static, Result<ReceivedResponse, HttpError>> {
        let most = self.grants.response_bytes;
        self.send_within(request, most)
    }

    /// Sends `request` and reads the whole response, with a body of at most `response_bytes`.
    pub fn send_within(
        self,
        request: Request,
        response_bytes: u64,
    ) -> Answer<'static, Result<ReceivedResponse, HttpError>> {
        Box::pin(async move {
            let answer = self.send_noted(request, response_bytes).await;
            answer.inspect_err(|error| self.requests.note_refusal(error))
        })
    }

    /// Sends `request` and reads the whole response, of at most `response_bytes`. The guest gets the
    /// reason of a refusal with the response, so it does not have to ask for it.
    pub(super) async fn send_noted(
        &self,
        mut request: Request,
        response_bytes: u64,
    ) -> Result<ReceivedResponse, HttpError> {
        let (in_flight, charge) = self.begin(&mut request)?;
        let answer = self.receive(request, charge, response_bytes).await;
        in_flight.ended(answer.as_ref().map(|received| received.response.status));
        answer
    }

    /// Notes `request` as sent now, and charges it.
    fn begin(&self, request: &mut Request) -> Result<(RequestInFlight, RequestCharge), HttpError> {
        request.sender = self.sender.clone();
        let in_flight = self.requests.begin(request, &self.clock);
        match RequestCharge::new(&self.memory, request) {
            Ok(charge) => Ok((in_flight, charge)),
            Err(error) => {
                let error = error.into();
                in_flight.refused(&error);
                Err(error)
            }
        }
    }

    async fn receive(
        &self,
        mut request: Request,
        charge: RequestCharge,
        response_bytes: u64,
    ) -> Result<ReceivedResponse, HttpError> {
        request.charge = Some(charge.clone());
        let open = self.grants.open_requests.open(&self.sender, &self.open)?;
        let sent = self.client().send(self.call(request, response_bytes)).await;
        drop(open);
        let response = sent?;
        // A client of the embedder may not bound what it reads.
        if response.body.len() as u64 > response_bytes {
            return Err(HttpError::TooLarge(response_bytes));
        }
        // A client of the embedder charges nothing while it reads.
        charge.holds_only(&response)?;
        Ok(ReceivedResponse { response, _charge: charge })
    }

    /// Charges `request` at once; the future sends it, and waits for the response's head.
    ///
    /// # Errors
    /// The memory account of the run cannot cover one more request.
    pub fn open(
        self,
        mut request: Request,
    ) -> Result<Answer<'static, Result<Opened, HttpError>>, HttpError> {
        let (in_flight, charge) = self.begin(&mut request)?;
        Ok(Box::pin(async move {
            let answer = async {
                let open = self.grants.open_requests.open(&self.sender, &self.open)?;
                let call = self.call(request, self.grants.response_bytes);
                let opened = self.client().open(call).await?;
                charge.holds_head(&opened.headers)?;
                Ok(opened.holding((open, charge)))
            };
            let answer = answer.await;
            in_flight.ended(answer.as_ref().map(|opened: &Opened| opened.status));
            answer.inspect_err(|error| self.requests.note_refusal(error))
        }))
    }

    fn client(&self) -> &dyn HttpClient {
        &**self.dispatch.http.as_ref().unwrap_or(&self.grants.http)
    }

    fn left(&self) -> Duration {
        self.run.deadline().since(self.clock.now())
    }

    fn call(&self, request: Request, response_bytes: u64) -> HttpCall<'_> {
        // The host calls that wait for it have limits of their own.
        let left = self.left();
        let limits = Limits { timeout: left, remaining: left, response_bytes };
        let destinations = &self.grants.destinations;
        let origin = self.grants.origin(&self.dispatch, self.id);
        HttpCall { request, destinations, limits, traceparent: &self.traceparent, origin }
    }
}

#[cfg(test)]
mod tests {
    use sandglass_model::SystemClock;

    use super::*;
    use crate::capability::open_requests::{OF_RUN_MAX, OpenRequests};

    /// Responds to each request with a body of one byte.
    #[derive(Debug)]
    struct Answers;

    impl HttpClient for Answers {
        fn send<'a>(&'a self, _: HttpCall<'a>) -> Answer<'a, Result<Response, HttpError>> {
            let body = vec![0];
            Box::pin(std::future::ready(Ok(Response { body, ..Response::default() })))
        }
    }

    fn outside() -> Outside {
        let grants = Grants {
            http: Arc::new(Answers),
            open_requests: OpenRequests::new(1000),
            response_bytes: 1,
            ..Grants::none()
        };
        Outside {
            grants: Arc::new(grants),
            dispatch: Arc::new(Dispatch::idle()),
            id: DispatchId::from_bytes([0; 16]),
            traceparent: "00".into(),
            run: Arc::default(),
            clock: Arc::new(SystemClock::new()),
            requests: Requests::default(),
            sender: Sender::default(),
            open: Arc::default(),
            memory: HostMemory::new(100 << 20),
        }
    }

    #[tokio::test]
    async fn a_response_of_an_embedders_client_is_bounded() {
        let request = || Request::new("GET", "http://x/", [], Vec::new()).expect("valid");
        outside().send_within(request(), 1).await.expect("one byte");
        let refused = outside().send_within(request(), 0).await.expect_err("one byte too many");
        assert_eq!(refused, HttpError::TooLarge(0));
    }

    #[tokio::test]
    async fn a_response_counts_as_open_until_it_is_read_or_dropped() {
        let outside = outside();
        let open = async || {
            let request = Request::new("GET", "http://x/", [], Vec::new()).expect("valid");
            outside.clone().open(request)?.await
        };
        let mut opened = Vec::new();
        for _ in 0..OF_RUN_MAX {
            opened.push(open().await.expect("room"));
        }
        let refused = open().await.expect_err("too many");
        assert!(matches!(refused, HttpError::TooManyRequests(_)), "{refused:?}");
        let whole = Request::new("GET", "http://x/", [], Vec::new()).expect("valid");
        assert!(outside.clone().send(whole).await.is_err(), "it would be one more");
        opened.pop();
        let mut last = open().await.expect("one was dropped");
        while futures_util::StreamExt::next(&mut last.body).await.is_some() {}
        open().await.expect("one was read");
    }
}
