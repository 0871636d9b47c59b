//! The binary `sandglass`: settings, wiring, exit codes and views. It holds no
//! logic that a user of the libraries would miss, and is a library for `main.rs` and
//! for who tests how it reads its files.

mod anatomy;
mod command;
mod compiling;
mod diagnosis;
mod duration;
mod exit;
mod explain;
mod exposition;
mod fetch;
mod inspection;
mod integrations;
mod interrupts;
mod journal_file;
mod json;
mod narrate;
mod openwop;
mod play;
mod project;
pub mod reading;
mod run;
mod scenario;
mod secrets;
mod terminal;
mod testing;
mod threads;
mod tls;
mod top;
mod up;

use std::process::ExitCode;

use clap::Parser;
use sandglass_telemetry::logs;

use command::Command;
use exit::Exit;
use terminal::printable_lines;

/// Runs integrations in a sandbox with an hourglass: every handler ends, on time,
/// in a transition that you declared, and you can see why.
#[derive(Debug, Parser)]
#[command(name = "sandglass", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Does what the arguments of this process ask for.
pub fn main() -> ExitCode {
    // Before all else: it has no environment, no log, and its standard output is its host's.
    if std::env::args_os().nth(1).is_some_and(|command| command == compiling::HELPER_COMMAND) {
        return sandglass_host::compile_helper();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refused_arguments(&error),
    };
    let on_error = arguments.command.exit_on_error();
    let levels = match std::env::var_os(logs::LEVEL_VARIABLE) {
        Some(_) => None,
        None => Some(arguments.command.log_levels()),
    };
    let log = logs::init(logs::Format::Text, levels);
    let done = match &log {
        Ok(_) => arguments.command.execute(),
        Err(error) => {
            let error = anyhow::Error::new(error.clone()).context(logs::LEVEL_VARIABLE);
            arguments.command.refuse(error)
        }
    };
    match done {
        Ok(exit) => exit.into(),
        Err(error) => {
            terminal::complain(&error);
            on_error.into()
        }
    }
}

/// Help and version are no errors; for the rest each command has its own code.
fn refused_arguments(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    let shown = printable_lines(&text);
    // Where it can't be written, the exit code says it. What drives a terminal in it is of
    // an argument, and shown without colours, which would be escaped as well.
    let _ = if shown == text {
        error.print()
    } else {
        terminal::complain_of_arguments(&shown);
        Ok(())
    };
    let asked_for_run = std::env::args_os().nth(1).is_some_and(|command| command == "run");
    if asked_for_run && error.exit_code() != 0 && asks_for_json() {
        let why = error.render().to_string();
        let first = why.lines().next().unwrap_or_default();
        // As above.
        let _ = run::refuse_arguments(first.trim_start_matches("error: "));
    }
    match error.exit_code() {
        0 => Exit::Ok.into(),
        _ if asked_for_run => Exit::Rejected.into(),
        _ => Exit::Unusable.into(),
    }
}

/// Whether a script waits for a JSON report, of arguments that can't be parsed.
fn asks_for_json() -> bool {
    let arguments: Vec<_> = std::env::args_os().collect();
    arguments.iter().any(|one| one == "--report=json")
        || arguments.windows(2).any(|pair| pair[0] == "--report" && pair[1] == "json")
}
