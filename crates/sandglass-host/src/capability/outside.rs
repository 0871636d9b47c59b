//! The way to the outside of one run: its grants, its deadline and its trace, for
//! requests that are put together elsewhere.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::Clock;

use super::Grants;
use super::http::{HttpError, Limits, Opened, Request, Response};
use crate::run::Run;
use crate::secret::Answer;

/// Sends the requests of one run. Clones are the same.
#[derive(Clone)]
pub(crate) struct Outside {
    pub(super) grants: Arc<Grants>,
    pub(super) traceparent: Arc<str>,
    pub(super) run: Arc<Run>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Outside {
    /// Most time that a request may take that begins now, where no call waits for it
    /// that has a bound of its own.
    pub(crate) fn timeout(&self) -> Duration {
        self.left().min(self.grants.host_call_timeout)
    }

    /// Sends `request` and reads the whole response.
    pub(crate) fn send(self, request: Request) -> Answer<'static, Result<Response, HttpError>> {
        Box::pin(async move {
            let Self { grants, traceparent, .. } = &self;
            grants.http.send(request, &grants.destinations, self.limits(), traceparent).await
        })
    }

    /// Sends `request` and waits for the response's head.
    pub(crate) fn open(self, request: Request) -> Answer<'static, Result<Opened, HttpError>> {
        Box::pin(async move {
            let Self { grants, traceparent, .. } = &self;
            grants.http.open(request, &grants.destinations, self.limits(), traceparent).await
        })
    }

    fn left(&self) -> Duration {
        self.run.deadline().since(self.clock.now())
    }

    fn limits(&self) -> Limits {
        // Calls that wait for it have bounds of their own.
        Limits {
            timeout: self.left(),
            remaining: self.left(),
            response_bytes: self.grants.response_bytes,
        }
    }
}
