//! Finds scenario files, and the specs and modules beside them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sandglass_host::file::{named_in, read_text};
use sandglass_host::manifest::{self, FILE_NAME, Found, Manifests, module_beside};
use sandglass_host::{Host, Settings};
use sandglass_liveness::Spec;
use sandglass_liveness::spec::IntegrationKind;
use sandglass_runtime::{SPEC_ENDING, one_of_each_type, unknown_timed_functions};
use sandglass_source::{Diagnostics, Finding, Severity, did_you_mean};

use super::section::{self, ParsedScenario};
use crate::error::{Error, Result};

use super::{Module, SOURCE_MAX_BYTES, Scenario, Server, SpecFile, with_servers};

/// Returns `path` itself, or, if it is a folder, every `scenario*.toml` in it, sorted by name without
/// the extension.
///
/// # Errors
/// Errors if the folder cannot be read or contains no scenario.
pub fn find(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = named_in(path, is_scenario)?;
    found.sort_by_key(|path| path.file_stem().map(ToOwned::to_owned));
    if found.is_empty() {
        return Err(Error::Failed(format!("there is no scenario*.toml in `{}`", path.display())));
    }
    Ok(found)
}

/// Whether a file of this name is a scenario.
pub fn is_scenario(name: &str) -> bool {
    name.starts_with("scenario") && name.ends_with(".toml")
}

/// Reads a scenario with its specs, and finds its modules. The inner error is everything that is wrong
/// in these files.
///
/// # Errors
/// Errors if a file cannot be read.
pub fn load(path: &Path) -> Result<Result<Scenario, Vec<Finding>>> {
    let source = read_text(path, SOURCE_MAX_BYTES as u64)?;
    let beside = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut out = Diagnostics::new(&source);
    let written = section::read(&source, &beside, &mut out);
    let mut findings: Vec<Finding> = Finding::all_of(path, &source, out.finish()).collect();
    let ParsedScenario { title, time, specs, mut modules, servers, steps } = written;
    let folder = if beside == Path::new("") { Path::new(".") } else { &beside };
    let manifests = collect_findings(Manifests::find(folder), &mut findings)?.unwrap_or_default();
    let found_manifests = findings.is_empty();
    let spec_paths = match specs {
        Some(names) => names.iter().map(|name| beside.join(name)).collect(),
        None => named_in(folder, |name| name.ends_with(SPEC_ENDING))?,
    };
    if spec_paths.is_empty() {
        return Err(Error::Failed(format!(
            "there is no *.ioa.toml beside `{}`, and it names no `specs`",
            path.display()
        )));
    }
    let (mut files, mut specs) = (Vec::new(), Vec::new());
    let mut timed_functions = None;
    for path in spec_paths {
        let source = read_text(&path, SOURCE_MAX_BYTES as u64)?;
        let file = SpecFile { path, source };
        let spec = check_spec(&file, &servers, &mut findings);
        if let Some(spec) = spec {
            if !spec.timed_functions.is_empty() {
                let known = match &timed_functions {
                    Some(known) => known,
                    None => timed_functions.insert(all_timed_functions()?),
                };
                findings.extend(unknown_timed_functions(&file.path, &spec, known));
            }
            // A wrong manifest may be the one of a module that seems to be missing.
            if found_manifests {
                find_modules(&file, &spec, folder, &manifests, &mut modules, &mut findings);
            }
            specs.push((file.path.clone(), spec));
        }
        files.push(file);
    }
    findings.extend(one_of_each_type(&specs));
    for module in modules.iter().filter(|module| module.is_manifest && module.path.is_file()) {
        if let Some(found) = collect_findings(Found::read(&module.path), &mut findings)? {
            findings.extend(found.module().err().map(|finding| *finding));
            findings.extend(module.manifest(&found).err().into_iter().flatten());
        }
    }
    if !findings.is_empty() {
        return Ok(Err(findings));
    }
    let title = title.unwrap_or_else(|| super::shown(path));
    let path = path.to_owned();
    Ok(Ok(Scenario { path, title, time, specs: files, modules, servers, steps }))
}

/// The host functions in which a handler can wait.
fn all_timed_functions() -> Result<BTreeSet<&'static str>> {
    let settings = Settings { max_runs: 1, guest_threads: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build();
    let host = host.map_err(|why| Error::failed("cannot start a host", &why))?;
    host.timed_functions().map_err(|why| Error::Failed(why.message))
}

/// What was read of manifests; `None`, and findings, if they are wrong.
fn collect_findings<T>(
    read: Result<T, manifest::Error>,
    findings: &mut Vec<Finding>,
) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(manifest::Error::Wrong(wrong)) => {
            findings.extend(wrong);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Parses a spec, and reports its errors and the first server that the scenario does not have.
fn check_spec(file: &SpecFile, servers: &[Server], findings: &mut Vec<Finding>) -> Option<Spec> {
    let parsed = Spec::parse(&file.source);
    let errors = parsed.diagnostics.into_iter().filter(|one| one.severity == Severity::Error);
    findings.extend(Finding::all_of(&file.path, &file.source, errors));
    let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
    let known = |name: &str| names.contains(&name).then(String::new);
    if let Err(name) = with_servers(&file.source, known) {
        let mut out = Diagnostics::new(&file.source);
        let message = format!("there is no server `{name}` in the scenario");
        let at = file.source.find(&format!("${{server.{name}}}")).unwrap_or(0);
        let help = did_you_mean(&name, names.iter().copied());
        out.error_with_help(&(at..at + name.len()), message, help);
        findings.extend(Finding::all_of(&file.path, &file.source, out.finish()));
    }
    parsed.spec
}

/// Adds the modules that a spec names and the scenario does not declare: by their manifests, or by
/// the names of their files.
fn find_modules(
    file: &SpecFile,
    spec: &Spec,
    folder: &Path,
    manifests: &Manifests,
    modules: &mut Vec<Module>,
    findings: &mut Vec<Finding>,
) {
    let mut out = Diagnostics::new(&file.source);
    let mut declared: BTreeSet<String> = modules.iter().map(|module| module.name.clone()).collect();
    let of_modules = spec.integrations.values().filter(|one| one.kind == IntegrationKind::Wasm);
    for integration in of_modules {
        let name = integration.module.as_str();
        if !declared.insert(name.to_owned()) {
            continue;
        }
        let (path, is_manifest) = match manifests.named(name) {
            Some(found) => (Some(found.path().to_owned()), true),
            None => (module_beside(folder, name), false),
        };
        match path {
            Some(path) => {
                let name = name.to_owned();
                modules.push(Module { name, path, is_manifest, ..Module::default() });
            }
            None => {
                let message = format!("there is no module `{name}`");
                let help = format!(
                    "put `{name}.wasm`, `{name}.wat` or its {FILE_NAME} beside the scenario, or \
                     declare a [[module]] in the scenario"
                );
                out.error_with_help(integration.module.span(), message, help);
            }
        }
    }
    findings.extend(Finding::all_of(&file.path, &file.source, out.finish()));
}
