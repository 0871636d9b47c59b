//! Finds and reads the files with cases in a folder, and loads their guests.

use std::path::{Path, PathBuf};

use sandglass_host::manifest::{self, Found, is_manifest, is_module};
use sandglass_host::{Signature, file};
use sandglass_source::Finding;

use crate::answer::Call;
use crate::case::Case;
use crate::file::{CaseFile, read};
use crate::kit::{Error, Guest, Kit};

/// The suffix of the names of files with cases.
pub const FILE_SUFFIX: &str = ".test.toml";

/// Most files in one search.
const FILES_MAX: usize = 1_000;
/// Most folders in one search, including the first.
const FOLDERS_MAX: usize = 1_000;

/// One file of cases, and the guest that they test.
#[derive(Debug)]
pub struct Suite {
    /// The file.
    pub path: PathBuf,
    /// Its text.
    pub source: String,
    /// The manifest or the module of the guest.
    pub guest: PathBuf,
    /// The host functions of an embedder that its cases script.
    pub functions: Vec<Signature>,
    /// Its cases, in order.
    pub cases: Vec<Case>,
}

/// Why cases cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// A file or folder cannot be read.
    #[error(transparent)]
    File(#[from] file::Error),
    /// There is no file with cases.
    #[error("there is no *{FILE_SUFFIX} in `{}` or its subfolders", .0.display())]
    Empty(PathBuf),
    /// There are too many files or folders.
    #[error("there are more than {FILES_MAX} files or {FOLDERS_MAX} folders in `{}`", .0.display())]
    TooMany(PathBuf),
    /// Files are invalid, with all findings.
    #[error("{} errors in test files or manifests", .0.len())]
    Invalid(Vec<Finding>),
}

impl From<manifest::Error> for SuiteError {
    fn from(error: manifest::Error) -> Self {
        match error {
            manifest::Error::File(error) => Self::File(error),
            manifest::Error::Wrong(findings) => Self::Invalid(findings),
        }
    }
}

impl Suite {
    /// Reads the suites of `path`: of a file, or of a folder and its subfolders, except hidden ones,
    /// `target` and `node_modules`.
    ///
    /// # Errors
    /// Errors if a file cannot be read, if any are invalid (with all findings), or if there are none.
    pub fn find(path: &Path) -> Result<Vec<Self>, SuiteError> {
        let files = if path.is_file() { vec![path.to_owned()] } else { files_in(path)? };
        if files.is_empty() {
            return Err(SuiteError::Empty(path.to_owned()));
        }
        let (mut suites, mut invalid) = (Vec::new(), Vec::new());
        for file in files {
            match Self::read(&file) {
                Ok(suite) => suites.push(suite),
                Err(SuiteError::Invalid(findings)) => invalid.extend(findings),
                Err(error) => return Err(error),
            }
        }
        if invalid.is_empty() { Ok(suites) } else { Err(SuiteError::Invalid(invalid)) }
    }

    /// Reads one file.
    ///
    /// # Errors
    /// Errors if it cannot be read, or is invalid.
    pub fn read(path: &Path) -> Result<Self, SuiteError> {
        let source = file::read_text(path, crate::file::SOURCE_MAX_BYTES as u64)?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let (file, diagnostics) = read(&source, &folder);
        let findings = || Finding::all_of(path, &source, diagnostics.clone()).collect();
        let Some(CaseFile { guest, functions, cases }) = file else {
            return Err(SuiteError::Invalid(findings()));
        };
        let guest = match guest {
            Some(guest) => guest,
            None => guest_in(&folder)
                .map_err(|why| SuiteError::Invalid(vec![Finding::of_a_whole_file(path, &why)]))?,
        };
        Ok(Self { path: path.to_owned(), source, guest, functions, cases })
    }

