//! Lays out one snapshot of the live view as styled lines, for a size and a moment. It touches no
//! terminal, so that `--once` prints the same lines.

use std::collections::BTreeMap;
use std::time::Duration;

use ratatui::text::{Line, Span};
use sandglass_model::WallTime;
use sandglass_source::printable;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::scene::{Handler, Host, Kill, Scene, Session};
use crate::duration::{format_duration, format_micros, format_millis};
use crate::terminal::Tone;

/// Narrowest layout, in columns: a narrower terminal cuts lines at its edge.
const COLUMNS_MIN: usize = 60;
/// Columns of the bar that shows the remaining budget.
const BAR: usize = 10;
/// Columns of fixed width: the attempt, the bar, two durations and the mark, with their gaps.
const FIXED: usize = 3 + BAR + 9 + 9 + 5 + 7;
/// Columns of the name of a host, with its gap, if there is a cluster.
const HOST: usize = 16;
/// Most hosts that are listed.
const HOSTS_SHOWN: usize = 8;
/// Most kills that are listed.
const KILLS_SHOWN: usize = 10;
/// Most blocked sessions that are listed.
const BLOCKED_SHOWN: usize = 5;

/// A snapshot, and what is needed to show it at a later moment.
pub(super) struct View<'v> {
    /// The daemon's address.
    pub(super) address: &'v str,
    pub(super) scene: &'v Scene,
    /// How long ago the daemon sent the snapshot.
    pub(super) age: Duration,
    /// Why there are no updates; `None` if they arrive.
    pub(super) problem: Option<&'v str>,
}

/// Widths of the columns that share the space that the fixed ones leave.
struct Widths {
    entity: usize,
    action: usize,
    doing: usize,
}

impl Widths {
    /// Widths within `columns`, of which the name of a host takes some if `has_hosts`.
    fn of(columns: u16, has_hosts: bool) -> Self {
        let fixed = if has_hosts { FIXED + HOST } else { FIXED };
        let least = if has_hosts { COLUMNS_MIN + HOST } else { COLUMNS_MIN };
        let free = usize::from(columns).max(least).saturating_sub(fixed);
        let (entity, action) = (free * 2 / 5, free / 4);
        Self { entity, action, doing: free - entity - action }
    }
}

