//! Reads JSON that guests, clients and authors write, after a pass that checks its bounds and keeps
//! nothing: a byte or two of text can cost a hundred in memory.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
};

use crate::{DIAGNOSTICS_MAX, printable};

/// Most values (keys of objects included, and each object as eight) that a JSON text may contain,
/// unless its [`Bounds`] say otherwise. As a tree they take about five megabytes at worst, besides
/// the text itself, and the end of a handler copies them about a dozen times; larger data belongs
/// in a stream.
pub const MAX_VALUES: u32 = 1 << 16;

/// Most lists and objects around a value, unless its [`Bounds`] say otherwise. What is read becomes a
/// part of records and responses, and readers of these give up at 128 levels.
pub const MAX_DEPTH: usize = 64;

/// As how many values an object counts: the smallest object takes the memory of eight numbers.
const OBJECT_VALUES: u32 = 8;

/// The prefix of the keys that `serde_json` reserves for itself: of an object with one, it makes
/// another value than the text says, of any size, or none at all.
const RESERVED: &str = "$serde_json::private::";

/// What a JSON text may contain.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most values, counted as for [`MAX_VALUES`].
    pub max_values: u32,
    /// Most lists and objects around a value. The parser itself allows 127.
    pub max_depth: usize,
    /// Longest key of an object, in bytes.
    pub max_key_bytes: usize,
    /// What happens if an object has a key twice.
    pub duplicate_keys: DuplicateKeys,
}

impl Bounds {
    /// [`MAX_VALUES`], [`MAX_DEPTH`], and of duplicate keys the last one wins.
    pub const DEFAULT: Self = Self {
        max_values: MAX_VALUES,
        max_depth: MAX_DEPTH,
        max_key_bytes: usize::MAX,
        duplicate_keys: DuplicateKeys::LastWins,
    };
}

/// What happens if an object has a key twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateKeys {
    /// The last value counts, as in most parsers.
    LastWins,
    /// The text is rejected, because parsers differ in which value they use.
    Rejected,
}

/// What is wrong with JSON.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It contains more values than this bound.
    #[error(
        "it holds more than the {0} values that are allowed, where a key is one and an \
         object is {OBJECT_VALUES}"
    )]
    TooManyValues(u32),
    /// There is no text.
    #[error("it is empty")]
    Empty,
    /// It exceeds other bounds: at least one violation, and at most [`DIAGNOSTICS_MAX`].
    #[error("{}", .0[0])]
    Violations(Vec<Violation>),
    /// It is not valid JSON, or not of the expected type.
    #[error(transparent)]
    Invalid(#[from] serde_json::Error),
}

/// A bound that a part of a JSON text exceeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The JSON pointer (RFC 6901) to the object or list.
    pub pointer: String,
    /// What is wrong with it.
    pub kind: ViolationKind,
}

/// What is wrong with an object or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViolationKind {
    /// It is nested more than [`Bounds::max_depth`] deep.
    TooDeep,
    /// It has a key that is longer than [`Bounds::max_key_bytes`].
    LongKey,
    /// It has this key more than once.
    DuplicateKey(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ViolationKind::TooDeep => f.write_str("it is nested too deep")?,
            ViolationKind::LongKey => f.write_str("it has a key that is too long")?,
            ViolationKind::DuplicateKey(key) => {
                write!(f, "it has the key `{}` twice", printable(key))?;
            }
        }
        write!(f, ", at `{}`", printable(&self.pointer))
    }
}

/// Reads `text` within [`Bounds::DEFAULT`].
///
/// # Errors
/// It exceeds them, and nothing was made of it; or it is not JSON of a `T`.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    read_within(text, Bounds::DEFAULT)
}

/// Reads `text` within `bounds`.
///
/// # Errors
/// It exceeds them, and nothing was made of it; or it is not JSON of a `T`.
pub fn read_within<T: DeserializeOwned>(text: &str, bounds: Bounds) -> Result<T, Error> {
    check(text, bounds)?;
    Ok(serde_json::from_str(text)?)
}

/// As [`read_within`], of an object: serde would also read the fields of a `T` from a list, in order.
///
/// # Errors
/// As for [`read_within`], or it is not an object.
pub fn read_object<T: DeserializeOwned>(text: &str, bounds: Bounds) -> Result<T, Error> {
    let fields: serde_json::Map<String, serde_json::Value> = read_within(text, bounds)?;
    Ok(serde_json::from_value(fields.into())?)
}

