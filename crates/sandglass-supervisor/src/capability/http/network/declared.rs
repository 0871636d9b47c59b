//! Bodies whose length the guest has declared. The host writes the header from that number, and fails if
//! the body has another length: otherwise the guest could smuggle a request into a shared connection.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body::{Body, Frame, SizeHint};

use super::super::{HttpError, Pieces};

/// A body of a known length.
pub(super) struct DeclaredBody {
    /// Never locked: the mutex only makes the body `Sync`.
    pieces: Mutex<Pieces>,
    declared: u64,
    left: u64,
}

impl DeclaredBody {
    pub(super) fn new(pieces: Pieces, declared: u64) -> Self {
        Self { pieces: Mutex::new(pieces), declared, left: declared }
    }

    fn differs(&self, how: &str) -> HttpError {
        let declared = self.declared;
        HttpError::InvalidRequest(format!(
            "the body is {how} than the {declared} bytes that its `content-length` declares"
        ))
    }
}

impl Body for DeclaredBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let pieces = self.pieces.get_mut().unwrap_or_else(PoisonError::into_inner);
        let piece = ready!(pieces.poll_next_unpin(context));
        Poll::Ready(match piece {
            Some(Ok(piece)) => match self.left.checked_sub(piece.len() as u64) {
                Some(left) => {
                    self.left = left;
                    Some(Ok(Frame::data(piece)))
                }
                None => Some(Err(self.differs("longer"))),
            },
            Some(Err(error)) => Some(Err(error)),
            None if self.left > 0 => Some(Err(self.differs("shorter"))),
            None => None,
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::BodyExt as _;

    use super::*;

    async fn sent(pieces: &[&'static [u8]], declared: u64) -> Result<usize, String> {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from_static(piece))).collect();
        let body = DeclaredBody::new(Box::pin(stream::iter(pieces)), declared);
        assert_eq!(body.size_hint().exact(), Some(declared));
        let whole = body.collect().await.map_err(|error| error.to_string())?;
        Ok(whole.to_bytes().len())
    }

    #[tokio::test]
    async fn a_body_has_the_length_that_was_declared() {
        assert_eq!(sent(&[b"ab", b"", b"c"], 3).await, Ok(3));
        assert_eq!(sent(&[], 0).await, Ok(0));
        let longer = sent(&[b"ab", b"cd"], 3).await.expect_err("longer");
        assert!(longer.contains("longer than the 3 bytes"), "{longer}");
        let shorter = sent(&[b"ab"], 3).await.expect_err("shorter");
        assert!(shorter.contains("shorter than the 3 bytes"), "{shorter}");
    }
}
