//! Renders the page `docs/guests/misbehaving.md`: its head, and a table of what was observed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sandglass_model::{OutcomeKind, RunReport};

use crate::member::{Begins, Handler, Member, Must};
use crate::verdict::{self, Observed, Verdict, Verdicts};

/// The number of dying spans that a cell lists. If a handler may call more functions, the cell
/// shows their number.
const LISTED_MAX: usize = 3;

/// Renders the page; `verdicts` are those of `members`, in the same order.
#[must_use]
pub fn markdown(members: &[Member], verdicts: &Verdicts) -> String {
    let mut page = include_str!("page.md").to_owned();
    page.push_str(
        "| member | what it does | how it ends | dying span | its entity takes |\n\
         |---|---|---|---|---|\n",
    );
    for (member, verdict) in members.iter().zip(verdicts.iter()) {
        let [outcome, span, action] = cells(member, verdict);
        let (name, does) = (&member.name, &member.does);
        let _ = writeln!(page, "| {name} | {does} | {outcome} | {span} | {action} |");
    }
    page
}

fn cells(member: &Member, verdict: &Verdict) -> [String; 3] {
    if !verdict.passed() {
        return [verdict.differs.join("; "), String::new(), String::new()];
    }
    // Equal rows are shown once. Handlers that are asked are left out, because they end as the
    // asking handlers do.
    let begun = member.handlers.iter().filter(|one| one.begins == Begins::AtOnce);
    let mut seen = BTreeSet::new();
    let rows: Vec<[String; 3]> = begun
        .filter_map(|handler| {
            let of = |one: &&Observed| one.entity.entity_type() == handler.entity_type;
            let observed = verdict.observed.iter().find(of)?;
            Some(row(handler, observed))
        })
        .filter(|row| seen.insert(row.clone()))
        .collect();
    [0, 1, 2].map(|column| {
        let cells: Vec<&str> = rows.iter().map(|row| &*row[column]).collect();
        cells.join("; ")
    })
}

fn row(handler: &Handler, observed: &Observed) -> [String; 3] {
    let Some(report) = &observed.report else {
        return ["never begins".to_owned(), String::new(), String::new()];
    };
    let taken: Vec<String> =
        observed.transitions.iter().map(|action| format!("`{action}`")).collect();
    [outcome(report), span(&handler.must, report), taken.join(", ")]
}

fn outcome(report: &RunReport) -> String {
    let kind = report.outcome.kind();
    match report.outcome.error() {
        Some((error, _)) if kind != OutcomeKind::TimedOut => {
            format!("{kind}: `{error}`")
        }
        _ => kind.to_string(),
    }
}

/// The observed span if it is the only possible one; otherwise, the possible ones.
fn span(must: &Must, report: &RunReport) -> String {
    let may = verdict::ending(must, report).map_or(&[][..], |ending| &ending.dying_spans);
    match (may, &report.dying_span) {
        ([] | [_], Some(span)) => format!("`{span}`"),
        ([] | [_], None) => "none".to_owned(),
        (several, _) if several.len() <= LISTED_MAX => {
            let several: Vec<String> = several.iter().map(|span| format!("`{span}`")).collect();
            several.join(" or ")
        }
        (several, _) => format!("`guest`, or one of the {} that it calls", several.len() - 1),
    }
}
