//! Formats a report as lines for people.

use std::fmt::Write as _;

use crate::figure::{Figure, Goal};
use crate::machine::named;
use crate::report::Report;

/// Formats `report` as lines. `paint` receives each verdict on a goal and whether the goal was met,
/// and each error of a figure that could not be measured.
pub fn lines(report: &Report, paint: impl Fn(bool, &str) -> String) -> Vec<String> {
    let mut lines = vec![heading(report), String::new()];
    lines.push(format!(
        "{:<22} {:>11} {:>11}    {:>10} {:>7} {:>9}",
        "figure", "p50", "p99", "baseline", "ratio", "samples"
    ));
    for (key, figure) in &report.figures {
        let figure = match figure {
            Ok(figure) => figure,
            Err(error) => {
                lines.push(format!("{key:<22} {}", paint(false, &error.to_string())));
                continue;
            }
        };
        lines.push(format!("{key:<22} {}", numbers(figure)));
        for goal in &figure.goals {
            let verdict = if goal.met { "met" } else { "missed" };
            lines.push(format!("  {} {}", paint(goal.met, verdict), describe_goal(goal, figure)));
        }
    }
    lines
}

fn heading(report: &Report) -> String {
    let machine = &report.machine;
    let effort = if report.quick { ", quick" } else { "" };
    let features = named(machine.kernel_features)
        .map(|(name, used)| format!("{name} {}", if used { "in use" } else { "missing" }));
    format!(
        "{} cores, kernel {} ({}), Wasmtime {}{effort}",
        machine.cores,
        machine.kernel,
        features.join(", "),
        machine.wasmtime
    )
}

fn numbers(figure: &Figure) -> String {
    let or_nothing = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), short);
    format!(
        "{:>11} {:>11} {:>2} {:>10} {:>7} {:>9}",
        short(figure.p50),
        short(figure.p99),
        figure.unit.symbol(),
        or_nothing(figure.baseline),
        or_nothing(figure.ratio),
        figure.samples
    )
}

fn describe_goal(goal: &Goal, figure: &Figure) -> String {
    let mut text = format!("{} {}", goal.what, short(goal.measured));
    if matches!(goal.what, "p50" | "p99") {
        let _ = write!(text, " {}", figure.unit.symbol());
    }
    let _ = write!(text, ", goal at most {}", short(goal.at_most));
    text
}

/// Formats a number with as many decimals as are significant.
fn short(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 || number == 0.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}
