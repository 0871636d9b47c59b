//! The definitions and packs of a host, and earlier versions of definitions that runs began with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::stream::{StreamExt as _, iter};
use sandglass_host::{Abi, Host, Integration, Manifest, file};
use sandglass_journal::{Journals, PAGE_MAX_ENTRIES};
use sandglass_liveness::decide::PARAMS_MAX_BYTES;
use sandglass_model::{EntityRef, Event, GuestLimits, ModuleHash, Partition, Position};
use sandglass_runtime::{ActorError, NewEntity, Request, Runtime};

use crate::WORKFLOW_TYPE;
use crate::folder::{self, LeftOut};
use crate::id::{ATTEMPTS_MAX, hex};
use crate::log::ReadError;
use crate::settings::{PackLimits, millis};
use crate::sync::lock;
use sandglass_workflow::definition::Definition;
use sandglass_workflow::masks::Masks;
use sandglass_workflow::node::{BUILTIN, is_orchestrator};
use sandglass_workflow::pack;
use sandglass_workflow::schema::Schema;
use sandglass_workflow::step::Begin;
use sandglass_workflow::{Problem, quoted};
use sha2::{Digest as _, Sha256};

/// Largest definition that can be recorded, in bytes: a text in the parameters of an action, with room
/// for its name.
const KEPT_MAX_BYTES: usize = PARAMS_MAX_BYTES - 64;

/// Packs that are loaded at the same time.
const LOADING_MAX: usize = 8;

/// Size of a WebAssembly page, in bytes.
const PAGE_BYTES: u64 = 64 << 10;

/// A pack that is loaded.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) name: String,
    pub(crate) integration: Integration,
    pub(crate) max_execution: Duration,
    pub(crate) manifest: pack::Manifest,
    /// Its module, as it was read: replays load it with the limits of the recorded run.
    pub(crate) module: Vec<u8>,
    pub(crate) hash: ModuleHash,
}

/// A node type of a pack.
#[derive(Clone, Debug)]
pub(crate) struct PackNode {
    pub(crate) pack: Arc<Pack>,
    pub(crate) type_id: String,
    pub(crate) index: u32,
}

impl PackNode {
    /// Its outputs that clients do not see.
    pub(crate) fn sensitive_outputs(&self) -> impl Iterator<Item = &str> {
        let node = self.pack.manifest.node(&self.type_id).into_iter();
        node.flat_map(|node| node.sensitive_outputs.iter().map(String::as_str))
    }

    /// Whether it may be executed again, because it has no effects outside of its run.
    pub(crate) fn is_pure(&self) -> bool {
        self.pack.manifest.is_pure(&self.type_id)
    }
}

/// The definitions and packs of a host.
#[derive(Debug, Default)]
pub struct Library {
    definitions: BTreeMap<String, Arc<Definition>>,
    packs: Vec<Arc<Pack>>,
    nodes: BTreeMap<String, PackNode>,
    /// The schemas of `configurable`, by definition.
    schemas: BTreeMap<String, Schema>,
    /// Definitions by their digest, also those that only runs still have.
    pinned: RwLock<BTreeMap<String, Arc<Definition>>>,
    /// The digests of definitions that are known to be recorded, with the index of each journal.
    recorded: Mutex<BTreeSet<(usize, String)>>,
}

