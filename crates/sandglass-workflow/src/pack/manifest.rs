//! `pack.json`: which nodes a pack has, which module runs them, and within what.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use sandglass_model::limit::MAX_BUDGET_MS;
use serde_json::Value;

use super::requirement;
use crate::definition::{Digest, ID_MAX_BYTES, PROSE_MAX_BYTES, is_type_id};
use crate::document::{placed, read};
use crate::fields::{Fields, Upper, is_identifier};
use crate::names::names;
use crate::problem::{Problem, Problems, quoted, under};

/// Largest manifest, in bytes.
pub const MANIFEST_MAX_BYTES: usize = 1 << 20;
/// Most nodes of a pack.
pub const PACK_NODES_MAX: usize = 1_000;
/// The module of a pack whose manifest names none.
pub const DEFAULT_ENTRY: &str = "module.wasm";
/// How the types of nodes begin that the protocol itself defines.
pub const CANONICAL_NODE_PREFIX: &str = "core.";
/// Most pages of memory (64 KiB each) that 32 bits can address: 4 GiB.
pub const MEMORY_PAGES_MAX: u32 = 65_536;

/// Longest path of an entry, in bytes.
const ENTRY_MAX_BYTES: usize = 1_024;
/// Most dependencies, keywords and outputs that are listed.
const LISTED_MAX: usize = 1_000;

/// A manifest that has been read and whose pack this host can run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Manifest {
    /// The pack's name, such as `vendor.acme.tools`.
    pub name: String,
    /// Its version, by Semantic Versioning.
    pub version: String,
    /// What it is for.
    pub description: Option<String>,
    /// Its licence, as an SPDX expression.
    pub license: Option<String>,
    /// Its nodes, in the order of the file; at least one.
    pub nodes: Vec<PackNode>,
    /// Its module: a path inside its folder, of plain names only.
    pub entry: String,
    /// What its module declares, and within what each of its runs has to stay.
    pub wasm: WasmLimits,
    /// The packs that it depends on, with their versions; nothing is done about them.
    pub dependencies: BTreeMap<String, String>,
    /// SHA-256 of the text that it was read from.
    pub digest: Digest,
}

/// One type of node of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackNode {
    /// The type, which no other node of the pack has.
    pub type_id: String,
    /// Its version.
    pub version: String,
    /// What people call it.
    pub label: Option<String>,
    /// What it is for.
    pub category: Category,
    /// What it does, such as `pure`, `side-effect` or `human-input`; any word is allowed.
    pub role: String,
    /// Whether what it puts out may be had again.
    pub cacheable: bool,
    /// Whether it has effects.
    pub side_effectful: bool,
    /// The outputs whose values are masked wherever they are shown.
    pub sensitive_outputs: BTreeSet<String>,
}

names! {
    /// What a node is for.
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

/// What `runtime.wasm` says (RFC 0008), with limits of this host's own beside it. What isn't
/// given is the host's to say, and its own limits hold as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WasmLimits {
    /// The version of the ABI that the module has.
    pub abi_version: Option<u32>,
    /// How many pages of memory (64 KiB each) it begins with.
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
    /// What is wrong with it, or what the pack needs that this host doesn't give; at least one
    /// problem, each with its place in the text.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let value = read(text, MANIFEST_MAX_BYTES)?;
        let mut out = Problems::default();
        match whole(&value, text, &mut out) {
            Some(manifest) if out.is_empty() => Ok(manifest),
            _ => Err(placed(out.into_vec(), text)),
        }
    }

    /// The node of this type.
    #[must_use]
    pub fn node(&self, type_id: &str) -> Option<&PackNode> {
        self.nodes.iter().find(|node| node.type_id == type_id)
    }

    /// Whether nodes of this type have no effects, so that a replay runs them again; no for
    /// types that the pack doesn't have.
    #[must_use]
    pub fn is_pure(&self, type_id: &str) -> bool {
        self.node(type_id).is_some_and(PackNode::is_pure)
    }

    /// Where the module is of the pack in `folder`: symbolic links are followed, and lead to
    /// a regular file in that folder.
    ///
    /// # Errors
    /// There is no such file, or it is outside of the folder.
    pub fn module(&self, folder: &Path) -> Result<PathBuf, Problem> {
        let entry = quoted(&self.entry);
        let wrong = |what: String| Problem::new(ENTRY_POINTER, what);
        let folder = folder
            .canonicalize()
            .map_err(|error| wrong(format!("the pack's folder can't be found: {error}")))?;
        let file = folder
            .join(&self.entry)
            .canonicalize()
            .map_err(|error| wrong(format!("the entry {entry} can't be found: {error}")))?;
        if !file.starts_with(&folder) {
            let what = "leads out of the pack's folder by a symbolic link; put the file there";
            return Err(wrong(format!("the entry {entry} {what}")));
        }
        match file.metadata() {
            Ok(metadata) if metadata.is_file() => Ok(file),
            Ok(_) => Err(wrong(format!("the entry {entry} is no regular file"))),
            Err(error) => Err(wrong(format!("the entry {entry} can't be read: {error}"))),
        }
    }
}

