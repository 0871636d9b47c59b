//! Names and ids: bounded, printable, and each of a type of its own.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::clock::WallTime;
use crate::entropy::{Entropy, NoEntropy, SystemEntropy};
use crate::rules::RulesVersion;

/// Longest entity type, action, state or integration name, in bytes: enough for identifiers that
/// people write, and short enough for a metric label.
pub const NAME_MAX_BYTES: usize = 128;
/// Longest entity id, in bytes: enough for an id that is a URL.
pub const ENTITY_ID_MAX_BYTES: usize = 256;

/// Why a text is not a valid name or id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no valid {what}: {why}", shown(.text))]
pub struct InvalidId {
    what: &'static str,
    text: String,
    why: &'static str,
}

impl InvalidId {
    pub(crate) fn new(what: &'static str, text: &str, why: &'static str) -> Self {
        Self { what, text: text.to_owned(), why }
    }
}

fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// Checks that `text` is a valid name, which records, labels and terminals can show.
///
/// # Errors
/// It is empty, longer than `max` bytes, or contains a control character.
pub fn check_name(what: &'static str, text: &str, max: usize) -> Result<(), InvalidId> {
    let why = if text.is_empty() {
        "it is empty"
    } else if text.len() > max {
        "it is too long"
    } else if text.chars().any(char::is_control) {
        "it holds a control character"
    } else {
        return Ok(());
    };
    Err(InvalidId { what, text: text.to_owned(), why })
}

/// Kinds of activity that are not signals.
pub const ACTIVITY_KINDS: [&str; 5] = ["action", "asked", "dispatched", "ended", "host_call"];

/// Checks that `name` is a valid name of a signal from outside.
///
/// # Errors
/// It is no valid name, or it is reserved: in the status of a session, the signal would look like
/// activity of another kind.
pub fn check_signal_name(name: &str) -> Result<(), InvalidId> {
    check_name("signal", name, NAME_MAX_BYTES)?;
    if ACTIVITY_KINDS.contains(&name) {
        let (what, why) = ("signal", "it is reserved");
        return Err(InvalidId { what, text: name.to_owned(), why });
    }
    Ok(())
}

/// Reads and writes a type as the text that it displays, in records and elsewhere. Writing needs no
/// memory of its own, because each record contains many ids.
macro_rules! stored_as_text {
    ($name:ty) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use stored_as_text;

/// One entity: its type and its id, written `TYPE/ID`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EntityRef {
    text: Arc<str>,
    /// The length of the type, which has no `/`.
    type_bytes: usize,
}

impl EntityRef {
    /// Names an entity of type `entity_type` (at most [`NAME_MAX_BYTES`], without `/`) and id `id`
    /// (at most [`ENTITY_ID_MAX_BYTES`]).
    ///
    /// # Errors
    /// One of them is empty, too long, or contains a character that is not allowed.
    pub fn new(entity_type: impl AsRef<str>, id: impl AsRef<str>) -> Result<Self, InvalidId> {
        let (entity_type, id) = (entity_type.as_ref(), id.as_ref());
        check_name("entity type", entity_type, NAME_MAX_BYTES)?;
        if entity_type.contains('/') {
            let (what, why) = ("entity type", "it holds a `/`");
            return Err(InvalidId { what, text: entity_type.to_owned(), why });
        }
        check_name("entity id", id, ENTITY_ID_MAX_BYTES)?;
        let text = format!("{entity_type}/{id}").into();
        Ok(Self { text, type_bytes: entity_type.len() })
    }

    /// The entity's type: the name of its automaton.
    #[must_use]
    pub fn entity_type(&self) -> &str {
        &self.text[..self.type_bytes]
    }

    /// The entity's id within its type.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.text[self.type_bytes + 1..]
    }
}

/// By type, and then by id.
impl Ord for EntityRef {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_type = self.entity_type().cmp(other.entity_type());
        by_type.then_with(|| self.id().cmp(other.id()))
    }
}

impl PartialOrd for EntityRef {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for EntityRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntityRef")
            .field("entity_type", &self.entity_type())
            .field("id", &self.id())
            .finish()
    }
}

impl fmt::Display for EntityRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for EntityRef {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let Some((entity_type, id)) = text.split_once('/') else {
            let (what, why) = ("entity", "it must be TYPE/ID");
            return Err(InvalidId { what, text: text.to_owned(), why });
        };
        Self::new(entity_type, id)
    }
}

