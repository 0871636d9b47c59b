//! What one process appends to partitions, and what it knows of them. Epochs, unknown outcomes and lost
//! records are handled as in `sandglass-postgres`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_journal::{Batch, Error, Expected, Journal as _, LastRecord, Positions};
use sandglass_model::{Event, Partition, Position};

use super::database::{Appended, Database, Found, resolve};
use super::link::{Fate, STATEMENT_LIMIT};
use super::process::Host;
use crate::fault::Fault;
use crate::invariant::Invariant;
use crate::scene::lock;

/// How often a batch is sent that is not in the log.
const ATTEMPTS: u32 = 5;
/// The first and the longest pause between two attempts to learn the outcome of a statement.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What a process knows of a partition.
pub(crate) struct Lane {
    /// Appends, claims and releases happen one after the other.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    /// The epoch that appends prove, and the end of the log; `None` if it is not held.
    pub(crate) head: Mutex<Option<Head>>,
    /// Why nothing is appended; `None` if something is.
    pub(crate) why: Mutex<Option<String>>,
    /// Whether the outcome of a statement is being looked up.
    pub(crate) is_settling: AtomicBool,
    /// The failovers of the database before the partition was taken.
    connection: AtomicU32,
    /// The last position that was acknowledged to this process.
    pub(crate) acknowledged: Mutex<Position>,
    /// Whether the log lost records that were acknowledged.
    pub(crate) is_damaged: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) epoch: u64,
    pub(crate) last: Position,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            turn: Arc::default(),
            head: Mutex::default(),
            why: Mutex::new(Some("this host has not claimed the partition".to_owned())),
            is_settling: AtomicBool::default(),
            connection: AtomicU32::default(),
            acknowledged: Mutex::default(),
            is_damaged: AtomicBool::default(),
        }
    }
}

impl Lane {
    pub(crate) fn give_up(&self, why: &str) {
        lock(&self.why).get_or_insert_with(|| why.to_owned());
    }

    /// Appends are possible from now on, behind `found`.
    pub(crate) fn hold(&self, found: Found, timeline: u32) {
        self.connection.store(timeline, Ordering::Relaxed);
        *lock(&self.head) = Some(Head { epoch: found.epoch, last: found.last });
        *lock(&self.why) = None;
        self.is_damaged.store(false, Ordering::Relaxed);
    }

    fn is_held(&self) -> bool {
        self.disowned().is_none() && lock(&self.head).is_some()
    }

    /// Whether this process has written to the partition, or has held it when it had records.
    fn is_acknowledged(&self) -> bool {
        *lock(&self.acknowledged) > Position(0)
    }

    pub(crate) fn disowned(&self) -> Option<Error> {
        lock(&self.why).clone().map(|what| Error::Disowned { what })
    }
}

impl Host {
    /// Appends a batch, and returns when it is known whether it is in the log.
    pub(crate) async fn append(
        self: Arc<Self>,
        at: Partition,
        batch: Batch,
    ) -> Result<Positions, Error> {
        let lane = &self.lanes[at.index()];
        let turn = lane.turn.lock().await;
        for _ in 0..ATTEMPTS {
            if let Some(error) = lane.disowned() {
                return Err(error);
            }
            let Some(head) = *lock(&lane.head) else { break };
            if self.is_connection_lost(at) {
                self.renew_connection(at).await;
                continue;
            }
            let count = u64::try_from(batch.records.len()).unwrap_or(u64::MAX);
            let last = Position(head.last.0 + count);
            match self.send(at, head.epoch, batch.clone()).await {
                Ok(Appended::Done(positions)) => {
                    self.acknowledge(at, positions);
                    return Ok(positions);
                }
                Ok(Appended::Refused(error)) => return Err(error),
                Err(Fate::Refused) => return Err(Fate::Refused.error()),
                Err(Fate::Unknown) if self.sim.has(Fault::ResentAppend) => {
                    return self.resend(at, head.epoch, batch).await;
                }
                Ok(Appended::NotOwner) | Err(Fate::Unknown) => {
                    let (found, is_written) = self.settle(at, &batch, last).await;
                    if is_written {
                        let first = Position(head.last.0 + 1);
                        let positions = Positions { first, last };
                        self.acknowledge(at, positions);
                        return Ok(positions);
                    }
                    self.compare(at, found);
                }
            }
        }
        drop(turn);
        Err(lane.disowned().unwrap_or_else(|| Fate::Refused.error()))
    }

