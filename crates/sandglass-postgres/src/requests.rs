//! What is requested of the writer, and its queue.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_journal::{Error, Resting};
use sandglass_model::{EntityRef, Partition, Position};
use tokio::sync::{mpsc, oneshot};

use crate::group::Job;
use crate::heads::Head;

/// A request to the writer.
#[derive(Debug)]
pub(crate) enum Request {
    Append(Job),
    Hold(Hold),
    Rest(NoteRest),
    Adopt(Adopt),
    Forget(Forget),
    Release(Release),
    /// Reconnect if the connection was lost, although nothing is to be written.
    Connect,
    /// Answered when everything before it was.
    Barrier(oneshot::Sender<()>),
    /// The writer ends.
    End(oneshot::Sender<()>),
}

/// Entities that are about to be removed on another connection, and their last records.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) partition: Partition,
    pub(crate) entities: Vec<(EntityRef, Position)>,
    /// Why the outcome of the statement that removes them is unknown, if it is: the partitions are taken
    /// again, so that it is over or has no effect.
    pub(crate) unknown: Option<String>,
    /// Receives the partition's epoch.
    pub(crate) answer: oneshot::Sender<Result<i64, Error>>,
}

/// How entities rest.
#[derive(Debug)]
pub(crate) struct NoteRest {
    pub(crate) partition: Partition,
    pub(crate) entities: Vec<Resting>,
    pub(crate) answer: oneshot::Sender<Result<(), Error>>,
}

/// Partitions that this process has claimed, and the ends of their logs.
#[derive(Debug)]
pub(crate) struct Adopt {
    pub(crate) heads: BTreeMap<Partition, Head>,
    pub(crate) answer: oneshot::Sender<Result<(), Error>>,
}

/// Partitions that are not appended to any more, until they are adopted again.
#[derive(Debug)]
pub(crate) struct Forget {
    pub(crate) partitions: BTreeSet<Partition>,
    pub(crate) why: &'static str,
    pub(crate) answer: oneshot::Sender<Result<(), Error>>,
}

/// Partitions that are given away, so that other processes can claim them.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) partitions: BTreeSet<Partition>,
    /// Receives those that were given away.
    pub(crate) answer: oneshot::Sender<Result<Vec<Partition>, Error>>,
}

/// The queue of the writer, and what was taken from it while a statement's outcome was unknown.
pub(crate) struct Requests {
    pub(crate) queue: mpsc::Receiver<Request>,
    pub(crate) waiting: Vec<oneshot::Sender<()>>,
    pub(crate) ended: Option<oneshot::Sender<()>>,
}

impl Requests {
    pub(crate) fn new(queue: mpsc::Receiver<Request>) -> Self {
        Self { queue, waiting: Vec::new(), ended: None }
    }

    /// Waits for `work`, and refuses new requests meanwhile: the database does not work. `None` if the
    /// writer is to end.
    pub(crate) async fn refuse_during<T>(
        &mut self,
        why: &str,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let refused = || Error::Unavailable { what: why.to_owned() };
        loop {
            if self.ended.is_some() {
                return None;
            }
            tokio::select! {
                done = &mut work => return Some(done),
                request = self.queue.recv() => match request {
                    Some(Request::Append(job)) => job.answer(Err(refused())),
                    Some(Request::Hold(hold)) => drop(hold.answer.send(Err(refused()))),
                    Some(Request::Rest(rest)) => drop(rest.answer.send(Err(refused()))),
                    Some(Request::Adopt(adopt)) => drop(adopt.answer.send(Err(refused()))),
                    Some(Request::Forget(forget)) => drop(forget.answer.send(Err(refused()))),
                    Some(Request::Release(release)) => drop(release.answer.send(Err(refused()))),
                    // There is one when the work is done.
                    Some(Request::Connect) => {}
                    Some(Request::Barrier(waiter)) => self.waiting.push(waiter),
                    Some(Request::End(waiter)) => self.ended = Some(waiter),
                    // All journals are gone; what was appended is finished nevertheless.
                    None => return Some(work.await),
                },
            }
        }
    }

    /// Whether callers wait until everything before is done, or until the writer has ended.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.ended.is_some()
    }

    pub(crate) fn answer_waiting(&mut self) {
        for waiter in self.waiting.drain(..) {
            // The caller may have gone away.
            let _ = waiter.send(());
        }
    }
}
