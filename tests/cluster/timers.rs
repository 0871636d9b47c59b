//! Whether each timer fired once and in time.

use sandglass_model::WallTime;

use crate::history::{Kind, Observed, Violation};
use crate::plan::TTL;
use crate::verify::{Index, Rules};

pub(crate) fn verify(
    observed: &Observed,
    index: &Index<'_>,
    rules: &Rules,
    found: &mut Vec<Violation>,
) {
    for (entity, (started, fired)) in &index.timers {
        let mut report = |kind| {
            let fired: Vec<String> = fired.iter().map(ToString::to_string).collect();
            let what = format!("{entity}: started at {started}, fired at {fired:?}");
            found.push(Violation::new(kind, what));
        };
        match fired[..] {
            [] => report(Kind::TimerLost),
            [_, _, ..] => report(Kind::TimerTwice),
            [at] if at < started.after(rules.timer) => report(Kind::TimerEarly),
            [at] if at > latest(observed, started.after(rules.timer), rules) => {
                report(Kind::TimerLate);
            }
            [_] => {}
        }
    }
}

/// When a timer that is due at `due` has to have fired: a lease and a few seconds later, or after the end of
/// each fault that happens until then.
fn latest(observed: &Observed, due: WallTime, rules: &Rules) -> WallTime {
    let mut latest = due.after(rules.timer_grace);
    let mut faults: Vec<_> = observed.faults.iter().collect();
    faults.sort_by_key(|fault| fault.begun);
    for fault in faults {
        let until = fault.ended.after(TTL + rules.timer_grace);
        if fault.begun <= latest && until >= due {
            latest = latest.max(until);
        }
    }
    latest
}
