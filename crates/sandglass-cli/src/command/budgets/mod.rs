//! `sandglass budgets`: whether the budgets of handlers fit what they take.

mod scraped;

use std::path::{Path, PathBuf};

use anyhow::Context;
use hyper::Uri;
use sandglass_insight::budget::{Advice, Budget, Budgets, Quantiles, RUNS_MIN, Survey};
use sandglass_source::printable;
use serde_json::{Value, json};

use crate::duration::format_millis;
use crate::exit::Exit;
use crate::terminal::{Output, Tone, note};
use crate::{fetch, journal_file, threads};

/// Shows which budgets fit what handlers take, by a journal or by a running host's metrics
///
/// For each action and integration of an entity type: the declared budget, what its handlers
/// took (half of them, 99 of 100, and 999 of 1,000 at most), how much of the budget that was,
/// how many were killed at the deadline and in what, and which budget would fit, with the
/// reason. Handlers that were cancelled, trapped or lost say nothing of it.
///
/// A journal knows each run. Metrics know since the host's start alone, and times by the
/// buckets of their histograms: what lies between two bounds is estimated (`~`, and
/// `"estimated": true` in JSON), and never above a budget that killed all that were; handlers that were
/// cancelled count, and integrations aren't told apart.
///
/// Exit code: 0, 2 no readable journal or page, 3 some of the journal is damaged or missing
/// (the rest counts).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass budgets runs.db\n  \
    sandglass budgets http://127.0.0.1:7341/metrics --api-key-env READER_KEY\n  \
    sandglass budgets runs.db --json | jq '.budgets[] | select(.advice != \"keep\")'")]
pub(crate) struct Arguments {
    /// The journal, as --journal named it, which may be in use; or the address of metrics
    /// (http://HOST:PORT or https://HOST:PORT, and /metrics where no path is said)
    #[arg(value_name = "JOURNAL|URL")]
    from: PathBuf,
    #[command(flatten)]
    access: fetch::Access,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let (found, exit, nothing) = match address(&arguments.from)? {
        Some(address) => {
            let found = of_metrics(&address, &arguments.access)?;
            (found, Exit::Ok, "nothing has run yet")
        }
        None => {
            let (found, exit) = of_journal(&arguments.from)?;
            (found, exit, "no handler was dispatched")
        }
    };
    let mut output = Output::new();
    if arguments.json {
        output.json(&as_json(&found))?;
    } else {
        print(&found, nothing, &mut output)?;
    }
    Ok(exit)
}

/// The address that is named; none where it is a file.
fn address(from: &Path) -> anyhow::Result<Option<Uri>> {
    let Some(text) = from.to_str().filter(|text| text.contains("://")) else { return Ok(None) };
    let address = fetch::address(text)?;
    if address.path() != "/" {
        return Ok(Some(address));
    }
    fetch::address(&format!("{}/metrics", text.trim_end_matches('/'))).map(Some)
}

fn of_metrics(address: &Uri, access: &fetch::Access) -> anyhow::Result<Budgets> {
    let client = fetch::Client::new(access, address)?;
    let page = threads::start(Some(1))?.block_on(client.text(address))?;
    let found = scraped::budgets(&page);
    found.with_context(|| format!("there are no metrics of handlers at `{address}`"))
}

fn of_journal(journal: &Path) -> anyhow::Result<(Budgets, Exit)> {
    let mut survey = Survey::default();
    let exit = journal_file::read(journal, |record| {
        if let Some(record) = record {
            survey.feed(record);
        }
    })?;
    Ok((survey.finish(), exit))
}

