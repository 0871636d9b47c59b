//! The requests of a batch, and their responses, as JSON.

use std::fmt::{self, Display};
use std::io;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use wasmtime::Caller;

use crate::abi::guest_memory::{CallFailure, WhenTooSmall, fill, refuse_buffer};
use crate::store::RunStore;
use sandglass_supervisor::capability::http::{HttpError, Request};
use sandglass_supervisor::capability::outside::ReceivedResponse;
use sandglass_supervisor::host_memory::Charge;
use sandglass_supervisor::secret::Redactor;

/// One request of a batch.
#[derive(Deserialize)]
#[serde(expecting = "an object with a `method` and a `url`")]
pub(super) struct BatchRequest {
    method: String,
    url: String,
    /// An array of pairs.
    headers: Option<Value>,
    body: Option<String>,
}

/// One response of a batch. A request that failed has the status 0, which no server sends, and an
/// error.
#[derive(Serialize)]
pub(super) struct BatchResponse<'a> {
    status: u16,
    body: Lossy<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Bytes as text, with `U+FFFD` for what is not UTF-8. The text is never copied as a whole.
struct Lossy<'a>(&'a [u8]);

impl Display for Lossy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.utf8_chunks().try_for_each(|chunk| {
            f.write_str(chunk.valid())?;
            if chunk.invalid().is_empty() { Ok(()) } else { f.write_str("\u{fffd}") }
        })
    }
}

impl Serialize for Lossy<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// JSON for a buffer of the guest. What does not fit is counted, and not stored.
struct ForBuffer<'a> {
    store: &'a RunStore,
    /// For the memory of `json`.
    charge: Charge,
    /// As much of it as fits.
    json: Vec<u8>,
    max_bytes: usize,
    /// The length of the JSON so far, with what does not fit.
    size: usize,
    /// The size at which the deadline is checked again: serializing megabytes takes milliseconds.
    check_from: usize,
}

impl<'a> ForBuffer<'a> {
    /// How much is written between two checks of the deadline: a fraction of a millisecond.
    const PIECE_BYTES: usize = 64 << 10;

    fn new(store: &'a RunStore, max_bytes: usize) -> Self {
        let charge = store.guest().memory.nothing();
        Self { store, charge, json: Vec::new(), max_bytes, size: 0, check_from: 0 }
    }
}

impl io::Write for ForBuffer<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.size = self.size.saturating_add(piece.len());
        if self.size >= self.check_from {
            self.check_from = self.size + Self::PIECE_BYTES;
            if self.store.run().due(self.store.now()).is_some() {
                return Err(io::Error::other("the run ends"));
            }
        }
        if self.size <= self.max_bytes {
            if self.size > self.json.capacity() {
                let capacity = (2 * self.size).min(self.max_bytes);
                self.charge.resize(capacity as u64).map_err(io::Error::other)?;
                self.json.reserve_exact(capacity - self.json.len());
            }
            self.json.extend_from_slice(piece);
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes `value` as JSON for a buffer of `len` bytes. Returns as much as fits, and the length of the
/// whole.
pub(super) fn json_for_buffer(
    store: &RunStore,
    value: &impl Serialize,
    len: i32,
) -> Result<(Vec<u8>, usize), String> {
    let mut output = ForBuffer::new(store, len.cast_unsigned() as usize);
    let written = serde_json::to_writer(&mut output, value);
    let (json, size) = (output.json, output.size);
    written.map_err(|error| error.to_string())?;
    Ok((json, size))
}

/// Fills the buffer at (`ptr`, `len`) with what [`json_for_buffer`] has written.
pub(super) fn fill_json(
    caller: &mut Caller<'_, RunStore>,
    (ptr, len): (i32, i32),
    (json, size): &(Vec<u8>, usize),
) -> Result<i32, CallFailure> {
    if *size > json.len() {
        return Ok(refuse_buffer(caller, len, *size));
    }
    fill(caller, (ptr, len), json, WhenTooSmall::Refuse)
}

impl BatchRequest {
    pub(super) fn read(self) -> Result<Request, String> {
        let headers = self.headers.map(|headers| headers.to_string()).unwrap_or_default();
        Request::read(&self.method, &self.url, &headers, self.body.unwrap_or_default())
    }
}

impl<'a> BatchResponse<'a> {
    pub(super) fn of(answer: &'a Result<ReceivedResponse, HttpError>, redactor: &Redactor) -> Self {
        match answer {
            Ok(ReceivedResponse { response, .. }) => {
                Self { status: response.status, body: Lossy(&response.body), error: None }
            }
            Err(error) => {
                Self { status: 0, body: Lossy(&[]), error: Some(redactor.text(error.to_string())) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_does_not_fit_is_counted_and_not_stored() {
        let store = RunStore::idle();
        let responses = [BatchResponse { status: 200, body: Lossy(b"a\xff\x01"), error: None }];
        let whole = "[{\"status\":200,\"body\":\"a\u{fffd}\\u0001\"}]";
        for max_bytes in [0, 10, whole.len() - 1, whole.len(), 1000] {
            let mut output = ForBuffer::new(&store, max_bytes);
            serde_json::to_writer(&mut output, &responses).expect("the account has room");
            assert_eq!(output.size, whole.len());
            assert_eq!(store.guest().memory.held(), output.json.capacity() as u64);
            assert!(output.json.capacity() <= max_bytes);
            assert_eq!(output.json == whole.as_bytes(), max_bytes >= whole.len());
        }
        assert_eq!(store.guest().memory.held(), 0);
    }
}
