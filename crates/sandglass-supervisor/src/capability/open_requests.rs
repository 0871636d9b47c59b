//! The bounds on open requests of guests. Each request occupies a file descriptor, of which a process
//! has few: one handler run, integration or tenant must not leave the others, or the clients of the
//! host itself, without any.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::http::{HttpError, Sender};

use crate::sync::lock;

/// Most open requests of one handler run.
pub const OF_RUN_MAX: u32 = 16;

/// One tenant may have open one in this many of the host's requests.
const OF_TENANT: u32 = 2;

/// One integration may have open one in this many of the host's requests, for one tenant.
const OF_INTEGRATION: u32 = 4;

/// The open requests of a host.
#[derive(Debug)]
pub struct OpenRequests {
    max: u32,
    open: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: u32,
    tenants: BTreeMap<Arc<str>, u32>,
    integrations: BTreeMap<Sender, u32>,
}

/// One open request, until it is dropped.
#[derive(Debug)]
pub struct OpenRequest {
    host: Arc<OpenRequests>,
    sender: Sender,
    of_run: Arc<AtomicU32>,
}

impl OpenRequests {
    /// The open requests of a host, of which there may be `max`.
    pub fn new(max: u32) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// Opens a request of `sender`, in a handler run that has `of_run` open.
    pub fn open(
        self: &Arc<Self>,
        sender: &Sender,
        of_run: &Arc<AtomicU32>,
    ) -> Result<OpenRequest, HttpError> {
        let of_run_max = OF_RUN_MAX.min(self.max);
        let fits = |open: u32| (open < of_run_max).then_some(open + 1);
        if of_run.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return Err(HttpError::TooManyRequests(format!(
                "the handler has {of_run_max} open requests, which is the limit; read or drop a \
                 response first"
            )));
        }
        // From here on, dropping it undoes all counts.
        let request = OpenRequest {
            host: Arc::clone(self),
            sender: sender.clone(),
            of_run: Arc::clone(of_run),
        };
        let mut open = lock(&self.open);
        let of_tenant = count_one_more(&mut open.tenants, &sender.tenant);
        let of_integration = count_one_more(&mut open.integrations, sender);
        open.all += 1;
        let all = open.all;
        drop(open);
        let part = |of: u32| (self.max / of).max(1);
        let (whose, most) = if of_integration > part(OF_INTEGRATION) {
            ("this integration has", part(OF_INTEGRATION))
        } else if of_tenant > part(OF_TENANT) {
            ("this tenant has", part(OF_TENANT))
        } else if all > self.max {
            ("the handlers of this host have", self.max)
        } else {
            return Ok(request);
        };
        Err(HttpError::TooManyRequests(format!(
            "{whose} {most} open requests, which is the limit; try again later"
        )))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.of_run.fetch_sub(1, Ordering::Relaxed);
        let mut open = lock(&self.host.open);
        open.all -= 1;
        count_one_less(&mut open.tenants, &self.sender.tenant);
        count_one_less(&mut open.integrations, &self.sender);
    }
}

/// Adds one to the count of `key`, and returns the new count.
fn count_one_more<K: Ord + Clone>(counts: &mut BTreeMap<K, u32>, key: &K) -> u32 {
    let count = counts.entry(key.clone()).or_default();
    *count += 1;
    *count
}

/// Subtracts one from the count of `key`. A count of zero is removed.
fn count_one_less<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(tenant: &str, integration: &str) -> Sender {
        Sender { tenant: tenant.into(), integration: integration.into() }
    }

    /// Opens requests of many runs until one is refused; returns them, and the refusal.
    fn fill(host: &Arc<OpenRequests>, sender: &Sender) -> (Vec<OpenRequest>, String) {
        let mut open = Vec::new();
        loop {
            match host.open(sender, &Arc::default()) {
                Ok(request) => open.push(request),
                Err(error) => return (open, error.to_string()),
            }
        }
    }

    #[test]
    fn one_run_has_at_most_sixteen_open_requests() {
        let host = OpenRequests::new(1000);
        let of_run = Arc::default();
        let open: Vec<_> =
            (0..OF_RUN_MAX).map(|_| host.open(&sender("a", "x"), &of_run).expect("room")).collect();
        let refused = host.open(&sender("a", "x"), &of_run).expect_err("too many").to_string();
        assert!(refused.contains("16 open requests"), "{refused}");
        drop(open);
        host.open(&sender("a", "x"), &of_run).expect("they were closed");
    }

    #[test]
    fn shares_are_bounded_and_closed_requests_are_not_counted() {
        let host = OpenRequests::new(100);
        let (first, why) = fill(&host, &sender("a", "x"));
        assert!(first.len() == 25 && why.contains("this integration"), "{} {why}", first.len());
        let (second, _) = fill(&host, &sender("a", "y"));
        let (third, why) = fill(&host, &sender("a", "z"));
        assert!(second.len() == 25 && third.is_empty() && why.contains("this tenant"), "{why}");
        let (fourth, _) = fill(&host, &sender("b", "x"));
        let (fifth, _) = fill(&host, &sender("c", "x"));
        let (none, why) = fill(&host, &sender("d", "x"));
        assert!(fourth.len() == 25 && fifth.len() == 25 && none.is_empty(), "{why}");
        assert!(why.contains("of this host"), "{why}");
        drop((first, second, third, fourth, fifth));
        let counts = lock(&host.open);
        assert_eq!((counts.all, counts.tenants.len(), counts.integrations.len()), (0, 0, 0));
    }
}
