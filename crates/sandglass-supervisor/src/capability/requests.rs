//! The HTTP requests that a run sent: method, host, path and outcome, from which an operator can
//! judge afterwards what may have taken effect.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use percent_encoding::percent_decode_str;
use sandglass_model::report::micros;
use sandglass_model::{
    Clock, Monotonic, OutgoingRequest, RequestOutcome, STORY_ERROR_MAX_BYTES, STORY_REQUESTS_MAX,
};

use super::http::{HttpError, Request};
use super::log;
use crate::measured::Measured;
use crate::secret::Redactor;
use crate::sync::lock;
use crate::text::printable;

/// How much of an error is kept, in bytes. It has no secrets any more, but more may become known before it
/// is reported, and reports show less of it.
const ERROR_KEPT_MAX_BYTES: u32 = 4096;

/// The requests of one run. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    redactor: Redactor,
    sent: Arc<OnceLock<Mutex<SentRequests>>>,
}

#[derive(Debug, Default)]
struct SentRequests {
    /// The last ones that ended, and all in flight; a run waits for few at a time.
    held: VecDeque<NotedRequest>,
    /// The memory of `held`.
    bytes: u64,
    count: u64,
    omitted: u64,
    /// Why the last request was refused that is not granted, until the guest asks.
    refusal: Option<String>,
}

#[derive(Debug)]
struct NotedRequest {
    number: u64,
    /// The whole address as the guest wrote it: parsing rewrites it, and a secret in it.
    raw: String,
    request: OutgoingRequest,
    since: Monotonic,
    until: Option<Monotonic>,
}

/// A request in flight, with the redirects that follow from it. If this is dropped before the
/// response, the request was given up.
#[derive(Debug)]
pub struct RequestInFlight(Arc<Journey>);

/// The progress of a request in flight, which the HTTP client reports.
#[derive(Debug)]
pub(super) struct Journey {
    requests: Requests,
    clock: Arc<dyn Clock>,
    /// The number of the present request of the chain of redirects.
    number: AtomicU64,
}

impl Measured for Requests {
    fn uncharged_bytes(&self) -> u64 {
        self.sent.get().map_or(0, |sent| lock(sent).bytes)
    }
}

impl NotedRequest {
    fn bytes(&self) -> u64 {
        let OutgoingRequest { method, host, path, error, .. } = &self.request;
        let error = error.as_ref().map_or(0, String::len);
        let texts = self.raw.len() + method.len() + host.len() + path.len() + error;
        (size_of::<Self>() + texts) as u64
    }
}

impl Requests {
    /// No requests yet. `redactor` removes the secrets of the run from what is kept and reported.
    pub fn new(redactor: Redactor) -> Self {
        Self { redactor, sent: Arc::default() }
    }

    /// Why a request failed, as it is kept: the secrets are removed before it is cut.
    fn reason(&self, why: &HttpError) -> String {
        log::cut(&self.redactor.text(why.to_string()), ERROR_KEPT_MAX_BYTES)
    }

    /// Notes that `request` is sent now. Its journey reports what happens to it.
    pub fn begin(&self, request: &mut Request, clock: &Arc<dyn Clock>) -> RequestInFlight {
        let number = AtomicU64::new(self.note(request, clock));
        let journey =
            Arc::new(Journey { requests: self.clone(), clock: Arc::clone(clock), number });
        request.journey = Some(Arc::clone(&journey));
        RequestInFlight(journey)
    }

    /// Notes a request, and returns its number.
    fn note(&self, request: &Request, clock: &Arc<dyn Clock>) -> u64 {
        let (method, host, path) = request.destination();
        let raw = request.raw.clone();
        let request = OutgoingRequest {
            method,
            host,
            path,
            started_us: 0,
            duration_us: 0,
            outcome: RequestOutcome::Unfinished,
            status: None,
            error: None,
        };
        let mut sent = lock(self.sent.get_or_init(Mutex::default));
        let number = sent.count;
        sent.count += 1;
        let one = NotedRequest { number, raw, request, since: clock.now(), until: None };
        sent.bytes += one.bytes();
        sent.held.push_back(one);
        sent.forget();
        number
    }

    /// The address of the last request, as the guest wrote it, that was without a response `since`
    /// then; `None` if there is none.
    pub fn unfinished_since(&self, since: Monotonic) -> Option<String> {
        let sent = lock(self.sent.get()?);
        let is_open = |one: &&NotedRequest| {
            one.request.outcome == RequestOutcome::Unfinished
                && one.until.is_none_or(|until| until >= since)
        };
        sent.held.iter().rfind(is_open).map(|one| one.raw.clone())
    }