impl Library {
    /// Reads a folder of definitions and a folder of packs, and compiles the packs' modules in `host`.
    /// Also returns what is left out because it cannot be used.
    ///
    /// # Errors
    /// A folder cannot be read: which, and why.
    pub async fn read(
        host: &Host,
        workflows: &Path,
        packs: Option<&Path>,
        limits: &PackLimits,
    ) -> Result<(Self, Vec<LeftOut>), (PathBuf, std::io::Error)> {
        let mut library = Self::default();
        let found = folder::definitions(workflows).map_err(|error| (workflows.into(), error))?;
        let mut left_out = found.left_out;
        for found in found.good {
            if let Err(problem) = library.add_definition(Arc::new(found.definition)) {
                left_out.push(LeftOut { file: found.file, why: vec![problem] });
            }
        }
        if let Some(packs) = packs {
            let found = folder::packs(packs, &BUILTIN).map_err(|error| (packs.into(), error))?;
            left_out.extend(found.left_out);
            // Several at once: each may take long to report its nodes.
            let loading = iter(found.good).map(async |found| {
                let file = found.file.clone();
                load(host, found, limits).await.map_err(|problem| (file, problem))
            });
            let mut loading = loading.buffered(LOADING_MAX);
            while let Some(loaded) = loading.next().await {
                match loaded {
                    Ok((pack, nodes)) => library.enter(pack, nodes),
                    Err((file, why)) => left_out.push(LeftOut { file, why: vec![why] }),
                }
            }
        }
        Ok((library, left_out))
    }

    /// Adds a definition, unless this host cannot execute its runs.
    fn add_definition(&mut self, definition: Arc<Definition>) -> Result<(), Problem> {
        let kept =
            serde_json::to_string(&definition.canonical).map_or(usize::MAX, |text| text.len());
        if kept > KEPT_MAX_BYTES {
            let what = format!(
                "without spaces, with its numbers and quotes written out, it has {kept} bytes, and \
                 {KEPT_MAX_BYTES} are allowed; split it"
            );
            return Err(Problem::new("", what));
        }
        one_orchestrator(&definition)?;
        if let Some(schema) = &definition.configurable_schema {
            let schema = Schema::compile(schema)
                .map_err(|what| Problem::new("/configurableSchema", what))?;
            self.schemas.insert(definition.id.clone(), schema);
        }
        self.pin(&definition);
        self.definitions.insert(definition.id.clone(), definition);
        Ok(())
    }

    /// Adds a pack, whose name and node types are unique.
    fn enter(&mut self, pack: Pack, nodes: Vec<String>) {
        let pack = Arc::new(pack);
        for (index, type_id) in (0..).zip(nodes) {
            let node = PackNode { pack: Arc::clone(&pack), type_id: type_id.clone(), index };
            self.nodes.insert(type_id, node);
        }
        self.packs.push(pack);
    }

    /// The definition with this id.
    #[must_use]
    pub fn definition(&self, id: &str) -> Option<&Arc<Definition>> {
        self.definitions.get(id)
    }

    /// The schema of `configurable` of runs of this definition, if it has one.
    pub(crate) fn configurable(&self, id: &str) -> Option<&Schema> {
        self.schemas.get(id)
    }

    /// The ids of all definitions, in their order.
    pub fn definitions(&self) -> impl Iterator<Item = &str> {
        self.definitions.keys().map(String::as_str)
    }

    /// The names of the packs that are loaded, in the order of their folders.
    pub fn packs(&self) -> impl Iterator<Item = &str> {
        self.packs.iter().map(|pack| pack.name.as_str())
    }

    /// A digest of all definitions and packs: hosts with the same ones have the same digest.
    pub(crate) fn digest(&self) -> String {
        let mut digest = Sha256::new();
        for definition in self.definitions.values() {
            digest.update(definition.digest.to_string());
        }
        for pack in self.nodes.values().map(|node| &node.pack) {
            digest.update(pack.hash.to_string());
        }
        hex(&digest.finalize()[..16])
    }

    /// The sensitive values of runs of `definition`.
    pub(crate) fn masks(&self, definition: &Definition) -> Masks {
        let sensitive = |type_id: &str| self.node(type_id).map(PackNode::sensitive_outputs);
        Masks::of(definition, |type_id| sensitive(type_id).into_iter().flatten())
    }

    /// The node type of a pack with this name.
    pub(crate) fn node(&self, type_id: &str) -> Option<&PackNode> {
        self.nodes.get(type_id)
    }

    /// Whether the host or a pack provides nodes of this type.
    #[must_use]
    pub fn provides(&self, type_id: &str) -> bool {
        BUILTIN.contains(&type_id) || self.nodes.contains_key(type_id)
    }

