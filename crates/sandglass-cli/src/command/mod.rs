//! The commands, one file each.

mod check;
mod log;
mod replay;

use crate::exit::Exit;

/// What the binary is asked to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Check(check::Arguments),
    Log(log::Arguments),
    Replay(replay::Arguments),
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    /// It could not be done, for a reason that the message tells.
    pub(crate) fn execute(self) -> anyhow::Result<Exit> {
        match self {
            Self::Check(arguments) => check::execute(&arguments),
            Self::Log(arguments) => log::execute(&arguments),
            Self::Replay(arguments) => replay::execute(&arguments),
        }
    }

    /// How the process ends where [`Command::execute`] fails.
    pub(crate) const fn exit_on_error(&self) -> Exit {
        Exit::Unusable
    }
}