    /// Notes that a request failed. If it is not granted, the guest has to ask why.
    pub(super) fn note_refusal(&self, why: &HttpError) {
        if why.is_denial()
            && let Some(sent) = self.sent.get()
        {
            lock(sent).refusal = Some(self.reason(why));
        }
    }

    /// Why the last request was refused that is not granted, unless the guest has asked since.
    pub(super) fn refusal(&self) -> Option<String> {
        lock(self.sent.get()?).refusal.clone()
    }

    /// Notes that the guest asks for the last error.
    pub(super) fn forget_refusal(&self) {
        if let Some(sent) = self.sent.get() {
            lock(sent).refusal = None;
        }
    }

    /// Returns the requests for the report of a run from `start` to `end`, and how many are left
    /// out. If the run ended inside a host call, that call began at `cut`.
    pub fn report(
        &self,
        (start, end): (Monotonic, Monotonic),
        cut: Option<Monotonic>,
    ) -> (Vec<OutgoingRequest>, u64) {
        let Some(sent) = self.sent.get() else { return (Vec::new(), 0) };
        let (sent, redactor) = (lock(sent), &self.redactor);
        let requests = sent.held.iter().map(|one| OutgoingRequest {
            method: well_known_method(&one.request.method).to_owned(),
            host: printable(&redactor.text(one.request.host.clone())),
            path: printable(&without_secrets(redactor, &one.raw, &one.request.path)),
            outcome: match (one.request.outcome, one.until, cut) {
                // The guest stopped waiting before the run ended.
                (RequestOutcome::Unfinished, Some(until), cut)
                    if cut.is_none_or(|cut| until < cut) =>
                {
                    RequestOutcome::GivenUp
                }
                (outcome, ..) => outcome,
            },
            started_us: micros(one.since.since(start)),
            duration_us: micros(one.until.unwrap_or(end).since(one.since)),
            error: one
                .request
                .error
                .as_ref()
                .map(|why| log::cut(&redactor.text(why.clone()), STORY_ERROR_MAX_BYTES)),
            ..one.request.clone()
        });
        (requests.collect(), sent.omitted)
    }
}

impl SentRequests {
    /// If there are too many requests, removes the oldest of those that matter least: idempotent and
    /// answered ones first, requests in flight last.
    fn forget(&mut self) {
        if self.held.len() <= STORY_REQUESTS_MAX {
            return;
        }
        let is_over = |one: &NotedRequest| one.until.is_some();
        let is_known =
            |one: &NotedRequest| is_over(one) && one.request.outcome != RequestOutcome::Unfinished;
        let is_harmless = |one: &NotedRequest| {
            is_known(one)
                && (one.request.is_idempotent() || one.request.outcome == RequestOutcome::Refused)
        };
        let first = |is: &dyn Fn(&NotedRequest) -> bool| self.held.iter().position(is);
        let least = first(&is_harmless).or_else(|| first(&is_known)).or_else(|| first(&is_over));
        let removed = self.held.remove(least.unwrap_or(0));
        self.bytes -= removed.map_or(0, |one| one.bytes());
        self.omitted += 1;
    }
}

impl RequestInFlight {
    /// Notes that the host did not send it.
    pub(super) fn refused(self, why: &HttpError) {
        self.0.end(RequestOutcome::Refused, None, Some(why));
    }

    /// Notes the status of the response, or why there is none.
    pub fn ended(self, answer: Result<u16, &HttpError>) {
        match answer {
            Ok(status) => self.0.end(RequestOutcome::Answered, Some(status), None),
            // The guest gave up waiting; what the server did is unknown.
            Err(why @ (HttpError::TimedOut(_) | HttpError::CutShort(_))) => {
                self.0.end(RequestOutcome::Unfinished, None, Some(why));
            }
            Err(
                why @ (HttpError::NotAllowed(_)
                | HttpError::NotThisWay(_)
                | HttpError::NotPublic(_)
                | HttpError::TooManyRequests(_)
                | HttpError::InvalidRequest(_)),
            ) => {
                self.refused(why);
            }
            Err(why) => self.0.end(RequestOutcome::Failed, None, Some(why)),
        }
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.end(RequestOutcome::Unfinished, None, None);
    }
}

impl Journey {
    /// Notes the head of the response; its body may still be in flight.
    pub(super) fn head(&self, status: u16) {
        self.note(|one, _| one.request.status = Some(status));
    }

    /// Notes a redirect that is not followed.
    pub(super) fn redirected(&self, status: u16) {
        self.end(RequestOutcome::Answered, Some(status), None);
    }

    /// Notes a redirect, and that `next` is sent now.
    pub(super) fn goes_on(&self, status: u16, next: &Request) {
        self.redirected(status);
        self.number.store(self.requests.note(next, &self.clock), Ordering::Relaxed);
    }

