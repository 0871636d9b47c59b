//! Creates guest projects from the templates of each language.

mod files;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use files::File;

/// Longest name of a project, in bytes.
const NAME_MAX_BYTES: usize = 64;

/// The languages with a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Language {
    /// An asynchronous component, built by cargo
    Rust,
    /// A core module, built by clang
    C,
    /// A component, built by componentize-js
    Js,
    /// A component, built by componentize-py
    Python,
    /// A core module, built by asc
    As,
}

impl Language {
    const fn files(self) -> &'static [File] {
        match self {
            Self::Rust => files::RUST,
            Self::C => files::C,
            Self::Js => files::JAVASCRIPT,
            Self::Python => files::PYTHON,
            Self::As => files::ASSEMBLYSCRIPT,
        }
    }

    /// The command that installs what the project needs, and builds it.
    pub(crate) const fn build_command(self) -> &'static str {
        match self {
            Self::Rust => "cargo build --release --target wasm32-wasip2",
            Self::C | Self::Python => "make",
            Self::Js | Self::As => "npm install",
        }
    }
}

/// Creates a project in the new folder at `path`, which names it. Returns its files.
///
/// # Errors
/// Errors if the name is not allowed, the folder has content, or a file cannot be written. Files
/// that were written before an error remain.
pub(crate) fn create(path: &Path, language: Language) -> anyhow::Result<Vec<PathBuf>> {
    let name = name(path)?;
    if path.symlink_metadata().is_ok() && !is_empty_folder(path) {
        bail!("`{}` exists already; choose another name, or remove it", path.display());
    }
    let mut written = Vec::new();
    for File { path: file, text } in language.files() {
        let file = path.join(file);
        let folder = file.parent().unwrap_or(path);
        std::fs::create_dir_all(folder)
            .with_context(|| format!("can't create `{}`", folder.display()))?;
        std::fs::write(&file, fill_in(text, &name))
            .with_context(|| format!("can't write `{}`", file.display()))?;
        written.push(file);
    }
    Ok(written)
}

fn is_empty_folder(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// The name of a project, which modules, packages and manifests of all languages can have.
fn name(path: &Path) -> anyhow::Result<String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.starts_with("sandglass") {
        bail!("`{name}` is reserved, because it starts with `sandglass`; choose another name");
    }
    let is_valid = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
        && name.len() <= NAME_MAX_BYTES;
    if !is_valid {
        bail!(
            "`{}` is not a name for a project: write a lowercase letter, and then lowercase \
             letters, digits, `-` and `_`, at most {NAME_MAX_BYTES} characters",
            sandglass_source::printable(&sandglass_source::shortened(name, 80))
        );
    }
    Ok(name.to_owned())
}

fn fill_in(text: &str, name: &str) -> String {
    // The files of a crate are named with underscores.
    text.replace("{{name}}", name).replace("{{crate}}", &name.replace('-', "_"))
}
