//! A diagnostic together with its file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Diagnostic, Diagnostics, Severity};

/// A diagnostic of one of several files that are read together.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// Its text, which the findings of a file share.
    pub source: Arc<str>,
    /// The error or warning.
    pub diagnostic: Diagnostic,
}

impl Finding {
    /// Creates an error about a file as a whole, for example one that cannot be read. Its place is the
    /// first line and column.
    #[must_use]
    pub fn of_a_whole_file(path: &Path, message: &str) -> Self {
        let diagnostic = Diagnostics::new("").diagnostic(Severity::Error, &(0..0), message, None);
        Self { path: path.to_owned(), source: "".into(), diagnostic }
    }

    /// Converts the diagnostics of a file.
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

    /// Sets the code of the error.
    #[must_use]
    pub fn coded(mut self, code: &'static str) -> Self {
        self.diagnostic.code = Some(code);
        self
    }
}