    /// Ends the present request. A status that has arrived is kept.
    fn end(&self, outcome: RequestOutcome, status: Option<u16>, why: Option<&HttpError>) {
        let reason = why.map(|why| self.requests.reason(why));
        self.note(|one, now| {
            one.until = Some(now);
            one.request.outcome = outcome;
            one.request.status = status.or(one.request.status);
            one.request.error = reason;
        });
    }

    /// Changes the present request, unless it has ended.
    fn note(&self, how: impl FnOnce(&mut NotedRequest, Monotonic)) {
        let Some(sent) = self.requests.sent.get() else { return };
        let (mut sent, number) = (lock(sent), self.number.load(Ordering::Relaxed));
        let SentRequests { held, bytes, .. } = &mut *sent;
        let one = held.iter_mut().find(|one| one.number == number);
        if let Some(one) = one.filter(|one| one.until.is_none()) {
            let before = one.bytes();
            how(one, self.clock.now());
            *bytes += one.bytes() - before;
        }
    }
}

/// The methods that reports name: registered ones (IANA), and others as well known. A guest can make
/// up any other method, and put a secret there.
const METHODS: [&str; 20] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "QUERY",
    "SEARCH",
    "PURGE",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "REPORT",
    "MERGE",
];

/// How reports name any other method, as `http.request.method` does in OpenTelemetry.
const OTHER_METHOD: &str = "_OTHER";

fn well_known_method(method: &str) -> &str {
    if METHODS.contains(&method) { method } else { OTHER_METHOD }
}

