//! HTTP requests and responses of core modules, piece by piece: each is an exchange of two handles,
//! one to write the body of the request and one to read the response.
//!
//! A request is sent while the guest writes its body, or waits for the response. Nothing is sent while
//! the guest does other work, so that no request outlives the call that waits for it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::Guest;
use super::http::{HttpError, Opened};
use super::open_requests::OF_RUN_MAX;
use super::streams::IncomingResponse;
use crate::measured;
use crate::measured::Measured;
use crate::opaque::opaque;
use crate::race::CallEnded;
use crate::secret::Answer;

/// The exchanges of one run.
#[derive(Debug, Default)]
pub struct Exchanges {
    /// By the handle of the request. The handle of the response is one more.
    open: BTreeMap<u32, Exchange>,
    /// How many handles were given so far.
    given: u32,
}

measured!(Exchanges: open, given);

impl Measured for BTreeMap<u32, Exchange> {
    fn uncharged_bytes(&self) -> u64 {
        self.values().map(Exchange::uncharged_bytes).sum()
    }
}

/// One request and its response.
struct Exchange {
    /// `None` after the guest has closed the request.
    pieces: Option<mpsc::Sender<Result<Bytes, HttpError>>>,
    response: Response,
}

enum Response {
    /// The request is being sent; its charge is in the future.
    Awaited(Answer<'static, Result<Opened, HttpError>>),
    Arrived(IncomingResponse),
    Failed(HttpError),
    /// The guest has closed the response, which ends the request.
    Closed,
}

opaque!(Exchange as "Exchange");

/// Why an operation on a handle failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The handle is not open, or it is that of the other direction.
    #[error("there is no open stream with this handle in this direction")]
    InvalidHandle,
    /// The response is closed, which has ended the request.
    #[error("the stream is closed, because the response is")]
    Closed,
    /// The request failed.
    #[error(transparent)]
    Http(#[from] HttpError),
}

impl From<CallEnded> for ExchangeError {
    fn from(ended: CallEnded) -> Self {
        Self::Http(ended.into())
    }
}

impl Exchange {
    fn uncharged_bytes(&self) -> u64 {
        match &self.response {
            Response::Arrived(response) => response.uncharged_bytes(),
            // Charged, or one short text.
            Response::Awaited(_) | Response::Failed(_) | Response::Closed => 0,
        }
    }

    /// Notes the result of the request.
    fn set_response(&mut self, answer: Result<Opened, HttpError>) {
        self.response = match answer {
            Ok(opened) => Response::Arrived(IncomingResponse::new(opened)),
            Err(error) => Response::Failed(error),
        };
    }

    /// Waits until the connection can take one more piece, and sends it. A server may answer before it
    /// has read the whole body, and then read on. What it does not read is dropped: guests learn why
    /// from the response, and would report an error of a write instead.
    async fn write(&mut self, piece: Bytes) -> Result<(), ExchangeError> {
        loop {
            let Some(pieces) = &self.pieces else { return Err(ExchangeError::Closed) };
            let answer = match &mut self.response {
                Response::Failed(_) => return Ok(()),
                Response::Closed => return Err(ExchangeError::Closed),
                Response::Arrived(_) => {
                    drop(pieces.send(Ok(piece)).await);
                    return Ok(());
                }
                Response::Awaited(answer) => tokio::select! {
                    biased;
                    answer = &mut *answer => answer,
                    room = pieces.reserve() => match room {
                        Ok(room) => {
                            room.send(Ok(piece));
                            return Ok(());
                        }
                        // The client reads the body no more; the response states why.
                        Err(_) => answer.await,
                    },
                },
            };
            self.set_response(answer);
        }
    }

    /// Waits for the head of the response.
    async fn response(&mut self) -> Result<&mut IncomingResponse, ExchangeError> {
        if let Response::Awaited(answer) = &mut self.response {
            let answer = answer.await;
            self.set_response(answer);
        }
        match &mut self.response {
            Response::Arrived(response) => Ok(response),
            Response::Failed(error) => Err(error.clone().into()),
            Response::Awaited(_) | Response::Closed => Err(ExchangeError::InvalidHandle),
        }
    }

