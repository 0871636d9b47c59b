//! The error that a handler returns.

use std::any::Any;
use std::fmt;

use serde::Serialize;

use crate::{ask, http, signal};

/// The handler could not do its work: a sentence for people, or a typed failure, which tools can
/// read.
///
/// `?` converts every error that implements [`std::error::Error`]: errors of [`http`], [`ask`] and
/// [`signal`] to a typed failure, all others to a sentence that includes their causes.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub(crate) form: Form,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    Plain(String),
    Typed(Box<Typed>),
}

/// The fields of a typed failure that both ABIs have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Typed {
    pub(crate) category: String,
    pub(crate) code: String,
    pub(crate) retryability: Option<String>,
    pub(crate) outcome: Option<String>,
    /// The text of a JSON value.
    pub(crate) details: Option<String>,
    pub(crate) diagnostic: Option<String>,
}

/// Replaces an empty category or code, which the host would reject.
const UNKNOWN: &str = "unknown";

impl Failure {
    /// A failure described by a sentence. Reports show its first 2 KiB.
    #[must_use]
    pub fn plain(sentence: impl Into<String>) -> Self {
        Self { form: Form::Plain(sentence.into()) }
    }

    /// A failure that tools can read. The category states where it comes from, such as `upstream`,
    /// and the code what it is, such as `rate_limited`.
    #[must_use]
    pub fn typed(category: impl Into<String>, code: impl Into<String>) -> Self {
        let named = |name: String| if name.is_empty() { UNKNOWN.to_owned() } else { name };
        let typed = Typed {
            category: named(category.into()),
            code: named(code.into()),
            ..Typed::default()
        };
        Self { form: Form::Typed(Box::new(typed)) }
    }

    /// States that a retry can help. The spec decides whether there is one.
    ///
    /// This and the functions below turn a plain failure into a typed one, with the category
    /// `handler` and the code `failed`.
    #[must_use]
    pub fn retryable(self) -> Self {
        self.set(|typed| typed.retryability = Some("retryable".to_owned()))
    }

    /// States that a retry cannot help.
    #[must_use]
    pub fn permanent(self) -> Self {
        self.set(|typed| typed.retryability = Some("permanent".to_owned()))
    }

    /// States how far the side effects got, such as `not_started` or `partial`.
    #[must_use]
    pub fn outcome(self, outcome: impl Into<String>) -> Self {
        self.set(|typed| typed.outcome = Some(outcome.into()))
    }

    /// Adds details for tools. `details` serializes to an object.
    ///
    /// If it cannot be written as JSON, the details are an object with the error as `unwritable`.
    #[must_use]
    pub fn details(self, details: impl Serialize) -> Self {
        let details = serde_json::to_string(&details).unwrap_or_else(|error| {
            let error = serde_json::to_string(&error.to_string()).unwrap_or_default();
            format!(r#"{{"unwritable":{error}}}"#)
        });
        self.set(|typed| typed.details = Some(details))
    }

    /// Adds a sentence for people: what went wrong.
    #[must_use]
    pub fn because(self, sentence: impl Into<String>) -> Self {
        self.set(|typed| typed.diagnostic = Some(sentence.into()))
    }

    /// The category; `None` for a plain failure.
    #[must_use]
    pub fn category(&self) -> Option<&str> {
        match &self.form {
            Form::Plain(_) => None,
            Form::Typed(typed) => Some(&typed.category),
        }
    }

    /// The details as the text of a JSON value; `None` if there are none.
    #[must_use]
    pub fn details_json(&self) -> Option<&str> {
        match &self.form {
            Form::Plain(_) => None,
            Form::Typed(typed) => typed.details.as_deref(),
        }
    }

    /// The code; `None` for a plain failure.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match &self.form {
            Form::Plain(_) => None,
            Form::Typed(typed) => Some(&typed.code),
        }
    }

    fn set(self, change: impl FnOnce(&mut Typed)) -> Self {
        let mut typed = match self.form {
            Form::Typed(typed) => typed,
            Form::Plain(sentence) => Box::new(Typed {
                category: "handler".to_owned(),
                code: "failed".to_owned(),
                diagnostic: Some(sentence),
                ..Typed::default()
            }),
        };
        change(&mut typed);
        Self { form: Form::Typed(typed) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.form {
            Form::Plain(sentence) => f.write_str(sentence),
            Form::Typed(typed) => {
                write!(f, "{}: {}", typed.category, typed.code)?;
                typed.diagnostic.iter().try_for_each(|sentence| write!(f, ": {sentence}"))
            }
        }
    }
}

/// Converts errors of this crate by their kind, and all others by their text and that of their causes.
impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let any: &dyn Any = &error;
        if let Some(error) = any.downcast_ref::<http::Error>() {
            return error.to_failure();
        }
        if let Some(error) = any.downcast_ref::<ask::Error>() {
            return error.to_failure();
        }
        if let Some(error) = any.downcast_ref::<signal::Error>() {
            return error.to_failure();
        }
        let mut sentence = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            sentence.push_str(": ");
            sentence.push_str(&error.to_string());
            cause = error.source();
        }
        Self::plain(sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn a_typed_failure_contains_all_of_its_parts() {
        let failure = Failure::typed("upstream", "rate_limited")
            .retryable()
            .outcome("not_started")
            .details(json!({ "after_s": 30 }))
            .because("it answered 429");
        assert_eq!(failure.to_string(), "upstream: rate_limited: it answered 429");
        let Form::Typed(typed) = failure.form else { panic!("a typed one") };
        let expected = Typed {
            category: "upstream".to_owned(),
            code: "rate_limited".to_owned(),
            retryability: Some("retryable".to_owned()),
            outcome: Some("not_started".to_owned()),
            details: Some(r#"{"after_s":30}"#.to_owned()),
            diagnostic: Some("it answered 429".to_owned()),
        };
        assert_eq!(*typed, expected);
    }

    #[test]
    fn an_error_becomes_a_sentence_with_its_causes() {
        #[derive(Debug)]
        struct Outer(std::num::ParseIntError);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("no count")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = "x".parse::<u8>().expect_err("no number");
        let failure = Failure::from(Outer(error));
        assert_eq!(failure, Failure::plain("no count: invalid digit found in string"));
        let typed = failure.permanent();
        assert_eq!((typed.category(), typed.code()), (Some("handler"), Some("failed")));
    }

    #[test]
    fn an_empty_category_or_code_becomes_unknown() {
        let failure = Failure::typed("", "");
        assert_eq!((failure.category(), failure.code()), (Some("unknown"), Some("unknown")));
    }
}
