//! The files of each language's project, included from this repository, so that a new project fits
//! the host of the binary that creates it.

/// A file of a project.
#[derive(Debug)]
pub(super) struct File {
    /// Its path in the project.
    pub(super) path: &'static str,
    /// Its text, with `{{name}}` for the name of the project.
    pub(super) text: &'static str,
}

/// Lists files of folders of this repository: the folder, where it goes in a project, and its files
/// with their new names if they differ.
macro_rules! files {
    ($($folder:literal to $into:literal: [$($file:literal $(=> $name:literal)?),* $(,)?]),* $(,)?) => {
        &[$($(File {
            path: concat!($into, files!(@name $file $($name)?)),
            text: include_str!(concat!("../../../../", $folder, "/", $file)),
        },)*)*]
    };
    (@name $file:literal) => { $file };
    (@name $file:literal $name:literal) => { $name };
}

pub(super) const C: &[File] = files! {
    "guest-fixtures/languages/c/template" to "": [
        "Makefile", "README.md", "gitignore" => ".gitignore", "handler.c", "handler.test.toml",
        "integration.toml", "sandglass.h",
    ],
};

pub(super) const JAVASCRIPT: &[File] = files! {
    "guest-fixtures/languages/javascript/template" to "": [
        "README.md", "build.mjs", "gitignore" => ".gitignore", "handler.js", "handler.test.toml",
        "integration.toml", "package.json",
    ],
    "crates/sandglass-guest/wit" to "wit/": ["integration.wit"],
};

pub(super) const PYTHON: &[File] = files! {
    "guest-fixtures/languages/python/template" to "": [
        "Makefile", "README.md", "gitignore" => ".gitignore", "handler.py", "handler.test.toml",
        "integration.toml", "requirements.txt",
    ],
    "crates/sandglass-guest/wit" to "wit/": ["integration.wit"],
};

pub(super) const ASSEMBLYSCRIPT: &[File] = files! {
    "guest-fixtures/languages/assemblyscript/template" to "": [
        "README.md", "gitignore" => ".gitignore", "handler.test.toml", "handler.ts",
        "integration.toml", "package.json", "sandglass.ts",
    ],
};

pub(super) const RUST: &[File] = files! {
    "guest-fixtures/languages/rust/template" to "": [
        "Cargo.toml", "README.md", "gitignore" => ".gitignore", "handler.test.toml",
        "integration.toml", "rust-toolchain.toml", "src/lib.rs",
    ],
    "crates/sandglass-guest" to "sdk/sandglass-guest/": [
        "Cargo.toml", "src/ask.rs", "src/backend/component/blocking.rs",
        "src/backend/component/concurrent.rs", "src/backend/component/mod.rs",
        "src/backend/core_module/imports.rs", "src/backend/core_module/mod.rs",
        "src/backend/core_module/outside.rs", "src/backend/mod.rs", "src/backend/native.rs",
        "src/clock.rs", "src/completion.rs", "src/context.rs", "src/deadline.rs",
        "src/failure.rs", "src/glue.rs", "src/host_error.rs", "src/http.rs", "src/http/batch.rs",
        "src/http/error.rs", "src/http/request.rs", "src/http/response.rs", "src/lib.rs",
        "src/log.rs", "src/metrics.rs", "src/progress.rs", "src/scratch.rs", "src/secrets.rs", "src/signal.rs",
        "src/spans.rs", "src/testing.rs", "src/timer.rs", "wit-0.2/integration.wit", "wit/integration.wit",
    ],
    "crates/sandglass-guest-macros" to "sdk/sandglass-guest-macros/": [
        "Cargo.toml", "src/expansion.rs", "src/lib.rs", "src/settings.rs", "src/signature.rs",
    ],
};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The files in `folder` of this repository and in the folders in it, but for `tests`.
    fn files_in(folder: &Path) -> Vec<String> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).expect("it is there") {
            let path = entry.expect("it is there").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            match path.is_dir() {
                true if name == "tests" => {}
                true => {
                    let inside = files_in(&path);
                    files.extend(inside.into_iter().map(|file| format!("{name}/{file}")));
                }
                false => files.push(name.to_owned()),
            }
        }
        files
    }

    #[test]
    fn each_file_of_a_template_and_of_the_sdk_is_in_its_project() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (folder, files, into) in [
            ("guest-fixtures/languages/c/template", C, ""),
            ("guest-fixtures/languages/javascript/template", JAVASCRIPT, ""),
            ("guest-fixtures/languages/python/template", PYTHON, ""),
            ("guest-fixtures/languages/assemblyscript/template", ASSEMBLYSCRIPT, ""),
            ("guest-fixtures/languages/rust/template", RUST, ""),
            ("crates/sandglass-guest", RUST, "sdk/sandglass-guest/"),
            ("crates/sandglass-guest-macros", RUST, "sdk/sandglass-guest-macros/"),
            ("crates/sandglass-guest/wit", JAVASCRIPT, "wit/"),
            ("crates/sandglass-guest/wit", PYTHON, "wit/"),
        ] {
            for file in files_in(&root.join(folder)) {
                let file = if file == "gitignore" { ".gitignore".to_owned() } else { file };
                let path = format!("{into}{file}");
                assert!(files.iter().any(|file| file.path == path), "{path} of {folder}");
            }
        }
    }

    /// The SDK is compiled in a project with the versions that it is tested with here.
    #[test]
    fn a_project_in_rust_has_the_versions_of_this_workspace() {
        let ours: toml::Table = include_str!("../../../../Cargo.toml").parse().expect("TOML");
        let theirs = RUST.iter().find(|file| file.path == "Cargo.toml").expect("it has one");
        let theirs: toml::Table = theirs.text.parse().expect("TOML");
        let version = |table: &toml::Table, name: &str| {
            let of = &table["workspace"]["dependencies"][name];
            of.get("version").unwrap_or(of).as_str().map(str::to_owned)
        };
        for name in theirs["workspace"]["dependencies"].as_table().expect("a table").keys() {
            assert_eq!(version(&theirs, name), version(&ours, name), "{name}");
        }
        assert_eq!(theirs["workspace"]["package"], ours["workspace"]["package"]);
    }
}