/// `nothing` says that there are none.
fn print(found: &Budgets, nothing: &str, output: &mut Output) -> anyhow::Result<()> {
    if found.budgets.is_empty() {
        return Ok(output.line(nothing)?);
    }
    for budget in &found.budgets {
        let name = format!("{}.{}", budget.of.entity_type, budget.of.action);
        let name = output.paint(Tone::Strong, &printable(&name)).into_owned();
        let by = match budget.of.integration.as_str() {
            "" => String::new(),
            integration => format!("  by {}", printable(integration)),
        };
        output.line(format_args!("{name}{by}"))?;
        let default = if budget.is_default { " (the default)" } else { "" };
        let budgeted = format_millis(budget.budget_ms);
        output.line(format_args!("  budget  {budgeted}{default}, {} runs", budget.runs))?;
        if budget.runs > 0 {
            output.line(format_args!("  took    {}", took(budget)))?;
        }
        if budget.kills() > 0 {
            let by = budget.killed.iter().map(|(span, kills)| format!("{kills} in {span}"));
            let by = by.collect::<Vec<_>>().join(", ");
            let killed = format!("  killed  {}: {}", budget.kills(), printable(&by));
            output.line(output.paint(Tone::Bad, &killed).into_owned())?;
        }
        let (tone, what) = match budget.advice() {
            Advice::TooFew => (Tone::Quiet, "nothing to say".to_owned()),
            Advice::AllKilled => (Tone::Bad, "look what they died in".to_owned()),
            Advice::Keep => (Tone::Good, "keep it".to_owned()),
            Advice::Hangs => (Tone::Bad, "keep it".to_owned()),
            Advice::Raise(millis) => (Tone::Bad, format!("raise it to {}", format_millis(millis))),
            Advice::Lower(millis) => {
                (Tone::Doubtful, format!("lower it to {}", format_millis(millis)))
            }
        };
        let what = output.paint(tone, &what).into_owned();
        output.line(format_args!("  advice  {what}: {}", printable(&reason(budget))))?;
    }
    if found.untold > 0 {
        note(&format!("{} runs are in none of these", found.untold));
    }
    Ok(())
}

fn took(budget: &Budget) -> String {
    let Quantiles { p50_ms, p99_ms, p999_ms, .. } = budget.took;
    let about = about(budget);
    let took = [("p50", p50_ms), ("p99", p99_ms), ("p99.9", p999_ms)].map(|(name, millis)| {
        let share = percent(millis, budget.budget_ms);
        format!("{name} {about}{} ({about}{share} %)", format_millis(millis))
    });
    took.join(", ")
}

/// Stands before a figure that is estimated.
const fn about(budget: &Budget) -> &'static str {
    if budget.is_estimated { "~" } else { "" }
}

/// Why that is advised.
fn reason(budget: &Budget) -> String {
    let by_itself = budget.took_by_itself;
    match budget.advice() {
        Advice::TooFew if budget.runs == 0 => "no run has ended under it".to_owned(),
        Advice::TooFew => format!("it takes {RUNS_MIN} runs to tell"),
        Advice::AllKilled => "all were killed: the budget may be too small, or what they waited \
                              for hung; a host call above says what to look at, `guest` is their \
                              own work"
            .to_owned(),
        Advice::Keep => "there is room above the slowest".to_owned(),
        Advice::Hangs => format!(
            "99 in 100 of those that ended by themselves took {}{} at most, so the ones that \
             were killed hung; more time wouldn't help them",
            about(budget),
            format_millis(by_itself.p99_ms)
        ),
        Advice::Raise(_) if budget.kills() > 0 => {
            "it cuts off runs that were on their way, and nobody knows what they would have taken"
                .to_owned()
        }
        Advice::Raise(_) => "the slowest come too near to it".to_owned(),
        Advice::Lower(_) => {
            "that is half as much again as the slowest in a thousand took, and one that hangs \
             would be noticed sooner"
                .to_owned()
        }
    }
}

/// Of the budget, rounded up.
fn percent(millis: u64, budget_ms: u64) -> u64 {
    millis.saturating_mul(100).div_ceil(budget_ms.max(1))
}

fn as_json(found: &Budgets) -> Value {
    let quantiles = |took: Quantiles, budget_ms| {
        let Quantiles { p50_ms, p99_ms, p999_ms, max_ms } = took;
        let used = percent(p99_ms, budget_ms);
        json!({
            "p50_ms": p50_ms, "p99_ms": p99_ms, "p999_ms": p999_ms, "max_ms": max_ms,
            "used_percent": used,
        })
    };
    let one = |budget: &Budget| {
        let (advice, suggested) = match budget.advice() {
            Advice::TooFew => ("too_few", None),
            Advice::AllKilled => ("all_killed", None),
            Advice::Keep => ("keep", Some(budget.budget_ms)),
            Advice::Hangs => ("hangs", Some(budget.budget_ms)),
            Advice::Raise(millis) => ("raise", Some(millis)),
            Advice::Lower(millis) => ("lower", Some(millis)),
        };
        json!({
            "entity_type": budget.of.entity_type,
            "action": budget.of.action,
            "integration": budget.of.integration,
            "budget_ms": budget.budget_ms,
            "budget_defaulted": budget.is_default,
            "runs": budget.runs,
            "estimated": budget.is_estimated,
            "took": quantiles(budget.took, budget.budget_ms),
            "killed": budget.killed,
            "advice": advice,
            "suggested_ms": suggested,
            "reason": reason(budget),
        })
    };
    json!({ "budgets": found.budgets.iter().map(one).collect::<Vec<_>>(), "untold": found.untold })
}
