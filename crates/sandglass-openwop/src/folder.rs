//! Reads folders of definitions and of packs, and reports which files cannot be used, and why.
//!
//! Its functions block.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use sandglass_workflow::definition::{DEFINITION_MAX_BYTES, Definition};
use sandglass_workflow::pack::{MANIFEST_MAX_BYTES, Manifest};
use sandglass_workflow::{Problem, quoted};

/// Most files of a folder of definitions, and most packs of a folder of packs, that are read.
pub const FILES_MAX: usize = 1_000;

/// Most entries of a folder, whether they are read or not.
const ENTRIES_MAX: usize = 100_000;

/// The manifest of a pack, in its folder.
const MANIFEST: &str = "pack.json";

/// The contents of a folder.
#[derive(Clone, Debug)]
pub struct Found<T> {
    /// What can be used, sorted by file name.
    pub good: Vec<T>,
    /// What cannot be used, sorted by file name.
    pub left_out: Vec<LeftOut>,
}

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOut {
    /// The file.
    pub file: PathBuf,
    /// Why; at least one problem.
    pub why: Vec<Problem>,
}

/// A definition, with its file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DefinitionFile {
    /// The file.
    pub file: PathBuf,
    /// Its contents.
    pub definition: Definition,
}

/// A pack, with its files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pack {
    /// Its `pack.json`.
    pub file: PathBuf,
    /// The contents of that file.
    pub manifest: Manifest,
    /// Its module: a regular file in its folder when the manifest was read. It has not been opened.
    pub module: PathBuf,
}

impl<T> Found<T> {
    fn leave_out(&mut self, file: PathBuf, why: Vec<Problem>) {
        self.left_out.push(LeftOut { file, why });
    }

    fn leave_out_for(&mut self, file: PathBuf, what: impl AsRef<str>) {
        self.leave_out(file, vec![Problem::new("", what)]);
    }
}

/// The definitions in `folder`: its files `*.json`, sorted by name, and not those of folders in
/// it. Of two with one id, the second is left out, and so are files beyond the first
/// [`FILES_MAX`].
///
/// # Errors
/// The folder cannot be read.
pub fn definitions(folder: &Path) -> io::Result<Found<DefinitionFile>> {
    let mut found = Found { good: Vec::new(), left_out: Vec::new() };
    let mut ids: BTreeMap<String, PathBuf> = BTreeMap::new();
    let is_json = |name: &Path| name.extension().is_some_and(|extension| extension == "json");
    for (number, file) in entries(folder, is_json)?.into_iter().enumerate() {
        if number >= FILES_MAX {
            found.leave_out_for(file, too_many("definitions"));
            continue;
        }
        let definition =
            text(&file, DEFINITION_MAX_BYTES).and_then(|text| Definition::parse(&text));
        match definition {
            Err(why) => found.leave_out(file, why),
            Ok(definition) => match ids.get(&definition.id) {
                Some(other) => {
                    let what = format!(
                        "`{}` has the id {}, too; rename one of them",
                        other.display(),
                        quoted(&definition.id)
                    );
                    found.leave_out(file, vec![Problem::new("/id", what)]);
                }
                None => {
                    ids.insert(definition.id.clone(), file.clone());
                    found.good.push(DefinitionFile { file, definition });
                }
            },
        }
    }
    Ok(found)
}

/// The packs in `folder`: the folders in it, sorted by name, but those whose names begin with a
/// dot. A pack is left out if it has no `pack.json`, if a pack before it has the same name, or if a
/// pack before it or the host itself (`taken`) has one of its node types.
///
/// # Errors
/// The folder cannot be read.
pub fn packs(folder: &Path, taken: &[&str]) -> io::Result<Found<Pack>> {
    let mut found = Found { good: Vec::new(), left_out: Vec::new() };
    let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut types: BTreeMap<String, String> = BTreeMap::new();
    types.extend(taken.iter().map(|taken| ((*taken).to_owned(), "the host itself".to_owned())));
    let mut number = 0;
    let is_hidden = |path: &Path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
    };
    for pack in entries(folder, |path| !is_hidden(path))? {
        let file = pack.join(MANIFEST);
        if pack.is_file() {
            continue;
        }
        number += 1;
        if number > FILES_MAX {
            found.leave_out_for(file, too_many("packs"));
            continue;
        }
        match read_pack(&file, &pack) {
            Err(why) => found.leave_out(file, why),
            Ok((manifest, module)) => {
                let why = clashes(&manifest, &names, &types);
                if why.is_empty() {
                    names.insert(manifest.name.clone(), file.clone());
                    let owner = format!("`{}`", file.display());
                    let own = manifest.nodes.iter();
                    types.extend(own.map(|node| (node.type_id.clone(), owner.clone())));
                    found.good.push(Pack { file, manifest, module });
                } else {
                    found.leave_out(file, why);
                }
            }
        }
    }
    Ok(found)
}