impl View<'_> {
    /// At most `rows` lines. The list of handlers gives way to the other parts.
    pub(super) fn lines(&self, (columns, rows): (u16, u16)) -> Vec<Line<'static>> {
        let has_hosts = !self.scene.hosts.is_empty();
        let (widths, rows) = (Widths::of(columns, has_hosts), usize::from(rows));
        let reasons = self.scene.health.reasons.iter().map(|reason| &*reason.message);
        let problems = self.problem.into_iter().chain(reasons);
        let mut lines = vec![self.heading()];
        lines.extend(problems.map(|problem| line(Tone::Bad, printable(problem))));
        lines.extend(self.hosts());
        let (blocked, kills) = (self.blocked(&widths), self.kills(&widths));
        let free = rows.saturating_sub(lines.len() + blocked.len() + kills.len() + 2);
        lines.extend(self.handlers(&widths, free));
        lines.push(Line::default());
        lines.extend(blocked);
        lines.extend(kills);
        lines.truncate(rows);
        lines
    }

    fn heading(&self) -> Line<'static> {
        let age = i64::try_from(self.age.as_millis()).unwrap_or(i64::MAX);
        let (tone, health) = match (self.problem, self.scene.health.reasons.is_empty()) {
            (Some(_), _) => (Tone::Bad, "no updates"),
            (None, true) => (Tone::Good, "ticker and journal work"),
            (None, false) => (Tone::Bad, "unhealthy"),
        };
        Line::from(vec![
            span(Tone::Strong, printable(self.address)),
            Span::raw(format!("  {} in flight  ", self.scene.in_flight)),
            span(tone, health),
            Span::raw(format!("  {} UTC", time_of_day(self.scene.at.saturating_add(age)))),
        ])
    }

    /// The hosts of the cluster, those that did not respond first.
    fn hosts(&self) -> Vec<Line<'static>> {
        let Scene { hosts, .. } = self.scene;
        let mut ordered: Vec<&Host> = hosts.iter().collect();
        ordered.sort_by_key(|host| (!self.is_missing(host), host.state == "live"));
        let shown = ordered.iter().take(HOSTS_SHOWN);
        let mut lines: Vec<Line<'static>> = shown.map(|host| self.host(host)).collect();
        lines.extend(more(hosts.len(), lines.len()));
        lines
    }

    fn host(&self, host: &Host) -> Line<'static> {
        let (tone, state) = match (self.is_missing(host), host.state.as_str()) {
            (true, state) => (Tone::Bad, format!("{state}, does not respond")),
            (false, "live") => (Tone::Good, "live".to_owned()),
            (false, state) => (Tone::Doubtful, state.to_owned()),
        };
        Line::from(vec![
            Span::raw(format!("host {}  ", fit(&host.name, 2 * HOST))),
            span(tone, printable(&state)),
            Span::raw(format!("  {} partitions", host.partitions)),
        ])
    }

    fn is_missing(&self, host: &Host) -> bool {
        self.scene.missing.iter().any(|missing| missing.host == host.host)
    }

    /// The name of the host of a handler, or the begin of its id; `None` without a cluster.
    fn host_of(&self, handler: &Handler) -> Option<String> {
        let hosts = &self.scene.hosts;
        if hosts.is_empty() {
            return None;
        }
        let id = handler.host.as_deref().unwrap_or_default();
        let named = hosts.iter().find(|host| host.host == id);
        let name = named.map_or_else(|| id.chars().take(8).collect(), |host| host.name.clone());
        Some(fit(&name, HOST - 1) + " ")
    }

    fn handlers(&self, widths: &Widths, free: usize) -> Vec<Line<'static>> {
        let Scene { handlers, in_flight, .. } = self.scene;
        if *in_flight == 0 {
            return vec![line(Tone::Quiet, "no handler is in flight")];
        }
        let Widths { entity, action, doing } = *widths;
        let host = if self.scene.hosts.is_empty() { 0 } else { HOST };
        let heading = format!(
            "{:host$}{:entity$} {:action$} TRY {:left$} {:doing$} {:>9}",
            if host == 0 { "" } else { "HOST" },
            "ENTITY",
            "ACTION",
            "LEFT",
            "IN",
            "FOR",
            left = BAR + 10,
        );
        let mut lines = vec![line(Tone::Quiet, heading)];
        let mut shown = 0;
        for handler in handlers {
            let session = handler.session.as_ref();
            let mut own = vec![self.handler(handler, widths)];
            own.extend(session.map(|session| self.session(session, widths)));
            if lines.len() + own.len() > free {
                break;
            }
            lines.append(&mut own);
            shown += 1;
        }
        lines.extend(more(*in_flight, shown));
        lines
    }

    fn handler(&self, handler: &Handler, widths: &Widths) -> Line<'static> {
        // The budget of a handler that waits for its start does not decrease.
        let is_started = !matches!(handler.doing.as_str(), "queued" | "pending");
        let age = if is_started { self.age } else { Duration::ZERO };
        let left_ms = handler.left_ms.saturating_sub_unsigned(millis(age));
        let sign = if left_ms < 0 { "-" } else { "" };
        let left = format!("{sign}{}", format_millis(left_ms.unsigned_abs()));
        let waits = handler.for_ms.map(|waits| Duration::from_millis(waits) + self.age);
        let (bar, is_low) = bar(left_ms, handler.has_ms);
        let mut spans = vec![
            Span::raw(format!(
                "{}{} {} {:>3} ",
                self.host_of(handler).unwrap_or_default(),
                fit(&handler.entity, widths.entity),
                fit(&handler.action, widths.action),
                handler.attempt
            )),
            span(if is_low { Tone::Bad } else { Tone::Doubtful }, bar),
            Span::raw(format!(
                " {left:>9} {} {:>9}",
                fit_activity(&handler.activity(), widths.doing),
                waits.map(format_duration).unwrap_or_default()
            )),
        ];
        if handler.stuck {
            spans.extend([Span::raw(" "), span(Tone::Bad, "STUCK")]);
        }
        Line::from(spans)
    }

    /// The line of a session, below that of its handler.
    fn session(&self, session: &Session, widths: &Widths) -> Line<'static> {
        let Session { run_seq, status, stuck, stop_reason_code, status_text, .. } = session;
        let is_well = matches!(status.as_str(), "RUNNING" | "QUEUED") && !stuck;
        let mark = if *stuck && status != "STUCK" { " STUCK" } else { "" };
        let left = session.budget_left_ms.map(Duration::from_millis);
        let text = status_text.as_deref().map(|text| fit(text, widths.action + widths.doing));
        let details = [
            stop_reason_code.as_deref().map(|code| printable(code).into_owned()),
            left.map(|left| format!("{} left", format_duration(left.saturating_sub(self.age)))),
            text.map(|text| text.trim_end().to_owned()),
        ];
        let details = details.into_iter().flatten().map(|detail| format!("  {detail}"));
        Line::from(vec![
            Span::raw(format!("  run {run_seq}  ")),
            span(
                if is_well { Tone::Quiet } else { Tone::Bad },
                format!("{}{mark}", printable(status)),
            ),
            Span::raw(details.collect::<String>()),
        ])
    }

    /// The sessions that are blocked until they are resumed.
    fn blocked(&self, widths: &Widths) -> Vec<Line<'static>> {
        let Scene { blocked, blocked_sessions, at, .. } = self.scene;
        if *blocked == 0 {
            return Vec::new();
        }
        let heading = format!("{blocked} blocked until they are resumed");
        let mut lines = vec![line(Tone::Strong, heading)];
        lines.extend(blocked_sessions.iter().take(BLOCKED_SHOWN).map(|session| {
            let waits = u64::try_from(at.saturating_sub(session.at)).unwrap_or(0);
            Line::raw(format!(
                "{} run {}  {}  for {}",
                fit(&session.session, widths.entity),
                session.run_seq,
                printable(&session.stop_reason_code),
                format_duration(Duration::from_millis(waits).saturating_add(self.age)),
            ))
        }));
        lines.extend(more(*blocked, lines.len() - 1));
        lines.push(Line::default());
        lines
    }

    fn kills(&self, widths: &Widths) -> Vec<Line<'static>> {
        let kills = &self.scene.kills;
        if kills.is_empty() {
            return vec![line(Tone::Quiet, "no kills since the daemon started")];
        }
        let mut spans: BTreeMap<&str, usize> = BTreeMap::new();
        for kill in kills {
            *spans.entry(&kill.dying_span).or_default() += 1;
        }
        let mut spans: Vec<_> = spans.into_iter().collect();
        spans.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let counts = spans.iter().map(|(span, count)| format!("{count} in {}", printable(span)));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let mut lines = vec![line(Tone::Strong, format!("recent kills: {counts}"))];
        lines.extend(kills.iter().take(KILLS_SHOWN).map(|kill| kill_line(kill, widths)));
        lines
    }
}

