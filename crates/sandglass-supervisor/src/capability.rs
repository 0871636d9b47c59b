//! The capabilities of a guest: context, result, log, spans, metrics, signals, time, secrets, scratch,
//! HTTP, streams and a cache. Each is written once, without any ABI.

pub mod ask;
pub mod cache;
pub mod connect;
pub mod context;
pub mod entity_signal;
pub mod exchanges;
pub mod fields;
pub mod http;
pub mod http_batch;
pub mod log;
pub mod meter;
pub mod named_streams;
pub mod open_requests;
pub mod outside;
pub mod requests;
pub mod result;
pub mod run_telemetry;
pub mod scratch;
pub mod signal;
pub mod spans;
pub mod streams;
pub mod tenant_rate;
pub mod time;

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use sandglass_model::{
    Clock, DispatchId, GuestLimits, ModuleHash, STORY_ERROR_MAX_BYTES, SystemClock, TraceContext,
};
use sandglass_telemetry::{Metrics, Span};
use serde_json::Value;

use crate::dispatch::Dispatch;
use crate::host_memory::HostMemory;
use crate::measured;
use crate::origin::CallOrigin;
use crate::run::Run;
use crate::secret::{Answer, FixedSecrets, Redactor, Secret, Secrets};
use cache::{Cache, CacheView, Scope};
use context::RunContext;
use exchanges::Exchanges;
use fields::Fields;
use http::{Destinations, HttpClient, NoClient, Sender};
use log::GuestLog;
use meter::Meter;
use named_streams::Streams;
use open_requests::OpenRequests;
use outside::Outside;
use requests::Requests;
use result::ResultSlot;
use run_telemetry::RunTelemetry;
use scratch::Scratch;
use signal::Signal;
use spans::Spans;
use tenant_rate::Rates;

/// Longest text of `host_last_error`, in bytes: a sentence or two, and small enough for a fixed buffer
/// in the guest.
const LAST_ERROR_MAX_BYTES: u32 = 1024;

/// The capabilities of one run.
#[derive(Debug)]
pub struct Guest {
    /// The context of the dispatch.
    pub context: RunContext,
    /// The account of host memory of the run.
    pub memory: HostMemory,
    /// The entity's fields, parsed when the guest first reads one.
    fields: Option<Fields>,
    last_error: String,
    /// Whether the present call has failed.
    has_failed: bool,
    /// Why the present call has failed, if it states that.
    call_error: Option<String>,
    /// Why a call was refused that is not granted, until the guest asks for the last error.
    refusal: Option<String>,
    /// Whether the present call has sent a synthetic signal.
    is_synthetic: bool,
    /// The requests that it has sent.
    pub requests: Requests,
    /// How many requests it has open.
    open_requests: Arc<AtomicU32>,
    /// Its log.
    pub log: GuestLog,
    /// The spans that it starts.
    pub spans: Spans,
    /// Takes its metrics.
    pub meter: Meter,
    /// Its key-value scratch.
    pub scratch: Scratch,
    /// Its streams, once it has one.
    streams: Option<Streams>,
    /// Its requests and responses that are sent and read piece by piece, by handles.
    exchanges: Exchanges,
    /// The cache of the integration.
    pub cache: CacheView,
    /// The result that the guest has set.
    pub result: ResultSlot,
    /// Removes the secrets of the run from text for people.
    pub redactor: Redactor,
    /// What it is granted.
    pub grants: Arc<Grants>,
    dispatch: Arc<Dispatch>,
    id: DispatchId,
    trace: TraceContext,
}

measured!(
    Guest: context, memory, fields, last_error, has_failed, call_error, refusal, is_synthetic, requests, open_requests, log, spans,
    meter, scratch, streams, exchanges, cache, result, redactor, grants, dispatch, id, trace,
);

/// What an integration is granted.
#[derive(Debug)]
pub struct Grants {
    /// The name of the integration.
    pub integration: Arc<str>,
    /// The hash of its module.
    pub module: ModuleHash,
    /// The open requests of the whole host.
    pub open_requests: Arc<OpenRequests>,
    /// Where it may send requests.
    pub destinations: Destinations,
    /// The names of spans that dying spans may have.
    pub spans: Vec<String>,
    /// Where its secrets come from.
    pub secrets: Arc<dyn Secrets>,
    /// The client that sends its requests.
    pub http: Arc<dyn HttpClient>,
    /// Whether a handler fails that reports success without asking why a call was refused.
    pub fails_if_denied: bool,
    /// Largest response, in bytes.
    pub response_bytes: u64,
    /// Scratch of one dispatch, in bytes.
    pub scratch_bytes: u64,
    /// Most host memory of one run, in bytes.
    pub host_memory_bytes: u64,
    /// Most bytes of all streams of one run together: as many as its linear memory may have.
    pub stream_bytes: u64,
    /// Most time that one call to the outside may take.
    pub host_call_timeout: Duration,
    /// The limits of host functions that have one of their own, by name.
    pub host_call_timeouts: BTreeMap<String, Duration>,
}

