//! What the world answers a handler: which call, after how long, and with what.

use std::fmt;
use std::time::Duration;

use sandglass_model::Object;
use serde_json::Value;

/// One scripted answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The calls that it answers.
    pub to: Call,
    /// How long that takes, in virtual time.
    pub after: Duration,
    /// What is answered.
    pub reply: Reply,
    /// How many calls it answers; none for as many as there are. One that answers fewer than
    /// that is a difference.
    pub times: Option<u32>,
}

/// Which calls of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Requests, by whichever function they are made.
    Http {
        /// The method; none for any.
        method: Option<String>,
        /// The whole URL; what ends with `*` is the begin of one. None for any.
        url: Option<String>,
    },
    /// Asks of other entities.
    Ask {
        /// The entity, or its type; none for any.
        target: Option<String>,
        /// The action; none for any.
        action: Option<String>,
    },
    /// Calls of a host function of the embedder's own, which the kit has by its signature alone
    /// ([`Builder::scripted`](crate::Builder::scripted)).
    Function {
        /// `interface.name`, without a version.
        name: String,
    },
    /// A secret that the integration is granted.
    Secret {
        /// Its name.
        name: String,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A response.
    Response {
        /// Its status.
        status: u16,
        /// Its headers, in their order.
        headers: Vec<(String, String)>,
        /// Its body.
        body: Vec<u8>,
    },
    /// What an ask has come to.
    Asked {
        /// The state of the asked entity then.
        state: String,
        /// Its variables then.
        fields: Object,
    },
    /// What a host function answers: a number, flag or text of its type. For a text that is
    /// JSON, any value.
    Value(Value),
    /// The secret's value; none where there is none.
    Secret(Option<String>),
    /// The call fails: a request on its way, an ask because it is refused.
    Error(String),
    /// Nothing, ever.
    Never,
}

impl Answer {
    /// To one request: 200, with an empty body, at once.
    #[must_use]
    pub fn http(method: impl Into<String>, url: impl Into<String>) -> Self {
        let to = Call::Http { method: Some(method.into()), url: Some(url.into()) };
        let reply = Reply::Response { status: 200, headers: Vec::new(), body: Vec::new() };
        Self { to, after: Duration::ZERO, reply, times: Some(1) }
    }

    /// To one ask of `action` of an entity, or of a type: at once, in no state.
    #[must_use]
    pub fn ask(target: impl Into<String>, action: impl Into<String>) -> Self {
        let to = Call::Ask { target: Some(target.into()), action: Some(action.into()) };
        let reply = Reply::Asked { state: String::new(), fields: Object::new() };
        Self { to, after: Duration::ZERO, reply, times: Some(1) }
    }

    /// To one call of a host function of the embedder's own: null, at once.
    #[must_use]
    pub fn function(name: impl Into<String>) -> Self {
        let to = Call::Function { name: name.into() };
        Self { to, after: Duration::ZERO, reply: Reply::Value(Value::Null), times: Some(1) }
    }

    /// With this value.
    #[must_use]
    pub fn value(self, value: impl Into<Value>) -> Self {
        Self { reply: Reply::Value(value.into()), ..self }
    }

    /// With this response.
    #[must_use]
    pub fn response(self, status: u16, body: impl Into<Vec<u8>>) -> Self {
        let reply = Reply::Response { status, headers: Vec::new(), body: body.into() };
        Self { reply, ..self }
    }

    /// With this reply.
    #[must_use]
    pub fn reply(self, reply: Reply) -> Self {
        Self { reply, ..self }
    }

    /// Never.
    #[must_use]
    pub fn never(self) -> Self {
        Self { reply: Reply::Never, ..self }
    }

    /// With an error.
    #[must_use]
    pub fn error(self, message: impl Into<String>) -> Self {
        Self { reply: Reply::Error(message.into()), ..self }
    }

    /// After so long.
    #[must_use]
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    /// So often; none for as often as it is called.
    #[must_use]
    pub fn times(self, times: Option<u32>) -> Self {
        Self { times, ..self }
    }
}

impl Call {
    pub(crate) fn is_request(&self, with: &str, to: &str) -> bool {
        let Self::Http { method, url } = self else { return false };
        let same_method = method.as_ref().is_none_or(|method| method.eq_ignore_ascii_case(with));
        let same_url = url.as_ref().is_none_or(|url| match url.strip_suffix('*') {
            Some(begin) => to.starts_with(begin),
            None => url == to,
        });
        same_method && same_url
    }

    pub(crate) fn is_ask(&self, entity: &str, wanted: &str) -> bool {
        let Self::Ask { target, action } = self else { return false };
        let same_target =
            target.as_ref().is_none_or(|target| target == entity || target == type_of(entity));
        same_target && action.as_ref().is_none_or(|action| action == wanted)
    }

    /// Whether it may be an ask of `wanted` of some entity of a type.
    pub(crate) fn may_be_asked(&self, of_type: &str, wanted: &str) -> bool {
        let Self::Ask { target, action } = self else { return false };
        let target = target.as_deref().map(type_of);
        target.is_none_or(|target| target == of_type)
            && action.as_ref().is_none_or(|action| action == wanted)
    }

    pub(crate) fn is_function(&self, wanted: &str) -> bool {
        matches!(self, Self::Function { name } if name == wanted)
    }

    pub(crate) fn is_secret(&self, wanted: &str) -> bool {
        matches!(self, Self::Secret { name } if name == wanted)
    }
}

/// The type of an entity, or of what is one already.
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
            Self::Function { name } => f.write_str(name),
            Self::Secret { name } => write!(f, "secret {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_matched_by_method_and_by_the_whole_or_the_begin_of_their_url() {
        let call = |url: &str| Call::Http { method: Some("GET".into()), url: Some(url.into()) };
        assert!(call("https://a/b").is_request("get", "https://a/b"));
        assert!(!call("https://a/b").is_request("POST", "https://a/b"));
        assert!(!call("https://a/b").is_request("GET", "https://a/b/c"));
        assert!(call("https://a/*").is_request("GET", "https://a/b/c"));
        assert!(Call::Http { method: None, url: None }.is_request("PUT", "https://c/"));
        assert!(!call("https://a/b").is_ask("a", "b") && !call("x").is_secret("x"));
    }

    #[test]
    fn asks_are_matched_by_entity_or_by_type() {
        let ask = |target: &str| Call::Ask { target: Some(target.into()), action: None };
        assert!(ask("Order/1").is_ask("Order/1", "Ship"));
        assert!(ask("Order").is_ask("Order/1", "Ship"));
        assert!(!ask("Order/2").is_ask("Order/1", "Ship"));
    }
}
