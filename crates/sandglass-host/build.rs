//! Generates one test for each sample guest, and fails the build if a guest has none.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

#[derive(serde::Deserialize)]
struct Fixtures {
    fixture: Vec<Fixture>,
}

#[derive(serde::Deserialize)]
struct Fixture {
    name: String,
    file: String,
    #[serde(default)]
    also: Vec<String>,
}

/// The folders with guests, below `guest-fixtures`.
const GUESTS: [&str; 5] = [
    "wat",
    "built",
    "released",
    "languages/c/handlers/built",
    "languages/assemblyscript/handlers/built",
];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../guest-fixtures");
    println!("cargo::rerun-if-changed={}", folder.join("fixtures.toml").display());
    for watched in GUESTS {
        println!("cargo::rerun-if-changed={}", folder.join(watched).display());
    }
    let listed: Fixtures = toml::from_str(&fs::read_to_string(folder.join("fixtures.toml"))?)?;

    let mut tests = String::new();
    let mut names = BTreeSet::new();
    for Fixture { name, file, also } in &listed.fixture {
        if !names.insert(name) {
            return Err(
                format!("guest-fixtures/fixtures.toml: two fixtures are called `{name}`").into()
            );
        }
        writeln!(tests, "#[test]\nfn {name}() {{\n    super::check({name:?}, {file:?});\n}}")?;
        for file in also {
            let stem = Path::new(file).file_stem().unwrap_or_default().to_string_lossy();
            writeln!(
                tests,
                "#[test]\nfn {name}_{stem}() {{\n    super::check({name:?}, {file:?});\n}}"
            )?;
        }
    }
    for subfolder in GUESTS {
        for file in fs::read_dir(folder.join(subfolder))? {
            let file = format!("{subfolder}/{}", file?.file_name().to_string_lossy());
            let is_guest = file.ends_with(".wat") || file.ends_with(".wasm");
            let is_listed =
                |fixture: &Fixture| fixture.file == file || fixture.also.contains(&file);
            if is_guest && !listed.fixture.iter().any(is_listed) {
                return Err(format!(
                    "guest-fixtures/{file} has no entry in fixtures.toml, so no test"
                )
                .into());
            }
        }
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("fixtures.rs"), tests)?;
    Ok(())
}
