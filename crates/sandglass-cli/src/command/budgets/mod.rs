//! `sandglass budgets`: compares the budgets of handlers with the time that they take.

mod scraped;

use std::ffi::{OsStr, OsString};

use anyhow::Context;
use sandglass_insight::budget::{Advice, Budget, Budgets, Quantiles, RUNS_MIN, Survey};
use sandglass_source::printable;
use serde_json::{Value, json};

use crate::duration::format_millis;
use crate::exit::Exit;
use crate::journal_place::{Place, is_url};
use crate::terminal::{Output, Tone, count, note};
use crate::{fetch, journal_file, threads};

/// Compares budgets with the time that handlers take, from a journal or a running host's metrics
///
/// For each action and integration of an entity type, shows the declared budget, how long its
/// handlers took (p50, p99 and p99.9), how much of the budget that is, how many were killed at the
/// deadline and in what, and which budget would fit, with the reason. Handlers that were cancelled,
/// trapped or lost do not count.
///
/// A journal has the time of each handler. Metrics have only the time since the start of the host,
/// in the buckets of histograms: values between two bounds are estimates (`~`, and
/// `"estimated": true` in JSON), and never above a budget if all slower handlers were killed by it.
/// In metrics, cancelled handlers count, and integrations are not distinguished.
///
/// Exit code: 0 shown, 2 the journal or the metrics cannot be read, 3 parts of the journal are
/// damaged or missing (the rest counts).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass budgets runs.db\n  \
    sandglass budgets postgresql://sandglass@db.example/runs\n  \
    sandglass budgets http://127.0.0.1:7341/metrics --api-key-env READER_KEY\n  \
    sandglass budgets runs.db --json | jq '.budgets[] | select(.advice != \"keep\")'")]
pub(crate) struct Arguments {
    /// The journal, which may be in use: a file, postgresql://USER@HOST/DATABASE or env:VAR; or the
    /// address of metrics (http://HOST:PORT or https://HOST:PORT; without a path, /metrics)
    #[arg(value_name = "JOURNAL|URL")]
    from: OsString,
    #[command(flatten)]
    access: fetch::Access,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let (found, exit, if_empty) = match address(&arguments.from)? {
        Some(address) => {
            let found = from_metrics(&address, &arguments.access)?;
            (found, Exit::Ok, "no handler has run yet")
        }
        None => {
            let (found, exit) = from_journal(&Place::from(arguments.from.clone()))?;
            (found, exit, "no handler was dispatched")
        }
    };
    let output = Output::new();
    if arguments.json {
        output.json(&as_json(&found))?;
    } else {
        print(&found, if_empty, &output)?;
    }
    Ok(exit)
}

/// The address of metrics; `None` if `from` is a journal.
fn address(from: &OsStr) -> anyhow::Result<Option<String>> {
    let is_address = |text: &&str| text.contains("://") && !is_url(text);
    let Some(text) = from.to_str().filter(is_address) else { return Ok(None) };
    let has_path = fetch::address(text)?.path() != "/";
    let of_daemon = || format!("{}/metrics", text.trim_end_matches('/'));
    Ok(Some(if has_path { text.to_owned() } else { of_daemon() }))
}

fn from_metrics(address: &str, access: &fetch::Access) -> anyhow::Result<Budgets> {
    let client = fetch::Client::new(access, address)?;
    let page = threads::start(Some(1))?.block_on(client.text(""))?;
    let found = scraped::budgets(&page);
    found.with_context(|| format!("there are no metrics of handlers at `{address}`"))
}

fn from_journal(journal: &Place) -> anyhow::Result<(Budgets, Exit)> {
    let mut survey = Survey::default();
    let exit = journal_file::read(journal, |record| {
        if let Some(record) = record {
            survey.feed(record);
        }
    })?;
    Ok((survey.finish(), exit))
}

