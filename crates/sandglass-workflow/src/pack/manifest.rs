//! `pack.json`: the nodes of a pack, the module that executes them, and its limits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use sandglass_model::limit::MAX_BUDGET_MS;
use serde_json::Value;

use super::requirement;
use crate::definition::{Digest, ID_MAX_BYTES, PROSE_MAX_BYTES, TYPE_ID};
use crate::document;
use crate::fields::{Fields, Pattern};
use crate::names::names;
use crate::problem::{Problem, Problems, quoted, under};

/// Largest manifest, in bytes.
pub const MANIFEST_MAX_BYTES: usize = 1 << 20;
/// Most nodes of a pack.
pub const PACK_NODES_MAX: usize = 1_000;
/// The module of a pack whose manifest names none.
pub const DEFAULT_ENTRY: &str = "module.wasm";
/// The prefix of the node types that the protocol itself defines.
pub const CANONICAL_NODE_PREFIX: &str = "core.";
/// How many pages of memory (64 KiB each) 32 bits can address: 4 GiB.
pub const MEMORY_PAGES_MAX: u32 = 65_536;

/// Longest path of an entry, in bytes.
const ENTRY_MAX_BYTES: usize = 1_024;
/// Most dependencies, and most outputs of a node.
const LISTED_MAX: usize = 1_000;

/// A valid manifest of a pack that this host can run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Manifest {
    /// The pack's name, such as `vendor.acme.tools`.
    pub name: String,
    /// Its version (Semantic Versioning).
    pub version: String,
    /// What it is for.
    pub description: Option<String>,
    /// Its licence, as an SPDX expression.
    pub license: Option<String>,
    /// Its nodes, in the order of the file; at least one.
    pub nodes: Vec<PackNode>,
    /// Its module: a path in its folder that consists of plain names.
    pub entry: String,
    /// The declarations of its module, and the limits of each invocation.
    pub wasm: WasmLimits,
    /// The packs that it depends on, with their versions; the host ignores them.
    pub dependencies: BTreeMap<String, String>,
    /// The SHA-256 of the text that it was read from.
    pub digest: Digest,
}

/// One type of node of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackNode {
    /// The type, which is unique in the pack.
    pub type_id: String,
    /// Its version.
    pub version: String,
    /// Its name for people.
    pub label: Option<String>,
    /// What it is for: a [`Category`], or another word, which the protocol's schema does not have.
    pub category: String,
    /// Its role, such as `pure`, `side-effect` or `human-input`; any word is allowed.
    pub role: String,
    /// Whether its outputs may be reused.
    pub cacheable: bool,
    /// Whether it has effects.
    pub side_effectful: bool,
    /// The outputs that clients see masked.
    pub sensitive_outputs: BTreeSet<String>,
}

names! {
    /// What a node is for, in the words of the protocol's schema.
    Category {
        /// `chat`
        Chat = "chat",
        /// `control`
        Control = "control",
        /// `data`
        Data = "data",
        /// `canvas`
        Canvas = "canvas",
        /// `coordination`
        Coordination = "coordination",
        /// `integration`
        Integration = "integration",
    }
}

/// `runtime.wasm` (RFC 0008), with additional limits of this host. If a limit is absent, that of the host
/// applies; it is also the maximum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WasmLimits {
    /// The version of the module's ABI.
    pub abi_version: Option<u32>,
    /// How many pages of memory (64 KiB each) it starts with.
    pub memory_pages_initial: Option<u32>,
    /// How many pages of memory (64 KiB each) it may have.
    pub memory_pages_max: Option<u32>,
    /// Longest invocation, in milliseconds, from 1.
    pub max_execution_ms: Option<u64>,
    /// Most fuel of an invocation, in Wasmtime's units, from 1.
    pub fuel: Option<u64>,
}

