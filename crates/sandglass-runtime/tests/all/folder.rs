//! A folder of specs and integrations, as it is read to be run.

use std::path::Path;

use sandglass_host::Secret;
use sandglass_liveness::spec::Strictness;
use sandglass_runtime::{Folder, FolderError, ModuleSource};

const SPEC: &str = r#"
[automaton]
name = "Order"
states = ["Open", "Paying", "Done"]
initial = "Open"
terminal = ["Done"]
allow_indefinite_states = ["Open", "Paying"]

[[action]]
name = "Pay"
from = ["Open"]
to = "Paying"
effect = "trigger charge"

[[action]]
name = "End"
from = ["Paying"]
to = "Done"

[[integration]]
name = "charge"
module = "charge"
deadline = "5s"
on_failure = "End"
on_timeout = "End"
"#;

const MODULE: &str = "(module)";

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    folder
}

fn manifest(name: &str, more: &str) -> String {
    format!("name = \"{name}\"\nmodule = \"m.wat\"\nabi = \"core\"\n{more}")
}

fn wrong(path: &Path) -> Vec<String> {
    match Folder::read(path) {
        Err(FolderError::Wrong(findings)) => {
            findings.iter().map(|finding| finding.diagnostic.to_string()).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// An automaton that only waits.
const PARENT: &str = "[automaton]\nname = \"Parent\"\nstates = [\"Open\"]\ninitial = \"Open\"\n\
                      allow_indefinite_states = [\"Open\"]\n";
const OTHER: &str = "[automaton]\nname = \"Other\"\nstates = [\"Open\"]\ninitial = \"Open\"\n\
                     allow_indefinite_states = [\"Open\"]\n\
                     [[action]]\nname = \"Begin\"\nfrom = [\"Open\"]\n";

#[test]
fn a_module_is_found_by_its_manifest_or_else_by_its_file_name() {
    let bare = folder(&[("a.ioa.toml", SPEC), ("charge.wat", MODULE)]);
    let read = Folder::read(bare.path()).expect("it is right");
    assert!(matches!(read.sources["charge"], ModuleSource::File(_)));

    let text = manifest("charge", "[grants]\nhosts = [\"a\"]\n");
    let with_manifest = folder(&[
        ("a.ioa.toml", SPEC),
        ("charge.wat", "(module (; not this one ;))"),
        ("charge/integration.toml", &text),
        ("charge/m.wat", MODULE),
    ]);
    let read = Folder::read(with_manifest.path()).expect("it is right");
    assert_eq!((read.specs.len(), read.warnings.len()), (1, 0));
    let modules = read.modules(&|_| Err("none".to_owned())).expect("they can be read");
    assert_eq!((modules[0].name.as_str(), &*modules[0].bytes), ("charge", MODULE.as_bytes()));
    assert!(format!("{:?}", modules[0].manifest).contains("host: \"a\""));
}

#[test]
fn a_missing_module_is_reported_where_the_spec_names_it() {
    let none = folder(&[("a.ioa.toml", SPEC), ("integration.toml", &manifest("chagre", ""))]);
    let said = wrong(none.path());
    assert!(said[0].contains("there is no module `charge`"), "{said:?}");
    assert!(said[0].contains("did you mean `chagre`?"), "{said:?}");
}

#[test]
fn a_check_reports_missing_modules_and_only_strict_specs_need_them() {
    let none = folder(&[("a.ioa.toml", SPEC)]);
    let read = Folder::check(none.path(), Strictness::AsDeclared).expect("it can be checked");
    assert!(read.sources.is_empty());
    let said: Vec<String> = read.warnings.iter().map(|one| one.diagnostic.to_string()).collect();
    assert!(
        said.iter().any(|one| one.contains("warning: there is no module `charge`, without")),
        "{said:?}"
    );
    let strict = folder(&[("a.ioa.toml", &SPEC.replace("initial", "strict = true\ninitial"))]);
    for (folder, strictness) in [(&none, Strictness::Strict), (&strict, Strictness::AsDeclared)] {
        let checked = Folder::check(folder.path(), strictness);
        assert!(matches!(checked, Err(FolderError::Wrong(_))), "{checked:?}");
    }
}

#[test]
fn an_adapter_needs_no_module() {
    let adapter = SPEC.replace("module = \"charge\"", "type = \"adapter\"");
    let read = folder(&[("a.ioa.toml", &adapter)]);
    let read = Folder::read(read.path()).expect("it is right");
    assert!(read.sources.is_empty());
}

#[test]
fn an_invalid_manifest_is_an_error_and_does_not_reduce_grants() {
    let broken =
        folder(&[("a.ioa.toml", SPEC), ("charge.wat", MODULE), ("integration.toml", "nmae = 1")]);
    assert!(wrong(broken.path())[0].contains("unknown key `nmae`"));
}

#[test]
fn a_manifest_for_a_module_that_no_spec_names_is_a_warning() {
    let spare = manifest("spare", "");
    let more =
        folder(&[("a.ioa.toml", SPEC), ("charge.wat", MODULE), ("b.integration.toml", &spare)]);
    let read = Folder::read(more.path()).expect("it can be used");
    assert!(read.warnings[0].diagnostic.message.contains("no spec of the folder"));
}

#[test]
fn every_missing_secret_and_module_is_reported() {
    let text = manifest("charge", "[grants]\nsecrets = [\"A\", \"B\"]\n");
    let files = folder(&[("a.ioa.toml", SPEC), ("integration.toml", &text)]);
    let read = Folder::read(files.path()).expect("it is right");
    let value =
        |name: &str| if name == "A" { Ok(Secret::new("x")) } else { Err(format!("set {name}")) };
    let Err(FolderError::Wrong(findings)) = read.modules(&value) else { panic!("B has no value") };
    let said: Vec<String> = findings.iter().map(|one| one.diagnostic.to_string()).collect();
    assert!(said[0].contains("m.wat") && said[1].contains("`B` is granted and has no value"));
}

#[test]
fn a_secret_without_a_value_is_reported_once() {
    let other = SPEC.replace("\"Order\"", "\"Other\"").replace("\"charge\"", "\"refund\"");
    let text = |name| manifest(name, "[grants]\nsecrets = [\"A\"]\n");
    let files = folder(&[
        ("a.ioa.toml", SPEC),
        ("b.ioa.toml", &other.replace("trigger charge", "trigger refund")),
        ("m.wat", MODULE),
        ("a.integration.toml", &text("charge")),
        ("b.integration.toml", &text("refund")),
    ]);
    let read = Folder::read(files.path()).expect("it is right");
    let modules = read.modules(&|name| Err(format!("set {name}")));
    let Err(FolderError::Wrong(findings)) = modules else { panic!("A has no value") };
    let [one] = &findings[..] else { panic!("{findings:?}") };
    assert!(one.path.ends_with("a.integration.toml"), "{one:?}");
}

#[test]
fn a_folder_without_specs_is_an_error() {
    let empty = folder(&[]);
    assert!(matches!(Folder::read(empty.path()), Err(FolderError::Empty(_))));
    let absent = empty.path().join("absent");
    assert!(matches!(Folder::read(&absent), Err(FolderError::File(_))));
}

#[test]
fn two_specs_of_one_type_are_reported_with_their_files() {
    let twice = folder(&[("a.ioa.toml", SPEC), ("b.ioa.toml", SPEC), ("charge.wat", MODULE)]);
    let [mistake] = &wrong(twice.path())[..] else { panic!("one mistake") };
    assert!(mistake.starts_with("3:8: error: `Order` is the type of the spec in"), "{mistake}");
    assert!(mistake.contains("a.ioa.toml"), "{mistake}");
}

#[test]
fn a_spawned_type_without_a_spec_is_reported() {
    let spawns = |effect: &str| {
        let action = "[[action]]\nname = \"Spawn\"\nfrom = [\"Open\"]";
        let source = format!("{PARENT}\n{action}\neffect = \"{effect}\"\n");
        folder(&[("a.ioa.toml", &source), ("b.ioa.toml", OTHER)])
    };
    for (effect, expected) in [
        ("spawn('Other', 'Begin')", None),
        (
            "spawn('Othr', 'Begin')",
            Some("of the type `Othr`, which is spawned\n  help: did you mean"),
        ),
        ("spawn('Other', 'Begni')", Some("has no action `Begni`\n  help: did you mean `Begin`?")),
    ] {
        let read = Folder::read(spawns(effect).path()).expect("it can be used");
        let said: Vec<String> =
            read.warnings.iter().map(|one| one.diagnostic.to_string()).collect();
        assert_eq!(said.len(), usize::from(expected.is_some()), "{effect}: {said:?}");
        assert!(expected.is_none_or(|text| said[0].contains(text)), "{effect}: {said:?}");
    }
}

#[test]
fn guards_that_read_unknown_types_or_states_are_reported() {
    for (guard, expected) in [
        ("Other[parent_id].status == 'Open'", None),
        ("Othr[parent_id].status == 'Open'", Some("of the type `Othr`, whose state the guard")),
        ("Other[parent_id].status in ['Open', 'Opne']", Some("has no state `Opne`")),
        ("Other[parent_id].status != 'Opne'", Some("help: did you mean `Open`?")),
    ] {
        let action = "[[action]]\nname = \"Read\"\nfrom = [\"Open\"]";
        let variable = "[[state]]\nname = \"parent_id\"\ntype = \"string\"";
        let source = format!("{PARENT}\n{variable}\n{action}\nguard = \"{guard}\"\n");
        let said = |source: &str| {
            let files = folder(&[("a.ioa.toml", source), ("b.ioa.toml", OTHER)]);
            match Folder::read(files.path()) {
                Ok(read) => {
                    let warnings = read.warnings.iter();
                    Ok(warnings.map(|one| one.diagnostic.to_string()).collect::<Vec<_>>())
                }
                Err(error) => Err(error.to_string()),
            }
        };
        let warnings = said(&source).expect("it can be used");
        assert_eq!(warnings.len(), usize::from(expected.is_some()), "{guard}: {warnings:?}");
        assert!(expected.is_none_or(|text| warnings[0].contains(text)), "{guard}: {warnings:?}");
        let strict = source.replacen("[automaton]", "[automaton]\nstrict = true", 1);
        assert_eq!(said(&strict).is_err(), expected.is_some(), "{guard}");
    }
}

#[test]
fn types_that_spawn_each_other_without_end_are_reported() {
    let action = "[[action]]\nname = \"Spawn\"\nfrom = [\"Open\"]";
    let parent = format!("{PARENT}\n{action}\neffect = \"spawn('Other', 'Begin')\"\n");
    let other = format!("{OTHER}effect = \"spawn('Parent', 'Spawn')\"\n");
    let files = folder(&[("a.ioa.toml", &parent), ("b.ioa.toml", &other)]);
    let read = Folder::read(files.path()).expect("it can be used");
    let [found] = &read.warnings[..] else { panic!("{:?}", read.warnings) };
    let said = found.diagnostic.to_string();
    assert!(said.contains("Parent.Spawn -> Other.Begin -> Parent.Spawn"), "{said}");
    assert!(found.path.ends_with("a.ioa.toml"), "{found:?}");
}

#[cfg(unix)]
#[test]
fn one_unreadable_file_makes_the_folder_unreadable() {
    for name in ["other.ioa.toml", "other.integration.toml", "integration.toml"] {
        let folder = folder(&[("order.ioa.toml", SPEC), ("charge.wat", MODULE)]);
        std::os::unix::fs::symlink("nowhere", folder.path().join(name)).expect("made");
        let error = Folder::read(folder.path()).expect_err("it is no file");
        assert!(error.to_string().contains(name), "{error}");
    }
}
