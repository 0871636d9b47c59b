//! Draws a scene as lines of text, for a size and a moment. It touches no terminal.

use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_model::WallTime;
use sandglass_source::printable;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::scene::{Handler, Kill, Scene};
use crate::duration::{measured_micros, told, told_millis};
use crate::terminal::Tone;

/// Puts a tone around a text.
pub(super) type Paint<'p> = dyn Fn(Tone, &str) -> String + 'p;

/// Narrowest view, in columns: what is narrower is cut at its edge.
const COLUMNS_MIN: usize = 60;
/// Columns of a bar.
const BAR: usize = 10;
/// Columns that don't grow: the attempt, the bar, two durations and the mark, with the gaps.
const FIXED: usize = 3 + BAR + 9 + 9 + 5 + 7;
/// Most kills that are listed, and the share of the rows that is kept for them.
const KILLS_SHOWN: usize = 10;

/// What is drawn.
pub(super) struct View<'v> {
    /// The daemon's address.
    pub(super) name: &'v str,
    pub(super) scene: &'v Scene,
    /// How long ago the scene was told.
    pub(super) passed: Duration,
    /// Why there is no news, where there is none.
    pub(super) away: Option<&'v str>,
}

/// Widths of the columns that take what room there is.
struct Widths {
    entity: usize,
    action: usize,
    doing: usize,
}

impl Widths {
    fn of(columns: u16) -> Self {
        let room = usize::from(columns).max(COLUMNS_MIN).saturating_sub(FIXED);
        let (entity, action) = (room * 2 / 5, room / 4);
        Self { entity, action, doing: room - entity - action }
    }
}

impl View<'_> {
    /// The lines of it: as many as there are rows, at the most.
    pub(super) fn lines(&self, (columns, rows): (u16, u16), paint: &Paint<'_>) -> Vec<String> {
        let (widths, rows) = (Widths::of(columns), usize::from(rows));
        let mut lines = vec![self.heading(paint)];
        if let Some(away) = self.away {
            lines.push(paint(Tone::Bad, &printable(away)));
        }
        for reason in &self.scene.health.reasons {
            lines.push(paint(Tone::Bad, &printable(&reason.message)));
        }
        let kills = self.kills(&widths, paint);
        let room = rows.saturating_sub(lines.len() + kills.len() + 2);
        lines.extend(self.handlers(&widths, room, paint));
        lines.push(String::new());
        lines.extend(kills);
        lines.truncate(rows);
        lines
    }

    fn heading(&self, paint: &Paint<'_>) -> String {
        let passed = i64::try_from(self.passed.as_millis()).unwrap_or(i64::MAX);
        let now = WallTime::from_millis(self.scene.at.saturating_add(passed)).to_string();
        let time = now.get(11..19).unwrap_or_default();
        let health = match (self.away, self.scene.health.reasons.is_empty()) {
            (Some(_), _) => paint(Tone::Bad, "no news"),
            (None, true) => paint(Tone::Good, "ticker and journal work"),
            (None, false) => paint(Tone::Bad, "in trouble"),
        };
        let name = paint(Tone::Strong, &printable(self.name));
        format!("{name}  {} in flight  {health}  {time} UTC", self.scene.in_flight)
    }

    fn handlers(&self, widths: &Widths, room: usize, paint: &Paint<'_>) -> Vec<String> {
        let Scene { handlers, in_flight, .. } = self.scene;
        if *in_flight == 0 {
            return vec![paint(Tone::Quiet, "no handler is in flight")];
        }
        let Widths { entity, action, doing } = *widths;
        let heading = format!(
            "{:entity$} {:action$} TRY {:width$} {:doing$} {:>9}",
            "ENTITY",
            "ACTION",
            "LEFT",
            "IN",
            "FOR",
            width = BAR + 10,
        );
        let mut lines = vec![paint(Tone::Quiet, heading.trim_end())];
        let shown = handlers.iter().take(room.saturating_sub(1));
        lines.extend(shown.map(|handler| self.handler(handler, widths, paint)));
        let more = in_flight.saturating_sub(lines.len() - 1);
        if more > 0 {
            lines.push(paint(Tone::Quiet, &format!("and {more} more")));
        }
        lines
    }

    fn handler(&self, handler: &Handler, widths: &Widths, paint: &Paint<'_>) -> String {
        let runs = !matches!(handler.doing.as_str(), "queued" | "pending");
        let passed = if runs { self.passed } else { Duration::ZERO };
        let passed_ms = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
        let left = handler.left_ms.saturating_sub(passed_ms);
        let told_left = match u64::try_from(left) {
            Ok(left) => told_millis(left),
            Err(_) => format!("-{}", told_millis(left.unsigned_abs())),
        };
        let since = handler.for_ms.map(|waits| told(Duration::from_millis(waits) + self.passed));
        let mark = if handler.stuck { paint(Tone::Bad, "STUCK") } else { String::new() };
        let (bar, is_low) = bar(left, handler.has_ms);
        let bar = paint(if is_low { Tone::Bad } else { Tone::Doubtful }, &bar);
        let line = format!(
            "{} {} {:>3} {bar} {:>9} {} {:>9} {mark}",
            fit(&handler.entity, widths.entity),
            fit(&handler.action, widths.action),
            handler.attempt,
            told_left,
            fit(&handler.doing, widths.doing),
            since.unwrap_or_default(),
        );
        line.trim_end().to_owned()
    }

    fn kills(&self, widths: &Widths, paint: &Paint<'_>) -> Vec<String> {
        let kills = &self.scene.kills;
        if kills.is_empty() {
            return vec![paint(Tone::Quiet, "none was killed since the daemon started")];
        }
        let mut spans: BTreeMap<&str, usize> = BTreeMap::new();
        for kill in kills {
            *spans.entry(&kill.dying_span).or_default() += 1;
        }
        let mut spans: Vec<_> = spans.into_iter().collect();
        spans.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let counts = spans.iter().map(|(span, count)| format!("{count} in {}", printable(span)));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let mut lines = vec![paint(Tone::Strong, &format!("killed lately: {counts}"))];
        lines.extend(kills.iter().take(KILLS_SHOWN).map(|kill| told_kill(kill, widths)));
        lines
    }
}

