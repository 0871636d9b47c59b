//! A diagnostic, and the file that it stands in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Diagnostic, Severity, printable};

/// What is wrong or doubtful, where several files are read together.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// What it holds; shared by the findings of a file.
    pub source: Arc<str>,
    /// What is wrong or doubtful in it.
    pub diagnostic: Diagnostic,
}

impl Finding {
    /// An error of a file as a whole: of one that can't be read, or has no lines. It stands
    /// at the first line and column.
    #[must_use]
    pub fn of_a_whole_file(path: &Path, message: &str) -> Self {
        let message = printable(message).into_owned();
        let (line, column) = (1, 1);
        let diagnostic = Diagnostic {
            severity: Severity::Error,
            message,
            help: None,
            code: None,
            span: 0..0,
            line,
            column,
        };
        Self { path: path.to_owned(), source: "".into(), diagnostic }
    }

    /// All of a file's diagnostics.
    pub fn all_of(
        path: impl Into<PathBuf>,
        source: &str,
        diagnostics: impl IntoIterator<Item = Diagnostic>,
    ) -> impl Iterator<Item = Self> {
        let (path, source) = (path.into(), Arc::<str>::from(source));
        diagnostics.into_iter().map(move |diagnostic| Self {
            path: path.clone(),
            source: Arc::clone(&source),
            diagnostic,
        })
    }

    /// The same with the code that such errors have.
    #[must_use]
    pub fn coded(mut self, code: &'static str) -> Self {
        self.diagnostic.code = Some(code);
        self
    }
}
