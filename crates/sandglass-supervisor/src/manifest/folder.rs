//! Finds manifests and modules in a folder and its direct subfolders.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandglass_model::{Rejection, RejectionKind};
use sandglass_source::{Diagnostic, Diagnostics, Finding};

use super::{File, Manifest, SOURCE_MAX_BYTES};
use crate::file;
use crate::secret::{FixedSecrets, Secret};

/// The file name of the only manifest of a folder.
pub const FILE_NAME: &str = "integration.toml";

/// The end of the file names of several manifests of a folder.
const NAME_ENDING: &str = ".integration.toml";

/// Most manifests of one folder: more than a host loads.
pub const MANIFESTS_MAX: usize = 1_000;

/// A manifest that was read from a file.
#[derive(Clone, Debug)]
pub struct Found {
    path: PathBuf,
    source: Arc<str>,
    file: File,
}

/// The manifests of a folder, by the names of their integrations.
#[derive(Clone, Debug, Default)]
pub struct Manifests(BTreeMap<String, Found>);

/// Why manifests could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or a folder could not be read.
    #[error(transparent)]
    File(#[from] file::Error),
    /// They have these errors.
    #[error("{} ({})", first(.0), .0.len())]
    Wrong(Vec<Finding>),
}

fn first(findings: &[Finding]) -> String {
    findings.first().map_or_else(String::new, |finding| {
        let Diagnostic { line, column, message, .. } = &finding.diagnostic;
        format!("{}:{line}:{column}: {message}", finding.path.display())
    })
}

/// Whether a path is that of a manifest, by its name.
#[must_use]
pub fn is_manifest(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name == FILE_NAME || (name.ends_with(NAME_ENDING) && !name.starts_with('.'))
}

/// Whether a path is that of a module, by its name.
#[must_use]
pub fn is_module(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "wasm" || ending == "wat")
}

