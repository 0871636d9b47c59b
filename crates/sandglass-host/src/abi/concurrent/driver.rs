//! Drives a guest with tasks: polls its event loop and what its calls wait for, delivers completions at
//! its points, and drops all of it when the run must end.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use sandglass_model::{Clock, Monotonic};
use sandglass_supervisor::in_flight::{Delivery, InFlight, in_guest, is_in_guest};
use sandglass_supervisor::run::Run;
use wasmtime::Store;

use crate::store::RunStore;

/// Executes `call`, which calls into the guest, to its end.
///
/// # Errors
/// Those of `call`; the run had to end; or the guest of a replay waits for nothing that is recorded.
pub(crate) async fn drive<T>(
    store: &mut Store<RunStore>,
    in_flight: &InFlight,
    call: impl AsyncFnOnce(&mut Store<RunStore>) -> wasmtime::Result<T>,
) -> wasmtime::Result<T> {
    let run = Arc::clone(store.data().run());
    let clock = Arc::clone(store.data().clock().shared());
    let driven = {
        let guest = pin!(call(store));
        let driver = Driver { run: &run, clock: &*clock, in_flight };
        let driven = driver.drive(guest).await;
        // Before the guest is dropped: its calls are not cancelled by it.
        in_flight.close();
        driven
    };
    match driven {
        Driven::Ended(result) => result,
        Driven::MustEnd { now, yields } => Err(store.data_mut().end_between(now, yields).into()),
    }
}

/// How the drive of a guest ended.
enum Driven<T> {
    Ended(wasmtime::Result<T>),
    /// The guest waits or yields, and its run must end now.
    MustEnd {
        now: Monotonic,
        yields: bool,
    },
}

struct Driver<'a> {
    run: &'a Run,
    clock: &'a dyn Clock,
    in_flight: &'a InFlight,
}

impl Driver<'_> {
    async fn drive<T>(
        &self,
        mut guest: Pin<&mut impl Future<Output = wasmtime::Result<T>>>,
    ) -> Driven<T> {
        let waker = Arc::new(GuestWaker::default());
        let of_guest = Waker::from(Arc::clone(&waker));
        std::future::poll_fn(|context| {
            waker.set(context.waker());
            self.poll(context, &waker, || guest.as_mut().poll(&mut Context::from_waker(&of_guest)))
        })
        .await
    }

    /// Polls the guest until it waits for something that is not there, or must let others run.
    fn poll<T>(
        &self,
        context: &Context<'_>,
        waker: &GuestWaker,
        mut guest: impl FnMut() -> Poll<wasmtime::Result<T>>,
    ) -> Poll<Driven<T>> {
        loop {
            if let Poll::Ready(result) = in_guest(&mut guest) {
                return Poll::Ready(Driven::Ended(result));
            }
            self.run.wait_with(context.waker());
            let (now, yields) = (self.clock.now(), waker.yields.load(Ordering::Relaxed));
            if self.run.due(now).is_some() {
                return Poll::Ready(Driven::MustEnd { now, yields });
            }
            self.in_flight.poll(context, now, self.run.is_stop_requested());
            if self.in_flight.is_interrupted() || self.run.present.is_in_call() {
                // This is no point, so whether the guest yields is found only later.
                return Poll::Pending;
            }
            waker.yields.store(false, Ordering::Relaxed);
            if waker.is_woken.swap(false, Ordering::Relaxed) && !yields {
                // Something of the guest is ready: this is no point yet.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            match waker.while_delivering(|| self.in_flight.deliver(yields, now)) {
                Delivery::Delivered => {}
                Delivery::AtEnd | Delivery::Differs => {
                    return Poll::Ready(Driven::MustEnd { now, yields });
                }
                Delivery::Nothing => {
                    if yields {
                        // It is polled again, after others.
                        context.waker().wake_by_ref();
                    } else {
                        self.run.present.waits(now);
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}

/// Wakes the task of the guest, and notes what its event loop wakes while it is polled. The loop wakes
/// the waker that it was passed if it yields, and a clone of it, which that consumes, if one of its
/// futures is ready. The second may be left out if the future was woken before, so only the first is
/// the same in a replay.
#[derive(Default)]
struct GuestWaker {
    task: Mutex<Option<Waker>>,
    /// Whether the guest yields.
    yields: AtomicBool,
    /// Whether one of its futures is ready.
    is_woken: AtomicBool,
    /// Whether a completion is delivered, after which the guest is polled in any case.
    is_delivering: AtomicBool,
}

impl GuestWaker {
    fn set(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    fn while_delivering<T>(&self, deliver: impl FnOnce() -> T) -> T {
        self.is_delivering.store(true, Ordering::Relaxed);
        let delivered = deliver();
        self.is_delivering.store(false, Ordering::Relaxed);
        delivered
    }

    fn wake_task(&self) {
        if !self.is_delivering.load(Ordering::Relaxed) {
            let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(task) = task {
                task.wake();
            }
        }
    }
}

impl Wake for GuestWaker {
    fn wake(self: Arc<Self>) {
        match is_in_guest() {
            true => self.is_woken.store(true, Ordering::Relaxed),
            false => self.wake_task(),
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match is_in_guest() {
            true => self.yields.store(true, Ordering::Relaxed),
            false => self.wake_task(),
        }
    }
}