    fn is_closed(&self) -> bool {
        self.pieces.is_none() && matches!(self.response, Response::Closed)
    }
}

impl Exchanges {
    /// Begins an exchange whose request has the body that is written to `pieces`, and returns its
    /// handles: that of the request and that of the response.
    ///
    /// # Errors
    /// Too many are open, or the request is refused at once.
    pub async fn begin(
        &mut self,
        pieces: mpsc::Sender<Result<Bytes, HttpError>>,
        open: impl FnOnce() -> Result<Answer<'static, Result<Opened, HttpError>>, HttpError>,
    ) -> Result<(u32, u32), HttpError> {
        // Without this bound, requests that are not sent yet would only be bounded by memory.
        let next = self.given.checked_add(2).filter(|_| self.open.len() < OF_RUN_MAX as usize);
        let next = next.ok_or_else(|| {
            HttpError::TooManyRequests(format!(
                "the handler has {OF_RUN_MAX} open streams, which is the limit; close one first"
            ))
        })?;
        let mut answer = open()?;
        // Polled once, so that a request that may not be sent fails here. How soon a connection fails is
        // a matter of chance, so that is always an error of the response.
        let first = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
        let response = match first {
            Poll::Ready(Err(error @ HttpError::Transport(_))) => Response::Failed(error),
            Poll::Ready(opened) => Response::Arrived(IncomingResponse::new(opened?)),
            Poll::Pending => Response::Awaited(answer),
        };
        let request = next - 1;
        self.given = next;
        self.open.insert(request, Exchange { pieces: Some(pieces), response });
        Ok((request, next))
    }

    fn by_request(&mut self, handle: u32) -> Result<&mut Exchange, ExchangeError> {
        let exchange = self.open.get_mut(&handle);
        exchange.filter(|one| one.pieces.is_some()).ok_or(ExchangeError::InvalidHandle)
    }

    fn by_response(&mut self, handle: u32) -> Result<&mut Exchange, ExchangeError> {
        let exchange = handle.checked_sub(1).and_then(|handle| self.open.get_mut(&handle));
        let exchange = exchange.filter(|one| !matches!(one.response, Response::Closed));
        exchange.ok_or(ExchangeError::InvalidHandle)
    }

    /// Writes a piece of a request's body. Waits until the connection can take it.
    ///
    /// # Errors
    /// The handle is not one of an open request, or the response is closed.
    pub async fn write(&mut self, handle: u32, piece: Bytes) -> Result<(), ExchangeError> {
        let exchange = self.by_request(handle)?;
        // A piece of no bytes would end a chunked body.
        if piece.is_empty() { Ok(()) } else { exchange.write(piece).await }
    }

    /// Waits for the status and headers of a response.
    ///
    /// # Errors
    /// The handle is not one of an open response, or the request failed.
    pub async fn head(&mut self, handle: u32) -> Result<&IncomingResponse, ExchangeError> {
        Ok(self.by_response(handle)?.response().await?)
    }

    /// Replaces a response that failed by one with the status 0, `header` and no body, so that the guest
    /// finds no second error when it reads on.
    pub fn set_failed(&mut self, handle: u32, header: (&str, &str)) {
        if let Ok(exchange) = self.by_response(handle) {
            let headers = vec![(header.0.to_owned(), header.1.to_owned())];
            let body = Box::pin(futures_util::stream::empty());
            exchange.set_response(Ok(Opened { status: 0, headers, body }));
        }
    }

    /// Reads the next piece of a response, of at most `max` bytes; an empty one at the end.
    ///
    /// # Errors
    /// The handle is not one of an open response, or the request failed.
    pub async fn read(&mut self, handle: u32, max: u32) -> Result<Bytes, ExchangeError> {
        Ok(self.by_response(handle)?.response().await?.read(max).await?)
    }

