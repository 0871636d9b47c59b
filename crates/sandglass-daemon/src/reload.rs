//! Takes new specs, modules, keys and ceilings while everything runs: all of them, or none.

use sandglass_liveness::Spec;
use sandglass_liveness::session::Ceilings;
use sandglass_model::Rejection;

use crate::access::Keys;
use crate::{Daemon, DeclaredModule};

/// Why nothing was reloaded.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The specs can't be used together, or can't be recorded.
    #[error(transparent)]
    Specs(#[from] sandglass_runtime::ReloadError),
    /// A module can't be run.
    #[error("module `{name}` can't be run: {rejection}")]
    Module {
        /// Its name.
        name: String,
        /// Why.
        rejection: Rejection,
    },
}

impl Daemon {
    /// Takes these specs, modules, keys and ceilings, or none of them. Entities that live stay
    /// on their spec until they next rest; handlers in flight finish on their modules, and
    /// runs of sessions on the limits that they were started with.
    ///
    /// # Errors
    /// Something of it can't be used; nothing has changed.
    pub async fn reload(
        &self,
        specs: Vec<Spec>,
        declared: Vec<DeclaredModule>,
        keys: Keys,
        ceilings: Ceilings,
    ) -> Result<(), ReloadError> {
        let refused = |(name, rejection)| ReloadError::Module { name, rejection };
        let prepared = self.modules().prepare(self.handlers(), declared).await.map_err(refused)?;
        // Names that nothing calls yet change nothing, so new modules are there before the
        // specs that name them. The rest was checked, and waits until the specs hold.
        prepared.add_new(self.handlers()).await.map_err(refused)?;
        self.runtime().reload(specs).await?;
        prepared.take(self.handlers()).await.map_err(refused)?;
        self.runtime().set_ceilings(ceilings);
        self.set_keys(keys);
        Ok(())
    }
}
