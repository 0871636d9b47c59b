//! Scripted answers to calls of a handler: to which call, after how long, and with what.

use std::fmt;
use std::time::Duration;

use sandglass_model::Object;
use serde_json::Value;

/// One scripted answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The calls that this answers.
    pub to: Call,
    /// The delay before the answer, in virtual time.
    pub after: Duration,
    /// The reply.
    pub reply: Reply,
    /// How many calls this answers; `None` for any number. An answer that is used less often is a
    /// difference.
    pub times: Option<u32>,
}

/// Selects calls of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// HTTP requests of any function.
    Http {
        /// The method; `None` for any.
        method: Option<String>,
        /// The whole URL, or a prefix that ends with `*`; `None` for any.
        url: Option<String>,
    },
    /// Asks of other entities.
    Ask {
        /// The entity, or its type; `None` for any.
        target: Option<String>,
        /// The action; `None` for any.
        action: Option<String>,
    },
    /// Signals to other entities. One without a scripted answer is recorded at once.
    Signal {
        /// The entity, or its type; `None` for any.
        target: Option<String>,
        /// The name; `None` for any.
        name: Option<String>,
    },
    /// Calls of a scripted host function of the embedder ([`Builder::scripted`](crate::Builder::scripted)).
    Function {
        /// `interface.name`, without a version.
        name: String,
    },
    /// Reads of a secret that the integration is granted.
    Secret {
        /// Its name.
        name: String,
    },
}

/// The content of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// An HTTP response.
    Response {
        /// The status code.
        status: u16,
        /// The headers, in order.
        headers: Vec<(String, String)>,
        /// The body.
        body: Vec<u8>,
    },
    /// The answer to an ask.
    Asked {
        /// The state of the asked entity after the action.
        state: String,
        /// Its variables after the action.
        fields: Object,
    },
    /// A signal is recorded.
    Recorded,
    /// The value that a host function returns: a number, flag or string of its type. For a string
    /// that contains JSON, any value.
    Value(Value),
    /// The value of a secret; `None` if it does not exist.
    Secret(Option<String>),
    /// The call fails: the connection of a request, or an ask or a signal that is refused.
    Error(String),
    /// The answer never comes.
    Never,
}

impl Answer {
    /// Answers one request at once, with status 200 and an empty body.
    #[must_use]
    pub fn http(method: impl Into<String>, url: impl Into<String>) -> Self {
        let to = Call::Http { method: Some(method.into()), url: Some(url.into()) };
        let reply = Reply::Response { status: 200, headers: Vec::new(), body: Vec::new() };
        Self { to, after: Duration::ZERO, reply, times: Some(1) }
    }

    /// Answers one ask for `action` of an entity, or of any entity of a type, at once, with an empty
    /// state.
    #[must_use]
    pub fn ask(target: impl Into<String>, action: impl Into<String>) -> Self {
        let to = Call::Ask { target: Some(target.into()), action: Some(action.into()) };
        let reply = Reply::Asked { state: String::new(), fields: Object::new() };
        Self { to, after: Duration::ZERO, reply, times: Some(1) }
    }

    /// Records one signal `name` to an entity, or to any entity of a type, at once.
    #[must_use]
    pub fn signal(target: impl Into<String>, name: impl Into<String>) -> Self {
        let to = Call::Signal { target: Some(target.into()), name: Some(name.into()) };
        Self { to, after: Duration::ZERO, reply: Reply::Recorded, times: Some(1) }
    }

    /// Answers one call of a host function of the embedder at once, with null.
    #[must_use]
    pub fn function(name: impl Into<String>) -> Self {
        let to = Call::Function { name: name.into() };
        Self { to, after: Duration::ZERO, reply: Reply::Value(Value::Null), times: Some(1) }
    }

    /// Replies with this value.
    #[must_use]
    pub fn value(self, value: impl Into<Value>) -> Self {
        Self { reply: Reply::Value(value.into()), ..self }
    }

    /// Replies with this response.
    #[must_use]
    pub fn response(self, status: u16, body: impl Into<Vec<u8>>) -> Self {
        let reply = Reply::Response { status, headers: Vec::new(), body: body.into() };
        Self { reply, ..self }
    }

    /// Sets the reply.
    #[must_use]
    pub fn reply(self, reply: Reply) -> Self {
        Self { reply, ..self }
    }

    /// Never replies.
    #[must_use]
    pub fn never(self) -> Self {
        Self { reply: Reply::Never, ..self }
    }

    /// Replies with an error.
    #[must_use]
    pub fn error(self, message: impl Into<String>) -> Self {
        Self { reply: Reply::Error(message.into()), ..self }
    }

