//! The fields of an entity: the last values of the parameters of all actions that it took.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::{Object, Spawn};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::decide::size;

/// Largest fields of an entity, in bytes as JSON: they are in memory with the entity and with
/// each of its handlers, and in its snapshots.
pub const FIELDS_MAX_BYTES: usize = 1 << 20;

/// The field with the id of an entity.
pub const ID: &str = "Id";
/// The field with the state of an entity.
pub const STATUS: &str = "Status";

/// The fields of an entity, by name, without [`ID`] and [`STATUS`], which no action sets. Clones share all of
/// them; after an action, only the fields that it sets are new.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields {
    fields: Arc<BTreeMap<Arc<str>, Arc<Field>>>,
    /// The size of all of them.
    bytes: usize,
}

#[derive(Debug, PartialEq)]
struct Field {
    value: Value,
    /// The size of its name and value, as JSON; more than [`FIELDS_MAX_BYTES`] if it was not measured to
    /// the end.
    bytes: usize,
}

impl Fields {
    /// The value of the field `name`, if there is one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).map(|field| &field.value)
    }

    /// All of them, in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(name, field)| (&**name, &field.value))
    }

    /// Copies them.
    #[must_use]
    pub fn to_object(&self) -> Object {
        self.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
    }

    /// The fields after an action with `params`, and whether all of them fit. In the order of their
    /// names, parameters that do not fit are left out, and the fields keep what they had.
    pub(crate) fn after(&self, params: &Object) -> (Self, bool) {
        let mut after = self.clone();
        let mut all_fit = true;
        let is_own = |name: &str| [ID, STATUS].contains(&name);
        for (name, value) in params.iter().filter(|(name, _)| !is_own(name)) {
            let replaced = after.fields.get(name.as_str()).map_or(0, |field| field.bytes);
            let bytes = size(&(name, value), FIELDS_MAX_BYTES).unwrap_or(FIELDS_MAX_BYTES + 1);
            if after.bytes - replaced + bytes > FIELDS_MAX_BYTES {
                all_fit = false;
            } else {
                after.bytes = after.bytes - replaced + bytes;
                after.set(name, Field { value: value.clone(), bytes });
            }
        }
        (after, all_fit)
    }

    /// The fields after `spawn`, whose id is stored in one of them if it names one.
    pub(crate) fn after_spawn(&self, spawn: &Spawn) -> Self {
        let stored = spawn.stored_in.iter().map(|name| (name.clone(), spawn.entity.id().into()));
        self.after(&stored.collect()).0
    }

    fn set(&mut self, name: &str, field: Field) {
        let fields = Arc::make_mut(&mut self.fields);
        match fields.get_mut(name) {
            Some(present) => *present = Arc::new(field),
            None => drop(fields.insert(name.into(), Arc::new(field))),
        }
    }
}

/// Keeps all fields, also if they exceed [`FIELDS_MAX_BYTES`].
impl From<Object> for Fields {
    fn from(fields: Object) -> Self {
        let fields: BTreeMap<_, _> = fields
            .into_iter()
            .map(|(name, value)| {
                let bytes = size(&(&name, &value), usize::MAX).unwrap_or_default();
                (name.into(), Arc::new(Field { value, bytes }))
            })
            .collect();
        let bytes = fields.values().map(|field: &Arc<Field>| field.bytes).sum();
        Self { fields: Arc::new(fields), bytes }
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Object::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        serde_json::from_value(value).expect("an object")
    }

    #[test]
    fn an_action_shares_the_fields_that_it_does_not_set() {
        let before = Fields::from(object(json!({ "large": "x".repeat(1000), "n": 1 })));
        let (after, all_fit) = before.after(&object(json!({ "n": 2, "m": null })));
        assert!(all_fit);
        assert!(Arc::ptr_eq(&before.fields["large"], &after.fields["large"]));
        assert_eq!((before.get("n"), after.get("n")), (Some(&json!(1)), Some(&json!(2))));
        let (unchanged, _) = after.after(&Object::new());
        assert!(Arc::ptr_eq(&after.fields, &unchanged.fields));
        // The size that they have after actions is the one that is measured anew.
        assert_eq!(Fields::from(after.to_object()), after);
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_what_it_would_replace_is_kept() {
        let large = |bytes: usize| json!("x".repeat(bytes));
        let (full, all_fit) =
            Fields::default().after(&object(json!({ "a": large(FIELDS_MAX_BYTES - 100) })));
        assert!(all_fit);
        let more = object(json!({ "a": large(FIELDS_MAX_BYTES), "b": large(200), "c": 1 }));
        let (after, all_fit) = full.after(&more);
        assert!(!all_fit);
        let names: Vec<&str> = after.iter().map(|(name, _)| name).collect();
        assert_eq!((names, after.get("a")), (vec!["a", "c"], full.get("a")));
        // Those of an entity whose size was never bounded only shrink.
        let unbounded = Fields::from(object(json!({ "a": large(2 * FIELDS_MAX_BYTES) })));
        assert!(!unbounded.after(&object(json!({ "b": 1 }))).1);
        let (shrunk, all_fit) = unbounded.after(&object(json!({ "a": 1 })));
        assert_eq!((shrunk, all_fit), (Fields::from(object(json!({ "a": 1 }))), true));
    }
}
