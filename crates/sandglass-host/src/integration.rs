//! A module that a host has compiled, with its grants.

use std::fmt;
use std::sync::Arc;

use sandglass_model::{Allocation, ModuleHash};
use sandglass_supervisor::admission::IntegrationKey;
use sandglass_supervisor::capability::Grants;
use sandglass_supervisor::manifest::Manifest;

use crate::module::Compiled;
use crate::sandbox::Tier;

/// A module that a host has compiled, with its grants. Cheap to clone.
#[derive(Clone)]
pub struct Integration {
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) grants: Arc<Grants>,
    pub(crate) counts_as: IntegrationKey,
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

    /// How its instances are allocated.
    #[must_use]
    pub fn allocation(&self) -> Allocation {
        self.compiled.sandbox.kind.allocation
    }

    /// Whether its code is that of the optimizing compiler, and not of the baseline compiler
    /// ([`CompileHelper::baseline_from`](crate::CompileHelper::baseline_from)).
    #[must_use]
    pub fn is_optimized(&self) -> bool {
        self.compiled.sandbox.kind.target.tier == Tier::Optimizing
    }

    /// The host functions that the module imports and can wait in, by their names in dying spans.
    #[must_use]
    pub fn waits_in(&self) -> &[String] {
        &self.compiled.needs.waits_in
    }
}

impl fmt::Debug for Integration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Integration")
            .field("name", &self.manifest.name)
            .field("module", &self.compiled.hash)
            .finish_non_exhaustive()
    }
}