impl Grants {
    fn none() -> Self {
        Self {
            integration: Arc::default(),
            module: ModuleHash::of(&[]),
            open_requests: OpenRequests::new(0),
            destinations: Destinations::default(),
            spans: Vec::new(),
            secrets: Arc::new(FixedSecrets::default()),
            http: Arc::new(NoClient),
            fails_if_denied: false,
            response_bytes: 0,
            scratch_bytes: 0,
            host_memory_bytes: GuestLimits::default().host_memory_for(0),
            stream_bytes: 0,
            host_call_timeout: Duration::ZERO,
            host_call_timeouts: BTreeMap::new(),
        }
    }

    /// Who calls, if it is the handler of `dispatch`.
    fn origin<'a>(&'a self, dispatch: &'a Dispatch, id: DispatchId) -> CallOrigin<'a> {
        CallOrigin {
            tenant: &dispatch.context.tenant,
            entity: &dispatch.entity,
            action: &dispatch.action,
            dispatch: id,
            attempt: dispatch.attempt,
            integration: dispatch.integration.as_deref().unwrap_or(&self.integration),
            module: self.module,
        }
    }

    /// Returns the secret called `name` for the handler of `dispatch`; `None` if there is none, or if it
    /// is not granted.
    pub fn secret<'a>(
        &'a self,
        name: &'a str,
        dispatch: &'a Dispatch,
        id: DispatchId,
    ) -> Answer<'a, Option<Secret>> {
        let secrets = dispatch.secrets.as_ref().unwrap_or(&self.secrets);
        secrets.secret(name, self.origin(dispatch, id))
    }
}

impl Guest {
    /// The capabilities of one run.
    pub fn new(
        context: RunContext,
        log: GuestLog,
        telemetry: Arc<RunTelemetry>,
        grants: Arc<Grants>,
        (dispatch, id): (Arc<Dispatch>, DispatchId),
        (span, trace): (Arc<Span>, TraceContext),
        cache: CacheView,
    ) -> Self {
        let memory = HostMemory::new(grants.host_memory_bytes);
        Self {
            context,
            fields: None,
            last_error: String::new(),
            has_failed: false,
            call_error: None,
            refusal: None,
            is_synthetic: false,
            requests: Requests::new(telemetry.redactor.clone()),
            open_requests: Arc::default(),
            log,
            spans: Spans::new(Arc::clone(&telemetry), span, trace.span_id, Arc::clone(&grants)),
            meter: Meter::new(Arc::clone(&telemetry)),
            scratch: Scratch::new(grants.scratch_bytes, &memory),
            streams: dispatch.streams.clone(),
            exchanges: Exchanges::default(),
            cache,
            result: ResultSlot::new(grants.response_bytes, memory.clone()),
            memory,
            redactor: telemetry.redactor.clone(),
            grants,
            dispatch,
            id,
            trace,
        }
    }

    /// Capabilities of a store in which nothing runs.
    pub fn idle() -> Self {
        let no_dispatch = DispatchId::from_bytes([0; 16]);
        let trace = TraceContext::root([0; 24]);
        let (redactor, metrics) = (Redactor::default(), Metrics::disabled());
        let rates = Arc::new(Rates::new(&(Arc::new(SystemClock::new()) as Arc<dyn Clock>)));
        let origin = (Arc::default(), Arc::default());
        let telemetry = Arc::new(RunTelemetry::new(origin, redactor, metrics, rates));
        let log = GuestLog::new(Arc::clone(&telemetry), (no_dispatch, trace));
        let span = (Arc::new(Span::disabled()), trace);
        let scope =
            Scope { tenant: "".into(), integration: "".into(), module: ModuleHash::of(&[]) };
        Self::new(
            RunContext::from_json(Arc::default()),
            log,
            telemetry,
            Arc::new(Grants::none()),
            (Arc::new(Dispatch::idle()), no_dispatch),
            span,
            Arc::new(Cache::new(0)).view(scope),
        )
    }

    /// Notes why the present call failed, for `host_last_error`.
    pub fn fail(&mut self, why: impl ToString) {
        let mut why = self.redactor.text(why.to_string());
        log::truncate(&mut why, LAST_ERROR_MAX_BYTES as usize);
        self.call_error = Some(log::cut(&why, STORY_ERROR_MAX_BYTES));
        self.last_error = why;
        self.has_failed = true;
    }

