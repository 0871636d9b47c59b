//! `sandglass dashboards`: what it writes, where, and for which names.

mod binary;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use binary::{Folder, sandglass};
use sandglass_telemetry::Prefix;
use sandglass_telemetry::prometheus::Exporter;
use serde_json::Value;

fn originals() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboards")
}

/// Each file below `folder` by its name there, with its text.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).expect("below it").display().to_string();
            found.insert(name, fs::read_to_string(&path).expect("text"));
        }
    }
    found
}

/// The words of `text` that begin like this.
fn words<'t>(text: &'t str, begin: &str) -> BTreeSet<&'t str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(begin)).collect()
}

#[test]
fn files_with_the_default_prefix_are_identical_to_the_originals() {
    let folder = Folder::new();
    let out = folder.path("a/b");
    let said = sandglass(&[&"dashboards", &"--out", &out, &"--json"]).exits(0);
    assert_eq!(files(&out), files(&originals()), "add what is missing to the command");
    let told: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(told["prefix"], "temper");
    let told: BTreeSet<String> = told["files"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|file| {
            assert_eq!(file["written"], true, "{file}");
            let path = Path::new(file["path"].as_str().expect("a path"));
            path.strip_prefix(&out).expect("below it").display().to_string()
        })
        .collect();
    assert_eq!(told, files(&out).into_keys().collect());
}

#[test]
fn with_another_prefix_each_name_is_exported_by_a_host_with_that_prefix() {
    let folder = Folder::new();
    let out = folder.path("out");
    sandglass(&[&"dashboards", &"--prefix", &"acme_actors", &"--out", &out]).exits(0);
    let exporter = Exporter::new(Prefix::new("acme_actors").expect("valid"));
    let _metrics = exporter.metrics();
    let scrape = exporter.render();
    let exported: BTreeSet<&str> =
        scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let mut asked = BTreeSet::new();
    let renamed = files(&out);
    for (name, text) in &renamed {
        assert_eq!(words(text, "temper"), BTreeSet::new(), "{name}");
        for word in words(text, "acme_actors_").into_iter().filter(|word| *word != "acme_actors_") {
            let is_its = |metric: &&str| {
                let suffix = word.strip_prefix(*metric);
                matches!(suffix, Some("" | "_bucket" | "_sum" | "_count"))
                    || metric.strip_suffix("_total") == Some(word)
                    || metric.strip_suffix("_ratio") == Some(word)
            };
            let metric = exported.iter().find(|metric| is_its(metric));
            asked.insert(*metric.unwrap_or_else(|| panic!("{name}: {word} is not exported")));
        }
    }
    assert!(asked.len() >= 20, "{asked:?}");
    // What the tests of the originals prove of each query, then holds of these.
    let grafana = &renamed["grafana/handler-liveness.json"];
    assert!(grafana.contains("liveness-acme_actors\"") && grafana.contains(" (acme_actors)\""));
    let original = |text: String| {
        let text = text.replace("liveness-acme_actors\"", "liveness\"");
        text.replace(" (acme_actors)\"", "\"").replace("acme_actors", "temper")
    };
    let back = renamed.into_iter().map(|(name, text)| (name, original(text)));
    let back: BTreeMap<String, String> = back.collect();
    assert_eq!(back, files(&originals()));
}

#[test]
fn a_different_file_is_overwritten_only_with_force() {
    let folder = Folder::new();
    let out = folder.path("out");
    let rules = out.join("prometheus/rules.yml");
    fs::create_dir_all(out.join("prometheus")).expect("made");
    fs::write(&rules, "groups: []\n").expect("written");
    fs::write(out.join("mine.txt"), "mine").expect("written");
    let refused = sandglass(&[&"dashboards", &"--out", &out]).exits(2);
    refused.says("exists with other content").says("prometheus/rules.yml").says("--force");
    assert_eq!(files(&out).len(), 2, "nothing was written");
    assert_eq!(fs::read_to_string(&rules).expect("text"), "groups: []\n");
    sandglass(&[&"dashboards", &"--out", &out, &"--force"]).exits(0);
    let mut written = files(&out);
    assert_eq!(written.remove("mine.txt").as_deref(), Some("mine"));
    assert_eq!(written, files(&originals()));
    let again = sandglass(&[&"dashboards", &"--out", &out, &"--json"]).exits(0);
    assert!(!again.out.contains("\"written\":true"), "{}", again.out);
    sandglass(&[&"dashboards", &"--out", &out, &"--prefix", &"acme"]).exits(2);
}

#[test]
fn unusable_arguments_are_refused_with_the_reason() {
    let folder = Folder::new();
    let out = folder.path("out");
    for prefix in ["", "Temper", "a-b", "1st", "_", "a\u{1b}[31m", "é"] {
        let refused = sandglass(&[&"dashboards", &"--prefix", &prefix, &"--out", &out]).exits(2);
        assert!(!refused.err.contains('\u{1b}'), "{}", refused.err);
        refused.says("is not a metric prefix: use lower-case letters, digits and `_`");
    }
    let refused = sandglass(&[&"dashboards", &"--prefix", &"temper_", &"--out", &out]).exits(2);
    refused.says("use `temper`");
    assert!(!out.exists());
    folder.write("file", "x");
    let file = folder.path("file");
    sandglass(&[&"dashboards", &"--out", &file]).exits(2).says("can't write");
    fs::create_dir_all(out.join("README.md")).expect("made");
    sandglass(&[&"dashboards", &"--out", &out, &"--force"]).exits(2).says("can't write");
    assert_eq!(files(&out).len(), 0, "nothing was written");
}
