//! A request is in flight until its answer was handed over whole: the body of the answer keeps
//! the connection busy.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};

use crate::slots::Busy;

/// A body whose connection is busy until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    body: Body,
    _busy: Busy,
}

impl InFlight {
    pub(crate) fn body(body: Body, busy: Busy) -> Body {
        Body::new(Self { body, _busy: busy })
    }
}

impl http_body::Body for InFlight {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
