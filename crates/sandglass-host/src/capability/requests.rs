//! What a run has asked of others over HTTP, so that somebody can judge afterwards
//! what may have landed: method, host and path, and what came of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use percent_encoding::percent_decode_str;
use sandglass_model::{Clock, Monotonic, OutgoingRequest, RequestOutcome, STORY_REQUESTS_MAX};

use super::http::{HttpError, Request};
use crate::secret::Redactor;
use crate::store::printable;

/// The requests of one run. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<OnceLock<Mutex<Sent>>>);

#[derive(Debug, Default)]
struct Sent {
    /// The last of those that ended, and all under way; a run waits for few at once.
    held: VecDeque<One>,
    count: u64,
    omitted: u64,
}

#[derive(Debug)]
struct One {
    number: u64,
    request: OutgoingRequest,
    since: Monotonic,
    until: Option<Monotonic>,
}

/// A request that is under way. Where this is dropped before its answer, it was given up.
pub(crate) struct UnderWay {
    requests: Requests,
    clock: Arc<dyn Clock>,
    number: u64,
}

impl Requests {
    /// `request` is sent now.
    pub(crate) fn begin(&self, request: &Request, clock: &Arc<dyn Clock>) -> UnderWay {
        let (method, host, path) = request.destination();
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
        sent.held.push_back(One { number, request, since: clock.now(), until: None });
        sent.forget();
        UnderWay { requests: self.clone(), clock: Arc::clone(clock), number }
    }

    /// All that is to be told at the end of the run that began at `start`, and how many
    /// earlier ones are not.
    pub(crate) fn told(
        &self,
        redactor: &Redactor,
        start: Monotonic,
        end: Monotonic,
    ) -> (Vec<OutgoingRequest>, u64) {
        let Some(sent) = self.0.get() else { return (Vec::new(), 0) };
        let sent = lock(sent);
        let told = sent.held.iter().map(|one| OutgoingRequest {
            host: printable(&redactor.text(one.request.host.clone())),
            path: printable(&without_secrets(redactor, &one.request.path)),
            started_us: micros(start, one.since),
            duration_us: micros(one.since, one.until.unwrap_or(end)),
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
        let least = self.held.iter().position(is_known);
        let least = least.or_else(|| self.held.iter().position(is_over));
        self.held.remove(least.unwrap_or(0));
        self.omitted += 1;
    }
}

impl UnderWay {
    /// The head of its answer has come, or why it hasn't.
    pub(crate) fn ended(self, answer: Result<u16, &HttpError>) {
        match answer {
            Ok(status) => self.end(RequestOutcome::Answered, Some(status)),
            // Nobody waits for it any more, and that is all that is known.
            Err(HttpError::TimedOut(_) | HttpError::CutShort(_)) => {}
            Err(_) => self.end(RequestOutcome::Failed, None),
        }
    }

    fn end(&self, outcome: RequestOutcome, status: Option<u16>) {
        let Some(sent) = self.requests.0.get() else { return };
        let mut sent = lock(sent);
        let one = sent.held.iter_mut().find(|one| one.number == self.number);
        if let Some(one) = one.filter(|one| one.until.is_none()) {
            one.until = Some(self.clock.now());
            one.request.outcome = outcome;
            one.request.status = status;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.end(RequestOutcome::Unfinished, None);
    }
}

/// `path` without what was given to the guest as a secret, however it is spelt there.
fn without_secrets(redactor: &Redactor, path: &str) -> String {
    let meant = percent_decode_str(path).decode_utf8_lossy();
    let redacted = redactor.text(meant.to_string());
    if redacted == meant { redactor.text(path.to_owned()) } else { redacted }
}

fn micros(from: Monotonic, until: Monotonic) -> u64 {
    u64::try_from(until.since(from).as_micros()).unwrap_or(u64::MAX)
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
        requests.told(redactor, Monotonic::default(), Monotonic::default())
    }

    #[test]
    fn neither_a_query_nor_a_login_nor_a_secret_is_told() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (requests, redactor) = (Requests::default(), Redactor::default());
        let sent = request("http://me:hush@api.example:8080/v1/s%20ecret/charge?token=t#part");
        requests.begin(&sent, &clock).ended(Ok(202));
        redactor.hide(&Secret::new("s ecret"));
        let (told, _) = told(&requests, &redactor);
        let [one] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((one.method.as_str(), one.host.as_str()), ("POST", "api.example:8080"));
        assert!(one.path.starts_with("/v1/") && one.path.ends_with("/charge"), "{one:?}");
        assert!(!one.path.contains("ecret"), "{one:?}");
        assert_eq!((one.outcome, one.status), (RequestOutcome::Answered, Some(202)));
    }

    #[test]
    fn those_under_way_are_told_before_those_that_were_answered() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let requests = Requests::default();
        let hanging = requests.begin(&request("http://x/hangs"), &clock);
        for _ in 0..100 {
            requests.begin(&request("http://x/quick"), &clock).ended(Ok(200));
        }
        drop(requests.begin(&request("http://x/given-up"), &clock));
        let (told, omitted) = told(&requests, &Redactor::default());
        assert_eq!((told.len(), omitted), (STORY_REQUESTS_MAX, 102 - STORY_REQUESTS_MAX as u64));
        let unfinished = told.iter().filter(|one| one.outcome == RequestOutcome::Unfinished);
        let paths: Vec<_> = unfinished.map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["/hangs", "/given-up"]);
        hanging.ended(Err(&HttpError::TooManyRedirects));
        let (told, _) = self::told(&requests, &Redactor::default());
        assert_eq!(told[0].outcome, RequestOutcome::Failed);
        let late = HttpError::TimedOut(std::time::Duration::from_secs(1));
        requests.begin(&request("http://x/late"), &clock).ended(Err(&late));
        let (told, _) = self::told(&requests, &Redactor::default());
        assert_eq!(told.last().map(|one| one.outcome), Some(RequestOutcome::Unfinished));
    }
}
