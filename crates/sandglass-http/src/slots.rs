//! The slots of connections: which connections are open, who holds them, and which one is closed if
//! another needs its slot.
//!
//! ```text
//!            accepted                        a request is authenticated
//!  listener ─────────▶ unauthenticated ───────────────────────────────▶ authenticated
//!               │      (few, by address;                                (by holder; idle ones
//!               │       idle ones are shed)                              are shed)
//!               └─────▶ reserve: if all of those are busy ─────────────▶
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::settings::Settings;
use crate::shared_slots::{Holder, NoSlot, may_take};
use crate::timer::now;

/// The bits of an IPv6 address that name its network: a client has all addresses of a network.
const NETWORK_BITS: u32 = 64;

/// Most connections of other hosts: 8 from each of 32. They are separate from those of clients, so that
/// clients cannot keep hosts from reaching each other.
const OF_HOSTS_MAX: usize = 256;

/// All connections of a served interface.
#[derive(Clone, Debug)]
pub(crate) struct Slots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: Settings,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    entries: BTreeMap<u64, Entry>,
    /// How many were shed since the last report.
    shed: u64,
}

#[derive(Debug)]
struct Entry {
    class: Class,
    /// Requests in flight, and responses that are being written.
    busy: usize,
    /// Whether the client has sent nothing yet.
    is_silent: bool,
    /// Whether it is a host that has proved that by its certificate.
    is_peer: bool,
    quiet_since: Instant,
    closed: Arc<Notify>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Unauthenticated(IpAddr),
    Reserve,
    Authenticated(Holder),
}

impl Slots {
    pub(crate) fn new(settings: Settings) -> Self {
        Self(Arc::new(Shared { settings, table: Mutex::default() }))
    }

    /// A slot for a new connection of `peer`. There always is one: if necessary, another connection
    /// is closed.
    pub(crate) fn admit(&self, peer: IpAddr) -> ConnectionSlot {
        let network = network(peer);
        let mut table = self.table();
        let class = if table.make_room(network, &self.0.settings) {
            Class::Unauthenticated(network)
        } else {
            Class::Reserve
        };
        self.open(&mut table, class)
    }

    /// A slot of the reserve, for a connection that took a spare descriptor.
    pub(crate) fn admit_to_reserve(&self) -> ConnectionSlot {
        self.open(&mut self.table(), Class::Reserve)
    }

    fn open(&self, table: &mut Table, class: Class) -> ConnectionSlot {
        if class == Class::Reserve {
            let in_reserve = |entry: &Entry| entry.class == Class::Reserve;
            if table.count(in_reserve) >= self.0.settings.max_reserve.max(1) {
                table.shed(in_reserve);
            }
        }
        let closed = Arc::new(Notify::new());
        let entry = Entry {
            class,
            busy: 0,
            is_silent: true,
            is_peer: false,
            quiet_since: now(),
            closed: Arc::clone(&closed),
        };
        let id = table.next;
        table.next += 1;
        table.entries.insert(id, entry);
        ConnectionSlot(Arc::new(Own { id, of: self.clone(), closed }))
    }

    /// Closes a connection that has no request in flight, so that its descriptor is free soon;
    /// an authenticated one only if there is no other.
    pub(crate) fn shed_idle(&self) {
        let mut table = self.table();
        if !table.shed_idle(|entry| !matches!(entry.class, Class::Authenticated(_))) {
            table.shed_idle(|_| true);
        }
    }