    /// Loads the guest with the grants of its manifest, which is the named one or the one next to the
    /// module. A module without a manifest is granted nothing.
    ///
    /// # Errors
    /// The outer result is an error if a file cannot be read or the manifest is invalid, the inner one
    /// if the host rejects the module.
    pub fn load(&self, kit: &Kit) -> Result<Result<Guest, Error>, SuiteError> {
        let found = if is_manifest(&self.guest) {
            Some(Found::read(&self.guest)?)
        } else {
            manifest::beside(&self.guest)?
        };
        match found {
            Some(found) => {
                self.check_secrets(&found)?;
                let bytes = found.module().map_err(|error| SuiteError::Invalid(vec![*error]))?;
                Ok(kit.load_found(&found, &bytes))
            }
            None => {
                let name = self.guest.file_stem().unwrap_or_default().to_string_lossy();
                let manifest = sandglass_host::Manifest::named(name);
                let bytes = file::read(&self.guest, manifest.module_max_bytes())?;
                Ok(kit.load(&bytes, manifest))
            }
        }
    }

    /// Errors if a case sets a secret that the manifest does not grant, because no guest can read it.
    fn check_secrets(&self, found: &Found) -> Result<(), SuiteError> {
        let granted = &found.file().secrets;
        let secrets_of = |case: &Case| -> Vec<String> {
            let answered = case.answers.iter().filter_map(|answer| match &answer.to {
                Call::Secret { name } => Some(name.clone()),
                _ => None,
            });
            case.secrets.keys().cloned().chain(answered).collect()
        };
        let is_granted = |name: &String| granted.iter().any(|granted| granted.as_str() == name);
        let mut not_granted = self.cases.iter().flat_map(|case| {
            let names = secrets_of(case).into_iter().filter(|name| !is_granted(name));
            names.map(move |name| (case, name))
        });
        let Some((case, name)) = not_granted.next() else { return Ok(()) };
        let why = format!(
            "case `{}` sets the secret `{name}`, which `{}` does not grant",
            case.name,
            found.path().display()
        );
        Err(SuiteError::Invalid(vec![Finding::of_a_whole_file(&self.path, &why)]))
    }
}

/// Finds the only guest in a folder, or in its parent if the folder is named `tests`.
fn guest_in(folder: &Path) -> Result<PathBuf, String> {
    // Resolves `.`, whose name is that of the folder that it stands for.
    let resolved = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let is_tests = resolved.file_name().is_some_and(|name| name == "tests");
    let above = is_tests.then(|| folder.join(".."));
    for folder in std::iter::once(folder).chain(above.as_deref()) {
        let folder = if folder == Path::new("") { Path::new(".") } else { folder };
        for is_candidate in [is_manifest, is_module] {
            let names = file::named_in(folder, |name| is_candidate(Path::new(name)));
            match names.unwrap_or_default().as_slice() {
                [] => {}
                [one] => return Ok(one.clone()),
                [one, other, ..] => {
                    return Err(format!(
                        "there are two guests, `{}` and `{}`; name one with `guest = \"FILE\"`",
                        one.display(),
                        other.display()
                    ));
                }
            }
        }
    }
    Err("there is no manifest and no module next to it; name a manifest or a module with \
         `guest = \"FILE\"` (is it built?)"
        .to_owned())
}

/// Lists the files with cases in `folder` and its subfolders, sorted by name.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>, SuiteError> {
    let (mut files, mut looked, mut folders) = (Vec::new(), 0, vec![folder.to_owned()]);
    while let Some(inside) = folders.pop() {
        looked += 1;
        files.extend(file::named_in(&inside, |name| name.ends_with(FILE_SUFFIX))?);
        folders.extend(folders_in(&inside));
        if files.len() > FILES_MAX || looked + folders.len() > FOLDERS_MAX {
            return Err(SuiteError::TooMany(folder.to_owned()));
        }
    }
    files.sort();
    Ok(files)
}

/// Lists the subfolders that may contain cases. Links are not followed, because they can form a cycle.
fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_wanted =
        |name: &str| !name.starts_with('.') && name != "target" && name != "node_modules";
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .filter(|entry| entry.file_name().to_str().is_some_and(is_wanted))
        .map(|entry| entry.path())
        .collect()
}
