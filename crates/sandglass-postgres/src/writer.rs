//! The writer: the task that appends to all partitions, everything that waits in one statement. It alone
//! knows the ends of their logs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandglass_journal::store::Failures;
use sandglass_journal::{Error, GROUP_MAX_RECORDS};
use sandglass_model::Partition;

use crate::append::Statement;
use crate::fault::{Fate, Fault};
use crate::group::{Group, Job, Placed, Present};
use crate::heads::{Head, Recent};
use crate::limit::within;
use crate::link::Link;
use crate::lookup::look_up;
use crate::notes::{IDLE, Notes};
use crate::requests::{Request, Requests};
use crate::shared::Shared;
use crate::tenure::NOT_CLAIMED;

/// Most bytes of the batches of one statement: so few that another group does not wait long for them.
pub(crate) const GROUP_MAX_BYTES: usize = 8 << 20;

/// How often a statement that changed nothing is sent again.
const ATTEMPTS: u32 = 5;

pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) link: Option<Link>,
    pub(crate) heads: BTreeMap<Partition, Head>,
    pub(crate) recent: Recent,
    pub(crate) failures: Failures,
    pub(crate) requests: Requests,
    pub(crate) notes: Notes,
}

impl Writer {
    /// Works until it is requested to end, or until all senders are gone.
    pub(crate) async fn run(mut self) {
        while self.requests.ended.is_none() {
            let Some(first) = self.next_request().await else { break };
            let (jobs, other) = self.gather(first);
            if !jobs.is_empty() {
                self.write(jobs).await;
            }
            match other {
                Some(Request::Hold(hold)) => self.hold(hold).await,
                Some(Request::Adopt(adopt)) => self.adopt(adopt),
                Some(Request::Forget(forget)) => self.forget(forget),
                Some(Request::Release(release)) => self.release(release).await,
                Some(Request::Connect) => self.check_connection().await,
                Some(Request::Barrier(waiter)) => self.requests.waiting.push(waiter),
                Some(Request::End(waiter)) => self.requests.ended = Some(waiter),
                Some(Request::Append(_) | Request::Rest(_)) | None => {}
            }
            if self.notes.are_due() || self.requests.has_waiting() {
                self.write_notes().await;
            }
            self.requests.answer_waiting();
        }
        // Requests behind the end return that the journal is closed.
        self.requests.queue.close();
        if let Some(waiter) = self.requests.ended.take() {
            drop(self.link.take());
            let _ = waiter.send(());
        }
    }

    /// The next request; `None` if all senders are gone. Notes are written if it does not come soon.
    async fn next_request(&mut self) -> Option<Request> {
        if !self.notes.is_empty() {
            match within(IDLE, self.requests.queue.recv()).await {
                Some(request) => return request,
                None => self.write_notes().await,
            }
        }
        self.requests.queue.recv().await
    }

    /// The batches among the first request and all others that wait by now, up to one that is neither
    /// a batch nor a note of rest. Notes are kept for later.
    fn gather(&mut self, first: Request) -> (Vec<Job>, Option<Request>) {
        let (mut jobs, mut records, mut bytes) = (Vec::new(), 0, 0);
        let mut next = Some(first);
        while let Some(request) = next {
            match request {
                Request::Append(job) => {
                    records += job.lines.len();
                    bytes += job.bytes;
                    jobs.push(job);
                }
                Request::Rest(note) => self.notes.add(note),
                other => return (jobs, Some(other)),
            }
            // A further batch has at most half of a group's records.
            let is_full =
                records > GROUP_MAX_RECORDS / 2 || bytes > GROUP_MAX_BYTES || self.notes.is_full();
            next = if is_full { None } else { self.requests.queue.try_recv().ok() };
        }
        (jobs, None)
    }

    /// Appends all batches that may follow, each completely or not at all.
    async fn write(&mut self, mut jobs: Vec<Job>) {
        let count = jobs.len();
        self.notes.count_batches(count);
        // Recordings are looked up if one of them turns out to be there already, which is rare.
        for with_recordings in [false, true] {
            jobs = self.refuse_lost(jobs);
            if jobs.is_empty() {
                return;
            }
            let present = match self.present(&jobs, with_recordings).await {
                Ok(present) => present,
                Err(fault) => {
                    self.failures.note(&Err::<(), _>(fault.unavailable()), count);
                    jobs.into_iter().for_each(|job| job.answer(Err(fault.unavailable())));
                    return;
                }
            };
            // The connection may have been made anew, and partitions lost.
            jobs = self.refuse_lost(jobs);
            let Group { placed, refused } = Group::new(jobs, &self.heads, present);
            let written = match self.append(placed, with_recordings).await {
                Ok(recorded) if !recorded.is_empty() => {
                    let recorded = recorded.into_iter().map(|one| one.job);
                    jobs = recorded.chain(refused.into_iter().map(|(job, _)| job)).collect();
                    continue;
                }
                written => written.map(drop),
            };
            self.failures.note(&written, count);
            for (job, error) in refused {
                // Its place depends on batches that were not appended.
                job.answer(Err(written.as_ref().err().cloned().unwrap_or(error)));
            }
            return;
        }
    }