    /// How many connections were shed since the last call.
    pub(crate) fn take_shed(&self) -> u64 {
        std::mem::take(&mut self.table().shed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn count(&self, is: impl Fn(&Entry) -> bool) -> usize {
        self.entries.values().filter(|entry| is(entry)).count()
    }

    /// Closes the least useful idle connection that `filter` selects, as [`Table::shed`] does.
    fn shed_idle(&mut self, filter: impl Fn(&Entry) -> bool) -> bool {
        self.shed(|entry| entry.busy == 0 && filter(entry))
    }

    /// Closes the least useful connection that `filter` selects: a silent one first, then the one
    /// that has been idle for longest, then the oldest. Returns false if there is none.
    fn shed(&mut self, filter: impl Fn(&Entry) -> bool) -> bool {
        let candidates = self.entries.iter().filter(|(_, entry)| filter(entry));
        let least = candidates
            .min_by_key(|(id, entry)| (entry.busy > 0, !entry.is_silent, entry.quiet_since, **id));
        let Some(id) = least.map(|(id, _)| *id) else { return false };
        if let Some(entry) = self.entries.remove(&id) {
            entry.closed.notify_one();
            self.shed += 1;
        }
        true
    }

    /// Makes room for an unauthenticated connection of `network`. False if all that could make
    /// room have a request in flight.
    fn make_room(&mut self, network: IpAddr, settings: &Settings) -> bool {
        let own = Class::Unauthenticated(network);
        let per_address = settings.max_unauthenticated_per_address.max(1);
        if self.count(|entry| entry.class == own) >= per_address {
            return self.shed_idle(|entry| entry.class == own);
        }
        let is_unauthenticated = |entry: &Entry| matches!(entry.class, Class::Unauthenticated(_));
        if self.count(is_unauthenticated) < settings.max_unauthenticated.max(1) {
            return true;
        }
        let greediest = self.greediest(|entry| is_unauthenticated(entry) && entry.busy == 0);
        greediest.is_some_and(|class| self.shed_idle(|entry| entry.class == class))
    }

    /// The class with the most connections that `is` holds for.
    fn greediest(&self, is: impl Fn(&Entry) -> bool) -> Option<Class> {
        let mut counts: BTreeMap<&Class, usize> = BTreeMap::new();
        for entry in self.entries.values().filter(|entry| is(entry)) {
            *counts.entry(&entry.class).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(class, _)| class.clone())
    }

    /// Makes the connection one of `holder`, if its kind (hosts or clients) has fewer than `most`.
    fn authenticate(&mut self, id: u64, holder: &Holder, most: usize) -> Result<(), NoSlot> {
        let own = Class::Authenticated(holder.clone());
        // If the entry is absent, the connection was closed meanwhile.
        if self.entries.get(&id).is_none_or(|entry| entry.class == own) {
            return Ok(());
        }
        let is_host = *holder == Holder::Host;
        let others = |entry: &Entry| match &entry.class {
            Class::Authenticated(holder) => (*holder == Holder::Host) == is_host,
            Class::Unauthenticated(_) | Class::Reserve => false,
        };
        loop {
            let held = self.count(|entry| entry.class == own);
            let taken = self.count(others);
            let Err(refused) = may_take(holder, held, taken, most.max(1)) else { break };
            if self.shed_idle(|entry| entry.class == own) {
                continue;
            }
            // From other holders only if they have more connections.
            let greediest = self.greediest(|entry| others(entry) && entry.busy == 0);
            let greediest =
                greediest.filter(|class| self.count(|entry| entry.class == *class) > held);
            if !greediest.is_some_and(|class| self.shed_idle(|entry| entry.class == class)) {
                return Err(refused);
            }
        }
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.class = own;
        }
        Ok(())
    }
}

/// Why a connection may not be used for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoConnection {
    /// There is no slot for it among the authenticated ones.
    #[error("there is no slot for this connection: {0}; close connections, or try again later")]
    Slot(NoSlot),
    /// It is in the reserve.
    #[error(
        "all connections without a key are busy; this one only serves `/healthz` and requests with \
         a key; try again later"
    )]
    Reserve,
}

/// The slot of a connection, which is an extension of each of its requests ([`axum::Extension`]). It
/// is freed when the connection ends.
#[derive(Clone, Debug)]
pub struct ConnectionSlot(Arc<Own>);

#[derive(Debug)]
struct Own {
    id: u64,
    of: Slots,
    closed: Arc<Notify>,
}