/// Removes the secrets of the guest from `path`, however they are escaped there. If the `raw` text
/// contains a secret that `path` does not, parsing has changed the secret, and the whole path is
/// hidden.
fn without_secrets(redactor: &Redactor, raw: &str, path: &str) -> String {
    let meant = percent_decode_str(path).decode_utf8_lossy();
    let redacted = redactor.text(meant.to_string());
    if redacted != meant {
        return redacted;
    }
    let plain = redactor.text(path.to_owned());
    let is_hidden = plain == path && redactor.text(raw.to_owned()) != raw;
    if is_hidden { "/[REDACTED]".to_owned() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;
    use sandglass_model::SystemClock;

    /// Notes that a request is sent.
    fn send(requests: &Requests, method: &str, url: &str) -> RequestInFlight {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let request = Request::new(method, url, Vec::new(), bytes::Bytes::new());
        requests.begin(&mut request.expect("valid"), &clock)
    }

    fn report(requests: &Requests) -> (Vec<OutgoingRequest>, u64) {
        requests.report((Monotonic::default(), Monotonic::default()), None)
    }

    fn with_redactor() -> (Requests, Redactor) {
        let redactor = Redactor::default();
        (Requests::new(redactor.clone()), redactor)
    }

    #[test]
    fn queries_logins_and_secrets_are_not_reported() {
        let (requests, redactor) = with_redactor();
        let url = "http://me:hush@api.example:8080/v1/s%20ecret/charge?token=t#part";
        send(&requests, "post", url).ended(Ok(202));
        redactor.hide(&Secret::new("s ecret"));
        let (reported, _) = report(&requests);
        let [one] = reported.as_slice() else { panic!("{reported:?}") };
        assert_eq!((one.method.as_str(), one.host.as_str()), ("POST", "api.example:8080"));
        assert!(one.path.starts_with("/v1/") && one.path.ends_with("/charge"), "{one:?}");
        assert!(!one.path.contains("ecret"), "{one:?}");
        assert_eq!((one.outcome, one.status), (RequestOutcome::Answered, Some(202)));
    }

    #[test]
    fn only_well_known_methods_are_reported() {
        let requests = Requests::default();
        for method in ["purge", "hunter22", &"x".repeat(64)] {
            send(&requests, method, "http://x/").ended(Ok(200));
        }
        let (reported, _) = report(&requests);
        let methods: Vec<_> = reported.iter().map(|one| one.method.as_str()).collect();
        assert_eq!(methods, ["PURGE", "_OTHER", "_OTHER"]);
        assert!(!reported[1].is_idempotent());
    }

    #[test]
    fn a_secret_that_parsing_has_rewritten_hides_the_whole_path() {
        for secret in
            ["hunter22\\hush99", "hunter22\thush99", "hunter22?hush99", "hunter22/../hush99"]
        {
            let (requests, redactor) = with_redactor();
            redactor.hide(&Secret::new(secret));
            send(&requests, "post", &format!("http://x/at/{secret}")).ended(Ok(200));
            let (reported, _) = report(&requests);
            assert_eq!(reported[0].path, "/[REDACTED]", "{secret:?}");
        }
    }

    #[test]
    fn requests_that_are_not_idempotent_are_left_out_last() {
        let requests = Requests::default();
        send(&requests, "post", "http://x/charge").ended(Ok(200));
        for _ in 0..100 {
            send(&requests, "GET", "http://x/look").ended(Ok(200));
        }
        let (reported, _) = report(&requests);
        assert_eq!(reported[0].path, "/charge");
    }

    #[test]
    fn requests_in_flight_are_reported_rather_than_answered_ones() {
        let requests = Requests::default();
        let hanging = send(&requests, "post", "http://x/hangs");
        for _ in 0..100 {
            send(&requests, "post", "http://x/quick").ended(Ok(200));
        }
        drop(send(&requests, "post", "http://x/given-up"));
        let (reported, omitted) = report(&requests);
        let expected = (STORY_REQUESTS_MAX, 102 - STORY_REQUESTS_MAX as u64);
        assert_eq!((reported.len(), omitted), expected);
        let of = |outcome| reported.iter().filter(move |one| one.outcome == outcome);
        let paths: Vec<_> = of(RequestOutcome::Unfinished).map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["/hangs"]);
        let paths: Vec<_> = of(RequestOutcome::GivenUp).map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["/given-up"]);
        hanging.ended(Err(&HttpError::TooManyRedirects));
        let (reported, _) = report(&requests);
        assert_eq!(reported[0].outcome, RequestOutcome::Failed);
        let late = HttpError::TimedOut(std::time::Duration::from_secs(1));
        let refused = HttpError::NotAllowed("x".to_owned());
        for (error, outcome) in
            [(late, RequestOutcome::GivenUp), (refused, RequestOutcome::Refused)]
        {
            send(&requests, "post", "http://x/last").ended(Err(&error));
            let (reported, _) = report(&requests);
            assert_eq!(reported.last().map(|one| one.outcome), Some(outcome));
        }
    }

    #[test]
    fn reasons_are_reported_without_secrets_and_a_refusal_until_the_guest_asks() {
        let (requests, redactor) = with_redactor();
        redactor.hide(&Secret::new("hunter22"));
        let empty = requests.uncharged_bytes();
        let refused = HttpError::NotAllowed(format!("hunter22.{}", "x".repeat(10_000)));
        send(&requests, "GET", "http://x/").ended(Err(&refused));
        requests.note_refusal(&refused);
        let (reported, _) = report(&requests);
        let error = reported[0].error.as_deref().expect("a reason");
        assert!(error.starts_with("the host `[redacted].x"), "{error}");
        assert_eq!(error.len(), STORY_ERROR_MAX_BYTES as usize);
        assert!(requests.uncharged_bytes() - empty >= u64::from(ERROR_KEPT_MAX_BYTES));
        assert!(requests.refusal().is_some());
        requests.forget_refusal();
        send(&requests, "GET", "http://x/").ended(Err(&HttpError::TooLarge(7)));
        requests.note_refusal(&HttpError::TooLarge(7));
        assert_eq!(requests.refusal(), None, "a failure is no refusal");
        let (reported, _) = report(&requests);
        let error = reported[1].error.as_deref();
        assert_eq!(error, Some("the response is larger than the 7 bytes allowed"));
    }

    #[test]
    fn a_secret_across_a_cut_is_not_reported_in_part() {
        let (requests, redactor) = with_redactor();
        let secret = "hunter22".repeat(200);
        redactor.hide(&Secret::new(&secret));
        // Replaced secrets move what follows them to the front, whatever it was cut to before.
        let texts = (0..16).map(|more| format!("{}{}", "x".repeat(more), [&*secret; 4].join("/")));
        for text in texts {
            let refused = HttpError::NotAllowed(text.clone());
            send(&requests, "GET", &format!("http://x/{text}")).ended(Err(&refused));
            requests.note_refusal(&refused);
            let (reported, _) = report(&requests);
            let last = reported.last().expect("one");
            let refusal = requests.refusal().expect("refused");
            let error = last.error.clone().expect("a reason");
            for shown in [&last.path, &error, &refusal] {
                assert!(shown.contains("[redacted]") && !shown.contains("hunter"), "{shown}");
            }
        }
        // Parsing rewrites this secret, far from the start of the address.
        redactor.hide(&Secret::new("rewritten\\hush99"));
        let far = format!("http://x/{}/rewritten\\hush99", "x/".repeat(5_000));
        send(&requests, "GET", &far).ended(Ok(200));
        assert_eq!(report(&requests).0.last().map(|one| one.path.as_str()), Some("/[REDACTED]"));
    }
}
