//! What the guest of `sandglass run` is granted: by its manifest, and by flags that add to it or
//! override it.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_host::manifest::{self, Found};
use sandglass_host::{FixedSecrets, Manifest, Secret};
use sandglass_model::{GuestLimits, Rejection};

use super::arguments::Arguments;
use super::{automaton, invalid};
use crate::diagnostic_text::in_one_line;

/// The manifest that the arguments name, or the one beside the guest that names it, with what the
/// flags add.
pub(super) fn of(arguments: &Arguments) -> Result<Manifest, Rejection> {
    let found = match &arguments.manifest {
        Some(path) => Some(Found::read(path).map_err(unusable)?),
        None => manifest::beside(&arguments.guest).map_err(unusable)?,
    };
    let values = secret_values(arguments, found.as_ref())?;
    let base = match &found {
        Some(found) => found.file().manifest(Arc::new(FixedSecrets::default())),
        None => Manifest::named(automaton::integration(&arguments.guest)),
    };
    let declared = base.limits;
    let limits = GuestLimits {
        memory_bytes: arguments.memory.unwrap_or(declared.memory_bytes),
        fuel: arguments.fuel.or(declared.fuel),
        response_bytes: arguments.max_response.unwrap_or(declared.response_bytes),
        ..declared
    };
    Ok(base
        .limits(limits)
        .allow_more_hosts(arguments.allow_host.iter().cloned())
        .secrets(Arc::new(values.into_iter().collect::<FixedSecrets>())))
}

/// The secrets that flags or the manifest name. A flag names the variable with the value.
fn secret_values(
    arguments: &Arguments,
    found: Option<&Found>,
) -> Result<BTreeMap<String, Secret>, Rejection> {
    let mut values = BTreeMap::new();
    for (name, variable) in &arguments.secret {
        let value = Secret::from_environment(variable).ok_or_else(|| {
            invalid(format!("--secret {name}: the environment has no `{variable}` in UTF-8"))
        })?;
        values.insert(name.clone(), value);
    }
    for name in found.iter().flat_map(|found| &found.file().secrets) {
        if !values.contains_key(name.as_str()) {
            let value = Secret::granted(name).map_err(|what_to_do| {
                invalid(format!(
                    "the manifest grants the secret `{name}`, which has no value: {what_to_do}, \
                     or use --secret {name}=VARIABLE"
                ))
            })?;
            values.insert(name.to_string(), value);
        }
    }
    Ok(values)
}

fn unusable(error: manifest::Error) -> Rejection {
    let manifest::Error::Wrong(findings) = error else {
        return invalid(format!("manifest: {error}"));
    };
    invalid(format!("manifest: {}", in_one_line(&findings)))
}