impl Drop for Own {
    fn drop(&mut self) {
        self.of.table().entries.remove(&self.id);
    }
}

impl ConnectionSlot {
    /// Makes the connection one of `holder`, because a request with a valid key came over it. Each
    /// interface must call this, or its connections stay few and brief. An interface without keys calls
    /// it for every complete request.
    ///
    /// # Errors
    /// Errors if the holder has its share of the connections, or all are taken, and none of those
    /// is idle. The request should be refused with the error; the connection stays as it was.
    pub fn authenticate(&self, holder: &Holder) -> Result<(), NoConnection> {
        let most = match holder {
            Holder::Host => OF_HOSTS_MAX,
            Holder::Operator | Holder::Client(_) => self.0.of.0.settings.max_connections,
        };
        let authenticated = self.0.of.table().authenticate(self.0.id, holder, most);
        authenticated.map_err(NoConnection::Slot)
    }

    /// Notes that the client is a host, which it has proved by its certificate. If too many connections are
    /// those of hosts, its requests are refused.
    pub(crate) fn authenticate_peer(&self) {
        self.with(|entry| entry.is_peer = true);
        // Each request tries it again, and is refused with the error.
        let _ = self.authenticate(&Holder::Host);
    }

    /// Whether it is the connection of another host, which has proved that by a certificate of the
    /// cluster's CA.
    #[must_use]
    pub fn is_peer(&self) -> bool {
        self.with(|entry| entry.is_peer).unwrap_or_default()
    }

    /// Checks that a request without a key that is not a health check may use the connection.
    ///
    /// # Errors
    /// Errors if the connection is in the reserve, which is for health checks and for requests that
    /// authenticate it. It is closed after one request.
    pub fn check_unauthenticated(&self) -> Result<(), NoConnection> {
        if self.is_in_reserve() { Err(NoConnection::Reserve) } else { Ok(()) }
    }

    /// Whether it is closed after one request.
    pub(crate) fn is_in_reserve(&self) -> bool {
        self.with(|entry| entry.class == Class::Reserve).unwrap_or(false)
    }

    /// Notes that the client has sent something.
    pub(crate) fn note_received(&self) {
        self.with(|entry| entry.is_silent = false);
    }

    /// Whether its client is authenticated.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.with(|entry| matches!(entry.class, Class::Authenticated(_))).unwrap_or_default()
    }

    /// Has the connection count as busy until the guard is dropped.
    pub(crate) fn busy(&self) -> Busy {
        self.with(|entry| entry.busy += 1);
        Busy(self.clone())
    }

    /// Returns when the connection is shed.
    pub(crate) async fn shed(&self) {
        self.0.closed.notified().await;
    }

    /// How long the connection may still be quiet; `None` if it is busy.
    pub(crate) fn quiet_left(&self) -> Option<Duration> {
        let settings = &self.0.of.0.settings;
        self.with(|entry| {
            let most = match entry.class {
                Class::Authenticated(_) => settings.idle_timeout,
                Class::Unauthenticated(_) | Class::Reserve => settings.head_timeout,
            };
            (entry.busy == 0).then(|| most.saturating_sub(now() - entry.quiet_since))
        })
        .flatten()
    }

    /// The shorter of the two times that a connection may be quiet.
    pub(crate) fn quiet_min(&self) -> Duration {
        let settings = &self.0.of.0.settings;
        settings.idle_timeout.min(settings.head_timeout)
    }

    fn with<T>(&self, use_entry: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.0.of.table().entries.get_mut(&self.0.id).map(use_entry)
    }
}

/// While this exists, its connection is not idle.
#[derive(Debug)]
pub(crate) struct Busy(ConnectionSlot);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.with(|entry| {
            entry.busy = entry.busy.saturating_sub(1);
            entry.quiet_since = now();
        });
    }
}

/// What counts as one address: an IPv4 address, also if it is mapped to IPv6, or an IPv6 network.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << NETWORK_BITS);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address @ IpAddr::V4(_) => address,
    }
}
