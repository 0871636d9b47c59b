//! Functions that cannot be handlers do not compile, and the error points at the cause: in each file
//! of `rejected`, at the line that ends with `//~` and a part of the message.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

/// The marker of the line that an error points at.
const MARKER: &str = "//~ ";

#[test]
fn an_invalid_handler_is_rejected_at_its_cause() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/rejected");
    let compiler = Compiler::of_this_test();
    assert_eq!(compiler.errors(&folder.join("../accepted.rs")), [], "a handler is compiled");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).expect("there").map(|file| file.expect("there").path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let source = fs::read_to_string(&file).expect("there");
        let marked = source.lines().enumerate().find_map(|(line, text)| {
            text.split_once(MARKER).map(|(_, message)| (line as u64 + 1, message))
        });
        let (line, message) = marked.unwrap_or_else(|| panic!("{file:?} has no marker"));
        let errors = compiler.errors(&file);
        let [(at, text)] = &*errors else { panic!("{file:?}: one error, not {errors:?}") };
        assert_eq!(*at, Some(line), "{file:?}: {text}");
        assert!(text.contains(message), "{file:?}: {text}");
    }
}

/// The compiler that built this test, and the SDK that it was linked with.
struct Compiler {
    dependencies: PathBuf,
    sdk: PathBuf,
}

impl Compiler {
    fn of_this_test() -> Self {
        let test = env::current_exe().expect("there");
        let dependencies = test.parent().expect("there").to_owned();
        Self { sdk: newest(&dependencies, "libsandglass_guest-"), dependencies }
    }

    /// The line and the message of each error in `file`, with its notes.
    fn errors(&self, file: &Path) -> Vec<(Option<u64>, String)> {
        let output = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
            .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--out-dir"])
            .arg(env!("CARGO_TARGET_TMPDIR"))
            .args(["--error-format=json", "--cap-lints=allow"])
            .arg("-L")
            .arg(format!("dependency={}", self.dependencies.display()))
            .arg("--extern")
            .arg(format!("sandglass_guest={}", self.sdk.display()))
            .arg(file)
            .output()
            .expect("there");
        let messages = String::from_utf8(output.stderr).expect("text");
        messages.lines().filter_map(parse_error).collect()
    }
}

/// Parses a line of the compiler's output; `None` if it is not an error.
fn parse_error(line: &str) -> Option<(Option<u64>, String)> {
    let message: Value = serde_json::from_str(line).expect("a line of JSON");
    let is_summary = message["message"].as_str()?.starts_with("aborting due to");
    if message["level"] != "error" || is_summary {
        return None;
    }
    let spans = message["spans"].as_array()?;
    let primary = spans.iter().find(|span| span["is_primary"] == true);
    let notes = message["children"].as_array()?.iter().map(|note| &note["message"]);
    let labels = spans.iter().map(|span| &span["label"]);
    let texts = [&message["message"]].into_iter().chain(notes).chain(labels);
    let texts: Vec<_> = texts.filter_map(Value::as_str).collect();
    let line = primary.and_then(|primary| primary["line_start"].as_u64());
    Some((line, texts.join("; ")))
}

/// The newest library with this name, which was built from these sources.
fn newest(folder: &Path, prefix: &str) -> PathBuf {
    let files = fs::read_dir(folder).expect("there").map(|file| file.expect("there"));
    let named = files.filter(|file| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        name.starts_with(prefix) && name.ends_with(".rlib")
    });
    let newest =
        named.max_by_key(|file| file.metadata().expect("there").modified().expect("there"));
    newest.unwrap_or_else(|| panic!("no {prefix} in {}", folder.display())).path()
}
