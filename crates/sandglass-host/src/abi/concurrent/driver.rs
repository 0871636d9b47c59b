//! Drives a guest with tasks: polls its event loop and what its calls wait for, delivers completions at
//! its points, and drops all of it when the run must end.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use sandglass_model::{Clock, Monotonic};
use sandglass_supervisor::in_flight::{Delivery, InFlight};
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
            let polled = self
                .poll(context, &waker, || guest.as_mut().poll(&mut Context::from_waker(&of_guest)));
            if polled.is_pending() && waker.yields() {
                // It is polled again, after others.
                context.waker().wake_by_ref();
            }
            polled
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
            waker.yields.store(false, Ordering::Relaxed);
            if let Poll::Ready(result) = Thread::Polls.during(&mut guest) {
                return Poll::Ready(Driven::Ended(result));
            }
            self.run.wait_with(context.waker());
            if self.run.has_notice() {
                // The waker was not stored when the notice became due.
                context.waker().wake_by_ref();
            }
            let (now, yields) = (self.clock.now(), waker.yields());
            if self.run.due(now).is_some() {
                return Poll::Ready(Driven::MustEnd { now, yields });
            }
            self.in_flight.poll(context, now, self.run.is_stop_requested());
            if self.in_flight.is_interrupted() || self.run.present.is_in_call() {
                return Poll::Pending;
            }
            match Thread::Delivers.during(|| self.in_flight.deliver(yields, now)) {
                Delivery::Delivered => {}
                Delivery::AtEnd | Delivery::Differs => {
                    return Poll::Ready(Driven::MustEnd { now, yields });
                }
                Delivery::Nothing => {
                    if !yields {
                        self.run.present.waits(now);
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}

/// What the driver on this thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    /// It polls the guest: what wakes the guest on this thread is the guest itself.
    Polls,
    /// It delivers a completion, and polls the guest next.
    Delivers,
    Nothing,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread::Nothing) };
}

impl Thread {
    fn during<T>(self, act: impl FnOnce() -> T) -> T {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                THREAD.set(Thread::Nothing);
            }
        }
        THREAD.set(self);
        let _reset = Reset;
        act()
    }
}

/// Wakes the task of the guest, and notes whether the guest itself has asked for that: then it yields.
#[derive(Default)]
struct GuestWaker {
    task: Mutex<Option<Waker>>,
    yields: AtomicBool,
}

impl GuestWaker {
    fn set(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    fn yields(&self) -> bool {
        self.yields.load(Ordering::Relaxed)
    }
}

impl Wake for GuestWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match THREAD.get() {
            Thread::Polls => self.yields.store(true, Ordering::Relaxed),
            Thread::Delivers => {}
            Thread::Nothing => {
                let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(task) = task {
                    task.wake();
                }
            }
        }
    }
}
