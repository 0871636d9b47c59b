//! Draws random ids of dispatches and of their spans, many at a time.

use std::sync::Mutex;

use sandglass_model::{DispatchId, Entropy, SystemEntropy, TraceContext};

use crate::sync::lock;

/// Random bytes of one id and its span.
const EACH: usize = 16 + 24;

/// How many are drawn at a time: a draw is a system call, which would take longer than everything else
/// before the admission of a dispatch.
const AT_ONCE: usize = 64;

/// RandomBytes random bytes that are not used yet.
#[derive(Debug)]
pub struct Identities(Mutex<RandomBytes>);

#[derive(Debug)]
struct RandomBytes {
    bytes: [u8; EACH * AT_ONCE],
    left: usize,
}

impl Default for Identities {
    fn default() -> Self {
        Self(Mutex::new(RandomBytes { bytes: [0; EACH * AT_ONCE], left: 0 }))
    }
}

impl Identities {
    /// Returns an identity that was not returned before.
    ///
    /// # Errors
    /// No randomness is available.
    pub fn draw(&self) -> Result<(DispatchId, TraceContext), String> {
        let mut drawn = lock(&self.0);
        if drawn.left == 0 {
            SystemEntropy
                .fill(&mut drawn.bytes)
                .map_err(|error| format!("it has no randomness: {error}"))?;
            drawn.left = AT_ONCE;
        }
        drawn.left -= 1;
        let at = drawn.left * EACH;
        let (mut id, mut span) = ([0; 16], [0; 24]);
        id.copy_from_slice(&drawn.bytes[at..at + 16]);
        span.copy_from_slice(&drawn.bytes[at + 16..at + EACH]);
        Ok((DispatchId::from_bytes(id), TraceContext::root(span)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_identity_is_drawn_twice_from_however_many_threads() {
        let identities = Identities::default();
        let each = AT_ONCE * 3 + 1;
        let draw = || -> Vec<String> {
            let drawn = (0..each).map(|_| identities.draw().expect("randomness"));
            drawn.flat_map(|(id, trace)| [id.to_string(), trace.trace_id.to_string()]).collect()
        };
        let all: Vec<String> = std::thread::scope(|scope| {
            let threads = [scope.spawn(draw), scope.spawn(draw)];
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), each * 2 * 2);
    }
}
