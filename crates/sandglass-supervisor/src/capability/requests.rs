//! What a run has asked of others over HTTP, so that somebody can judge afterwards
//! what may have landed: method, host and path, and what came of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use percent_encoding::percent_decode_str;
use sandglass_model::report::micros;
use sandglass_model::{Clock, Monotonic, OutgoingRequest, RequestOutcome, STORY_REQUESTS_MAX};

use super::http::{HttpError, Request};
use crate::measured::Measured;
use crate::secret::Redactor;
use crate::text::printable;

/// The requests of one run. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<OnceLock<Mutex<Sent>>>);

#[derive(Debug, Default)]
struct Sent {
    /// The last of those that ended, and all under way; a run waits for few at once.
    held: VecDeque<One>,
    /// What they occupy.
    bytes: u64,
    count: u64,
    omitted: u64,
}

#[derive(Debug)]
struct One {
    number: u64,
    /// Its address as the guest wrote it: reading it rewrites it, and a secret with it.
    raw: String,
    request: OutgoingRequest,
    since: Monotonic,
    until: Option<Monotonic>,
}

/// A request that is under way, with all that it was redirected to. Where this is dropped
/// before its answer, it was given up.
#[derive(Debug)]
pub struct UnderWay(Arc<Journey>);

/// Where a request that is under way has come to, told by whoever sends it.
#[derive(Debug)]
pub(super) struct Journey {
    requests: Requests,
    clock: Arc<dyn Clock>,
    /// The number of the one that is sent now.
    number: AtomicU64,
}

impl Measured for Requests {
    fn uncharged_bytes(&self) -> u64 {
        self.0.get().map_or(0, |sent| lock(sent).bytes)
    }
}

impl One {
    fn bytes(&self) -> u64 {
        let OutgoingRequest { method, host, path, .. } = &self.request;
        let texts = self.raw.len() + method.len() + host.len() + path.len();
        (size_of::<Self>() + texts) as u64
    }
}

impl Requests {
    /// `request` is sent now. What becomes of it on the way is told by its journey.
    pub fn begin(&self, request: &mut Request, clock: &Arc<dyn Clock>) -> UnderWay {
        let number = AtomicU64::new(self.sent(request, clock));
        let journey =
            Arc::new(Journey { requests: self.clone(), clock: Arc::clone(clock), number });
        request.journey = Some(Arc::clone(&journey));
        UnderWay(journey)
    }

    /// Notes a request, and gives its number.
    fn sent(&self, request: &Request, clock: &Arc<dyn Clock>) -> u64 {
        let (method, host, path) = request.destination();
        let raw = request.as_given().to_owned();
        let request = OutgoingRequest {
            method,
            host,
            path,
            started_us: 0,
            duration_us: 0,
            outcome: RequestOutcome::Unfinished,
            status: None,
        };
        let mut sent = lock(self.0.get_or_init(Mutex::default));
        let number = sent.count;
        sent.count += 1;
        let one = One { number, raw, request, since: clock.now(), until: None };
        sent.bytes += one.bytes();
        sent.held.push_back(one);
        sent.forget();
        number
    }

    /// All that is to be told at the end of the run that began at `start`, and how many
    /// others are not. Where it was ended in a host call, that began at `cut`.
    pub fn told(
        &self,
        redactor: &Redactor,
        (start, end): (Monotonic, Monotonic),
        cut: Option<Monotonic>,
    ) -> (Vec<OutgoingRequest>, u64) {
        let Some(sent) = self.0.get() else { return (Vec::new(), 0) };
        let sent = lock(sent);
        let told = sent.held.iter().map(|one| OutgoingRequest {
            method: told_method(&one.request.method).to_owned(),
            host: printable(&redactor.text(one.request.host.clone())),
            path: printable(&without_secrets(redactor, &one.raw, &one.request.path)),
            outcome: match (one.request.outcome, one.until, cut) {
                // Its wait was over before the run was.
                (RequestOutcome::Unfinished, Some(until), cut)
                    if cut.is_none_or(|cut| until < cut) =>
                {
                    RequestOutcome::GivenUp
                }
                (outcome, ..) => outcome,
            },
            started_us: micros(one.since.since(start)),
            duration_us: micros(one.until.unwrap_or(end).since(one.since)),
            ..one.request.clone()
        });
        (told.collect(), sent.omitted)
    }
}