stored_as_text!(EntityRef);

/// How many transitions an entity has taken: 0 when it is created, and one more with each
/// transition. Signals do not count.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The next sequence.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Writes `bytes` in lower-case hexadecimal. `digits` is a buffer of twice their length: ids are
/// written several times for each record, and `{:02x}` takes ten times as long.
fn write_hex(bytes: &[u8], digits: &mut [u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    f.write_str(str::from_utf8(digits).map_err(|_| fmt::Error)?)
}

/// Defines an id of fixed size that is written in lower-case hexadecimal.
macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Creates the id with these bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; $bytes]) -> Self {
                Self(bytes)
            }

            /// Its bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; $bytes] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(&self.0, &mut [0; 2 * $bytes], f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                unhex(text).map(Self).ok_or_else(|| InvalidId {
                    what: $what,
                    text: text.to_owned(),
                    why: concat!("it must be ", stringify!($bytes), " bytes in hexadecimal"),
                })
            }
        }

        stored_as_text!($name);
    };
}

/// The bytes that `text` states in hexadecimal; `None` if it does not state exactly `N`.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

hex_id! {
    /// One dispatch of one integration. The guest gets it as its idempotency key; all attempts of
    /// a dispatch have the same id.
    DispatchId, 16, "dispatch id"
}

hex_id! {
    /// One life of an entity, from its creation on. It is random, so that ids derived from it
    /// differ between two journals with an entity of the same name. Its first bytes name the rule
    /// by which ids are derived, so that a replay derives the recorded ids.
    Incarnation, 16, "incarnation"
}

hex_id! {
    /// SHA-256 of a module's file, text or binary.
    ModuleHash, 32, "module hash"
}

hex_id! {
    /// SHA-256 of a spec file's text.
    SpecDigest, 32, "spec digest"
}

hex_id! {
    /// One process that shares a store with others. Each start of a process draws a new one, because
    /// the store never forgets that a process is dead.
    HostId, 16, "host id"
}

hex_id! {
    /// The first half of the SHA-256 of an idempotency key.
    KeyDigest, 16, "digest of an idempotency key"
}

hex_id! {
    /// SHA-256 of a request with an idempotency key.
    RequestDigest, 32, "digest of a request"
}

hex_id! {
    /// A trace, as W3C Trace Context names it: 16 bytes, not all zero.
    TraceId, 16, "trace id"
}

hex_id! {
    /// A span of a trace, as W3C Trace Context names it: 8 bytes, not all zero.
    SpanId, 8, "span id"
}

