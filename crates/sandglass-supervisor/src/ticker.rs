//! The thread that wakes whatever must look at the clock: guests that spin, by
//! advancing the epoch, and host calls that wait, by their wakers.
//!
//! It decides nothing. A tick says "look"; whether a deadline has passed is read
//! off the monotonic clock by the thread that runs the guest.
//!
//! ```text
//!              nothing armed, no guest on a CPU
//!                 +--------- parked <--------+
//!   arm / enter   |                          | idle for some slices
//!                 v                          |
//!        sleep to the earliest of: next deadline, next slice, refire
//!                 |
//!                 +--> increment the epochs, wake the overdue
//! ```

mod scheduling;
mod simulated;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread;
use std::time::Duration;

use sandglass_model::{Clock, Monotonic, SystemClock};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::Health;
use tokio::task::AbortHandle;

pub use simulated::{Simulated, wait};

use crate::kernel::KernelFeatures;
use crate::run::Run;

/// How long a guest runs before others get a turn: short handlers wait for few
/// of these, and one costs a spinning guest well under a thousandth of it.
pub const SLICE: Duration = Duration::from_millis(1);

/// How soon an overdue run is woken again, until it is disarmed: an epoch that
/// is incremented while a store updates its own deadline is lost on that store.
const REFIRE: Duration = Duration::from_millis(1);

/// How many slices pass with no guest on a CPU before the thread stops slicing:
/// enough that steady short handlers don't wake it each time.
const IDLE_SLICES: u32 = 4;

/// How late the thread may be before it counts as stalled. Far above what a
/// loaded machine delays a thread, far below what a deadline can bear.
const STALL: Duration = Duration::from_secs(1);

/// How long after its deadline a run that has not ended counts as one that cannot be killed. Kills
/// land within milliseconds, so it is a fault of the host.
const OVERDUE: Duration = Duration::from_secs(1);

/// Whether deadlines are being kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickerHealth {
    /// The thread wakes when it should.
    Healthy,
    /// The thread should have woken some time ago.
    Stalled {
        /// By how much it is late.
        late: Duration,
    },
    /// The thread has ended.
    Dead,
}

/// What is advanced at each tick. Held weakly, so that the thread keeps no
/// engine alive.
pub trait Epoch: Send + Sync {
    /// Makes every guest look at the clock; false when there is none any more.
    fn increment(&self) -> bool;
}

/// The thread that wakes what must check the clock, and the runs that it watches.
pub struct Ticker {
    shared: Arc<Shared>,
    kernel: KernelFeatures,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    /// The clock of deadlines where that is simulated: timers on it take the place of the
    /// thread, which then only slices the time of guests that compute.
    simulated: Option<Simulated>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    schedule: Mutex<Schedule>,
    wake: Condvar,
    /// When the thread means to be awake next, in nanoseconds of the clock.
    next_wake: AtomicU64,
    /// Guests on a CPU at this moment.
    on_cpu: AtomicUsize,
    slicing: AtomicBool,
    alive: AtomicBool,
    /// Runs that are a second or more past their deadline.
    kills_overdue: AtomicUsize,
}

#[derive(Default)]
struct Schedule {
    armed: BTreeMap<Key, Watched>,
    epochs: Vec<Box<dyn Epoch>>,
    next_id: u64,
    ending: bool,
}

/// When a run is woken, and a number, so that no two are the same.
type Key = (Monotonic, u64);

/// A run that is woken.
struct Watched {
    run: Weak<Run>,
    /// When it is woken next, where this time it is only to tell that it still runs.
    then: Option<Monotonic>,
}

/// A deadline that is watched, until this is dropped.
pub struct Armed(WatchedBy);

enum WatchedBy {
    Thread {
        ticker: Arc<Ticker>,
        key: Key,
        /// Where the deadline stands once the run has been woken to tell.
        moved: Option<Key>,
    },
    Timer(AbortHandle),
}

/// A guest on a CPU, until this is dropped.
pub struct OnCpu<'a>(&'a Shared);

impl fmt::Debug for Armed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Armed").finish_non_exhaustive()
    }
}

