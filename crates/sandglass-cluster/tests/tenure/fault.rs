//! Faults that are planted to show that the simulation finds them: defects of a tenure, of its
//! shell or of the statements, each as a change around the real code.

/// One planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The lease is measured from the response to the beat instead of from before it was sent.
    LeaseFromResponse,
    /// The lease is measured on a clock that stands still while the host is paused.
    StandingClock,
    /// Other hosts are declared dead after an outage, without having been observed anew.
    NoNewObservation,
    /// A host is declared dead after half a TTL.
    EarlyDeclaration,
    /// A host is declared dead after the TTL of the observer, which is shorter than its own.
    OwnTtl,
    /// A host is declared dead although it has beaten since.
    BlindDeclaration,
    /// Partitions of live hosts are claimed, and the statement does not check the owner.
    ClaimOfLive,
    /// A claim does not check the epoch.
    ClaimOfAnyEpoch,
    /// A claim does not increment the epoch.
    SameEpoch,
    /// Each host believes that it is the home of everything that it can see.
    TwoHomes,
    /// A partition is served again after a statement that gives it away had an unknown outcome.
    KeptAfterRelease,
    /// A statement that gives a partition away takes effect after it was claimed again.
    LateRelease,
    /// Partitions are given away while a handler is in flight.
    ReleaseInFlight,
    /// A host that was declared dead may beat.
    BeatOfDead,
    /// A host that was declared dead continues with what it holds, under its new id.
    NoDisown,
    /// What this process owns without holding it is left as it is.
    LostClaim,
    /// A read that was sent before a claim disowns what the claim obtained.
    StaleRead,
    /// Silent hosts are never declared dead.
    NoDeclaration,
    /// A beat that hangs is given up after a TTL.
    LongBeat,
    /// A refused connection counts at once, although the host may beat.
    HastyRefusal,
    /// A host that does not run the active generation claims what is free.
    ClaimOfLaggard,
}

impl Fault {
    pub(crate) const ALL: [Self; 21] = [
        Self::LeaseFromResponse,
        Self::StandingClock,
        Self::NoNewObservation,
        Self::EarlyDeclaration,
        Self::OwnTtl,
        Self::BlindDeclaration,
        Self::ClaimOfLive,
        Self::ClaimOfAnyEpoch,
        Self::SameEpoch,
        Self::TwoHomes,
        Self::KeptAfterRelease,
        Self::LateRelease,
        Self::ReleaseInFlight,
        Self::BeatOfDead,
        Self::NoDisown,
        Self::LostClaim,
        Self::StaleRead,
        Self::NoDeclaration,
        Self::LongBeat,
        Self::HastyRefusal,
        Self::ClaimOfLaggard,
    ];
}
