//! `sandglass top`: the live view of a daemon, in a terminal.

use std::io::{self, IsTerminal as _};

use crate::exit::Exit;
use crate::{fetch, threads, top};

/// Shows what the handlers of a daemon are doing, as it changes
///
/// For each that is in flight: its entity, action and attempt, how much of its budget is left,
/// and the host call that it is in and for how long, with STUCK where it has been in one place
/// for longer than half its budget (at least 1 s, at most 300 s). Below, those that were killed
/// last, by what they died in. `q` or Ctrl-C ends it; a daemon that goes away, or of which
/// nothing is heard, is waited for.
///
/// Where standard output is no terminal it shows one moment, as with --once. With --json it
/// ends when the daemon or its reader goes away.
///
/// Exit code: 0, 2 no daemon there or no key that may read, 130 Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass top http://127.0.0.1:7341\n  \
    sandglass top http://127.0.0.1:7341 --api-key-env READER_KEY\n  \
    sandglass top http://127.0.0.1:7341 --json | jq '.handlers[] | select(.stuck)'")]
pub(crate) struct Arguments {
    /// The daemon (http://HOST:PORT or https://HOST:PORT)
    url: String,
    #[command(flatten)]
    access: fetch::Access,
    /// Print a JSON object for each change, as the daemon tells them
    #[arg(long)]
    json: bool,
    /// Show one moment, and end
    #[arg(long)]
    once: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let base = arguments.url.trim_end_matches('/');
    let address = fetch::address(&format!("{base}/v1/live"))?;
    let client = fetch::Client::new(&arguments.access, &address)?;
    let source = top::Source { address, client };
    let threads = threads::start(Some(1))?;
    let ended = threads.block_on(async {
        match (arguments.json, arguments.once) {
            (true, true) => top::print_json_once(source).await,
            (true, false) => top::print_json(source).await,
            (false, false) if io::stdout().is_terminal() => top::show(source, base).await,
            (false, _) => top::print_once(source, base).await,
        }
    });
    // What waits for a key or the daemon is no longer waited for.
    threads.shutdown_background();
    ended
}
