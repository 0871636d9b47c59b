//! A folder of spec files and the modules that they name, with their manifests: read completely, or
//! not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandglass_host::manifest::{self, Found, Manifests, module_beside};
use sandglass_host::{AskTarget, Manifest, Secret, TemplateKind, file, templates};
use sandglass_liveness::Spec;
use sandglass_liveness::spec::{
    Action, IntegrationKind, Name, SOURCE_MAX_BYTES, Strictness, spawn_cycles,
};
use sandglass_source::{Diagnostics, Finding, Severity, did_you_mean};

use crate::host_handlers::Module;

/// How the names of spec files end.
pub const SPEC_ENDING: &str = ".ioa.toml";

/// Most spec files of one folder: more types than any system needs.
pub const SPECS_MAX: usize = 1_000;

/// What a folder declares.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Its specs and their files, in the order of the file names.
    pub specs: Vec<(PathBuf, Spec)>,
    /// The modules that the specs name.
    pub sources: BTreeMap<String, ModuleSource>,
    /// What is valid but probably a mistake.
    pub warnings: Vec<Finding>,
}

/// Where a module comes from.
#[derive(Clone, Debug)]
pub enum ModuleSource {
    /// A manifest names it and declares its grants.
    Manifest(Box<Found>),
    /// There is only the file, so it has no grants.
    File(PathBuf),
}

/// A module of a folder, with its bytes.
#[derive(Clone, Debug)]
pub struct FolderModule {
    /// The name that specs give it.
    pub name: String,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// Its grants.
    pub manifest: Manifest,
}

impl FolderModule {
    fn new(name: &str, bytes: Vec<u8>, manifest: Manifest) -> Self {
        Self { name: name.to_owned(), bytes: bytes.into(), manifest }
    }
}

impl From<FolderModule> for (String, Module) {
    fn from(module: FolderModule) -> Self {
        (module.name, Module::new(module.bytes, module.manifest))
    }
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The folder, or a file in it, cannot be read.
    #[error(transparent)]
    File(#[from] file::Error),
    /// It contains no spec.
    #[error("there is no *{SPEC_ENDING} in `{}`", .0.display())]
    Empty(PathBuf),
    /// All mistakes in its files.
    #[error("{} mistakes in specs and manifests, the first in {}", .0.len(), first(.0))]
    Wrong(Vec<Finding>),
}

fn first(findings: &[Finding]) -> String {
    findings.first().map_or_else(String::new, |finding| {
        let at = &finding.diagnostic;
        format!("{}:{}:{}: {}", finding.path.display(), at.line, at.column, at.message)
    })
}

impl From<manifest::Error> for FolderError {
    fn from(error: manifest::Error) -> Self {
        match error {
            manifest::Error::File(error) => Self::File(error),
            manifest::Error::Wrong(findings) => Self::Wrong(findings),
        }
    }
}

impl Folder {
    /// Reads the `*.ioa.toml` of `folder`, its manifests ([`Manifests::find`]), and where the
    /// modules are that the specs name: in the manifest of that name, or else in the file of that
    /// name in the folder ([`module_beside`]). Modules are not read yet.
    ///
    /// # Errors
    /// A file is invalid or cannot be read.
    pub fn read(folder: &Path) -> Result<Self, FolderError> {
        Self::read_with(folder, Strictness::AsDeclared, Missing::Error)
    }

    /// As [`Folder::read`], to check the folder as strictly as `strictness` says. A missing module is
    /// an error in a strict spec, and a warning in any other.
    ///
    /// # Errors
    /// A file is invalid or cannot be read.
    pub fn check(folder: &Path, strictness: Strictness) -> Result<Self, FolderError> {
        let missing = match strictness {
            Strictness::AsDeclared => Missing::Default,
            Strictness::Strict => Missing::Error,
        };
        Self::read_with(folder, strictness, missing)
    }

