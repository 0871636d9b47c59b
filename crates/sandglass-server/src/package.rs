//! The content of a deployment: the files of a folder by their names and hashes, and uploaded modules. The
//! names are those by which specs, manifests and scenarios name each other, so the files work wherever they
//! are written. Secrets are not part of it: manifests only name them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use sandglass_daemon::{UploadOrigin, UploadedModule};
use sandglass_host::{Secret, file};
use sandglass_model::{ModuleHash, WallTime};
use sandglass_postgres::{DeploymentContent, FILES_MAX_BYTES, Proposal};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::folder::{self, Served};

/// How many folders up a file may be from the folder of specs.
const PARENTS_MAX: usize = 8;
/// Most files of a deployment.
const FILES_MAX: usize = 4_096;

/// What a deployment consists of. Deployments whose manifests have equal texts are one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    /// The SHA-256 of each file, by its path from the folder of specs.
    files: BTreeMap<String, ModuleHash>,
    /// The uploaded modules, which replace those of the files, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    uploads: BTreeMap<String, Upload>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Upload {
    hash: ModuleHash,
    by: String,
    at: WallTime,
}

/// A deployment with its content.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    pub(crate) manifest: Manifest,
    contents: BTreeMap<[u8; 32], Arc<[u8]>>,
}

impl Manifest {
    /// Adds this version of a module.
    #[must_use]
    pub(crate) fn with_upload(mut self, module: &UploadedModule) -> Self {
        let hash = ModuleHash::of(&module.bytes);
        // The same bytes again are the same deployment.
        if self.uploads.get(&module.name).is_none_or(|present| present.hash != hash) {
            let upload = Upload { hash, by: module.by.clone(), at: module.at };
            self.uploads.insert(module.name.clone(), upload);
        }
        self
    }

    fn hashes(&self) -> BTreeSet<[u8; 32]> {
        let uploads = self.uploads.values().map(|upload| &upload.hash);
        self.files.values().chain(uploads).map(|hash| *hash.as_bytes()).collect()
    }

    /// The proposal of it, with the files that the database may not have.
    pub(crate) fn proposal(
        &self,
        contents: BTreeMap<[u8; 32], Arc<[u8]>>,
        proposed_by: &str,
        at: WallTime,
    ) -> Proposal {
        Proposal {
            manifest: serde_json::to_string(self).expect("plain data with text for keys"),
            files: self.hashes(),
            contents,
            proposed_by: proposed_by.to_owned(),
            at,
        }
    }
}

impl Package {
    /// The `files` of a folder of specs, which may also be beside the folder.
    ///
    /// # Errors
    /// Errors if a file cannot be read, if all together are too large, and if one is named in a way that
    /// other hosts cannot follow.
    pub(crate) fn collect(folder: &Path, paths: &BTreeSet<PathBuf>) -> Result<Self> {
        if paths.len() > FILES_MAX {
            let what = format!("`{}` has more than {FILES_MAX} files", folder.display());
            return Err(Error::Unusable(what));
        }
        let (mut files, mut contents) = (BTreeMap::new(), BTreeMap::new());
        let mut room = FILES_MAX_BYTES as u64;
        for path in paths {
            let name = name_of(folder, path)?;
            let bytes = file::read(path, room).map_err(|error| match error {
                file::Error::TooLarge { .. } => Error::Unusable(format!(
                    "the files of `{}` have more than {} MiB together, which is the most of a deployment",
                    folder.display(),
                    FILES_MAX_BYTES >> 20
                )),
                error => error.into(),
            })?;
            room = room.saturating_sub(bytes.len() as u64);
            let hash = ModuleHash::of(&bytes);
            files.insert(name, hash);
            contents.insert(*hash.as_bytes(), bytes.into());
        }
        Ok(Self { manifest: Manifest { files, uploads: BTreeMap::new() }, contents })
    }

    /// What is stored in the database.
    ///
    /// # Errors
    /// Errors if this version cannot read its manifest.
    pub(crate) fn fetched(fetched: DeploymentContent) -> Result<Self> {
        let manifest = serde_json::from_str(&fetched.manifest).map_err(|error| {
            Error::Unusable(format!(
                "this version cannot read what it consists of ({error}); a newer version may have \
                 proposed it"
            ))
        })?;
        let contents = fetched.files.into_iter().map(|(hash, bytes)| (hash, bytes.into()));
        Ok(Self { manifest, contents: contents.collect() })
    }

    pub(crate) fn proposal(&self, proposed_by: &str, at: WallTime) -> Proposal {
        self.manifest.proposal(self.contents.clone(), proposed_by, at)
    }

