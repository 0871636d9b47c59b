//! What a guest can ask of the host, each capability written once and knowing
//! nothing of any ABI: context, result, log, spans, metrics, progress and status,
//! time, secrets, scratch, HTTP.

pub(crate) mod ask;
pub(crate) mod http;
pub(crate) mod log;
pub(crate) mod meter;
pub(crate) mod result;
pub(crate) mod scratch;
pub(crate) mod signal;
pub(crate) mod spans;
pub(crate) mod speaker;
pub(crate) mod time;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{DispatchId, TraceContext};
use sandglass_telemetry::{Metrics, Span};
use serde_json::Value;

use crate::secret::{Answer, FixedSecrets, Redactor, Secret, Secrets};
use http::{Destinations, HttpClient, HttpError, NetworkClient, Request, Response};
use log::GuestLog;
use meter::Meter;
use result::ResultSlot;
use scratch::Scratch;
use signal::{Signal, Signals};
use spans::Spans;
use speaker::Speaker;

/// Longest text that `host_last_error` answers, in bytes: a sentence or two, and
/// small enough for a fixed buffer of the guest's.
const LAST_ERROR_MAX_BYTES: u32 = 1024;

/// The capabilities of one run.
pub(crate) struct Guest {
    context: Arc<[u8]>,
    last_error: String,
    log: GuestLog,
    spans: Spans,
    meter: Meter,
    scratch: Scratch,
    pub(crate) result: ResultSlot,
    pub(crate) redactor: Redactor,
    grants: Arc<Grants>,
    signals: Option<Arc<dyn Signals>>,
    traceparent: String,
}

/// What an integration may do, and with what.
#[derive(Debug)]
pub(crate) struct Grants {
    pub(crate) destinations: Destinations,
    pub(crate) secrets: Arc<dyn Secrets>,
    pub(crate) http: Arc<dyn HttpClient>,
    pub(crate) response_bytes: u64,
    pub(crate) scratch_bytes: u64,
    /// Most time that one call to the outside may take.
    pub(crate) host_call_timeout: Duration,
    /// The same for those host functions that have a bound of their own, by name.
    pub(crate) host_call_timeouts: BTreeMap<String, Duration>,
}

impl Grants {
    fn none() -> Self {
        Self {
            destinations: Destinations::default(),
            secrets: Arc::new(FixedSecrets::default()),
            http: Arc::new(NetworkClient::default()),
            response_bytes: 0,
            scratch_bytes: 0,
            host_call_timeout: Duration::ZERO,
            host_call_timeouts: BTreeMap::new(),
        }
    }
}

impl Guest {
    pub(crate) fn new(
        context: Arc<[u8]>,
        log: GuestLog,
        speaker: Speaker,
        grants: Arc<Grants>,
        signals: Option<Arc<dyn Signals>>,
        (span, trace): (Arc<Span>, TraceContext),
    ) -> Self {
        Self {
            context,
            last_error: String::new(),
            log,
            spans: Spans::new(speaker.clone(), span, trace.span_id),
            meter: Meter::new(speaker.clone()),
            scratch: Scratch::new(grants.scratch_bytes),
            result: ResultSlot::new(grants.response_bytes),
            redactor: speaker.redactor,
            grants,
            signals,
            traceparent: trace.to_string(),
        }
    }

    /// The capabilities of nobody.
    pub(crate) fn idle() -> Self {
        let nobody = DispatchId::from_bytes([0; 16]);
        let trace = TraceContext::root([0; 24]);
        let speaker = Speaker {
            integration: "".into(),
            redactor: Redactor::default(),
            metrics: Metrics::disabled(),
        };
        let log = GuestLog::new(speaker.clone(), nobody, trace);
        let span = (Arc::new(Span::disabled()), trace);
        Self::new(Arc::new([]), log, speaker, Arc::new(Grants::none()), None, span)
    }

    pub(crate) fn context(&self) -> Arc<[u8]> {
        Arc::clone(&self.context)
    }

    /// Notes why a host function failed, for the guest to ask.
    pub(crate) fn fail(&mut self, why: impl ToString) {
        let mut why = self.redactor.text(why.to_string());
        log::truncate(&mut why, LAST_ERROR_MAX_BYTES);
        self.last_error = why;
    }

    pub(crate) fn last_error(&self) -> &str {
        &self.last_error
    }

    /// Tells how far the handler has come.
    pub(crate) fn progress(&mut self, progress: Value) {
        self.tell(Signal::Progress(self.redactor.json(progress)));
    }

    /// Tells what the handler is doing, for people.
    pub(crate) fn status(&mut self, status: String) {
        let mut status = self.redactor.text(status);
        log::truncate(&mut status, signal::STATUS_MAX_BYTES);
        self.tell(Signal::Status(log::one_line(&status)));
    }

    fn tell(&self, signal: Signal) {
        if let Some(signals) = &self.signals {
            signals.signal(signal);
        }
    }

    /// Most time that a call to the outside may take.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.grants.host_call_timeout
    }

    /// The same of the host function called `name`, where its manifest says.
    pub(crate) fn call_timeout_of(&self, name: &str) -> Option<Duration> {
        self.grants.host_call_timeouts.get(name).copied()
    }

    /// The secret called `name`, where this integration may have it.
    ///
    /// # Errors
    /// It may not; the text says so.
    pub(crate) fn secret(&self, name: String) -> Answer<'static, Result<Secret, String>> {
        let grants = Arc::clone(&self.grants);
        Box::pin(async move {
            let secret = grants.secrets.secret(&name).await;
            secret.ok_or_else(|| format!("there is no secret called `{name}` for this integration"))
        })
    }

    /// Sends `request`, for at most `left`.
    pub(crate) fn http_call(
        &self,
        request: Request,
        left: Duration,
    ) -> Answer<'static, Result<Response, HttpError>> {
        let grants = Arc::clone(&self.grants);
        let traceparent = self.traceparent.clone();
        Box::pin(async move {
            let limits = http::Limits {
                timeout: left,
                remaining: left,
                response_bytes: grants.response_bytes,
            };
            grants.http.send(request, &grants.destinations, limits, &traceparent).await
        })
    }
}