    fn read_with(
        folder: &Path,
        strictness: Strictness,
        missing: Missing,
    ) -> Result<Self, FolderError> {
        let mut findings = Vec::new();
        let manifests = match Manifests::find(folder) {
            Ok(manifests) => manifests,
            Err(manifest::Error::Wrong(wrong)) => {
                findings.extend(wrong);
                Manifests::default()
            }
            Err(error) => return Err(error.into()),
        };
        let wrong_manifests = !findings.is_empty();
        let (mut specs, mut sources) = (Vec::new(), BTreeMap::new());
        for path in spec_paths(folder)? {
            let bytes = file::start(&path, SOURCE_MAX_BYTES as u64 + 1)?;
            let parsed = Spec::parse_bytes(&bytes, strictness);
            let source = String::from_utf8_lossy(&bytes);
            let mut diagnostics = parsed.diagnostics;
            if let Some(spec) = parsed.spec {
                // The manifest that is invalid may be the one of the module.
                if !wrong_manifests {
                    let places = (folder, &manifests);
                    diagnostics.extend(find_modules(places, &spec, missing, &mut sources));
                }
                specs.push((path.clone(), spec));
            }
            findings.extend(Finding::all_of(path, &source, diagnostics));
        }
        findings.extend(one_of_each_type(&specs));
        if !wrong_manifests {
            findings.extend(specs.iter().flat_map(|spec| ungranted_secrets(spec, &sources)));
        }
        let is_error = |finding: &Finding| finding.diagnostic.severity == Severity::Error;
        // The spec that is invalid may be the one of the spawned type.
        if !findings.iter().any(is_error) {
            findings.extend(specs.iter().flat_map(|spec| unknown_spawns(spec, &specs)));
            findings.extend(specs.iter().flat_map(|spec| unknown_reads(spec, &specs)));
            findings.extend(endless_spawns(&specs));
        }
        if findings.iter().any(is_error) {
            return Err(FolderError::Wrong(findings));
        }
        let unused = manifests.iter().filter(|found| !sources.contains_key(found.file().name()));
        findings.extend(unused.map(|found| {
            let file = found.file();
            let message = format!("no spec of the folder has the module `{}`", file.name());
            found.warning(file.name_span(), message, "a spec names it as its `module`")
        }));
        Ok(Self { specs, sources, warnings: findings })
    }

    /// Reads the modules and their grants, with the value of each granted secret from `secret`,
    /// whose error states what to do about a missing value.
    ///
    /// # Errors
    /// All modules that cannot be read, and each granted secret without a value once.
    pub fn modules(
        &self,
        secret: &dyn Fn(&str) -> Result<Secret, String>,
    ) -> Result<Vec<FolderModule>, FolderError> {
        let (mut modules, mut findings) = (Vec::new(), Vec::new());
        // One secret without a value is one mistake, however many manifests grant it.
        let mut missing = BTreeSet::new();
        for (name, source) in &self.sources {
            match source {
                ModuleSource::File(path) => {
                    let manifest = Manifest::named(name.as_str());
                    let bytes = file::read(path, manifest.module_max_bytes())?;
                    modules.push(FolderModule::new(name, bytes, manifest));
                }
                ModuleSource::Manifest(found) => match (found.module(), found.manifest(secret)) {
                    (Ok(bytes), Ok(manifest)) => {
                        modules.push(FolderModule::new(name, bytes, manifest));
                    }
                    (bytes, manifest) => {
                        findings.extend(bytes.err().map(|finding| *finding));
                        let mut of_secrets = manifest.err().unwrap_or_default();
                        of_secrets.retain(|one| missing.insert(one.diagnostic.message.clone()));
                        findings.extend(of_secrets);
                    }
                },
            }
        }
        if findings.is_empty() { Ok(modules) } else { Err(FolderError::Wrong(findings)) }
    }
}

/// What a missing module means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// The folder cannot be used.
    Error,
    /// A strict spec is wrong; any other loads, but its folder cannot be used.
    Default,
}

/// Notes where the modules of a spec are, and returns what is wrong with it.
fn find_modules(
    (folder, manifests): (&Path, &Manifests),
    spec: &Spec,
    missing: Missing,
    sources: &mut BTreeMap<String, ModuleSource>,
) -> Vec<sandglass_source::Diagnostic> {
    let mut out = Diagnostics::new(&spec.source);
    out.set_strict(spec.is_strict || missing == Missing::Error);
    let of_modules = spec.integrations.values().filter(|one| one.kind == IntegrationKind::Wasm);
    let mut seen = BTreeSet::new();
    for name in of_modules.map(|one| &one.module).filter(|name| seen.insert(name.as_str())) {
        if sources.contains_key(name.as_str()) {
            continue;
        }
        let found = match manifests.named(name) {
            Some(found) => Some(ModuleSource::Manifest(Box::new(found.clone()))),
            None => module_beside(folder, name).map(ModuleSource::File),
        };
        match found {
            Some(source) => drop(sources.insert(name.to_string(), source)),
            None => no_module(name, manifests, missing, &mut out),
        }
    }
    out.finish()
}

