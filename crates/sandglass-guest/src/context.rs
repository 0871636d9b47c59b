//! Why a handler runs, for whom, and with what.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{Failure, HostError, backend};

/// Why a handler runs, and with what. It is as things stood when the run began: nothing
/// of it changes while the handler runs.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(not(target_family = "wasm"), derive(Serialize))]
pub struct Context {
    pub(crate) tenant: String,
    pub(crate) entity_type: String,
    pub(crate) entity_id: String,
    pub(crate) trigger_action: String,
    pub(crate) trigger_params: Box<RawValue>,
    pub(crate) entity_state: Box<RawValue>,
    pub(crate) integration_config: Config,
    pub(crate) trace_id: String,
    pub(crate) agent_id: Option<String>,
    pub(crate) session_id: Option<String>,
    pub(crate) dispatch_id: String,
    pub(crate) attempt: u32,
}

impl Context {
    /// The tenant; `default` where there is only one.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The type of the entity whose action started the handler.
    #[must_use]
    pub fn entity_type(&self) -> &str {
        &self.entity_type
    }

    /// That entity's id.
    #[must_use]
    pub fn entity_id(&self) -> &str {
        &self.entity_id
    }

    /// The action that started the handler.
    #[must_use]
    pub fn action(&self) -> &str {
        &self.trigger_action
    }

    /// The dispatch's id, 32 hexadecimal digits. It stays the same when the handler is run
    /// again, so it serves as an idempotency key.
    #[must_use]
    pub fn dispatch_id(&self) -> &str {
        &self.dispatch_id
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The trace that the run belongs to, 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// The agent on whose behalf it runs, if there is one.
    #[must_use]
    pub fn agent_id(&self) -> Option<&str> {
        self.agent_id.as_deref()
    }

    /// The session that it belongs to, if there is one.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    /// A value of the integration's configuration.
    #[must_use]
    pub fn config(&self, name: &str) -> Option<&str> {
        let Config(entries) = &self.integration_config;
        let (_, value) = entries.iter().find(|(known, _)| known == name)?;
        Some(value)
    }

    /// A value of the integration's configuration that must be there.
    ///
    /// # Errors
    /// It isn't: a failure of the category `config` and the code `missing`.
    pub fn required_config(&self, name: &str) -> Result<&str, Failure> {
        self.config(name).ok_or_else(|| {
            Failure::typed("config", "missing")
                .permanent()
                .because(format!("the integration's configuration has no `{name}`"))
        })
    }

    /// The params of the action that started the handler: what an input is read from.
    ///
    /// # Errors
    /// They are not as `T` has them: a failure of the category `input` and the code
    /// `invalid`, whose details have the `field` and the `error`.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        read(self.trigger_params.get()).map_err(|error| error.failure("input", "the params"))
    }

    /// The entity's state, as whoever runs the entity shows it.
    ///
    /// # Errors
    /// It is not as `T` has it: a failure of the category `state` and the code `invalid`,
    /// with details as [`Context::params`] has them.
    pub fn state<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        read(self.entity_state.get()).map_err(|error| error.failure("state", "the entity's state"))
    }

    /// One field of the entity's state: of its `fields`, or, where it has no such object, of
    /// the state itself. None where there is none of that name.
    ///
    /// # Errors
    /// As [`Context::state`].
    pub fn field<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Failure> {
        #[derive(Deserialize)]
        struct WithFields<'a> {
            #[serde(borrow, default)]
            fields: Option<&'a RawValue>,
        }
        type Fields<'a> = BTreeMap<String, &'a RawValue>;
        let state = self.entity_state.get();
        let inner = serde_json::from_str::<WithFields<'_>>(state).ok().and_then(|with| with.fields);
        let inner = inner.and_then(|fields| serde_json::from_str::<Fields<'_>>(fields.get()).ok());
        let fields = inner.or_else(|| serde_json::from_str::<Fields<'_>>(state).ok());
        let Some(field) = fields.as_ref().and_then(|fields| fields.get(name)) else {
            return Ok(None);
        };
        let what = format!("the entity's field `{name}`");
        read(field.get()).map(Some).map_err(|error| error.failure("state", &what))
    }

    /// The whole context, under the names that core modules read it by: once more from the
    /// host, or, where there is none, as it is here.
    ///
    /// # Errors
    /// The host doesn't give it.
    pub fn to_json(&self) -> Result<Value, HostError> {
        let text = backend::whole_context(self)?;
        serde_json::from_str(&text)
            .map_err(|error| HostError::new(format!("the context is no JSON: {error}")))
    }
}

/// The integration's configuration: names and values. Few, so nothing is looked up in it
/// faster than one after another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config(pub(crate) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Config;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Config, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Config(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(not(target_family = "wasm"))]
impl Serialize for Config {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Why a text is not what was wanted.
struct Unread {
    /// The field, as `steps[2].url`; `.` for the whole.
    field: String,
    error: String,
}

#[derive(Serialize)]
struct Details<'a> {
    field: &'a str,
    error: &'a str,
}

impl Unread {
    fn failure(self, category: &str, what: &str) -> Failure {
        let Self { field, error } = self;
        let sentence = match field.as_str() {
            "." => format!("{what}: {error}"),
            field => format!("{what}: `{field}`: {error}"),
        };
        Failure::typed(category, "invalid")
            .permanent()
            .details(Details { field: &field, error: &error })
            .because(sentence)
    }
}

/// What the JSON `text` says, or where it says something else.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, Unread> {
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| Unread {
        field: error.path().to_string(),
        error: without_place(error.inner()),
    })
}

/// The text of `error` without line and column: what was read is no file of anybody's.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

/// What the body `bytes` says.
pub(crate) fn read_body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HostError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        HostError::new(match error.path().to_string().as_str() {
            "." => error.inner().to_string(),
            path => format!("`{path}`: {}", error.inner()),
        })
    })
}

/// What the JSON `text` says, for an answer of the host.
pub(crate) fn read_answer<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, HostError> {
    read(text).map_err(|Unread { field, error }| {
        HostError::new(format!("{what} are not as wanted: `{field}`: {error}"))
    })
}
