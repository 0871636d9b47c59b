//! What a guest can ask of the host, each capability written once and knowing
//! nothing of any ABI: context, result, log, spans, metrics, progress and status,
//! time, secrets, scratch, HTTP, streams and a cache.

pub mod ask;
pub mod cache;
pub mod context;
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
pub mod scratch;
pub mod signal;
pub mod spans;
pub mod speaker;
pub mod streams;
pub mod tenant_rate;
pub mod time;

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use sandglass_model::{
    Clock, DispatchId, GuestLimits, ModuleHash, SystemClock, TelemetryDropped, TraceContext,
};
use sandglass_telemetry::{Metrics, Span};
use serde_json::Value;

use crate::dispatch::CallLimits;
use crate::host_memory::HostMemory;
use crate::measured;
use crate::run::Run;
use crate::secret::{Answer, FixedSecrets, Redactor, Secret, Secrets};
use cache::{Cache, CacheView, Scope};
use context::RunContext;
use fields::Fields;
use http::{Destinations, HttpClient, NetworkClient, Sender};
use log::GuestLog;
use meter::Meter;
use named_streams::Streams;
use open_requests::OpenRequests;
use outside::Outside;
use requests::Requests;
use result::ResultSlot;
use scratch::Scratch;
use signal::{Signal, Signals};
use spans::Spans;
use speaker::Speaker;
use tenant_rate::Rates;

/// Longest text that `host_last_error` answers, in bytes: a sentence or two, and
/// small enough for a fixed buffer of the guest's.
const LAST_ERROR_MAX_BYTES: u32 = 1024;

/// The capabilities of one run.
#[derive(Debug)]
pub struct Guest {
    context: RunContext,
    /// What the host holds for the run.
    pub memory: HostMemory,
    /// The entity's fields, once the guest has called for one.
    fields: Option<Fields>,
    last_error: String,
    /// Whether the present call has failed.
    has_failed: bool,
    /// What was asked of others.
    pub requests: Requests,
    /// How many requests it has open.
    open_requests: Arc<AtomicU32>,
    log: GuestLog,
    spans: Spans,
    meter: Meter,
    scratch: Scratch,
    /// Its streams, once there are any.
    streams: Option<Streams>,
    /// What the integration caches.
    pub cache: CacheView,
    /// The result that the guest has set.
    pub result: ResultSlot,
    /// Removes the secrets of the run from text for people.
    pub redactor: Redactor,
    grants: Arc<Grants>,
    call_limits: CallLimits,
    signals: Option<Arc<dyn Signals>>,
    trace: TraceContext,
}

measured!(
    Guest: context, memory, fields, last_error, has_failed, requests, open_requests, log, spans,
    meter, scratch, streams, cache, result, redactor, grants, call_limits, signals, trace,
);

/// What an integration may do, and with what.
#[derive(Debug)]
pub struct Grants {
    /// The name of the integration.
    pub integration: Arc<str>,
    /// Those of the whole host.
    pub open_requests: Arc<OpenRequests>,
    /// Where it may send requests.
    pub destinations: Destinations,
    /// Where its secrets come from.
    pub secrets: Arc<dyn Secrets>,
    /// What sends its requests.
    pub http: Arc<dyn HttpClient>,
    /// Largest response, in bytes.
    pub response_bytes: u64,
    /// Scratch of one dispatch, in bytes.
    pub scratch_bytes: u64,
    /// What the host may hold for one run.
    pub host_memory_bytes: u64,
    /// All streams of one run together: what it may have in its memory, it may
    /// have there, too.
    pub stream_bytes: u64,
    /// Most time that one call to the outside may take.
    pub host_call_timeout: Duration,
    /// The same for those host functions that have a bound of their own, by name.
    pub host_call_timeouts: BTreeMap<String, Duration>,
}

impl Grants {
    fn none() -> Self {
        Self {
            integration: Arc::default(),
            open_requests: OpenRequests::new(0),
            destinations: Destinations::default(),
            secrets: Arc::new(FixedSecrets::default()),
            http: Arc::new(NetworkClient::new(0)),
            response_bytes: 0,
            scratch_bytes: 0,
            host_memory_bytes: GuestLimits::default().host_memory_for(0),
            stream_bytes: 0,
            host_call_timeout: Duration::ZERO,
            host_call_timeouts: BTreeMap::new(),
        }
    }
}

impl Guest {
    /// The capabilities of one run.
    pub fn new(
        context: RunContext,
        log: GuestLog,
        speaker: Arc<Speaker>,
        (grants, call_limits): (Arc<Grants>, CallLimits),
        signals: Option<Arc<dyn Signals>>,
        (span, trace): (Arc<Span>, TraceContext),
        (streams, cache): (Option<Streams>, CacheView),
    ) -> Self {
        let memory = HostMemory::new(grants.host_memory_bytes);
        Self {
            context,
            fields: None,
            last_error: String::new(),
            has_failed: false,
            requests: Requests::default(),
            open_requests: Arc::default(),
            log,
            spans: Spans::new(Arc::clone(&speaker), span, trace.span_id),
            meter: Meter::new(Arc::clone(&speaker)),
            scratch: Scratch::new(grants.scratch_bytes, &memory),
            streams,
            cache,
            result: ResultSlot::new(grants.response_bytes, memory.clone()),
            memory,
            redactor: speaker.redactor.clone(),
            grants,
            call_limits,
            signals,
            trace,
        }
    }

