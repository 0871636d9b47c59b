//! Keeps words and phrases from returning that made code and docs hard to read.

use std::fs;
use std::path::{Path, PathBuf};

/// A phrase, in lower case, and what to write instead. A phrase matches whole words.
const BANNED: &[(&str, &str)] = &[
    ("told", "name what it is: `reported`, `described`, `notified`; or use the passive voice"),
    ("whoever", "name the actor: the caller, the client, the operator, the author"),
    ("somebody", "name the actor: a client, a user, an operator"),
    ("had again", "replayed"),
    ("having it again", "replaying it"),
    ("mend", "fix"),
    ("mended", "fixed"),
    ("mends", "fixes"),
    ("of which nobody", "state what is true of it"),
    ("of whom nobody", "state what is true of it"),
    ("none that", "state the condition: `None if ...`, `no ... that`"),
    ("to be had", "available"),
    ("can be had", "is available"),
    ("is to know that", "state the rule"),
    ("such a one", "repeat the noun"),
];

/// Places where a phrase is right: a file or folder, the phrase, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("CHANGELOG.md", "told", "old names of renamed items"),
    ("crates/sandglass-bench/src/openwop/slowing.rs", "told", "a key in the JSON of a figure"),
    ("crates/sandglass-openwop/data/schemas", "told", "a schema of the protocol"),
];

/// Files and folders of text that people read.
const SEARCHED: &[&str] = &[
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
    "README.md",
    "SECURITY.md",
    "clippy.toml",
    "crates",
    "dashboards",
    "deny.toml",
    "docs",
    "guest-fixtures/README.md",
    "guest-fixtures/openwop/README.md",
    "guest-fixtures/openwop/bad-packs",
    "guest-fixtures/openwop/bad-workflows",
    "guest-fixtures/openwop/packs",
    "guest-fixtures/openwop/workflows",
];

const EXTENSIONS: &[&str] =
    &["css", "html", "js", "json", "md", "rs", "toml", "wit", "yaml", "yml"];

fn files(path: &Path, into: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder can be read") {
            files(&entry.expect("an entry can be read").path(), into);
        }
    } else if path
        .extension()
        .is_some_and(|extension| EXTENSIONS.iter().any(|one| extension == *one))
    {
        into.push(path.to_owned());
    }
}

/// Whether `text` contains `phrase` as whole words.
fn contains(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        [before, after].into_iter().flatten().all(|c| !c.is_ascii_alphabetic())
    })
}

#[test]
fn banned_phrases_do_not_return() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut all = Vec::new();
    SEARCHED.iter().for_each(|path| files(&root.join(path), &mut all));
    let mut found = Vec::new();
    for file in &all {
        let shown = file.strip_prefix(&root).expect("it is below the root").display().to_string();
        // One of the samples is intentionally not UTF-8.
        let bytes = fs::read(file).expect("a file can be read");
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        for (phrase, instead) in BANNED {
            let is_exception = |(path, excepted, _): &(&str, &str, &str)| {
                shown.starts_with(path) && excepted == phrase
            };
            if EXCEPTIONS.iter().any(is_exception) {
                continue;
            }
            for (at, line) in text.lines().enumerate() {
                if contains(line, phrase) {
                    found.push(format!("{shown}:{}: `{phrase}`: {instead}", at + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "{} phrases are banned:\n{}", found.len(), found.join("\n"));
}