/// `if_empty` states that there are no budgets.
fn print(found: &Budgets, if_empty: &str, output: &Output) -> anyhow::Result<()> {
    if found.budgets.is_empty() {
        return Ok(output.line(if_empty)?);
    }
    for budget in &found.budgets {
        let name = format!("{}.{}", budget.of.entity_type, budget.of.action);
        let name = output.paint(Tone::Strong, printable(&name));
        let by = match budget.of.integration.as_str() {
            "" => String::new(),
            integration => format!("  by {}", printable(integration)),
        };
        output.line(format_args!("{name}{by}"))?;
        let default = if budget.is_default { " (the default)" } else { "" };
        let budgeted = format_millis(budget.budget_ms);
        output
            .line(format_args!("  budget  {budgeted}{default}, {}", count(budget.runs, "run")))?;
        if budget.runs > 0 {
            output.line(format_args!("  took    {}", format_quantiles(budget)))?;
        }
        if budget.kills() > 0 {
            let by = budget.killed.iter().map(|(span, kills)| format!("{kills} in {span}"));
            let by = by.collect::<Vec<_>>().join(", ");
            let killed = format!("  killed  {}: {}", budget.kills(), printable(&by));
            output.line(output.paint(Tone::Bad, killed))?;
        }
        let (tone, what) = match budget.advice() {
            Advice::TooFew => (Tone::Quiet, "none yet".to_owned()),
            Advice::AllKilled => (Tone::Bad, "see what they died in".to_owned()),
            Advice::Keep => (Tone::Good, "keep it".to_owned()),
            Advice::Hangs => (Tone::Bad, "keep it".to_owned()),
            Advice::Raise(millis) => (Tone::Bad, format!("raise it to {}", format_millis(millis))),
            Advice::Lower(millis) => {
                (Tone::Doubtful, format!("lower it to {}", format_millis(millis)))
            }
        };
        let (what, why) = (output.paint(tone, what), reason(budget));
        output.line(format_args!("  advice  {what}: {}", printable(&why)))?;
    }
    if found.uncounted > 0 {
        note(&format!("not included: {}", count(found.uncounted, "run")));
    }
    Ok(())
}

fn format_quantiles(budget: &Budget) -> String {
    let Quantiles { p50_ms, p99_ms, p999_ms, .. } = budget.took;
    let about = about(budget);
    let took = [("p50", p50_ms), ("p99", p99_ms), ("p99.9", p999_ms)].map(|(name, millis)| {
        let share = percent(millis, budget.budget_ms);
        format!("{name} {about}{} ({about}{share} %)", format_millis(millis))
    });
    took.join(", ")
}

/// The prefix of an estimated figure.
const fn about(budget: &Budget) -> &'static str {
    if budget.is_estimated { "~" } else { "" }
}

/// The reason for the advice.
fn reason(budget: &Budget) -> String {
    let by_itself = budget.took_by_itself;
    match budget.advice() {
        Advice::TooFew if budget.runs == 0 => "no run with this budget has ended".to_owned(),
        Advice::TooFew => format!("{RUNS_MIN} runs are needed for advice"),
        Advice::AllKilled => "all were killed: the budget may be too small, or what they waited \
                              for hung; check the host calls above (`guest` is their own code)"
            .to_owned(),
        Advice::Keep => "it leaves time above the slowest".to_owned(),
        Advice::Hangs => format!(
            "99 in 100 of those that ended by themselves took {}{} at most, so those that were \
             killed hung; more time would not help them",
            about(budget),
            format_millis(by_itself.p99_ms)
        ),
        Advice::Raise(_) if budget.kills() > 0 => {
            "it kills runs that were making progress, and how long they would have taken is unknown"
                .to_owned()
        }
        Advice::Raise(_) => "the slowest come too close to it".to_owned(),
        Advice::Lower(_) => {
            "that is 1.5 times what the slowest in a thousand took, and a handler that hangs would \
             be noticed sooner"
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
    json!({ "budgets": found.budgets.iter().map(one).collect::<Vec<_>>(), "untold": found.uncounted })
}