    async fn send(
        self: &Arc<Self>,
        at: Partition,
        epoch: u64,
        batch: Batch,
    ) -> Result<Appended, Fate> {
        let checks = !self.sim.has(Fault::StaleEpoch);
        let life = self.life;
        self.statement(STATEMENT_LIMIT, move |sim, database| {
            let (appended, records) = database.append(at, epoch, batch, checks);
            if let Appended::Refused(error @ (Error::Conflict { .. } | Error::Invalid { .. })) =
                &appended
            {
                let what = format!("{life} owns partition {at}, and its batch is refused: {error}");
                sim.ledger().report(Invariant::AppendsFit, what);
            }
            if !records.is_empty() {
                sim.ledger().commit(life, at, epoch, &records);
            }
            appended
        })
        .await
    }

    /// Finds out whether a batch is in the log, for as long as that takes. What is still on its way is
    /// fenced by a new epoch.
    async fn settle(
        self: &Arc<Self>,
        at: Partition,
        batch: &Batch,
        last: Position,
    ) -> (Found, bool) {
        self.sim.ledger().hosts.unknown += 1;
        let batch = batch.clone();
        self.take_and(at, move |database| database.row(at).contains(&batch, last)).await
    }

    /// Whether the connection on which a partition was taken was lost in a failover. A new one takes it
    /// again and compares it with what is known here, because the server may be another one.
    pub(crate) fn is_connection_lost(&self, at: Partition) -> bool {
        let lane = &self.lanes[at.index()];
        lane.connection.load(Ordering::Relaxed) != self.sim.database().timeline
    }

    /// Takes a partition again on a new connection. The caller has its turn.
    pub(crate) async fn renew_connection(self: &Arc<Self>, at: Partition) {
        let found = self.take_again(at).await;
        self.compare(at, found);
        self.check_connection();
    }

    /// Makes a new connection if it was lost, although nothing is to be appended: what a failover has lost
    /// may be a timer that nothing else would recall.
    pub(crate) fn check_connection(self: &Arc<Self>) {
        let is_due = |partition: &Partition| {
            let lane = &self.lanes[partition.index()];
            (lane.is_held() || lane.is_acknowledged()) && self.is_connection_lost(*partition)
        };
        for partition in Partition::all().filter(is_due) {
            let host = Arc::clone(self);
            tokio::spawn(async move {
                let lane = &host.lanes[partition.index()];
                let _turn = lane.turn.lock().await;
                if !host.is_connection_lost(partition) {
                    return;
                }
                if lane.is_held() {
                    let found = host.take_again(partition).await;
                    host.compare(partition, found);
                } else {
                    host.compare_former(partition).await;
                }
            });
        }
    }

    /// Compares what the database contains of a partition that this process does not hold any more with what
    /// was acknowledged to it. If there is no result, the next beat tries again.
    async fn compare_former(self: &Arc<Self>, at: Partition) {
        let lane = &self.lanes[at.index()];
        let acknowledged = *lock(&lane.acknowledged);
        let reading = self.statement(STATEMENT_LIMIT, move |_, database| {
            (database.row(at).last(), database.timeline)
        });
        let Ok((last, timeline)) = reading.await else { return };
        // Otherwise it was claimed again meanwhile, which compares, too.
        if !lane.is_held() && *lock(&lane.acknowledged) == acknowledged {
            lane.connection.store(timeline, Ordering::Relaxed);
            if last < acknowledged && !self.sim.has(Fault::WriteOverLoss) {
                self.note_loss(at, acknowledged, last);
            }
        }
    }

