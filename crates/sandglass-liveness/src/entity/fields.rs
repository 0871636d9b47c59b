//! The fields of an entity: the last values of the parameters of all actions that it took.

use std::sync::Arc;

use sandglass_model::{Object, Spawn};

use crate::decide::size;

/// Largest fields of an entity, in bytes as JSON: they are in memory with the entity and with
/// each of its handlers, and in its snapshots.
pub const FIELDS_MAX_BYTES: usize = 1 << 20;

/// The fields after an action with `params`, and whether all of them fit. In the order of their names,
/// parameters that do not fit are left out, and the fields keep what they had.
pub(crate) fn after(fields: &Arc<Object>, params: &Object) -> (Arc<Object>, bool) {
    if params.is_empty() {
        return (Arc::clone(fields), true);
    }
    let mut after = (**fields).clone();
    let mut bytes: usize = after.iter().map(size_of).sum();
    let mut all_fit = true;
    for (name, value) in params {
        let replaced = after.get_key_value(name).map_or(0, size_of);
        let with_it = (bytes - replaced).saturating_add(size_of((name, value)));
        if with_it > FIELDS_MAX_BYTES {
            all_fit = false;
            continue;
        }
        bytes = with_it;
        after.insert(name.clone(), value.clone());
    }
    (Arc::new(after), all_fit)
}

/// The fields after `spawn`, whose id is stored in one of them if it names one.
pub(crate) fn after_spawn(fields: &Arc<Object>, spawn: &Spawn) -> Arc<Object> {
    let stored = spawn.stored_in.iter().map(|name| (name.clone(), spawn.entity.id().into()));
    after(fields, &stored.collect()).0
}

/// The size of a field; too large for all fields if it exceeds their bound.
fn size_of(field: (&String, &serde_json::Value)) -> usize {
    size(&field, FIELDS_MAX_BYTES).unwrap_or(FIELDS_MAX_BYTES + 1)
}
