//! Channels that a definition declares.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{ID_MAX_BYTES, TYPE_ID};
use crate::fields::{Fields, kind, whole};
use crate::names::names;
use crate::problem::{Problems, quoted};

/// Most entries of one side of a channel's access; the protocol's limit.
const ACCESS_MAX: usize = 256;
/// Longest age of a channel's entries, in milliseconds: a year; the protocol's limit.
const TTL_MAX_MS: u64 = 31_536_000_000;

/// A channel, and how writes change its state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Channel {
    /// How a write changes the state.
    pub reducer: Reducer,
    /// A JSON Schema of written values, as declared; it was not checked.
    pub schema: Option<Value>,
    /// The state before the first write.
    pub default: Option<Value>,
    /// How many entries it keeps.
    pub max_size: Option<u64>,
    /// How long it keeps entries, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// Options of its reducer.
    pub options: Option<Value>,
    /// Who may read it.
    pub readers: Access,
    /// Who may write to it.
    pub writers: Access,
    /// The version of its schema, from 1.
    pub schema_version: u64,
    /// Whether clients see its values masked.
    pub sensitive: bool,
}

names! {
    /// How a write changes a channel's state.
    Reducer {
        /// The value becomes the state.
        Replace = "replace",
        /// The value is added to a list.
        Append = "append",
        /// The fields of the value are merged into an object.
        Merge = "merge",
        /// The value is added to a number.
        Counter = "counter",
        /// The value is a vote; each voter has one.
        Votes = "votes",
        /// The value is feedback, added to a list.
        Feedback = "feedback",
        /// The value is a message, added to a list unless its `messageId` is in it.
        Message = "message",
    }
}

/// Who may read or write a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every node.
    Open,
    /// Nodes whose id or type is listed; an entry that ends with `*` matches types by prefix.
    Only(Vec<String>),
}

impl Access {
    /// Whether a node with this id and type has access.
    #[must_use]
    pub fn allows(&self, node_id: &str, type_id: &str) -> bool {
        let Self::Only(entries) = self else { return true };
        entries.iter().any(|entry| match entry.strip_suffix('*') {
            Some(prefix) => type_id.starts_with(prefix),
            None => entry == node_id || entry == type_id,
        })
    }
}

impl Channel {
    pub(super) fn read(value: &Value, path: String, out: &Problems) -> Option<Self> {
        Fields::closed(value, path, "the channel", out, |fields| {
            let reducer = reducer(fields);
            let mut versions = BTreeSet::new();
            for (path, version) in fields.items("compatibleWith", ACCESS_MAX) {
                let version = whole(version).filter(|version| *version > 0);
                if !version.is_some_and(|version| versions.insert(version)) {
                    out.add(path, "a schema version is a whole number from 1, listed once");
                }
            }
            let (readers, writers) = access(fields);
            Some(Self {
                schema: fields.object("schema").map(Value::from_iter),
                default: fields.value("default").cloned(),
                max_size: fields.whole("maxSize", 1..=u64::MAX),
                ttl_ms: fields.whole("ttlMs", 1..=TTL_MAX_MS),
                options: fields.object("options").map(Value::from_iter),
                readers,
                writers,
                schema_version: fields.whole("schemaVersion", 1..=u64::MAX).unwrap_or(1),
                sensitive: fields.flag("sensitive"),
                reducer: reducer?,
            })
        })?
    }
}

fn reducer(fields: &Fields<'_>) -> Option<Reducer> {
    let name = fields.required_text("reducer")?;
    if name.starts_with("vendor.") {
        let known: Vec<&str> = Reducer::ALL.iter().map(|reducer| reducer.as_str()).collect();
        let (name, known) = (quoted(name), known.join(", "));
        fields.report("reducer", format!("this host has no reducer {name}; use one of {known}"));
        return None;
    }
    fields.word("reducer", Reducer::WORDS)
}

/// Who may read, and who may write.
fn access(fields: &Fields<'_>) -> (Access, Access) {
    let open = (Access::Open, Access::Open);
    match fields.value("access") {
        None => open,
        Some(Value::String(word)) if word == "public" => open,
        Some(Value::String(word)) if word == "private" => {
            (Access::Only(Vec::new()), Access::Only(Vec::new()))
        }
        Some(Value::Object(_)) => {
            let sides = |sides: &Fields<'_>| (side(sides, "readers"), side(sides, "writers"));
            fields.child("access", "`access`", sides).unwrap_or(open)
        }
        Some(other) => {
            let is = other.as_str().map_or_else(|| kind(other).to_owned(), quoted);
            let what = format!(
                "`access` must be \"public\", \"private\" or an object of readers and writers, \
                 and is {is}"
            );
            fields.report("access", what);
            open
        }
    }
}

fn side(fields: &Fields<'_>, key: &'static str) -> Access {
    if fields.value(key).is_none() {
        return Access::Open;
    }
    let entries = fields.unique_texts(key, ACCESS_MAX);
    for entry in &entries {
        let is_valid = *entry == "*" || TYPE_ID.matches(entry.strip_suffix('*').unwrap_or(entry));
        if entry.len() > ID_MAX_BYTES || !is_valid {
            let entry = quoted(entry);
            fields.report(
                key,
                format!("{entry} is no node's id or type, nor the beginning of one with a `*`"),
            );
        }
    }
    Access::Only(entries.into_iter().map(str::to_owned).collect())
}
