//! Which files of a folder are used, and what is reported about the others.

use super::*;
use serde_json::{Value, json};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn write(file: PathBuf, text: impl AsRef<[u8]>) {
    fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    fs::write(file, text).expect("a file");
}

fn definition(id: &str) -> String {
    let text = include_str!("../../data/workflows/conformance-noop.json");
    text.replace("conformance-noop", id)
}

fn manifest(name: &str, type_id: &str) -> Value {
    json!({
        "name": name, "version": "1.0.0", "engines": {"openwop": "*"},
        "nodes": [{"typeId": type_id, "version": "1", "category": "data", "role": "pure"}],
        "runtime": {"language": "wasm"},
    })
}

fn pack(folder: &Path, at: &str, manifest: &Value) {
    write(folder.join(at).join("pack.json"), manifest.to_string());
    write(folder.join(at).join("module.wasm"), "");
}

/// The name of what is left out and the first reason.
fn left_out<T>(found: &Found<T>, folder: &Path) -> Vec<(String, String)> {
    let shown = |one: &LeftOut| {
        let file = one.file.strip_prefix(folder).expect("in the folder");
        (file.display().to_string(), one.why[0].to_string())
    };
    found.left_out.iter().map(shown).collect()
}

#[track_caller]
fn expect_left_out<T>(found: &Found<T>, folder: &Path, expected: &[(&str, &str)]) {
    let left_out = left_out(found, folder);
    assert_eq!(left_out.len(), expected.len(), "{left_out:#?}");
    for ((file, why), (expected, what)) in left_out.iter().zip(expected) {
        assert_eq!(file, expected, "{left_out:#?}");
        assert!(why.contains(what), "{file}: {why}");
    }
}

#[test]
fn all_workflows_of_the_protocol_are_found() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/workflows");
    let found = definitions(&folder).expect("a folder");
    assert_eq!(found.good.len(), 14);
    assert!(found.left_out.is_empty(), "{:?}", found.left_out);
    assert!(found.good.is_sorted_by_key(|one| one.file.clone()));
}

#[test]
fn bad_definitions_keep_no_good_ones_from_loading() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write(at("a.json"), definition("one"));
    write(at("b.json"), definition("one"));
    write(at("c.json"), "{\n  \"id\": }");
    write(at("d.json"), [b'{', 0xff]);
    write(at("e.json"), vec![b' '; DEFINITION_MAX_BYTES + 1]);
    write(at("f.json/g.json"), definition("inside"));
    write(at("notes.txt"), "no definition");
    write(at("z.json"), definition("two"));
    let found = definitions(folder.path()).expect("a folder");
    let good: Vec<_> = found.good.iter().map(|one| one.definition.id.as_str()).collect();
    assert_eq!(good, ["one", "two"]);
    let expected = [
        ("b.json", "a.json` has the id `one`, too"),
        ("c.json", "2:9: it is not valid JSON"),
        ("d.json", "is not UTF-8, from byte 1 on"),
        ("e.json", "more than the 1048576 bytes"),
        ("f.json", "not a regular file"),
    ];
    expect_left_out(&found, folder.path(), &expected);
    assert!(definitions(&at("none")).is_err());
}

#[cfg(unix)]
#[test]
fn dangling_links_and_pipes_are_reported_without_waiting() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write(at("good"), definition("one"));
    std::os::unix::fs::symlink("good", at("a.json")).expect("a link");
    std::os::unix::fs::symlink("gone", at("b.json")).expect("a link");
    std::os::unix::fs::symlink("c.json", at("c.json")).expect("a link");
    let made = std::process::Command::new("mkfifo").arg(at("d.json")).status().expect("mkfifo");
    assert!(made.success());
    std::os::unix::fs::symlink("gone", at("pack.json")).expect("a link");
    let found = definitions(folder.path()).expect("a folder");
    assert_eq!(found.good.len(), 1);
    let expected = [
        ("b.json", "a link that leads to nothing"),
        ("c.json", "can't be read"),
        ("d.json", "not a regular file"),
        ("pack.json", "a link that leads to nothing"),
    ];
    expect_left_out(&found, folder.path(), &expected);
}

