//! The table of metrics: each name once, with its kind, unit, labels, buckets and help text. Descriptions,
//! buckets and `docs/metrics.md` are generated from it.

use std::fmt::{self, Write as _};

use crate::metrics::named;

/// The prefix of all metric names; an embedder may choose another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// A text that cannot be a metric prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not a metric prefix: use lower-case letters, digits and `_`, beginning with a letter",
    .0.escape_debug()
)]
pub struct InvalidPrefix(String);

impl Prefix {
    /// The prefix `text`, without the `_` that follows it in a name.
    ///
    /// # Errors
    /// Errors if it is empty, does not begin with a lower-case letter, ends in `_`, or contains other
    /// characters than lower-case letters, digits and `_`.
    pub fn new(text: &str) -> Result<Self, InvalidPrefix> {
        let valid = text.starts_with(|first: char| first.is_ascii_lowercase())
            && !text.ends_with('_')
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if valid { Ok(Self(text.to_owned())) } else { Err(InvalidPrefix(text.to_owned())) }
    }
}

impl Default for Prefix {
    /// `temper`, which the dashboards of users rely on.
    fn default() -> Self {
        Self("temper".to_owned())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

named! {
    /// The kind of a metric, as Prometheus names it.
    Kind {
        /// It only increases.
        Counter = "counter",
        /// It increases and decreases.
        Gauge = "gauge",
        /// It counts observations by size.
        Histogram = "histogram",
    }

    /// The unit of a metric.
    Unit {
        /// A count.
        Count = "count",
        /// A share; 1 means all.
        Ratio = "ratio",
        /// Seconds.
        Seconds = "seconds",
        /// Milliseconds: only the metrics that are a contract with users' dashboards.
        Milliseconds = "milliseconds",
        /// Bytes.
        Bytes = "bytes",
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Definition {
    /// Its name without the prefix.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its help text: one sentence without a period.
    pub help: &'static str,
    /// Upper bounds of a histogram's buckets; empty for the other kinds.
    pub buckets: &'static [f64],
}

impl Definition {
    /// The name that is exported.
    #[must_use]
    pub fn full_name(&self, prefix: &Prefix) -> String {
        format!("{prefix}_{}", self.name)
    }
}

/// The metrics whose names, kinds, labels and `_ms` are a contract with the dashboards of users. Linters
/// would recommend seconds.
pub const CONTRACT: [&str; 4] = [
    "handler_deadline_remaining_ms",
    "handler_deadline_exceeded_total",
    "wasm_epoch_tick_interval_ms",
    "handler_kill_latency_ms",
];

/// Ticks are milliseconds apart while guests run; a second means a stalled ticker.
const TICK_MS: &[f64] = &[0.5, 1.0, 2.0, 5.0, 7.5, 10.0, 15.0, 20.0, 50.0, 100.0, 250.0, 1000.0];
/// A kill takes about as long as the OS needs to wake a thread; with bulk memory instructions, tens of
/// milliseconds.
const KILL_MS: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 500.0, 2500.0];
/// [`KILL_MS`] and the lateness of ticks, in seconds.
const PROMPT: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5];
/// From a call that reads the clock to one that waits for a slow service.
const CALL: &[f64] = &[0.00001, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0];
/// Handlers take from milliseconds to a quarter of an hour (372 s in the incident that led to deadlines).
const RUN: &[f64] =
    &[0.001, 0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0];
/// A partition changes its owner in milliseconds; an owner that is dead is replaced within seconds.
const MOVE: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 30.0];
/// Finest just below the whole budget, where handlers are about to be killed.
const SHARE: &[f64] = &[0.1, 0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0];
/// From one page of memory to four times the default limit of 64 MiB.
const MEMORY: &[f64] =
    &[65536.0, 1048576.0, 4194304.0, 16777216.0, 33554432.0, 67108864.0, 268435456.0];

/// Defines the table: each row becomes a [`Definition`] and the typed field through which
/// [`crate::Metrics`] reports it.
macro_rules! metrics {
    ($($kind:ident $field:ident($($label:ident),*) $unit:ident $name:literal $(in $buckets:ident)?
        $help:literal;)+) => {
        /// Every metric, in the order of `docs/metrics.md`.
        pub const TABLE: &[Definition] = &[$(Definition {
            name: $name,
            kind: metrics!(@kind $kind),
            unit: Unit::$unit,
            labels: &[$(stringify!($label)),*],
            help: $help,
            buckets: metrics!(@buckets $($buckets)?),
        }),+];

        /// The metrics of [`TABLE`], ready to be reported.
        pub(crate) struct Families {
            $(pub(crate) $field:
                crate::metrics::$kind<{ <[&str]>::len(&[$(stringify!($label)),*]) }>,)+
        }

        impl Families {
            pub(crate) fn new(source: &mut crate::metrics::Source) -> Self {
                let mut rows = TABLE.iter();
                // The fields of a struct literal are evaluated in the order of the source, which is the
                // order of the table.
                Self { $($field: crate::metrics::$kind::new(
                    source,
                    rows.next().expect("each row has a field"),
                )),+ }
            }
        }
    };
    (@kind Counters) => { Kind::Counter };
    (@kind Gauges) => { Kind::Gauge };
    (@kind Histograms) => { Kind::Histogram };
    (@buckets) => { &[] };
    (@buckets $buckets:ident) => { $buckets };
}

metrics! {
    Gauges deadline_remaining_ms(entity_type, action) Milliseconds
        "handler_deadline_remaining_ms"
        "Budget left when the last handler of this entity type and action started, in milliseconds";
    Counters deadline_exceeded(entity_type, action, dying_span) Count
        "handler_deadline_exceeded_total"
        "Handlers killed at their deadline, by what was executing: a span or destination that the manifest names, else the host function, or guest for the handler's own code";
    Histograms tick_interval_ms() Milliseconds
        "wasm_epoch_tick_interval_ms" in TICK_MS
        "Measured interval between two epoch ticks while guests execute, in milliseconds";
    Histograms kill_latency_ms(entity_type) Milliseconds
        "handler_kill_latency_ms" in KILL_MS
        "Time from the deadline until the guest was off the CPU, in milliseconds";

    Counters dispatches(entity_type, action, outcome) Count
        "handler_dispatches_total"
        "Dispatches that have ended, by outcome";
    Histograms duration(entity_type, action) Seconds
        "handler_duration_seconds" in RUN
        "Time from when the guest was permitted to start until it was off the CPU";
    Histograms deadline_remaining(entity_type, action) Seconds
        "handler_deadline_remaining_seconds" in RUN
        "Budget left at the start of each handler";
    Histograms budget_used(entity_type, action) Ratio
        "handler_budget_used_ratio" in SHARE
        "Share of the budget that completed handlers used";
    Histograms overrun(entity_type, action) Seconds
        "handler_overrun_seconds" in PROMPT
        "Time from the deadline until the guest was off the CPU, for handlers that timed out";
    Counters default_budgets(integration) Count
        "handler_default_budgets_total"
        "Dispatches that used the default budget because their integration declares none";
    Histograms queue_wait(entity_type) Seconds
        "handler_queue_wait_seconds" in CALL
        "Time from the dispatch until its guest was permitted to start";
    Counters refused(reason) Count
        "handler_dispatches_refused_total"
        "Dispatches that the host refused";
    Counters spawns_refused(reason) Count
        "entity_spawns_refused_total"
        "Entities that were not spawned although the transition of their parent was taken, by reason; too_many: a bound on spawned entities was reached";
    Counters superseded(entity_type, action) Count
        "handler_outcomes_superseded_total"
        "Endings whose action the present state of the entity no longer takes";
    Gauges queued() Count
        "handlers_queued"
        "Dispatches that wait for an admission permit";
    Gauges asking() Count
        "handlers_asking"
        "Handlers that wait in an ask to another entity, and hold no admission permit";
    Gauges in_flight() Count
        "handlers_in_flight"
        "Guests that execute or wait in a host call";
    Histograms peak_memory(entity_type) Bytes
        "handler_memory_peak_bytes" in MEMORY
        "Largest linear memory of a handler";
    Counters soft_deadlines(entity_type, action) Count
        "handler_soft_deadlines_total"
        "Handlers that were in flight at their soft deadline, or, if they declare none, when 80 % of their budget was used";
    Counters telemetry_dropped(integration, what) Count
        "handler_telemetry_dropped_total"
        "Telemetry of guests that was dropped because it exceeded its bounds, by kind; also spans of host calls beyond those that a handler may have";

    Counters spans_dropped(reason) Count
        "trace_spans_dropped_total"
        "Spans that were not exported, because the queue was full or the collector did not accept them";

    Counters recordings_refused() Count
        "handler_recordings_refused_total"
        "Handlers that were not recorded because other recordings used all memory for recordings";

    Histograms host_call(function) Seconds
        "host_call_duration_seconds" in CALL
        "Duration of host calls, by host function";
    Counters host_call_timeouts(function) Count
        "host_call_timeouts_total"
        "Host calls that were ended with an error because they took too long, by host function";
    Gauges lingering_calls() Count
        "host_calls_lingering"
        "Blocking host calls that have outlived their handler";
    Gauges parked_calls() Count
        "host_calls_parked"
        "Host calls that wait for the lease of this host before they begin, because it has lost contact with the database of its cluster";
    Histograms host_call_parked(function) Seconds
        "host_call_parked_seconds" in CALL
        "How long host calls waited for the lease of this host before they began or their handler ended, by host function";

    Histograms tick_lateness() Seconds
        "wasm_epoch_tick_lateness_seconds" in PROMPT
        "How much later than scheduled an epoch tick came";
    Gauges ticker_healthy() Count
        "wasm_epoch_ticker_healthy"
        "1 while the epoch ticker keeps time, 0 while dispatches are refused because it does not";
    Gauges kills_overdue() Count
        "handler_kills_overdue"
        "Handlers that are more than a second past their deadline and have not ended";
    Gauges live_stores() Count
        "wasm_live_stores"
        "Stores that exist; more than live dispatches means a leak";
    Gauges live_dispatches() Count
        "wasm_live_dispatches"
        "Dispatches that have started and are not torn down completely";
    Gauges pool_slots_in_use() Count
        "wasm_pool_slots_in_use"
        "Instance slots of the pool that are in use";
    Gauges pool_slots() Count
        "wasm_pool_slots"
        "Instance slots of the pool";
    Histograms compile() Seconds
        "wasm_module_compile_seconds" in CALL
        "Time to compile a module that was not in the cache";
    Counters compiled_code(found) Count
        "wasm_compiled_code_lookups_total"
        "Look-ups of compiled code on disk, by result: a hit, a miss, or an unusable file, which is removed";

    Histograms journal_append() Seconds
        "journal_append_seconds" in CALL
        "Time from the request of a journal append until it was durable";
    Counters journal_append_failures() Count
        "journal_append_failures_total"
        "Journal appends that failed";
    Counters journal_unknown_commits() Count
        "journal_unknown_commits_total"
        "Appends to a database whose outcome was unknown until it was looked up, because the connection was lost";
    Counters journal_lost_records() Count
        "journal_lost_records_total"
        "Records that a database had acknowledged and has lost";
    Gauges journal_checked_position() Count
        "journal_checked_position"
        "Last position of the journal up to which all records have been checked since the start";
    Gauges journal_available() Count
        "journal_available"
        "1 while the journal takes appends, 0 while dispatches are refused because it does not";

    Gauges cluster_hosts() Count
        "cluster_hosts"
        "Hosts of the cluster that are not declared dead, as this host knows them";
    Gauges cluster_partitions() Count
        "cluster_partitions"
        "Partitions that this host serves";
    Gauges cluster_partitions_unserved() Count
        "cluster_partitions_unserved"
        "Partitions that no host serves, as far as this host knows: they have no owner, their owner is dead, or this host owns them and does not serve them";
    Gauges cluster_lease_remaining() Seconds
        "cluster_lease_remaining_seconds"
        "How long the lease of this host lasts, measured after each beat: 0 if it is over, so that no host call with outside effects begins";
    Counters cluster_claims(reason) Count
        "cluster_claims_total"
        "Partitions that this host has claimed, by reason; free: no host owned them, dead_owner: their owner was declared dead, again: this host owned them, and had not held them";
    Histograms cluster_takeover() Seconds
        "cluster_takeover_seconds" in MOVE
        "Time from the decision to claim a partition until its entities accept requests";
    Histograms cluster_move() Seconds
        "cluster_move_seconds" in MOVE
        "Time from when this host stopped to serve a partition until it had given it away";
    Counters cluster_deaths() Count
        "cluster_hosts_declared_dead_total"
        "Other hosts that this host has declared dead";
    Counters cluster_rejoins() Count
        "cluster_rejoins_total"
        "How often this host was declared dead, and entered the cluster again";
    Counters cluster_forwards(outcome) Count
        "cluster_forwards_total"
        "Requests that this host sent to the owner of their entity, each time that they were sent, by outcome";
    Histograms cluster_forward() Seconds
        "cluster_forward_seconds" in CALL
        "Time from when a request was sent to the owner of its entity until the head of the response, including the time that the owner took";
    Counters cluster_failures(code) Count
        "cluster_request_failures_total"
        "Requests of clients that failed because their entity had no owner in time, or because its owner did not respond, by the code of the error";

    Counters transitions(entity_type, action) Count
        "entity_transitions_total"
        "Transitions that entities took";
    Counters state_timeouts(entity_type, state) Count
        "entity_state_timeouts_total"
        "State timers that fired because no handler was dispatched in the state";
    Counters signals_dropped(entity_type) Count
        "entity_signals_dropped_total"
        "Signals of handlers that were not recorded, because the entity could not keep up, the handler sent too many, or the journal takes no appends";
    Gauges entities() Count
        "entities_loaded"
        "Entities in memory";

    Counters limit_breaches(entity_type, limit, breach_action) Count
        "session_limit_breaches_total"
        "Breaches of session limits, by limit and by action: record or stop";
    Counters run_stops(entity_type, code, directive) Count
        "session_run_stops_total"
        "Runs of sessions that have stopped, by reason and by decision about the session: none if it ended by itself";
    Counters resumes(entity_type, by) Count
        "session_resumes_total"
        "Sessions that were resumed in another run, by request or by the retry that their spec declares";
    Histograms stopping(entity_type) Seconds
        "session_stopping_seconds" in CALL
        "Time from the request to stop a run until nothing of it was in flight";
    Gauges sessions(status, code) Count
        "sessions"
        "Sessions by status: of those that are awake, running, silent and stopping; of all, blocked, by reason";
    Counters cancels_refused(of) Count
        "cancels_refused_total"
        "Requests to cancel a session or dispatch that were refused because the client may not cancel";

    Gauges openwop_readers() Count
        "openwop_readers"
        "Clients of an OpenWOP host that read a stream of events";
    Counters openwop_readers_dropped() Count
        "openwop_readers_dropped_total"
        "Readers of events that were disconnected because they read nothing for too long";
    Counters openwop_refused(of) Count
        "openwop_requests_refused_total"
        "Requests to an OpenWOP host that were refused because there were too many runs, readers, polls or logs";

    Counters folded() Count
        "metric_observations_folded_total"
        "Observations that were reported under the label value other because a bound on labels or on the scrape was reached";
}

/// The table as the page `docs/metrics.md`.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(PREAMBLE);
    for row in TABLE {
        let labels: Vec<String> = row.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
        let mark = if CONTRACT.contains(&row.name) { " ★" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "| `{}`{mark} | {} | {} | {labels} | {} |",
            row.full_name(&Prefix::default()),
            row.kind.as_str(),
            row.unit.as_str(),
            row.help,
        );
    }
    page.push_str("\n## Buckets\nUpper bounds, in the unit of the histogram.\n\n");
    for row in TABLE.iter().filter(|row| row.kind == Kind::Histogram) {
        let bounds: Vec<String> = row.buckets.iter().map(f64::to_string).collect();
        let _ = writeln!(page, "- `{}`: {}", row.full_name(&Prefix::default()), bounds.join(", "));
    }
    page
}

