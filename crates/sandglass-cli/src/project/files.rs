//! The files of each language's project, as they stand in this repository. They are in the
//! binary, so that a project can be begun anywhere, and fits the host that it comes from.

/// A file of a project.
#[derive(Debug)]
pub(super) struct File {
    /// Its path in the project.
    pub(super) path: &'static str,
    /// What it holds, with `{{name}}` for the project's name.
    pub(super) text: &'static str,
}

/// The files of a folder of this repository, and where each stands in a project.
macro_rules! files {
    ($($folder:literal: [$($file:literal $(=> $path:literal)?),* $(,)?]),* $(,)?) => {
        &[$($(File {
            path: files!(@path $file $($path)?),
            text: include_str!(concat!("../../../../", $folder, "/", $file)),
        },)*)*]
    };
    (@path $file:literal) => { $file };
    (@path $file:literal $path:literal) => { $path };
}

pub(super) const C: &[File] = files! {
    "guest-fixtures/languages/c/template": [
        "Makefile", "README.md", "gitignore" => ".gitignore", "handler.c", "handler.test.toml",
        "integration.toml", "sandglass.h",
    ],
};

pub(super) const JAVASCRIPT: &[File] = files! {
    "guest-fixtures/languages/javascript/template": [
        "README.md", "build.mjs", "gitignore" => ".gitignore", "handler.js", "handler.test.toml",
        "integration.toml", "package.json",
    ],
    "crates/sandglass-guest/wit": ["integration.wit" => "wit/integration.wit"],
};

pub(super) const PYTHON: &[File] = files! {
    "guest-fixtures/languages/python/template": [
        "Makefile", "README.md", "gitignore" => ".gitignore", "handler.py", "handler.test.toml",
        "integration.toml", "requirements.txt",
    ],
    "crates/sandglass-guest/wit": ["integration.wit" => "wit/integration.wit"],
};

pub(super) const ASSEMBLYSCRIPT: &[File] = files! {
    "guest-fixtures/languages/assemblyscript/template": [
        "README.md", "gitignore" => ".gitignore", "handler.test.toml", "handler.ts",
        "integration.toml", "package.json", "sandglass.ts",
    ],
};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_file_of_a_template_is_in_its_project() {
        let templates = [
            ("c", C),
            ("javascript", JAVASCRIPT),
            ("python", PYTHON),
            ("assemblyscript", ASSEMBLYSCRIPT),
        ];
        let languages =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-fixtures/languages");
        for (language, files) in templates {
            let folder = languages.join(language).join("template");
            for entry in std::fs::read_dir(folder).expect("it is there") {
                let name = entry.expect("it is there").file_name();
                let name = name.to_str().expect("a name").replace("gitignore", ".gitignore");
                assert!(files.iter().any(|file| file.path == name), "{name} of {language}");
            }
        }
    }
}