/// Finds the file of a module without a manifest: `NAME.wasm`, `NAME.wat` or `NAME` in `folder`. Such a
/// module is granted nothing.
#[must_use]
pub fn module_beside(folder: &Path, name: &str) -> Option<PathBuf> {
    // A name with a path would lead out of the folder.
    if name.contains(['/', '\\']) {
        return None;
    }
    let names = [format!("{name}.wasm"), format!("{name}.wat"), name.to_owned()];
    names.iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

/// Finds the manifest of a module's file in the same folder, if there is one.
///
/// # Errors
/// A manifest in the folder cannot be read or has errors, so it may be that of the module; or there are
/// two.
pub fn beside(module: &Path) -> Result<Option<Found>, Error> {
    let folder = match module.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let Some(name) = module.file_name().filter(|_| folder.is_dir()) else { return Ok(None) };
    let module = folder.join(name);
    let mut beside: Option<Found> = None;
    for path in paths(folder)?.into_iter().filter(|path| path.parent() == Some(folder)) {
        let found = Found::read(&path)?;
        if found.module_path() != module {
            continue;
        }
        if let Some(other) = &beside {
            let message = format!("`{}` is about this module, too", other.path.display());
            let help = "name the one that is meant";
            return Err(Error::Wrong(vec![found.error(found.file.module.span(), message, help)]));
        }
        beside = Some(found);
    }
    Ok(beside)
}

impl Found {
    /// Reads the manifest at `path`. Warnings are left out.
    ///
    /// # Errors
    /// It cannot be read, or has errors.
    pub fn read(path: &Path) -> Result<Self, Error> {
        // One byte more than allowed shows that it is too large.
        let bytes = file::start(path, SOURCE_MAX_BYTES as u64 + 1)?;
        let parsed = File::parse_bytes(&bytes);
        let source: Arc<str> = String::from_utf8_lossy(&bytes).into();
        match parsed.file {
            Some(file) => Ok(Self { path: path.to_owned(), source, file }),
            None => Err(Error::Wrong(Finding::all_of(path, &source, parsed.diagnostics).collect())),
        }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its content.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path of its module.
    #[must_use]
    pub fn module_path(&self) -> PathBuf {
        self.folder().join(self.file.module.as_str())
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Reads its module.
    ///
    /// # Errors
    /// The file does not exist, is not a regular file, or is larger than the manifest allows.
    pub fn module(&self) -> Result<Vec<u8>, Box<Finding>> {
        file::read(&self.module_path(), self.file.granted.module_max_bytes()).map_err(|error| {
            let help = match error {
                file::Error::NoFile { .. } => "name the file that holds the module",
                file::Error::TooLarge { .. } => {
                    "raise `module_size` in [limits], or use a smaller one"
                }
                _ => "`module` is looked for in the manifest's folder",
            };
            Box::new(self.error(self.file.module.span(), error.to_string(), help))
        })
    }

    /// Its grants, with the values of its secrets from `value`. If `value` has none, its error states
    /// what to do.
    ///
    /// # Errors
    /// A finding for each secret without a value.
    pub fn manifest(
        &self,
        value: &dyn Fn(&str) -> Result<Secret, String>,
    ) -> Result<Manifest, Vec<Finding>> {
        let (mut values, mut findings) = (Vec::new(), Vec::new());
        for name in &self.file.secrets {
            match value(name) {
                Ok(secret) => values.push((name.to_string(), secret)),
                Err(help) => {
                    let message = format!("the secret `{name}` is granted and has no value");
                    findings.push(self.error(name.span(), message, &help));
                }
            }
        }
        if !findings.is_empty() {
            return Err(findings);
        }
        Ok(self.file.manifest(Arc::new(values.into_iter().collect::<FixedSecrets>())))
    }

    /// Converts the rejection of the module by a host to a finding at the line that it concerns.
    #[must_use]
    pub fn rejected(&self, rejection: &Rejection) -> Finding {
        let File { module, abi_span, sha256_span, .. } = &self.file;
        let (span, help) = match (rejection.kind, sha256_span) {
            (RejectionKind::ModuleHashMismatch, Some(span)) => {
                (span, "if this is the module that is meant, write its hash here")
            }
            (RejectionKind::ModuleAbiMismatch, _) => {
                (abi_span, "name the ABI that the module is written against")
            }
            _ => (module.span(), "the host that runs it would reject it for this"),
        };
        self.error(span, rejection.message.clone(), help).coded(rejection.kind.as_str())
    }

    /// An error at a place of the manifest.
    fn error(&self, span: &std::ops::Range<usize>, message: String, help: &str) -> Finding {
        self.finding(|out| out.error_with_help(span, message, help))
    }

    /// A warning at a place of the manifest.
    #[must_use]
    pub fn warning(&self, span: &std::ops::Range<usize>, message: String, help: &str) -> Finding {
        self.finding(|out| out.warning(span, message, help))
    }

    fn finding(&self, note: impl FnOnce(&mut Diagnostics<'_>)) -> Finding {
        let mut out = Diagnostics::new(&self.source);
        note(&mut out);
        let diagnostic = out.finish().pop().expect("one was noted");
        Finding { path: self.path.clone(), source: Arc::clone(&self.source), diagnostic }
    }
}

impl Manifests {
    /// Reads the manifests of `folder`: `integration.toml` and `*.integration.toml` in it, and
    /// `integration.toml` in each of its subfolders.
    ///
    /// # Errors
    /// One cannot be read or has errors, or two name the same integration: the folder is read as a
    /// whole, or not at all.
    pub fn find(folder: &Path) -> Result<Self, Error> {
        let mut found = Self::default();
        let mut findings = Vec::new();
        for path in paths(folder)? {
            let manifest = match Found::read(&path) {
                Ok(manifest) => manifest,
                Err(Error::Wrong(wrong)) => {
                    findings.extend(wrong);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let name = manifest.file.name();
            if let Some(other) = found.0.get(name) {
                let message = format!(
                    "`{name}` is the name of the integration in `{}`",
                    other.path.display()
                );
                let span = manifest.file.name_span();
                findings.push(manifest.error(span, message, "give each a name of its own"));
            } else {
                found.0.insert(name.to_owned(), manifest);
            }
        }
        if findings.is_empty() { Ok(found) } else { Err(Error::Wrong(findings)) }
    }

    /// The manifest of the integration called `name`.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Found> {
        self.0.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Found> + Clone {
        self.0.values()
    }
}

/// The paths of a folder's manifests, in order.
fn paths(folder: &Path) -> Result<Vec<PathBuf>, file::Error> {
    let manifest = |path: PathBuf| {
        if is_manifest(&path) {
            return Some(path);
        }
        let within = path.join(FILE_NAME);
        // If its metadata cannot be read, reading it reports why.
        let absent = within.symlink_metadata().is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        });
        (!absent).then_some(within)
    };
    let mut paths: Vec<PathBuf> =
        file::named_in(folder, |_| true)?.into_iter().filter_map(manifest).collect();
    if paths.len() > MANIFESTS_MAX {
        let (path, max) = (folder.to_owned(), MANIFESTS_MAX);
        return Err(file::Error::TooMany { path, max, what: "manifests" });
    }
    paths.sort();
    Ok(paths)
}
