//! Checks integrations as a host would: the manifest, its module, and the specs that name it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use sandglass_host::manifest::{self, Found, Manifests};
use sandglass_host::{FixedSecrets, Host, Integration, Manifest, Settings, file};
use sandglass_liveness::Spec;
use sandglass_liveness::spec::Strictness;
use sandglass_model::Rejection;
use sandglass_runtime::{Folder, FolderError, ModuleSource, unknown_timed_functions};
use sandglass_source::{Diagnostics, Finding, did_you_mean};

use crate::compiling;

/// Checks modules in a host, which is created for the first of them.
#[derive(Debug, Default)]
pub(crate) struct Integrations {
    compiling: compiling::CachedArguments,
    host: Option<Host>,
}

impl Integrations {
    /// Limits the compilation of each module by `compiling`.
    pub(crate) fn new(compiling: compiling::CachedArguments) -> Self {
        Self { compiling, ..Self::default() }
    }

    /// Checks a manifest and its module.
    ///
    /// # Errors
    /// Errors if the file cannot be read.
    pub(crate) fn check_manifest(&mut self, path: &Path) -> anyhow::Result<Vec<Finding>> {
        Found::read(path).map_or_else(findings, |found| self.check_module(&found))
    }

    /// Checks a module with the manifest beside it that names it; without one, nothing is granted.
    ///
    /// # Errors
    /// Errors if a file cannot be read.
    pub(crate) fn check_file(&mut self, path: &Path) -> anyhow::Result<Vec<Finding>> {
        match manifest::beside(path) {
            Ok(Some(found)) => self.check_module(&found),
            Ok(None) => {
                let manifest = Manifest::default();
                let bytes = file::read(path, manifest.module_max_bytes())?;
                let rejected = self.load(&bytes, manifest)?.err();
                Ok(rejected
                    .map(|why| {
                        Finding::of_a_whole_file(path, &why.message).coded(why.kind.as_str())
                    })
                    .into_iter()
                    .collect())
            }
            Err(error) => findings(error),
        }
    }

    /// Checks a folder of specs and integrations, or of either alone.
    ///
    /// # Errors
    /// Errors if a file cannot be read, or there is neither.
    pub(crate) fn check_folder(
        &mut self,
        path: &Path,
        strictness: Strictness,
    ) -> anyhow::Result<Vec<Finding>> {
        let folder = match Folder::check(path, strictness) {
            Ok(folder) => folder,
            Err(FolderError::Wrong(findings)) => return Ok(findings),
            Err(FolderError::Empty(folder)) => return self.check_manifests(&folder),
            Err(error) => return Err(error.into()),
        };
        let mut findings = folder.warnings;
        for (path, spec) in &folder.specs {
            findings.extend(find_unlimited(path, spec));
            findings.extend(self.check_timed(path, spec)?);
        }
        for (name, source) in &folder.sources {
            match source {
                ModuleSource::Manifest(found) => {
                    findings.extend(self.check_module(found)?);
                    findings.extend(find_warned_at_start(found, &folder.specs));
                }
                ModuleSource::File(file) => {
                    let manifest = Manifest::named(name.as_str());
                    let bytes = file::read(file, manifest.module_max_bytes())?;
                    if let Err(rejection) = self.load(&bytes, manifest)? {
                        findings.extend(find_rejected_file(name, &folder.specs, &rejection));
                    }
                }
            }
        }
        Ok(findings)
    }

    /// Checks that the host functions exist whose calls `spec`, the file at `path`, limits.
    ///
    /// # Errors
    /// Errors if no host can be started.
    pub(crate) fn check_timed(&mut self, path: &Path, spec: &Spec) -> anyhow::Result<Vec<Finding>> {
        if spec.timed_functions.is_empty() {
            return Ok(Vec::new());
        }
        let known = self.host()?.timed_functions().map_err(|why| anyhow!(why.message))?;
        Ok(unknown_timed_functions(path, spec, &known))
    }

    /// Checks the integrations of a folder without specs.
    fn check_manifests(&mut self, folder: &Path) -> anyhow::Result<Vec<Finding>> {
        let manifests = match Manifests::find(folder) {
            Ok(manifests) => manifests,
            Err(error) => return findings(error),
        };
        if manifests.iter().next().is_none() {
            bail!("there is neither a spec nor a manifest in `{}`", folder.display());
        }
        let mut findings = Vec::new();
        for found in manifests.iter() {
            findings.extend(self.check_module(found)?);
        }
        Ok(findings)
    }

