//! Reads JSON that a guest or a client wrote, once it is known to hold few enough
//! values: a byte or two of text can cost a hundred in memory.

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Most values (keys of objects included, and each object as eight) that a JSON text may
/// hold. As a tree they are some five megabytes at worst, beside the text itself, and a
/// run's end keeps and hands on about a dozen copies; what has more belongs in a stream.
/// The parser bounds how deep they nest.
pub const MAX_VALUES: u32 = 1 << 16;

/// As how many values an object counts: the smallest one takes as much memory as
/// that many others do.
const OBJECT_VALUES: u32 = 8;

/// How keys begin that `serde_json` keeps for itself.
const RESERVED: &str = "$serde_json::private::";

/// What is wrong with JSON.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It holds more than so many values.
    #[error(
        "it holds more than the {0} values that are allowed, where a key is one and an \
         object is {OBJECT_VALUES}"
    )]
    TooManyValues(u32),
    /// There is no text.
    #[error("it is empty")]
    Empty,
    /// It is no JSON, or not of what is wanted.
    #[error(transparent)]
    Invalid(#[from] serde_json::Error),
}

/// What `text` says.
///
/// # Errors
/// It holds more than [`MAX_VALUES`], and nothing was made of it; or it is no JSON
/// of a `T`.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    read_within(text, MAX_VALUES)
}

/// As [`read`], of a text that may hold `most` values.
///
/// # Errors
/// As of [`read`].
pub fn read_within<T: DeserializeOwned>(text: &str, most: u32) -> Result<T, Error> {
    if text.trim().is_empty() {
        return Err(Error::Empty);
    }
    let mut left = Some(most);
    let mut counted = serde_json::Deserializer::from_str(text);
    let valid = Count(&mut left).deserialize(&mut counted);
    if left.is_none() {
        return Err(Error::TooManyValues(most));
    }
    valid?;
    Ok(serde_json::from_str(text)?)
}

/// Whether `text` is JSON with at most so many values, counted as [`MAX_VALUES`] are. Keeps nothing of
/// it.
#[must_use]
pub fn is_within(text: &str, most: u32) -> bool {
    let mut left = Some(most);
    Count(&mut left).deserialize(&mut serde_json::Deserializer::from_str(text)).is_ok()
}

/// Counts the values down, and keeps none of them; nothing is left once there are
/// too many.
struct Count<'a>(&'a mut Option<u32>);

impl Count<'_> {
    fn take<E: serde::de::Error>(self, values: u32) -> Result<Self, E> {
        *self.0 = self.0.and_then(|left| left.checked_sub(values));
        if self.0.is_some() { Ok(self) } else { Err(E::custom("too many values")) }
    }
}

impl<'de> DeserializeSeed<'de> for Count<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self.take(1)?)
    }
}

impl<'de> Visitor<'de> for Count<'_> {
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

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Count(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Count(left) = self.take(OBJECT_VALUES - 1)?;
        while fields.next_key_seed(Key(Count(&mut *left)))?.is_some() {
            fields.next_value_seed(Count(&mut *left))?;
        }
        Ok(())
    }
}

/// A key, which counts as a value.
struct Key<'a>(Count<'a>);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        let Self(count) = self;
        count.take(1)?;
        from.deserialize_str(Unreserved)
    }
}

/// Takes every key but those that the parser has a meaning of its own for: of an object
/// with one, another value is made than the text says, of any size, or none at all.
struct Unreserved;

impl Visitor<'_> for Unreserved {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<(), E> {
        if key.starts_with(RESERVED) { Err(E::custom("a reserved key")) } else { Ok(()) }
    }
}

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
            let objects = objects as usize;
            format!(
                "[{}1]",
                format!("{}{{}}{},", r#"{"":"#.repeat(99), "}".repeat(99)).repeat(objects)
            )
        };
        let each = 100 * OBJECT_VALUES + 99;
        let most = (MAX_VALUES - 2) / each;
        assert!(read::<Value>(&nested(most)).is_ok());
        assert!(matches!(read::<Value>(&nested(most + 1)), Err(Error::TooManyValues(_))));
    }

    #[test]
    fn keys_of_the_parser_are_refused_wherever_they_stand() {
        for key in ["RawValue", "Number"] {
            let reserved = format!(r#""$serde_json::private::{key}":"[1,2]""#);
            for text in [format!("{{{reserved}}}"), format!(r#"[{{"a":1,{reserved}}}]"#)] {
                assert!(matches!(read::<Value>(&text), Err(Error::Invalid(_))), "{text}");
            }
        }
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
        assert!(matches!(read::<Value>(&deep), Err(Error::Invalid(_))), "it nests too deep");
    }
}
