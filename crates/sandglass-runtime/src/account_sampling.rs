//! Of which handlers the journal keeps an account, which lists their calls.

use sandglass_model::{Account, OutcomeKind, RunReport, TraceId};

/// One in how many completed handlers has an account by default: enough to see what a healthy one
/// does, at 1 % of the space.
pub const ACCOUNTS_ONE_IN: u32 = 100;

/// Keeps an account of one in `one_in` completed handlers (of none, if it is 0), and of all others:
/// those that did not complete, and those that completed although a call or a request failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccountSampling {
    pub(crate) one_in: u32,
}

impl Default for AccountSampling {
    fn default() -> Self {
        Self { one_in: ACCOUNTS_ONE_IN }
    }
}

impl AccountSampling {
    pub(crate) fn of(self, report: &RunReport) -> Option<Box<Account>> {
        let is_kept = report.outcome.kind() != OutcomeKind::Completed
            || has_failed_call(report)
            || self.samples(report.trace.trace_id);
        is_kept.then(|| Box::new(Account::of(report)))
    }

    /// By the trace, as OpenTelemetry's `TraceIdRatioBased` samples: an exporter that keeps the
    /// same share of traces has exactly the traces of these accounts.
    fn samples(self, trace: TraceId) -> bool {
        let low = trace.as_bytes().last_chunk().map_or(0, |low| u64::from_be_bytes(*low));
        self.one_in > 0 && low >> 1 < (1 << 63) / u64::from(self.one_in)
    }
}

/// Whether a host call that can wait failed, or a request.
fn has_failed_call(report: &RunReport) -> bool {
    let mut functions = report.host_calls.by_function.iter();
    functions.any(|calls| calls.failed.count > 0 || calls.timed_out.count > 0)
        || report.story.requests.iter().any(|request| request.error.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandglass_model::{
        Calls, Cause, Completion, DispatchId, FunctionCalls, Outcome, TraceContext,
    };

    fn sampled(one_in: u32) -> usize {
        // Evenly spread over all 64-bit numbers.
        let traces = (0..10_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let traces =
            traces.map(|low| TraceId::from_bytes((u128::from(low) | 1 << 100).to_be_bytes()));
        traces.filter(|trace| AccountSampling { one_in }.samples(*trace)).count()
    }

    #[test]
    fn a_completed_handler_in_which_a_call_failed_has_an_account() {
        let completed = Outcome::Completed(Completion::default());
        let mut report = RunReport::new(
            DispatchId::from_bytes([1; 16]),
            TraceContext::root([1; 24]),
            completed,
            Cause::Returned,
        );
        let never = AccountSampling { one_in: 0 };
        let calls = |failed: u64| FunctionCalls {
            name: "host_http_call".into(),
            count: 2,
            total_us: 2,
            in_flight: false,
            failed: Calls { count: failed, total_us: failed },
            timed_out: Calls::default(),
            parked: Calls::default(),
        };
        report.host_calls.by_function = vec![calls(0)];
        assert!(never.of(&report).is_none());
        report.host_calls.by_function.push(calls(1));
        assert!(never.of(&report).is_some());
    }

    #[test]
    fn one_in_n_is_sampled_and_none_if_n_is_zero() {
        assert_eq!((sampled(0), sampled(1)), (0, 10_000));
        assert!((50..200).contains(&sampled(100)), "{}", sampled(100));
    }
}
