//! What really happened in a world of several hosts, and the checks of the logs against it.

mod counts;
mod feed;
mod requests;
mod runs;

use std::collections::BTreeMap;

use sandglass_liveness::{Entity, Fold, Replay};
use sandglass_model::{EntityRef, Event, HostId, OutcomeKind, Partition, Position, Record};
use sha2::{Digest, Sha256};

use super::database::{Database, Found};
use super::plan::Weather;
use super::spec::spec;
use super::timeline::{Life, MS};
use crate::invariant::{Invariant, Violation};
use crate::ledger::{Counts, describe, hex, request_of};
pub use counts::HostCounts;
pub(crate) use feed::Feed;
pub(crate) use requests::{Answer, Kind, Requests};
use runs::Basis;
pub(crate) use runs::{Key, Runs};

/// A position in the log of a partition.
pub(crate) type PlaceOf = (Partition, Position);

/// What is known of the log of one partition.
#[derive(Default)]
struct PartitionLog {
    fold: Fold,
    records: u64,
    epoch: u64,
    /// The last position that was acknowledged to its owner.
    acknowledged: Position,
    /// The last position of what a failover has lost of what was acknowledged, until that is reported.
    lost: Option<Position>,
}

/// The ledger of one world.
pub(crate) struct HostsLedger {
    pub(crate) counts: Counts,
    pub(crate) hosts: HostCounts,
    pub(crate) requests: Requests,
    pub(crate) runs: Runs,
    pub(crate) feed: Feed,
    logs: Vec<PartitionLog>,
    lives: BTreeMap<HostId, Life>,
    violation: Option<Violation>,
    step: usize,
    now: u64,
    hash: Sha256,
    timeline: Option<Vec<String>>,
    /// Until when hosts may not have noticed a failover that lost something.
    unnoticed_until: u64,
    /// Until when each slot may have been kept from beating.
    impaired_until: BTreeMap<usize, u64>,
}

impl HostsLedger {
    pub(crate) fn new(has_timeline: bool) -> Self {
        Self {
            counts: Counts::default(),
            hosts: HostCounts::default(),
            requests: Requests::default(),
            runs: Runs::default(),
            feed: Feed::default(),
            logs: Partition::all().map(|_| PartitionLog::new()).collect(),
            lives: BTreeMap::new(),
            violation: None,
            step: 0,
            now: 0,
            hash: Sha256::new(),
            timeline: has_timeline.then(Vec::new),
            unnoticed_until: 0,
            impaired_until: BTreeMap::new(),
        }
    }

    pub(crate) fn at(&mut self, step: usize, now: u64) {
        (self.step, self.now) = (step, now);
    }

    pub(crate) fn is_violated(&self) -> bool {
        self.violation.is_some()
    }

    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Keeps only the first violation, because later ones may follow from it.
    pub(crate) fn report(&mut self, invariant: Invariant, what: impl Into<String>) {
        let (step, what) = (self.step, what.into());
        let at_ms = i64::try_from(self.now / MS).unwrap_or(i64::MAX);
        self.add_line(|| format!("VIOLATED {invariant}: {what}"));
        self.violation.get_or_insert(Violation { invariant, what, step, at_ms });
    }

    fn report_all(&mut self, found: impl IntoIterator<Item = (Invariant, String)>) {
        found.into_iter().for_each(|(invariant, what)| self.report(invariant, what));
    }

    /// Adds a line to the timeline, if there is one.
    pub(crate) fn add_line(&mut self, line: impl FnOnce() -> String) {
        let (now, step) = (self.now, self.step);
        if let Some(timeline) = &mut self.timeline {
            timeline.push(format!("{:>10.3} ms  step {step:>4}  {}", micros(now), line()));
        }
    }

    pub(crate) fn take_timeline(&mut self) -> Vec<String> {
        self.timeline.take().unwrap_or_default()
    }

    pub(crate) fn hash(&self) -> String {
        hex(&self.hash.clone().finalize())
    }

