//! The limits and waiting times of an OpenWOP host.

use std::time::Duration;

use sandglass_liveness::session::{Ceilings, LimitSettings, Setting};

use crate::{REPLAY_TYPE, RUN_TYPE};

/// Limits of an OpenWOP host. Those of runs are advertised, and are the ceilings of their sessions:
/// nothing else limits runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most nodes that a run may execute: the ceiling of `recursionLimit`.
    pub max_node_executions: u64,
    /// The longest that a run may take, in whole milliseconds from 1 s: the ceiling of
    /// `runTimeoutMs`.
    pub max_run_duration: Duration,
    /// Most turns of a run's orchestrator: the ceiling of `maxLoopIterations`.
    pub max_loop_iterations: u64,
    /// Largest body of a request, in bytes.
    pub max_request_body_bytes: usize,
    /// Most runs that execute at once; a run that waits for an answer does not count. Another one is
    /// refused with 429.
    pub max_active_runs: usize,
    /// Most readers of events at once.
    pub max_readers: usize,
    /// Most requests that wait for events at once.
    pub max_polls: usize,
    /// Most memory of all logs in memory, in bytes. The log that exceeds it is still read; the log of
    /// another run is refused with 429. It includes the logs of unfinished runs that were read last, at most
    /// 64 and 64 MiB of them, which are freed when there is no room.
    pub max_log_bytes: usize,
    /// The longest silence of a stream of events, after which the host sends a comment. At most 30 s.
    pub keep_alive: Duration,
    /// How long a reader of events may take to read what it was sent before it is dropped.
    pub reader_patience: Duration,
    /// The longest that a poll waits.
    pub max_poll: Duration,
    /// What a node of a pack may use.
    pub packs: PackLimits,
}

/// The limits of one invocation of a pack's node, whatever the pack requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    /// Linear memory, in bytes.
    pub max_memory_bytes: u64,
    /// Time, in whole milliseconds.
    pub max_execution: Duration,
    /// Fuel; if `None`, fuel is counted only for packs that request it.
    pub fuel: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_node_executions: 100,
            max_run_duration: Duration::from_secs(3600),
            max_loop_iterations: 100,
            max_request_body_bytes: 1 << 20,
            max_active_runs: 4_096,
            max_readers: 4_096,
            max_polls: 1_024,
            max_log_bytes: 1 << 30,
            keep_alive: Duration::from_secs(15),
            reader_patience: Duration::from_secs(30),
            max_poll: Duration::from_secs(30),
            packs: PackLimits::default(),
        }
    }
}

impl Default for PackLimits {
    fn default() -> Self {
        Self { max_memory_bytes: 128 << 20, max_execution: Duration::from_secs(30), fuel: None }
    }
}

/// Whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Settings {
    /// The ceilings of the sessions of runs, for the runtime's builder. A replay has none: it ends as its
    /// source did.
    #[must_use]
    pub fn ceilings(&self) -> Ceilings {
        let of_runs = LimitSettings {
            execution_timeout: Some(Setting::At(millis(self.max_run_duration))),
            max_handler_runs: Some(Setting::At(self.max_node_executions)),
            max_loop_iterations: Some(Setting::At(self.max_loop_iterations)),
            ..unbounded()
        };
        let of_type = [(RUN_TYPE.to_owned(), of_runs), (REPLAY_TYPE.to_owned(), unbounded())];
        Ceilings { of_all: None, of_type: of_type.into() }
    }
}

/// Limits that are all off, so that limits that an embedder sets for all types do not apply to runs.
#[must_use]
pub fn unbounded() -> LimitSettings {
    let off = Some(Setting::Off);
    LimitSettings {
        inactivity_warn: off,
        inactivity_timeout: off,
        progress_timeout: off,
        run_timeout: off,
        execution_timeout: off,
        abort_timeout: off,
        max_loop_iterations: off,
        max_handler_runs: off,
        repeat_threshold: off,
        stuck_after: None,
    }
}
