//! What implementations of [`Journal`](crate::Journal) share: the checks of batches are methods of
//! [`Batch`](crate::Batch); here are checksums, the decoding of bodies, and the log lines of
//! failures.

use std::fmt::Display;

use sandglass_model::Event;
use sha2::{Digest, Sha256};

pub use crate::batch::{Line, few_enough, recorded_twice};
pub use crate::entities::{few_enough as few_resting, page_size};
pub use crate::failing::{Failing, Failures};

use crate::batch::{self, RECORD_MAX_VALUES};

/// Bytes of SHA-256 that are stored: a checksum against decay and careless edits needs no more, and
/// one against forgers would need a key.
pub const CHECKSUM_BYTES: usize = 16;

/// The checksum of a row of the table that `prefix` names. Each text is preceded by its length, so
/// that no two lists of them have the same input.
#[must_use]
pub fn checksum(
    prefix: &str,
    numbers: &[i64],
    flags: &[u8],
    texts: &[&[u8]],
) -> [u8; CHECKSUM_BYTES] {
    let mut digest = Sha256::new_with_prefix(prefix);
    numbers.iter().for_each(|number| digest.update(number.to_be_bytes()));
    digest.update(flags);
    for text in texts {
        digest.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(text);
    }
    let mut short = [0; CHECKSUM_BYTES];
    short.copy_from_slice(&digest.finalize()[..CHECKSUM_BYTES]);
    short
}

/// Reads the body of a record of this kind.
///
/// # Errors
/// What is wrong with it, in one line.
pub fn decode_event(kind: &str, body: &str) -> Result<Event, String> {
    if !batch::has_few_values(body) {
        return Err(format!("its body holds more than {RECORD_MAX_VALUES} values"));
    }
    let event: Event = serde_json::from_str(body)
        .map_err(|error| format!("its body is no event that is known: {}", printable(&error)))?;
    if event.kind() != kind {
        let kind = printable(&kind);
        return Err(format!("its kind is `{kind}` and its body says otherwise"));
    }
    Ok(event)
}

/// A text that may contain contents of a store, in one line and without control sequences of
/// terminals.
pub fn printable(text: &impl Display) -> String {
    let text = text.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut printable = String::with_capacity(text.len());
    for c in lines.join("; ").chars() {
        if c.is_control() { printable.extend(c.escape_default()) } else { printable.push(c) }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_contains_drives_no_terminal() {
        let verdict = "*** in database main ***\nTree 7 page 7: \u{1b}[31m\n";
        assert_eq!(printable(&verdict), "*** in database main ***; Tree 7 page 7: \\u{1b}[31m");
    }
}
