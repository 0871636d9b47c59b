//! The context of a handler: its entity, the triggering action, the configuration.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{Failure, HostError, backend};

/// The entity, the action and the configuration that a handler works on, as they were when it was
/// started. They do not change while it runs.
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
    /// The tenant; `default` if the host has only one.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The type of the entity whose action started the handler.
    #[must_use]
    pub fn entity_type(&self) -> &str {
        &self.entity_type
    }

    /// The id of that entity.
    #[must_use]
    pub fn entity_id(&self) -> &str {
        &self.entity_id
    }

    /// The action that started the handler.
    #[must_use]
    pub fn action(&self) -> &str {
        &self.trigger_action
    }

    /// The id of the dispatch, 32 hexadecimal digits. All attempts of a dispatch have the same id, so
    /// it serves as an idempotency key.
    #[must_use]
    pub fn dispatch_id(&self) -> &str {
        &self.dispatch_id
    }

    /// The number of this attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The id of the trace that the handler belongs to, 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// The agent on whose behalf the handler runs; `None` if there is none.
    #[must_use]
    pub fn agent_id(&self) -> Option<&str> {
        self.agent_id.as_deref()
    }

    /// The session that the entity belongs to; `None` if there is none.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    /// The value `name` of the integration's configuration; `None` if it has none.
    #[must_use]
    pub fn config(&self, name: &str) -> Option<&str> {
        let Config(entries) = &self.integration_config;
        let (_, value) = entries.iter().find(|(key, _)| key == name)?;
        Some(value)
    }

    /// The value `name` of the integration's configuration, which the handler requires.
    ///
    /// # Errors
    /// If it is missing: a failure with the category `config` and the code `missing`.
    pub fn required_config(&self, name: &str) -> Result<&str, Failure> {
        self.config(name).ok_or_else(|| {
            Failure::typed("config", "missing")
                .permanent()
                .because(format!("the integration's configuration has no `{name}`"))
        })
    }

    /// Reads the params of the action that started the handler as a `T`.
    ///
    /// # Errors
    /// If they are not a valid `T`: a failure with the category `input` and the code `invalid`, whose
    /// details contain the `field` and the `error`.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        read(self.trigger_params.get()).map_err(|error| error.failure("input", "the params"))
    }

    /// Reads the entity's state, in the form that its runtime gives it, as a `T`.
    ///
    /// # Errors
    /// If it is not a valid `T`: a failure with the category `state` and the code `invalid`, with the
    /// details of [`Context::params`].
    pub fn state<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        read(self.entity_state.get()).map_err(|error| error.failure("state", "the entity's state"))
    }

    /// Reads one field of the entity's state: of its object `fields`, or of the state itself if it has
    /// no such object. `None` if there is no field of that name.
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

    /// The whole context as JSON, with the names of the core ABI. It is read from the host again; in
    /// unit tests it is this context.
    ///
    /// # Errors
    /// Errors if the host does not provide it.
    pub fn to_json(&self) -> Result<Value, HostError> {
        let text = backend::read_context_json(self)?;
        serde_json::from_str(&text)
            .map_err(|error| HostError::new(format!("the context is not valid JSON: {error}")))
    }
}

/// The integration's configuration: names and values. They are few, so a list is searched as fast as
/// a map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config(pub(crate) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Config;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object whose values are strings")
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

/// Why JSON does not have the expected type.
struct Mismatch {
    /// The path of the field, such as `steps[2].url`; `.` for the whole value.
    field: String,
    error: String,
}

#[derive(Serialize)]
struct Details<'a> {
    field: &'a str,
    error: &'a str,
}

impl Mismatch {
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

/// Reads the JSON `text` as a `T`.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, Mismatch> {
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| Mismatch {
        field: error.path().to_string(),
        error: without_position(error.inner()),
    })
}

/// The text of `error` without line and column, which mean nothing to an author: the JSON is not a
/// file.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&position).unwrap_or(&text).to_owned()
}

/// Reads the body of an HTTP response as JSON.
pub(crate) fn read_body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HostError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        HostError::new(match error.path().to_string().as_str() {
            "." => error.inner().to_string(),
            path => format!("`{path}`: {}", error.inner()),
        })
    })
}

/// Reads JSON that the host returned. `what` names it in the error.
pub(crate) fn read_returned<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, HostError> {
    read(text).map_err(|Mismatch { field, error }| {
        HostError::new(format!("{what} do not have the expected form: `{field}`: {error}"))
    })
}
