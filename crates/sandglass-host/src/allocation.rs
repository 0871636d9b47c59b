//! Where the instances of a module come from.

/// Where the instances of a module come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Allocation {
    /// From a slot of the pool, which is ready: the usual.
    Pooled,
    /// Made for each run, because the module may be larger than a slot: it has more
    /// memories, tables or modules, a larger state, or is granted more memory. Such runs
    /// take several times as long to start, and there may be few at once
    /// ([`Settings::max_on_demand`](crate::Settings::max_on_demand)).
    OnDemand,
}
