//! The key `journal` of the configuration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandglass_journal::Checking;
use sandglass_liveness::Retention;
use sandglass_source::{Diagnostics, Spot, Table};

use super::Config;
use crate::journal::JournalPlace;

/// The shortest and the longest age at which ended entities are removed. An operator wants to see how
/// one has just ended, and no journal is older than the longest.
const AGE_MIN: Duration = Duration::from_secs(1);
const AGE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Config {
    /// The journal is a path, or a table with the path, what is kept and when it is checked.
    pub(super) fn read_journal(
        &mut self,
        table: &Table<'_, '_>,
        beside: &Path,
        out: &mut Diagnostics<'_>,
    ) {
        let is_table = |value: Spot<'_, '_>| value.get_ref().as_table().is_some();
        if !table.value("journal").is_some_and(is_table) {
            self.journal = read_path(table, "journal", beside, out).map(JournalPlace::File);
            return;
        }
        let Some(journal) = table.table("journal", "journal", out) else { return };
        journal
            .only(&["path", "url_env", "url_file", "modules", "retention", "keep", "check"], out);
        self.read_place(&journal, beside, out);
        self.modules = journal.text("modules", out).map(|path| beside.join(path.as_str()));
        let age = journal.duration_within("retention", AGE_MIN..=AGE_MAX, out);
        let keep = journal.count("keep", 0..=u64::MAX, out);
        if age.is_some() && keep.is_some() {
            out.error(&journal.span_of("keep"), "set `retention` or `keep`, not both");
        }
        self.retention = age.map(Retention::OlderThan).or(keep.map(Retention::Keep));
        match journal.text("check", out).as_deref() {
            None | Some("later") => {}
            Some("start") => self.checking = Checking::AtOpening,
            Some(other) => {
                let message = format!(
                    "`check` is \"start\" or \"later\", not {other:?}: when the journal is checked \
                     completely"
                );
                out.error(&journal.span_of("check"), message);
            }
        }
    }

    /// One of a path, a variable and a file with a URL.
    fn read_place(&mut self, journal: &Table<'_, '_>, beside: &Path, out: &mut Diagnostics<'_>) {
        let path = read_path(journal, "path", beside, out);
        let url_env = journal.text("url_env", out).map(|variable| variable.to_string());
        let url_file = journal.text("url_file", out).map(|path| beside.join(path.as_str()));
        let places = [
            ("path", path.map(JournalPlace::File)),
            ("url_env", url_env.map(JournalPlace::UrlInVariable)),
            ("url_file", url_file.map(JournalPlace::UrlInFile)),
        ];
        for (name, place) in places {
            if place.is_some() && self.journal.is_some() {
                let message =
                    "set one of `path`, `url_env` and `url_file`: a journal is at one place";
                out.error(&journal.span_of(name), message);
            }
            self.journal = self.journal.take().or(place);
        }
    }
}

/// The path of a journal file.
fn read_path(
    table: &Table<'_, '_>,
    key: &str,
    beside: &Path,
    out: &mut Diagnostics<'_>,
) -> Option<PathBuf> {
    let path = table.text(key, out)?;
    if JournalPlace::names_database(path.as_str()) {
        let message = format!(
            "`{key}` takes a file. Put the URL of a database into an environment variable, where other \
             users cannot read it, and name the variable: `url_env` in [journal]. A file whose name \
             begins with `env:` is written ./env:NAME"
        );
        out.error(path.span(), message);
        return None;
    }
    Some(beside.join(path.as_str()))
}
