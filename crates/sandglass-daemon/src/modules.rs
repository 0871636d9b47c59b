//! The modules that handlers use: those of the folder of specs, and uploaded versions, which replace
//! them until their file is removed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_host::{Integration, Manifest};
use sandglass_model::{Rejection, RejectionKind, WallTime};
use sandglass_runtime::{Handlers as _, HostHandlers, Module};

use crate::error::{Code, Error};
use crate::module_store::{ModuleStore, StoreError, StoredModule};
use crate::view::{ModuleView, Source};

/// A module of the folder, and its grants, which also apply to uploaded versions of it.
#[derive(Clone, Debug)]
pub struct DeclaredModule {
    /// The name that integrations use.
    pub name: String,
    /// The bytes of the module.
    pub bytes: Arc<[u8]>,
    /// Its grants and limits.
    pub manifest: Manifest,
    /// If the bytes are an uploaded version, who uploaded it.
    pub uploaded: Option<UploadOrigin>,
}

/// Who uploaded a version of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadOrigin {
    /// The owner of the key.
    pub by: String,
    /// When.
    pub at: WallTime,
}

/// The declared modules by name. An upload replaces a module, and never adds a name.
#[derive(Debug)]
pub struct Modules {
    table: Mutex<BTreeMap<String, Entry>>,
    uploads: Uploads,
    /// Held during a change, so that handlers, store and table always agree.
    changing: tokio::sync::Mutex<()>,
}

/// Where uploaded versions are.
#[derive(Clone, Debug)]
enum Uploads {
    /// In memory: they replace declared modules until the process ends.
    InMemory,
    /// In a folder: they replace declared modules until their file is removed.
    Stored(ModuleStore),
    /// Among the declared modules, which are all that is used.
    Declared,
}

#[derive(Clone, Debug)]
struct Entry {
    module: Module,
    view: ModuleView,
}

impl Entry {
    fn from_declared(declared: DeclaredModule) -> (String, Self) {
        let DeclaredModule { name, bytes, manifest, uploaded } = declared;
        let size = bytes.len();
        let source = if uploaded.is_some() { Source::Put } else { Source::Folder };
        let (by, at) = uploaded.map(|UploadOrigin { by, at }| (by, at)).unzip();
        let module = Module::new(bytes, manifest);
        let view =
            ModuleView { name: name.clone(), hash: module.hash(), bytes: size, source, by, at };
        (name, Self { module, view })
    }

    /// The entry that replaces this one after an upload of `module`.
    fn with_upload(self, module: Module, stored: StoredModule, source: Source) -> Self {
        let StoredModule { hash, by, at } = stored;
        let name = self.view.name;
        let (by, at) = (Some(by), Some(at));
        let view = ModuleView { name, hash, bytes: module.bytes().len(), source, by, at };
        Self { module, view }
    }
}

/// An uploaded module that is to be checked and used.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) name: String,
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) by: String,
    pub(crate) at: WallTime,
}

impl Modules {
    /// The declared modules, replaced by uploads that `folder` stores. Without a folder, uploads live
    /// as long as the process.
    ///
    /// # Errors
    /// Errors if earlier uploads cannot be read.
    pub fn open(
        declared: impl IntoIterator<Item = DeclaredModule>,
        folder: Option<PathBuf>,
    ) -> Result<Self, StoreError> {
        let mut table: BTreeMap<String, Entry> =
            declared.into_iter().map(Entry::from_declared).collect();
        let store = folder.map(ModuleStore::new);
        let stored = store.as_ref().map(ModuleStore::read).transpose()?.unwrap_or_default();
        for (name, (stored, bytes)) in stored {
            match table.remove(&name) {
                Some(entry) => {
                    let module = Module::new(bytes, entry.module.manifest().clone());
                    table.insert(name, entry.with_upload(module, stored, Source::Put));
                }
                None => tracing::warn!(
                    module = name,
                    "an uploaded version of a module is unused, because no spec names the module"
                ),
            }
        }
        let uploads = store.map_or(Uploads::InMemory, Uploads::Stored);
        Ok(Self { table: Mutex::new(table), uploads, changing: tokio::sync::Mutex::default() })
    }