    fn pin(&self, definition: &Arc<Definition>) {
        let mut pinned = self.pinned.write().unwrap_or_else(PoisonError::into_inner);
        pinned.insert(definition.digest.to_string(), Arc::clone(definition));
    }

    /// Has `runtime` record the definition that `run` begins with, so that the run has it for as long as
    /// it is in the journal.
    ///
    /// # Errors
    /// It cannot be recorded.
    pub(crate) async fn record(
        &self,
        runtime: &Runtime,
        journals: &Journals,
        run: &EntityRef,
        definition: &Definition,
    ) -> Result<(), ActorError> {
        let digest = definition.digest.to_string();
        let recorded = (journals.index_of(run), digest.clone());
        if lock(&self.recorded).contains(&recorded) {
            return Ok(());
        }
        let entity = match journals.is_partitioned() {
            true => entity_in_partition(run, &definition.id, &digest),
            false => entity_in_one_journal(&definition.id, &digest),
        };
        let text = ("definition".to_owned(), definition.canonical.as_str().into());
        let keep = Request::new("Keep").params([text].into());
        let new = NewEntity { first: Some(keep.clone()), ..NewEntity::default() };
        match runtime.create_as(entity.clone(), new).await {
            Ok(_) => {}
            Err(ActorError::EntityExists(_)) => {
                // An earlier version created it without a definition, if its host ended in between.
                if runtime.entity(&entity).await?.state == "New" {
                    runtime.request(&entity, keep).await?;
                }
            }
            Err(error) => return Err(error),
        }
        lock(&self.recorded).insert(recorded);
        Ok(())
    }

