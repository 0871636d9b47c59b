//! Replaces specs, modules, keys and ceilings while the daemon is running: all of them, or none.

use sandglass_liveness::Spec;
use sandglass_liveness::session::Ceilings;
use sandglass_model::Rejection;

use crate::access::Keys;
use crate::modules::Prepared;
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

/// Specs and modules that were checked and compiled, and can be put to use.
#[derive(Debug)]
pub struct PreparedDeployment<'d> {
    daemon: &'d Daemon,
    specs: Vec<Spec>,
    modules: Prepared<'d>,
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
        self.prepare(specs, declared).await?.apply().await?;
        self.runtime().set_ceilings(ceilings);
        self.set_keys(keys);
        Ok(())
    }

    /// Checks and compiles what is to replace specs and modules. Other changes of modules wait until the
    /// result is dropped.
    ///
    /// # Errors
    /// Errors if the host refuses a module.
    pub async fn prepare(
        &self,
        specs: Vec<Spec>,
        declared: Vec<DeclaredModule>,
    ) -> Result<PreparedDeployment<'_>, ReloadError> {
        let prepared = self.parts().modules.prepare(&self.parts().handlers, declared).await;
        Ok(PreparedDeployment { daemon: self, specs, modules: prepared.map_err(refused)? })
    }
}

impl PreparedDeployment<'_> {
    /// Uses the specs and modules from now on, or changes nothing.
    ///
    /// # Errors
    /// Errors if the specs cannot be used together, or cannot be recorded.
    pub async fn apply(self) -> Result<(), ReloadError> {
        let handlers = &self.daemon.parts().handlers;
        // Modules with new names come before the specs that name them, because nothing uses them yet.
        // The others were checked, and replace their predecessors once the specs are in effect.
        self.modules.add_new(handlers).await.map_err(refused)?;
        self.daemon.runtime().reload(self.specs).await?;
        self.modules.commit(handlers).await.map_err(refused)
    }
}

fn refused((name, rejection): (String, Rejection)) -> ReloadError {
    ReloadError::Module { name, rejection }
}