impl fmt::Debug for OnCpu<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnCpu").finish_non_exhaustive()
    }
}

impl Ticker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start(
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        wanted: KernelFeatures,
    ) -> std::io::Result<Arc<Self>> {
        let shared = Arc::new(Shared {
            clock,
            metrics,
            schedule: Mutex::default(),
            wake: Condvar::new(),
            next_wake: AtomicU64::new(Monotonic::NEVER.as_nanos()),
            on_cpu: AtomicUsize::new(0),
            slicing: AtomicBool::new(false),
            alive: AtomicBool::new(true),
            kills_overdue: AtomicUsize::new(0),
        });
        let (tell, granted) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name("sandglass-ticker".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                let _ended = EndedFlag(&shared);
                // Whoever starts this thread waits for that.
                let _ = tell.send(scheduling::prefer_punctuality(wanted));
                shared.run();
            }
        })?;
        let kernel = granted.recv().unwrap_or(KernelFeatures::NONE);
        let thread = Mutex::new(Some(thread));
        Ok(Arc::new(Self { shared, kernel, thread, simulated: None }))
    }

    /// The same for deadlines on `clock`, which goes on only while nothing runs.
    ///
    /// # Errors
    /// As [`Ticker::start`].
    pub fn start_simulated(simulated: Simulated, metrics: Metrics) -> std::io::Result<Arc<Self>> {
        let ticker = Self::start(Arc::new(SystemClock::new()), metrics, KernelFeatures::NONE)?;
        let mut ticker = Arc::into_inner(ticker).expect("nobody else has it yet");
        ticker.simulated = Some(simulated);
        Ok(Arc::new(ticker))
    }

    /// The time that deadlines are in, where it is simulated.
    pub const fn simulated(&self) -> Option<&Simulated> {
        self.simulated.as_ref()
    }

    /// Whether deadlines are in simulated time.
    pub const fn is_simulated(&self) -> bool {
        self.simulated.is_some()
    }

    /// Adds an engine whose epoch is advanced at each tick.
    pub fn drive(&self, epoch: Box<dyn Epoch>) {
        self.shared.schedule().epochs.push(epoch);
    }

    /// Watches the deadline of `run`, which must have begun; and before it `notice`, where
    /// that comes first and the run is to tell then that it still runs.
    pub fn arm(self: &Arc<Self>, run: &Arc<Run>, notice: Option<Monotonic>) -> Armed {
        let deadline = run.deadline();
        match notice.filter(|notice| *notice < deadline) {
            // One place in the schedule for both: most runs end before either.
            Some(notice) => self.arm_then(run, notice, Some(deadline)),
            None => self.arm_then(run, deadline, None),
        }
    }

    /// Wakes what `run` waits in as soon as `deadline` has passed.
    pub fn arm_at(self: &Arc<Self>, run: &Arc<Run>, deadline: Monotonic) -> Armed {
        self.arm_then(run, deadline, None)
    }

    fn arm_then(self: &Arc<Self>, run: &Arc<Run>, at: Monotonic, then: Option<Monotonic>) -> Armed {
        if let Some(Simulated { clock, .. }) = &self.simulated {
            return Armed(WatchedBy::Timer(simulated::watch(Arc::clone(clock), run, at, then)));
        }
        let mut schedule = self.shared.schedule();
        let key = (at, schedule.next_id);
        let moved = then.map(|then| (then, schedule.next_id));
        schedule.next_id += 1;
        schedule.armed.insert(key, Watched { run: Arc::downgrade(run), then });
        let earlier = at.as_nanos() < self.shared.next_wake.load(Ordering::Acquire)
            && self.shared.promise(at.max(self.shared.clock.now()));
        drop(schedule);
        if earlier {
            self.shared.wake.notify_one();
        }
        Armed(WatchedBy::Thread { ticker: Arc::clone(self), key, moved })
    }

    /// Marks a guest as being on a CPU, so that its time is sliced.
    pub fn enter_cpu(&self) -> OnCpu<'_> {
        let shared = &*self.shared;
        shared.on_cpu.fetch_add(1, Ordering::SeqCst);
        // Looked at before it is written: most guests find it set.
        let is_sliced = shared.slicing.load(Ordering::SeqCst);
        if !is_sliced && !shared.slicing.swap(true, Ordering::SeqCst) {
            // The lock orders this against a thread that is about to park.
            let schedule = shared.schedule();
            shared.promise(shared.clock.now().after(SLICE));
            drop(schedule);
            shared.wake.notify_one();
        }
        OnCpu(shared)
    }

    /// What the kernel does for the thread.
    pub const fn kernel(&self) -> KernelFeatures {
        self.kernel
    }

    /// Whether the thread keeps time.
    pub fn health(&self) -> TickerHealth {
        self.health_at(self.shared.clock.now())
    }

    /// The same for somebody who has just looked at the clock of deadlines.
    pub fn health_at(&self, now: Monotonic) -> TickerHealth {
        let shared = &*self.shared;
        let now = if self.is_simulated() { shared.clock.now() } else { now };
        if !shared.alive.load(Ordering::Acquire) {
            return TickerHealth::Dead;
        }
        let promised = Monotonic::from_nanos(shared.next_wake.load(Ordering::Acquire));
        let late = now.since(promised);
        if late > STALL { TickerHealth::Stalled { late } } else { TickerHealth::Healthy }
    }

    /// How many runs are more than a second past their deadline, and have not ended.
    pub fn kills_overdue(&self) -> usize {
        self.shared.kills_overdue.load(Ordering::Acquire)
    }

    /// Ends the thread and waits for it.
    pub fn end(&self) {
        self.shared.schedule().ending = true;
        self.shared.wake.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // A thread that panicked has said so through `alive`.
            drop(thread.join());
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Ticker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticker").field("health", &self.health()).finish_non_exhaustive()
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        match &self.0 {
            WatchedBy::Thread { ticker, key, moved } => {
                let mut schedule = ticker.shared.schedule();
                if schedule.armed.remove(key).is_none()
                    && let Some(moved) = moved
                {
                    schedule.armed.remove(moved);
                }
                let shared = &ticker.shared;
                if shared.kills_overdue.load(Ordering::Acquire) > 0 {
                    // The thread may not wake for this any more.
                    shared.note_overdue(schedule.kills_overdue(shared.clock.now()));
                }
            }
            WatchedBy::Timer(timer) => timer.abort(),
        }
    }
}

