//! The specs that a runtime knows: for each type the one that new entities obey, and
//! every version that a record names.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_liveness::Spec;
use sandglass_model::SpecDigest;

/// The specs at one moment.
#[derive(Debug, Default)]
pub(crate) struct Specs {
    /// What new entities obey, by type.
    pub(crate) types: BTreeMap<String, Arc<Spec>>,
    /// All that the journal has: as many as were ever given, because an entity's past is
    /// read by the specs that it obeyed then.
    pub(crate) known: BTreeMap<SpecDigest, Arc<Spec>>,
}

/// One spec of each type.
///
/// # Errors
/// The type of which there are two.
pub(crate) fn by_type(specs: Vec<Arc<Spec>>) -> Result<BTreeMap<String, Arc<Spec>>, String> {
    let mut types: BTreeMap<String, Arc<Spec>> = BTreeMap::new();
    for spec in specs {
        let (name, digest) = (spec.name.to_string(), spec.digest);
        let before = types.insert(name.clone(), spec);
        if before.is_some_and(|before| before.digest != digest) {
            return Err(name);
        }
    }
    Ok(types)
}
