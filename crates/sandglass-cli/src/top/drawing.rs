//! Draws a scene as lines of text, for a size and a moment. It touches no terminal.

use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_model::WallTime;
use sandglass_source::printable;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::scene::{Handler, Kill, Scene, Session};
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

/// Most sessions that wait to be resumed that are listed.
const BLOCKED_SHOWN: usize = 5;

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
        let (blocked, kills) = (self.blocked(&widths, paint), self.kills(&widths, paint));
        let room = rows.saturating_sub(lines.len() + blocked.len() + kills.len() + 2);
        lines.extend(self.handlers(&widths, room, paint));
        lines.push(String::new());
        lines.extend(blocked);
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
        let mut shown: usize = 0;
        for handler in handlers {
            let session = handler.session.as_ref();
            let own = [
                Some(self.handler(handler, widths, paint)),
                session.map(|session| self.session(session, widths, paint)),
            ];
            let own: Vec<String> = own.into_iter().flatten().collect();
            if lines.len() + own.len() > room {
                break;
            }
            lines.extend(own);
            shown += 1;
        }
        let more = in_flight.saturating_sub(shown);
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

    /// The line of a session, below that of its handler.
    fn session(&self, session: &Session, widths: &Widths, paint: &Paint<'_>) -> String {
        let Session { run_seq, status, stuck, stop_reason_code, status_text, .. } = session;
        let is_well = matches!(status.as_str(), "RUNNING" | "QUEUED") && !stuck;
        let mut told = vec![format!("run {run_seq}")];
        // One that is told to be STUCK has the mark in its status.
        let mark = if *stuck && status != "STUCK" { " STUCK" } else { "" };
        let status = format!("{}{mark}", printable(status));
        told.push(paint(if is_well { Tone::Quiet } else { Tone::Bad }, &status));
        told.extend(stop_reason_code.as_deref().map(|code| printable(code).into_owned()));
        told.extend(session.budget_left_ms.map(|left| {
            let left = Duration::from_millis(left).saturating_sub(self.passed);
            format!("{} left", self::told(left))
        }));
        told.extend(
            status_text
                .as_deref()
                .map(|text| fit(text, widths.action + widths.doing).trim_end().to_owned()),
        );
        format!("  {}", told.join("  "))
    }

    /// The sessions that wait to be resumed.
    fn blocked(&self, widths: &Widths, paint: &Paint<'_>) -> Vec<String> {
        let Scene { blocked, blocked_sessions, at, .. } = self.scene;
        if *blocked == 0 {
            return Vec::new();
        }
        let mut lines = vec![paint(Tone::Strong, &format!("{blocked} blocked, to be resumed"))];
        let shown = blocked_sessions.iter().take(BLOCKED_SHOWN);
        lines.extend(shown.map(|session| {
            let waits = u64::try_from(at.saturating_sub(session.at)).unwrap_or(0);
            let waits = Duration::from_millis(waits).saturating_add(self.passed);
            format!(
                "{} run {}  {}  for {}",
                fit(&session.session, widths.entity),
                session.run_seq,
                printable(&session.stop_reason_code),
                told(waits),
            )
        }));
        let more = blocked.saturating_sub(lines.len() - 1);
        if more > 0 {
            lines.push(paint(Tone::Quiet, &format!("and {more} more")));
        }
        lines.push(String::new());
        lines
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

    const SESSIONS: &str = r#"{
        "at": 1763756400000, "health": {"healthy": true, "reasons": []},
        "in_flight": 2, "kills": [], "blocked": 7,
        "handlers": [
            {"entity": "Session/a", "action": "Wait", "attempt": 1, "has_ms": 10000, "left_ms": 1000,
             "doing": "guest", "for_ms": 9000, "stuck": false,
             "session": {"run_seq": 2, "status": "SILENT", "stuck": true, "budget_left_ms": 60500,
                         "status_text": "indexing \u001b[31m\u202e files"}},
            {"entity": "Session/b", "action": "Wait", "attempt": 1, "has_ms": 10000, "left_ms": 1000,
             "doing": "guest", "for_ms": 9000, "stuck": false,
             "session": {"run_seq": 1, "status": "STOPPING", "stuck": false,
                         "stop_reason_code": "no_progress"}}],
        "blocked_sessions": [
            {"session": "Session/c\u202e", "run_seq": 3, "stop_reason_code": "host_shutdown",
             "directive": "wait", "at": 1763756340000}]
    }"#;

    #[test]
    fn a_session_has_a_line_below_its_handler_and_those_that_wait_are_listed() {
        let scene = Scene::read(SESSIONS).expect("a scene");
        let passed = Duration::from_millis(500);
        let view = View { name: "http://here", scene: &scene, passed, away: None };
        let lines = view.lines((100, 40), &|_, text| text.to_owned());
        let shown = |line: &str| lines.iter().position(|found| found.starts_with(line));
        let first = shown("Session/a").expect("it is in flight");
        assert!(
            lines[first + 1].starts_with("  run 2  SILENT STUCK  1m left  indexing "),
            "{lines:?}"
        );
        assert_eq!(lines[first + 3], "  run 1  STOPPING  no_progress");
        let blocked = shown("7 blocked, to be resumed").expect("they are told");
        assert!(lines[blocked + 1].contains("run 3  host_shutdown  for 1m"), "{lines:?}");
        assert_eq!(lines[blocked + 2], "and 6 more");
        for (columns, rows) in [(200, 50), (100, 8), (60, 5), (10, 1), (0, 0)] {
            let lines = view.lines((columns, rows), &|_, text| text.to_owned());
            assert!(lines.len() <= usize::from(rows), "{lines:?}");
            let foreign = |line: &String| line.contains(['\u{1b}', '\u{202e}']);
            assert!(!lines.iter().any(foreign), "{lines:?}");
        }
        let narrow = view.lines((100, 9), &|_, text| text.to_owned());
        assert!(narrow.contains(&"and 2 more".to_owned()), "no half of a handler: {narrow:?}");
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
