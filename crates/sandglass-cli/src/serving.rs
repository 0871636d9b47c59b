//! Runs a server until a signal ends it, once for all commands that serve.

use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context, bail};
use sandglass_server::{Error, Report, Server, Stopped};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::diagnostic_text;
use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::terminal::{Output, count, report_error, report_progress};
use crate::threads;

/// Starts a server, and runs it to its end. SIGHUP reloads it; Ctrl-C or SIGTERM stops it, and a
/// second one ends it at once.
pub(crate) fn execute<S, F>(start: impl FnOnce(Report) -> F) -> anyhow::Result<Exit>
where
    S: Server,
    F: Future<Output = Result<S, Error>>,
{
    let threads = threads::start(None)?;
    let ended = threads.block_on(run(start(Arc::new(report_progress))));
    // What still runs has been stopped, and has had its time.
    threads.shutdown_background();
    ended
}

async fn run<S: Server>(start: impl Future<Output = Result<S, Error>>) -> anyhow::Result<Exit> {
    // Listens before anything that takes time, so that no signal is lost.
    let mut interrupts = Interrupts::listen()?;
    let mut hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let server = tokio::select! {
        server = start => match server {
            Err(Error::Wrong(findings)) => {
                let errors = diagnostic_text::report(&findings);
                bail!("{} in the files; nothing is served", count(errors, "error"));
            }
            server => server?,
        },
        () = interrupts.next() => {
            report_progress("stopped before it listened; nothing was accepted");
            return Ok(Exit::Ok);
        }
    };
    Output::new().line(format_args!("listening on {}", server.url()))?;
    // Beside the loop, because compiling may take long, and Ctrl-C must be noticed meanwhile. A reload
    // that a stop overtakes goes on until the process ends.
    let mut reloading = JoinSet::new();
    let failure = {
        let mut upkeep = pin!(server.upkeep());
        loop {
            tokio::select! {
                () = interrupts.next() => break None,
                _ = hangups.recv(), if reloading.is_empty() => {
                    report_progress("reloading");
                    reloading.spawn(server.reload());
                }
                Some(reloaded) = reloading.join_next() => match reloaded? {
                    Ok(what) => report_progress(&what),
                    Err(error) => {
                        report_error(&anyhow::Error::new(error).context("nothing was reloaded; everything stays as it was"));
                    }
                },
                why = &mut upkeep => {
                    let exit = if matches!(why, Error::Taken(_)) { Exit::Taken } else { Exit::Failed };
                    report_error(&why.into());
                    break Some(exit);
                }
            }
        }
    };
    let if_ended_at_once = server.if_ended_at_once();
    tokio::select! {
        stopped = server.stop() => Ok(match (failure, stopped) {
            (Some(exit), _) => exit,
            (None, Stopped::Recorded) => Exit::Ok,
            (None, Stopped::Unrecorded) => Exit::Failed,
        }),
        () = interrupts.next() => {
            report_progress(&format!("ended at once; {if_ended_at_once}"));
            Ok(Exit::Cancelled)
        }
    }
}
