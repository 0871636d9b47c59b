//! Handlers that begin on their caller's thread, because the last ones of their module were brief.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, DispatchLimits, Host, HostCall, HostError, HostFunction,
    Integration, Manifest, Outcome, Settings,
};
use sandglass_model::{Cause, GuestLimits};

/// Does what `next` returns: `spin` for ever, `count` for some time and call `next` again, or return.
const OBEYS: &str = r#"(module
    (import "acme:own/functions" "next" (func $next (param i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32) (local $counted i32)
        (loop $again
            (drop (call $next (i32.const 4096) (i32.const 1024)))
            (if (i32.eq (i32.load8_u (i32.const 4096)) (i32.const 115)) (then (loop (br 0))))
            (if (i32.eq (i32.load8_u (i32.const 4096)) (i32.const 99)) (then
                (local.set $counted (i32.const 100000000))
                (loop $count
                    (local.set $counted (i32.sub (local.get $counted) (i32.const 1)))
                    (br_if $count (local.get $counted)))
                (br $again))))
        i32.const 0))"#;

/// How many handlers have to be brief before the next one begins on its caller's thread.
const BRIEF_IN_A_ROW: usize = 16;
const LONG: Duration = Duration::from_secs(60);

/// What handlers are to do, and the threads on which they asked.
#[derive(Debug, Default)]
struct Orders {
    orders: Mutex<VecDeque<&'static str>>,
    threads: Mutex<Vec<ThreadId>>,
}

impl Orders {
    /// The threads on which handlers asked since the last call of this.
    fn threads(&self) -> Vec<ThreadId> {
        std::mem::take(&mut *self.threads.lock().expect("no panic"))
    }
}

struct Fixture {
    host: Host,
    guest: Integration,
    orders: Arc<Orders>,
}

impl Fixture {
    fn new(manifest: Manifest) -> Self {
        // More than a handler uses that does nothing, on a busy machine and without optimization.
        Self::with(manifest, Duration::from_secs(10), 1)
    }

    fn with(manifest: Manifest, brief_handler: Duration, max_runs: u32) -> Self {
        let orders = Arc::<Orders>::default();
        let function = HostFunction::asynchronous("acme:own/functions", "next", {
            let orders = Arc::clone(&orders);
            move |_call: HostCall| {
                let orders = Arc::clone(&orders);
                async move {
                    orders.threads.lock().expect("no panic").push(thread::current().id());
                    let order = orders.orders.lock().expect("no panic").pop_front();
                    if order == Some("wait") {
                        std::future::pending::<()>().await;
                    }
                    Ok::<String, HostError>(order.unwrap_or("brief").to_owned())
                }
            }
        });
        let settings = Settings { max_runs, max_asking: 0, brief_handler, ..Settings::default() };
        let host = Host::builder().settings(settings).function(function).build().expect("a host");
        let manifest = manifest.functions(["acme:own/functions.next".to_owned()]);
        let guest = host.load(OBEYS.as_bytes(), manifest).expect("a guest");
        Self { host, guest, orders }
    }

    /// As many brief handlers as are needed.
    async fn be_brief(&self) {
        for _ in 0..BRIEF_IN_A_ROW {
            self.run(LONG, &[]).await;
        }
        self.orders.threads();
    }