impl Drop for OnCpu<'_> {
    fn drop(&mut self) {
        self.0.on_cpu.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Says that the thread has ended, however it ended.
struct EndedFlag<'a>(&'a Shared);

impl Drop for EndedFlag<'_> {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
        self.0.metrics.ticker_health(Health::Unhealthy);
    }
}

impl Schedule {
    /// The runs that are to be woken `now`. Those that are only to tell that they still run
    /// are told so, and watched from now on until their deadlines.
    fn overdue(&mut self, now: Monotonic) -> Vec<Arc<Run>> {
        let mut moved: Vec<Key> = Vec::new();
        let mut runs = Vec::new();
        for (key, watched) in self.armed.range(..(now, 0)) {
            let Some(run) = watched.run.upgrade() else { continue };
            if watched.then.is_some() {
                run.set_notice_due();
                moved.push(*key);
            }
            runs.push(run);
        }
        for key in moved {
            if let Some(watched) = self.armed.remove(&key)
                && let Some(then) = watched.then
            {
                self.armed.insert((then, key.1), Watched { then: None, ..watched });
            }
        }
        runs
    }

    /// How many runs are more than [`OVERDUE`] past their own deadline.
    fn kills_overdue(&self, now: Monotonic) -> usize {
        let second = u64::try_from(OVERDUE.as_nanos()).unwrap_or(u64::MAX);
        let before = Monotonic::from_nanos(now.as_nanos().saturating_sub(second));
        let late = self.armed.range(..(before, 0)).filter(|((at, _), watched)| {
            // A call's own limit may be earlier than the deadline of its run.
            let run = watched.run.upgrade();
            watched.then.is_none() && run.is_some_and(|run| run.deadline() == *at)
        });
        late.count()
    }
}

