//! Several requests at once.

use super::{Error, ErrorKind, Request, Response};
use crate::backend;

/// Most requests in one batch; the host has the same limit.
const REQUESTS_MAX: usize = 64;

/// Sends at most 64 requests, and returns their responses in the same order. One request can fail
/// without the others. All bodies together have at most the size that is allowed for one response.
///
/// In a core module, the host sends up to 8 requests at a time, all requests together have at most 1 MiB, and
/// bodies are text: request bodies are UTF-8, and invalid UTF-8 in response bodies is replaced. In a
/// component, they are sent one after another, or, with the feature `async`, all at the same time.
///
/// # Errors
/// Errors if there are more than 64 requests or they are too large, if the soft deadline passes while
/// they wait, and if their responses are too large (the requests were made then).
pub fn batch(
    requests: impl IntoIterator<Item = Request>,
) -> Result<Vec<Result<Response, Error>>, Error> {
    let requests: Vec<Request> = requests.into_iter().take(REQUESTS_MAX + 1).collect();
    if requests.len() > REQUESTS_MAX {
        let why = format!("a batch has at most {REQUESTS_MAX} requests");
        return Err(Error::new(ErrorKind::InvalidRequest, why));
    }
    // A request that cannot be sent keeps its position among the responses.
    let mut results = Vec::with_capacity(requests.len());
    let mut sent = Vec::with_capacity(requests.len());
    for mut request in requests {
        results.push(match request.invalid.take() {
            Some(why) => Some(Err(Error::new(ErrorKind::InvalidRequest, why))),
            None => {
                sent.push(request);
                None
            }
        });
    }
    if sent.is_empty() {
        return Ok(results.into_iter().flatten().collect());
    }
    let mut responses = backend::send_batch(sent)?.into_iter();
    let missing =
        || Err(Error::new(ErrorKind::Failed, "the host returned fewer responses than requests"));
    let in_order = results
        .into_iter()
        .map(|result| result.unwrap_or_else(|| responses.next().unwrap_or_else(missing)));
    Ok(in_order.collect())
}