    pub(crate) fn note_id(&mut self, id: HostId, life: Life) {
        self.hosts.started += 1;
        self.lives.insert(id, life);
    }

    /// Notes that a host may be kept from beating until then.
    pub(crate) fn note_impairment(&mut self, slot: usize, until: u64) {
        let impaired = self.impaired_until.entry(slot).or_default();
        *impaired = until.max(*impaired);
    }

    /// Takes the records of a batch that is in the log from now on.
    pub(crate) fn commit(
        &mut self,
        by: Life,
        partition: Partition,
        epoch: u64,
        records: &[Record],
    ) {
        let log = &mut self.logs[partition.index()];
        let highest = log.epoch;
        log.epoch = highest.max(epoch);
        if epoch < highest {
            let what = format!(
                "{by} appends to partition {partition} with epoch {epoch}, behind epoch {highest}"
            );
            self.report(Invariant::OneOwnerAppends, what);
        }
        for record in records {
            self.take(by, partition, record);
        }
    }

    fn take(&mut self, by: Life, partition: Partition, record: &Record) {
        self.counts.count(&record.event);
        self.add_line(|| format!("{by} {partition}: {}", describe(record)));
        let place = (partition, record.position);
        let log = &mut self.logs[partition.index()];
        log.records += 1;
        let due = log.records;
        let unfit = log.fold.apply(record).err();
        if record.position.0 != due {
            let what = format!("{partition} has position {} where {due} is due", record.position);
            self.report(Invariant::AppendsFit, what);
        }
        if let Some(unfit) = unfit {
            let what = format!("partition {partition}, {}: {unfit}", record.position);
            self.report(Invariant::StateIsFold, what);
        }
        match &record.event {
            Event::Dispatched(dispatched) => {
                self.runs.note_dispatched(by, (dispatched.dispatch, dispatched.attempt), place);
            }
            Event::Ended(ended) => {
                self.runs.note_ended(by, (ended.end.dispatch, ended.end.attempt), place.1);
            }
            _ => {}
        }
        let found = request_of(&record.event).and_then(|id| self.requests.note_record(id, place));
        self.report_all(found);
        self.hash.update(serde_json::to_vec(record).unwrap_or_default());
    }

    pub(crate) fn entity(&self, name: &EntityRef) -> Option<&Entity> {
        self.logs[Partition::of(name).index()].fold.entity(name)
    }

    pub(crate) fn entities(&self) -> impl Iterator<Item = &Entity> {
        self.logs.iter().flat_map(|log| log.fold.entities())
    }

    /// Describes an entity that has not come to rest, if there is one.
    pub(crate) fn find_restless(&self) -> Option<String> {
        let restless = self.entities().find(|entity| {
            let owes = entity.in_flight_count() + entity.schedules().len();
            owes + entity.spawning().len() > 0 || entity.state != "Idle"
        })?;
        Some(format!(
            "{} is in `{}` with {} in flight, {} scheduled and {} to spawn",
            restless.entity,
            restless.state,
            restless.in_flight_count(),
            restless.schedules().len(),
            restless.spawning().len()
        ))
    }

    /// A handler is started. `has_lease` is whether the lease of its host is valid.
    pub(crate) fn note_start(&mut self, life: Life, entity: &EntityRef, key: Key, has_lease: bool) {
        let run = self.entity(entity).and_then(|entity| entity.in_flight_handler(key.0));
        let is_recorded = run.is_some_and(|run| run.dispatched.attempt == key.1);
        // Otherwise a failover may have lost the record that was acknowledged.
        let basis = if is_recorded || self.now <= self.unnoticed_until {
            Basis::InFlight
        } else if has_lease {
            Basis::NotInFlight
        } else {
            Basis::NoLease
        };
        let found = self.runs.note_start(life, entity, key, basis);
        self.report_all(found);
    }