/// Where the entry is named.
const ENTRY_POINTER: &str = "/runtime/entry";

impl PackNode {
    /// Whether it has no effects: its role is `pure` or it is cacheable, and it isn't said to
    /// be side-effectful.
    #[must_use]
    pub fn is_pure(&self) -> bool {
        (self.role == "pure" || self.cacheable) && !self.side_effectful
    }
}

const KEYS: &[&str] = &[
    "kind",
    "name",
    "version",
    "description",
    "author",
    "license",
    "homepage",
    "repository",
    "keywords",
    "engines",
    "dependencies",
    "peerDependencies",
    "peerDependenciesMeta",
    "nodes",
    "agents",
    "runtime",
    "signing",
    "connector",
];

fn whole(value: &Value, text: &str, out: &mut Problems) -> Option<Manifest> {
    let fields = Fields::of(value, "", "the manifest", out)?;
    fields.only(KEYS, out);
    fields.one_of("kind", &["node"], out);
    let name = fields.required_name("name", ID_MAX_BYTES, out);
    fields.patterned("name", "it as `vendor.ORGANISATION.PACK`", is_pack_name, out);
    let version = fields.required_name("version", ID_MAX_BYTES, out);
    fields.patterned("version", "it as `1.2.3`", is_version, out);
    let description = fields.prose("description", PROSE_MAX_BYTES, out);
    fields.characters("description", 1_024, out);
    for key in ["author", "homepage", "repository"] {
        fields.prose(key, PROSE_MAX_BYTES, out);
    }
    for keyword in fields.texts("keywords", 50, out) {
        if keyword.len() > 64 {
            out.add("/keywords", format!("{} has more than 64 bytes; shorten it", quoted(keyword)));
        }
    }
    fields.required("engines", out);
    if let Some(engines) = fields.fields("engines", "`engines`", out) {
        engines.required_text("openwop", out);
    }
    let nodes = nodes(&fields, out);
    fields.required("runtime", out);
    let runtime = fields.fields("runtime", "the runtime", out);
    let (entry, wasm) = runtime.map(|runtime| self::runtime(&runtime, out)).unzip();
    requirement::of_host(&fields, out);
    requirement::signature(&fields, out);
    if let Some(connector) = fields.fields("connector", "the connector", out) {
        let types: Vec<&str> = nodes.iter().map(|node| node.type_id.as_str()).collect();
        requirement::of_connector(&connector, &types, out);
    }
    Some(Manifest {
        name: name?.to_owned(),
        version: version?.to_owned(),
        description,
        license: fields.prose("license", PROSE_MAX_BYTES, out),
        nodes,
        entry: entry??,
        wasm: wasm?,
        dependencies: dependencies(&fields, out),
        digest: Digest::of(text.as_bytes()),
    })
}

/// `core`, `vendor`, `community` or `private`, then two names or more.
fn is_pack_name(name: &str) -> bool {
    let mut parts = name.split('.');
    let scope = parts.next().unwrap_or_default();
    let owner = parts.next().unwrap_or_default();
    let mut rest = parts.peekable();
    matches!(scope, "core" | "vendor" | "community" | "private")
        && is_identifier(owner, &['_', '-'], Upper::Refused)
        && rest.peek().is_some()
        && rest.all(|part| is_identifier(part, &['_', '-'], Upper::Allowed))
}

