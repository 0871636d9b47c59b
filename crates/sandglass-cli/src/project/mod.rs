//! New projects: the files that a guest in each language begins with.

mod files;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use files::File;

/// Longest name of a project.
const NAME_MAX_BYTES: usize = 64;

/// What guests can be begun in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Language {
    /// A core module, by cargo
    Rust,
    /// A core module, by clang
    C,
    /// A component, by componentize-js
    Js,
    /// A component, by componentize-py
    Python,
    /// `AssemblyScript`: a core module
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

    /// The command that brings what it needs, and builds it.
    pub(crate) const fn build_command(self) -> &'static str {
        match self {
            Self::Rust => "cargo build --release --target wasm32-unknown-unknown",
            Self::C | Self::Python => "make",
            Self::Js | Self::As => "npm install",
        }
    }
}

/// Makes a project in the new folder at `path`, named as that is; answers its files.
///
/// # Errors
/// The name is none, something is there already, or it can't be written. What was written is
/// left where it can't be written whole.
pub(crate) fn make(path: &Path, language: Language) -> anyhow::Result<Vec<PathBuf>> {
    let name = name(path)?;
    if path.symlink_metadata().is_ok() && !is_empty_folder(path) {
        bail!("`{}` is there already; choose another name, or remove it", path.display());
    }
    let mut written = Vec::new();
    for File { path: file, text } in language.files() {
        let file = path.join(file);
        let folder = file.parent().unwrap_or(path);
        std::fs::create_dir_all(folder)
            .with_context(|| format!("can't make `{}`", folder.display()))?;
        std::fs::write(&file, filled_in(text, &name))
            .with_context(|| format!("can't write `{}`", file.display()))?;
        written.push(file);
    }
    Ok(written)
}

fn is_empty_folder(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// The name that modules, packages and manifests of all languages can have.
fn name(path: &Path) -> anyhow::Result<String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.starts_with("sandglass") {
        bail!("`{name}` is named as a part of Sandglass is; choose another name");
    }
    let is_one = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
        && name.len() <= NAME_MAX_BYTES;
    if !is_one {
        bail!(
            "`{}` can't name a project: write a small letter, and then small letters, digits, `-` \
             and `_`, at most {NAME_MAX_BYTES}",
            sandglass_source::printable(&sandglass_source::shortened(name, 80))
        );
    }
    Ok(name.to_owned())
}

fn filled_in(text: &str, name: &str) -> String {
    // Files of crates are named without hyphens.
    text.replace("{{name}}", name).replace("{{crate}}", &name.replace('-', "_"))
}
