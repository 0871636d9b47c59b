//! The partitions of a member of a cluster, which it claims, gives away and loses while it runs.
//!
//! The writer alone knows the ends of the logs, so each change is a request to it. A claim is a statement
//! on a connection of its own, because it may wait for locks while the writer appends to other
//! partitions: the writer forgets the partitions first, and adopts those that were obtained afterwards.
//! What it forgets, it does not take again when the outcome of a statement is unknown. Each claim and
//! each release has a new epoch, so that nothing that was sent before has an effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::Error;
use sandglass_model::{HostId, Partition};
use tokio_postgres::types::Type;

use crate::database::{Database, Inner};
use crate::fault::{Fate, Fault};
use crate::hosts;
use crate::link::{Link, Parameter};
use crate::reader::numbers_of;
use crate::requests::{Adopt, Forget, Release, Request};
use crate::row::partition_of;
use crate::shared::Shared;
use crate::takeover::{Found, read_heads};
use crate::writer::Writer;

/// Why nothing is appended to a partition that was never claimed.
pub(crate) const NOT_CLAIMED: &str = "this host has not claimed the partition";
const BEING_CLAIMED: &str = "this host is about to claim the partition: try again";
const GIVEN_AWAY: &str = "this host has given the partition away";
const WAS_DEAD: &str =
    "this host was declared dead, and enters the cluster again without its partitions";

/// How long a claim waits for the lock of one partition, and for those of all together. After that it
/// takes those that nothing holds: a statement of a dead host must not delay the others.
const LOCK_LIMIT: Duration = Duration::from_millis(500);
const LOCKS_LIMIT: Duration = Duration::from_millis(750);

/// The connection on which partitions are claimed and rows of other processes are changed, one after the
/// other.
pub(crate) type Claimer = tokio::sync::Mutex<Option<Link>>;

impl Database {
    /// Claims partitions, each with the epoch that it had when it was last seen: those that still have
    /// this epoch, and no owner, this one, or one that is dead. If this process does not run the active
    /// generation, by its last beat, it obtains only what it owns. Returns those that were obtained: they can
    /// be appended to from now on. It waits at most half a second for statements of former owners, and
    /// then obtains only those that none holds. A partition whose owner this process is already, because
    /// the result of a claim was lost, is obtained by claiming it again.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: nothing was obtained, although the database may state this process as the
    /// owner; [`Error::Closed`].
    pub async fn claim(&self, wanted: &[(Partition, u64)]) -> Result<Vec<Partition>, Error> {
        let inner = Arc::clone(self.inner());
        let epoch = |epoch| i64::try_from(epoch).unwrap_or(i64::MAX);
        let wanted = wanted.iter().map(|(partition, seen)| (*partition, epoch(*seen))).collect();
        self.run(async move { claim(&inner, wanted).await }).await
    }

    /// Writes what was requested for these partitions before, and then gives them up, so that another
    /// process can claim them at once. Returns those that were given up: this process appends nothing to
    /// them any more. The others it has as before, such as one from which entities are being removed.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: none was given up; [`Error::Closed`].
    pub async fn release(&self, partitions: &[Partition]) -> Result<Vec<Partition>, Error> {
        let inner = Arc::clone(self.inner());
        let partitions = partitions.iter().copied().collect();
        let request = |answer| Request::Release(Release { partitions, answer });
        self.run(async move { inner.ask(request).await }).await
    }

    /// Appends nothing more to these partitions, because another process owns them: further appends
    /// return [`Error::Disowned`] with the reason `why` at once. Nothing is written; statements that are
    /// on their way are finished. A partition that is claimed afterwards works again.
    pub fn disown(&self, partitions: &[Partition], why: &str) {
        for partition in partitions {
            self.shared().give_up(*partition, why.to_owned());
        }
    }

    /// Enters the cluster again under a new id, because this process was declared dead; returns the id. It
    /// owns nothing then, and is draining if it was before and its former row is still there.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: it owns nothing, and has to try again; [`Error::Closed`].
    pub async fn rejoin(&self) -> Result<HostId, Error> {
        let inner = Arc::clone(self.inner());
        self.run(async move { rejoin(&inner).await }).await
    }
}