/// By Semantic Versioning: three numbers, `-` and `+` with more behind them.
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

fn dependencies(fields: &Fields<'_>, out: &mut Problems) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let Some(listed) = fields.fields("dependencies", "`dependencies`", out) else { return found };
    if listed.entries().count() > LISTED_MAX {
        out.add(listed.path, format!("a pack depends on at most {LISTED_MAX} others"));
        return found;
    }
    for (name, _) in listed.entries() {
        if let Some(version) = listed.text(name, out) {
            found.insert(name.to_owned(), version.to_owned());
        }
    }
    found
}

fn nodes(fields: &Fields<'_>, out: &mut Problems) -> Vec<PackNode> {
    let listed = fields.items("nodes", PACK_NODES_MAX, out);
    if listed.is_empty() && fields.value("nodes").is_none_or(|nodes| nodes.as_array().is_some()) {
        let what = match fields.value("agents") {
            Some(_) => "the pack has agents alone, and this host runs none",
            None => "the pack has no nodes; list them in `nodes`",
        };
        // A list that is too long is told already.
        if out.is_empty() || fields.value("nodes").is_none() {
            out.add("", what);
        }
    }
    fields.list("agents", out);
    let mut types = BTreeSet::new();
    let mut nodes = Vec::new();
    for (path, value) in listed {
        let Some(node) = PackNode::read(value, path.clone(), out) else { continue };
        if !types.insert(node.type_id.clone()) {
            let type_id = quoted(&node.type_id);
            let what = format!("another node of the pack is of type {type_id}; drop one of them");
            out.add(under(&path, "typeId"), what);
        }
        nodes.push(node);
    }
    nodes
}

const NODE_KEYS: &[&str] = &[
    "typeId",
    "version",
    "label",
    "description",
    "category",
    "role",
    "capabilities",
    "configSchemaRef",
    "inputSchemaRef",
    "outputSchemaRef",
    "outputs",
    "envelopeContractRef",
    "artifact",
    "mcp",
    "requiresSecrets",
    "requiredCredentials",
    "auth",
    "requiredModelCapabilities",
    "fallbackModel",
];

impl PackNode {
    fn read(value: &Value, path: String, out: &mut Problems) -> Option<Self> {
        let fields = Fields::of(value, path, "the node", out)?;
        fields.only(NODE_KEYS, out);
        let type_id = fields.required_name("typeId", ID_MAX_BYTES, out);
        let pattern = "a lower-case letter, then letters, digits, `.`, `_` and `-`";
        fields.patterned("typeId", pattern, is_type_id, out);
        let version = fields.required_name("version", ID_MAX_BYTES, out);
        let label = fields.name("label", PROSE_MAX_BYTES, out);
        fields.prose("description", PROSE_MAX_BYTES, out);
        let category = fields.required("category", out);
        let category = category.and_then(|_| fields.word("category", Category::WORDS, out));
        let role = fields.required_name("role", ID_MAX_BYTES, out);
        let capabilities = fields.unique_texts("capabilities", LISTED_MAX, out);
        for capability in &capabilities {
            let known = ["streamable", "cacheable", "side-effectful", "mcp-exportable"];
            if !known.contains(capability) {
                let hint = out.hint(capability, known);
                let what = format!("no capability is named {}; {hint}", quoted(capability));
                out.add(fields.under("capabilities"), what);
            }
        }
        let schemas =
            ["configSchemaRef", "inputSchemaRef", "outputSchemaRef", "envelopeContractRef"];
        for key in schemas {
            fields.text(key, out);
        }
        if let Some(artifact) = fields.fields("artifact", "the artifact", out) {
            artifact.only(&["typeId", "syncOn", "supportsCheckpoint"], out);
            artifact.text("typeId", out);
            artifact.one_of("syncOn", &["completion", "approval", "manual"], out);
            artifact.flag("supportsCheckpoint", out);
        }
        if let Some(mcp) = fields.fields("mcp", "`mcp`", out) {
            mcp.only(&["exposeAsTool", "toolName"], out);
            mcp.flag("exposeAsTool", out);
            mcp.text("toolName", out);
        }
        requirement::of_node(&fields, out);
        Some(Self {
            label: label.map(str::to_owned),
            cacheable: capabilities.contains("cacheable"),
            side_effectful: capabilities.contains("side-effectful"),
            sensitive_outputs: sensitive(&fields, out),
            type_id: type_id?.to_owned(),
            version: version?.to_owned(),
            category: category?,
            role: role?.to_owned(),
        })
    }
}