    /// Closes a handle. That of a request ends its body; that of a response drops what was not read,
    /// and the request with it.
    ///
    /// # Errors
    /// The handle is not open.
    pub fn close(&mut self, handle: u32) -> Result<(), ExchangeError> {
        let key = if let Ok(exchange) = self.by_request(handle) {
            exchange.pieces = None;
            handle
        } else {
            self.by_response(handle)?.response = Response::Closed;
            handle - 1
        };
        if self.open.get(&key).is_some_and(Exchange::is_closed) {
            self.open.remove(&key);
        }
        Ok(())
    }
}

impl Guest {
    /// The exchanges of this guest.
    pub fn exchanges(&mut self) -> &mut Exchanges {
        &mut self.exchanges
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::StreamExt as _;
    use tokio::sync::oneshot;

    use super::*;
    use crate::capability::http::Pieces;
    use crate::capability::streams::body;

    fn opened(text: &'static str) -> Opened {
        let body = Box::pin(futures_util::stream::once(ready(Ok(Bytes::from(text)))));
        Opened { status: 201, headers: Vec::new(), body }
    }

    async fn begin(
        exchanges: &mut Exchanges,
        answer: impl Future<Output = Result<Opened, HttpError>> + Send + 'static,
    ) -> Result<((u32, u32), Pieces), HttpError> {
        let (pieces, sent) = body();
        let handles = exchanges.begin(pieces, || Ok(Box::pin(answer))).await?;
        Ok((handles, sent))
    }

    #[tokio::test]
    async fn a_handle_has_one_direction_and_is_closed_once() {
        let mut exchanges = Exchanges::default();
        let began = begin(&mut exchanges, ready(Ok(opened("abc")))).await;
        let ((request, response), _sent) = began.expect("room");
        let invalid = Err(ExchangeError::InvalidHandle);
        for other in [0, response, 99, u32::MAX] {
            assert_eq!(exchanges.write(other, Bytes::from("x")).await, invalid);
        }
        for other in [0, request, 99, u32::MAX] {
            assert_eq!(exchanges.read(other, 9).await.map(drop), invalid);
            assert!(exchanges.head(other).await.is_err());
        }
        assert_eq!(exchanges.head(response).await.expect("it arrived").status, 201);
        assert_eq!(exchanges.read(response, 2).await, Ok(Bytes::from("ab")));
        assert_eq!(exchanges.close(request), Ok(()));
        assert_eq!(exchanges.close(request), invalid);
        assert_eq!(exchanges.write(request, Bytes::from("x")).await, invalid);
        assert_eq!(exchanges.read(response, 9).await, Ok(Bytes::from("c")));
        assert_eq!(exchanges.read(response, 9).await, Ok(Bytes::new()));
        assert_eq!(exchanges.close(response), Ok(()));
        assert_eq!(exchanges.close(response), invalid);
        assert!(exchanges.open.is_empty());
    }

    #[tokio::test]
    async fn a_body_is_sent_on_after_an_early_response_and_dropped_if_the_client_reads_it_no_more()
    {
        let mut exchanges = Exchanges::default();
        let (answer, answered) = oneshot::channel();
        let wait = async { answered.await.expect("it is sent") };
        let ((request, _), mut sent) = begin(&mut exchanges, wait).await.expect("room");
        assert_eq!(exchanges.write(request, Bytes::new()).await, Ok(()));
        assert_eq!(exchanges.write(request, Bytes::from("a")).await, Ok(()));
        assert!(answer.send(Ok(opened(""))).is_ok());
        assert_eq!(sent.next().await, Some(Ok(Bytes::from("a"))));
        assert_eq!(exchanges.write(request, Bytes::from("b")).await, Ok(()));
        assert_eq!(sent.next().await, Some(Ok(Bytes::from("b"))));
        drop(sent);
        assert_eq!(exchanges.write(request, Bytes::from("c")).await, Ok(()));
    }

    #[tokio::test]
    async fn the_response_says_why_a_request_failed_and_a_closed_response_ends_the_request() {
        let mut exchanges = Exchanges::default();
        let reset = HttpError::Transport("reset".to_owned());
        let (answer, answered) = oneshot::channel();
        let wait = async { answered.await.expect("it is sent") };
        let ((request, response), _sent) = begin(&mut exchanges, wait).await.expect("room");
        assert!(answer.send(Err(reset.clone())).is_ok());
        let failed = ExchangeError::Http(reset);
        assert_eq!(exchanges.write(request, Bytes::from("a")).await, Ok(()));
        assert_eq!(exchanges.read(response, 1).await.map(drop), Err(failed));
        exchanges.set_failed(response, ("why", "reset"));
        assert_eq!(exchanges.head(response).await.map(|head| head.status), Ok(0));
        assert_eq!(exchanges.read(response, 1).await, Ok(Bytes::new()));

        let ((request, response), _sent) = begin(&mut exchanges, pending()).await.expect("room");
        assert_eq!(exchanges.close(response), Ok(()));
        assert_eq!(exchanges.write(request, Bytes::from("a")).await, Err(ExchangeError::Closed));
    }

    #[tokio::test]
    async fn exchanges_are_bounded_in_number_and_those_that_are_refused_at_once_do_not_count() {
        let mut exchanges = Exchanges::default();
        let refused = HttpError::NotAllowed("x".to_owned());
        let began = begin(&mut exchanges, ready(Err(refused.clone()))).await;
        assert_eq!(began.map(drop), Err(refused));
        let reset = HttpError::Transport("reset".to_owned());
        let began = begin(&mut exchanges, ready(Err(reset.clone()))).await;
        let ((request, response), _sent) = began.expect("the response has the error");
        assert_eq!(exchanges.head(response).await.map(drop), Err(reset.into()));
        assert_eq!((exchanges.close(request), exchanges.close(response)), (Ok(()), Ok(())));
        let mut handles = Vec::new();
        for _ in 0..OF_RUN_MAX {
            handles.push(begin(&mut exchanges, pending()).await.expect("room").0);
        }
        let too_many = begin(&mut exchanges, pending()).await.map(drop);
        let why = too_many.expect_err("too many").to_string();
        assert!(why.contains("16 open streams"), "{why}");
        assert_eq!(exchanges.close(handles[0].0), Ok(()));
        assert_eq!(exchanges.close(handles[0].1), Ok(()));
        let (next, _) = begin(&mut exchanges, pending()).await.expect("one was closed");
        assert!(!handles.contains(&next), "handles are not used again");
    }
}
