//! What an integration is granted: its limits, the hosts that it may reach, the
//! secrets that it may have. Nothing, unless it is named.

use std::sync::Arc;

use sandglass_model::{GuestLimits, ModuleHash};

use crate::capability::Grants;
use crate::capability::http::{Destination, Destinations};
use crate::module::Compiled;
use crate::secret::{FixedSecrets, Secrets};

/// The grants of one integration. The default one may use
/// [`GuestLimits::default`] and reach nothing.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub(crate) name: String,
    pub(crate) limits: GuestLimits,
    pub(crate) destinations: Destinations,
    pub(crate) secrets: Arc<dyn Secrets>,
}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            name: "integration".to_owned(),
            limits: GuestLimits::default(),
            destinations: Destinations::default(),
            secrets: Arc::new(FixedSecrets::default()),
        }
    }
}

impl Manifest {
    /// Grants nothing to the integration called `name`, which is how logs and
    /// reports speak of it.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Sets what it may use.
    #[must_use]
    pub fn limits(self, limits: GuestLimits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the hosts that it may reach.
    #[must_use]
    pub fn allow_hosts(self, hosts: impl IntoIterator<Item = Destination>) -> Self {
        Self { destinations: hosts.into_iter().collect(), ..self }
    }

    /// Sets where its secrets come from.
    #[must_use]
    pub fn secrets(self, secrets: Arc<dyn Secrets>) -> Self {
        Self { secrets, ..self }
    }
}

/// A module that a host has compiled, with its grants. Cheap to clone.
#[derive(Clone)]
pub struct Integration {
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) grants: Arc<Grants>,
}

impl Integration {
    /// The name that its manifest gives it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.manifest.name
    }

    /// The hash of the module's bytes.
    #[must_use]
    pub fn module(&self) -> ModuleHash {
        self.compiled.hash
    }

    /// The host functions that the module imports and can wait in, as dying spans
    /// name them.
    #[must_use]
    pub fn waits_in(&self) -> &[String] {
        &self.compiled.waits_in
    }
}

impl std::fmt::Debug for Integration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Integration")
            .field("name", &self.manifest.name)
            .field("module", &self.compiled.hash)
            .finish_non_exhaustive()
    }
}
