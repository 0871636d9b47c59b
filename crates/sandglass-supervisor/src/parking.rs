//! Holds back host calls with effects outside while the lease of their host has run out.
//!
//! ```text
//! guest --> park --+--> valid: the call begins, and its time limit with it
//!                  +--> past the deadline, or stopped: end the run; the call never begins
//!                  +--> past the soft deadline, or requested to stop: the call ends with that error
//! ```
//!
//! A call whose guest goes on ([`crate::suspended`]) begins, and is parked before it has effects: its
//! time limit begins with it.
//!
//! Recordings do not mention parking, and a replay never parks: a recorded run that ended while it was
//! parked ended before its next call.

use crate::boundary::Stopped;
use crate::functions::{FunctionId, Reach};
use crate::race::{CallEnded, Race};
use crate::recording::RunRecording;
use crate::supervision::Supervision;
use sandglass_telemetry::metrics::Level;

/// What the names of [`parked_span`] begin with.
const PARKED: &str = "parked:";

/// The name of what a run does, or dies in, while a call of `function` waits for the lease.
#[must_use]
pub fn parked_span(function: &str) -> String {
    format!("{PARKED}{function}")
}

/// Whether this is the name of a call that waits for the lease.
#[must_use]
pub fn is_parked_span(span: &str) -> bool {
    span.starts_with(PARKED)
}

impl Supervision {
    /// Whether a call of `function` must [wait](Supervision::park) before it begins. Without a
    /// cluster, it costs one load and one comparison.
    #[inline]
    #[must_use]
    pub fn must_park(&self, function: FunctionId) -> bool {
        !self.watch.lease.is_valid()
            && self.calls.functions.reach(function) == Reach::Outside
            && !matches!(self.calls.recording, RunRecording::Replaying(_))
    }