fn sensitive(node: &Fields<'_>, out: &mut Problems) -> BTreeSet<String> {
    let Some(outputs) = node.fields("outputs", "`outputs`", out) else { return BTreeSet::new() };
    if outputs.entries().count() > LISTED_MAX {
        out.add(outputs.path, format!("a node has at most {LISTED_MAX} outputs; list fewer"));
        return BTreeSet::new();
    }
    let mut found = BTreeSet::new();
    for (name, _) in outputs.entries() {
        let output = outputs.fields(name, "the output", out);
        if output.is_some_and(|output| output.flag("sensitive", out)) {
            found.insert(name.to_owned());
        }
    }
    found
}

/// The entry, and the limits.
fn runtime(fields: &Fields<'_>, out: &mut Problems) -> (Option<String>, WasmLimits) {
    let keys = ["language", "entry", "format", "minRuntimeVersion", "requires", "wasm"];
    fields.only(&keys, out);
    if let Some(language) = fields.required_text("language", out)
        && language != "wasm"
    {
        let what = format!(
            "this host runs packs of language `wasm` (core modules) alone, and this is {}",
            quoted(language)
        );
        out.add(fields.under("language"), what);
    }
    if let Some(format) = fields.text("format", out)
        && format != "wasm"
    {
        let what = format!("the format must be `wasm`, and is {}", quoted(format));
        out.add(fields.under("format"), what);
    }
    fields.text("minRuntimeVersion", out);
    requirement::primitives(fields, out);
    let wasm = fields.fields("wasm", "`wasm`", out);
    (entry(fields, out), wasm.map(|wasm| limits(&wasm, out)).unwrap_or_default())
}

fn entry(fields: &Fields<'_>, out: &mut Problems) -> Option<String> {
    if fields.value("entry").is_none() {
        return Some(DEFAULT_ENTRY.to_owned());
    }
    let entry = fields.name("entry", ENTRY_MAX_BYTES, out)?;
    let path = Path::new(entry.strip_prefix("./").unwrap_or(entry));
    let plain = |one: Component<'_>| matches!(one, Component::Normal(_));
    // What other systems read as a path must not be a name on this one.
    if entry.contains(['\\', ':']) || !path.components().all(plain) {
        let what = format!(
            "the entry {} must be a path inside the pack's folder, without `..`, such as \
             `{DEFAULT_ENTRY}`",
            quoted(entry)
        );
        out.add(fields.under("entry"), what);
        return None;
    }
    Some(path.to_str()?.to_owned())
}

fn limits(fields: &Fields<'_>, out: &mut Problems) -> WasmLimits {
    let keys = ["abiVersion", "memoryPagesInitial", "memoryPagesMax", "maxExecutionMs", "fuel"];
    fields.only(&keys, out);
    let small = |key, least, most: u32, out: &mut _| {
        let number = fields.whole(key, least..=u64::from(most), out);
        number.and_then(|number| u32::try_from(number).ok())
    };
    let limits = WasmLimits {
        abi_version: small("abiVersion", 0, u32::MAX, out),
        memory_pages_initial: small("memoryPagesInitial", 0, MEMORY_PAGES_MAX, out),
        memory_pages_max: small("memoryPagesMax", 1, MEMORY_PAGES_MAX, out),
        max_execution_ms: fields.whole("maxExecutionMs", 1..=MAX_BUDGET_MS, out),
        fuel: fields.whole("fuel", 1..=u64::MAX, out),
    };
    if let (Some(initial), Some(max)) = (limits.memory_pages_initial, limits.memory_pages_max)
        && initial > max
    {
        let what =
            format!("the module begins with {initial} pages of memory, and {max} are its most");
        out.add(fields.under("memoryPagesInitial"), what);
    }
    limits
}

#[cfg(test)]
mod tests;