const PREAMBLE: &str = "\
# Metrics
Generated from the table in `crates/sandglass-telemetry/src/table.rs` by `cargo run -p sandglass-telemetry \
--example metrics-page > docs/metrics.md`; a test compares the two.

The prefix `temper` is the default; an embedder may choose another. Metrics with ★ are a contract with \
the dashboards of users: their names, kinds, labels and milliseconds do not change. All others use base units. No \
label contains an entity id; spans and log lines do.

A scrape of these metrics has at most 200 KiB, however many names there are: a label has at most 200 distinct \
values, a metric at most 1,000 combinations of them, and histograms leave the last quarter of the scrape to counters \
and gauges. Observations beyond these bounds are reported under the label value `other`, and counted in \
`temper_metric_observations_folded_total`. One action with its handlers takes 5 to 8 KiB. A host with more than twenty \
actions needs a larger scrape: `size` under `[metrics]` of the daemon, `Exporter::with_scrape_limit` for an embedder.

The counters of events that are possible for the loaded specs are exported at zero from the first scrape on, so that \
`increase()` sees the first event. When half of the scrape is used, further ones appear with their first event. The \
series of `temper_handler_deadline_exceeded_total` for the host functions in which a guest can wait appear with its \
first dispatch.

Metrics of guests appear as `temper_guest_NAME`, with the label `integration` and up to 4 labels of the guest, each \
with at most 20 values; [`guest-abi.md`](guest-abi.md) describes the names and bounds.

| metric | kind | unit | labels | meaning |
|---|---|---|---|---|
";