/// Reports spawned entities whose type has no spec in the folder, or has one without their first
/// action. Their spec may be loaded from elsewhere, so only a strict spec must not have them.
fn unknown_spawns((path, spec): &(PathBuf, Spec), specs: &[(PathBuf, Spec)]) -> Vec<Finding> {
    let mut out = Diagnostics::new(&spec.source);
    out.set_strict(spec.is_strict);
    for spawn in spec.actions.values().flat_map(Action::spawns) {
        let name = &spawn.entity_type;
        let Some((_, spawned)) = specs.iter().find(|(_, other)| other.name == *name) else {
            let message =
                format!("no spec of the folder is of the type `{name}`, which is spawned");
            let help = did_you_mean(name, specs.iter().map(|(_, other)| other.name.as_str()));
            out.report_default(name.span(), message, help);
            continue;
        };
        let first = spawn.initial_action.as_ref();
        if let Some(action) = first.filter(|action| !spawned.actions.contains_key(action.as_str()))
        {
            let message = format!("`{name}`, which is spawned, has no action `{action}`");
            let known = spawned.actions.values().map(|action| action.name.as_str());
            out.report_default(action.span(), message, did_you_mean(action, known));
        }
    }
    Finding::all_of(path.as_path(), &spec.source, out.finish()).collect()
}

/// Reports guards that read the state of entities whose type has no spec in the folder, or compare it with a
/// state that the spec does not declare. As for spawned types, only a strict spec must not have them.
fn unknown_reads((path, spec): &(PathBuf, Spec), specs: &[(PathBuf, Spec)]) -> Vec<Finding> {
    let mut out = Diagnostics::new(&spec.source);
    out.set_strict(spec.is_strict);
    let of_actions = spec.actions.values().map(|one| (&one.name, &one.guard));
    let of_triggers = spec.integrations.values().map(|one| (&one.name, &one.guard));
    for (name, guard) in of_actions.chain(of_triggers) {
        let Some(guard) = guard else { continue };
        guard.compared_states(&mut |others, state| {
            let of = &others.entity_type;
            let Some((_, read)) = specs.iter().find(|(_, other)| *other.name == **of) else {
                if state.is_none() {
                    let message = format!(
                        "no spec of the folder is of the type `{of}`, whose state the guard of \
                         `{name}` reads"
                    );
                    let known = specs.iter().map(|(_, other)| other.name.as_str());
                    out.report_default(name.span(), message, did_you_mean(of, known));
                }
                return;
            };
            let unknown = state.filter(|state| read.states.iter().all(|one| **one != **state));
            if let Some(state) = unknown {
                let message = format!(
                    "`{of}`, whose state the guard of `{name}` reads, has no state `{state}`"
                );
                let known = read.states.iter().map(Name::as_str);
                out.report_default(name.span(), message, did_you_mean(state, known));
            }
        });
    }
    Finding::all_of(path.as_path(), &spec.source, out.finish()).collect()
}

/// Reports types that spawn each other without end.
fn endless_spawns(specs: &[(PathBuf, Spec)]) -> Vec<Finding> {
    let all: Vec<&Spec> = specs.iter().map(|(_, spec)| spec).collect();
    let found = spawn_cycles(&all).into_iter().flat_map(|(at, diagnostic)| {
        let (path, spec) = &specs[at];
        Finding::all_of(path.as_path(), &spec.source, vec![diagnostic])
    });
    found.collect()
}

/// Reports that a spec names a module that its folder does not contain.
fn no_module(name: &Name, manifests: &Manifests, missing: Missing, out: &mut Diagnostics<'_>) {
    let near = manifests.iter().map(|found| found.file().name());
    let hint = if near.clone().next().is_some() {
        format!(" ({})", did_you_mean(name, near).text())
    } else {
        String::new()
    };
    let help = format!(
        "put `{name}.wasm` or `{name}.wat` beside the spec, or an {} with this `name`{hint}",
        manifest::FILE_NAME
    );
    let consequence = match missing {
        Missing::Error => "",
        Missing::Default => ", without which `up` and `play` refuse the folder",
    };
    out.report_default(name.span(), format!("there is no module `{name}`{consequence}"), help);
}

