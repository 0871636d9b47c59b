//! The thread that wakes what must check the clock: guests that spin, by incrementing the epoch, and
//! host calls that wait, by their wakers.
//!
//! It decides nothing. After a tick, the thread that runs the guest reads the monotonic clock and
//! determines whether the deadline has passed. So a late or lost tick delays a kill, but no tick
//! makes one early.
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
use crate::opaque::opaque;
use crate::run::Run;
use crate::sync::lock;

/// How long a guest runs before it yields to others. Short handlers wait for a few slices, and the
/// interruption costs a spinning guest less than a thousandth of its slice.
pub const SLICE: Duration = Duration::from_millis(1);

/// How soon an overdue run is woken again, until it is disarmed. Once is not enough: a store that
/// updates its own epoch deadline at that moment misses the increment
/// (test `an_overdue_run_is_woken_again_until_it_is_disarmed`).
const REFIRE: Duration = Duration::from_millis(1);

/// After how many slices without a guest on a CPU the thread stops slicing: enough that a steady
/// stream of short handlers does not wake it each time.
const IDLE_SLICES: u32 = 4;

/// How late the thread may be before it counts as stalled: far more than a loaded machine delays a
/// thread, and far less than matters to a budget.
const STALL: Duration = Duration::from_secs(1);

/// How long after its deadline a run that has not ended counts as one that cannot be killed. Kills
/// land within milliseconds, so it is a fault of the host.
const OVERDUE: Duration = Duration::from_secs(1);

/// Whether the ticker wakes runs on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickerHealth {
    /// The thread wakes on time.
    Healthy,
    /// The thread has not woken on time.
    Stalled {
        /// How late it is.
        late: Duration,
    },
    /// The thread has ended.
    Dead,
}

/// The epoch of an engine, which each tick increments. Implementations refer to the engine weakly, so
/// that the ticker keeps no engine alive.
pub trait Epoch: Send + Sync {
    /// Makes every guest check the clock. Returns false if the engine is gone.
    fn increment(&self) -> bool;
}

/// The thread that wakes what must check the clock, and the runs that it watches.
pub struct Ticker {
    shared: Arc<Shared>,
    kernel: KernelFeatures,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    /// The clock of deadlines in simulated time: timers on it replace the thread, which then only
    /// slices the time of guests.
    simulated: Option<Simulated>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    schedule: Mutex<Schedule>,
    wake: Condvar,
    /// When the thread wakes next, in nanoseconds of the clock.
    next_wake: AtomicU64,
    /// How many guests are on a CPU.
    on_cpu: AtomicUsize,
    slicing: AtomicBool,
    alive: AtomicBool,
    /// Runs that are a second or more past their deadline.
    kills_overdue: AtomicUsize,
}

#[derive(Default)]
struct Schedule {
    armed: BTreeMap<Key, WatchedRun>,
    epochs: Vec<Box<dyn Epoch>>,
    next_id: u64,
    ending: bool,
}

/// When a run is woken, and a number that makes the key unique.
type Key = (Monotonic, u64);

/// A run to wake.
struct WatchedRun {
    run: Weak<Run>,
    /// When it is woken again, if this time is for its notice only.
    then: Option<Monotonic>,
}

/// A watched deadline, until this is dropped.
pub struct ArmedDeadline(WatchedBy);

enum WatchedBy {
    Thread {
        ticker: Arc<Ticker>,
        key: Key,
        /// The key of the deadline after the run was woken for its notice.
        moved: Option<Key>,
    },
    Timer(AbortHandle),
}

/// A guest on a CPU, until this is dropped.
pub struct OnCpu<'a>(&'a Shared);

