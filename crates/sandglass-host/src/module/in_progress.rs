//! Has each module compiled by one of those of a tenant who ask for it at the same time; the
//! others wait for what comes of that. (A compile of another tenant's may be in that one's line.)

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_model::Rejection;
use tokio::sync::watch;

use super::{Compiled, Key};

/// What comes of a compile.
pub(crate) type Made = Result<Arc<Compiled>, Rejection>;

/// The compiles that are under way: as many as there are callers who load at a time.
#[derive(Default)]
pub(crate) struct Flights(Mutex<UnderWay>);

type UnderWay = BTreeMap<TenantKey, watch::Receiver<Option<Made>>>;

/// Which module, and the tenant it is compiled for.
type TenantKey = (Key, Arc<str>);

/// What somebody finds who asks for a module.
pub(crate) enum Boarding {
    /// It was compiled before.
    There(Arc<Compiled>),
    /// Nobody compiles it, so whoever asked is to do it.
    First(Flight),
    /// Somebody does.
    Behind(Landing),
}

/// One compile, to be done by whoever holds this. Dropped without, the next who asks
/// does it.
pub(crate) struct Flight {
    flights: Arc<Flights>,
    key: TenantKey,
    teller: watch::Sender<Option<Made>>,
}

/// What will come of somebody else's compile.
pub(crate) struct Landing(watch::Receiver<Option<Made>>);

impl Flights {
    /// Where `tenant` can have the module of `key`, which may be `there`.
    pub(crate) fn board(
        self: &Arc<Self>,
        key: Key,
        tenant: &Arc<str>,
        there: impl FnOnce() -> Option<Arc<Compiled>>,
    ) -> Boarding {
        let key = (key, Arc::clone(tenant));
        let mut under_way = self.lock();
        if let Some(landing) = under_way.get(&key) {
            return Boarding::Behind(Landing(landing.clone()));
        }
        // Asked under the lock: a compile that has just ended is there.
        if let Some(compiled) = there() {
            return Boarding::There(compiled);
        }
        let (teller, landing) = watch::channel(None);
        under_way.insert(key.clone(), landing);
        Boarding::First(Flight { flights: Arc::clone(self), key, teller })
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        // Each change is made whole before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// Tells the others what came of it.
    pub(crate) fn land(self, made: Made) -> Made {
        self.teller.send_replace(Some(made.clone()));
        made
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.key);
    }
}

impl Landing {
    /// What came of it; nothing where it was given up, and is to be asked for again.
    pub(crate) async fn landed(mut self) -> Option<Made> {
        self.0.wait_for(Option::is_some).await.ok()?.clone()
    }
}
