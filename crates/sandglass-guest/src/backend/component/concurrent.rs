//! What differs in the world 0.2: other tasks of the guest go on while a call waits.

use std::pin::{Pin, pin};
use std::task::{Context as Polling, Poll};
use std::time::Duration;

use super::bindings::sandglass::integration0_2_0 as current;
use super::{bindings, host};
use crate::glue::{self, HandlerResult};
use crate::{Context, HostError, ask, http, signal};

/// Exports `$handler` for the host to call.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_handler {
    ($handler:path) => {
        async fn __in_a_task(context: &$crate::Context) -> $crate::__private::HandlerResult {
            $handler(context)
        }
        $crate::__export_async_handler!(__in_a_task);
    };
}

/// Exports `$handler`, an asynchronous function, for the host to call.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_async_handler {
    ($handler:path) => {
        struct __Guest;

        impl $crate::bindings::Guest for __Guest {
            async fn handle(
                context: $crate::bindings::DispatchContext,
            ) -> ::core::result::Result<$crate::bindings::Completion, $crate::bindings::Failure>
            {
                $crate::__private::run(context, $handler).await
            }
        }

        $crate::bindings::export!(__Guest with_types_in $crate::bindings);
    };
}

/// Runs `handler`. The export calls this.
///
/// # Errors
/// Errors if the handler fails.
pub async fn run(
    context: bindings::DispatchContext,
    handler: impl AsyncFnOnce(&Context) -> HandlerResult,
) -> Result<bindings::Completion, bindings::Failure> {
    glue::log_panics();
    super::write(handler(&super::read(context)).await)
}

/// Waits for `future`, and lets no other task of the guest go on.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    wit_bindgen::block_on(future)
}

pub(crate) fn progress(progress: &str) -> Result<(), HostError> {
    block_on(current::progress::emit(progress.to_owned())).map_err(HostError::new)
}

pub(crate) fn status(line: &str) {
    block_on(current::progress::set_status(line.to_owned()));
}

pub(crate) async fn secret(name: &str) -> Result<String, HostError> {
    current::secrets::get(name.to_owned()).await.map_err(HostError::new)
}

pub(crate) async fn send(request: http::Request) -> Result<http::Response, http::Error> {
    let max_bytes = request.response_max_bytes;
    let head = host::http::RequestHead {
        method: request.method,
        url: request.url,
        headers: request.headers,
    };
    if request.body.is_empty() {
        return exchange(current::http::Request { head, body: None }, max_bytes).await;
    }
    let (mut writer, reader) = bindings::wit_stream::new();
    let exchange = exchange(current::http::Request { head, body: Some(reader) }, max_bytes);
    let write = async move {
        drop(writer.write_all(request.body).await);
    };
    beside(exchange, write).await
}

/// Sends a request, and reads the whole response.
async fn exchange(
    request: current::http::Request,
    max_bytes: usize,
) -> Result<http::Response, http::Error> {
    let response = current::http::send(request).await?;
    let current::http::Response { status, headers, body, ended } = response;
    let body = read(body, max_bytes).await?;
    ended.await?;
    Ok(http::Response { status, headers, body })
}

/// Reads a body of at most `max_bytes`.
async fn read(
    mut body: wit_bindgen::StreamReader<u8>,
    max_bytes: usize,
) -> Result<Vec<u8>, http::Error> {
    const PIECE_BYTES: usize = 16 << 10;
    let mut whole = Vec::new();
    loop {
        let (result, piece) = body.read(Vec::with_capacity(PIECE_BYTES)).await;
        whole.extend(piece);
        if whole.len() > max_bytes {
            return Err(http::Error::too_large(max_bytes));
        }
        if result == wit_bindgen::StreamResult::Dropped {
            return Ok(whole);
        }
    }
}

/// Returns the output of `first`, and executes `second` meanwhile. If `second` has not ended then, it is
/// left as it is: dropped, it would end a body that is not complete.
async fn beside<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> T {
    let (mut first, mut second) = (pin!(first), Some(Box::pin(second)));
    let output = std::future::poll_fn(|context| {
        if second.as_mut().is_some_and(|second| second.as_mut().poll(context).is_ready()) {
            second = None;
        }
        first.as_mut().poll(context)
    })
    .await;
    std::mem::forget(second);
    output
}

type Sent = Result<http::Response, http::Error>;

pub(crate) fn send_batch(
    requests: Vec<http::Request>,
) -> Result<Vec<Result<http::Response, http::Error>>, http::Error> {
    Ok(block_on(All::new(requests)))
}

/// Most requests of a batch that are in flight: a handler may have 16.
const IN_FLIGHT_MAX: usize = 8;

/// Requests that are sent at the same time.
struct All {
    requests: Vec<Sending>,
}

enum Sending {
    Unsent(Option<http::Request>),
    InFlight(Pin<Box<dyn Future<Output = Sent>>>),
    Ended(Option<Sent>),
}

impl All {
    fn new(requests: Vec<http::Request>) -> Self {
        let unsent = requests.into_iter().map(|request| Sending::Unsent(Some(request)));
        Self { requests: unsent.collect() }
    }
}

impl Future for All {
    type Output = Vec<Sent>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Polling<'_>) -> Poll<Vec<Sent>> {
        let mut in_flight = 0;
        for sending in &mut self.requests {
            if in_flight == IN_FLIGHT_MAX {
                break;
            }
            if let Sending::Unsent(request) = sending
                && let Some(request) = request.take()
            {
                *sending = Sending::InFlight(request.into_future());
            }
            if let Sending::InFlight(sent) = sending {
                match sent.as_mut().poll(context) {
                    Poll::Ready(sent) => *sending = Sending::Ended(Some(sent)),
                    Poll::Pending => in_flight += 1,
                }
            }
        }
        if in_flight > 0 {
            return Poll::Pending;
        }
        let ended = self.requests.iter_mut().filter_map(|sending| match sending {
            Sending::Ended(sent) => sent.take(),
            Sending::Unsent(_) | Sending::InFlight(_) => None,
        });
        Poll::Ready(ended.collect())
    }
}

pub(crate) async fn ask(request: &ask::Request) -> Result<ask::Answer, ask::Error> {
    Ok(current::ask::ask(super::ask_request(request)).await?.into())
}

pub(crate) async fn signal(notice: &signal::Notice) -> Result<(), signal::Error> {
    Ok(current::signal::send(super::notice(notice)).await?)
}

pub(crate) async fn sleep(duration: Duration) {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    current::timer::sleep(u64::try_from(ms).unwrap_or(u64::MAX)).await;
}