fn kill_line(kill: &Kill, widths: &Widths) -> Line<'static> {
    let what = kill.action.as_deref().unwrap_or(&kill.by);
    let late = match kill.by.as_str() {
        "deadline" => format!(", {} late", format_micros(kill.overrun_us)),
        _ => String::new(),
    };
    Line::raw(format!(
        "{} {} {} after {} of {}{late}  {}",
        fit(&kill.entity, widths.entity),
        fit(what, widths.action),
        fit(&kill.dying_span, widths.doing),
        format_millis(kill.elapsed_ms),
        format_millis(kill.budget_ms),
        time_of_day(kill.at),
    ))
}

fn span(tone: Tone, text: impl Into<String>) -> Span<'static> {
    Span::styled(text.into(), tone.style())
}

fn line(tone: Tone, text: impl Into<String>) -> Line<'static> {
    Line::from(span(tone, text))
}

/// Counts what a list does not show.
fn more(all: usize, shown: usize) -> Option<Line<'static>> {
    let more = all.checked_sub(shown).filter(|more| *more > 0)?;
    Some(line(Tone::Quiet, format!("and {more} more")))
}

fn time_of_day(at: i64) -> String {
    WallTime::from_millis(at).to_string().get(11..19).unwrap_or_default().to_owned()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A bar of the remaining budget, and whether less than a fifth of it remains.
fn bar(left_ms: i64, has_ms: u64) -> (String, bool) {
    let left = u64::try_from(left_ms).unwrap_or(0).min(has_ms);
    let cells = BAR as u64;
    let full = left.saturating_mul(cells).div_ceil(has_ms.max(1)).min(cells);
    let full = usize::try_from(full).unwrap_or(BAR);
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(BAR - full));
    (bar, left.saturating_mul(5) < has_ms)
}