    /// The declared modules of a deployment, to which uploads belong.
    #[must_use]
    pub fn deployed(declared: impl IntoIterator<Item = DeclaredModule>) -> Self {
        let table = declared.into_iter().map(Entry::from_declared).collect();
        let changing = tokio::sync::Mutex::default();
        Self { table: Mutex::new(table), uploads: Uploads::Declared, changing }
    }

    /// The modules for [`HostHandlers::new`].
    pub fn for_handlers(&self) -> Vec<(String, Module)> {
        list_modules(&self.lock())
    }

    /// The names of the uploaded modules, and who uploaded them.
    pub fn uploaded(&self) -> Vec<(String, String)> {
        let uploaded = |entry: &Entry| Some((entry.view.name.clone(), entry.view.by.clone()?));
        self.lock().values().filter_map(uploaded).collect()
    }

    pub(crate) fn list(&self) -> Vec<ModuleView> {
        self.lock().values().map(|entry| entry.view.clone()).collect()
    }

    /// Checks that specs name the module.
    pub(crate) fn require(&self, name: &str) -> Result<(), Error> {
        self.entry(name).map(drop)
    }

    /// Checks that the new version can be used in place of the present one.
    pub(crate) async fn check_upload(
        &self,
        handlers: &HostHandlers,
        upload: &Upload,
    ) -> Result<(), Error> {
        require_binary(&upload.bytes)?;
        let manifest = self.entry(&upload.name)?.module.manifest().clone();
        let bytes = Arc::clone(&upload.bytes);
        check(handlers, &upload.by, move || Module::new(bytes, manifest)).await?;
        Ok(())
    }

    /// What is known of a module.
    pub(crate) fn view(&self, name: &str) -> Result<ModuleView, Error> {
        Ok(self.entry(name)?.view)
    }

    /// Checks the new version, stores it, and uses it for new dispatches, in this order. If one step
    /// fails, the previous version stays.
    pub(crate) async fn upload(
        &self,
        handlers: &HostHandlers,
        upload: Upload,
    ) -> Result<ModuleView, Error> {
        let Upload { name, bytes, by, at } = upload;
        require_binary(&bytes)?;
        let manifest = self.entry(&name)?.module.manifest().clone();
        // Compiled before the lock is taken, because it may take a minute.
        let (module, _compiled) =
            check(handlers, &by, move || Module::new(bytes, manifest)).await?;
        let _changing = self.changing.lock().await;
        let entry = self.entry(&name)?;
        // A reload may have changed the grants meanwhile. The compiled code is cached.
        let module = module.granted(entry.module.manifest().clone());
        let (module, _compiled) = check(handlers, &by, move || module).await?;
        let stored = StoredModule { hash: module.hash(), by, at };
        let (source, store) = match &self.uploads {
            Uploads::Stored(store) => (Source::Put, Some(store.clone())),
            Uploads::InMemory | Uploads::Declared => (Source::PutInMemory, None),
        };
        let entry = entry.with_upload(module.clone(), stored.clone(), source);
        if let Some(store) = store {
            let name = name.clone();
            let storing =
                tokio::task::spawn_blocking(move || store.store(&name, stored, module.bytes()));
            let internal = |_| Error::new(Code::Internal, "storing the module failed");
            storing.await.map_err(internal)?.map_err(|error| storing_error(&error))?;
        }
        handlers.put(&name, entry.module.clone()).await?;
        let view = entry.view.clone();
        self.lock().insert(name, entry);
        Ok(view)
    }

