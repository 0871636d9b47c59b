//! `sandglass journal`: what is done with a journal as a whole. Only pruning changes it.

mod backup;
mod export;
mod prune;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::threads;

/// Backs a journal up or exports it, also while it is being written, or prunes it
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Backup(backup::Arguments),
    Export(export::Arguments),
    Prune(prune::Arguments),
}

pub(crate) fn execute(arguments: Arguments) -> anyhow::Result<Exit> {
    match arguments.command {
        Command::Backup(arguments) => {
            until_interrupted(move |wish| backup::execute(&arguments, wish))
        }
        Command::Prune(arguments) => {
            until_interrupted(move |wish| prune::execute(&arguments, wish))
        }
        // What a reader has taken can't be tidied up, and one that takes no more must not
        // hold the process.
        Command::Export(arguments) if arguments.to.is_none() => {
            export::execute(&arguments, &Wish::default())
        }
        Command::Export(arguments) => {
            until_interrupted(move |wish| export::execute(&arguments, wish))
        }
    }
}

/// Whether somebody wishes that the work ends.
#[derive(Clone, Debug, Default)]
struct Wish(Arc<AtomicBool>);

impl Wish {
    fn go_on(&self) -> ControlFlow<()> {
        if self.0.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Works until it is done, or until Ctrl-C and the next place where nothing is left
/// behind; a second Ctrl-C ends it at once.
fn until_interrupted(
    work: impl FnOnce(&Wish) -> anyhow::Result<Exit> + Send + 'static,
) -> anyhow::Result<Exit> {
    let threads = threads::start(Some(1))?;
    let ended = threads.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let wish = Wish::default();
        let mut working = tokio::task::spawn_blocking({
            let wish = wish.clone();
            move || work(&wish)
        });
        tokio::select! {
            done = &mut working => return done?,
            _ = interrupts.next() => wish.0.store(true, Ordering::Relaxed),
        }
        tokio::select! {
            done = working => done?,
            _ = interrupts.next() => Ok(Exit::Cancelled),
        }
    });
    threads.shutdown_background();
    ended
}