/// Checks that `text` begins with a JSON value within `bounds`. Text behind the value is ignored.
///
/// # Errors
/// It exceeds the bounds, or is not valid JSON.
pub fn check(text: &str, bounds: Bounds) -> Result<(), Error> {
    if text.trim().is_empty() {
        return Err(Error::Empty);
    }
    let mut state = State { bounds, values_left: Some(bounds.max_values), violations: Vec::new() };
    let check = Check { state: &mut state, path: &Path::Root, depth: 0 };
    let checked = check.deserialize(&mut serde_json::Deserializer::from_str(text));
    if state.values_left.is_none() {
        return Err(Error::TooManyValues(bounds.max_values));
    }
    match checked {
        // With nothing but duplicate keys before it, the fault in the syntax matters more.
        Err(error) if state.violations.iter().all(Violation::is_duplicate) => Err(error.into()),
        _ if !state.violations.is_empty() => Err(Error::Violations(state.violations)),
        _ => Ok(()),
    }
}

impl Violation {
    fn is_duplicate(&self) -> bool {
        matches!(self.kind, ViolationKind::DuplicateKey(_))
    }
}

struct State {
    bounds: Bounds,
    /// `None` once there were too many.
    values_left: Option<u32>,
    violations: Vec<Violation>,
}

impl State {
    fn count<E: serde::de::Error>(&mut self, values: u32) -> Result<(), E> {
        self.values_left = self.values_left.and_then(|left| left.checked_sub(values));
        self.values_left.map(drop).ok_or_else(|| E::custom("too many values"))
    }

    fn add(&mut self, path: &Path<'_>, kind: ViolationKind) {
        if self.violations.len() < DIAGNOSTICS_MAX {
            self.violations.push(Violation { pointer: path.pointer(), kind });
        }
    }

    /// Adds a violation, and returns the error that stops the parser.
    fn stop<E: serde::de::Error>(&mut self, path: &Path<'_>, kind: ViolationKind) -> E {
        // It must be among the violations even if they are as many as are kept, because an error
        // after nothing but duplicates counts as one of syntax.
        self.violations.truncate(DIAGNOSTICS_MAX - 1);
        self.add(path, kind);
        E::custom("out of bounds")
    }
}

/// The way from the whole to a value. It is a list through the frames of the stack, so that text
/// without violations costs no allocation.
enum Path<'a> {
    Root,
    Item(&'a Path<'a>, usize),
    Field(&'a Path<'a>, &'a str),
}

impl Path<'_> {
    fn pointer(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Item(list, index) => format!("{}/{index}", list.pointer()),
            Self::Field(object, key) => {
                format!("{}/{}", object.pointer(), key.replace('~', "~0").replace('/', "~1"))
            }
        }
    }
}

/// Checks one value, and keeps nothing of it.
struct Check<'a> {
    state: &'a mut State,
    path: &'a Path<'a>,
    /// How many lists and objects are around the value.
    depth: usize,
}

impl Check<'_> {
    fn require_depth<E: serde::de::Error>(&mut self) -> Result<(), E> {
        if self.depth < self.state.bounds.max_depth {
            return Ok(());
        }
        Err(self.state.stop(self.path, ViolationKind::TooDeep))
    }
}

impl<'de> DeserializeSeed<'de> for Check<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        self.state.count(1)?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Check<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        self.require_depth()?;
        let Self { state, path, depth } = self;
        for index in 0.. {
            let path = &Path::Item(path, index);
            let item = Check { state: &mut *state, path, depth: depth + 1 };
            if items.next_element_seed(item)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<(), A::Error> {
        self.require_depth()?;
        let Self { state, path, depth } = self;
        state.count(OBJECT_VALUES - 1)?;
        let mut keys = BTreeSet::new();
        while let Some(Key(key)) = fields.next_key()? {
            if key.starts_with(RESERVED) {
                return Err(A::Error::custom("a reserved key"));
            }
            state.count(1)?;
            if key.len() > state.bounds.max_key_bytes {
                return Err(state.stop(path, ViolationKind::LongKey));
            }
            if keys.contains(&key) {
                state.add(path, ViolationKind::DuplicateKey(key.clone().into_owned()));
            }
            let field = &Path::Field(path, &key);
            fields.next_value_seed(Check { state: &mut *state, path: field, depth: depth + 1 })?;
            if state.bounds.duplicate_keys == DuplicateKeys::Rejected {
                keys.insert(key);
            }
        }
        Ok(())
    }
}

