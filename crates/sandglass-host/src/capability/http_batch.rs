//! Several requests at once: some concurrently, each with an error of its own, and
//! all their responses together within the bound of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;

use super::http::{HttpError, Limits, Request, Response};
use super::{Grants, Guest};
use crate::secret::Answer;

/// Requests of one batch; more belong into several.
pub(crate) const REQUESTS_MAX: usize = 64;

/// How many of them are under way at the same time: enough to hide latency, and no
/// flood for the server that they go to.
const CONCURRENT: usize = 8;

impl Guest {
    /// Sends `requests`, for at most `left`, and answers in their order. One that
    /// can't be sent comes as the reason, and fails alone.
    pub(crate) fn http_call_batch(
        &self,
        requests: Vec<Result<Request, String>>,
        left: Duration,
    ) -> Answer<'static, Vec<Result<Response, HttpError>>> {
        let grants = Arc::clone(&self.grants);
        let traceparent = self.trace.to_string();
        Box::pin(async move {
            let room = AtomicU64::new(grants.response_bytes);
            let sent = requests.into_iter().map(|request| async {
                let request = request.map_err(HttpError::InvalidRequest)?;
                send(&grants, request, left, &traceparent, &room).await
            });
            futures_util::stream::iter(sent).buffered(CONCURRENT).collect().await
        })
    }
}

/// Sends one request, and takes the room that its response needs.
async fn send(
    grants: &Grants,
    request: Request,
    left: Duration,
    traceparent: &str,
    room: &AtomicU64,
) -> Result<Response, HttpError> {
    let limits =
        Limits { timeout: left, remaining: left, response_bytes: room.load(Ordering::Relaxed) };
    // Whatever room is left by then, the bound is that of all of them.
    let too_large = HttpError::TooLarge(grants.response_bytes);
    let response = match grants.http.send(request, &grants.destinations, limits, traceparent).await
    {
        Err(HttpError::TooLarge(_)) => return Err(too_large),
        response => response?,
    };
    let size = response.body.len() as u64;
    let taken =
        room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(size));
    match taken {
        Ok(_) => Ok(response),
        // Others have come first, and taken it.
        Err(_) => Err(too_large),
    }
}
