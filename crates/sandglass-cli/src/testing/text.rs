//! Prints the results of cases for people.

use std::time::Duration;

use sandglass_model::OutcomeKind;
use sandglass_source::printable;
use sandglass_testkit::CaseResult;

use super::Tested;
use crate::duration::{format_micros, format_millis_exactly};
use crate::explain;
use crate::handler_text::{self, excerpt, labeled};
use crate::terminal::{Output, Tone, printable_lines, printable_path};

pub(super) fn print(tested: &Tested, output: &Output) -> std::io::Result<()> {
    output.line(output.paint(Tone::Strong, printable_path(&tested.suite.path)))?;
    let failed = output.paint(Tone::Bad, "FAIL");
    for (case, verdict) in tested.named() {
        let name = printable(&case.name);
        match &verdict.result {
            Ok(result) if result.passed() => {
                let ok = output.paint(Tone::Good, "ok");
                let times = output.paint(Tone::Quiet, times(result));
                output.line(format!("  {ok}    {name} {times}"))?;
            }
            Ok(result) => {
                output.line(format!("  {failed}  {name} {}", times(result)))?;
                for difference in &result.differences {
                    for line in printable_lines(&difference.to_string()).lines() {
                        output.line(format!("        {line}"))?;
                    }
                }
                for line in details(result) {
                    output.line(format!("        {}", output.paint(Tone::Quiet, line)))?;
                }
            }
            Err(why) => {
                output.line(format!("  {failed}  {name}"))?;
                output.line(format!("        {}", printable(why)))?;
            }
        }
    }
    Ok(())
}

pub(super) fn summary(
    all: &[Tested],
    (passed, failed): (usize, usize),
    output: &Output,
) -> std::io::Result<()> {
    let took: Duration = all
        .iter()
        .flat_map(|tested| &tested.cases)
        .filter_map(|verdict| Some(verdict.result.as_ref().ok()?.took))
        .sum();
    let (tone, text) = match failed {
        0 => (Tone::Good, format!("{passed} passed")),
        _ => (Tone::Bad, format!("{failed} failed, {passed} passed")),
    };
    let took = micros(took);
    output.line(format!("{} in {took}", output.paint(tone, text)))
}

/// The time that a case took, and its virtual time if that is longer.
fn times(result: &CaseResult) -> String {
    let elapsed = result.report.deadline.elapsed_ms;
    let took = micros(result.took);
    if Duration::from_millis(elapsed) > result.took.max(Duration::from_millis(100)) {
        format!("({took} for {})", format_millis_exactly(elapsed))
    } else {
        format!("({took})")
    }
}

fn micros(time: Duration) -> String {
    format_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// What led to the end of a failed case.
fn details(result: &CaseResult) -> Vec<String> {
    let report = &result.report;
    let mut lines = Vec::new();
    if let Some((kind, message)) = report.outcome.error() {
        lines.push(format!("error: {kind}: {}", printable(&message)));
    }
    if let Some(result) = report.result() {
        lines.push(format!("result: {}", excerpt(result)));
    }
    let frames = labeled("at", handler_text::frames(&report.backtrace));
    let calls = labeled("calls", handler_text::calls(&report.story));
    for (name, line) in frames.into_iter().chain(calls) {
        lines.push(format!("{name:<6} {line}"));
    }
    if report.outcome.kind() != OutcomeKind::Completed
        && let Some((kind, _)) = report.outcome.error()
    {
        lines.push(explain::command(&kind));
    }
    lines
}