opaque!(ArmedDeadline as "ArmedDeadline", OnCpu<'_> as "OnCpu");

impl Ticker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system provides no thread.
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
        let (report, granted) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name("sandglass-ticker".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                let _ended = EndedFlag(&shared);
                // The receiver waits below, so this never fails.
                let _ = report.send(scheduling::prefer_punctuality(wanted));
                shared.run();
            }
        })?;
        let kernel = granted.recv().unwrap_or(KernelFeatures::NONE);
        let thread = Mutex::new(Some(thread));
        Ok(Arc::new(Self { shared, kernel, thread, simulated: None }))
    }

    /// Starts a ticker for deadlines in simulated time, which advances only while nothing runs.
    ///
    /// # Errors
    /// As [`Ticker::start`].
    pub fn start_simulated(simulated: Simulated, metrics: Metrics) -> std::io::Result<Arc<Self>> {
        let ticker = Self::start(Arc::new(SystemClock::new()), metrics, KernelFeatures::NONE)?;
        let mut ticker = Arc::into_inner(ticker).expect("it has no other owner yet");
        ticker.simulated = Some(simulated);
        Ok(Arc::new(ticker))
    }

    /// The simulated time of deadlines, if it is simulated.
    pub const fn simulated(&self) -> Option<&Simulated> {
        self.simulated.as_ref()
    }

    /// Whether deadlines are in simulated time.
    pub const fn is_simulated(&self) -> bool {
        self.simulated.is_some()
    }

    /// Adds an engine whose epoch each tick increments.
    pub fn drive(&self, epoch: Box<dyn Epoch>) {
        self.shared.schedule().epochs.push(epoch);
    }

    /// Watches the deadline of `run`, whose budget must have begun, and `notice`, if that is earlier:
    /// then the run sends its notice that it still runs.
    pub fn arm(self: &Arc<Self>, run: &Arc<Run>, notice: Option<Monotonic>) -> ArmedDeadline {
        let deadline = run.deadline();
        match notice.filter(|notice| *notice < deadline) {
            // One entry of the schedule for both, because most runs end before either.
            Some(notice) => self.arm_then(run, notice, Some(deadline)),
            None => self.arm_then(run, deadline, None),
        }
    }

    /// Wakes the host call that `run` waits in as soon as `deadline` has passed.
    pub fn arm_at(self: &Arc<Self>, run: &Arc<Run>, deadline: Monotonic) -> ArmedDeadline {
        self.arm_then(run, deadline, None)
    }

    fn arm_then(
        self: &Arc<Self>,
        run: &Arc<Run>,
        at: Monotonic,
        then: Option<Monotonic>,
    ) -> ArmedDeadline {
        if let Some(Simulated { clock, .. }) = &self.simulated {
            let timer = simulated::watch(Arc::clone(clock), run, at, then);
            return ArmedDeadline(WatchedBy::Timer(timer));
        }
        let mut schedule = self.shared.schedule();
        let key = (at, schedule.next_id);
        let moved = then.map(|then| (then, schedule.next_id));
        schedule.next_id += 1;
        schedule.armed.insert(key, WatchedRun { run: Arc::downgrade(run), then });
        let earlier = at.as_nanos() < self.shared.next_wake.load(Ordering::Acquire)
            && self.shared.promise(at.max(self.shared.clock.now()));
        drop(schedule);
        if earlier {
            self.shared.wake.notify_one();
        }
        ArmedDeadline(WatchedBy::Thread { ticker: Arc::clone(self), key, moved })
    }

    /// Marks a guest as being on a CPU, so that its time is sliced.
    pub fn enter_cpu(&self) -> OnCpu<'_> {
        let shared = &*self.shared;
        shared.on_cpu.fetch_add(1, Ordering::SeqCst);
        // Read before it is written, because most guests find it set.
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

    /// The kernel features that the thread uses.
    pub const fn kernel(&self) -> KernelFeatures {
        self.kernel
    }

    /// Whether the thread wakes on time.
    pub fn health(&self) -> TickerHealth {
        self.health_at(self.shared.clock.now())
    }

    /// Whether the thread wakes on time, for a caller that has just read the clock of deadlines.
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

    /// How many runs have not ended although they are more than a second past their deadline.
    pub fn kills_overdue(&self) -> usize {
        self.shared.kills_overdue.load(Ordering::Acquire)
    }

    /// Ends the thread and waits for it.
    pub fn end(&self) {
        self.shared.schedule().ending = true;
        self.shared.wake.notify_one();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // `EndedFlag` reports a panic of the thread.
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

impl Drop for ArmedDeadline {
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
                    // The thread may not wake again to update the figure.
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

/// Notes that the thread has ended, even by a panic.
struct EndedFlag<'a>(&'a Shared);

impl Drop for EndedFlag<'_> {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
        self.0.metrics.ticker_health(Health::Unhealthy);
    }
}