impl Manifest {
    /// Reads a manifest from its JSON.
    ///
    /// # Errors
    /// The manifest is invalid, or the pack needs what this host does not provide: at least one
    /// problem, each with its place in the text.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        document::parse(text, MANIFEST_MAX_BYTES, "the manifest", |fields, _| {
            Self::read(fields, Digest::of(text.as_bytes()))
        })
    }

    fn read(fields: &Fields<'_>, digest: Digest) -> Option<Self> {
        fields.one_of("kind", &["node"]);
        let name = fields.required_name("name", ID_MAX_BYTES);
        fields.patterned("name", "it as `vendor.ORGANISATION.PACK`", is_pack_name);
        let version = fields.required_name("version", ID_MAX_BYTES);
        fields.patterned("version", "it as `1.2.3`", is_version);
        let description = fields.prose("description", PROSE_MAX_BYTES);
        fields.characters("description", 1_024);
        for key in ["author", "homepage", "repository"] {
            fields.prose(key, PROSE_MAX_BYTES);
        }
        for keyword in fields.texts("keywords", 50) {
            if keyword.len() > 64 {
                let keyword = quoted(keyword);
                fields.report("keywords", format!("{keyword} has more than 64 bytes; shorten it"));
            }
        }
        fields.required("engines");
        if let Some(engines) = fields.open_child("engines", "`engines`") {
            engines.required_text("openwop");
        }
        let nodes = nodes(fields);
        fields.required("runtime");
        let (entry, wasm) = fields.child("runtime", "the runtime", runtime).unzip();
        requirement::of_host(fields);
        requirement::signature(fields);
        fields.child("connector", "the connector", |connector| {
            let types: Vec<&str> = nodes.iter().map(|node| node.type_id.as_str()).collect();
            requirement::of_connector(connector, &types);
        });
        let license = fields.prose("license", PROSE_MAX_BYTES);
        let dependencies = dependencies(fields);
        Some(Self {
            name: name?.to_owned(),
            version: version?.to_owned(),
            description,
            license,
            nodes,
            entry: entry??,
            wasm: wasm?,
            dependencies,
            digest,
        })
    }

    /// The node of this type.
    #[must_use]
    pub fn node(&self, type_id: &str) -> Option<&PackNode> {
        self.nodes.iter().find(|node| node.type_id == type_id)
    }

    /// Whether nodes of this type have no effects, so that a replay executes them again; false for types
    /// that the pack does not have.
    #[must_use]
    pub fn is_pure(&self, type_id: &str) -> bool {
        self.node(type_id).is_some_and(PackNode::is_pure)
    }
}

impl PackNode {
    /// Whether it has no effects: its role is `pure` or it is cacheable, and it is not declared
    /// side-effectful.
    #[must_use]
    pub fn is_pure(&self) -> bool {
        (self.role == "pure" || self.cacheable) && !self.side_effectful
    }
}

/// Whether it is `core`, `vendor`, `community` or `private`, followed by two or more names.
fn is_pack_name(name: &str) -> bool {
    let part = |has_upper| Pattern { form: "", extra: "_-", has_upper };
    let mut parts = name.split('.');
    let scope = parts.next().unwrap_or_default();
    let owner = parts.next().unwrap_or_default();
    let mut rest = parts.peekable();
    matches!(scope, "core" | "vendor" | "community" | "private")
        && part(false).matches(owner)
        && rest.peek().is_some()
        && rest.all(|name| part(true).matches(name))
}

/// Whether it is a version (Semantic Versioning): three numbers, and optional parts after `-` and `+`.
fn is_version(version: &str) -> bool {
    let (rest, build) = version.split_once('+').unwrap_or((version, "0"));
    let (numbers, before) = rest.split_once('-').unwrap_or((rest, "0"));
    let words = |text: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        !text.is_empty() && text.chars().all(fits)
    };
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers: Vec<&str> = numbers.split('.').collect();
    numbers.len() == 3 && numbers.into_iter().all(number) && words(before) && words(build)
}

fn dependencies(fields: &Fields<'_>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (name, path, version) in fields.named("dependencies", LISTED_MAX) {
        match version.as_str() {
            Some(version) => drop(found.insert(name.to_owned(), version.to_owned())),
            None => fields.out.add(path, "a version must be a string"),
        }
    }
    found
}

fn nodes(fields: &Fields<'_>) -> Vec<PackNode> {
    let listed = fields.items("nodes", PACK_NODES_MAX);
    if fields.value("nodes").is_none_or(|nodes| nodes.as_array().is_some_and(Vec::is_empty)) {
        let what = match fields.value("agents") {
            Some(_) => "the pack has agents alone, and this host runs none",
            None => "the pack has no nodes; list them in `nodes`",
        };
        fields.out.add("", what);
    }
    fields.list("agents");
    let mut types = BTreeSet::new();
    let mut nodes = Vec::new();
    for (path, value) in listed {
        let Some(node) = PackNode::read(value, path.clone(), fields.out) else { continue };
        if !types.insert(node.type_id.clone()) {
            let type_id = quoted(&node.type_id);
            let what = format!("another node of the pack is of type {type_id}; remove one of them");
            fields.out.add(under(&path, "typeId"), what);
        }
        nodes.push(node);
    }
    nodes
}