impl Sent {
    /// Leaves out what is known longest to have been answered, where there are too many.
    fn forget(&mut self) {
        if self.held.len() <= STORY_REQUESTS_MAX {
            return;
        }
        let is_over = |one: &One| one.until.is_some();
        let is_known =
            |one: &One| is_over(one) && one.request.outcome != RequestOutcome::Unfinished;
        let is_harmless = |one: &One| {
            is_known(one)
                && (one.request.is_idempotent() || one.request.outcome == RequestOutcome::Refused)
        };
        let first = |is: &dyn Fn(&One) -> bool| self.held.iter().position(is);
        let least = first(&is_harmless).or_else(|| first(&is_known)).or_else(|| first(&is_over));
        let removed = self.held.remove(least.unwrap_or(0));
        self.bytes -= removed.map_or(0, |one| one.bytes());
        self.omitted += 1;
    }
}

impl UnderWay {
    /// The host did not send it.
    pub(super) fn refused(self) {
        self.0.end(RequestOutcome::Refused, None);
    }

    /// The answer has come, or its head where no more is waited for, or why it hasn't.
    pub fn ended(self, answer: Result<u16, &HttpError>) {
        match answer {
            Ok(status) => self.0.end(RequestOutcome::Answered, Some(status)),
            // Nobody waits for it any more, and that is all that is known.
            Err(HttpError::TimedOut(_) | HttpError::CutShort(_)) => {}
            Err(
                HttpError::NotAllowed(_)
                | HttpError::NotThisWay(_)
                | HttpError::NotPublic(_)
                | HttpError::TooManyRequests(_)
                | HttpError::InvalidRequest(_),
            ) => {
                self.refused();
            }
            Err(_) => self.0.end(RequestOutcome::Failed, None),
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.end(RequestOutcome::Unfinished, None);
    }
}

impl Journey {
    /// The head of the answer has come; its body may still be under way.
    pub(super) fn head(&self, status: u16) {
        self.note(|one, _| one.request.status = Some(status));
    }

    /// The answer was a redirect, and nothing is sent any more.
    pub(super) fn redirected(&self, status: u16) {
        self.end(RequestOutcome::Answered, Some(status));
    }

    /// The answer was a redirect, and `next` is sent now.
    pub(super) fn goes_on(&self, status: u16, next: &Request) {
        self.redirected(status);
        self.number.store(self.requests.sent(next, &self.clock), Ordering::Relaxed);
    }

    /// A status that has come already is kept.
    fn end(&self, outcome: RequestOutcome, status: Option<u16>) {
        self.note(|one, now| {
            one.until = Some(now);
            one.request.outcome = outcome;
            one.request.status = status.or(one.request.status);
        });
    }

    /// Notes something of the one that is sent now, unless it is over.
    fn note(&self, how: impl FnOnce(&mut One, Monotonic)) {
        let Some(sent) = self.requests.0.get() else { return };
        let (mut sent, number) = (lock(sent), self.number.load(Ordering::Relaxed));
        let one = sent.held.iter_mut().find(|one| one.number == number);
        if let Some(one) = one.filter(|one| one.until.is_none()) {
            how(one, self.clock.now());
        }
    }
}

/// Methods that are told by their name: those that are registered (IANA) or as well known. A
/// guest can make up any other, and put a secret there.
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

/// What any other is told as, as `http.request.method` is in OpenTelemetry.
const OTHER_METHOD: &str = "_OTHER";

fn told_method(method: &str) -> &str {
    if METHODS.contains(&method) { method } else { OTHER_METHOD }
}

/// `path` without what was given to the guest as a secret, however it is spelt there; and
/// nothing of it where a secret stands in the `raw` text that it was read from and can't be
/// found in it any more.
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

fn lock(sent: &Mutex<Sent>) -> MutexGuard<'_, Sent> {
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;
    use sandglass_model::SystemClock;

    fn request(url: &str) -> Request {
        Request::new("post", url, Vec::new(), bytes::Bytes::new()).expect("valid")
    }

    fn told(requests: &Requests, redactor: &Redactor) -> (Vec<OutgoingRequest>, u64) {
        requests.told(redactor, (Monotonic::default(), Monotonic::default()), None)
    }