impl Incarnation {
    /// How many of its bytes name the rule. Earlier versions drew them at random; one in four
    /// billion of those ids names a rule by chance.
    const RULE_BYTES: usize = 4;
    /// The rule by which ids of dispatches contain the time.
    const TIMED: [u8; 16] = [0x53, 0x64, 0x47, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    fn is_timed(self) -> bool {
        self.0[..Self::RULE_BYTES] == Self::TIMED[..Self::RULE_BYTES]
    }

    /// Draws a new one from the randomness of the operating system.
    ///
    /// # Errors
    /// No randomness is available.
    pub fn random() -> Result<Self, NoEntropy> {
        Self::drawn(&SystemEntropy)
    }

    /// Draws a new one from `entropy`.
    ///
    /// # Errors
    /// No randomness is available.
    pub fn drawn(entropy: &dyn Entropy) -> Result<Self, NoEntropy> {
        let mut bytes = Self::TIMED;
        entropy.fill(&mut bytes[Self::RULE_BYTES..])?;
        Ok(Self(bytes))
    }

    /// The one that is derived from `digest`, for an entity whose parent has a random one.
    pub(crate) fn derived(digest: [u8; 32]) -> Self {
        let mut bytes = Self::TIMED;
        let derived = &mut bytes[Self::RULE_BYTES..];
        derived.copy_from_slice(&digest[..derived.len()]);
        Self(bytes)
    }
}

impl DispatchId {
    /// Derives the id of the `nth` dispatch of the transition to `sequence` of an entity's
    /// `incarnation`, `at` that time. A replay derives the same id.
    ///
    /// Bytes 8 to 13 are the milliseconds since 1970, so that an index which begins there has
    /// successive ids next to each other: with ids at random places, a journal would write a page
    /// for each of them.
    #[must_use]
    pub fn derive(incarnation: Incarnation, sequence: Sequence, nth: u32, at: WallTime) -> Self {
        let digest = Sha256::new()
            .chain_update(incarnation.as_bytes())
            .chain_update(sequence.0.to_be_bytes())
            .chain_update(nth.to_be_bytes())
            .finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        if incarnation.is_timed() {
            let millis = u64::try_from(at.as_millis()).unwrap_or_default();
            bytes[8..14].copy_from_slice(&millis.to_be_bytes()[2..]);
        }
        Self(bytes)
    }
}

impl ModuleHash {
    /// The hash of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl SpecDigest {
    /// The digest of a spec file with the text `source`, whose entities are decided by `rules`: for
    /// version 1 the SHA-256 of the text, for later versions that of the version and the text.
    #[must_use]
    pub fn of(source: &str, rules: RulesVersion) -> Self {
        let mut hash = Sha256::new();
        if rules > RulesVersion::V1 {
            // No spec file of version 1 has this digest: TOML allows no NUL character.
            hash.update(b"\0rules");
            hash.update(rules.to_be_bytes());
        }
        hash.update(source.as_bytes());
        Self(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: WallTime = WallTime::from_millis(1_700_000_000_123);

    #[test]
    fn entities_are_written_type_slash_id() {
        let entity: EntityRef = "Session/a/b".parse().expect("the id may contain a slash");
        assert_eq!((entity.entity_type(), entity.id()), ("Session", "a/b"));
        assert_eq!(entity.to_string(), "Session/a/b");
        for bad in ["", "Session", "/x", "Session/", "Session/a\u{7}", "Se\nssion/a"] {
            assert!(bad.parse::<EntityRef>().is_err(), "{bad:?} must be refused");
        }
        assert!(EntityRef::new("T", "x".repeat(ENTITY_ID_MAX_BYTES + 1)).is_err());
    }

    #[test]
    fn a_signal_from_outside_cannot_have_the_name_of_other_activity() {
        for name in ["PartnerReplied", "heartbeat", "status", "progress", "Action"] {
            assert_eq!(check_signal_name(name), Ok(()), "{name}");
        }
        let long = "x".repeat(NAME_MAX_BYTES + 1);
        for bad in ["", "a\nb", &long].into_iter().chain(ACTIVITY_KINDS) {
            assert!(check_signal_name(bad).is_err(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn errors_show_no_control_characters() {
        let error = "T/\u{1b}[31m".parse::<EntityRef>().expect_err("a control character");
        assert!(!error.to_string().contains('\u{1b}'), "{error}");
    }

    #[test]
    fn hex_ids_round_trip_and_reject_other_texts() {
        let id = DispatchId::derive(Incarnation::from_bytes([7; 16]), Sequence(3), 0, AT);
        assert_eq!(id.to_string().parse::<DispatchId>(), Ok(id));
        for bad in ["", "zz", &"0".repeat(31), &"0".repeat(33), &"é".repeat(16)] {
            assert!(bad.parse::<DispatchId>().is_err(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn dispatch_ids_contain_the_time_unless_an_earlier_version_drew_the_incarnation() {
        let begun = Incarnation::random().expect("randomness");
        let later = WallTime::from_millis(AT.as_millis() + 1);
        let [one, two] = [AT, later].map(|at| DispatchId::derive(begun, Sequence(1), 0, at));
        assert_eq!(one.as_bytes()[..8], two.as_bytes()[..8], "spans are made of these");
        assert!(one.as_bytes()[8..] < two.as_bytes()[8..], "in the order of time");
        assert_eq!(one.as_bytes()[8..14], 1_700_000_000_123_u64.to_be_bytes()[2..]);
        let earlier = Incarnation::from_bytes([7; 16]);
        let [one, two] = [AT, later].map(|at| DispatchId::derive(earlier, Sequence(1), 0, at));
        assert_eq!(one, two, "as they were");
    }

    #[test]
    fn dispatch_ids_differ_by_incarnation_sequence_and_number() {
        let one = Incarnation::from_bytes([1; 16]);
        let ids = [
            DispatchId::derive(one, Sequence(1), 0, AT),
            DispatchId::derive(one, Sequence(1), 1, AT),
            DispatchId::derive(one, Sequence(2), 0, AT),
            DispatchId::derive(Incarnation::from_bytes([2; 16]), Sequence(1), 0, AT),
        ];
        let distinct: std::collections::BTreeSet<_> = ids.into_iter().collect();
        assert_eq!(distinct.len(), ids.len());
    }
}