impl Shared {
    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises on the thread's behalf that it will be awake at `wake`, so that one that never
    /// wakes is found out; answers whether that is earlier than what it means to do.
    fn promise(&self, wake: Monotonic) -> bool {
        wake.as_nanos() < self.next_wake.fetch_min(wake.as_nanos(), Ordering::AcqRel)
    }

    /// Reports how many runs are overdue, if that has changed.
    fn note_overdue(&self, runs: usize) {
        let before = self.kills_overdue.swap(runs, Ordering::AcqRel);
        if before != runs {
            self.metrics.kills_overdue(runs);
        }
        if before < runs {
            tracing::error!(
                runs,
                "handlers are more than a second past their deadline and have not ended"
            );
        }
    }

    fn run(&self) {
        let mut ticks = Ticks::default();
        let mut schedule = self.schedule();
        while !schedule.ending {
            let now = self.clock.now();
            let wake_at = self.next(&schedule, &mut ticks, now);
            if wake_at <= now {
                schedule = self.tick(schedule, &mut ticks, now, wake_at);
                continue;
            }
            self.next_wake.store(wake_at.as_nanos(), Ordering::Release);
            schedule = if wake_at == Monotonic::NEVER {
                self.wake.wait(schedule).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.wake
                    .wait_timeout(schedule, wake_at.since(now))
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            };
        }
    }

    /// When the next tick is due; `now` or earlier means at once.
    fn next(&self, schedule: &Schedule, ticks: &mut Ticks, now: Monotonic) -> Monotonic {
        let slice = self.next_slice(ticks, now);
        let overdue = schedule.armed.keys().next().is_some_and(|&(at, _)| at < ticks.last);
        let refire = if overdue { ticks.last.after(REFIRE) } else { Monotonic::NEVER };
        let upcoming = schedule.armed.range((ticks.last, 0)..).next();
        // A deadline has passed one nanosecond after it.
        let passes =
            upcoming.map_or(Monotonic::NEVER, |(&(at, _), _)| at.after(Duration::from_nanos(1)));
        passes.min(refire).min(slice)
    }

    fn next_slice(&self, ticks: &mut Ticks, now: Monotonic) -> Monotonic {
        if self.on_cpu.load(Ordering::SeqCst) > 0 {
            ticks.idle_slices = 0;
        } else if ticks.idle_slices >= IDLE_SLICES {
            self.slicing.store(false, Ordering::SeqCst);
            ticks.idle_slices = 0;
            // A guest that came between the two lines saw `slicing` still set.
            if self.on_cpu.load(Ordering::SeqCst) > 0 {
                self.slicing.store(true, Ordering::SeqCst);
            }
        }
        if self.slicing.load(Ordering::SeqCst) {
            ticks.slice_began.get_or_insert(now).after(SLICE)
        } else {
            ticks.slice_began = None;
            Monotonic::NEVER
        }
    }

    fn tick<'a>(
        &'a self,
        mut schedule: MutexGuard<'a, Schedule>,
        ticks: &mut Ticks,
        now: Monotonic,
        due: Monotonic,
    ) -> MutexGuard<'a, Schedule> {
        schedule.epochs.retain(|epoch| epoch.increment());
        let overdue = schedule.overdue(now);
        self.note_overdue(schedule.kills_overdue(now));
        drop(schedule);
        for run in &overdue {
            run.wake();
        }
        self.metrics.tick_lateness(now.since(due));
        if let Some(began) = ticks.slice_began {
            if self.on_cpu.load(Ordering::SeqCst) > 0 {
                self.metrics.tick_interval(now.since(began));
            }
            ticks.idle_slices += u32::from(now >= began.after(SLICE));
            ticks.slice_began = Some(now);
        }
        ticks.last = now;
        self.schedule()
    }
}

/// What the thread remembers from tick to tick.
#[derive(Default)]
struct Ticks {
    last: Monotonic,
    /// When the present slice began; none while no guest runs.
    slice_began: Option<Monotonic>,
    /// Slices that ended with no guest on a CPU, in a row.
    idle_slices: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::DispatchDeadline;
    use std::task::{Wake, Waker};

