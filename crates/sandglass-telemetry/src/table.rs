//! The table of metrics: each name once, with its kind, unit, labels, buckets
//! and help. Descriptions, buckets and `docs/metrics.md` are made from it.

use std::fmt::{self, Write as _};

/// What all metric names begin with; an embedder may choose another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// A text that can't be a metric prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is no metric prefix: use lower-case letters, digits and `_`, beginning with a letter",
    .0.escape_debug()
)]
pub struct InvalidPrefix(String);

impl Prefix {
    /// The prefix `text`, without the `_` that follows it in a name.
    ///
    /// # Errors
    /// It is empty, doesn't begin with a lower-case letter, ends in `_`, or holds
    /// anything but lower-case letters, digits and `_`.
    pub fn new(text: &str) -> Result<Self, InvalidPrefix> {
        let valid = text.starts_with(|first: char| first.is_ascii_lowercase())
            && !text.ends_with('_')
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if valid { Ok(Self(text.to_owned())) } else { Err(InvalidPrefix(text.to_owned())) }
    }
}

impl Default for Prefix {
    /// `temper`, which the users' dashboards are built on.
    fn default() -> Self {
        Self("temper".to_owned())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kind of a metric, as Prometheus names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only goes up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations by size.
    Histogram,
}

impl Kind {
    /// The name as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// What a metric's numbers are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// A share, 1 being all.
    Ratio,
    /// Seconds.
    Seconds,
    /// Milliseconds: only the metrics that are a contract with users' dashboards.
    Milliseconds,
    /// Bytes.
    Bytes,
}

impl Unit {
    /// The name as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Ratio => "ratio",
            Self::Seconds => "seconds",
            Self::Milliseconds => "milliseconds",
            Self::Bytes => "bytes",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Definition {
    /// Its name without the prefix.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// What its numbers are in.
    pub unit: Unit,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it means, in one sentence without a full stop.
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

/// The metrics whose names, kinds, labels and `_ms` are a contract with users'
/// dashboards. The linter's advice doesn't apply to them.
pub const CONTRACT: [&str; 4] = [
    "handler_deadline_remaining_ms",
    "handler_deadline_exceeded_total",
    "wasm_epoch_tick_interval_ms",
    "handler_kill_latency_ms",
];

/// Ticks are milliseconds apart while guests run; a second means a stalled ticker.
const TICK_MS: &[f64] = &[0.5, 1.0, 2.0, 5.0, 7.5, 10.0, 15.0, 20.0, 50.0, 100.0, 250.0, 1000.0];
/// A kill takes about as long as the OS takes to wake a thread; bulk memory
/// instructions take it to tens of milliseconds.
const KILL_MS: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 500.0, 2500.0];
/// [`KILL_MS`] and the lateness of ticks, in seconds.
const PROMPT: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5];
/// From a call that only looks at a clock to one that waits for a slow service.
const CALL: &[f64] = &[0.00001, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0];
/// Handlers run from milliseconds to a quarter of an hour (372 s in the incident
/// that deadlines exist for).
const RUN: &[f64] =
    &[0.001, 0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0];
/// Finest just under the whole budget, where a handler is about to be killed.
const SHARE: &[f64] = &[0.1, 0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0];
/// From one page of memory to four times the default limit of 64 MiB.
const MEMORY: &[f64] =
    &[65536.0, 1048576.0, 4194304.0, 16777216.0, 33554432.0, 67108864.0, 268435456.0];

/// Writes the table once; from each row come its [`Definition`] and the typed
/// field through which [`crate::Metrics`] reports it.
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
        #[derive(Debug)]
        pub(crate) struct Families {
            $(pub(crate) $field:
                crate::metrics::$kind<{ <[&str]>::len(&[$(stringify!($label)),*]) }>,)+
        }

