//! What a host and its helper write to each other: one request and one response, both of a size that
//! is known before they are read.
//!
//! ```text
//! request:  MAGIC | key | kind | target | memory limit | CPU limit | length | binary
//! response: MAGIC | what follows | length | sealed code, or the kind and text of a rejection
//! ```
//!
//! The key is random and for this request only. It seals the code, so that the host accepts nothing
//! but what a helper of the same version, with the same settings of the engine, has completed.

use std::io::{self, Read};

use sandglass_model::{Rejection, RejectionKind};

use crate::compiled_folder::KEY_BYTES;
use crate::module::Kind;
use crate::sandbox::{Concurrency, Metering, Target, Tier};
use sandglass_supervisor::rejection::rejection;

/// The first bytes of both, with the version of their form.
const MAGIC: [u8; 16] = *b"sandglass comp 3";

/// Largest binary that a helper reads, in bytes: more than any limit on modules allows.
const BINARY_MAX_BYTES: u64 = 4 << 30;

/// Longest text of a rejection, in bytes.
pub(super) const REJECTION_MAX_BYTES: usize = 16 << 10;

/// Size of what precedes the body of a response, in bytes.
pub(super) const RESPONSE_HEAD_BYTES: usize = MAGIC.len() + 1 + 8;

const REQUEST_HEAD_BYTES: usize = MAGIC.len() + KEY_BYTES + 1 + 3 + 8 + 8 + 8;

/// A request, without the binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) key: [u8; KEY_BYTES],
    pub(super) kind: Kind,
    pub(super) target: Target,
    pub(super) memory_bytes: u64,
    pub(super) cpu_seconds: u64,
    pub(super) binary_bytes: u64,
}

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(REQUEST_HEAD_BYTES);
        head.extend(MAGIC);
        head.extend(self.key);
        // As `read` expects them: by the order of their declaration.
        let Target { metering, concurrency, tier } = self.target;
        head.extend([self.kind as u8, metering as u8, concurrency as u8, tier as u8]);
        for number in [self.memory_bytes, self.cpu_seconds, self.binary_bytes] {
            head.extend(number.to_le_bytes());
        }
        head
    }

    /// Reads the head of a request, and nothing of its binary.
    ///
    /// # Errors
    /// It ends too early, or is not of this version.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if bytes(from)? != MAGIC {
            return Err(wrong("no request of this version of the helper"));
        }
        let key = bytes(from)?;
        let kind = match bytes(from)? {
            [0] => Kind::CoreModule,
            [1] => Kind::Component,
            _ => return Err(wrong("neither a module nor a component")),
        };
        let metering = match bytes(from)? {
            [0] => Metering::Unmetered,
            [1] => Metering::Fuel,
            _ => return Err(wrong("an unknown kind of metering")),
        };
        let concurrency = match bytes(from)? {
            [0] => Concurrency::OneCall,
            [1] => Concurrency::SeveralCalls,
            _ => return Err(wrong("an unknown kind of concurrency")),
        };
        let tier = match bytes(from)? {
            [0] => Tier::Optimizing,
            [1] => Tier::Baseline,
            _ => return Err(wrong("an unknown compiler")),
        };
        let target = Target { metering, concurrency, tier };
        let [memory_bytes, cpu_seconds, binary_bytes] =
            [bytes(from)?, bytes(from)?, bytes(from)?].map(u64::from_le_bytes);
        if binary_bytes > BINARY_MAX_BYTES {
            return Err(wrong("a module larger than any host takes"));
        }
        Ok(Self { key, kind, target, memory_bytes, cpu_seconds, binary_bytes })
    }
}

fn bytes<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What the body of a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// Sealed code.
    Code,
    /// The kind of a rejection, a line feed, and its text.
    Rejection,
}

/// What precedes a body of `length` bytes.
pub(super) fn response_head(body: Body, length: usize) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.push(body as u8);
    head.extend((length as u64).to_le_bytes());
    head
}

/// Reads what precedes the body of a response: what the body is, and its length. `None` if no helper
/// of this version wrote it.
pub(super) fn read_response_head(head: &[u8; RESPONSE_HEAD_BYTES]) -> Option<(Body, u64)> {
    let (body, length) = head.strip_prefix(&MAGIC)?.split_first()?;
    let body = match body {
        0 => Body::Code,
        1 => Body::Rejection,
        _ => return None,
    };
    Some((body, u64::from_le_bytes(length.try_into().ok()?)))
}

/// The body of a response that states `rejection`.
pub(super) fn encode_rejection(rejection: &Rejection) -> Vec<u8> {
    let mut text = format!("{}\n{}", rejection.kind, rejection.message);
    text.truncate(text.floor_char_boundary(REJECTION_MAX_BYTES));
    text.into_bytes()
}

/// The rejection that a response states. `None` if compiling cannot end in it.
pub(super) fn read_rejection(body: &[u8]) -> Option<Rejection> {
    let (kind, message) = str::from_utf8(body).ok()?.split_once('\n')?;
    let kinds = [
        RejectionKind::InvalidModule,
        RejectionKind::UnsupportedModule,
        RejectionKind::NeedsTooMuch,
    ];
    let kind = kinds.into_iter().find(|known| known.as_str() == kind)?;
    Some(rejection(kind, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written_and_a_prefix_is_an_error() {
        let request = Request {
            key: [7; KEY_BYTES],
            kind: Kind::Component,
            target: Target {
                metering: Metering::Fuel,
                concurrency: Concurrency::SeveralCalls,
                tier: Tier::Baseline,
            },
            memory_bytes: 1 << 31,
            cpu_seconds: 120,
            binary_bytes: 12_345,
        };
        let head = request.encode();
        assert_eq!(head.len(), REQUEST_HEAD_BYTES);
        assert_eq!(Request::read(&mut head.as_slice()).expect("whole"), request);
        for end in 0..head.len() {
            assert!(Request::read(&mut &head[..end]).is_err(), "{end}");
        }
        let too_large = Request { binary_bytes: BINARY_MAX_BYTES + 1, ..request };
        assert!(Request::read(&mut too_large.encode().as_slice()).is_err());
    }

    #[test]
    fn the_head_of_a_response_is_read_as_it_was_written() {
        for body in [Body::Code, Body::Rejection] {
            let head: [u8; RESPONSE_HEAD_BYTES] =
                response_head(body, 99).try_into().expect("its size");
            assert_eq!(read_response_head(&head), Some((body, 99)));
        }
        assert_eq!(read_response_head(&[0; RESPONSE_HEAD_BYTES]), None);
    }

    #[test]
    fn a_rejection_is_one_that_compiling_can_end_in_and_is_of_bounded_length() {
        let rejection =
            Rejection { kind: RejectionKind::UnsupportedModule, message: "two\nlines".to_owned() };
        assert_eq!(read_rejection(&encode_rejection(&rejection)), Some(rejection));
        let long = Rejection {
            kind: RejectionKind::InvalidModule,
            message: "ä".repeat(REJECTION_MAX_BYTES),
        };
        let body = encode_rejection(&long);
        assert!(body.len() <= REJECTION_MAX_BYTES);
        assert!(read_rejection(&body).is_some());
        for other in ["host_unavailable\nbusy", "invalid_module", "", "nonsense\ntext"] {
            assert_eq!(read_rejection(other.as_bytes()), None, "{other:?}");
        }
    }
}