    /// Longer than any wake-up takes on a busy machine.
    const LONG: Duration = Duration::from_secs(20);

    fn ticker() -> (Arc<Ticker>, Arc<dyn Clock>) {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let ticker = Ticker::start(Arc::clone(&clock), Metrics::disabled(), KernelFeatures::ALL)
            .expect("a thread");
        (ticker, clock)
    }

    /// Tells of each tick.
    struct Told(mpsc::Sender<()>);

    impl Epoch for Told {
        fn increment(&self) -> bool {
            self.0.send(()).is_ok()
        }
    }

    fn watched(ticker: &Ticker) -> mpsc::Receiver<()> {
        let (told, ticks) = mpsc::channel();
        ticker.drive(Box::new(Told(told)));
        ticks
    }

    struct Woken(mpsc::Sender<()>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            // A test that has seen enough is gone.
            let _ = self.0.send(());
        }
    }

    fn begun(clock: &dyn Clock, budget_ms: u64) -> Arc<Run> {
        let run = Arc::new(Run::new());
        run.begin(&DispatchDeadline::after(Duration::from_millis(budget_ms)).start(clock.now()));
        run
    }

    #[test]
    fn a_run_that_waits_is_woken_once_its_deadline_has_passed() {
        let (ticker, clock) = ticker();
        let run = begun(&*clock, 5);
        let (told, woken) = mpsc::channel();
        run.wait_with(&Waker::from(Arc::new(Woken(told))));
        let _armed = ticker.arm(&run, None);
        woken.recv_timeout(LONG).expect("woken");
        assert!(run.due(clock.now()).is_some(), "and not before");
    }

    #[test]
    fn an_overdue_run_is_fired_at_again_until_it_is_disarmed() {
        let (ticker, clock) = ticker();
        let ticks = watched(&ticker);
        let run = begun(&*clock, 1);
        let armed = ticker.arm(&run, None);
        for _ in 0..5 {
            ticks.recv_timeout(LONG).expect("a tick");
        }
        drop(armed);
        // At most the one that was under way; after it nobody is fired at.
        let more = (0..100).take_while(|_| ticks.recv_timeout(REFIRE * 100).is_ok()).count();
        assert!(more < 100, "it fires for ever");
    }

    #[test]
    fn a_run_that_does_not_end_is_overdue_a_second_after_its_own_deadline() {
        let (ticker, clock) = ticker();
        let ticks = watched(&ticker);
        let run = begun(&*clock, 1);
        let (armed, calls) = (ticker.arm(&run, None), begun(&*clock, 600_000));
        // The limit of a call, of a run that has time left.
        let _call = ticker.arm_at(&calls, run.deadline());
        assert_eq!(ticker.kills_overdue(), 0);
        while ticker.kills_overdue() == 0 {
            ticks.recv_timeout(LONG).expect("a tick");
        }
        assert!(clock.now().since(run.deadline()) >= OVERDUE, "and not before");
        assert_eq!(ticker.kills_overdue(), 1);
        drop(armed);
        assert_eq!(ticker.kills_overdue(), 0, "it has ended");
    }

    #[test]
    fn a_later_deadline_is_kept_beside_one_that_is_overdue() {
        let (ticker, clock) = ticker();
        let overdue = begun(&*clock, 1);
        let _armed = ticker.arm(&overdue, None);
        let run = begun(&*clock, 30);
        let (told, woken) = mpsc::channel();
        run.wait_with(&Waker::from(Arc::new(Woken(told))));
        let _also = ticker.arm(&run, None);
        woken.recv_timeout(LONG).expect("woken");
    }

    #[test]
    fn a_run_is_woken_to_tell_that_it_still_runs_and_again_at_its_deadline() {
        let (ticker, clock) = ticker();
        let run = begun(&*clock, 40);
        let (told, woken) = mpsc::channel();
        let waker = Waker::from(Arc::new(Woken(told)));
        run.wait_with(&waker);
        let notice = clock.now().after(Duration::from_millis(5));
        let armed = ticker.arm(&run, Some(notice));
        woken.recv_timeout(LONG).expect("woken");
        assert!(run.take_notice(), "to tell");
        assert!(clock.now() > notice, "and not before");
        run.wait_with(&waker);
        woken.recv_timeout(LONG).expect("woken again");
        assert!(run.due(clock.now()).is_some(), "at its deadline");
        assert!(!run.take_notice(), "that was told");
        drop(armed);
        assert!(ticker.shared.schedule().armed.is_empty(), "it is watched in one place");
    }

    #[test]
    fn a_run_that_ends_before_it_is_to_tell_leaves_nothing_behind() {
        let (ticker, clock) = ticker();
        let run = begun(&*clock, 60_000);
        let armed = ticker.arm(&run, Some(clock.now().after(LONG)));
        drop(armed);
        assert!(ticker.shared.schedule().armed.is_empty());
        assert!(!run.take_notice());
    }

    #[test]
    fn slices_come_while_a_guest_is_on_a_cpu_and_end_with_it() {
        let (ticker, _clock) = ticker();
        let ticks = watched(&ticker);
        assert!(ticks.recv_timeout(SLICE * 50).is_err(), "parked");
        let on_cpu = ticker.enter_cpu();
        for _ in 0..5 {
            ticks.recv_timeout(LONG).expect("a slice");
        }
        drop(on_cpu);
        // A few idle slices, and then it parks.
        while ticker.shared.slicing.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let _again = ticker.enter_cpu();
        ticks.recv_timeout(LONG).expect("it slices again");
    }

    #[test]
    fn an_engine_that_is_gone_is_forgotten() {
        let (ticker, _clock) = ticker();
        drop(watched(&ticker));
        let _on_cpu = ticker.enter_cpu();
        let ticks = watched(&ticker);
        for _ in 0..3 {
            ticks.recv_timeout(LONG).expect("a slice");
        }
        assert_eq!(ticker.shared.schedule().epochs.len(), 1);
    }

    #[test]
    fn a_thread_that_the_kernel_does_nothing_for_keeps_deadlines_too() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let ticker = Ticker::start(Arc::clone(&clock), Metrics::disabled(), KernelFeatures::NONE);
        let ticker = ticker.expect("a thread");
        assert_eq!(ticker.kernel(), KernelFeatures::NONE);
        let run = begun(&*clock, 5);
        let (told, woken) = mpsc::channel();
        run.wait_with(&Waker::from(Arc::new(Woken(told))));
        let _armed = ticker.arm(&run, None);
        woken.recv_timeout(LONG).expect("woken");
    }

    #[test]
    fn a_thread_that_ended_is_dead() {
        let (ticker, _clock) = ticker();
        assert_eq!(ticker.health(), TickerHealth::Healthy);
        ticker.end();
        assert_eq!(ticker.health(), TickerHealth::Dead);
    }

    /// A clock that a test sets.
    #[derive(Debug, Default)]
    struct SetClock(AtomicU64);

    impl Clock for SetClock {
        fn now(&self) -> Monotonic {
            Monotonic::from_nanos(self.0.load(Ordering::SeqCst))
        }

        fn wall(&self) -> sandglass_model::WallTime {
            sandglass_model::WallTime::default()
        }
    }

    #[test]
    fn a_thread_that_does_not_wake_is_stalled() {
        let clock = Arc::new(SetClock::default());
        let shown: Arc<dyn Clock> = clock.clone();
        let ticker =
            Ticker::start(shown, Metrics::disabled(), KernelFeatures::ALL).expect("a thread");
        let run = begun(&*clock, 1);
        // The thread waits for a deadline that this clock never reaches by itself,
        // and isn't woken when the clock is set past it.
        let _armed = ticker.arm(&run, None);
        let passed = run.deadline().after(STALL);
        clock.0.store(passed.as_nanos(), Ordering::SeqCst);
        assert_eq!(ticker.health(), TickerHealth::Healthy, "it may be a little late");
        let held = ticker.shared.schedule();
        // Later by more than what the thread may have promised a moment ago.
        clock.0.store(passed.after(STALL * 2).as_nanos(), Ordering::SeqCst);
        assert!(matches!(ticker.health(), TickerHealth::Stalled { .. }));
        drop(held);
    }
}