    /// Sets the delay before the reply.
    #[must_use]
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    /// Sets how many calls this answers; `None` for any number.
    #[must_use]
    pub fn times(self, times: Option<u32>) -> Self {
        Self { times, ..self }
    }
}

impl Call {
    pub(crate) fn matches_request(&self, with: &str, to: &str) -> bool {
        let Self::Http { method, url } = self else { return false };
        let same_method = method.as_ref().is_none_or(|method| method.eq_ignore_ascii_case(with));
        let same_url = url.as_ref().is_none_or(|url| match url.strip_suffix('*') {
            Some(prefix) => to.starts_with(prefix),
            None => url == to,
        });
        same_method && same_url
    }

    pub(crate) fn matches_ask(&self, entity: &str, wanted: &str) -> bool {
        let Self::Ask { target, action } = self else { return false };
        is_for(target.as_deref(), entity) && action.as_ref().is_none_or(|action| action == wanted)
    }

    pub(crate) fn matches_signal(&self, entity: &str, wanted: &str) -> bool {
        let Self::Signal { target, name } = self else { return false };
        is_for(target.as_deref(), entity) && name.as_ref().is_none_or(|name| name == wanted)
    }

    /// Whether it can match an ask for `wanted` of an entity of this type.
    pub(crate) fn may_match_ask(&self, of_type: &str, wanted: &str) -> bool {
        let Self::Ask { target, action } = self else { return false };
        let target = target.as_deref().map(type_of);
        target.is_none_or(|target| target == of_type)
            && action.as_ref().is_none_or(|action| action == wanted)
    }

    pub(crate) fn matches_function(&self, wanted: &str) -> bool {
        matches!(self, Self::Function { name } if name == wanted)
    }

    pub(crate) fn matches_secret(&self, wanted: &str) -> bool {
        matches!(self, Self::Secret { name } if name == wanted)
    }
}

/// Whether `target`, an entity or a type, selects `entity`.
fn is_for(target: Option<&str>, entity: &str) -> bool {
    target.is_none_or(|target| target == entity || target == type_of(entity))
}

/// The type of `entity`, which is `TYPE/ID` or just a type.
fn type_of(entity: &str) -> &str {
    entity.split_once('/').map_or(entity, |(of_type, _)| of_type)
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { method, url } => {
                let method = method.as_deref().unwrap_or("any method");
                write!(f, "{method} {}", url.as_deref().unwrap_or("any URL"))
            }
            Self::Ask { target, action } => {
                let target = target.as_deref().unwrap_or("any entity");
                write!(f, "ask {target}.{}", action.as_deref().unwrap_or("any action"))
            }
            Self::Signal { target, name } => {
                let target = target.as_deref().unwrap_or("any entity");
                write!(f, "signal {target}.{}", name.as_deref().unwrap_or("any name"))
            }
            Self::Function { name } => f.write_str(name),
            Self::Secret { name } => write!(f, "secret {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_matched_by_method_and_by_url_or_prefix() {
        let call = |url: &str| Call::Http { method: Some("GET".into()), url: Some(url.into()) };
        assert!(call("https://a/b").matches_request("get", "https://a/b"));
        assert!(!call("https://a/b").matches_request("POST", "https://a/b"));
        assert!(!call("https://a/b").matches_request("GET", "https://a/b/c"));
        assert!(call("https://a/*").matches_request("GET", "https://a/b/c"));
        assert!(Call::Http { method: None, url: None }.matches_request("PUT", "https://c/"));
        assert!(!call("https://a/b").matches_ask("a", "b") && !call("x").matches_secret("x"));
    }

    #[test]
    fn signals_are_matched_by_entity_or_by_type() {
        let signal = |target: &str| match Answer::signal(target, "Ready").to {
            signal @ Call::Signal { .. } => signal,
            other => panic!("{other:?}"),
        };
        assert!(signal("Order/1").matches_signal("Order/1", "Ready"));
        assert!(signal("Order").matches_signal("Order/1", "Ready"));
        assert!(!signal("Order").matches_signal("Order/1", "Late"));
        assert!(!signal("Order/2").matches_signal("Order/1", "Ready"));
        assert!(!signal("Order").matches_ask("Order/1", "Ready"));
    }

    #[test]
    fn asks_are_matched_by_entity_or_by_type() {
        let ask = |target: &str| Call::Ask { target: Some(target.into()), action: None };
        assert!(ask("Order/1").matches_ask("Order/1", "Ship"));
        assert!(ask("Order").matches_ask("Order/1", "Ship"));
        assert!(!ask("Order/2").matches_ask("Order/1", "Ship"));
    }
}
