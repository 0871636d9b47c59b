//! Batches of requests: some concurrently, each with its own error, and all their responses together
//! within the bound of one.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt as _;

use super::http::{HttpError, Request};
use super::outside::{Outside, ReceivedResponse};
use crate::secret::Answer;

/// Most requests of one batch.
pub const REQUESTS_MAX: usize = 64;

/// How many of them are sent concurrently: enough to hide latency, without flooding a server.
const CONCURRENT: usize = 8;

impl Outside {
    /// Sends `requests`, and returns the responses in their order. An invalid request, given by its
    /// reason, fails alone.
    pub fn send_batch(
        self,
        requests: Vec<Result<Request, String>>,
    ) -> Answer<'static, Vec<Result<ReceivedResponse, HttpError>>> {
        Box::pin(async move {
            let room = AtomicU64::new(self.grants.response_bytes);
            let sent = requests.into_iter().map(|request| async {
                let request = request.map_err(HttpError::InvalidRequest)?;
                self.send_into(request, &room).await
            });
            futures_util::stream::iter(sent).buffered(CONCURRENT).collect().await
        })
    }

    /// Sends one request, whose response body is taken from the remaining bytes.
    async fn send_into(
        &self,
        request: Request,
        room: &AtomicU64,
    ) -> Result<ReceivedResponse, HttpError> {
        // Errors state the bound of the whole batch, not what remains of it.
        let too_large = HttpError::TooLarge(self.grants.response_bytes);
        let received = match self.send_noted(request, room.load(Ordering::Relaxed)).await {
            Err(HttpError::TooLarge(_)) => return Err(too_large),
            received => received?,
        };
        let size = received.response.body.len() as u64;
        let taken =
            room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(size));
        match taken {
            Ok(_) => Ok(received),
            // Other responses have used up the bytes in the meantime.
            Err(_) => Err(too_large),
        }
    }
}