        impl Families {
            pub(crate) fn new(source: &mut crate::metrics::Source) -> Self {
                let mut rows = TABLE.iter();
                // A struct literal is evaluated in the order in which it is
                // written, which is the order of the table.
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
        "Budget left when the last dispatch of this entity type and action started, in milliseconds";
    Counters deadline_exceeded(entity_type, action, dying_span) Count
        "handler_deadline_exceeded_total"
        "Handlers killed at their deadline, by the host function that was running, or guest for the handler's own code";
    Histograms tick_interval_ms() Milliseconds
        "wasm_epoch_tick_interval_ms" in TICK_MS
        "Real interval between two epoch ticks while guests run, in milliseconds";
    Histograms kill_latency_ms(entity_type) Milliseconds
        "handler_kill_latency_ms" in KILL_MS
        "From the deadline until the guest was off the CPU, in milliseconds";

    Counters dispatches(entity_type, action, outcome) Count
        "handler_dispatches_total"
        "Dispatches that have ended, by outcome";
    Histograms duration(entity_type, action) Seconds
        "handler_duration_seconds" in RUN
        "From when the guest might run until it was off the CPU";
    Histograms deadline_remaining(entity_type, action) Seconds
        "handler_deadline_remaining_seconds" in RUN
        "Budget left at the start of each dispatch";
    Histograms budget_used(entity_type, action) Ratio
        "handler_budget_used_ratio" in SHARE
        "Share of its budget that a completed handler used";
    Histograms overrun(entity_type, action) Seconds
        "handler_overrun_seconds" in PROMPT
        "From the deadline until the guest was off the CPU, for handlers that timed out";
    Counters default_budgets(integration) Count
        "handler_default_budgets_total"
        "Dispatches whose integration declares no budget, so that the default was used";
    Histograms queue_wait(entity_type) Seconds
        "handler_queue_wait_seconds" in CALL
        "From the dispatch until its guest might run";
    Counters refused(reason) Count
        "handler_dispatches_refused_total"
        "Dispatches that the host refused to take";
    Counters superseded(entity_type, action) Count
        "handler_outcomes_superseded_total"
        "Endings whose action the entity's present state no longer takes";
    Gauges queued() Count
        "handlers_queued"
        "Dispatches that wait for a place on the guest executor";
    Gauges asking() Count
        "handlers_asking"
        "Handlers that wait in an ask to another entity, without a place to run";
    Gauges in_flight() Count
        "handlers_in_flight"
        "Guests that are running or waiting in a host call";
    Histograms peak_memory(entity_type) Bytes
        "handler_memory_peak_bytes" in MEMORY
        "Most linear memory that a handler had";
    Counters soft_deadlines(entity_type, action) Count
        "handler_soft_deadlines_total"
        "Handlers that were still running at their soft deadline, or when 80 % of their budget was used where they declare none";
    Counters telemetry_dropped(integration, what) Count
        "handler_telemetry_dropped_total"
        "What guests told that went over its bounds, and so nowhere, by what it was; also the spans of host calls beyond those that a run may have";

    Counters spans_dropped(reason) Count
        "trace_spans_dropped_total"
        "Spans that were not exported: the queue was full, or the collector didn't take them";

    Counters recordings_refused() Count
        "handler_recordings_refused_total"
        "Runs that were not recorded because the recordings of other runs took all the memory that there is for them";

    Histograms host_call(function) Seconds
        "host_call_duration_seconds" in CALL
        "Time in one host call, by host function";
    Counters host_call_timeouts(function) Count
        "host_call_timeouts_total"
        "Host calls that were ended with an error because they took too long, by host function";
    Gauges lingering_calls() Count
        "host_calls_lingering"
        "Blocking host calls that have outlived their run";

    Histograms tick_lateness() Seconds
        "wasm_epoch_tick_lateness_seconds" in PROMPT
        "How much later than asked for an epoch tick came";
    Gauges ticker_healthy() Count
        "wasm_epoch_ticker_healthy"
        "1 while the epoch ticker keeps time, 0 while dispatch is refused because it doesn't";
    Gauges kills_overdue() Count
        "handler_kills_overdue"
        "Handlers that are more than a second past their deadline, and have not ended";
    Gauges live_stores() Count
        "wasm_live_stores"
        "Stores that exist; more than live dispatches means a leak";
    Gauges live_dispatches() Count
        "wasm_live_dispatches"
        "Dispatches that have started and are not yet fully torn down";
    Gauges pool_slots_in_use() Count
        "wasm_pool_slots_in_use"
        "Instance slots of the pool that are taken";
    Gauges pool_slots() Count
        "wasm_pool_slots"
        "Instance slots that the pool has";
    Histograms compile() Seconds
        "wasm_module_compile_seconds" in CALL
        "Time to compile a module that was not in the cache";
    Counters compiled_code(found) Count
        "wasm_compiled_code_lookups_total"
        "Look-ups of compiled code on disk, by what was found: a hit, a miss, or something unusable, which is removed";

    Histograms journal_append() Seconds
        "journal_append_seconds" in CALL
        "From a journal append being asked for until it was durable";
    Counters journal_append_failures() Count
        "journal_append_failures_total"
        "Journal appends that failed";
    Gauges journal_available() Count
        "journal_available"
        "1 while the journal takes appends, 0 while dispatch is refused because it doesn't";

    Counters transitions(entity_type, action) Count
        "entity_transitions_total"
        "Transitions that entities took";
    Counters state_timeouts(entity_type, state) Count
        "entity_state_timeouts_total"
        "State timers that fired because nothing was dispatched in the state";
    Counters signals_dropped(entity_type) Count
        "entity_signals_dropped_total"
        "Signals of handlers that were not recorded: the entity did not keep up, the run had told its share, or the journal takes no appends";
    Gauges entities() Count
        "entities_loaded"
        "Entities that are held in memory";

    Counters limit_breaches(entity_type, limit, breach_action) Count
        "session_limit_breaches_total"
        "Limits of sessions that were breached, by limit and by what the breach does: record or stop";
    Counters run_stops(entity_type, code, directive) Count
        "session_run_stops_total"
        "Runs of sessions that have stopped, by why and by what becomes of the session: none where it came to an end by itself";
    Counters resumes(entity_type, by) Count
        "session_resumes_total"
        "Sessions that went on in another run, by what resumed them: request, or retry where their spec lets them by themselves";
    Histograms stopping(entity_type) Seconds
        "session_stopping_seconds" in CALL
        "From when a run was told to stop until nothing of it was in flight";
    Gauges sessions(status, code) Count
        "sessions"
        "Sessions by status: running, silent and stopping of those that are awake; blocked of all, by why";
    Counters cancels_refused(of) Count
        "cancels_refused_total"
        "Cancels of sessions or dispatches that were refused because who asked for them may not";

    Gauges openwop_readers() Count
        "openwop_readers"
        "Clients of an OpenWOP host that read the events of a run as a stream";
    Counters openwop_readers_dropped() Count
        "openwop_readers_dropped_total"
        "Readers of events that were let go, because they took nothing for too long";
    Counters openwop_refused(of) Count
        "openwop_requests_refused_total"
        "Requests to an OpenWOP host that were refused, because there were too many runs, readers, polls or logs";

    Counters folded() Count
        "metric_observations_folded_total"
        "Observations that went under the label value other, because there was no room for their own";
}

/// The table as the page `docs/metrics.md`.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(PREAMBLE);
    for row in TABLE {
        let labels: Vec<String> = row.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
        let mark = if CONTRACT.contains(&row.name) { " ★" } else { "" };
        // Writing to a string can't fail.
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
Made from the table in `crates/sandglass-telemetry/src/table.rs` by `cargo run -p sandglass-telemetry \
--example metrics-page > docs/metrics.md`; a test compares the two.

The prefix `temper` is the default; an embedder may choose another. Names with ★ are a contract with \
users' dashboards and keep their names, kinds, labels and milliseconds. All others use base units. No label \
is ever an entity id: the span and the log line of a run carry it.

A scrape of these metrics has at most 200 KiB, however many names there are: a label takes at most 200 distinct \
values, a metric at most 1,000 combinations of them, and all series together what room there is, where histograms \
leave the last quarter to counters and gauges. What comes after is reported under the value `other`, and counted in \
`temper_metric_observations_folded_total`. One action that runs, times out and is waited for takes 5 to 8 KiB; a host \
of more than twenty needs more room: `size` under `[metrics]` of the daemon, `Exporter::with_scrape_limit` for an embedder.

Counters of what can happen to the entities of a spec that a runtime has are there from the first scrape on, at zero, \
so that `increase()` sees the first event; where half of the room is taken, the rest appears when it happens. Of \
`temper_handler_deadline_exceeded_total` those of the host functions that a guest waits in appear with its first dispatch.

What guests measure themselves appears as `temper_guest_NAME`, with the label `integration` and up to 4 of the \
guest's own, each of at most 20 values; [`guest-abi.md`](guest-abi.md) says which names and how many.

| metric | kind | unit | labels | meaning |
|---|---|---|---|---|
";
