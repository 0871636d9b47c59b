//! Executes the tests of the public `wasi-testsuite` that a handler can pass, for WASI 0.1, 0.2 and 0.3.
//!
//! The suite has commands, and this host executes handlers. So each command becomes a handler that calls
//! it, and `sandglass run` executes that. The suite has no tests of 0.2; those of 0.1 become components of
//! 0.2 by the adapter of the Bytecode Alliance. `excluded.toml` lists each test that is not executed, with
//! the reason; every other test of the suite must pass.

mod wrap;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

/// What a test expects, as the suite describes it: in the first two keys, or in the steps of the third.
#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    exit_code: i32,
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    operations: Vec<Operation>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Operation {
    r#type: String,
    exit_code: i32,
    payload: String,
}

impl Spec {
    fn exit_code(&self) -> i32 {
        self.operations.iter().map(|operation| operation.exit_code).fold(self.exit_code, i32::max)
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        let reads = self.operations.iter().filter(|operation| operation.r#type == "read");
        self.stdout.lines().chain(reads.flat_map(|operation| operation.payload.lines()))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exclusions {
    group: Vec<Group>,
}

/// Tests that are not executed for the same reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    version: String,
    language: String,
    reason: String,
    names: Vec<String>,
}

/// One test of the suite.
struct Test {
    version: &'static str,
    language: String,
    name: String,
    file: PathBuf,
}

/// How many tests of one version passed, failed and were excluded.
#[derive(Default)]
struct Counts {
    passed: u32,
    failed: u32,
    excluded: u32,
}

fn main() -> Result<()> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [suite, sandglass] = &*arguments else { bail!("usage: wasi-testsuite SUITE SANDGLASS") };
    let tests = tests(suite)?;
    ensure!(!tests.is_empty(), "there are no tests in {}", suite.display());
    let mut excluded = exclusions()?;
    let unknown: Vec<_> = excluded
        .iter()
        .filter(|excluded| !tests.iter().any(|test| test.key() == **excluded))
        .cloned()
        .collect();
    ensure!(
        unknown.is_empty(),
        "excluded.toml has tests that the suite does not have: {unknown:?}"
    );
    // What a test of 0.1 lacks, it lacks as a component of 0.2, too.
    for (version, language, name) in excluded.clone() {
        if version == "0.1" {
            excluded.insert(("0.2".to_owned(), language, name));
        }
    }

    let folder = env::temp_dir().join(format!("wasi-testsuite-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let mut counts = BTreeMap::<&str, Counts>::new();
    for test in &tests {
        let counts = counts.entry(test.version).or_default();
        if excluded.contains(&test.key()) {
            counts.excluded += 1;
            continue;
        }
        match test.execute(sandglass, &folder) {
            Ok(()) => counts.passed += 1,
            Err(error) => {
                println!("{} {} {}: {error:#}", test.version, test.language, test.name);
                counts.failed += 1;
            }
        }
    }
    fs::remove_dir_all(&folder)?;
    for (version, Counts { passed, failed, excluded }) in &counts {
        println!("WASI {version}: {passed} passed, {failed} failed, {excluded} excluded");
    }
    ensure!(counts.values().all(|counts| counts.failed == 0), "tests failed");
    Ok(())
}

/// The version, the language and the name of each test that is not executed.
fn exclusions() -> Result<BTreeSet<(String, String, String)>> {
    let Exclusions { group } = toml::from_str(include_str!("../excluded.toml"))?;
    let mut all = BTreeSet::new();
    for Group { version, language, reason, names } in group {
        ensure!(!reason.is_empty(), "a group of excluded tests has no reason");
        all.extend(names.into_iter().map(|name| (version.clone(), language.clone(), name)));
    }
    Ok(all)
}

/// The tests in `tests/LANGUAGE/testsuite/TARGET/NAME.wasm`, in their order.
fn tests(suite: &Path) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for language in entries(&suite.join("tests"))? {
        let targets = language.join("testsuite");
        if !targets.is_dir() {
            continue;
        }
        for target in entries(&targets)? {
            let versions: &[&str] = match name_of(&target).as_str() {
                "wasm32-wasip1" => &["0.1", "0.2"],
                "wasm32-wasip3" => &["0.3"],
                other => bail!("the suite has tests for `{other}`, which is not known here"),
            };
            for file in entries(&target)? {
                if file.extension().is_none_or(|extension| extension != "wasm") {
                    continue;
                }
                let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                tests.extend(versions.iter().map(|version| Test {
                    version,
                    language: name_of(&language),
                    name: name.clone(),
                    file: file.clone(),
                }));
            }
        }
    }
    Ok(tests)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = read.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Test {
    fn key(&self) -> (String, String, String) {
        (self.version.to_owned(), self.language.clone(), self.name.clone())
    }

    fn execute(&self, sandglass: &Path, folder: &Path) -> Result<()> {
        let spec = match fs::read(self.file.with_extension("json")) {
            Ok(spec) => serde_json::from_slice(&spec)?,
            Err(_) => Spec::default(),
        };
        let command = fs::read(&self.file)?;
        let handler = match self.version {
            "0.1" => wrap::core(&command)?,
            "0.2" => wrap::component(&wrap::componentize(&command)?)?,
            _ => wrap::component(&command)?,
        };
        let file = folder.join("handler.wasm");
        fs::write(&file, handler)?;
        let output = Command::new(sandglass)
            .arg("run")
            .arg(&file)
            .args(["--deadline", "30s", "--compile-timeout", "5m", "--report", "json"])
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let report: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("no report: {errors}"))?;
        self.compare(&spec, &report)?;
        // What it wrote goes to the log, line by line.
        let mut logged = errors.lines().filter_map(|line| {
            let (_, written) = line.split_once("sandglass::guest: ")?;
            Some(written.split_once(" integration=").map_or(written, |(written, _)| written))
        });
        for line in spec.lines() {
            ensure!(logged.any(|logged| logged == line), "it did not write `{line}`: {errors}");
        }
        Ok(())
    }

    fn compare(&self, spec: &Spec, report: &Value) -> Result<()> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (outcome, error) = (text(&report["outcome"]), &report["error"]);
        let (kind, message) = (text(&error["kind"]), text(&error["message"]));
        // A component of 0.2 or 0.3 returns only whether it failed.
        let code = match self.version {
            "0.1" => spec.exit_code(),
            _ => spec.exit_code().min(1),
        };
        let has_exited = kind == "exit" && message.ends_with(&format!("code {code}"));
        let has_returned = match code {
            0 => outcome == "completed",
            _ => outcome == "failed" && message.contains("the command failed"),
        };
        ensure!(
            has_exited || has_returned,
            "expected exit code {code}: {outcome} {kind} {message}"
        );
        Ok(())
    }
}