#[test]
fn no_more_files_are_read_than_are_allowed() {
    let folder = folder();
    for number in 0..=FILES_MAX {
        write(folder.path().join(format!("{number:04}.json")), "");
    }
    let found = definitions(folder.path()).expect("a folder");
    assert_eq!(found.left_out.len(), FILES_MAX + 1);
    let last = found.left_out.last().expect("the last");
    assert!(last.why[0].what.contains("more than 1000 definitions"), "{last:?}");
    assert!(found.left_out[FILES_MAX - 1].why[0].what.contains("empty"));
}

#[test]
fn bad_packs_keep_no_good_ones_from_loading() {
    let folder = folder();
    let packs_in = folder.path();
    pack(packs_in, "a", &manifest("vendor.x.a", "vendor.x.a"));
    pack(packs_in, "b-name", &manifest("vendor.x.a", "vendor.x.b"));
    pack(packs_in, "c-type", &manifest("vendor.x.c", "vendor.x.a"));
    pack(packs_in, "d-built-in", &manifest("vendor.x.d", "core.noop"));
    pack(packs_in, "e-syntax", &json!(1));
    write(packs_in.join("f-module/pack.json"), manifest("vendor.x.f", "vendor.x.f").to_string());
    fs::create_dir_all(packs_in.join("g-folder/pack.json")).expect("a folder");
    fs::create_dir_all(packs_in.join(".hidden")).expect("a folder");
    fs::create_dir_all(packs_in.join("h-empty")).expect("a folder");
    write(packs_in.join("README"), "no pack");
    pack(packs_in, "z", &manifest("vendor.x.z", "vendor.x.z"));
    let found = packs(packs_in, &["core.noop"]).expect("a folder");
    let good: Vec<_> = found.good.iter().map(|one| one.manifest.name.as_str()).collect();
    assert_eq!(good, ["vendor.x.a", "vendor.x.z"]);
    assert!(found.good[0].module.ends_with("a/module.wasm"));
    let expected = [
        ("b-name/pack.json", "is the pack `vendor.x.a`, too"),
        ("c-type/pack.json", "a/pack.json` has nodes of type `vendor.x.a`, too"),
        ("d-built-in/pack.json", "the host itself has nodes of type `core.noop`"),
        ("e-syntax/pack.json", "must be an object"),
        ("f-module/pack.json", "`module.wasm` can't be found"),
        ("g-folder/pack.json", "not a regular file"),
        ("h-empty/pack.json", "there is none; add it"),
    ];
    expect_left_out(&found, packs_in, &expected);
}

#[test]
fn a_module_is_a_regular_file_in_its_folder() {
    let folder = folder();
    let pack = folder.path().join("pack");
    fs::create_dir_all(pack.join("build.wasm")).expect("a folder");
    write(pack.join("module.wasm"), "");
    write(folder.path().join("outside.wasm"), "");
    let module = |entry: &str| module_file(entry, &pack);
    assert!(module("module.wasm").expect("a file").is_file());
    assert!(module("build.wasm").expect_err("a folder").contains("not a regular file"));
    assert!(module("none.wasm").expect_err("no file").contains("can't be found"));
    #[cfg(unix)]
    {
        let link = |to: &str, from: &str| {
            std::os::unix::fs::symlink(to, pack.join(from)).expect("a link");
            module(from)
        };
        assert!(link("../outside.wasm", "out.wasm").expect_err("out").contains("leads out"));
        assert!(link("module.wasm", "in.wasm").expect("in the folder").ends_with("module.wasm"));
        assert!(link("gone.wasm", "gone-link").expect_err("gone").contains("can't be found"));
    }
}