    /// Reads its specs and modules as from a folder, with the secrets of this host. Messages name files as
    /// the deployment does.
    ///
    /// # Errors
    /// Errors if they cannot be used on this host.
    pub(crate) fn read(&self, secrets: &BTreeMap<String, String>) -> Result<Served> {
        let folder =
            tempfile::tempdir().map_err(Error::system("cannot make a temporary folder"))?;
        // Deep enough that files that are named by `..` from the folder of specs are in the temporary folder.
        let specs = (0..PARENTS_MAX).fold(folder.path().to_owned(), |path, _| path.join("specs"));
        self.write(&specs)?;
        let mut served = folder::read(&specs, secrets, &(Arc::new(|_: &str| {}) as _))
            .map_err(|error| without_folder(&error, &specs))?;
        self.check(&specs, &served, secrets)?;
        for module in &mut served.modules {
            if let Some(Upload { hash, by, at }) = self.manifest.uploads.get(&module.name) {
                module.bytes = self.content(&module.name, hash)?;
                module.uploaded = Some(UploadOrigin { by: by.clone(), at: *at });
            }
        }
        Ok(served)
    }

    /// Errors if a scenario names files that are not part of the deployment, or environment variables that
    /// this host does not grant: a deployment comes from the database, and uses nothing else of the host.
    fn check(
        &self,
        specs: &Path,
        served: &Served,
        secrets: &BTreeMap<String, String>,
    ) -> Result<()> {
        for path in &served.files {
            let name = name_of(specs, path)?;
            if !self.manifest.files.contains_key(&name) {
                let what = format!("the file `{name}` is not part of the deployment");
                return Err(Error::Unusable(what));
            }
        }
        let is_granted = |variable: &&String| {
            variable.starts_with(Secret::VARIABLE_PREFIX)
                || secrets.values().any(|one| one == *variable)
        };
        match served.variables.iter().find(|variable| !is_granted(variable)) {
            Some(variable) => Err(Error::Unusable(format!(
                "a scenario has a secret in the environment variable `{variable}`, which no entry of \
                 [secrets] of this host names; add one, or rename it to `{}NAME`",
                Secret::VARIABLE_PREFIX
            ))),
            None => Ok(()),
        }
    }

    fn write(&self, specs: &Path) -> Result<()> {
        let failed = |name: &str| Error::system(format!("cannot write the file `{name}`"));
        fs::create_dir_all(specs).map_err(failed("specs"))?;
        for (name, hash) in &self.manifest.files {
            // A manifest of the database names no file outside of the temporary folder.
            let path = specs.join(normalized(Path::new(name)).ok_or_else(|| wrong_name(name))?);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(failed(name))?;
            }
            fs::write(&path, self.content(name, hash)?).map_err(failed(name))?;
        }
        Ok(())
    }

    fn content(&self, name: &str, hash: &ModuleHash) -> Result<Arc<[u8]>> {
        let content = self.contents.get(hash.as_bytes()).cloned();
        content.ok_or_else(|| Error::Unusable(format!("the content of `{name}` is missing")))
    }
}

/// An error without the path of the temporary folder.
fn without_folder(error: &Error, specs: &Path) -> Error {
    let folder = specs.display().to_string();
    Error::Unusable(
        error.in_full().replace(&format!("{folder}/"), "").replace(&folder, "the folder"),
    )
}

/// The name of a file: its path from `folder`.
fn name_of(folder: &Path, path: &Path) -> Result<String> {
    let relative = match path.strip_prefix(folder) {
        Ok(relative) => normalized(relative),
        Err(_) if folder == Path::new(".") => normalized(path),
        Err(_) => None,
    };
    let name = relative.as_deref().and_then(Path::to_str).map(str::to_owned);
    name.ok_or_else(|| wrong_name(&path.display().to_string()))
}

fn wrong_name(name: &str) -> Error {
    Error::Unusable(format!(
        "hosts of a cluster cannot share the file `{name}`: name it by a path from the folder of specs \
         that is UTF-8, not absolute, and at most {PARENTS_MAX} folders up"
    ))
}

