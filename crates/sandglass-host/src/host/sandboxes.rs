//! The engines of one host, each made when the first module that needs it is loaded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::{Rejection, RejectionKind};

use crate::host_function::Registry;
use crate::sandbox::{EngineKind, Sandbox};
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::settings::Settings;
use sandglass_supervisor::ticker::Ticker;

/// The sandboxes of a host, at most one for each kind of engine.
pub(super) struct Sandboxes {
    settings: Settings,
    ticker: Arc<Ticker>,
    /// The embedder's own host functions.
    pub(super) registry: Registry,
    made: Mutex<BTreeMap<EngineKind, Arc<Sandbox>>>,
}

impl Sandboxes {
    pub(super) fn new(settings: Settings, ticker: Arc<Ticker>, registry: Registry) -> Self {
        Self { settings, ticker, registry, made: Mutex::default() }
    }

    /// The sandbox of this kind, which is made now if there is none.
    ///
    /// # Errors
    /// The operating system has too little address space for one more.
    pub(super) fn get_or_make(&self, kind: EngineKind) -> wasmtime::Result<Arc<Sandbox>> {
        // Locked while one is made, so that it is made once.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sandbox) = made.get(&kind) {
            return Ok(Arc::clone(sandbox));
        }
        let sandbox = Arc::new(Sandbox::new(&self.settings, kind, &self.registry)?);
        self.ticker.drive(sandbox.epoch());
        made.insert(kind, Arc::clone(&sandbox));
        Ok(sandbox)
    }

    /// As [`Sandboxes::get_or_make`], with the rejection of a module that needs the sandbox.
    pub(super) fn for_module(&self, kind: EngineKind) -> Result<Arc<Sandbox>, Rejection> {
        self.get_or_make(kind).map_err(|error| {
            let message = format!("the sandbox that the module needs cannot be set up: {error:#}");
            rejection(RejectionKind::HostUnavailable, message)
        })
    }
}
