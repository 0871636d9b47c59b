//! The binary `sandglass`: arguments, wiring, exit codes and terminal views. It holds no logic that
//! a user of the libraries would miss. It is a library so that `main.rs` only sets the allocator.

mod command;
mod compiling;
mod diagnostic_text;
mod duration;
mod exit;
mod explain;
mod fetch;
mod handler_text;
mod inspection;
mod integrations;
mod interrupts;
mod journal_file;
mod journal_place;
mod journal_reader;
mod json;
mod narrate;
mod open_database;
mod project;
mod reader;
mod serving;
mod terminal;
mod testing;
mod threads;
mod timeline;
mod tls;
mod top;
mod wait;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use sandglass_telemetry::logs;

use command::Command;
use exit::Exit;
use terminal::printable_lines;

/// Runs integrations in a WebAssembly sandbox. Every handler ends, on time, in a transition that you
/// declared, and you can see why.
#[derive(Debug, Parser)]
#[command(name = "sandglass", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// The command line, for its manual pages and the completions of shells.
#[must_use]
pub fn command_line() -> clap::Command {
    Arguments::command()
}

/// Executes the command that the arguments of this process name.
pub fn main() -> ExitCode {
    // First: a compile helper has an empty environment and no log, and its standard output is a
    // channel to its host.
    if std::env::args_os().nth(1).is_some_and(|command| command == compiling::HELPER_COMMAND) {
        return sandglass_host::compile_helper();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return report_arguments(&error),
    };
    let on_error = arguments.command.exit_on_error();
    let levels = match std::env::var_os(logs::LEVEL_VARIABLE) {
        Some(_) => None,
        None => Some(arguments.command.log_levels()),
    };
    let log = logs::init(logs::Format::Text, levels);
    let executed = match &log {
        Ok(_) => arguments.command.execute(),
        Err(error) => {
            let error = anyhow::Error::new(error.clone()).context(logs::LEVEL_VARIABLE);
            arguments.command.refuse(error)
        }
    };
    match executed {
        Ok(exit) => exit.into(),
        Err(error) => {
            terminal::report_error(&error);
            on_error.into()
        }
    }
}

/// Reports arguments that cannot be parsed. Help and the version arrive here too, and are no errors.
fn report_arguments(error: &clap::Error) -> ExitCode {
    let text = without_urls(error.render().to_string(), std::env::args());
    let escaped = printable_lines(&text);
    // If this cannot be written, the exit code still reports it. Only an argument can contain what
    // was escaped; the text is then written without colors, which would be escaped as well.
    let _ = if escaped == error.render().to_string() {
        error.print()
    } else {
        write!(std::io::stderr(), "{escaped}")
    };
    let is_run = std::env::args_os().nth(1).is_some_and(|command| command == "run");
    if is_run && error.exit_code() != 0 && requests_json() {
        let first = text.lines().next().unwrap_or_default();
        // As above.
        let _ = command::run::refuse_arguments(first.trim_start_matches("error: "));
    }
    match error.exit_code() {
        0 => Exit::Ok.into(),
        _ if is_run => Exit::Rejected.into(),
        _ => Exit::Unusable.into(),
    }
}

/// `text` without the URLs of databases that are among the arguments, which may contain passwords.
fn without_urls(text: String, arguments: impl Iterator<Item = String>) -> String {
    let value = |argument: String| match argument.split_once('=') {
        Some((option, value)) if option.starts_with("--") => value.to_owned(),
        _ => argument,
    };
    let urls = arguments.map(value).filter(|argument| journal_place::is_url(argument));
    urls.fold(text, |text, url| text.replace(&url, "postgresql://..."))
}

/// Whether the arguments, which cannot be parsed, request a JSON report.
fn requests_json() -> bool {
    let arguments: Vec<_> = std::env::args_os().collect();
    arguments.iter().any(|one| one == "--report=json")
        || arguments.windows(2).any(|pair| pair[0] == "--report" && pair[1] == "json")
}
