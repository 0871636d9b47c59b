//! What the daemon serves: the specs of a folder, and the modules that they name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sandglass_daemon::DeclaredModule;
use sandglass_host::{Host, Secret, file};
use sandglass_liveness::Spec;
use sandglass_runtime::{
    Folder, FolderError, FolderModule, ModuleSource, one_of_each_type, unknown_timed_functions,
};
use sandglass_scenario::Scenario;

use crate::Report;
use crate::error::{Error, Result};
use crate::findings::in_one_line;

#[derive(Debug, Default)]
pub(crate) struct Served {
    /// Each with its file.
    pub(crate) specs: Vec<(PathBuf, Spec)>,
    pub(crate) modules: Vec<DeclaredModule>,
    /// All files that were read.
    pub(crate) files: BTreeSet<PathBuf>,
    /// The environment variables of secrets that scenarios name.
    pub(crate) variables: BTreeSet<String>,
}

/// Reads a folder. If there are scenarios in it, their `[[module]]` sections declare the modules;
/// their steps and servers are not used.
pub(crate) fn read(
    path: &Path,
    secrets: &BTreeMap<String, String>,
    report: &Report,
) -> Result<Served> {
    if !path.is_dir() {
        return Err(Error::Unusable(format!("`{}` is not a folder", path.display())));
    }
    let scenarios = file::named_in(path, sandglass_scenario::is_scenario)?;
    if scenarios.is_empty() { of_folder(path, secrets, report) } else { of_scenarios(&scenarios) }
}

fn of_folder(path: &Path, secrets: &BTreeMap<String, String>, report: &Report) -> Result<Served> {
    let wrong = |error| match error {
        FolderError::Wrong(findings) => Error::Wrong(findings),
        other => other.into(),
    };
    let folder = Folder::read(path).map_err(wrong)?;
    let secret = |name: &str| {
        let variable = secrets.get(name).ok_or_else(|| {
            format!("add `{name} = \"VARIABLE\"` to [secrets] in the file that `--config` names")
        })?;
        Secret::from_environment(variable)
            .ok_or_else(|| format!("the environment has no `{variable}`"))
    };
    let modules = folder.modules(&secret).map_err(wrong)?;
    let declared = |FolderModule { name, bytes, manifest }| DeclaredModule {
        name,
        bytes,
        manifest,
        uploaded: None,
    };
    folder.warnings.iter().for_each(|one| report(&in_one_line([one])));
    let mut files: BTreeSet<PathBuf> = folder.specs.iter().map(|(path, _)| path.clone()).collect();
    for source in folder.sources.values() {
        match source {
            ModuleSource::File(path) => drop(files.insert(path.clone())),
            ModuleSource::Manifest(found) => {
                files.extend([found.path().to_owned(), found.module_path()]);
            }
        }
    }
    let modules = modules.into_iter().map(declared).collect();
    Ok(Served { modules, specs: folder.specs, files, variables: BTreeSet::new() })
}

fn of_scenarios(paths: &[PathBuf]) -> Result<Served> {
    let (mut specs, mut modules) = (BTreeMap::new(), BTreeMap::new());
    let mut files: BTreeSet<PathBuf> = paths.iter().cloned().collect();
    for path in paths {
        let Scenario { specs: of_scenario, modules: declared, .. } =
            sandglass_scenario::load(path)?.map_err(Error::Wrong)?;
        for file in of_scenario {
            let spec = Spec::parse(&file.source).spec;
            // A scenario that was loaded has no spec with errors.
            let path = file.path.display();
            let spec = spec.ok_or_else(|| Error::Unusable(format!("spec `{path}`")))?;
            specs.insert(file.path, spec);
        }
        for module in declared {
            if let Some(other) = modules.insert(module.name.clone(), module.clone())
                && other != module
            {
                return Err(Error::Unusable(format!(
                    "two scenarios of the folder declare the module `{}` differently; put them in \
                     folders of their own",
                    module.name
                )));
            }
        }
    }
    let specs: Vec<_> = specs.into_iter().collect();
    files.extend(specs.iter().map(|(path, _)| path.clone()));
    let mut variables = BTreeSet::new();
    for module in modules.values() {
        files.extend(module.files()?);
        variables.extend(module.variables().map(str::to_owned));
    }
    let twice = one_of_each_type(&specs);
    if !twice.is_empty() {
        return Err(Error::Wrong(twice));
    }
    let declared = modules.values().map(|module| {
        let (name, manifest, bytes) = module.read()?;
        Ok(DeclaredModule { name, bytes: bytes.into(), manifest, uploaded: None })
    });
    Ok(Served { modules: declared.collect::<Result<_>>()?, specs, files, variables })
}

/// Errors if a spec limits calls of host functions that do not exist.
pub(crate) fn check_timed_functions(specs: &[(PathBuf, Spec)], host: &Host) -> Result<()> {
    if specs.iter().all(|(_, spec)| spec.timed_functions.is_empty()) {
        return Ok(());
    }
    let known = host.timed_functions().map_err(|why| Error::Unusable(why.message))?;
    let wrong = specs.iter().flat_map(|(path, spec)| unknown_timed_functions(path, spec, &known));
    let wrong: Vec<_> = wrong.collect();
    if wrong.is_empty() { Ok(()) } else { Err(Error::Wrong(wrong)) }
}