impl PackNode {
    fn read(value: &Value, path: String, out: &Problems) -> Option<Self> {
        Fields::closed(value, path, "the node", out, |fields| {
            let type_id = fields.required_identifier("typeId", ID_MAX_BYTES, &TYPE_ID);
            let version = fields.required_name("version", ID_MAX_BYTES);
            let label = fields.name("label", PROSE_MAX_BYTES);
            fields.prose("description", PROSE_MAX_BYTES);
            // Published packs also have other words, such as `examples`.
            let category = fields.required_name("category", ID_MAX_BYTES);
            let role = fields.required_name("role", ID_MAX_BYTES);
            let capabilities = fields.unique_texts("capabilities", LISTED_MAX);
            for capability in &capabilities {
                let known = ["streamable", "cacheable", "side-effectful", "mcp-exportable"];
                if !known.contains(capability) {
                    let hint = out.hint(capability, known);
                    let what = format!("no capability is named {}; {hint}", quoted(capability));
                    fields.report("capabilities", what);
                }
            }
            check_ignored(fields);
            requirement::of_node(fields);
            let sensitive_outputs = sensitive_outputs(fields);
            Some(Self {
                label: label.map(str::to_owned),
                cacheable: capabilities.contains("cacheable"),
                side_effectful: capabilities.contains("side-effectful"),
                sensitive_outputs,
                type_id: type_id?.to_owned(),
                version: version?.to_owned(),
                category: category?.to_owned(),
                role: role?.to_owned(),
            })
        })?
    }
}

/// Checks what this host does not use.
fn check_ignored(fields: &Fields<'_>) {
    for key in ["configSchemaRef", "inputSchemaRef", "outputSchemaRef", "envelopeContractRef"] {
        fields.text(key);
    }
    fields.child("artifact", "the artifact", |artifact| {
        artifact.text("typeId");
        artifact.one_of("syncOn", &["completion", "approval", "manual"]);
        artifact.flag("supportsCheckpoint");
    });
    fields.child("mcp", "`mcp`", |mcp| {
        mcp.flag("exposeAsTool");
        mcp.text("toolName");
    });
}

fn sensitive_outputs(node: &Fields<'_>) -> BTreeSet<String> {
    let outputs = node.named("outputs", LISTED_MAX).into_iter();
    let is_sensitive = |path, output| {
        Fields::of(output, path, "the output", node.out)
            .is_some_and(|output| output.flag("sensitive"))
    };
    outputs
        .filter_map(|(name, path, output)| is_sensitive(path, output).then(|| name.to_owned()))
        .collect()
}

/// The entry, and the limits.
fn runtime(fields: &Fields<'_>) -> (Option<String>, WasmLimits) {
    if let Some(language) = fields.required_text("language")
        && language != "wasm"
    {
        let what = format!(
            "this host runs packs of language `wasm` (core modules) alone, and this is {}",
            quoted(language)
        );
        fields.report("language", what);
    }
    if let Some(format) = fields.text("format")
        && format != "wasm"
    {
        fields.report("format", format!("the format must be `wasm`, and is {}", quoted(format)));
    }
    fields.text("minRuntimeVersion");
    requirement::primitives(fields);
    let limits = fields.child("wasm", "`wasm`", limits);
    (entry(fields), limits.unwrap_or_default())
}

fn entry(fields: &Fields<'_>) -> Option<String> {
    if fields.value("entry").is_none() {
        return Some(DEFAULT_ENTRY.to_owned());
    }
    let entry = fields.name("entry", ENTRY_MAX_BYTES)?;
    let path = Path::new(entry.strip_prefix("./").unwrap_or(entry));
    let plain = |one: Component<'_>| matches!(one, Component::Normal(_));
    // A path on another system must not be a name on this one.
    if entry.contains(['\\', ':']) || !path.components().all(plain) {
        let what = format!(
            "the entry {} must be a path inside the pack's folder, without `..`, such as \
             `{DEFAULT_ENTRY}`",
            quoted(entry)
        );
        fields.report("entry", what);
        return None;
    }
    Some(path.to_str()?.to_owned())
}

fn limits(fields: &Fields<'_>) -> WasmLimits {
    let small = |key, least, most: u32| {
        fields.whole(key, least..=u64::from(most)).and_then(|number| u32::try_from(number).ok())
    };
    let limits = WasmLimits {
        abi_version: small("abiVersion", 0, u32::MAX),
        memory_pages_initial: small("memoryPagesInitial", 0, MEMORY_PAGES_MAX),
        memory_pages_max: small("memoryPagesMax", 1, MEMORY_PAGES_MAX),
        max_execution_ms: fields.whole("maxExecutionMs", 1..=MAX_BUDGET_MS),
        fuel: fields.whole("fuel", 1..=u64::MAX),
    };
    if let (Some(initial), Some(max)) = (limits.memory_pages_initial, limits.memory_pages_max)
        && initial > max
    {
        let what = format!("the module begins with {initial} pages of memory, of at most {max}");
        fields.report("memoryPagesInitial", what);
    }
    limits
}

#[cfg(test)]
mod tests;
