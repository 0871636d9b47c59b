//! Each injected fault is found within a few seeds, by an invariant that covers it.

use sandglass_sim::{Fault, Invariant, Options, shortest, simulate};

/// Seeds within which each fault must be found.
const SEEDS: u64 = 20;

/// The invariants that a fault may break first.
const fn broken_by(fault: Fault) -> &'static [Invariant] {
    match fault {
        Fault::LostDisarm => &[Invariant::NoIdleInFlight],
        Fault::LateSuccess => &[Invariant::TrueEnding],
        Fault::EarlyAnswer => &[Invariant::DurableFirst],
        Fault::DoubledDispatch => &[Invariant::AtMostOnce],
        Fault::LostTimer => &[Invariant::NobodyStuck],
        Fault::WrongPosition => &[Invariant::AppendsFit],
        Fault::FalseSync => &[
            Invariant::AcknowledgedOnce,
            Invariant::AppendsFit,
            Invariant::StateIsFold,
            Invariant::NobodyStuck,
        ],
        Fault::TornBatch => &[
            Invariant::ReplayAgrees,
            Invariant::OneDecision,
            Invariant::OneStop,
            Invariant::NobodyStuck,
            Invariant::CountedOnce,
        ],
        Fault::SwappedRecords => &[
            Invariant::ReplayAgrees,
            Invariant::AtMostOnce,
            Invariant::DurableFirst,
            Invariant::OneStop,
            Invariant::WithinBounds,
            Invariant::CountedOnce,
        ],
        Fault::OtherDecision => &[
            Invariant::ReplayAgrees,
            Invariant::DurableFirst,
            Invariant::WithinBounds,
            Invariant::AtMostOnce,
        ],
        Fault::BusyTask => &[Invariant::NobodyStuck],
        Fault::LostActivity => &[Invariant::TrulySilent],
        Fault::DoubledCall => &[Invariant::CountedOnce],
        Fault::LostSpawn | Fault::LostQuota => &[Invariant::SpawnedOnce],
        Fault::FalseRead => &[Invariant::TrueReads],
        Fault::StaleEpoch => &[Invariant::OneOwnerAppends, Invariant::AppendsFit],
        Fault::LeaseByWallClock | Fault::EarlyTakeover | Fault::UnparkedZombie => {
            &[Invariant::NoEffectPastLease]
        }
        Fault::ResentAppend => &[Invariant::RequestOnce, Invariant::AskOnce, Invariant::AppendsFit],
        Fault::SkippingReader => &[Invariant::FedOnce],
        Fault::WriteOverLoss => &[
            Invariant::LostIsReported,
            Invariant::AppendsFit,
            Invariant::StateIsFold,
            Invariant::NobodyStuck,
        ],
        Fault::ClaimAfterOutage => &[Invariant::NoNeedlessDeath],
    }
}

/// The seed to begin with. Worlds in which entities multiply are rare, and those in which a host is silent
/// for between a half and a whole TTL, and then acts.
const fn first_seed(fault: Fault) -> u64 {
    match fault {
        Fault::EarlyTakeover => 20,
        Fault::LostQuota => 80,
        _ => 0,
    }
}

#[test]
fn every_injected_fault_is_found_within_a_few_seeds() {
    for fault in Fault::ALL {
        let options = Options { fault: Some(fault), ..Options::default() };
        let first = first_seed(fault);
        let found = (first..first + SEEDS).find_map(|seed| {
            let violation = simulate(seed, &options).expect("a runtime").violation?;
            Some((seed, violation))
        });
        let (seed, violation) = found.unwrap_or_else(|| panic!("{fault} is not found"));
        let expected = broken_by(fault);
        assert!(expected.contains(&violation.invariant), "{fault}, seed {seed}: {violation}");
    }
}

#[test]
fn a_failure_is_reported_with_its_shortest_simulation_and_the_command_that_reproduces_it() {
    let options = Options { fault: Some(Fault::LateSuccess), ..Options::default() };
    let found = (0..SEEDS).find_map(|seed| {
        let violation = simulate(seed, &options).expect("a runtime").violation?;
        Some((seed, violation))
    });
    let (seed, violation) = found.expect("it is found");
    let failure = shortest(seed, &options, &violation).expect("a runtime");
    assert!(failure.steps <= violation.step);
    assert_eq!(failure.violation.invariant, Invariant::TrueEnding);
    let with = |steps| Options { steps: Some(steps), ..options };
    assert!(simulate(seed, &with(failure.steps)).expect("a runtime").violation.is_some());
    assert_eq!(
        failure.command,
        format!(
            "cargo run -p sandglass-sim -- --seed {seed} --steps {} --fault late-success",
            failure.steps
        )
    );
}