impl Schedule {
    /// Returns the runs to wake `now`. Those that are woken for their notice are watched until their
    /// deadlines from now on.
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
                self.armed.insert((then, key.1), WatchedRun { then: None, ..watched });
            }
        }
        runs
    }

    /// How many runs are more than [`OVERDUE`] past their own deadline.
    fn kills_overdue(&self, now: Monotonic) -> usize {
        let second = u64::try_from(OVERDUE.as_nanos()).unwrap_or(u64::MAX);
        let before = Monotonic::from_nanos(now.as_nanos().saturating_sub(second));
        let late = self.armed.range(..(before, 0)).filter(|((at, _), watched)| {
            // The entry may be for the limit of a call, which is earlier than the run's deadline.
            let run = watched.run.upgrade();
            watched.then.is_none() && run.is_some_and(|run| run.deadline() == *at)
        });
        late.count()
    }
}

impl Shared {
    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        lock(&self.schedule)
    }

    /// Notes that the thread must be awake at `wake`, so that `health` detects a thread that never
    /// wakes. Returns whether that is earlier than it would wake anyway.
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

    /// Returns when the next tick is due; `now` or earlier means at once.
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
            // A guest that entered between the two lines has found `slicing` still set.
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

/// The state of the thread between ticks.
#[derive(Default)]
struct Ticks {
    last: Monotonic,
    /// When the present slice began; `None` while no guest runs.
    slice_began: Option<Monotonic>,
    /// Successive slices that ended without a guest on a CPU.
    idle_slices: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::DispatchDeadline;
    use crate::testing::SetClock;
    use std::task::{Wake, Waker};

    /// Longer than a wake-up takes on a busy machine.
    const LONG: Duration = Duration::from_secs(20);

    fn ticker() -> (Arc<Ticker>, Arc<dyn Clock>) {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let ticker = Ticker::start(Arc::clone(&clock), Metrics::disabled(), KernelFeatures::ALL)
            .expect("a thread");
        (ticker, clock)
    }

    /// Reports each tick.
    struct TickSender(mpsc::Sender<()>);

    impl Epoch for TickSender {
        fn increment(&self) -> bool {
            self.0.send(()).is_ok()
        }
    }

    fn watch_ticks(ticker: &Ticker) -> mpsc::Receiver<()> {
        let (sender, ticks) = mpsc::channel();
        ticker.drive(Box::new(TickSender(sender)));
        ticks
    }

