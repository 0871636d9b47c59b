//! `sandglass top`: the live view of a daemon, in a terminal.

use std::io::{self, IsTerminal as _};

use crate::exit::Exit;
use crate::{fetch, threads, top};

/// Shows live what the handlers of a daemon are doing
///
/// Shows each handler in flight with its entity, action and attempt, its remaining budget, and its
/// current host call with the time spent in it. STUCK marks one that has been in one place for
/// longer than half its budget (at least 1 s, at most 300 s). Blocked sessions and recent kills
/// are listed below. `q` or Ctrl-C ends the view. It reconnects if the daemon is lost or silent.
///
/// If standard output is not a terminal, prints one snapshot, as with --once. With --json, ends
/// when the daemon or the reader of the output is gone.
///
/// Exit code: 0 ended, 2 the daemon cannot be reached, or the key may not read, 130 Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass top http://127.0.0.1:7341\n  \
    sandglass top http://127.0.0.1:7341 --api-key-env READER_KEY\n  \
    sandglass top http://127.0.0.1:7341 --json | jq '.handlers[] | select(.stuck)'")]
pub(crate) struct Arguments {
    /// The daemon (http://HOST:PORT or https://HOST:PORT)
    url: String,
    #[command(flatten)]
    access: fetch::Access,
    /// Print each snapshot of the daemon as a JSON object in one line
    #[arg(long)]
    json: bool,
    /// Print one snapshot
    #[arg(long)]
    once: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let base = arguments.url.trim_end_matches('/');
    let source = top::Source { client: fetch::Client::new(&arguments.access, &arguments.url)? };
    let threads = threads::start(Some(1))?;
    let ended = threads.block_on(async {
        match (arguments.json, arguments.once) {
            (true, true) => top::print_json_once(source).await,
            (true, false) => top::print_json(source).await,
            (false, false) if io::stdout().is_terminal() => top::show(source, base).await,
            (false, _) => top::print_once(source, base).await,
        }
    });
    // Without waiting for the task that follows the daemon.
    threads.shutdown_background();
    ended
}
