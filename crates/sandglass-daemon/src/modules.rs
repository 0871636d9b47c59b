//! The modules that handlers run: those of the folder of specs, and the versions that
//! clients have put, which take their place until their file is removed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_host::{Integration, Manifest};
use sandglass_model::{Rejection, RejectionKind, WallTime};
use sandglass_runtime::{Handlers as _, HostHandlers, Module};

use crate::error::{Code, Error};
use crate::module_store::{Kept, ModuleStore, StoreError};
use crate::view::{ModuleView, Source};

/// A module of the folder, and its grants. These hold for versions that are put, too.
#[derive(Clone, Debug)]
pub struct DeclaredModule {
    /// The name that integrations give it.
    pub name: String,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// What it may do.
    pub manifest: Manifest,
}

/// The modules by name: those that were declared. Nobody can add a name by putting it.
#[derive(Debug)]
pub struct Modules {
    table: Mutex<BTreeMap<String, Known>>,
    store: Option<ModuleStore>,
    /// Held while the table is changed, so that what runs, what is kept and what is
    /// shown are the same.
    changing: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug)]
struct Known {
    module: Module,
    view: ModuleView,
}

impl Known {
    fn of(declared: DeclaredModule) -> (String, Self) {
        let DeclaredModule { name, bytes, manifest } = declared;
        let size = bytes.len();
        let module = Module::new(bytes, manifest);
        let view = ModuleView {
            name: name.clone(),
            hash: module.hash(),
            bytes: size,
            source: Source::Folder,
            by: None,
            at: None,
        };
        (name, Self { module, view })
    }

    /// `module`, with the grants that this has, in its place.
    fn put(self, module: Module, kept: Kept, source: Source) -> Self {
        let Kept { hash, by, at } = kept;
        let name = self.view.name;
        let (by, at) = (Some(by), Some(at));
        let view = ModuleView { name, hash, bytes: module.bytes().len(), source, by, at };
        Self { module, view }
    }
}

/// A module that is being put.
#[derive(Debug)]
pub(crate) struct Put {
    pub(crate) name: String,
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) by: String,
    pub(crate) at: WallTime,
}

impl Modules {
    /// The declared modules, and in place of them what was put before, which is kept in
    /// `folder`; without one, what is put lives as long as the process.
    ///
    /// # Errors
    /// What was put before can't be read.
    pub fn open(
        declared: impl IntoIterator<Item = DeclaredModule>,
        folder: Option<PathBuf>,
    ) -> Result<Self, StoreError> {
        let mut table: BTreeMap<String, Known> = declared.into_iter().map(Known::of).collect();
        let store = folder.map(ModuleStore::new);
        let kept = store.as_ref().map(ModuleStore::read).transpose()?.unwrap_or_default();
        for (name, (kept, bytes)) in kept {
            match table.remove(&name) {
                Some(known) => {
                    let module = Module::new(bytes, known.module.manifest().clone());
                    let known = known.put(module, kept, Source::Put);
                    table.insert(name, known);
                }
                None => tracing::warn!(
                    module = name,
                    "a version was put of a module that no spec names any more; it stays unused"
                ),
            }
        }
        Ok(Self { table: Mutex::new(table), store, changing: tokio::sync::Mutex::default() })
    }

    /// What to give to [`HostHandlers::new`].
    pub fn for_handlers(&self) -> Vec<(String, Module)> {
        self.lock().iter().map(|(name, known)| (name.clone(), known.module.clone())).collect()
    }

    /// The names of those that were put by a client, and by whom.
    pub fn uploaded(&self) -> Vec<(String, String)> {
        let put = |known: &Known| Some((known.view.name.clone(), known.view.by.clone()?));
        self.lock().values().filter_map(put).collect()
    }

    pub(crate) fn list(&self) -> Vec<ModuleView> {
        self.lock().values().map(|known| known.view.clone()).collect()
    }

    /// Whether integrations may name it.
    pub(crate) fn require(&self, name: &str) -> Result<(), Error> {
        self.known(name).map(drop)
    }

    /// Checks the new version, keeps it, and gives it to new dispatches, in this order:
    /// where one fails, the one before stays.
    pub(crate) async fn put(&self, handlers: &HostHandlers, put: Put) -> Result<ModuleView, Error> {
        let Put { name, bytes, by, at } = put;
        require_binary(&bytes)?;
        let manifest = self.known(&name)?.module.manifest().clone();
        // Compiled before the lock is taken: it may take a minute, in which others are put.
        let (module, _compiled) =
            check(handlers, &by, move || Module::new(bytes, manifest)).await?;
        let _one_at_a_time = self.changing.lock().await;
        let known = self.known(&name)?;
        // A reload may have changed its grants meanwhile. What it compiled to is there.
        let module = module.granted(known.module.manifest().clone());
        let (module, _compiled) = check(handlers, &by, move || module).await?;
        let kept = Kept { hash: module.hash(), by, at };
        let source = if self.store.is_some() { Source::Put } else { Source::PutInMemory };
        let known = known.put(module.clone(), kept.clone(), source);
        if let Some(store) = self.store.clone() {
            let name = name.clone();
            let keeping =
                tokio::task::spawn_blocking(move || store.keep(&name, kept, module.bytes()));
            keeping.await.map_err(|_| broken())?.map_err(|error| unkept(&error))?;
        }
        handlers.put(&name, known.module.clone()).await?;
        let view = known.view.clone();
        self.lock().insert(name, known);
        Ok(view)
    }

