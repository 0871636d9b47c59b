//! The logs of unfinished runs that were read last. A client that polls holds no log between its requests,
//! so without this, each of its requests would read all records of its run.
//!
//! The log of a run that is over is not kept: its run may be removed at any time, and its id used again.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::log::RunLog;

/// How many logs are kept.
const LOGS_MAX: usize = 64;

/// What the kept logs may take together, in bytes.
const BYTES_MAX: usize = 64 << 20;

/// The logs that were read last, the latest at the end.
#[derive(Debug, Default)]
pub(crate) struct RecentLogs(VecDeque<Arc<RunLog>>);

impl RecentLogs {
    /// Keeps `log`, which was just read, in place of an earlier one of its run and of older ones, if it is
    /// small enough and [can be kept](RunLog::can_be_kept).
    pub(crate) fn note(&mut self, log: &Arc<RunLog>) {
        self.0.retain(|kept| kept.run != log.run);
        if log.held_bytes() > BYTES_MAX || !log.can_be_kept() {
            return;
        }
        self.0.push_back(Arc::clone(log));
        while self.0.len() > LOGS_MAX || self.held_bytes() > BYTES_MAX {
            self.0.pop_front();
        }
    }

    /// Removes the logs that can no longer be kept.
    pub(crate) fn sweep(&mut self) {
        self.0.retain(|kept| kept.can_be_kept());
    }

    fn held_bytes(&self) -> usize {
        self.0.iter().map(|log| log.held_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;

    fn log(number: usize) -> Arc<RunLog> {
        let run = format!("{}/{number}", crate::RUN_TYPE).parse().expect("valid");
        Arc::new(RunLog::new(run, Arc::default()))
    }

    fn is_kept(log: &Weak<RunLog>) -> bool {
        log.strong_count() > 0
    }

    #[test]
    fn the_logs_that_were_read_last_are_kept() {
        let mut recent = RecentLogs::default();
        let note = |recent: &mut RecentLogs, number| {
            let log = log(number);
            recent.note(&log);
            Arc::downgrade(&log)
        };
        let logs: Vec<_> = (0..LOGS_MAX).map(|number| note(&mut recent, number)).collect();
        assert!(logs.iter().all(is_kept));
        recent.note(&logs[0].upgrade().expect("kept"));
        let another = note(&mut recent, LOGS_MAX);
        assert!(is_kept(&logs[0]) && !is_kept(&logs[1]) && is_kept(&logs[2]) && is_kept(&another));
    }

    #[test]
    fn a_log_is_not_kept_after_its_run_has_ended_or_moved() {
        for end in [RunLog::release, RunLog::leave] {
            let mut recent = RecentLogs::default();
            let read = log(1);
            recent.note(&read);
            end(&read);
            recent.sweep();
            assert_eq!(Arc::strong_count(&read), 1);
            recent.note(&read);
            assert_eq!(Arc::strong_count(&read), 1);
        }
    }

    #[test]
    fn the_kept_logs_are_bounded_in_bytes() {
        let mut recent = RecentLogs::default();
        let [small, half, whole, too_large] =
            [1, BYTES_MAX / 2, BYTES_MAX, BYTES_MAX + 1].map(|bytes| {
                let log = log(bytes);
                log.hold(bytes);
                log
            });
        let mut kept_after = |log: &Arc<RunLog>| {
            recent.note(log);
            [&small, &half, &whole, &too_large].map(|log| Arc::strong_count(log) > 1)
        };
        assert_eq!(kept_after(&small), [true, false, false, false]);
        assert_eq!(kept_after(&half), [true, true, false, false]);
        assert_eq!(kept_after(&too_large), [true, true, false, false]);
        assert_eq!(kept_after(&whole), [false, false, true, false]);
    }
}
