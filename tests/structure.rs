//! The map of the crates: which crate uses which, and what each must not contain. A new arrow or a
//! new crate changes this table, and needs a decision record in docs/adr.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate with the crates that its code uses, without those that only its tests use.
const ARROWS: &[(&str, &[&str])] = &[
    ("bench", &["host", "journal", "model", "source", "telemetry"]),
    (
        "cli",
        &[
            "bench",
            "host",
            "http",
            "insight",
            "journal",
            "liveness",
            "model",
            "openwop",
            "postgres",
            "runtime",
            "scenario",
            "server",
            "source",
            "telemetry",
            "testkit",
        ],
    ),
    ("cluster", &["journal", "model", "postgres", "runtime", "supervisor", "telemetry"]),
    (
        "daemon",
        &["host", "http", "insight", "journal", "liveness", "model", "runtime", "telemetry"],
    ),
    ("fuzz", &["host", "journal", "liveness", "model", "scenario", "server", "source", "workflow"]),
    ("guest", &["guest-macros"]),
    ("guest-macros", &[]),
    ("host", &["model", "source", "supervisor", "telemetry"]),
    ("http", &["model", "source"]),
    ("insight", &["liveness", "model"]),
    ("journal", &["model", "source"]),
    ("liveness", &["model", "source"]),
    ("misbehaving", &["host", "journal", "liveness", "model", "runtime"]),
    ("model", &[]),
    (
        "openwop",
        &["host", "http", "journal", "liveness", "model", "runtime", "telemetry", "workflow"],
    ),
    ("postgres", &["journal", "model"]),
    ("runtime", &["host", "insight", "journal", "liveness", "model", "source", "telemetry"]),
    ("scenario", &["host", "journal", "liveness", "model", "runtime", "source", "telemetry"]),
    (
        "server",
        &[
            "cluster",
            "daemon",
            "host",
            "http",
            "journal",
            "liveness",
            "model",
            "openwop",
            "postgres",
            "runtime",
            "scenario",
            "source",
            "telemetry",
        ],
    ),
    ("sim", &["cluster", "journal", "liveness", "model", "runtime", "supervisor"]),
    ("source", &["model"]),
    ("supervisor", &["model", "source", "telemetry"]),
    ("telemetry", &["model"]),
    ("testkit", &["host", "model", "source"]),
    ("workflow", &["model", "source"]),
];

/// What the sources of a crate, or one file of them, must not mention, and why.
const ABSENT: &[(&str, &[&str], &str)] = &[
    ("model", &["tokio", "wasmtime", "async fn"], "plain data does no I/O"),
    ("source", &["tokio", "wasmtime", "std::fs"], "it reads text that it is given"),
    (
        "liveness",
        &[
            "tokio",
            "wasmtime",
            "std::fs",
            "HashMap",
            "HashSet",
            "SystemClock",
            // Commands and routes belong to the crates above it.
            "`sandglass ",
            "/v1/",
        ],
        "decisions are pure",
    ),
    (
        "insight",
        &["tokio", "wasmtime", "std::fs", "SystemClock"],
        "explanations are computed from records",
    ),
    ("supervisor", &["wasmtime"], "it works with any engine"),
    (
        "host",
        &["sandglass_liveness", "sandglass_journal", "sandglass_runtime"],
        "it knows no entity",
    ),
    ("journal", &["sandglass_liveness", "sandglass_host", "wasmtime"], "it decides nothing"),
    ("postgres", &["sandglass_liveness", "sandglass_runtime", "wasmtime"], "it is a store"),
    ("cluster/placement.rs", PURE, "the ownership protocol is pure"),
    ("cluster/routes.rs", PURE, "the ownership protocol is pure"),
    ("cluster/tenure.rs", PURE, "the ownership protocol is pure"),
    ("cluster", &["wasmtime"], "it runs no guest"),
    ("runtime", &["wasmtime"], "it runs guests through the host"),
    ("telemetry", &["sandglass_host", "sandglass_runtime", "wasmtime"], "it holds no logic"),
    ("http", &["sandglass_runtime", "sandglass_host"], "it knows no route"),
    ("daemon", &["wasmtime"], "it serves a runtime"),
    ("openwop", &["wasmtime::"], "it invokes nodes through the host"),
    (
        "workflow",
        &[
            "tokio",
            "axum",
            "sandglass_host",
            "sandglass_journal",
            "sandglass_runtime",
            "std::fs",
            "canonicalize",
            "SystemClock",
            "async fn",
        ],
        "what a workflow does next is a function of its definition and its events",
    ),
    (
        "server",
        &["clap", "std::process::exit", "println", "eprintln", "stdout", "stderr", "signal::unix"],
        "it is a library: the caller has the command line, the terminal and the signals",
    ),
    (
        "scenario",
        &["clap", "println", "eprintln", "stderr", "IsTerminal"],
        "what it plays is shown by the caller",
    ),
];