/// A relative path without `.`, and with `..` only at its beginning and at most [`PARENTS_MAX`] times.
fn normalized(path: &Path) -> Option<PathBuf> {
    let mut parts: Vec<Component<'_>> = Vec::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(_) => parts.push(part),
            Component::ParentDir if matches!(parts.last(), Some(Component::Normal(_))) => {
                parts.pop();
            }
            Component::ParentDir => parts.push(part),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    let up = parts.iter().filter(|part| **part == Component::ParentDir).count();
    let is_file = matches!(parts.last(), Some(Component::Normal(_)));
    (is_file && up <= PARENTS_MAX).then(|| parts.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = "[automaton]\nname = \"Tool\"\nstates = [\"Idle\"]\ninitial = \"Idle\"\n\
        allow_indefinite_states = [\"Idle\"]\n\n[[integration]]\nname = \"tool\"\ntype = \"wasm\"\n\
        module = \"tool\"\n";

    fn none() -> crate::Report {
        Arc::new(|_: &str| {})
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("specs/tool.ioa.toml", SPEC);
        write(
            "specs/scenario.toml",
            "[[module]]\nname = \"tool\"\npath = \"../guests/tool.wat\"\n\n[[step]]\nwait = \"1s\"\n",
        );
        write("guests/tool.wat", "(module)");
        folder
    }

    fn collected(folder: &tempfile::TempDir) -> Package {
        let specs = folder.path().join("specs");
        let served = folder::read(&specs, &BTreeMap::new(), &none()).expect("sound");
        Package::collect(&specs, &served.files).expect("files that can be shared")
    }

    #[test]
    fn equal_folders_at_different_places_are_one_deployment() {
        let (one, other) = (folder(), folder());
        let (one, other) = (collected(&one), collected(&other));
        assert_eq!(one.manifest, other.manifest);
        let names: Vec<&str> = one.manifest.files.keys().map(String::as_str).collect();
        assert_eq!(names, ["../guests/tool.wat", "scenario.toml", "tool.ioa.toml"]);
        let proposal = one.proposal("a host", WallTime::from_millis(1));
        let files = one.contents.iter().map(|(hash, bytes)| (*hash, bytes.to_vec())).collect();
        let fetched = DeploymentContent { manifest: proposal.manifest, files };
        let read = Package::fetched(fetched).expect("as it was written");
        assert_eq!(read.manifest, one.manifest);
        let served = read.read(&BTreeMap::new()).expect("as in the folder");
        assert_eq!((served.specs.len(), served.modules[0].bytes.as_ref()), (1, &b"(module)"[..]));
    }

    #[test]
    fn an_uploaded_module_replaces_that_of_the_files() {
        let package = collected(&folder());
        let at = WallTime::from_millis(3);
        let bytes: Arc<[u8]> = Arc::from(&b"\0asm"[..]);
        let upload = UploadedModule {
            name: "tool".to_owned(),
            bytes: Arc::clone(&bytes),
            by: "ann".to_owned(),
            at,
        };
        let manifest = package.manifest.clone().with_upload(&upload);
        assert_ne!(manifest, package.manifest);
        let mut contents = package.contents.clone();
        contents.insert(*ModuleHash::of(&bytes).as_bytes(), bytes);
        let served = Package { manifest, contents }.read(&BTreeMap::new()).expect("sound");
        assert_eq!(served.modules[0].bytes.as_ref(), b"\0asm");
        assert_eq!(served.modules[0].uploaded, Some(UploadOrigin { by: "ann".to_owned(), at }));
    }

    #[test]
    fn a_broken_deployment_is_described_without_the_temporary_folder() {
        let mut package = collected(&folder());
        let broken: Arc<[u8]> = Arc::from(&b"[automaton"[..]);
        let hash = ModuleHash::of(&broken);
        package.manifest.files.insert("tool.ioa.toml".to_owned(), hash);
        package.contents.insert(*hash.as_bytes(), broken);
        let error = package.read(&BTreeMap::new()).expect_err("it is no spec").to_string();
        assert!(error.contains("tool.ioa.toml:1:") && !error.contains("/specs/"), "{error}");
    }

    #[test]
    fn a_scenario_uses_nothing_of_the_host_that_is_not_granted() {
        let elsewhere = tempfile::NamedTempFile::new().expect("a file");
        fs::write(elsewhere.path(), "(module)").expect("written");
        let read = |module: &str, secrets: &[(&str, &str)]| {
            let mut package = collected(&folder());
            let scenario = format!(
                "[[module]]\nname = \"tool\"\nallow_hosts = [\"a.example\"]\n{module}\n\n\
                 [[step]]\nwait = \"1s\"\n"
            );
            let scenario: Arc<[u8]> = Arc::from(scenario.as_bytes());
            let hash = ModuleHash::of(&scenario);
            package.manifest.files.insert("scenario.toml".to_owned(), hash);
            package.contents.insert(*hash.as_bytes(), scenario);
            let secrets = secrets.iter().map(|(name, of)| ((*name).to_owned(), (*of).to_owned()));
            package.read(&secrets.collect()).map_err(|error| error.to_string())
        };
        let file = format!("path = \"{}\"", elsewhere.path().display());
        let refused = read(&file, &[]).expect_err("it is not part of the deployment");
        assert!(refused.contains("cannot share the file"), "{refused}");
        let secret = "path = \"../guests/tool.wat\"\nsecrets = { home = \"HOME\" }";
        let refused = read(secret, &[]).expect_err("it is not granted");
        assert!(refused.contains("`HOME`, which no entry of [secrets]"), "{refused}");
        assert!(read(secret, &[("home", "HOME")]).is_ok());
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["/etc/passwd", "../../../../../../../../../x", "..", "", "a/.."] {
            assert_eq!(normalized(Path::new(name)), None, "{name}");
        }
        assert_eq!(normalized(Path::new("./a/../../b")), Some("../b".into()));
        let mut package = collected(&folder());
        let hash = package.manifest.files["tool.ioa.toml"];
        package.manifest.files.insert("../../../../../../../../../x".to_owned(), hash);
        let error = package.read(&BTreeMap::new()).expect_err("it is outside").to_string();
        assert!(error.contains("cannot share the file"), "{error}");
    }
}
