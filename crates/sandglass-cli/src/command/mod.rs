//! The commands, one file each.

mod bench;
mod budgets;
mod check;
mod dashboards;
mod explain;
mod inspect;
mod journal;
mod log;
mod new;
pub(crate) mod openwop;
mod play;
pub(crate) mod replay;
pub(crate) mod run;
mod scan;
mod session;
mod status;
pub(crate) mod test;
mod top;
pub(crate) mod up;
mod why;

use crate::exit::Exit;
use crate::play::{WORKER_COMMAND, worker};

/// What the binary is asked to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    New(new::Arguments),
    Run(Box<run::Arguments>),
    Check(check::Arguments),
    Inspect(inspect::Arguments),
    Explain(explain::Arguments),
    Test(test::Arguments),
    Log(log::Arguments),
    Why(why::Arguments),
    Budgets(budgets::Arguments),
    Replay(replay::Arguments),
    Journal(journal::Arguments),
    Play(play::Arguments),
    Up(up::Arguments),
    #[command(name = "openwop")]
    OpenWop(Box<openwop::Arguments>),
    Top(top::Arguments),
    Status(status::Arguments),
    Cancel(session::CancelArguments),
    Resume(session::ResumeArguments),
    Scan(scan::Arguments),
    Dashboards(dashboards::Arguments),
    Bench(bench::Arguments),
    /// The process that runs the runtime of a scenario
    #[command(name = WORKER_COMMAND, hide = true)]
    PlayWorker,
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    /// It could not be done, for a reason that the message tells.
    pub(crate) fn execute(self) -> anyhow::Result<Exit> {
        match self {
            Self::New(arguments) => new::execute(&arguments),
            Self::Run(arguments) => run::execute(&arguments),
            Self::Check(arguments) => check::execute(&arguments),
            Self::Inspect(arguments) => inspect::execute(&arguments),
            Self::Explain(arguments) => explain::execute(&arguments),
            Self::Test(arguments) => test::execute(&arguments),
            Self::Log(arguments) => log::execute(&arguments),
            Self::Why(arguments) => why::execute(&arguments),
            Self::Budgets(arguments) => budgets::execute(&arguments),
            Self::Journal(arguments) => journal::execute(arguments),
            Self::Replay(arguments) => replay::execute(&arguments),
            Self::Play(arguments) => play::execute(&arguments),
            Self::Up(arguments) => up::execute(&arguments),
            Self::OpenWop(arguments) => openwop::execute(&arguments),
            Self::Top(arguments) => top::execute(&arguments),
            Self::Status(arguments) => status::execute(&arguments),
            Self::Cancel(arguments) => session::cancel(&arguments),
            Self::Resume(arguments) => session::resume(&arguments),
            Self::Scan(arguments) => scan::execute(&arguments),
            Self::Dashboards(arguments) => dashboards::execute(&arguments),
            Self::Bench(arguments) => bench::execute(&arguments),
            Self::PlayWorker => worker::execute(),
        }
    }

    /// Says why it isn't even tried, as scripts expect it of the command.
    ///
    /// # Errors
    /// The reason, where nobody has been told of it.
    pub(crate) fn refuse(&self, why: anyhow::Error) -> anyhow::Result<Exit> {
        match self {
            Self::Run(arguments) => crate::run::refuse(arguments, &why),
            _ => Err(why),
        }
    }

    /// What is logged where `SANDGLASS_LOG` doesn't say it.
    pub(crate) const fn log_levels(&self) -> &'static str {
        match self {
            // Whoever runs one guest wants to read what it logs, and how it was loaded; how
            // it ended is in the report. While it takes long, that is said; and what the
            // environment asks for in vain.
            Self::Run(_) => {
                "error,sandglass::guest=debug,sandglass_host::host::loading=warn,\
                 sandglass_supervisor::notice=warn,sandglass_telemetry::otlp::settings=warn"
            }
            // The timeline says what happens.
            Self::Play(_) | Self::PlayWorker => "error,sandglass_telemetry::otlp::settings=warn",
            // Thousands of kills are the point, and a line for each would be measured, too.
            // Cases that hang are the point, and what came of each is told.
            Self::Bench(_) | Self::Test(_) => "error",
            _ => "warn",
        }
    }

    /// How the process ends where [`Command::execute`] fails.
    pub(crate) const fn exit_on_error(&self) -> Exit {
        match self {
            Self::Run(_) => Exit::Rejected,
            _ => Exit::Unusable,
        }
    }
}