fn told_kill(kill: &Kill, widths: &Widths) -> String {
    let what = kill.action.as_deref().unwrap_or(&kill.by);
    let late = match kill.by.as_str() {
        "deadline" => format!(", {} late", measured_micros(kill.overrun_us)),
        _ => String::new(),
    };
    let when = WallTime::from_millis(kill.at).to_string();
    format!(
        "{} {} {} after {} of {}{late}  {}",
        fit(&kill.entity, widths.entity),
        fit(what, widths.action),
        fit(&kill.dying_span, widths.doing),
        told_millis(kill.elapsed_ms),
        told_millis(kill.budget_ms),
        when.get(11..19).unwrap_or_default(),
    )
}

/// A bar of what is left, and whether that is little.
fn bar(left_ms: i64, has_ms: u64) -> (String, bool) {
    let left = u64::try_from(left_ms).unwrap_or(0).min(has_ms);
    let cells = BAR as u64;
    let full = left.saturating_mul(cells).div_ceil(has_ms.max(1)).min(cells);
    let full = usize::try_from(full).unwrap_or(BAR);
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(BAR - full));
    (bar, left.saturating_mul(5) < has_ms)
}

/// Foreign text in exactly so many columns.
fn fit(text: &str, columns: usize) -> String {
    let text = printable(text);
    let width = text.width();
    if width <= columns {
        return format!("{text}{}", " ".repeat(columns - width));
    }
    let mut taken = 0;
    let mut cut: String = text
        .chars()
        .take_while(|c| {
            taken += c.width().unwrap_or(0);
            taken < columns
        })
        .collect();
    cut.push('…');
    let width = cut.width();
    cut.push_str(&" ".repeat(columns.saturating_sub(width)));
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENE: &str = r#"{
        "at": 1763756400000, "health": {"healthy": false, "reasons": [{"code": "journal", "message": "the journal takes no appends"}]},
        "in_flight": 3,
        "handlers": [
            {"entity": "Session/a\u001b[31m\u202e", "action": "Wait", "attempt": 2, "has_ms": 10000,
             "left_ms": 1000, "doing": "host_http_call", "for_ms": 9000, "stuck": true},
            {"entity": "Session/日本語日本語日本語日本語日本語", "action": "Wait", "attempt": 1, "has_ms": 10000,
             "left_ms": 10000, "doing": "queued", "for_ms": null, "stuck": false}],
        "kills": [
            {"entity": "Session/9", "action": "Wait", "by": "deadline", "dying_span": "guest",
             "budget_ms": 30000, "elapsed_ms": 30001, "overrun_us": 310, "at": 1763756399000},
            {"entity": "Session/8", "by": "operator", "dying_span": "host_http_call",
             "budget_ms": 30000, "elapsed_ms": 3000, "overrun_us": 0, "at": 1763756399000}]
    }"#;

    fn drawn(size: (u16, u16), passed: u64, away: Option<&str>) -> Vec<String> {
        let scene = Scene::read(SCENE).expect("a scene");
        let passed = Duration::from_millis(passed);
        let view = View { name: "http://here", scene: &scene, passed, away };
        view.lines(size, &|_, text| text.to_owned())
    }

    #[test]
    fn each_handler_has_its_line_and_its_time_goes_on() {
        let lines = drawn((100, 40), 500, None);
        assert_eq!(lines[0], "http://here  3 in flight  in trouble  20:20:00 UTC");
        assert_eq!(lines[1], "the journal takes no appends");
        for part in ["Wait", "  2 █░░░░░░░░░    500 ms", "host_http_call", "9.5 s STUCK"]
        {
            assert!(lines[3].contains(part), "{part:?} is not in {:?}", lines[3]);
        }
        assert!(lines[4].contains("██████████    10.0 s queued"), "{:?}", lines[4]);
        assert_eq!(lines[5], "and 1 more");
        assert_eq!(lines[7], "killed lately: 1 in guest, 1 in host_http_call");
        assert!(lines[8].contains("after 30.0 s of 30.0 s, 310 us late  20:19:59"), "{lines:?}");
        assert!(lines[9].contains("operator") && !lines[9].contains("late"), "{lines:?}");
    }

    #[test]
    fn nothing_foreign_drives_the_terminal_and_every_line_fits() {
        for (columns, rows) in [(200, 50), (100, 8), (60, 3), (10, 1), (0, 0)] {
            let lines = drawn((columns, rows), 0, Some("gone\u{7}; again"));
            assert!(lines.len() <= usize::from(rows), "{lines:?}");
            assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:?}");
            assert!(lines.iter().all(|line| !line.contains('\u{202e}')), "{lines:?}");
        }
        let lines = drawn((100, 40), 0, None);
        let handlers = &lines[3..5];
        assert!(handlers.iter().all(|line| line.width() <= 100), "{handlers:?}");
    }

    #[test]
    fn text_takes_the_columns_that_it_is_given() {
        assert_eq!(fit("abc", 5), "abc  ");
        assert_eq!(fit("abcdef", 5), "abcd…");
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("a日本語", 5), "a日… ");
        assert_eq!(bar(-5, 10), ("░".repeat(BAR), true));
        assert_eq!(bar(0, 0).0, "░".repeat(BAR));
    }
}