    /// Compiles and checks modules that are to replace the declared ones. Uploaded versions stay in
    /// use.
    ///
    /// # Errors
    /// Errors if the host refuses one of them, with its name.
    pub(crate) async fn prepare<'m>(
        &'m self,
        handlers: &HostHandlers,
        declared: impl IntoIterator<Item = DeclaredModule>,
    ) -> Result<Prepared<'m>, (String, Rejection)> {
        let declared: Vec<_> = declared.into_iter().map(Entry::from_declared).collect();
        // Before the lock is taken, as in `upload`.
        let mut checked = Vec::new();
        for (_, entry) in &declared {
            let module = entry.module.clone();
            checked.push(check(handlers, RELOADING, move || module).await);
        }
        let changing = self.changing.lock().await;
        let (mut table, mut compiled) = (BTreeMap::new(), Vec::new());
        for ((name, mut entry), mut checked) in declared.into_iter().zip(checked) {
            let present = self.lock().get(&name).cloned();
            let stays = !matches!(self.uploads, Uploads::Declared);
            let is_upload = |one: &Entry| stays && one.view.source != Source::Folder;
            if let Some(present) = present.filter(is_upload) {
                let module = present.module.granted(entry.module.manifest().clone());
                entry = Entry { module: module.clone(), view: present.view };
                checked = check(handlers, RELOADING, move || module).await;
            }
            let (_, integration) = checked.map_err(|rejection| (name.clone(), rejection))?;
            compiled.push(integration);
            table.insert(name, entry);
        }
        Ok(Prepared { modules: self, table, _compiled: compiled, _changing: changing })
    }

    fn entry(&self, name: &str) -> Result<Entry, Error> {
        let table = self.lock();
        table.get(name).cloned().ok_or_else(|| {
            let names: Vec<&str> = table.keys().map(String::as_str).take(20).collect();
            let message = format!(
                "no spec names a module `{name}` (known are: {}); reload with a spec that does",
                names.join(", ")
            );
            Error::new(Code::UnknownModule, message)
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        // Poisoning does not matter: the table is changed by single assignments.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn list_modules(table: &BTreeMap<String, Entry>) -> Vec<(String, Module)> {
    table.iter().map(|(name, entry)| (name.clone(), entry.module.clone())).collect()
}

/// Checked modules that can be put to use.
#[derive(Debug)]
pub(crate) struct Prepared<'m> {
    modules: &'m Modules,
    table: BTreeMap<String, Entry>,
    /// Held so that the modules are not compiled again by [`Prepared::commit`].
    _compiled: Vec<Integration>,
    _changing: tokio::sync::MutexGuard<'m, ()>,
}

impl Prepared<'_> {
    /// Gives the handlers those modules whose names they do not know.
    pub(crate) async fn add_new(&self, handlers: &HostHandlers) -> Result<(), (String, Rejection)> {
        let mut modules = list_modules(&self.table);
        modules.retain(|(name, _)| handlers.module_hash(name).is_none());
        handlers.put_all(modules).await
    }

    /// Uses the modules for new dispatches. The handlers keep modules that are no longer declared,
    /// because entities with an older spec may still name them.
    pub(crate) async fn commit(self, handlers: &HostHandlers) -> Result<(), (String, Rejection)> {
        handlers.put_all(list_modules(&self.table)).await?;
        *self.modules.lock() = self.table;
        Ok(())
    }
}

/// Refuses modules as text: parsing costs far more than their size suggests.
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

/// Makes a module and compiles it on a thread for blocking work, as one of the modules of `owner`. The
/// host caches the code at least as long as the integration is held.
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
        let message = "the compiler failed while it compiled the module".to_owned();
        Err(Rejection { kind: RejectionKind::InvalidModule, message })
    })
}

fn storing_error(error: &StoreError) -> Error {
    tracing::error!(%error, "failed to store an uploaded module");
    Error::new(Code::Unavailable, "the module cannot be stored on the disk; see the daemon's log")
}