async fn claim(inner: &Inner, wanted: BTreeMap<Partition, i64>) -> Result<Vec<Partition>, Error> {
    let shared = &inner.shared;
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut claimer = shared.claimer.lock().await;
    let partitions = wanted.keys().copied().collect();
    forget(inner, partitions, BEING_CLAIMED).await?;
    let found = obtain(shared, &mut claimer, &wanted).await;
    let found = found.inspect_err(|fault| {
        if fault.fate == Fate::Unknown {
            *claimer = None;
        }
    });
    let found = found.map_err(|fault| fault.unavailable())?;
    let owned = found.into_iter().filter(|(_, found)| found.is_owned);
    let heads: BTreeMap<_, _> = owned.map(|(partition, found)| (partition, found.head)).collect();
    let obtained = heads.keys().copied().collect();
    inner.ask(|answer| Request::Adopt(Adopt { heads, answer })).await?;
    Ok(obtained)
}

async fn forget(
    inner: &Inner,
    partitions: BTreeSet<Partition>,
    why: &'static str,
) -> Result<(), Error> {
    inner.ask(|answer| Request::Forget(Forget { partitions, why, answer })).await
}

/// Takes partitions, and reads the ends of those that were taken.
async fn obtain(
    shared: &Shared,
    claimer: &mut Option<Link>,
    wanted: &BTreeMap<Partition, i64>,
) -> Result<BTreeMap<Partition, Found>, Fault> {
    let link = shared.connector.renew(claimer).await?;
    let taken = match send_claim(shared, link, wanted, LOCKS_LIMIT, "").await {
        Err(fault) if fault.fate == Fate::Refused => {
            let limit = shared.settings.connect_limit;
            send_claim(shared, link, wanted, limit, "SKIP LOCKED").await?
        }
        taken => taken?,
    };
    if taken.is_empty() {
        return Ok(BTreeMap::new());
    }
    read_heads(shared, link, &taken).await
}

/// Takes partitions by one statement, which waits for locks unless `locked` says otherwise. A row that
/// another process takes meanwhile has another epoch then. An owner without a row in the table of hosts is
/// dead.
async fn send_claim(
    shared: &Shared,
    link: &Link,
    wanted: &BTreeMap<Partition, i64>,
    limit: Duration,
    locked: &str,
) -> Result<BTreeMap<Partition, i64>, Fault> {
    let sql = format!(
        "WITH wanted AS (SELECT p.partition FROM sandglass.partitions p \
           JOIN unnest($1::smallint[], $2::bigint[]) AS w(partition, epoch) \
             ON w.partition = p.partition AND w.epoch = p.epoch \
           WHERE (SELECT set_config('lock_timeout', $4, true)) IS NOT NULL \
           AND EXISTS (SELECT 1 FROM sandglass.hosts WHERE host = $3 AND NOT dead) \
           AND (p.owner = $3 OR ((SELECT generation FROM sandglass.agreed) IS NOT DISTINCT FROM \
             (SELECT generation FROM sandglass.hosts WHERE host = $3) AND NOT EXISTS \
             (SELECT 1 FROM sandglass.hosts h WHERE h.host = p.owner AND NOT h.dead))) \
           ORDER BY p.partition FOR UPDATE OF p {locked}) \
         UPDATE sandglass.partitions p SET epoch = p.epoch + 1, owner = $3 FROM wanted \
         WHERE p.partition = wanted.partition RETURNING p.partition"
    );
    let partitions: Vec<Partition> = wanted.keys().copied().collect();
    let (numbers, host) = (numbers_of(&partitions), shared.host_text());
    let epochs: Vec<i64> = wanted.values().copied().collect();
    let lock_limit = format!("{}ms", LOCK_LIMIT.as_millis());
    let parameters: [Parameter<'_>; 4] = [
        (&numbers, Type::INT2_ARRAY),
        (&epochs, Type::INT8_ARRAY),
        (&host, Type::TEXT),
        (&lock_limit, Type::TEXT),
    ];
    let rows = link.query_or_cancel(limit, &sql, &parameters).await?;
    Ok(rows.iter().filter_map(partition_of).map(|partition| (partition, 0)).collect())
}

async fn rejoin(inner: &Inner) -> Result<HostId, Error> {
    let shared = &inner.shared;
    // No claim of the former id is adopted behind it.
    let mut claimer = shared.claimer.lock().await;
    Partition::all().for_each(|partition| shared.give_up(partition, WAS_DEAD.to_owned()));
    // The writer finishes what it has sent under the former id.
    forget(inner, Partition::all().collect(), WAS_DEAD).await?;
    let link = shared.connector.renew(&mut claimer).await.map_err(|fault| fault.unavailable())?;
    let former = Some(shared.host());
    let entered = hosts::enter(link, &shared.settings, shared.url.as_deref(), former).await;
    match &entered {
        Ok(host) => {
            shared.set_host(*host);
            // The next beat does not wait for that.
            shared.connector.runtime().spawn(forget_dead(Arc::clone(shared)));
        }
        Err(_) => *claimer = None,
    }
    entered
}