    /// Takes a partition again, if this process owns it, for as long as that takes.
    pub(crate) async fn take_again(self: &Arc<Self>, at: Partition) -> Found {
        self.take_and(at, |_| ()).await.0
    }

    async fn take_and<T: Send + 'static>(
        self: &Arc<Self>,
        at: Partition,
        look: impl Fn(&Database) -> T + Clone + Send + 'static,
    ) -> (Found, T) {
        let lane = &self.lanes[at.index()];
        lane.is_settling.store(true, Ordering::Relaxed);
        let mut pause = PAUSES.0;
        let settled = loop {
            let (me, look) = (self.id(), look.clone());
            let taking = self.statement(STATEMENT_LIMIT, move |_, database| {
                let found = database.take_again(me, at);
                ((found, look(database)), database.timeline)
            });
            match taking.await {
                Ok((settled, timeline)) => {
                    lane.connection.store(timeline, Ordering::Relaxed);
                    break settled;
                }
                Err(_) => self.pause_for(pause).await,
            }
            pause = (pause * 2).min(PAUSES.1);
        };
        lane.is_settling.store(false, Ordering::Relaxed);
        settled
    }

    /// Compares what the database contains with what was acknowledged.
    pub(crate) fn compare(&self, at: Partition, found: Found) {
        let lane = &self.lanes[at.index()];
        let acknowledged = *lock(&lane.acknowledged);
        let is_lost = found.last < acknowledged && !self.sim.has(Fault::WriteOverLoss);
        if is_lost {
            self.note_loss(at, acknowledged, found.last);
        }
        if !found.is_owned {
            lane.give_up("another host owns the partition");
        } else if is_lost {
            lane.is_damaged.store(true, Ordering::Relaxed);
            lane.give_up("the database has lost records of the partition");
        } else if let Some(head) = lock(&lane.head).as_mut() {
            *head = Head { epoch: found.epoch, last: found.last };
        }
    }

    /// Reports that the database has lost records that were acknowledged to this process.
    pub(crate) fn note_loss(&self, at: Partition, acknowledged: Position, last: Position) {
        self.sim.ledger().note_loss(at, last, acknowledged);
        *lock(&self.lanes[at.index()].acknowledged) = last;
    }

    /// Sends a batch again although it may be in the log: a fault.
    async fn resend(
        self: &Arc<Self>,
        at: Partition,
        epoch: u64,
        mut batch: Batch,
    ) -> Result<Positions, Error> {
        if let (Some(entity), Expected::At(_)) = (&batch.entity, batch.expected) {
            let entity = entity.clone();
            let found = self.read(at, move |journal| resolve(journal.last_of(entity))).await?;
            let last = found.map_or_else(
                || LastRecord { position: Position(0), sequence: batch.records[0].0 },
                |found| found.last,
            );
            batch.expected = Expected::At(last.position);
            let mut before = last.sequence;
            for (sequence, event) in &mut batch.records {
                if matches!(event, Event::Transition { .. }) {
                    before = before.next();
                }
                *sequence = before;
            }
        }
        match self.send(at, epoch, batch).await {
            Ok(Appended::Done(positions)) => {
                self.acknowledge(at, positions);
                Ok(positions)
            }
            _ => Err(Fate::Unknown.error()),
        }
    }

    fn acknowledge(&self, at: Partition, positions: Positions) {
        let lane = &self.lanes[at.index()];
        if let Some(head) = lock(&lane.head).as_mut() {
            head.last = positions.last;
        }
        *lock(&lane.acknowledged) = positions.last;
        self.sim.ledger().note_acknowledged(at, positions.last);
    }
}
