//! The way to the outside of one run: its grants, its deadline and its trace. Every
//! request that it sends passes here, and is noted.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::Clock;

use super::Grants;
use super::http::{HttpError, Limits, Opened, Request, Response, Sender};
use super::requests::Requests;
use crate::run::Run;
use crate::secret::Answer;

/// Sends the requests of one run. Clones are the same.
#[derive(Clone)]
pub(crate) struct Outside {
    pub(super) grants: Arc<Grants>,
    pub(super) traceparent: Arc<str>,
    pub(super) run: Arc<Run>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(super) requests: Requests,
    pub(super) sender: Sender,
}

impl Outside {
    /// Most time that a request may take that begins now, where no call waits for it
    /// that has a bound of its own.
    pub(crate) fn timeout(&self) -> Duration {
        self.left().min(self.grants.host_call_timeout)
    }

    /// Largest body of a response that the guest is given.
    pub(super) fn response_bytes(&self) -> u64 {
        self.grants.response_bytes
    }

    /// Sends `request` and reads the whole response.
    pub(crate) fn send(self, request: Request) -> Answer<'static, Result<Response, HttpError>> {
        let most = self.response_bytes();
        self.send_within(request, most)
    }

    /// The same, with a body of at most `response_bytes`.
    pub(crate) fn send_within(
        self,
        request: Request,
        response_bytes: u64,
    ) -> Answer<'static, Result<Response, HttpError>> {
        Box::pin(async move { self.sent(request, response_bytes).await })
    }

    /// Sends `request` and reads the whole response, of at most `response_bytes`.
    pub(super) async fn sent(
        &self,
        mut request: Request,
        response_bytes: u64,
    ) -> Result<Response, HttpError> {
        request.sender = self.sender.clone();
        let under_way = self.requests.begin(&mut request, &self.clock);
        let Self { grants, traceparent, .. } = self;
        let limits = self.limits(response_bytes);
        let answer = grants.http.send(request, &grants.destinations, limits, traceparent).await;
        under_way.ended(answer.as_ref().map(|response| response.status));
        answer
    }

    /// Sends `request` and waits for the response's head.
    pub(crate) fn open(self, mut request: Request) -> Answer<'static, Result<Opened, HttpError>> {
        request.sender = self.sender.clone();
        let under_way = self.requests.begin(&mut request, &self.clock);
        Box::pin(async move {
            let Self { grants, traceparent, .. } = &self;
            let limits = self.limits(grants.response_bytes);
            let answer = grants.http.open(request, &grants.destinations, limits, traceparent).await;
            under_way.ended(answer.as_ref().map(|opened| opened.status));
            answer
        })
    }

    fn left(&self) -> Duration {
        self.run.deadline().since(self.clock.now())
    }

    fn limits(&self, response_bytes: u64) -> Limits {
        // Calls that wait for it have bounds of their own.
        let left = self.left();
        Limits { timeout: left, remaining: left, response_bytes }
    }
}