/// Reports each secret in the configuration of a spec's integrations that is not granted to their
/// modules.
fn ungranted_secrets(
    (path, spec): &(PathBuf, Spec),
    sources: &BTreeMap<String, ModuleSource>,
) -> Vec<Finding> {
    let mut out = Diagnostics::new(&spec.source);
    let of_modules = spec.integrations.values().filter(|one| one.kind == IntegrationKind::Wasm);
    for integration in of_modules {
        let module = &integration.module;
        let granted = |name: &str| match sources.get(module.as_str()) {
            Some(ModuleSource::Manifest(found)) => {
                found.file().secrets.iter().any(|secret| secret.as_str() == name)
            }
            Some(ModuleSource::File(_)) | None => false,
        };
        let templates = integration.config.values().flat_map(|value| templates(value));
        let secrets = templates.filter(|one| one.kind == TemplateKind::Secret);
        let missing: BTreeSet<&str> =
            secrets.map(|secret| secret.name).filter(|name| !granted(name)).collect();
        if missing.is_empty() {
            continue;
        }
        let named = |quote: char| {
            let named = missing.iter().map(|name| format!("{quote}{name}{quote}"));
            named.collect::<Vec<_>>().join(", ")
        };
        let message = format!(
            "integration `{}` needs secrets that no manifest grants to `{module}`: {}",
            integration.name,
            named('`')
        );
        let help = format!(
            "its dispatches are rejected: add `secrets = [{}]` to `[grants]` of its {}",
            named('"'),
            manifest::FILE_NAME
        );
        out.warning(module.span(), message, help);
    }
    Finding::all_of(path, &spec.source, out.finish()).collect()
}

/// The paths of a folder's specs, in order.
fn spec_paths(folder: &Path) -> Result<Vec<PathBuf>, FolderError> {
    let paths = file::named_in(folder, |name| name.ends_with(SPEC_ENDING))?;
    if paths.len() > SPECS_MAX {
        let (path, max) = (folder.to_owned(), SPECS_MAX);
        return Err(file::Error::TooMany { path, max, what: "specs" }.into());
    }
    if paths.is_empty() { Err(FolderError::Empty(folder.to_owned())) } else { Ok(paths) }
}

/// The diagnostic for two specs of one type.
#[must_use]
pub fn one_of_each_type(specs: &[(PathBuf, Spec)]) -> Vec<Finding> {
    let (mut first, mut findings) = (BTreeMap::new(), Vec::new());
    for (path, spec) in specs {
        let Some(other) = first.insert(spec.name.as_str(), path) else { continue };
        let mut out = Diagnostics::new(&spec.source);
        let message = format!("`{}` is the type of the spec in `{}`", spec.name, other.display());
        out.error_with_help(spec.name.span(), message, "give each a name of its own");
        findings.extend(Finding::all_of(path.as_path(), &spec.source, out.finish()));
    }
    findings
}

/// Whether `name` is that of a call to another entity: `ask:TYPE.ACTION`, or `signal:` and a grant.
fn names_target(name: &str) -> bool {
    let is_target = |text: &str| text.parse::<AskTarget>().is_ok();
    match name.split_once(':') {
        Some(("ask", target)) => !target.ends_with(".*") && is_target(target),
        Some(("signal", target)) => is_target(target),
        _ => false,
    }
}

/// The functions whose calls are named after another entity, so that a limit on them has no effect.
const NAMED_AFTER_TARGETS: [&str; 4] = [
    "host_ask",
    "host_signal",
    "sandglass:integration/ask.ask",
    "sandglass:integration/signal.send",
];

/// Reports each host function that `spec`, the spec in the file at `path`, limits and that is not
/// among the `known` functions in which a handler can wait ([`Host::timed_functions`]). Calls that are
/// named after another entity's action or signal are limited by that name.
///
/// [`Host::timed_functions`]: sandglass_host::Host::timed_functions
#[must_use]
pub fn unknown_timed_functions(path: &Path, spec: &Spec, known: &BTreeSet<&str>) -> Vec<Finding> {
    let mut out = Diagnostics::new(&spec.source);
    for name in &spec.timed_functions {
        if NAMED_AFTER_TARGETS.contains(&name.as_str()) {
            let message = format!("calls of `{name}` are named after their target");
            let help = "write `ask:TYPE.ACTION`, or `signal:` and the grant of the manifest";
            out.error_with_help(name.span(), message, help);
            continue;
        }
        if known.contains(name.as_str()) || names_target(name) {
            continue;
        }
        let message = format!("there is no host function `{name}` that a guest could wait in");
        let help = did_you_mean(name, known.iter().copied());
        out.error_with_help(name.span(), message, help);
    }
    Finding::all_of(path, &spec.source, out.finish()).collect()
}
