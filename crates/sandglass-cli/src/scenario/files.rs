//! The files of a scenario: which ones a path names, and the specs and modules
//! that stand beside them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sandglass_liveness::Spec;
use sandglass_source::{Diagnostics, Finding, Severity, did_you_mean};

use sandglass_host::file::read_text;

use super::section::{self, Written};
use super::{Module, SOURCE_MAX_BYTES, Scenario, Server, SpecFile, with_servers};

/// The scenario files that `path` names: itself, or every `scenario*.toml` in it,
/// sorted by name without its ending.
///
/// # Errors
/// There is none, or the folder can't be read.
pub(crate) fn find(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = files_in(path, |name| name.starts_with("scenario") && name.ends_with(".toml"))?;
    found.sort_by_key(|path| path.file_stem().map(ToOwned::to_owned));
    if found.is_empty() {
        bail!("there is no scenario*.toml in `{}`", path.display());
    }
    Ok(found)
}

fn files_in(folder: &Path, wanted: impl Fn(&str) -> bool) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)
        .with_context(|| format!("can't read folder `{}`", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(&wanted) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a scenario with its specs, and looks for its modules. The inner error is
/// all that is wrong in these files.
///
/// # Errors
/// A file can't be read.
pub(crate) fn load(path: &Path) -> anyhow::Result<Result<Scenario, Vec<Finding>>> {
    let source = read_text(path, SOURCE_MAX_BYTES as u64)?;
    let beside = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut out = Diagnostics::new(&source);
    let written = section::read(&source, &beside, &mut out);
    let mut findings: Vec<Finding> = Finding::all_of(path, &source, out.finish()).collect();
    let Written { title, specs, mut modules, servers, steps } = written;
    let spec_paths = match specs {
        Some(names) => names.iter().map(|name| beside.join(name)).collect(),
        None => files_in(if beside == Path::new("") { Path::new(".") } else { &beside }, |name| {
            name.ends_with(".ioa.toml")
        })?,
    };
    if spec_paths.is_empty() {
        bail!("there is no *.ioa.toml beside `{}`, and it names no `specs`", path.display());
    }
    let mut files = Vec::new();
    for path in spec_paths {
        let source = read_text(&path, SOURCE_MAX_BYTES as u64)?;
        let file = SpecFile { path, source };
        check_spec(&file, &beside, &servers, &mut modules, &mut findings);
        files.push(file);
    }
    if !findings.is_empty() {
        return Ok(Err(findings));
    }
    let title = title.unwrap_or_else(|| super::shown(path));
    let path = path.to_owned();
    Ok(Ok(Scenario { path, title, specs: files, modules, servers, steps }))
}

/// Checks a spec, and adds the modules that it names and that stand beside the
/// scenario.
fn check_spec(
    file: &SpecFile,
    beside: &Path,
    servers: &[Server],
    modules: &mut Vec<Module>,
    findings: &mut Vec<Finding>,
) {
    let mut out = Diagnostics::new(&file.source);
    let parsed = Spec::parse(&file.source);
    let errors = parsed.diagnostics.into_iter().filter(|one| one.severity == Severity::Error);
    findings.extend(Finding::all_of(&file.path, &file.source, errors));
    let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
    let known = |name: &str| names.contains(&name).then(String::new);
    if let Err(name) = with_servers(&file.source, known) {
        let message = format!("there is no server `{name}` in the scenario");
        let at = file.source.find(&format!("${{server.{name}}}")).unwrap_or(0);
        let help = did_you_mean(&name, names.iter().copied());
        out.error_with_help(&(at..at + name.len()), message, help);
    }
    let integrations = parsed.spec.iter().flat_map(|spec| spec.integrations.values());
    let mut declared: BTreeSet<String> = modules.iter().map(|module| module.name.clone()).collect();
    for integration in integrations {
        let name = integration.module.as_str();
        if !declared.insert(name.to_owned()) {
            continue;
        }
        match module_beside(beside, name) {
            Some(path) => {
                modules.push(Module { name: name.to_owned(), path, ..Module::default() });
            }
            None => {
                let message = format!("there is no module `{name}`");
                let help = format!(
                    "put `{name}.wasm` or `{name}.wat` beside the scenario, or declare a [[module]] in it"
                );
                out.error_with_help(integration.module.span(), message, help);
            }
        }
    }
    findings.extend(Finding::all_of(&file.path, &file.source, out.finish()));
}

fn module_beside(beside: &Path, name: &str) -> Option<PathBuf> {
    let names = [format!("{name}.wasm"), format!("{name}.wat"), name.to_owned()];
    names.iter().map(|name| beside.join(name)).find(|path| path.is_file())
}
