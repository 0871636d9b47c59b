//! The cases of a folder: the files beside a guest.

use std::path::{Path, PathBuf};

use sandglass_host::manifest::{self, Found, is_manifest, is_module};
use sandglass_host::{Signature, file};
use sandglass_source::Finding;

use crate::answer::Call;
use crate::case::Case;
use crate::file::{Written, read};
use crate::kit::{Guest, Kit, Unusable};

/// What the names of files with cases end with.
pub const ENDING: &str = ".test.toml";

/// Most files of one suite.
const FILES_MAX: usize = 1_000;
/// Most folders that are looked into, the named one included.
const FOLDERS_MAX: usize = 1_000;

/// One file of cases, and the guest that they are about.
#[derive(Debug)]
pub struct Suite {
    /// The file.
    pub path: PathBuf,
    /// Its text, as it was read.
    pub source: String,
    /// The manifest or the module that its cases are about.
    pub guest: PathBuf,
    /// The embedder's own host functions that its cases answer for.
    pub functions: Vec<Signature>,
    /// Its cases, in their order.
    pub cases: Vec<Case>,
}

/// Why there is nothing to run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// A file or folder can't be read.
    #[error(transparent)]
    File(#[from] file::Error),
    /// There are no cases.
    #[error("there is no *{ENDING} in `{}`, nor in the folders in it", .0.display())]
    Empty(PathBuf),
    /// There are too many.
    #[error("there are more than {FILES_MAX} files or {FOLDERS_MAX} folders in `{}`", .0.display())]
    TooMany(PathBuf),
    /// The files are wrong: all that is wrong in them.
    #[error("{} mistakes in test files or manifests", .0.len())]
    Wrong(Vec<Finding>),
}

impl From<manifest::Error> for SuiteError {
    fn from(error: manifest::Error) -> Self {
        match error {
            manifest::Error::File(error) => Self::File(error),
            manifest::Error::Wrong(findings) => Self::Wrong(findings),
        }
    }
}

impl Suite {
    /// The suites of `path`: a file, or a folder with the folders in it, but for those that
    /// are hidden or hold what is built or installed (`target`, `node_modules`).
    ///
    /// # Errors
    /// Something can't be read or is wrong (all that is), or there are none.
    pub fn find(path: &Path) -> Result<Vec<Self>, SuiteError> {
        let files = if path.is_file() { vec![path.to_owned()] } else { files_in(path)? };
        if files.is_empty() {
            return Err(SuiteError::Empty(path.to_owned()));
        }
        let (mut suites, mut wrong) = (Vec::new(), Vec::new());
        for file in files {
            match Self::read(&file) {
                Ok(suite) => suites.push(suite),
                Err(SuiteError::Wrong(findings)) => wrong.extend(findings),
                Err(error) => return Err(error),
            }
        }
        if wrong.is_empty() { Ok(suites) } else { Err(SuiteError::Wrong(wrong)) }
    }

    /// The cases of one file.
    ///
    /// # Errors
    /// It can't be read or is wrong.
    pub fn read(path: &Path) -> Result<Self, SuiteError> {
        let source = file::read_text(path, crate::file::SOURCE_MAX_BYTES as u64)?;
        let beside = path.parent().unwrap_or(Path::new("")).to_owned();
        let (written, diagnostics) = read(&source, &beside);
        let wrong = || Finding::all_of(path, &source, diagnostics.clone()).collect();
        let Some(Written { guest, functions, cases }) = written else {
            return Err(SuiteError::Wrong(wrong()));
        };
        let guest = match guest {
            Some(guest) => guest,
            None => the_guest_beside(&beside)
                .map_err(|why| SuiteError::Wrong(vec![Finding::of_a_whole_file(path, &why)]))?,
        };
        Ok(Self { path: path.to_owned(), source, guest, functions, cases })
    }

    /// Loads the guest that the cases are about, with the grants of its manifest: that which
    /// is named, or the one beside the module. A module without one is granted nothing.
    ///
    /// # Errors
    /// The inner ones: a file can't be read, or the manifest is wrong. The outer ones: the
    /// host rejects the module.
    pub fn load(&self, kit: &Kit) -> Result<Result<Guest, Unusable>, SuiteError> {
        let found = if is_manifest(&self.guest) {
            Some(Found::read(&self.guest)?)
        } else {
            manifest::beside(&self.guest)?
        };
        match found {
            Some(found) => {
                self.secrets_are_granted(&found)?;
                let bytes = found.module().map_err(|wrong| SuiteError::Wrong(vec![*wrong]))?;
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
}

impl Suite {
    /// Refuses values of secrets that nobody could be given.
    fn secrets_are_granted(&self, found: &Found) -> Result<(), SuiteError> {
        let granted = &found.file().secrets;
        let given = |case: &Case| -> Vec<String> {
            let answered = case.answers.iter().filter_map(|answer| match &answer.to {
                Call::Secret { name } => Some(name.clone()),
                _ => None,
            });
            case.secrets.keys().cloned().chain(answered).collect()
        };
        let is_granted = |name: &String| granted.iter().any(|granted| granted.as_str() == name);
        let mut wrong = self.cases.iter().flat_map(|case| {
            let names = given(case).into_iter().filter(|name| !is_granted(name));
            names.map(move |name| (case, name))
        });
        let Some((case, name)) = wrong.next() else { return Ok(()) };
        let why = format!(
            "case `{}` gives the secret `{name}`, which `{}` doesn't grant",
            case.name,
            found.path().display()
        );
        Err(SuiteError::Wrong(vec![Finding::of_a_whole_file(&self.path, &why)]))
    }
}

/// The only guest of a folder, or, where that is called `tests`, of the one above it.
fn the_guest_beside(folder: &Path) -> Result<PathBuf, String> {
    // `.` may be it, too.
    let named = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let is_tests = named.file_name().is_some_and(|name| name == "tests");
    let above = is_tests.then(|| folder.join(".."));
    for folder in std::iter::once(folder).chain(above.as_deref()) {
        let folder = if folder == Path::new("") { Path::new(".") } else { folder };
        for is_one in [is_manifest, is_module] {
            let names = file::named_in(folder, |name| is_one(Path::new(name)));
            match names.unwrap_or_default().as_slice() {
                [] => {}
                [one] => return Ok(one.clone()),
                [one, other, ..] => {
                    return Err(format!(
                        "which guest is it about? There are `{}` and `{}`; say `guest = \"FILE\"`",
                        one.display(),
                        other.display()
                    ));
                }
            }
        }
    }
    Err("there is no manifest and no module beside it; say `guest = \"FILE\"`, a manifest or a \
         module (is it built?)"
        .to_owned())
}

/// The files of cases in `folder` and in the folders in it, in the order of their names.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>, SuiteError> {
    let (mut files, mut looked, mut folders) = (Vec::new(), 0, vec![folder.to_owned()]);
    while let Some(inside) = folders.pop() {
        looked += 1;
        files.extend(file::named_in(&inside, |name| name.ends_with(ENDING))?);
        folders.extend(folders_in(&inside));
        if files.len() > FILES_MAX || looked + folders.len() > FOLDERS_MAX {
            return Err(SuiteError::TooMany(folder.to_owned()));
        }
    }
    files.sort();
    Ok(files)
}

/// The folders in `folder` that may hold cases. Links are not followed, so that none leads in
/// a circle.
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