    /// The capabilities of nobody.
    pub fn idle() -> Self {
        let nobody = DispatchId::from_bytes([0; 16]);
        let trace = TraceContext::root([0; 24]);
        let (redactor, metrics) = (Redactor::default(), Metrics::disabled());
        let rates = Arc::new(Rates::new(&(Arc::new(SystemClock::new()) as Arc<dyn Clock>)));
        let whose = (Arc::default(), Arc::default());
        let speaker = Arc::new(Speaker::new(whose, redactor, metrics, rates));
        let log = GuestLog::new(Arc::clone(&speaker), (nobody, trace));
        let span = (Arc::new(Span::disabled()), trace);
        let scope =
            Scope { tenant: "".into(), integration: "".into(), module: ModuleHash::of(&[]) };
        let kept = (None, Arc::new(Cache::new(0)).view(scope));
        Self::new(
            RunContext::made(Arc::default()),
            log,
            speaker,
            (Arc::new(Grants::none()), CallLimits::default()),
            None,
            span,
            kept,
        )
    }

    /// How much of what it told went nowhere, because it went over a bound of its run.
    pub fn telemetry_dropped(&self) -> TelemetryDropped {
        self.log.dropped()
    }

    /// The context of the dispatch.
    pub const fn context(&self) -> &RunContext {
        &self.context
    }

    /// Where the guest writes its lines.
    pub const fn lines(&self) -> &GuestLog {
        &self.log
    }

    /// Notes why a host function failed, for the guest to ask.
    pub fn fail(&mut self, why: impl ToString) {
        let mut why = self.redactor.text(why.to_string());
        log::truncate(&mut why, LAST_ERROR_MAX_BYTES);
        self.last_error = why;
        self.has_failed = true;
    }

    /// Notes that the present call answers an error, which says itself why.
    pub fn note_failure(&mut self) {
        self.has_failed = true;
    }

    /// Whether a call has failed since this was asked last.
    pub fn take_failure(&mut self) -> bool {
        mem::take(&mut self.has_failed)
    }

    /// Why the last call failed; empty if none has.
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    /// Tells how far the handler has come.
    pub fn progress(&mut self, progress: Value) {
        self.tell(Signal::Progress(self.redactor.json(progress)));
    }

    /// Tells that the handler is still at work.
    pub fn heartbeat(&mut self) {
        self.tell(Signal::Heartbeat);
    }

    /// Tells what the handler is doing, for people.
    pub fn status(&mut self, status: String) {
        let status = self.redactor.text(status);
        self.tell(Signal::Status(log::cut(&status, signal::STATUS_MAX_BYTES)));
    }

    fn tell(&self, signal: Signal) {
        if let Some(signals) = &self.signals {
            signals.signal(signal);
        }
    }

    /// Most time that a call to the outside may take.
    pub fn call_timeout(&self) -> Duration {
        let host = self.grants.host_call_timeout;
        self.call_limits.all.map_or(host, |own| own.min(host))
    }

    /// The same of the host function called `name`, where its manifest or its dispatch says.
    pub fn call_timeout_of(&self, name: &str) -> Option<Duration> {
        let said = [&self.grants.host_call_timeouts, &self.call_limits.of];
        said.into_iter().filter_map(|said| said.get(name).copied()).min()
    }

    /// The secret called `name`, where this integration may have it.
    ///
    /// # Errors
    /// It may not; the text says so.
    pub fn secret(&self, name: String) -> Answer<'static, Result<Secret, String>> {
        let grants = Arc::clone(&self.grants);
        Box::pin(async move {
            let secret = grants.secrets.secret(&name).await;
            secret.ok_or_else(|| format!("there is no secret called `{name}` for this integration"))
        })
    }

    /// Largest body of a response that the guest is given.
    pub fn response_bytes(&self) -> u64 {
        self.grants.response_bytes
    }

    /// The scratch that it is granted, in bytes.
    pub fn scratch_bytes(&self) -> u64 {
        self.grants.scratch_bytes
    }

    /// The way to the outside of `run`, which is this guest's.
    pub fn outside(&self, run: &Arc<Run>, clock: &Arc<dyn Clock>) -> Outside {
        Outside {
            grants: Arc::clone(&self.grants),
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
        let tenant = self.context.facts().map_or("", |facts| &*facts.dispatch.context.tenant);
        Sender { tenant: tenant.into(), integration: Arc::clone(&self.grants.integration) }
    }
}
