//! Compiles a module once for the callers of one tenant that load it at the same time: the first of
//! them compiles it, and the others wait for its result. (A compilation for another tenant may have to
//! wait for that tenant's turn, so it is not shared.)

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_model::Rejection;
use tokio::sync::watch;

use super::{Compiled, Key};

pub(crate) type CompileResult = Result<Arc<Compiled>, Rejection>;

/// The compilations in progress: at most as many as there are callers that load.
#[derive(Default)]
pub(crate) struct InProgress(Mutex<ByModule>);

type ByModule = BTreeMap<TenantKey, watch::Receiver<Option<CompileResult>>>;

/// Which module, and the tenant it is compiled for.
type TenantKey = (Key, Arc<str>);

/// What a caller that loads a module finds.
pub(crate) enum Found {
    /// It was compiled before.
    Compiled(Arc<Compiled>),
    /// The caller has to compile it.
    Missing(Compilation),
    /// Another caller compiles it.
    InProgress(PendingResult),
}

/// The right to compile one module. If it is dropped without a result, one of the waiting callers
/// compiles the module.
pub(crate) struct Compilation {
    in_progress: Arc<InProgress>,
    key: TenantKey,
    result: watch::Sender<Option<CompileResult>>,
}

/// The result of another caller's compilation.
pub(crate) struct PendingResult(watch::Receiver<Option<CompileResult>>);

impl InProgress {
    /// Finds the module of `key`, which `compiled` returns if it was compiled before.
    pub(crate) fn find(
        self: &Arc<Self>,
        key: Key,
        tenant: &Arc<str>,
        compiled: impl FnOnce() -> Option<Arc<Compiled>>,
    ) -> Found {
        let key = (key, Arc::clone(tenant));
        let mut in_progress = self.lock();
        if let Some(result) = in_progress.get(&key) {
            return Found::InProgress(PendingResult(result.clone()));
        }
        // Under the lock, so that a compilation that ends in between is not missed.
        if let Some(compiled) = compiled() {
            return Found::Compiled(compiled);
        }
        let (result, receiver) = watch::channel(None);
        in_progress.insert(key.clone(), receiver);
        Found::Missing(Compilation { in_progress: Arc::clone(self), key, result })
    }

    fn lock(&self) -> MutexGuard<'_, ByModule> {
        // Each change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Compilation {
    /// Gives the result to the waiting callers, and returns it.
    pub(crate) fn finish(self, result: CompileResult) -> CompileResult {
        self.result.send_replace(Some(result.clone()));
        result
    }
}

impl Drop for Compilation {
    fn drop(&mut self) {
        self.in_progress.lock().remove(&self.key);
    }
}

impl PendingResult {
    /// Waits for the result. `None` if the compilation was dropped, so that the caller has to look
    /// for the module again.
    pub(crate) async fn wait(mut self) -> Option<CompileResult> {
        self.0.wait_for(Option::is_some).await.ok()?.clone()
    }
}
