//! Several requests at once.

use super::{Error, ErrorKind, Request, Response};
use crate::backend;

/// Most requests of one batch: the host's own bound.
const REQUESTS_MAX: usize = 64;

/// Sends at most 64 requests, and answers in their order; one that fails does so alone.
/// All bodies together are within the bound of one response.
///
/// A core module's host sends up to 8 at a time; bodies of requests are then texts, and of
/// responses as well: what is no UTF-8 in those is replaced. All requests together have at
/// most 1 MiB. For a component they are sent one after another.
///
/// # Errors
/// There are more than 64, or too much of them; the soft deadline passed while they were
/// waited for; or their answers are larger than they may be, though the requests were made.
pub fn batch(
    requests: impl IntoIterator<Item = Request>,
) -> Result<Vec<Result<Response, Error>>, Error> {
    let requests: Vec<Request> = requests.into_iter().take(REQUESTS_MAX + 1).collect();
    if requests.len() > REQUESTS_MAX {
        let why = format!("a batch has at most {REQUESTS_MAX} requests");
        return Err(Error::new(ErrorKind::InvalidRequest, why));
    }
    // What can't be sent keeps its place in the answers.
    let mut answers = Vec::with_capacity(requests.len());
    let mut sent = Vec::with_capacity(requests.len());
    for mut request in requests {
        answers.push(match request.invalid.take() {
            Some(why) => Some(Err(Error::new(ErrorKind::InvalidRequest, why))),
            None => {
                sent.push(request);
                None
            }
        });
    }
    if sent.is_empty() {
        return Ok(answers.into_iter().flatten().collect());
    }
    let mut answered = backend::send_batch(sent)?.into_iter();
    let missing = || Err(Error::new(ErrorKind::Failed, "the host answered fewer requests"));
    let whole = answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(|| answered.next().unwrap_or_else(missing)));
    Ok(whole.collect())
}