/// What a pure module of a crate with I/O must not mention.
const PURE: &[&str] = &[
    "tokio",
    "async fn",
    "std::fs",
    "std::net",
    "SystemClock",
    "Instant",
    "WallTime",
    "HashMap",
    "HashSet",
    "sandglass_postgres",
    "sandglass_runtime",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The crates of the workspace, by their names without `sandglass-`.
fn crates() -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(root().join("crates")).expect("the folder can be read");
    let folders = entries.map(|entry| entry.expect("an entry can be read").path());
    let named = folders.filter_map(|folder| {
        let name = folder.file_name()?.to_str()?.strip_prefix("sandglass-")?.to_owned();
        Some((name, folder))
    });
    named.collect()
}

/// The crates of the workspace that the code of the crate in `folder` uses.
fn uses(folder: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest can be read");
    let manifest: toml::Table = text.parse().expect("a manifest is TOML");
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
    let names = dependencies.into_iter().flat_map(toml::Table::keys);
    names.filter_map(|name| Some(name.strip_prefix("sandglass-")?.to_owned())).collect()
}

/// The files with Rust code below `folder`.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn each_crate_uses_those_that_the_map_allows() {
    let expected: BTreeMap<String, BTreeSet<String>> = ARROWS
        .iter()
        .map(|(name, uses)| {
            ((*name).to_owned(), uses.iter().map(|one| (*one).to_owned()).collect())
        })
        .collect();
    let found: BTreeMap<String, BTreeSet<String>> =
        crates().into_iter().map(|(name, folder)| (name, uses(&folder))).collect();
    for (name, uses) in &found {
        assert_eq!(
            Some(uses),
            expected.get(name),
            "`sandglass-{name}` uses other crates than the map in tests/structure.rs says"
        );
    }
    assert_eq!(found.len(), expected.len(), "the map names a crate that does not exist");
}

#[test]
fn no_arrow_points_back() {
    let mut left: BTreeMap<&str, BTreeSet<&str>> =
        ARROWS.iter().map(|(name, uses)| (*name, uses.iter().copied().collect())).collect();
    while !left.is_empty() {
        let free: Vec<&str> =
            left.iter().filter(|(_, uses)| uses.is_empty()).map(|(name, _)| *name).collect();
        assert!(!free.is_empty(), "these crates use each other in a circle: {:?}", left.keys());
        for name in free {
            left.remove(name);
            for uses in left.values_mut() {
                uses.remove(name);
            }
        }
    }
}

#[test]
fn no_crate_contains_what_it_must_not() {
    let crates = crates();
    for (place, absent, why) in ABSENT {
        let (name, file) = place.split_once('/').unwrap_or((place, ""));
        let folder = crates.get(name).unwrap_or_else(|| panic!("no crate `sandglass-{name}`"));
        let mut files = Vec::new();
        if file.is_empty() {
            sources(&folder.join("src"), &mut files);
        } else {
            files.push(folder.join("src").join(file));
        }
        assert!(!files.is_empty());
        for file in files {
            let text = fs::read_to_string(&file).expect("a source can be read");
            for (at, line) in text.lines().enumerate() {
                // Comments may say what is absent.
                let code = line.split("//").next().unwrap_or_default();
                for word in *absent {
                    assert!(
                        !code.contains(word),
                        "{}:{}: `{word}` does not belong here: {why}",
                        file.display(),
                        at + 1
                    );
                }
            }
        }
    }
}

#[test]
fn the_architecture_page_lists_each_crate() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("the page exists");
    for name in crates().keys() {
        assert!(page.contains(&format!("`sandglass-{name}`")), "`sandglass-{name}` is missing");
    }
}

/// Crates that the diagram in docs/tour.md leaves out: most crates use them, they are for guests, tests
/// and measurements, or, as `postgres`, they are another store in the place of `journal`.
const NOT_DRAWN: &[&str] = &[
    "bench",
    "fuzz",
    "guest",
    "guest-macros",
    "misbehaving",
    "model",
    "postgres",
    "sim",
    "source",
    "telemetry",
];

/// The crates that `name` uses, directly or through others.
fn reachable<'a>(name: &str, arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reachable = BTreeSet::new();
    let mut next: Vec<&str> = arrows[name].iter().copied().collect();
    while let Some(name) = next.pop() {
        if reachable.insert(name) {
            next.extend(&arrows[name]);
        }
    }
    reachable
}

#[test]
fn the_tour_draws_each_arrow_that_does_not_follow_from_others() {
    let is_drawn = |name: &&str| !NOT_DRAWN.contains(name);
    let arrows: BTreeMap<&str, BTreeSet<&str>> = ARROWS
        .iter()
        .filter(|(name, _)| is_drawn(name))
        .map(|(name, uses)| (*name, uses.iter().copied().filter(is_drawn).collect()))
        .collect();
    let mut expected = BTreeSet::new();
    for (name, uses) in &arrows {
        let follows =
            |used: &str| uses.iter().any(|other| reachable(other, &arrows).contains(used));
        expected.extend(uses.iter().filter(|used| !follows(used)).map(|used| (*name, *used)));
    }
    let page = fs::read_to_string(root().join("docs/tour.md")).expect("the page exists");
    let drawn: BTreeSet<(&str, &str)> = page
        .lines()
        .filter_map(|line| line.trim().split_once(" --> "))
        .filter(|(from, to)| arrows.contains_key(from) && arrows.contains_key(to))
        .collect();
    assert_eq!(drawn, expected, "the diagram of the crates in docs/tour.md");
}
