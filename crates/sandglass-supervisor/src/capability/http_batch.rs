//! Several requests at once: some concurrently, each with an error of its own, and
//! all their responses together within the bound of one.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt as _;

use super::http::{HttpError, Request};
use super::outside::{Outside, Received};
use crate::secret::Answer;

/// Requests of one batch; more belong into several.
pub const REQUESTS_MAX: usize = 64;

/// How many of them are under way at the same time: enough to hide latency, and no
/// flood for the server that they go to.
const CONCURRENT: usize = 8;

impl Outside {
    /// Sends `requests`, and answers in their order. One that can't be sent comes as the
    /// reason, and fails alone.
    pub fn send_batch(
        self,
        requests: Vec<Result<Request, String>>,
    ) -> Answer<'static, Vec<Result<Received, HttpError>>> {
        Box::pin(async move {
            let room = AtomicU64::new(self.response_bytes());
            let sent = requests.into_iter().map(|request| async {
                let request = request.map_err(HttpError::InvalidRequest)?;
                self.send_into(request, &room).await
            });
            futures_util::stream::iter(sent).buffered(CONCURRENT).collect().await
        })
    }

    /// Sends one request, and takes the room that its response needs.
    async fn send_into(&self, request: Request, room: &AtomicU64) -> Result<Received, HttpError> {
        // Whatever room is left by then, the bound is that of all of them.
        let too_large = HttpError::TooLarge(self.response_bytes());
        let received = match self.sent(request, room.load(Ordering::Relaxed)).await {
            Err(HttpError::TooLarge(_)) => return Err(too_large),
            received => received?,
        };
        let size = received.response.body.len() as u64;
        let taken =
            room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(size));
        match taken {
            Ok(_) => Ok(received),
            // Others have come first, and taken it.
            Err(_) => Err(too_large),
        }
    }
}