    fn check_module(&mut self, found: &Found) -> anyhow::Result<Vec<Finding>> {
        let bytes = match found.module() {
            Ok(bytes) => bytes,
            Err(finding) => return Ok(vec![*finding]),
        };
        // Its secrets need values only where it will run.
        let manifest = found.file().manifest(Arc::new(FixedSecrets::default()));
        Ok(match self.load(&bytes, manifest)? {
            Ok(integration) => useless_timeouts(found, &integration),
            Err(rejection) => vec![found.rejected(&rejection)],
        })
    }

    fn load(
        &mut self,
        bytes: &[u8],
        manifest: Manifest,
    ) -> anyhow::Result<Result<Integration, Rejection>> {
        Ok(self.host()?.load(bytes, manifest))
    }

    fn host(&mut self) -> anyhow::Result<&Host> {
        Ok(match &mut self.host {
            Some(host) => host,
            none => none.insert(host(&self.compiling)?),
        })
    }
}

/// A spec with handlers and without limits, whose entities are therefore not sessions.
pub(crate) fn find_unlimited(path: &Path, spec: &Spec) -> Option<Finding> {
    if spec.limits.is_some() || spec.integrations.is_empty() {
        return None;
    }
    let mut out = Diagnostics::new(&spec.source);
    // Short enough for one line of the report.
    let message = "handlers without `[limits]`: no session, no `run_timeout` or other stop limit; \
                   only their silence is warned of, after 600 s";
    out.warning(spec.name.span(), message, "add `[limits]`; an empty section has all defaults");
    Finding::all_of(path, &spec.source, out.finish()).next()
}

/// The findings of a manifest that has errors.
///
/// # Errors
/// Errors if it cannot be read.
fn findings(error: manifest::Error) -> anyhow::Result<Vec<Finding>> {
    match error {
        manifest::Error::Wrong(findings) => Ok(findings),
        error => Err(error.into()),
    }
}

/// A host for checks, whose limits no manifest exceeds.
pub(crate) fn host(compiling: &compiling::CachedArguments) -> anyhow::Result<Host> {
    let settings = Settings {
        max_runs: 1,
        guest_threads: 1,
        max_memory_bytes: u64::from(u32::MAX) + 1,
        ..Settings::default()
    };
    let host = compiling.build(|compiled_cache_dir, helper| {
        let settings = Settings { compiled_cache_dir, ..settings.clone() };
        Host::builder().settings(settings).compile_in(helper).build()
    });
    host.context("can't start a host to check modules")
}

/// Timeouts without effect: of functions that the module cannot wait in, or that take none.
fn useless_timeouts(found: &Found, integration: &Integration) -> Vec<Finding> {
    let waits_in = integration.waits_in();
    let is_wasi = |name: &str| name.starts_with("wasi");
    let timed = found.file().timed_functions.iter();
    timed
        .filter(|name| {
            is_wasi(name.as_str()) || !waits_in.iter().any(|waits| *waits == name.as_str())
        })
        .map(|name| {
            if is_wasi(name.as_str()) {
                let message = format!(
                    "`{name}` is a function of WASI, whose calls end only with the handler"
                );
                return found.warning(name.span(), message, "remove it");
            }
            let message = format!("the module imports no function `{name}` that it could wait in");
            let help = did_you_mean(name, waits_in.iter().map(String::as_str)).text();
            found.warning(name.span(), message, &help)
        })
        .collect()
}

/// Integrations whose whole budget is shorter than the time before the deadline of the warning.
fn find_warned_at_start(found: &Found, specs: &[(PathBuf, Spec)]) -> Vec<Finding> {
    let Some((before, span)) = found.file().soft_deadline() else { return Vec::new() };
    let before_ms = before.as_millis();
    let integrations = specs.iter().flat_map(|(_, spec)| spec.integrations.values());
    integrations
        .filter(|integration| integration.module.as_str() == found.file().name())
        .filter(|integration| u128::from(integration.budget_ms) <= before_ms)
        .map(|integration| {
            let message = format!(
                "the handlers of `{}` are warned at their start: their whole budget is {} ms",
                integration.name, integration.budget_ms
            );
            found.warning(span, message, "the warning comes this long before their deadline")
        })
        .collect()
}

/// A module without a manifest that the host rejects, at the place where a spec names it.
fn find_rejected_file(
    name: &str,
    specs: &[(PathBuf, Spec)],
    rejection: &Rejection,
) -> Option<Finding> {
    let naming = specs.iter().find_map(|(path, spec)| {
        let integration = spec.integrations.values().find(|one| one.module.as_str() == name)?;
        Some((path, spec, integration.module.span()))
    });
    let (path, spec, span) = naming?;
    let mut out = Diagnostics::new(&spec.source);
    let help = format!("without an {}, nothing is granted to it", manifest::FILE_NAME);
    out.error_with_help(span, rejection.message.clone(), help);
    let finding = Finding::all_of(path, &spec.source, out.finish()).next()?;
    Some(finding.coded(rejection.kind.as_str()))
}
