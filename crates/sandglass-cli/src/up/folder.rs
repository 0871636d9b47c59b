//! What the daemon serves: the specs and modules of a folder, read as `play` reads them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use sandglass_daemon::DeclaredModule;
use sandglass_host::{Secret, file};
use sandglass_liveness::Spec;
use sandglass_runtime::{Folder, FolderError, FolderModule, one_of_each_type};
use sandglass_scenario::Scenario;

use super::told;
use crate::integrations::Integrations;

/// The specs, and the modules that they name.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) specs: Vec<Spec>,
    pub(super) modules: Vec<DeclaredModule>,
    /// What is legal and hardly meant.
    pub(super) warnings: Vec<String>,
}

/// Reads a folder. Where scenarios stand in it, their `[[module]]`s say what modules may
/// do; their steps and servers mean nothing here.
pub(super) fn read(path: &Path, secrets: &BTreeMap<String, String>) -> anyhow::Result<Served> {
    if !path.is_dir() {
        bail!("`{}` is no folder", path.display());
    }
    let scenarios = file::named_in(path, sandglass_scenario::is_scenario)?;
    if scenarios.is_empty() { of_folder(path, secrets) } else { of_scenarios(&scenarios) }
}

fn of_folder(path: &Path, secrets: &BTreeMap<String, String>) -> anyhow::Result<Served> {
    let wrong = |error| match error {
        FolderError::Wrong(findings) => anyhow!(told(&findings)),
        other => other.into(),
    };
    let folder = Folder::read(path).map_err(wrong)?;
    functions_exist(&folder.specs)?;
    let secret = |name: &str| {
        let variable = secrets.get(name).ok_or_else(|| {
            format!("add `{name} = \"VARIABLE\"` to [secrets] of the configuration")
        })?;
        Secret::from_environment(variable)
            .ok_or_else(|| format!("the environment has no `{variable}`"))
    };
    let modules = folder.modules(&secret).map_err(wrong)?;
    let declared =
        |FolderModule { name, bytes, manifest }| DeclaredModule { name, bytes, manifest };
    Ok(Served {
        warnings: folder.warnings.iter().map(|one| told(std::slice::from_ref(one))).collect(),
        modules: modules.into_iter().map(declared).collect(),
        specs: folder.specs.into_iter().map(|(_, spec)| spec).collect(),
    })
}

fn of_scenarios(paths: &[PathBuf]) -> anyhow::Result<Served> {
    let (mut specs, mut modules) = (BTreeMap::new(), BTreeMap::new());
    for path in paths {
        let Scenario { specs: files, modules: declared, .. } =
            sandglass_scenario::load(path)?.map_err(|findings| anyhow!(told(&findings)))?;
        for file in files {
            let spec = Spec::parse(&file.source).spec;
            // It was checked when it was loaded.
            let spec = spec.with_context(|| format!("spec `{}`", file.path.display()))?;
            specs.insert(file.path, spec);
        }
        for module in declared {
            if let Some(other) = modules.insert(module.name.clone(), module.clone())
                && other != module
            {
                bail!(
                    "two scenarios of the folder declare the module `{}`, and not the same; name a \
                     folder of its own",
                    module.name
                );
            }
        }
    }
    let specs: Vec<_> = specs.into_iter().collect();
    let twice = one_of_each_type(&specs);
    if !twice.is_empty() {
        bail!(told(&twice));
    }
    let declared = modules.values().map(|module| {
        let (name, manifest, bytes) = module.read()?;
        Ok(DeclaredModule { name, bytes: bytes.into(), manifest })
    });
    Ok(Served {
        modules: declared.collect::<anyhow::Result<_>>()?,
        specs: specs.into_iter().map(|(_, spec)| spec).collect(),
        warnings: Vec::new(),
    })
}

/// Refuses limits on calls of host functions that there aren't.
fn functions_exist(specs: &[(PathBuf, Spec)]) -> anyhow::Result<()> {
    let mut integrations = Integrations::default();
    let mut wrong = Vec::new();
    for (path, spec) in specs {
        wrong.extend(integrations.check_timed(path, spec)?);
    }
    if wrong.is_empty() { Ok(()) } else { Err(anyhow!(told(&wrong))) }
}
