//! Which entities wait for which to settle, on this host and on others, so that no ask waits for itself.
//!
//! Each host knows the waits of the handlers that it executes. A handler first enters its own wait, then
//! finds out whether its entity is among those that the target waits for: on this host in one step, and
//! with one question for each entity on the way that another host owns. Of two handlers that close a cycle
//! at the same time, at least one finds the wait of the other. What this does not find, because a host does
//! not respond or a chain is too long, ends by the deadline of a handler.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use sandglass_liveness::Waits;
use sandglass_model::{AskError, EntityRef};

use crate::other_hosts::{OtherHosts, RemoteRequest, RemoteResponse, RemoteWaits};
use crate::shared::Shared;
use crate::timer;

/// How many hosts a chain of waits is followed over.
const HOPS_MAX: usize = 8;
/// How many entities of other hosts are asked about for one ask.
const ASKED_MAX: usize = 64;
/// How many waits one response names.
const WAITS_MAX: usize = 256;
/// How long another host may take to respond.
const RESPONSE_MAX: Duration = Duration::from_secs(1);
/// How often, and how long apart, the waits are read again, until another handler that closes the same cycle
/// has found it.
const AGAIN_MAX: u32 = 5;
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Which entity waits for which: at most one wait for each handler in flight.
#[derive(Debug, Default)]
pub(crate) struct WaitGraph(Mutex<Graph>);

#[derive(Debug, Default)]
struct Graph {
    waits: Waits,
    /// How many handlers of an entity find out whether their asks would be cycles.
    probing: BTreeMap<EntityRef, u32>,
}

impl Graph {
    fn end_probe(&mut self, by: &EntityRef) {
        if let Some(count) = self.probing.get_mut(by) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.probing.remove(by);
            }
        }
    }
}

impl WaitGraph {
    /// The entities that handlers of `asker` wait for, directly or through others.
    pub(crate) fn awaited_by(&self, asker: &EntityRef) -> Vec<EntityRef> {
        self.lock().waits.awaited_by(asker)
    }

    fn lock(&self) -> MutexGuard<'_, Graph> {
        // No code between two changes of one critical section can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One wait for an entity to settle. It ends when this is dropped.
pub(crate) struct Wait {
    shared: Arc<Shared>,
    by: EntityRef,
    target: EntityRef,
    is_probing: bool,
}

/// What the waits of the target show.
#[derive(Default)]
struct Found {
    is_cycle: bool,
    /// Whether a handler of an entity with a smaller name may find the same cycle.
    has_smaller: bool,
}

impl Wait {
    /// A handler of `by` waits for `target` from now on.
    ///
    /// # Errors
    /// The target waits for `by`, on whichever hosts ([`AskError::Cycle`]).
    pub(crate) async fn enter(
        shared: &Arc<Shared>,
        by: &EntityRef,
        target: &EntityRef,
    ) -> Result<Self, AskError> {
        let hosts = shared.way.open();
        let mut wait = Self::enter_here(shared, by, target, hosts.is_some())?;
        if let Some(hosts) = hosts {
            wait.probe(&*hosts).await?;
            wait.is_probing = false;
            shared.wait_graph.lock().end_probe(by);
        }
        Ok(wait)
    }

    fn enter_here(
        shared: &Arc<Shared>,
        by: &EntityRef,
        target: &EntityRef,
        is_probing: bool,
    ) -> Result<Self, AskError> {
        let mut graph = shared.wait_graph.lock();
        graph.waits.enter(by, target).map_err(|_| AskError::Cycle)?;
        if is_probing {
            let count = graph.probing.entry(by.clone()).or_default();
            *count = count.saturating_add(1);
        }
        let shared = Arc::clone(shared);
        Ok(Self { shared, by: by.clone(), target: target.clone(), is_probing })
    }

    async fn probe(&self, hosts: &dyn OtherHosts) -> Result<(), AskError> {
        for _ in 0..AGAIN_MAX {
            let found = self.find(hosts).await;
            if !found.is_cycle {
                return Ok(());
            }
            if !found.has_smaller {
                break;
            }
            let clock = &*self.shared.clock;
            timer::until(clock, clock.now().after(AGAIN_AFTER)).await;
        }
        Err(AskError::Cycle)
    }

    /// Follows the waits of the target.
    async fn find(&self, hosts: &dyn OtherHosts) -> Found {
        let mut found = Found::default();
        let mut seen = BTreeSet::from([self.target.clone()]);
        let mut next = vec![self.target.clone()];
        for _ in 0..HOPS_MAX {
            let waits = join_all(next.iter().map(|entity| self.waits_of(hosts, entity))).await;
            next.clear();
            for RemoteWaits { on, elsewhere, probing } in waits.into_iter().flatten() {
                found.is_cycle |= on.contains(&self.by);
                found.has_smaller |= probing.iter().any(|entity| *entity < self.by);
                for entity in elsewhere {
                    if seen.len() < ASKED_MAX && seen.insert(entity.clone()) {
                        next.push(entity);
                    }
                }
            }
            if next.is_empty() {
                break;
            }
        }
        found
    }

    /// What handlers of `entity` wait for; `None` if its host does not respond.
    async fn waits_of(&self, hosts: &dyn OtherHosts, entity: &EntityRef) -> Option<RemoteWaits> {
        if let Some(waits) = self.shared.waits_of(entity) {
            return Some(waits);
        }
        let (clock, here) = (&*self.shared.clock, self.shared.here());
        let request = RemoteRequest::Waits(entity.clone());
        let response = tokio::select! {
            biased;
            response = hosts.send(&here, &request) => response.ok()?,
            () = timer::until(clock, clock.now().after(RESPONSE_MAX)) => return None,
        };
        match response {
            RemoteResponse::Waits(waits) => Some(waits),
            _ => None,
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut graph = self.shared.wait_graph.lock();
        graph.waits.leave(&self.by, &self.target);
        if self.is_probing {
            graph.end_probe(&self.by);
        }
    }
}

impl Shared {
    /// What handlers of `entity` wait for; `None` if it is not served here.
    pub(crate) fn waits_of(&self, entity: &EntityRef) -> Option<RemoteWaits> {
        let is_served = |entity: &EntityRef| self.table.lock().serving.is_served(entity);
        if !is_served(entity) {
            return None;
        }
        let graph = self.wait_graph.lock();
        let mut on = graph.waits.awaited_by(entity);
        on.truncate(WAITS_MAX);
        let is_probing = |entity: &&EntityRef| graph.probing.contains_key(*entity);
        let probing = std::iter::once(entity).chain(&on).filter(is_probing).cloned().collect();
        drop(graph);
        let elsewhere = on.iter().filter(|entity| !is_served(entity)).cloned().collect();
        Some(RemoteWaits { on, elsewhere, probing })
    }
}
