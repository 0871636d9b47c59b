//! The binary `sandglass`: settings, wiring, exit codes and views. It holds no
//! logic that a user of the libraries would miss.

mod command;
mod diagnosis;
mod exit;
mod narrate;
mod scenario;
mod size;
mod terminal;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use command::Command;
use exit::Exit;

/// Runs integrations in a sandbox with an hourglass: every handler ends, on time,
/// in a transition that you declared, and you can see why.
#[derive(Debug, Parser)]
#[command(name = "sandglass", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refused_arguments(&error),
    };
    let on_error = arguments.command.exit_on_error();
    let done = sandglass_telemetry::logs::init(sandglass_telemetry::logs::Format::Text, None)
        .map_err(anyhow::Error::from)
        .and_then(|()| arguments.command.execute());
    match done {
        Ok(exit) => exit.into(),
        Err(error) if is_broken_pipe(&error) => Exit::Ok.into(),
        Err(error) => {
            let text = format!("{error:#}");
            // Where even this can't be written, the exit code says it.
            let _ = writeln!(io::stderr(), "error: {}", terminal::printable(&text));
            on_error.into()
        }
    }
}

/// Help and version are no errors; for the rest each command has its own code.
fn refused_arguments(error: &clap::Error) -> ExitCode {
    // Where it can't be written, the exit code says it.
    let _ = error.print();
    let asked_for_run = std::env::args_os().nth(1).is_some_and(|command| command == "run");
    match error.exit_code() {
        0 => Exit::Ok.into(),
        _ if asked_for_run => Exit::Rejected.into(),
        _ => Exit::Unusable.into(),
    }
}

/// Whoever read our output has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
