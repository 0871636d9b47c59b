//! Prints the timeline of a play: one line, or one JSON object, for each event.

use std::io;

use sandglass_model::{EntityRef, Record, WallTime};
use sandglass_scenario::{Observer, Scenario, Verdict};
use sandglass_source::printable;
use serde_json::{Value, json};

use crate::narrate::{Line, Narrator};
use crate::terminal::{Output, Tone, count, printable_path};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Text,
    Json,
}

/// Prints the events of one scenario after the other.
#[derive(Debug)]
pub(crate) struct Timeline {
    output: Output,
    style: Style,
    narrator: Narrator,
    start: WallTime,
    scenario: String,
    has_begun: bool,
}

impl Timeline {
    pub(crate) fn new(style: Style) -> Self {
        Self {
            output: Output::new(),
            style,
            narrator: Narrator::default(),
            start: WallTime::default(),
            scenario: String::new(),
            has_begun: false,
        }
    }

    /// Prints the results of all scenarios.
    pub(crate) fn summary(
        &self,
        scenarios: usize,
        expectations: usize,
        failed: usize,
    ) -> io::Result<()> {
        if self.style == Style::Json {
            let summary = json!({
                "type": "summary",
                "scenarios": scenarios,
                "expectations": expectations,
                "failed": failed,
                "held": failed == 0,
            });
            return self.output.line(summary);
        }
        let (tone, verdict) = match failed {
            0 => (Tone::Good, "all held".to_owned()),
            _ => (Tone::Bad, format!("{failed} failed")),
        };
        let verdict = self.output.paint(tone, verdict);
        let (scenarios, expectations) =
            (count(scenarios, "scenario"), count(expectations, "expectation"));
        self.output.line(format_args!("{scenarios}, {expectations}: {verdict}"))
    }

    fn text(
        &self,
        at: WallTime,
        entity: &str,
        what: &str,
        detail: &str,
        tone: Tone,
    ) -> io::Result<()> {
        let offset = at.since(self.start);
        let offset = format!("{:>4}.{:03}s", offset.as_secs(), offset.subsec_millis());
        let what = self.output.paint(tone, format!("{what:<18}"));
        let line = format!("{offset}  {:<22} {what} {detail}", printable(entity));
        self.output.line(line.trim_end())
    }

    fn json(&self, kind: &str, at: WallTime, fields: Value) -> io::Result<()> {
        let offset_ms = u64::try_from(at.since(self.start).as_millis()).unwrap_or(u64::MAX);
        let mut line = json!({"type": kind, "offset_ms": offset_ms, "scenario": self.scenario});
        if let (Some(line), Value::Object(fields)) = (line.as_object_mut(), fields) {
            line.extend(fields);
        }
        self.output.json(&line)
    }
}

impl Observer for Timeline {
    fn begin(&mut self, scenario: &Scenario, now: WallTime) -> io::Result<()> {
        self.start = now;
        self.scenario = printable_path(&scenario.path);
        match self.style {
            Style::Json => self.json("scenario", now, json!({"title": scenario.title})),
            Style::Text => {
                let title = self.output.paint(Tone::Strong, printable(&scenario.title));
                let gap = if std::mem::replace(&mut self.has_begun, true) { "\n" } else { "" };
                self.output.line(format_args!("{gap}{title}  ({})", self.scenario))
            }
        }
    }

    fn remember(&mut self, record: &Record) {
        self.narrator.remember(record);
    }

    fn record(&mut self, record: &Record) -> io::Result<()> {
        if self.style == Style::Json {
            return self.json("record", record.at, json!({"record": record}));
        }
        let Line { what, detail, tone } = self.narrator.describe(record);
        let entity = record.entity.as_ref().map(ToString::to_string).unwrap_or_default();
        self.text(record.at, &entity, &what, &detail, tone)
    }

    fn step(
        &mut self,
        now: WallTime,
        entity: Option<&EntityRef>,
        what: &str,
        detail: &str,
    ) -> io::Result<()> {
        if self.style == Style::Json {
            return self.json(
                "step",
                now,
                json!({"entity": entity, "what": what, "detail": detail}),
            );
        }
        let entity = entity.map(ToString::to_string).unwrap_or_default();
        self.text(now, &entity, &format!("> {what}"), &printable(detail), Tone::Quiet)
    }

    fn verdict(
        &mut self,
        now: WallTime,
        line: usize,
        expected: &str,
        verdict: &Verdict,
    ) -> io::Result<()> {
        if self.style == Style::Json {
            let fields = json!({
                "line": line,
                "held": verdict.holds,
                "expected": expected,
                "found": verdict.found,
            });
            return self.json("expectation", now, fields);
        }
        if verdict.holds {
            return self.text(now, "", "ok", &printable(expected), Tone::Good);
        }
        let place = format!("{}:{}", self.scenario, line);
        self.text(now, "", "FAILED", &place, Tone::Bad)?;
        let indent = " ".repeat(10);
        self.output.line(format_args!("{indent}expected  {}", printable(expected)))?;
        self.output.line(format_args!("{indent}found     {}", printable(&verdict.found)))
    }
}