fn read_pack(file: &Path, folder: &Path) -> Result<(Manifest, PathBuf), Vec<Problem>> {
    let manifest = Manifest::parse(&text(file, MANIFEST_MAX_BYTES)?)?;
    let module = module_file(&manifest.entry, folder).map_err(|what| {
        let what = format!("the entry {} {what}", quoted(&manifest.entry));
        vec![Problem::new("/runtime/entry", what)]
    })?;
    Ok((manifest, module))
}

/// The module of the pack in `folder`: a regular file in that folder, after following symbolic links.
fn module_file(entry: &str, folder: &Path) -> Result<PathBuf, String> {
    let found =
        |path: &Path| path.canonicalize().map_err(|error| format!("can't be found: {error}"));
    let file = found(&folder.join(entry))?;
    if !file.starts_with(found(folder)?) {
        let what = "leads out of the pack's folder by a symbolic link; put the file there";
        return Err(what.to_owned());
    }
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        Ok(_) => Err("is not a regular file".to_owned()),
        Err(error) => Err(format!("can't be read: {error}")),
    }
}

/// The name and the node types of a pack that others have already.
fn clashes(
    manifest: &Manifest,
    names: &BTreeMap<String, PathBuf>,
    types: &BTreeMap<String, String>,
) -> Vec<Problem> {
    let mut why = Vec::new();
    if let Some(other) = names.get(&manifest.name) {
        let what = format!(
            "`{}` is the pack {}, too; remove one of them",
            other.display(),
            quoted(&manifest.name)
        );
        why.push(Problem::new("/name", what));
    }
    for (index, node) in manifest.nodes.iter().enumerate() {
        if let Some(other) = types.get(&node.type_id) {
            let what = format!("{other} has nodes of type {}, too", quoted(&node.type_id));
            why.push(Problem::new(format!("/nodes/{index}/typeId"), what));
        }
    }
    why.truncate(crate::PROBLEMS_MAX);
    why
}

fn too_many(what: &str) -> String {
    format!("the folder has more than {FILES_MAX} {what}; move some to another one")
}

/// Whether the file does not exist, or its parent is not a folder.
fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The entries of a folder for which `wanted` holds, sorted by name.
fn entries(folder: &Path, wanted: impl Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for (number, entry) in fs::read_dir(folder)?.enumerate() {
        if number >= ENTRIES_MAX {
            let what = format!("it has more than {ENTRIES_MAX} entries; use a folder of its own");
            return Err(io::Error::other(what));
        }
        let path = entry?.path();
        if wanted(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The text of a regular file of at most `max` bytes.
fn text(file: &Path, max: usize) -> Result<String, Vec<Problem>> {
    let wrong = |what: String| vec![Problem::new("", what)];
    let not_read = |error: io::Error| {
        let what = match absent(&error) {
            true if file.is_symlink() => "it is a link that leads to nothing",
            true => "there is none; add it",
            false => "it can't be read",
        };
        wrong(format!("{what}: {error}"))
    };
    // Before it is opened: opening a pipe waits for a writer.
    if !fs::metadata(file).map_err(not_read)?.is_file() {
        return Err(wrong("it is not a regular file".to_owned()));
    }
    let most = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    File::open(file).map_err(not_read)?.take(most).read_to_end(&mut bytes).map_err(not_read)?;
    if bytes.len() > max {
        return Err(wrong(format!("it has more than the {max} bytes that are allowed; split it")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        wrong(format!("it is not UTF-8, from byte {at} on; save it as UTF-8"))
    })
}

#[cfg(test)]
mod tests;
