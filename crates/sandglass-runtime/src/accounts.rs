//! Of which runs the journal keeps an account: what they did, call by call.

use sandglass_model::{Account, OutcomeKind, RunReport, TraceId};

/// Of how many runs that completed one is accounted for, unless said otherwise: enough to
/// see what a healthy one does, and 1 % of what all of them would take.
pub const ACCOUNTS_ONE_IN: u32 = 100;

/// Of those that completed, one in so many; none where it is 0. Of those that didn't, all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accounts {
    pub(crate) one_in: u32,
}

impl Default for Accounts {
    fn default() -> Self {
        Self { one_in: ACCOUNTS_ONE_IN }
    }
}

impl Accounts {
    pub(crate) fn of(self, report: &RunReport) -> Option<Box<Account>> {
        let is_kept =
            report.outcome.kind() != OutcomeKind::Completed || self.samples(report.trace.trace_id);
        is_kept.then(|| Box::new(Account::of(report)))
    }

    /// By the trace, as OpenTelemetry's `TraceIdRatioBased` samples: whoever exports the
    /// same share of traces has the accounts of just those.
    fn samples(self, trace: TraceId) -> bool {
        let low = trace.as_bytes().last_chunk().map_or(0, |low| u64::from_be_bytes(*low));
        self.one_in > 0 && low >> 1 < (1 << 63) / u64::from(self.one_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(one_in: u32) -> usize {
        // Evenly spread over all 64-bit numbers.
        let traces = (0..10_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let traces =
            traces.map(|low| TraceId::from_bytes((u128::from(low) | 1 << 100).to_be_bytes()));
        traces.filter(|trace| Accounts { one_in }.samples(*trace)).count()
    }

    #[test]
    fn one_in_so_many_is_sampled_and_none_of_zero() {
        assert_eq!((sampled(0), sampled(1)), (0, 10_000));
        assert!((50..200).contains(&sampled(100)), "{}", sampled(100));
    }
}