    struct Woken(mpsc::Sender<()>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            // The receiver is gone once its test has seen enough.
            let _ = self.0.send(());
        }
    }

    /// A waker for `run` to wait with, and what it reports.
    fn wait_with_waker(run: &Run) -> mpsc::Receiver<()> {
        let (sender, woken) = mpsc::channel();
        run.wait_with(&Waker::from(Arc::new(Woken(sender))));
        woken
    }

    fn begin_run(clock: &dyn Clock, budget_ms: u64) -> Arc<Run> {
        let run = Arc::new(Run::default());
        run.begin(&DispatchDeadline::after(Duration::from_millis(budget_ms)).start(clock.now()));
        run
    }

    #[test]
    fn a_run_that_waits_is_woken_once_its_deadline_has_passed() {
        let (ticker, clock) = ticker();
        let run = begin_run(&*clock, 5);
        let woken = wait_with_waker(&run);
        let _armed = ticker.arm(&run, None);
        woken.recv_timeout(LONG).expect("woken");
        assert!(run.due(clock.now()).is_some(), "and not before");
    }

    #[test]
    fn an_overdue_run_is_woken_again_until_it_is_disarmed() {
        let (ticker, clock) = ticker();
        let ticks = watch_ticks(&ticker);
        let run = begin_run(&*clock, 1);
        let armed = ticker.arm(&run, None);
        for _ in 0..5 {
            ticks.recv_timeout(LONG).expect("a tick");
        }
        drop(armed);
        // One tick may have been under way; after it nothing is woken.
        let more = (0..100).take_while(|_| ticks.recv_timeout(REFIRE * 100).is_ok()).count();
        assert!(more < 100, "it ticks forever");
    }

    #[test]
    fn a_run_that_does_not_end_is_overdue_a_second_after_its_own_deadline() {
        let (ticker, clock) = ticker();
        let ticks = watch_ticks(&ticker);
        let run = begin_run(&*clock, 1);
        let (armed, calls) = (ticker.arm(&run, None), begin_run(&*clock, 600_000));
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
    fn an_overdue_run_does_not_hide_a_later_deadline() {
        let (ticker, clock) = ticker();
        let overdue = begin_run(&*clock, 1);
        let _armed = ticker.arm(&overdue, None);
        let run = begin_run(&*clock, 30);
        let woken = wait_with_waker(&run);
        let _also = ticker.arm(&run, None);
        woken.recv_timeout(LONG).expect("woken");
    }

    #[test]
    fn a_run_is_woken_for_its_notice_and_again_at_its_deadline() {
        let (ticker, clock) = ticker();
        let run = begin_run(&*clock, 40);
        let woken = wait_with_waker(&run);
        let notice = clock.now().after(Duration::from_millis(5));
        let armed = ticker.arm(&run, Some(notice));
        woken.recv_timeout(LONG).expect("woken");
        assert!(run.take_notice(), "its notice is due");
        assert!(clock.now() > notice, "and not before");
        wait_with_waker(&run).recv_timeout(LONG).expect("woken again");
        assert!(run.due(clock.now()).is_some(), "at its deadline");
        assert!(!run.take_notice(), "the notice is sent once");
        drop(armed);
        assert!(ticker.shared.schedule().armed.is_empty(), "it has one entry");
    }

    #[test]
    fn a_run_that_ends_before_its_notice_leaves_no_entry() {
        let (ticker, clock) = ticker();
        let run = begin_run(&*clock, 60_000);
        let armed = ticker.arm(&run, Some(clock.now().after(LONG)));
        drop(armed);
        assert!(ticker.shared.schedule().armed.is_empty());
        assert!(!run.take_notice());
    }

    #[test]
    fn slices_tick_while_a_guest_is_on_a_cpu_and_stop_after_it() {
        let (ticker, _clock) = ticker();
        let ticks = watch_ticks(&ticker);
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
    fn an_engine_that_is_gone_is_removed() {
        let (ticker, _clock) = ticker();
        drop(watch_ticks(&ticker));
        let _on_cpu = ticker.enter_cpu();
        let ticks = watch_ticks(&ticker);
        for _ in 0..3 {
            ticks.recv_timeout(LONG).expect("a slice");
        }
        assert_eq!(ticker.shared.schedule().epochs.len(), 1);
    }

    #[test]
    fn deadlines_are_kept_without_kernel_features() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let ticker = Ticker::start(Arc::clone(&clock), Metrics::disabled(), KernelFeatures::NONE);
        let ticker = ticker.expect("a thread");
        assert_eq!(ticker.kernel(), KernelFeatures::NONE);
        let run = begin_run(&*clock, 5);
        let woken = wait_with_waker(&run);
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

    #[test]
    fn a_thread_that_does_not_wake_is_stalled() {
        let clock = Arc::new(SetClock::default());
        let shown: Arc<dyn Clock> = clock.clone();
        let ticker =
            Ticker::start(shown, Metrics::disabled(), KernelFeatures::ALL).expect("a thread");
        let run = begin_run(&*clock, 1);
        // The thread waits for a deadline that this clock does not reach by itself,
        // and is not woken when the clock is set past it.
        let _armed = ticker.arm(&run, None);
        let passed = run.deadline().after(STALL);
        clock.set(passed);
        assert_eq!(ticker.health(), TickerHealth::Healthy, "it may be a little late");
        let held = ticker.shared.schedule();
        // Later than the thread can have promised a moment ago.
        clock.set(passed.after(STALL * 2));
        assert!(matches!(ticker.health(), TickerHealth::Stalled { .. }));
        drop(held);
    }
}