    /// Notes that the present call returns an error that states its reason.
    pub fn note_failure(&mut self) {
        self.has_failed = true;
    }

    /// As [`Guest::note_failure`], with the reason for reports.
    pub fn note_error(&mut self, why: impl ToString) {
        let why = self.redactor.text(why.to_string());
        self.call_error = Some(log::cut(&why, STORY_ERROR_MAX_BYTES));
        self.has_failed = true;
    }

    /// Notes that a call was refused, because what it needs is not granted.
    pub fn note_refusal(&mut self, why: impl ToString) {
        let why = self.redactor.text(why.to_string());
        self.refusal = Some(log::cut(&why, LAST_ERROR_MAX_BYTES));
    }

    /// The guest asks for the last error, so it does not ignore refused calls.
    pub fn forget_refusals(&mut self) {
        self.refusal = None;
        self.requests.forget_refusal();
    }

    /// Why a call was refused, if the guest has not asked since then.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take().or_else(|| self.requests.refusal())
    }

    /// Takes why the present call has failed, if it has stated that.
    pub(crate) fn take_call_error(&mut self) -> Option<String> {
        self.call_error.take()
    }

    /// Whether a call has failed since the last call of this function, and whether the guest was
    /// active: it has not only sent a synthetic signal.
    #[inline]
    pub fn take_call_notes(&mut self) -> (bool, bool) {
        (mem::take(&mut self.has_failed), !mem::take(&mut self.is_synthetic))
    }

    /// Why the last call failed; empty if none has.
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    /// Sends the progress of the handler.
    pub fn progress(&mut self, progress: Value) {
        self.send(Signal::Progress(self.redactor.json(progress)));
    }

    /// Sends that the handler is still at work.
    pub fn heartbeat(&mut self) {
        self.send(Signal::Heartbeat);
    }

    /// Sends what the handler is doing, in words for people.
    pub fn status(&mut self, status: String) {
        let status = self.redactor.text(status);
        self.send(Signal::Status(log::cut(&status, signal::STATUS_MAX_BYTES)));
    }

    /// Notes that a host call reached its own limit `limit`, and took `took`.
    pub fn note_timed_out_call(&self, host_call: &str, limit: Duration, took: Duration) {
        if let Some(signals) = &self.dispatch.signals {
            signals.call_timed_out(host_call, limit, took);
        }
    }

    fn send(&mut self, signal: Signal) {
        if let Some(signals) = &self.dispatch.signals {
            self.is_synthetic = signals.is_synthetic(signal.kind());
            signals.signal(signal);
        }
    }

    /// Most time that a call to the outside may take.
    pub fn call_timeout(&self) -> Duration {
        let host = self.grants.host_call_timeout;
        self.dispatch.call_limits.all.map_or(host, |own| own.min(host))
    }

    /// The time limit of the host function called `name`, if its manifest or dispatch sets one.
    pub fn call_timeout_of(&self, name: &str) -> Option<Duration> {
        let limits = [&self.grants.host_call_timeouts, &self.dispatch.call_limits.of];
        limits.into_iter().filter_map(|limits| limits.get(name).copied()).min()
    }

    /// Returns the secret called `name`.
    ///
    /// # Errors
    /// There is none, or the integration may not have it; the text states that.
    pub fn secret(&self, name: String) -> Answer<'static, Result<Secret, String>> {
        let (grants, dispatch, id) =
            (Arc::clone(&self.grants), Arc::clone(&self.dispatch), self.id);
        Box::pin(async move {
            let secret = grants.secret(&name, &dispatch, id).await;
            secret.ok_or_else(|| format!("there is no secret called `{name}` for this integration"))
        })
    }

    /// The outgoing requests of this guest, whose run is `run`.
    pub fn outside(&self, run: &Arc<Run>, clock: &Arc<dyn Clock>) -> Outside {
        Outside {
            grants: Arc::clone(&self.grants),
            dispatch: Arc::clone(&self.dispatch),
            id: self.id,
            traceparent: self.trace.to_string().into(),
            run: Arc::clone(run),
            clock: Arc::clone(clock),
            requests: self.requests.clone(),
            sender: self.sender(),
            open: Arc::clone(&self.open_requests),
            memory: self.memory.clone(),
        }
    }

    fn sender(&self) -> Sender {
        let tenant = self.dispatch.context.tenant.as_str();
        Sender { tenant: tenant.into(), integration: Arc::clone(&self.grants.integration) }
    }
}
