//! Which host functions may have effects outside of this process, and therefore need the
//! [lease](crate::lease::Lease) of their host.
//!
//! The rule, for every ABI:
//!
//! - A function that never waits reaches nothing outside: contexts, clocks, random numbers, the log,
//!   spans, metrics, scratch, the cache, progress and status. An embedder declares such functions as
//!   `instant`. [`SEND_AT_ONCE`] lists the exceptions.
//! - A function that may wait, or blocks a thread, may have effects outside: HTTP, secrets (a store of
//!   secrets may create one), asks, signals, and the embedder's own functions. [`WAIT_INSIDE`] lists
//!   the exceptions.
//! - WASI waits for time and for its own streams, because a guest has no files and no sockets.
//!   [`WASI_SENDS`] lists the exceptions. A grant of files or sockets belongs there.
//!
//! A response that has arrived is read without a lease, because its request was sent under one.

use super::Class;

/// What a call can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nothing outside of this process: it begins in any case.
    Inside,
    /// Something outside of this process, or another entity: it begins only under a valid lease.
    Outside,
}

/// Modules and names of functions that do not wait for what they send.
pub const SEND_AT_ONCE: [(&str, &str); 1] = [("wasi:http/outgoing-handler", "handle")];

/// Modules and names of functions that may wait and reach nothing outside.
pub const WAIT_INSIDE: [(&str, &str); 5] = [
    // It yields to other guests between two pieces.
    ("env", "host_hash_stream"),
    // A pure function of the spec that the guest passes.
    ("env", "host_evaluate_spec"),
    ("sandglass:integration/http", "[method]incoming-response.read"),
    ("sandglass:integration/http@0.2", "[read]response.body"),
    ("sandglass:integration/timer@0.2", "sleep"),
];

/// Modules and names of functions of WASI that wait for what they send.
pub const WASI_SENDS: [(&str, &str); 2] =
    [("wasi:http/client@0.3", "send"), ("wasi:http/client@0.3", "[write]request.body")];

impl Reach {
    /// What a function that guests import as `field` from `module` can reach.
    pub(super) fn of(module: &str, field: &str, class: Class) -> Self {
        let is_in = |list: &[(&str, &str)]| list.contains(&(module, field));
        let is_outside = match class {
            Class::Instant => is_in(&SEND_AT_ONCE),
            Class::Async | Class::Blocking if module.starts_with("wasi") => is_in(&WASI_SENDS),
            Class::Async | Class::Blocking => !is_in(&WAIT_INSIDE),
        };
        if is_outside { Self::Outside } else { Self::Inside }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_wait_reaches_outside_unless_the_rule_excepts_it() {
        let of =
            |module, field| [Class::Instant, Class::Async].map(|of| Reach::of(module, field, of));
        let usual = [Reach::Inside, Reach::Outside];
        assert_eq!(of("env", "host_http_call"), usual);
        assert_eq!(of("acme:crm/contacts", "find"), usual);
        assert_eq!(Reach::of("acme:crm/contacts", "find", Class::Blocking), Reach::Outside);
        assert_eq!(of("wasi:io/poll", "poll"), [Reach::Inside; 2]);
        assert_eq!(of("wasi_snapshot_preview1", "poll_oneoff"), [Reach::Inside; 2]);
        assert_eq!(of("env", "host_hash_stream"), [Reach::Inside; 2]);
        assert_eq!(of("wasi:http/client@0.3", "send"), usual);
        assert_eq!(of("wasi:http/client@0.3", "[write]request.body"), usual);
        assert_eq!(of("wasi:http/client@0.3", "[read]response.body"), [Reach::Inside; 2]);
        let handle = Reach::of("wasi:http/outgoing-handler", "handle", Class::Instant);
        assert_eq!(handle, Reach::Outside);
    }
}