    /// Something happened outside. `why` states why this process may not act.
    pub(crate) fn note_effect(
        &mut self,
        life: Life,
        entity: &EntityRef,
        key: Key,
        why: Option<String>,
    ) {
        self.hosts.effects += 1;
        if let Some(why) = why.filter(|_| self.now > self.unnoticed_until) {
            let what = format!("a handler of {entity} acts on {why}");
            self.report(Invariant::NoEffectPastLease, what);
        }
        let found = self.runs.note_effect(life, entity, key);
        self.report_all(found);
    }

    /// A handler was ended because its host has lost the partition.
    pub(crate) fn note_kill(&mut self, life: Life, entity: &EntityRef, is_lost: bool) {
        if !is_lost && self.hosts.lost == 0 {
            let what = format!("{life} ends a handler of {entity}, whose partition it still owns");
            self.report(Invariant::QuietMoves, what);
        }
    }

    /// A partition was given away.
    pub(crate) fn check_release(&mut self, life: Life, partition: Partition) {
        if let Some(entity) = self.runs.running_in(life, partition) {
            let what = format!(
                "{life} gives partition {partition} away, while a handler of {entity} is running"
            );
            self.report(Invariant::QuietMoves, what);
        }
    }

    pub(crate) fn note_claims(
        &mut self,
        by: HostId,
        wanted: &[(Partition, u64)],
        before: &[Option<HostId>],
        obtained: &[(Partition, Found)],
    ) {
        let owners: BTreeMap<Partition, Option<HostId>> =
            wanted.iter().map(|(partition, _)| *partition).zip(before.iter().copied()).collect();
        let is_other = |(partition, _): &&(Partition, Found)| {
            owners.get(partition).copied().flatten().is_some_and(|owner| owner != by)
        };
        self.hosts.taken += obtained.iter().filter(is_other).count() as u64;
        let life = self.lives.get(&by).map_or_else(String::new, ToString::to_string);
        self.add_line(|| {
            let all: Vec<String> = obtained.iter().map(|(it, _)| it.to_string()).collect();
            format!("{life} obtains {}", all.join(" "))
        });
    }

    /// A host was declared dead. One that could beat must not be; `is_present` is whether a process has
    /// this id now.
    pub(crate) fn note_declaration(&mut self, id: HostId, is_present: bool) {
        self.hosts.declared += 1;
        let Some(life) = self.lives.get(&id).copied() else { return };
        self.add_line(|| format!("{life} is declared dead"));
        let impaired = self.impaired_until.get(&life.slot).copied().unwrap_or_default();
        if self.now > impaired && is_present {
            let what = format!("{life} is declared dead, and could beat all the time");
            self.report(Invariant::NoNeedlessDeath, what);
        }
    }

    pub(crate) fn note_answer(&mut self, id: u64, answer: Answer) {
        if let Answer::Accepted(_) = answer {
            self.counts.acknowledged += 1;
        }
        let found = self.requests.note_answer(id, answer);
        self.report_all(found);
    }

    pub(crate) fn begin_process(&mut self, life: Life) {
        self.add_line(|| format!("{life} starts"));
    }

    pub(crate) fn end_process(&mut self, life: Life) {
        self.add_line(|| format!("{life} ends"));
    }

    pub(crate) fn note_acknowledged(&mut self, partition: Partition, last: Position) {
        let log = &mut self.logs[partition.index()];
        log.acknowledged = log.acknowledged.max(last);
    }

    /// A host reports that the database has lost records that were acknowledged to it.
    pub(crate) fn note_loss(
        &mut self,
        partition: Partition,
        last: Position,
        acknowledged: Position,
    ) {
        self.add_line(|| format!("partition {partition} lost {last} to {acknowledged}"));
        self.logs[partition.index()].lost = None;
    }

