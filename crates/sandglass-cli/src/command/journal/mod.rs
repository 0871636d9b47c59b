//! `sandglass journal`: operations on a whole journal. Only pruning changes it.

mod backup;
mod check;
mod export;
mod prune;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::threads;

/// Backs up, checks, exports or prunes a journal
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Backup(backup::Arguments),
    Check(check::Arguments),
    Export(export::Arguments),
    Prune(prune::Arguments),
}

pub(crate) fn execute(arguments: Arguments) -> anyhow::Result<Exit> {
    match arguments.command {
        Command::Backup(arguments) => {
            until_interrupted(move |stop| backup::execute(&arguments, stop))
        }
        Command::Check(arguments) => {
            until_interrupted(move |stop| check::execute(&arguments, stop))
        }
        Command::Prune(arguments) => {
            until_interrupted(move |stop| prune::execute(&arguments, stop))
        }
        // Output cannot be taken back, and a reader that blocks must not delay Ctrl-C, so the signal
        // ends the process.
        Command::Export(arguments) if arguments.to.is_none() => {
            export::execute(&arguments, &StopRequest::default())
        }
        Command::Export(arguments) => {
            until_interrupted(move |stop| export::execute(&arguments, stop))
        }
    }
}

/// Whether Ctrl-C has requested the end of the work.
#[derive(Clone, Debug, Default)]
struct StopRequest(Arc<AtomicBool>);

impl StopRequest {
    fn check(&self) -> ControlFlow<()> {
        if self.0.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Runs `work` to its end, or after Ctrl-C until it can stop without leaving anything behind. A
/// second Ctrl-C stops waiting for it.
fn until_interrupted(
    work: impl FnOnce(&StopRequest) -> anyhow::Result<Exit> + Send + 'static,
) -> anyhow::Result<Exit> {
    let threads = threads::start(Some(1))?;
    let ended = threads.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let stop = StopRequest::default();
        let mut working = tokio::task::spawn_blocking({
            let stop = stop.clone();
            move || work(&stop)
        });
        tokio::select! {
            done = &mut working => return done?,
            _ = interrupts.next() => stop.0.store(true, Ordering::Relaxed),
        }
        tokio::select! {
            done = working => done?,
            _ = interrupts.next() => Ok(Exit::Cancelled),
        }
    });
    threads.shutdown_background();
    ended
}