/// A key, which is copied only if it is written with escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn list(values: u32) -> String {
        // The list itself is one.
        format!("[{}1]", "1,".repeat(values as usize - 2))
    }

    #[test]
    fn as_many_values_are_read_as_are_allowed_and_not_one_more() {
        assert!(read::<Value>(&list(MAX_VALUES)).is_ok());
        assert!(matches!(read::<Value>(&list(MAX_VALUES + 1)), Err(Error::TooManyValues(_))));
        let fields = "\"a\":1,".repeat(MAX_VALUES as usize / 2);
        let object = format!("{{{fields}\"a\":1}}");
        assert!(matches!(read::<Value>(&object), Err(Error::TooManyValues(_))), "keys count");
    }

    #[test]
    fn an_object_counts_as_what_it_costs() {
        // A nested object is a key of the one around it, and eight values.
        let nested = |objects: u32| {
            let object = format!("{}{{}}{},", r#"{"":"#.repeat(49), "}".repeat(49));
            format!("[{}1]", object.repeat(objects as usize))
        };
        let each = 50 * OBJECT_VALUES + 49;
        let most = (MAX_VALUES - 2) / each;
        assert!(read::<Value>(&nested(most)).is_ok());
        assert!(matches!(read::<Value>(&nested(most + 1)), Err(Error::TooManyValues(_))));
    }

    #[test]
    fn what_is_read_can_be_nested_further_and_read_again() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(matches!(read::<Value>(&nested(MAX_DEPTH + 1)), Err(Error::Violations(_))));
        let value: Value = read(&nested(MAX_DEPTH)).expect("it is not too deep");
        // As deep as records and responses have it at most.
        let around = (0..32).fold(value, |value, _| serde_json::json!({ "in": value }));
        assert!(serde_json::from_str::<Value>(&around.to_string()).is_ok());
    }

    #[test]
    fn keys_that_the_parser_reserves_are_rejected_at_any_place() {
        for key in ["$serde_json::private::RawValue", "\\u0024serde_json::private::Number"] {
            let reserved = format!(r#""{key}":"[1,2]""#);
            for text in [format!("{{{reserved}}}"), format!(r#"[{{"a":1,{reserved}}}]"#)] {
                assert!(matches!(read::<Value>(&text), Err(Error::Invalid(_))), "{text}");
            }
        }
    }

    #[test]
    fn violations_have_their_pointers_and_all_duplicate_keys_are_found() {
        let bounds = Bounds {
            max_depth: 3,
            max_key_bytes: 4,
            duplicate_keys: DuplicateKeys::Rejected,
            ..Bounds::DEFAULT
        };
        let duplicate = |key: &str| ViolationKind::DuplicateKey(key.to_owned());
        for (text, expected) in [
            ("[[[1]]]", vec![]),
            ("[0,[[[1]]]]", vec![("/1/0/0", ViolationKind::TooDeep)]),
            (r#"{"a/":{"~":{"b":{}}}}"#, vec![("/a~1/~0/b", ViolationKind::TooDeep)]),
            (r#"[{"abcd":1,"abcde":1}]"#, vec![("/0", ViolationKind::LongKey)]),
            (
                r#"{"a":{"b":1,"\u0062":2},"c":3,"a":4}"#,
                vec![("/a", duplicate("b")), ("", duplicate("a"))],
            ),
            (
                r#"{"a":1,"a":[[[]]]}"#,
                vec![("", duplicate("a")), ("/a/0/0", ViolationKind::TooDeep)],
            ),
        ] {
            let found = match check(text, bounds) {
                Ok(()) => Vec::new(),
                Err(Error::Violations(found)) => found,
                Err(error) => panic!("{text}: {error}"),
            };
            let found: Vec<_> =
                found.iter().map(|one| (one.pointer.as_str(), one.kind.clone())).collect();
            assert_eq!(found, expected, "{text}");
        }
        assert!(matches!(check(r#"{"a":1,"a":}"#, bounds), Err(Error::Invalid(_))));
        assert!(read::<Value>(r#"{"a":1,"a":2}"#).is_ok(), "by default the last value counts");
    }

    #[test]
    fn what_is_read_is_what_the_text_says() {
        let text = r#"{"a":[1,-2,2.5,true,null,"\u00e9",{}],"b":{"c":18446744073709551615}}"#;
        let plain: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(read::<Value>(text).expect("JSON"), plain);
        for empty in ["", " \n"] {
            let error = read::<Value>(empty).expect_err("no JSON");
            assert_eq!(error.to_string(), "it is empty");
        }
        for invalid in ["{", "[1] 2", "{1:2}"] {
            assert!(matches!(read::<Value>(invalid), Err(Error::Invalid(_))), "{invalid}");
        }
        let deep = "[".repeat(100_000);
        assert!(matches!(read::<Value>(&deep), Err(Error::Violations(_))), "it nests too deep");
    }
}