    #[test]
    fn neither_a_query_nor_a_login_nor_a_secret_is_told() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (requests, redactor) = (Requests::default(), Redactor::default());
        let mut sent = request("http://me:hush@api.example:8080/v1/s%20ecret/charge?token=t#part");
        requests.begin(&mut sent, &clock).ended(Ok(202));
        redactor.hide(&Secret::new("s ecret"));
        let (told, _) = told(&requests, &redactor);
        let [one] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((one.method.as_str(), one.host.as_str()), ("POST", "api.example:8080"));
        assert!(one.path.starts_with("/v1/") && one.path.ends_with("/charge"), "{one:?}");
        assert!(!one.path.contains("ecret"), "{one:?}");
        assert_eq!((one.outcome, one.status), (RequestOutcome::Answered, Some(202)));
    }

    #[test]
    fn only_a_method_that_is_well_known_is_told() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let requests = Requests::default();
        for method in ["purge", "hunter22", &"x".repeat(64)] {
            let request = Request::new(method, "http://x/", Vec::new(), bytes::Bytes::new());
            requests.begin(&mut request.expect("valid"), &clock).ended(Ok(200));
        }
        let (told, _) = told(&requests, &Redactor::default());
        let methods: Vec<_> = told.iter().map(|one| one.method.as_str()).collect();
        assert_eq!(methods, ["PURGE", "_OTHER", "_OTHER"]);
        assert!(!told[1].is_idempotent());
    }

    #[test]
    fn a_secret_that_reading_the_address_has_rewritten_hides_the_whole_path() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        for secret in
            ["hunter22\\hush99", "hunter22\thush99", "hunter22?hush99", "hunter22/../hush99"]
        {
            let (requests, redactor) = (Requests::default(), Redactor::default());
            redactor.hide(&Secret::new(secret));
            requests.begin(&mut request(&format!("http://x/at/{secret}")), &clock).ended(Ok(200));
            let (told, _) = told(&requests, &redactor);
            assert_eq!(told[0].path, "/[REDACTED]", "{secret:?}");
        }
    }

    #[test]
    fn what_may_not_be_sent_again_is_forgotten_last() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let requests = Requests::default();
        requests.begin(&mut request("http://x/charge"), &clock).ended(Ok(200));
        let get = Request::new("GET", "http://x/look", Vec::new(), bytes::Bytes::new());
        let mut get = get.expect("valid");
        for _ in 0..100 {
            requests.begin(&mut get, &clock).ended(Ok(200));
        }
        let (told, _) = told(&requests, &Redactor::default());
        assert_eq!(told[0].path, "/charge");
    }

    #[test]
    fn those_under_way_are_told_before_those_that_were_answered() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let requests = Requests::default();
        let hanging = requests.begin(&mut request("http://x/hangs"), &clock);
        for _ in 0..100 {
            requests.begin(&mut request("http://x/quick"), &clock).ended(Ok(200));
        }
        drop(requests.begin(&mut request("http://x/given-up"), &clock));
        let (told, omitted) = told(&requests, &Redactor::default());
        assert_eq!((told.len(), omitted), (STORY_REQUESTS_MAX, 102 - STORY_REQUESTS_MAX as u64));
        let of = |outcome| told.iter().filter(move |one| one.outcome == outcome);
        let paths: Vec<_> = of(RequestOutcome::Unfinished).map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["/hangs"]);
        let paths: Vec<_> = of(RequestOutcome::GivenUp).map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["/given-up"]);
        hanging.ended(Err(&HttpError::TooManyRedirects));
        let (told, _) = self::told(&requests, &Redactor::default());
        assert_eq!(told[0].outcome, RequestOutcome::Failed);
        let late = HttpError::TimedOut(std::time::Duration::from_secs(1));
        requests.begin(&mut request("http://x/late"), &clock).ended(Err(&late));
        let (told, _) = self::told(&requests, &Redactor::default());
        assert_eq!(told.last().map(|one| one.outcome), Some(RequestOutcome::GivenUp));
        let refused = HttpError::NotAllowed("x".to_owned());
        requests.begin(&mut request("http://x/no"), &clock).ended(Err(&refused));
        let (told, _) = self::told(&requests, &Redactor::default());
        assert_eq!(told.last().map(|one| one.outcome), Some(RequestOutcome::Refused));
    }
}
