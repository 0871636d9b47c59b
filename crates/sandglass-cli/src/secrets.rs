//! The values of the secrets that manifests grant: they come from environment
//! variables of a name that says so, and so no manifest can ask for any other.

use sandglass_host::Secret;

/// What the name of the variable begins with.
pub(crate) const VARIABLE_PREFIX: &str = "SANDGLASS_SECRET_";

/// The value of the secret called `name`.
///
/// # Errors
/// There is none; what to do about it.
pub(crate) fn value(name: &str) -> Result<Secret, String> {
    let variable = format!("{VARIABLE_PREFIX}{name}");
    Secret::from_environment(&variable)
        .ok_or_else(|| format!("set the environment variable `{variable}`"))
}