    /// The definition that `run` began with.
    pub(crate) async fn pinned(
        &self,
        journals: &Journals,
        run: &EntityRef,
        begin: &Begin,
    ) -> Result<Arc<Definition>, ReadError> {
        let known = {
            let pinned = self.pinned.read().unwrap_or_else(PoisonError::into_inner);
            pinned.get(&begin.digest).cloned()
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let unknown = || ReadError::NoDefinition {
            workflow: begin.workflow.clone(),
            digest: begin.digest.clone(),
        };
        let (workflow, digest) = (&begin.workflow, &begin.digest);
        let mut text = None;
        for entity in
            [entity_in_partition(run, workflow, digest), entity_in_one_journal(workflow, digest)]
        {
            let page = journals.read_entity(entity, Position(1), PAGE_MAX_ENTRIES).await?;
            text = page.into_records()?.into_iter().find_map(|record| match record.event {
                Event::Transition { mut params, .. } => params.remove("definition"),
                _ => None,
            });
            if text.is_some() {
                break;
            }
        }
        let text = text.as_ref().and_then(|text| text.as_str()).ok_or_else(unknown)?;
        let definition = Definition::parse(text).map_err(|_| unknown())?;
        let definition = Arc::new(definition);
        let mut pinned = self.pinned.write().unwrap_or_else(PoisonError::into_inner);
        pinned.insert(begin.digest.clone(), Arc::clone(&definition));
        Ok(definition)
    }
}

/// Checks that there is at most one orchestrator: a run has one sequence of turns, decisions and
/// answers.
fn one_orchestrator(definition: &Definition) -> Result<(), Problem> {
    let nodes = definition.nodes.iter().enumerate();
    let mut orchestrators = nodes.filter(|(_, node)| is_orchestrator(node) && !node.disabled);
    let (Some((_, first)), Some((index, _))) = (orchestrators.next(), orchestrators.next()) else {
        return Ok(());
    };
    let what = format!(
        "a run has one orchestrator, which is {}; move this one to another workflow, or disable one \
         of them",
        quoted(&first.id)
    );
    Err(Problem::new(format!("/nodes/{index}/typeId"), what))
}

/// The entity of a version of a definition in a store of one journal. Earlier versions of this program used
/// it in all stores.
fn entity_in_one_journal(id: &str, digest: &str) -> EntityRef {
    EntityRef::new(WORKFLOW_TYPE, format!("{id}@{digest}"))
        .expect("an id of at most 128 bytes, and a digest of 64")
}

/// The entity of a version of a definition in the partition of `run`: each partition has those of its own
/// runs, so that a run needs nothing of another host.
fn entity_in_partition(run: &EntityRef, id: &str, digest: &str) -> EntityRef {
    let home = Partition::of(run);
    let named = |number: u32| EntityRef::new(WORKFLOW_TYPE, format!("{{{number}}}{id}@{digest}"));
    let mut names = (0..ATTEMPTS_MAX).filter_map(|number| named(number).ok());
    let found = names.find(|entity| Partition::of(entity) == home);
    found.unwrap_or_else(|| entity_in_one_journal(id, digest))
}

/// Compiles a pack, and compares its module with its manifest.
async fn load(
    host: &Host,
    found: folder::Pack,
    limits: &PackLimits,
) -> Result<(Pack, Vec<String>), Problem> {
    let folder::Pack { manifest, module: file, .. } = found;
    let wasm = &manifest.wasm;
    let memory_bytes = wasm
        .memory_pages_max
        .map_or(limits.max_memory_bytes, |pages| u64::from(pages).saturating_mul(PAGE_BYTES))
        .min(limits.max_memory_bytes);
    let max_ms = millis(limits.max_execution);
    let max_ms = wasm.max_execution_ms.map_or(max_ms, |ms| ms.min(max_ms));
    let fuel = match (wasm.fuel, limits.fuel) {
        (Some(asked), Some(most)) => Some(asked.min(most)),
        (asked, most) => asked.or(most),
    };
    let limits = GuestLimits { memory_bytes, fuel, ..GuestLimits::default() };
    let module = file::read(&file, limits.module_bytes)
        .map_err(|error| Problem::new("/runtime/entry", error.to_string()))?;
    let granted = Manifest::named(&manifest.name).abi(Abi::NodePack).limits(limits);
    let refused = |rejection: sandglass_model::Rejection| {
        Problem::new("", format!("{}: {}", rejection.kind, rejection.message))
    };
    let integration = host.load(&module, granted).map_err(refused)?;
    let described = host.describe_pack(&integration).await.map_err(refused)?;
    if described.name != manifest.name {
        let what = format!(
            "the module calls itself `{}` and pack.json calls it `{}`; make them the same",
            described.name, manifest.name
        );
        return Err(Problem::new("/name", what));
    }
    if let Some(doubled) = doubled(&described.node_types) {
        let what = format!("the module has the node `{doubled}` twice; name each once");
        return Err(Problem::new("/nodes", what));
    }
    let declared: BTreeSet<&str> =
        manifest.nodes.iter().map(|node| node.type_id.as_str()).collect();
    let has: BTreeSet<&str> = described.node_types.iter().map(String::as_str).collect();
    if let Some(other) = declared.symmetric_difference(&has).next() {
        let side = if has.contains(other) { "the module" } else { "pack.json" };
        let what = format!("only {side} has the node `{other}`; both must have the same");
        return Err(Problem::new("/nodes", what));
    }
    for node in &manifest.nodes {
        if pack::Category::parse(&node.category).is_none() {
            let (pack, node, category) = (&manifest.name, &node.type_id, &node.category);
            tracing::warn!(
                %pack,
                %node,
                %category,
                "the protocol has no such category of nodes; the pack is loaded anyway"
            );
        }
    }
    let (hash, name) = (integration.module(), manifest.name.clone());
    let max_execution = Duration::from_millis(max_ms);
    let pack = Pack { name, integration, max_execution, manifest, module, hash };
    Ok((pack, described.node_types))
}

/// The first of `names` that occurs twice.
fn doubled(names: &[String]) -> Option<&str> {
    let mut seen = BTreeSet::new();
    names.iter().map(String::as_str).find(|name| !seen.insert(*name))
}
