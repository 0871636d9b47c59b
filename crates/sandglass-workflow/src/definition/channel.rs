//! Channels that a definition declares.

use std::collections::BTreeSet;

use serde_json::Value;

use super::ID_MAX_BYTES;
use crate::fields::{Fields, Upper, is_identifier, kind, whole};
use crate::names::names;
use crate::problem::{Problems, quoted};

/// Most entries of one side of a channel's access; the protocol's.
const ACCESS_MAX: usize = 256;
/// Longest age of a channel's entries, in milliseconds: a year; the protocol's.
const TTL_MAX_MS: u64 = 31_536_000_000;

/// A channel, and how what is written to it becomes its state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Channel {
    /// How a write changes the state.
    pub reducer: Reducer,
    /// A JSON Schema of what is written, as it was declared; it has not been checked.
    pub schema: Option<Value>,
    /// The state before the first write.
    pub default: Option<Value>,
    /// Most entries that it keeps.
    pub max_size: Option<u64>,
    /// How old its entries become, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// What else its reducer is told.
    pub options: Option<Value>,
    /// Who may read it.
    pub readers: Access,
    /// Who may write to it.
    pub writers: Access,
    /// The version of its schema, from 1.
    pub schema_version: u64,
    /// Whether its values are masked wherever they are shown.
    pub sensitive: bool,
}

names! {
    /// How a write changes a channel's state.
    Reducer {
        /// It becomes the state.
        Replace = "replace",
        /// It is added to a list.
        Append = "append",
        /// Its fields are put into an object.
        Merge = "merge",
        /// It is added to a number.
        Counter = "counter",
        /// It is a vote, of which each voter has one.
        Votes = "votes",
        /// It is feedback, added to a list.
        Feedback = "feedback",
        /// It is a message, added to a list unless its `messageId` is there.
        Message = "message",
    }
}

/// Who may do something with a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every node.
    Open,
    /// Nodes whose id, or type with `*` for any end, is one of these.
    Only(Vec<String>),
}

impl Access {
    /// Whether a node of this id and type may.
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
    pub(super) fn read(value: &Value, path: String, out: &mut Problems) -> Option<Self> {
        let fields = Fields::of(value, path, "the channel", out)?;
        let known = [
            "reducer",
            "schema",
            "default",
            "maxSize",
            "ttlMs",
            "options",
            "access",
            "schemaVersion",
            "compatibleWith",
            "sensitive",
        ];
        fields.only(&known, out);
        let reducer = reducer(&fields, out);
        fields.object("schema", out);
        fields.object("options", out);
        let mut versions = BTreeSet::new();
        for (path, version) in fields.items("compatibleWith", ACCESS_MAX, out) {
            let version = whole(version).filter(|version| *version > 0);
            if !version.is_some_and(|version| versions.insert(version)) {
                out.add(path, "a schema version is a whole number from 1 on, and stands here once");
            }
        }
        let (readers, writers) = access(&fields, out);
        Some(Self {
            schema: fields.value("schema").cloned(),
            default: fields.value("default").cloned(),
            max_size: fields.whole("maxSize", 1..=u64::MAX, out),
            ttl_ms: fields.whole("ttlMs", 1..=TTL_MAX_MS, out),
            options: fields.value("options").cloned(),
            readers,
            writers,
            schema_version: fields.whole("schemaVersion", 1..=u64::MAX, out).unwrap_or(1),
            sensitive: fields.flag("sensitive", out),
            reducer: reducer?,
        })
    }
}

fn reducer(fields: &Fields<'_>, out: &mut Problems) -> Option<Reducer> {
    let name = fields.required_text("reducer", out)?;
    if name.starts_with("vendor.") {
        let known: Vec<&str> = Reducer::ALL.iter().map(|reducer| reducer.as_str()).collect();
        let what =
            format!("this host has no reducer {}; use one of {}", quoted(name), known.join(", "));
        out.add(fields.under("reducer"), what);
        return None;
    }
    fields.word("reducer", Reducer::WORDS, out)
}

/// Who may read and who may write.
fn access(fields: &Fields<'_>, out: &mut Problems) -> (Access, Access) {
    match fields.value("access") {
        None => (Access::Open, Access::Open),
        Some(Value::String(word)) if word == "public" => (Access::Open, Access::Open),
        Some(Value::String(word)) if word == "private" => {
            (Access::Only(Vec::new()), Access::Only(Vec::new()))
        }
        Some(Value::Object(_)) => {
            let Some(sides) = fields.fields("access", "`access`", out) else {
                return (Access::Open, Access::Open);
            };
            sides.only(&["readers", "writers"], out);
            (side(&sides, "readers", out), side(&sides, "writers", out))
        }
        Some(other) => {
            let is = other.as_str().map_or_else(|| kind(other).to_owned(), quoted);
            let what = format!(
                "`access` must be \"public\", \"private\" or an object of readers and writers, \
                 and is {is}"
            );
            out.add(fields.under("access"), what);
            (Access::Open, Access::Open)
        }
    }
}

fn side(fields: &Fields<'_>, key: &str, out: &mut Problems) -> Access {
    if fields.value(key).is_none() {
        return Access::Open;
    }
    let entries = fields.unique_texts(key, ACCESS_MAX, out);
    for entry in &entries {
        let name = entry.strip_suffix('*').unwrap_or(entry);
        let named = is_identifier(name, &['.', '_', '-'], Upper::Allowed);
        if entry.len() > ID_MAX_BYTES || !(named || *entry == "*") {
            let what = format!(
                "{} is no node's id or type, nor the beginning of one with a `*`",
                quoted(entry)
            );
            out.add(fields.under(key), what);
        }
    }
    Access::Only(entries.into_iter().map(str::to_owned).collect())
}