    /// Waits until a call of `function` may begin. If it is to end before it begins, although the run
    /// goes on, the [race](Race) of the call ends it.
    ///
    /// # Errors
    /// The run must end.
    #[cold]
    pub async fn park(&mut self, function: FunctionId) -> Result<(), Stopped> {
        self.calls.accounting.arrive();
        let since = self.check()?;
        let name = self.calls.functions.name(function);
        let lease = self.watch.lease.clone();
        let parked = (lease.count_parked(), self.calls.metrics.hold(Level::ParkedCalls));
        self.watch.parked = Some(function);
        self.watch.run.present.parks(function, since);
        // No call is under way, so this race has no time limit of a call.
        let race = Race::inside(self);
        let valid = async {
            lease.valid().await;
            Ok::<_, CallEnded>(())
        };
        let waited = race.call(valid).await;
        drop(parked);
        let now = self.watch.clock.now();
        let time = now.since(since);
        self.calls.accounting.park(function, time);
        self.calls.metrics.host_call_parked(name, time);
        // The race notes this again when the call ends.
        self.watch.cut_before = waited.and_then(Result::err);
        self.watch.run.take_call_ended();
        self.check()?;
        self.watch.parked = None;
        self.watch.run.present.in_guest(self.watch.phase, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use sandglass_model::{CallPlace, Cause, EndPoint, Monotonic};

    use super::*;
    use crate::deadline::DispatchDeadline;
    use crate::functions::{Class, Functions, Reads};
    use crate::lease::Lease;
    use crate::run_clock::RunClock;
    use crate::testing::{SetClock, functions};

    /// A run with a lease of its own that has run out, and the function that it calls.
    struct Parked {
        clock: Arc<SetClock>,
        lease: Lease,
        run: Supervision,
        send: FunctionId,
    }

    impl Parked {
        fn new() -> Self {
            let clock = Arc::new(SetClock::at(1_000));
            let lease = Lease::expired_on(Arc::new(SetClock::at(1_000)));
            let (functions, [send]) = functions(["host_http_call"]);
            let mut run = Supervision::idle();
            run.watch.clock = RunClock::new(clock.clone());
            run.watch.lease = lease.clone();
            run.calls.functions = Arc::new(functions);
            let deadline = DispatchDeadline::after(Duration::from_secs(1));
            run.run().begin(&deadline.start(Monotonic::from_nanos(1_000)));
            Self { clock, lease, run, send }
        }

        fn extend(&self) {
            self.lease.extend(self.lease.now().after(Duration::from_secs(1)));
        }
    }

    fn poll<T>(wait: &mut Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        wait.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_call_waits_until_the_lease_is_extended_and_its_time_is_counted() {
        let Parked { clock, lease, mut run, send } = Parked::new();
        assert!(run.must_park(send));
        let shared = Arc::clone(run.run());
        let functions = Arc::clone(&run.calls.functions);
        {
            let mut wait = pin!(run.park(send));
            assert!(poll(&mut wait).is_pending());
            assert_eq!(lease.parked(), 1);
            assert_eq!(shared.present.read(&functions).0.as_str(), "parked:host_http_call");
            clock.set(Monotonic::from_nanos(6_000));
            assert!(poll(&mut wait).is_pending());
            lease.extend(lease.now().after(Duration::from_secs(1)));
            assert!(matches!(poll(&mut wait), Poll::Ready(Ok(()))));
        }
        assert_eq!(lease.parked(), 0);
        assert!(!run.must_park(send));
        assert_eq!(run.calls(), 0, "it has not begun");
        run.enter(send, |_| {}).expect("the run goes on");
        assert_eq!(run.dying_span().name, "host_http_call");
        let report = run.finish(Monotonic::from_nanos(1_000), Monotonic::from_nanos(7_000));
        let [calls] = report.host_calls.by_function.as_slice() else { panic!("{report:?}") };
        assert_eq!((calls.count, calls.total_us), (1, 1));
        assert_eq!((calls.parked.count, calls.parked.total_us), (1, 5));
        assert_eq!(report.in_host, Duration::from_micros(6));
    }

    #[test]
    fn a_run_that_ends_while_it_waits_never_begins_the_call() {
        for cause in [Cause::Deadline, Cause::OwnershipLost] {
            let Parked { clock, lease, mut run, send } = Parked::new();
            let shared = Arc::clone(run.run());
            {
                let mut wait = pin!(run.park(send));
                assert!(poll(&mut wait).is_pending());
                match cause {
                    Cause::Deadline => clock.set(Monotonic::from_nanos(2_000_000_000)),
                    cause => assert_eq!(shared.stop(cause, ""), cause),
                }
                // The lease comes too late.
                lease.extend(lease.now().after(Duration::from_secs(1)));
                let Poll::Ready(Err(Stopped(ended))) = poll(&mut wait) else {
                    panic!("it must end")
                };
                assert_eq!(ended, cause);
            }
            let dying = run.take_dying_span();
            assert_eq!((dying.name.as_str(), dying.call), ("parked:host_http_call", None));
            assert_eq!(run.point(), EndPoint { place: CallPlace::Before, call: 1 });
            let report = run.finish(Monotonic::default(), Monotonic::from_nanos(2_000_000_000));
            assert_eq!(report.host_calls.count, 0);
            assert_eq!(report.host_calls.by_function[0].parked.count, 1);
            assert!(report.story.calls.is_empty(), "{report:?}");
        }
    }

    #[tokio::test]
    async fn a_stop_request_ends_the_call_before_it_begins_and_the_next_call_waits_again() {
        let Parked { lease, mut run, send, .. } = Parked::new();
        let shared = Arc::clone(run.run());
        {
            let mut wait = pin!(run.park(send));
            assert!(poll(&mut wait).is_pending());
            shared.request_stop();
            assert!(matches!(poll(&mut wait), Poll::Ready(Ok(()))));
        }
        run.enter(send, |_| {}).expect("the run goes on");
        let race = Race::of(&run);
        let never = async { panic!("the call begins") };
        let ended = race.call::<(), CallEnded>(never).await;
        assert_eq!(ended, Some(Err(CallEnded::StopRequested)));
        let now = run.now();
        run.leave(now, false).expect("the run goes on");
        let report = run.calls.accounting.calls(&run.calls.functions, Monotonic::default()).0;
        assert_eq!(report[0].outcome, sandglass_model::CallOutcome::CutShort);

        // A call after the request may use the time that is left, once there is a lease.
        assert!(run.must_park(send));
        {
            let mut wait = pin!(run.park(send));
            assert!(poll(&mut wait).is_pending());
            lease.extend(lease.now().after(Duration::from_secs(1)));
            assert!(matches!(poll(&mut wait), Poll::Ready(Ok(()))));
        }
        run.enter(send, |_| {}).expect("the run goes on");
        let race = Race::of(&run);
        let called = race.call::<_, CallEnded>(std::future::ready(Ok(7))).await;
        assert_eq!(called, Some(Ok(7)));
    }

    #[test]
    fn calls_that_reach_nothing_outside_and_those_under_a_lease_do_not_wait() {
        let mut parked = Parked::new();
        let mut functions = Functions::default();
        let mut add = |name: &'static str, class| {
            functions.add("env", name, name.to_owned(), class, Reads::Numbers)
        };
        let log = add("host_log", Class::Instant);
        let hash = add("host_hash_stream", Class::Async);
        let work = add("Work", Class::Blocking);
        parked.run.calls.functions = Arc::new(functions);
        let must = |parked: &Parked| [log, hash, work].map(|one| parked.run.must_park(one));
        assert_eq!(must(&parked), [false, false, true]);
        parked.extend();
        assert_eq!(must(&parked), [false; 3]);
        parked.run.watch.lease = Lease::default();
        assert_eq!(must(&parked), [false; 3]);
    }
}