    /// Prepares to take these instead of the ones that were declared; what was put stays
    /// in their place. They are compiled and checked.
    ///
    /// # Errors
    /// One can't be run: its name, and why.
    pub(crate) async fn prepare<'m>(
        &'m self,
        handlers: &HostHandlers,
        declared: impl IntoIterator<Item = DeclaredModule>,
    ) -> Result<Prepared<'m>, (String, Rejection)> {
        let declared: Vec<_> = declared.into_iter().map(Known::of).collect();
        // Before the lock is taken, as in `put`.
        let mut checked = Vec::new();
        for (_, known) in &declared {
            let module = known.module.clone();
            checked.push(check(handlers, RELOADING, move || module).await);
        }
        let held = self.changing.lock().await;
        let (mut table, mut compiled) = (BTreeMap::new(), Vec::new());
        for ((name, mut known), mut checked) in declared.into_iter().zip(checked) {
            let present = self.lock().get(&name).cloned();
            if let Some(present) = present.filter(|one| one.view.source != Source::Folder) {
                let module = present.module.granted(known.module.manifest().clone());
                known = Known { module: module.clone(), view: present.view };
                checked = check(handlers, RELOADING, move || module).await;
            }
            let (_, integration) = checked.map_err(|rejection| (name.clone(), rejection))?;
            compiled.push(integration);
            table.insert(name, known);
        }
        Ok(Prepared { modules: self, table, _compiled: compiled, _held: held })
    }

    fn known(&self, name: &str) -> Result<Known, Error> {
        let table = self.lock();
        table.get(name).cloned().ok_or_else(|| {
            let names: Vec<&str> = table.keys().map(String::as_str).take(20).collect();
            let message = format!(
                "no spec names a module `{name}` (known are: {}); reload with one that does",
                names.join(", ")
            );
            Error::new(Code::UnknownModule, message)
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        // Each change is made whole before anything can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Modules that were checked and can be taken.
#[derive(Debug)]
pub(crate) struct Prepared<'m> {
    modules: &'m Modules,
    table: BTreeMap<String, Known>,
    /// So that they are not compiled again when they are taken.
    _compiled: Vec<Integration>,
    _held: tokio::sync::MutexGuard<'m, ()>,
}

impl Prepared<'_> {
    /// Gives handlers those whose names they don't know.
    pub(crate) async fn add_new(&self, handlers: &HostHandlers) -> Result<(), (String, Rejection)> {
        let new = |(name, _): &(&String, &Known)| handlers.module_hash(name).is_none();
        let new = self.table.iter().filter(new);
        let run: Vec<_> = new.map(|(name, known)| (name.clone(), known.module.clone())).collect();
        handlers.put_all(run).await
    }

    /// Gives them to new dispatches. A module that is no longer declared stays known to
    /// handlers: entities that obey an older spec may still name it.
    pub(crate) async fn take(self, handlers: &HostHandlers) -> Result<(), (String, Rejection)> {
        let Self { modules, table, _compiled, _held } = self;
        let run: Vec<_> =
            table.iter().map(|(name, known)| (name.clone(), known.module.clone())).collect();
        handlers.put_all(run).await?;
        *modules.lock() = table;
        Ok(())
    }
}

/// Text modules are for files that people write: parsing costs far more than the bytes suggest.
fn require_binary(bytes: &[u8]) -> Result<(), Rejection> {
    if bytes.starts_with(b"\0asm") {
        return Ok(());
    }
    let message = "an uploaded module must be binary, and begin with \\0asm; convert text first, for \
                   example with `wasm-tools parse`";
    Err(Rejection { kind: RejectionKind::InvalidModule, message: message.to_owned() })
}

/// The tenant for which a reload compiles.
const RELOADING: &str = "";

/// Makes a module and compiles it, away from the threads of requests, among the modules that
/// `owner` puts. The host keeps it for when it is taken, at least as long as the integration is
/// held.
async fn check(
    handlers: &HostHandlers,
    owner: &str,
    make: impl FnOnce() -> Module + Send + 'static,
) -> Result<(Module, Integration), Rejection> {
    let (host, owner) = (handlers.host().clone(), owner.to_owned());
    let checking = move || {
        let module = make();
        let integration = host.load_for(&owner, module.bytes(), module.manifest().clone())?;
        Ok((module, integration))
    };
    tokio::task::spawn_blocking(checking).await.unwrap_or_else(|_| {
        let message = "compiling the module failed in the compiler itself".to_owned();
        Err(Rejection { kind: RejectionKind::InvalidModule, message })
    })
}

fn unkept(error: &StoreError) -> Error {
    tracing::error!(%error, "a module that was put can't be kept");
    Error::new(Code::Unavailable, "the module can't be kept on the disk; the log says why")
}

fn broken() -> Error {
    Error::new(Code::Internal, "keeping the module failed")
}