    /// The database has failed over, and contains this now.
    pub(crate) fn note_failover(&mut self, database: &Database, unnoticed_until: u64) {
        self.hosts.failovers += 1;
        let mut lost = 0;
        for (partition, row) in Partition::all().zip(&database.partitions) {
            let last = row.last();
            let log = &mut self.logs[partition.index()];
            if log.records == last.0 {
                continue;
            }
            lost += log.records - last.0;
            if log.acknowledged > last {
                log.lost = Some(log.acknowledged);
                log.acknowledged = last;
            }
            *log = PartitionLog {
                acknowledged: log.acknowledged,
                lost: log.lost,
                epoch: row.batches.last().map_or(0, |(epoch, _)| *epoch),
                records: last.0,
                ..PartitionLog::new()
            };
            for record in row.records() {
                // Each of them was applied before.
                let _ = log.fold.apply(&record);
            }
            self.requests.lose((partition, last));
            self.runs.lose((partition, last));
        }
        for (log, row) in self.logs.iter_mut().zip(&database.partitions) {
            log.epoch = row.batches.last().map_or(0, |(epoch, _)| *epoch);
        }
        if lost > 0 {
            self.feed.forgive();
        }
        self.unnoticed_until = unnoticed_until;
        self.hosts.lost += lost;
        self.add_line(|| format!("the database fails over, and {lost} records are lost"));
    }

    /// Forgives losses that no process could report.
    pub(crate) fn forgive_losses(&mut self, is_known_to_nobody: impl Fn(Partition) -> bool) {
        for (partition, log) in Partition::all().zip(&mut self.logs) {
            if log.lost.is_some() && is_known_to_nobody(partition) {
                log.lost = None;
            }
        }
    }

    /// A reader gets a record.
    pub(crate) fn note_fed(&mut self, place: PlaceOf) {
        self.hosts.fed += 1;
        let found = self.feed.note(place);
        self.report_all(found);
    }

    /// Runs the checks that need the whole log.
    pub(crate) fn close(&mut self, database: &Database, weather: Weather) {
        for (partition, row) in Partition::all().zip(&database.partitions) {
            let mut replay = Replay::with_parsed(spec()).of_partition(partition);
            let records = row.records();
            records.iter().for_each(|record| replay.feed(record));
            let summary = replay.finish();
            if let Some(first) = summary.divergences.first() {
                let what = format!(
                    "partition {partition} diverges at {}: {} is {}, and {} is decided",
                    first.position, first.what, first.recorded, first.expected
                );
                self.report(Invariant::ReplayAgrees, what);
            }
            let interrupted = records.iter().find(|record| {
                matches!(&record.event, Event::Ended(ended)
                    if ended.outcome.kind() == OutcomeKind::Interrupted)
            });
            if let Some(record) = interrupted.filter(|_| weather == Weather::Moves) {
                let what =
                    format!("a planned move has interrupted a handler: {}", describe(record));
                self.report(Invariant::QuietMoves, what);
            }
            let ends = u64::try_from(records.len()).unwrap_or(u64::MAX);
            let found = self.feed.close(partition, ends);
            self.report_all(found);
            if let Some(lost) = self.logs[partition.index()].lost {
                let what = format!(
                    "the database has lost records of partition {partition} up to {lost}, and no host \
                     has reported that"
                );
                self.report(Invariant::LostIsReported, what);
            }
        }
        let found = self.requests.close();
        self.report_all(found);
    }
}

impl PartitionLog {
    fn new() -> Self {
        Self { fold: Fold::with_parsed(spec()), ..Self::default() }
    }
}

/// Milliseconds with microseconds.
#[allow(clippy::cast_precision_loss, reason = "for people")]
fn micros(nanos: u64) -> f64 {
    (nanos / 1_000) as f64 / 1_000.0
}

/// Where the fold of an entity and what a host shows differ, if they do.
pub(crate) fn differs(entity: Option<&Entity>, snapshot: &sandglass_runtime::Snapshot) -> bool {
    entity.is_none_or(|entity| {
        entity.state != snapshot.state
            || entity.sequence != snapshot.sequence
            || entity.variables != snapshot.variables
            || entity.incarnation != snapshot.incarnation
    })
}