/// As [`fit`], for what a handler does: how many more calls are in flight is not cut.
fn fit_activity(activity: &str, columns: usize) -> String {
    match activity.rsplit_once(" +") {
        Some((name, more))
            if printable(activity).width() > columns
                && more.bytes().all(|digit| digit.is_ascii_digit()) =>
        {
            let more = format!(" +{more}");
            fit(name, columns.saturating_sub(more.len())) + &more
        }
        _ => fit(activity, columns),
    }
}

/// Foreign text in exactly this many columns, cut or padded. ratatui cuts too, but without the
/// `…` that shows it, and `--once` prints lines that no widget lays out.
fn fit(text: &str, columns: usize) -> String {
    let text = printable(text);
    let mut fitted = text.into_owned();
    if fitted.width() > columns {
        let mut width = 0;
        fitted = fitted
            .chars()
            .take_while(|c| {
                width += c.width().unwrap_or(0);
                width < columns
            })
            .chain(['…'])
            .collect();
    }
    let padding = columns.saturating_sub(fitted.width());
    fitted + &" ".repeat(padding)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENE: &str = r#"{
        "at": 1763756400000, "health": {"healthy": false, "reasons": [{"code": "journal", "message": "the journal takes no appends"}]},
        "in_flight": 3,
        "handlers": [
            {"entity": "Session/a\u001b[31m\u202e", "action": "Wait", "attempt": 2, "has_ms": 10000,
             "left_ms": 1000, "doing": "host_http_call", "for_ms": 9000, "stuck": true,
             "calls": [{"name": "host_http_call", "for_ms": 9000}, {"name": "ask:A.B", "for_ms": 1}]},
            {"entity": "Session/日本語日本語日本語日本語日本語", "action": "Wait", "attempt": 1, "has_ms": 10000,
             "left_ms": 10000, "doing": "queued", "for_ms": null, "stuck": false}],
        "kills": [
            {"entity": "Session/9", "action": "Wait", "by": "deadline", "dying_span": "guest",
             "budget_ms": 30000, "elapsed_ms": 30001, "overrun_us": 310, "at": 1763756399000},
            {"entity": "Session/8", "by": "operator", "dying_span": "host_http_call",
             "budget_ms": 30000, "elapsed_ms": 3000, "overrun_us": 0, "at": 1763756399000}]
    }"#;

    fn lines(scene: &str, size: (u16, u16), age: u64, problem: Option<&str>) -> Vec<String> {
        let scene = Scene::read(scene).expect("a scene");
        let age = Duration::from_millis(age);
        let view = View { address: "http://here", scene: &scene, age, problem };
        view.lines(size).iter().map(Line::to_string).collect()
    }

    #[test]
    fn each_handler_has_a_line_whose_times_advance() {
        let lines = lines(SCENE, (100, 40), 500, None);
        assert_eq!(lines[0], "http://here  3 in flight  unhealthy  20:20:00 UTC");
        assert_eq!(lines[1], "the journal takes no appends");
        for part in ["Wait", "  2 █░░░░░░░░░    500 ms", "host_http_call +1", "9.5 s STUCK"]
        {
            assert!(lines[3].contains(part), "{part:?} is not in {:?}", lines[3]);
        }
        assert!(lines[4].contains("██████████    10.0 s queued"), "{:?}", lines[4]);
        assert_eq!(lines[5], "and 1 more");
        assert_eq!(lines[7], "recent kills: 1 in guest, 1 in host_http_call");
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
    fn a_session_has_a_line_below_its_handler_and_blocked_sessions_are_listed() {
        let lines_of = |size| lines(SESSIONS, size, 500, None);
        let lines = lines_of((100, 40));
        let position = |line: &str| lines.iter().position(|found| found.starts_with(line));
        let first = position("Session/a").expect("it is in flight");
        assert!(
            lines[first + 1].starts_with("  run 2  SILENT STUCK  1m left  indexing "),
            "{lines:?}"
        );
        assert_eq!(lines[first + 3], "  run 1  STOPPING  no_progress");
        let blocked = position("7 blocked until they are resumed").expect("they are listed");
        assert!(lines[blocked + 1].contains("run 3  host_shutdown  for 1m"), "{lines:?}");
        assert_eq!(lines[blocked + 2], "and 6 more");
        for (columns, rows) in [(200, 50), (100, 8), (60, 5), (10, 1), (0, 0)] {
            let lines = lines_of((columns, rows));
            assert!(lines.len() <= usize::from(rows), "{lines:?}");
            let foreign = |line: &String| line.contains(['\u{1b}', '\u{202e}']);
            assert!(!lines.iter().any(foreign), "{lines:?}");
        }
        let narrow = lines_of((100, 9));
        assert!(narrow.contains(&"and 2 more".to_owned()), "no half of a handler: {narrow:?}");
    }

    const HOSTS: &str = r#"{
        "at": 1763756400000, "health": {"healthy": true, "reasons": []},
        "in_flight": 2, "kills": [],
        "handlers": [
            {"entity": "Session/a", "action": "Wait", "attempt": 1, "has_ms": 10000, "left_ms": 1000,
             "doing": "guest", "for_ms": 9000, "stuck": false, "host": "01aa"},
            {"entity": "Session/b", "action": "Wait", "attempt": 1, "has_ms": 10000, "left_ms": 1000,
             "doing": "guest", "for_ms": 9000, "stuck": false, "host": "0123456789abcdef"}],
        "hosts": [
            {"host": "01aa", "name": "alpha/7\u202e", "state": "live", "partitions": 40},
            {"host": "02bb", "name": "beta/8", "state": "draining", "partitions": 20},
            {"host": "03cc", "name": "gamma/9", "state": "silent", "partitions": 4}],
        "missing": [{"host": "03cc", "name": "gamma/9"}]
    }"#;

    #[test]
    fn hosts_of_a_cluster_have_a_line_and_handlers_name_theirs() {
        let lines = lines(HOSTS, (120, 40), 500, None);
        assert!(
            lines[1].starts_with("host gamma/9")
                && lines[1].contains("silent, does not respond  4 p"),
            "{lines:?}"
        );
        assert!(
            lines[2].contains("beta/8") && lines[2].contains("draining  20 partitions"),
            "{lines:?}"
        );
        assert!(
            lines[3].contains("live  40 partitions") && !lines[3].contains('\u{202e}'),
            "{lines:?}"
        );
        assert!(lines[4].starts_with("HOST            ENTITY"), "{lines:?}");
        assert!(lines[5].starts_with("alpha/7") && lines[5].contains("Session/a"), "{lines:?}");
        assert!(lines[6].starts_with("01234567        Session/b"), "{lines:?}");
        assert!(lines.iter().all(|line| line.width() <= 120), "{lines:?}");
    }

    #[test]
    fn foreign_text_does_not_control_the_terminal_and_every_line_fits() {
        for (columns, rows) in [(200, 50), (100, 8), (60, 3), (10, 1), (0, 0)] {
            let lines = lines(SCENE, (columns, rows), 0, Some("gone\u{7}; again"));
            assert!(lines.len() <= usize::from(rows), "{lines:?}");
            assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:?}");
            assert!(lines.iter().all(|line| !line.contains('\u{202e}')), "{lines:?}");
        }
        let lines = lines(SCENE, (100, 40), 0, None);
        let handlers = &lines[3..5];
        assert!(handlers.iter().all(|line| line.width() <= 100), "{handlers:?}");
    }

    #[test]
    fn text_fills_exactly_its_columns() {
        assert_eq!(fit("abc", 5), "abc  ");
        assert_eq!(fit("abcdef", 5), "abcd…");
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("a日本語", 5), "a日… ");
        assert_eq!(bar(-5, 10), ("░".repeat(BAR), true));
        assert_eq!(bar(0, 0).0, "░".repeat(BAR));
    }
}