    /// Dispatches handlers that do this, until one begins on this thread, and returns the threads on
    /// which that one asked; `None` if none begins here. One whose first slice ends before it asks,
    /// because the machine is busy, does not.
    async fn begins_here(&self, orders: &[&'static str]) -> Option<Vec<ThreadId>> {
        for _ in 0..100 {
            self.run(LONG, orders).await;
            let threads = self.orders.threads();
            if threads[0] == thread::current().id() {
                return Some(threads);
            }
        }
        None
    }

    /// Dispatches a handler that does this and does not end, and waits until it has asked for that. It
    /// ends when the result is dropped.
    async fn begin(&self, order: &'static str) -> Pin<Box<dyn Future<Output = Cause> + '_>> {
        let mut running = Box::pin(async move { self.run(LONG, &[order]).await });
        while self.orders.threads().is_empty() {
            tokio::select! {
                biased;
                cause = &mut running => panic!("it ended: {cause:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        running
    }

    /// Dispatches a handler that does this; returns its cause.
    async fn run(&self, budget: Duration, orders: &[&'static str]) -> Cause {
        self.orders.orders.lock().expect("no panic").extend(orders);
        let report = self.host.run_from_here(&self.guest, dispatch(budget)).await.expect("it ran");
        report.cause
    }
}

fn dispatch(budget: Duration) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(budget))
}

/// Whether half of the cores are at least one.
fn may_begin_here() -> bool {
    thread::available_parallelism().is_ok_and(|cores| cores.get() > 1)
}

#[tokio::test]
async fn a_handler_begins_on_the_callers_thread_once_its_module_was_brief_often_enough() {
    let fixture = Fixture::new(Manifest::named("obeys"));
    for _ in 0..BRIEF_IN_A_ROW {
        assert_eq!(fixture.run(LONG, &[]).await, Cause::Returned);
    }
    let own = thread::current().id();
    assert!(!fixture.orders.threads().contains(&own), "nothing was known of the module");
    assert_eq!(fixture.begins_here(&[]).await.is_some(), may_begin_here());
}

#[tokio::test]
async fn a_handler_that_is_not_brief_any_more_goes_on_elsewhere_after_one_slice() {
    let fixture = Fixture::new(Manifest::named("obeys"));
    fixture.be_brief().await;
    let threads = fixture.begins_here(&["count"]).await;
    assert_eq!(threads.is_some(), may_begin_here());
    let own = thread::current().id();
    assert!(threads.is_none_or(|threads| threads[1] != own), "the caller got its thread back");
}

#[tokio::test]
async fn a_spinner_is_killed_in_time_and_leaves_the_caller_its_thread() {
    let fixture = Fixture::new(Manifest::named("obeys"));
    fixture.be_brief().await;
    let mut running = pin!(fixture.run(Duration::from_millis(200), &["spin"]));
    let mut turns = 0;
    let cause = loop {
        tokio::select! {
            biased;
            cause = &mut running => break cause,
            () = tokio::task::yield_now() => turns += 1,
        }
    };
    assert_eq!(cause, Cause::Deadline);
    // In place, it would yield once in each of its slices.
    assert!(turns > 1_000, "this task got {turns} turns");
    fixture.orders.threads();
    fixture.run(LONG, &[]).await;
    let own = thread::current().id();
    assert_ne!(fixture.orders.threads(), [own], "the last handler was not brief");
}

#[tokio::test]
async fn handlers_begin_elsewhere_as_long_as_an_earlier_one_spins() {
    let fixture = Fixture::with(Manifest::named("obeys"), Duration::from_secs(10), 2);
    fixture.be_brief().await;
    let _spinning = fixture.begin("spin").await;
    fixture.run(LONG, &[]).await;
    assert_ne!(fixture.orders.threads(), [thread::current().id()], "the module spins");
}

#[tokio::test]
async fn a_handler_that_waits_does_not_keep_others_from_the_callers_thread() {
    let fixture = Fixture::with(Manifest::named("obeys"), Duration::from_secs(10), 2);
    fixture.be_brief().await;
    let _waiting = fixture.begin("wait").await;
    assert_eq!(fixture.begins_here(&[]).await.is_some(), may_begin_here());
}

#[tokio::test]
async fn a_handler_with_much_memory_never_begins_on_the_callers_thread() {
    let limits = GuestLimits { memory_bytes: (64 << 20) + 1, ..GuestLimits::default() };
    let fixture = Fixture::new(Manifest::named("obeys").limits(limits));
    fixture.be_brief().await;
    fixture.run(LONG, &[]).await;
    assert!(!fixture.orders.threads().contains(&thread::current().id()));
}

#[tokio::test]
async fn a_dispatch_that_raises_the_memory_limit_does_not_begin_on_the_callers_thread() {
    let manifest = Manifest { max_memory_bytes: Some(128 << 20), ..Manifest::named("obeys") };
    let fixture = Fixture::new(manifest);
    fixture.be_brief().await;
    let limits = DispatchLimits { memory_bytes: Some((64 << 20) + 1), ..DispatchLimits::default() };
    let raised = dispatch(LONG).limits(limits);
    let report = fixture.host.run_from_here(&fixture.guest, raised).await.expect("it ran");
    assert_eq!(report.cause, Cause::Returned);
    assert!(!fixture.orders.threads().contains(&thread::current().id()));
}

#[tokio::test]
async fn no_handler_begins_on_the_callers_thread_if_none_is_brief() {
    let fixture = Fixture::with(Manifest::named("obeys"), Duration::ZERO, 1);
    fixture.be_brief().await;
    fixture.run(LONG, &[]).await;
    assert!(!fixture.orders.threads().contains(&thread::current().id()));
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_a_handler_that_began_on_its_thread() {
    let fixture = Fixture::new(Manifest::named("obeys"));
    fixture.be_brief().await;
    let waiting = fixture.begin("wait").await;
    drop(waiting);
    // The only slot is free again.
    let report = fixture.host.run_from_here(&fixture.guest, dispatch(LONG)).await.expect("it ran");
    assert!(!matches!(report.outcome, Outcome::TimedOut(_) | Outcome::Rejected(_)), "{report:?}");
}
