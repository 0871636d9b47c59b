//! Runs cases again whenever their files change.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context;
use notify::{Event, EventKind, RecursiveMode, Watcher, recommended_watcher};

use super::arguments::Arguments;
use crate::exit::Exit;
use crate::terminal::{note, report_error};

/// How long files must stay unchanged before cases run: compilers write in pieces.
const QUIET: Duration = Duration::from_millis(200);

/// Runs now, and whenever a guest, a manifest or a test file changes, until Ctrl-C ends the
/// process.
pub(super) fn run_again(
    arguments: &Arguments,
    mut run: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let (changed, changes) = channel();
    let mut watcher = recommended_watcher(move |event: notify::Result<Event>| {
        if event.is_ok_and(|event| matters(&event)) {
            // The receiver may be gone.
            let _ = changed.send(());
        }
    })
    .context("can't watch for changes")?;
    for path in &arguments.paths {
        // An editor replaces the file, so its folder is watched.
        let folder = if path.is_file() { path.parent().unwrap_or(Path::new("")) } else { path };
        let folder = if folder == Path::new("") { Path::new(".") } else { folder };
        let watched = watcher.watch(folder, RecursiveMode::Recursive);
        watched.with_context(|| format!("can't watch `{}`", folder.display()))?;
    }
    loop {
        // The next change may fix an error.
        if let Err(error) = run() {
            report_error(&error);
        }
        note("waiting for a change; press Ctrl-C to end");
        changes.recv().context("the watch for changes has ended")?;
        loop {
            match changes.recv_timeout(QUIET) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Ok(Exit::Ok),
            }
        }
    }
}

/// Whether it changes a guest, a manifest or a test file.
fn matters(event: &Event) -> bool {
    let is_change = !matches!(event.kind, EventKind::Access(_));
    let is_ours = |path: &Path| {
        path.extension()
            .is_some_and(|ending| ending == "toml" || ending == "wasm" || ending == "wat")
    };
    is_change && event.paths.iter().any(|path| is_ours(path))
}
