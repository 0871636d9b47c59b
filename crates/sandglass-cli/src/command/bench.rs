//! `sandglass bench`: measures the cost and the kill precision of the host on this machine.

use sandglass_bench::{Effort, Key};

use crate::exit::Exit;
use crate::terminal::{Output, Tone, note, report_progress};

/// Measures the cost and the kill precision of the host on this machine
///
/// Measures what a dispatch costs compared with plain Wasmtime, how soon after its deadline a handler
/// is killed, and how that affects other handlers. Uses the whole machine; other programs distort the
/// figures. The table shows whether each figure meets its goal; a missed goal does not change the
/// exit code.
///
/// Exit code: 0 measured, 1 a figure could not be measured (the others are printed), 2 invalid
/// arguments, or no host can be built on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass bench --quick\n  \
    sandglass bench --only host_call,kill_spin_idle\n  \
    sandglass bench --quick --json | jq '.dispatch_throughput.ratio'")]
pub(crate) struct Arguments {
    /// Print one JSON object: each figure under its key as {p50, p99, unit, samples,
    /// baseline?, ratio?, max?, histogram?, goals} or {error}, and {machine, quick}
    #[arg(long)]
    json: bool,
    /// Take fewer samples: all figures in a minute and a half on two cores
    #[arg(long)]
    quick: bool,
    #[arg(long, value_name = "KEY", value_delimiter = ',', num_args = 1, help = only_help())]
    only: Vec<Key>,
}

/// The help of `--only`, with all of its values.
fn only_help() -> String {
    let keys: Vec<&str> = Key::ALL.iter().map(|key| key.name()).collect();
    format!("Measure only these figures: {}", keys.join(", "))
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let effort = if arguments.quick { Effort::Quick } else { Effort::Full };
    let mut keys = Key::ALL.to_vec();
    keys.retain(|key| arguments.only.is_empty() || arguments.only.contains(key));
    if cfg!(debug_assertions) {
        note("this is a development build; only a build with --release has meaningful figures");
    }
    let mut at = 0;
    let program = std::env::current_exe()?;
    let report = sandglass_bench::run(effort, &keys, Some(&program), &mut |key| {
        at += 1;
        report_progress(&format!("{at} of {}: {key}, {}", keys.len(), key.about()));
    })?;
    let exit = if report.is_complete() { Exit::Ok } else { Exit::Failed };
    let output = Output::new();
    if arguments.json {
        output.json_pretty(&report)?;
        return Ok(exit);
    }
    let paint = |met: bool, verdict: &str| {
        let tone = if met { Tone::Good } else { Tone::Doubtful };
        output.paint(tone, verdict)
    };
    let lines = sandglass_bench::lines(&report, paint);
    output.line(lines.join("\n"))?;
    Ok(exit)
}
