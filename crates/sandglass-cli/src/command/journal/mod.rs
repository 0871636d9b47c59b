//! `sandglass journal`: operations on a whole journal.

mod backup;
mod check;
mod copy;
mod export;
mod prune;
mod schema;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::journal_place::Place;
use crate::open_database::OpenDatabase;
use crate::threads;

/// Creates, upgrades, copies, backs up, checks, exports or prunes a journal
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Backup(backup::Arguments),
    Check(check::Arguments),
    Copy(copy::Arguments),
    Create(schema::CreateArguments),
    Export(export::Arguments),
    Prune(prune::Arguments),
    Upgrade(schema::UpgradeArguments),
}

pub(crate) fn execute(arguments: Arguments) -> anyhow::Result<Exit> {
    match arguments.command {
        Command::Backup(arguments) => {
            until_interrupted(move |stop| backup::execute(&arguments, stop))
        }
        Command::Check(arguments) => {
            until_interrupted(move |stop| check::execute(&arguments, stop))
        }
        Command::Copy(arguments) => until_interrupted(move |stop| copy::execute(&arguments, stop)),
        Command::Create(arguments) => schema::create(&arguments),
        Command::Upgrade(arguments) => schema::upgrade(&arguments),
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

/// Refuses to take a database from a process that is alive.
fn refuse_if_used(database: &OpenDatabase) -> anyhow::Result<()> {
    let writers = database.writers()?;
    anyhow::ensure!(
        writers.is_empty(),
        "{} (machine and process) uses the database. Stop it first; hosts of a cluster all have to be \
         stopped. From another process, --take-over takes the journal: it then records nothing more and \
         ends",
        writers.join(", ")
    );
    Ok(())
}

/// Refuses `--take-over` of a file, which no process can take from another one.
fn refuse_take_over_of_file(place: &Place, take_over: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        !take_over || !matches!(place, Place::File(_)),
        "--take-over is for databases, and `{place}` is a file, which cannot be taken from a process that \
         uses it. Stop that process, and run this again without --take-over"
    );
    Ok(())
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