    /// What the database contains of the entities of these batches, and of their recordings if these
    /// are requested.
    async fn present(&mut self, jobs: &[Job], with_recordings: bool) -> Result<Present, Fault> {
        let mut present = Present::default();
        let mut wanted = BTreeSet::new();
        for job in jobs {
            if let Some(entity) = job.batch.entity.clone() {
                match self.recent.get(job.partition, &entity) {
                    Some(known) => drop(present.entities.insert((job.partition, entity), known)),
                    None => drop(wanted.insert((job.partition, entity))),
                }
            }
        }
        if wanted.is_empty() && !with_recordings {
            self.connection().await?;
            return Ok(present);
        }
        let shared = Arc::clone(&self.shared);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let link = self.connection().await?;
            let recorded = if with_recordings { jobs } else { &[] };
            match look_up(link, &shared.settings, &wanted, recorded).await {
                Ok(found) => {
                    present.entities.extend(found.entities);
                    present.recordings = found.recordings;
                    return Ok(present);
                }
                Err(fault) => {
                    if fault.fate == Fate::Unknown {
                        self.link = None;
                    }
                    if fault.fate == Fate::Refused || attempt == 2 {
                        return Err(fault);
                    }
                }
            }
        }
    }

    /// Sends the batches until it is known of each whether it is in the journal. Returns those that are
    /// not, because a recording of theirs is there already, unless recordings were looked up. An error
    /// means that the database did not work; then those that are not in it were answered with it.
    async fn append(
        &mut self,
        mut placed: Vec<Placed>,
        looked_up: bool,
    ) -> Result<Vec<Placed>, Error> {
        let shared = Arc::clone(&self.shared);
        let counters = &shared.counters;
        let mut attempt = 0;
        while !placed.is_empty() {
            attempt += 1;
            // First, because a new connection has new epochs.
            let connected = self.connection().await.map(|_| ());
            let statement = Statement::new(&placed, &self.heads);
            let ends = statement.ends.clone();
            let sent = match (connected, &self.link) {
                (Ok(()), Some(link)) => {
                    counters.statements.fetch_add(1, Ordering::Relaxed);
                    statement.send(link, &shared.settings).await
                }
                (Err(fault), _) => Err(Fault { fate: Fate::Refused, ..fault }),
                (Ok(()), None) => Err(Fault::no_connection()),
            };
            drop(statement);
            match sent {
                Ok(written) => {
                    let is_written = |one: &mut Placed| written.contains(&one.job.partition);
                    let done: Vec<Placed> = placed.extract_if(.., is_written).collect();
                    self.acknowledge(done, &ends);
                    if !placed.is_empty() {
                        let why = "another process may have taken partitions, which is being looked up: \
                                   try again";
                        placed = self.settle(placed, &ends, why).await;
                    }
                }
                Err(fault) if fault.fate == Fate::Unknown => {
                    counters.unknown.fetch_add(1, Ordering::Relaxed);
                    self.failures.note(&Err::<(), _>(fault.unavailable()), placed.len());
                    placed = self.settle(placed, &ends, &fault.what).await;
                }
                Err(fault) if fault.fate == Fate::Recorded && !looked_up => return Ok(placed),
                Err(fault) if fault.fate == Fate::Retry && attempt < ATTEMPTS => {}
                Err(fault) => {
                    placed.into_iter().for_each(|one| one.job.answer(Err(fault.unavailable())));
                    return Err(fault.unavailable());
                }
            }
            if attempt >= ATTEMPTS && !placed.is_empty() {
                let what = "the database does not accept records; check its log".to_owned();
                let error = Error::Unavailable { what };
                placed.into_iter().for_each(|one| one.job.answer(Err(error.clone())));
                return Err(error);
            }
        }
        Ok(placed)
    }

    /// Notes that batches are in the journal, and answers their callers.
    pub(crate) fn acknowledge(
        &mut self,
        placed: Vec<Placed>,
        ends: &BTreeMap<Partition, (i64, [u8; 16])>,
    ) {
        let count = u64::try_from(placed.len()).unwrap_or(u64::MAX);
        self.shared.counters.batches.fetch_add(count, Ordering::Relaxed);
        for one in placed {
            let partition = one.job.partition;
            if let (Some(head), Some((last, checksum))) =
                (self.heads.get_mut(&partition), ends.get(&partition))
            {
                (head.last, head.checksum) = (*last, Some(*checksum));
            }
            self.shared.acknowledge(partition, one.last);
            if let Some((entity, known)) = one.known() {
                self.recent.put(partition, entity, known);
            }
            let positions = one.positions();
            one.job.answer(Ok(positions));
        }
    }

    /// Why nothing is appended to a partition; `None` if it is.
    fn why_not_held(&self, partition: Partition) -> Option<String> {
        let why = self.shared.why_disowned(partition);
        why.or_else(|| (!self.heads.contains_key(&partition)).then(|| NOT_CLAIMED.to_owned()))
    }

    /// Refuses the batches of partitions that this process has lost, and of entities that are being
    /// removed, and returns the others.
    fn refuse_lost(&self, jobs: Vec<Job>) -> Vec<Job> {
        let mut kept = Vec::with_capacity(jobs.len());
        for job in jobs {
            let entity = job.batch.entity.as_ref();
            let held = entity.filter(|it| self.shared.being_removed.contains(job.partition, it));
            match (self.why_not_held(job.partition), held) {
                (Some(what), _) => job.answer(Err(Error::Disowned { what })),
                (None, Some(entity)) => {
                    let what = format!("{entity} is being pruned: try again when it is removed");
                    job.answer(Err(Error::Unavailable { what }));
                }
                (None, None) => kept.push(job),
            }
        }
        kept
    }
}
