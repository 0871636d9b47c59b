//! Replaces specs, modules, keys and ceilings while the daemon is running: all of them, or none.

use sandglass_liveness::Spec;
use sandglass_liveness::session::Ceilings;
use sandglass_model::Rejection;

use crate::access::Keys;
use crate::{Daemon, DeclaredModule};

/// Why nothing was reloaded.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The specs cannot be used together, or cannot be recorded.
    #[error(transparent)]
    Specs(#[from] sandglass_runtime::ReloadError),
    /// The host refuses a module.
    #[error("module `{name}` cannot be used: {rejection}")]
    Module {
        /// Its name.
        name: String,
        /// Why.
        rejection: Rejection,
    },
}

impl Daemon {
    /// Uses these specs, modules, keys and ceilings from now on, or changes nothing. Live entities
    /// keep their spec until they are next at rest; handlers in flight finish with their modules, and
    /// runs of sessions with the limits that they were started with.
    ///
    /// # Errors
    /// Errors if one of them cannot be used; nothing has changed then.
    pub async fn reload(
        &self,
        specs: Vec<Spec>,
        declared: Vec<DeclaredModule>,
        keys: Keys,
        ceilings: Ceilings,
    ) -> Result<(), ReloadError> {
        let refused = |(name, rejection)| ReloadError::Module { name, rejection };
        let prepared = self
            .parts()
            .modules
            .prepare(&self.parts().handlers, declared)
            .await
            .map_err(refused)?;
        // Modules with new names come before the specs that name them, because nothing uses them yet.
        // The others were checked, and replace their predecessors once the specs are in effect.
        prepared.add_new(&self.parts().handlers).await.map_err(refused)?;
        self.runtime().reload(specs).await?;
        prepared.commit(&self.parts().handlers).await.map_err(refused)?;
        self.runtime().set_ceilings(ceilings);
        self.set_keys(keys);
        Ok(())
    }
}