/// Removes dead processes. If it fails, the next process that joins does it.
async fn forget_dead(shared: Arc<Shared>) {
    let mut claimer = shared.claimer.lock().await;
    if let Some(link) = claimer.as_ref()
        && hosts::forget_dead(link, LOCKS_LIMIT).await.is_err()
    {
        *claimer = None;
    }
}

impl Writer {
    /// Appends to partitions that this process has claimed.
    pub(crate) fn adopt(&mut self, adopt: Adopt) {
        for (partition, head) in adopt.heads {
            self.heads.insert(partition, head);
            self.shared.hold(partition, head.last);
        }
        // The caller may have gone away; then it claims them again.
        let _ = adopt.answer.send(Ok(()));
    }

    /// Appends nothing more to partitions.
    pub(crate) fn forget(&mut self, forget: Forget) {
        self.drop_partitions(&forget.partitions, forget.why);
        let _ = forget.answer.send(Ok(()));
    }

    fn drop_partitions(&mut self, partitions: &BTreeSet<Partition>, why: &str) {
        for partition in partitions {
            self.shared.give_up(*partition, why.to_owned());
            self.heads.remove(partition);
        }
        self.recent.forget(partitions);
        self.notes.refuse(partitions, Error::Disowned { what: why.to_owned() });
    }

    /// Gives partitions away. All batches that were requested before are in the journal.
    pub(crate) async fn release(&mut self, release: Release) {
        self.write_notes().await;
        let given = self.give_away(&release.partitions).await;
        let _ = release.answer.send(given);
    }

    async fn give_away(
        &mut self,
        partitions: &BTreeSet<Partition>,
    ) -> Result<Vec<Partition>, Error> {
        // First, because a new connection has new epochs, and may show that some are lost.
        self.connection().await.map_err(|fault| fault.unavailable())?;
        let is_held = |it: &&Partition| self.shared.why_disowned(**it).is_none();
        let epoch = |it: &Partition| Some((*it, self.heads.get(it)?.epoch));
        let held: BTreeMap<Partition, i64> =
            partitions.iter().filter(is_held).filter_map(epoch).collect();
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let given = match self.send_release(&held).await {
            Ok(given) => {
                self.drop_partitions(&given, GIVEN_AWAY);
                given
            }
            Err(fault) if fault.fate == Fate::Unknown => {
                // With another epoch, the statement is over or has no effect any more.
                let found = self.take_again(&BTreeMap::new(), &fault.what).await;
                let found = found.ok_or(Error::Closed)?;
                let is_gone = |it: &Partition| found.get(it).is_some_and(|found| !found.is_owned);
                let given = held.keys().copied().filter(is_gone).collect();
                self.drop_partitions(&given, GIVEN_AWAY);
                self.compare(&found);
                given
            }
            Err(fault) => return Err(fault.unavailable()),
        };
        Ok(given.into_iter().collect())
    }

    /// Sends the statement that gives partitions away; returns those that were. It does not wait for
    /// locks: what is being removed from a partition belongs to this process, and ends soon.
    async fn send_release(
        &mut self,
        held: &BTreeMap<Partition, i64>,
    ) -> Result<BTreeSet<Partition>, Fault> {
        let sql = "WITH given AS (SELECT p.partition FROM sandglass.partitions p \
               JOIN unnest($1::smallint[], $2::bigint[]) AS mine(partition, epoch) \
                 ON mine.partition = p.partition AND mine.epoch = p.epoch \
               WHERE p.owner = $3 ORDER BY p.partition FOR UPDATE OF p SKIP LOCKED) \
             UPDATE sandglass.partitions p SET epoch = p.epoch + 1, owner = NULL FROM given \
             WHERE p.partition = given.partition RETURNING p.partition";
        let partitions: Vec<Partition> = held.keys().copied().collect();
        let (numbers, host) = (numbers_of(&partitions), self.shared.host_text());
        let epochs: Vec<i64> = held.values().copied().collect();
        let parameters: [Parameter<'_>; 3] =
            [(&numbers, Type::INT2_ARRAY), (&epochs, Type::INT8_ARRAY), (&host, Type::TEXT)];
        let limit = self.shared.settings.statement_limit;
        let rows = self.connection().await?.query(limit, sql, &parameters).await?;
        Ok(rows.iter().filter_map(partition_of).collect())
    }
}
