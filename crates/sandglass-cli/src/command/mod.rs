//! The commands, one file each.

mod bench;
mod budgets;
mod check;
mod cluster;
mod dashboards;
mod explain;
mod inspect;
mod journal;
mod log;
mod new;
mod openwop;
mod play;
mod replay;
pub(crate) mod run;
mod scan;
mod session;
mod signal;
mod status;
mod top;
mod up;
mod why;

use crate::exit::Exit;
use crate::{compiling, testing, threads};
use sandglass_scenario::{WORKER_COMMAND, worker};

/// A command with its arguments.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    New(new::Arguments),
    Run(Box<run::Arguments>),
    Check(check::Arguments),
    Inspect(inspect::Arguments),
    Explain(explain::Arguments),
    Test(testing::Arguments),
    Log(log::Arguments),
    Why(why::Arguments),
    Budgets(budgets::Arguments),
    Replay(replay::Arguments),
    Journal(journal::Arguments),
    Play(play::Arguments),
    Up(Box<up::Arguments>),
    #[command(name = "openwop")]
    OpenWop(Box<openwop::Arguments>),
    Cluster(cluster::Arguments),
    Top(top::Arguments),
    Status(status::Arguments),
    Signal(signal::Arguments),
    Cancel(session::CancelArguments),
    Resume(session::ResumeArguments),
    Scan(scan::Arguments),
    Dashboards(dashboards::Arguments),
    Bench(bench::Arguments),
    /// The process with the runtime of a scenario
    #[command(name = WORKER_COMMAND, hide = true)]
    PlayWorker,
}

impl Command {
    /// Executes the command.
    ///
    /// # Errors
    /// Errors if it could not be executed. The message is for people.
    pub(crate) fn execute(self) -> anyhow::Result<Exit> {
        match self {
            Self::New(arguments) => new::execute(&arguments),
            Self::Run(arguments) => run::execute(&arguments),
            Self::Check(arguments) => check::execute(&arguments),
            Self::Inspect(arguments) => inspect::execute(&arguments),
            Self::Explain(arguments) => explain::execute(&arguments),
            Self::Test(arguments) => testing::execute(&arguments),
            Self::Log(arguments) => log::execute(&arguments),
            Self::Why(arguments) => why::execute(&arguments),
            Self::Budgets(arguments) => budgets::execute(&arguments),
            Self::Journal(arguments) => journal::execute(arguments),
            Self::Replay(arguments) => replay::execute(&arguments),
            Self::Play(arguments) => play::execute(&arguments),
            Self::Up(arguments) => up::execute(*arguments),
            Self::OpenWop(arguments) => openwop::execute(*arguments),
            Self::Cluster(arguments) => cluster::execute(&arguments),
            Self::Top(arguments) => top::execute(&arguments),
            Self::Status(arguments) => status::execute(&arguments),
            Self::Signal(arguments) => signal::execute(&arguments),
            Self::Cancel(arguments) => session::cancel(&arguments),
            Self::Resume(arguments) => session::resume(&arguments),
            Self::Scan(arguments) => scan::execute(&arguments),
            Self::Dashboards(arguments) => dashboards::execute(&arguments),
            Self::Bench(arguments) => bench::execute(&arguments),
            Self::PlayWorker => {
                let helper = compiling::helper();
                worker::execute(helper, || threads::start(None))?;
                Ok(Exit::Ok)
            }
        }
    }

    /// Reports why the command is not executed, in the form that scripts expect of it.
    ///
    /// # Errors
    /// Errors with the reason if it was not reported.
    pub(crate) fn refuse(&self, why: anyhow::Error) -> anyhow::Result<Exit> {
        match self {
            Self::Run(arguments) => run::refuse(arguments, &why),
            _ => Err(why),
        }
    }

    /// The log levels if `SANDGLASS_LOG` does not set any.
    pub(crate) const fn log_levels(&self) -> &'static str {
        match self {
            // The author of a guest wants its log and the problems of loading it. How it ended is in
            // the report. Notices cover long waits, and ignored settings of the environment.
            Self::Run(_) => {
                "error,sandglass::guest=debug,sandglass_host::host::loading=warn,\
                 sandglass_supervisor::notice=warn,sandglass_telemetry::otlp::settings=warn"
            }
            // The timeline shows everything else.
            Self::Play(_) | Self::PlayWorker => "error,sandglass_telemetry::otlp::settings=warn",
            // Both kill guests on purpose. A line for each would distort the measurement of one, and
            // repeat the report of the other.
            Self::Bench(_) | Self::Test(_) => "error",
            _ => "warn",
        }
    }

    /// The exit code if [`Command::execute`] fails.
    pub(crate) const fn exit_on_error(&self) -> Exit {
        match self {
            Self::Run(_) => Exit::Rejected,
            _ => Exit::Unusable,
        }
    }
}
