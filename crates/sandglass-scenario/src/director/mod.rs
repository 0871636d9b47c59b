//! Performs the steps of one scenario, and shows everything that the worker appends meanwhile.

mod address;
mod expect;
mod follower;
mod local_server;
mod metric;
mod virtual_clock;
mod worker_process;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use humantime::format_duration;
use sandglass_host::CompileLimits;
use sandglass_journal::{Journal, Opened, SqliteJournal};
use sandglass_model::{
    Clock, EntityRef, Monotonic, Object, Position, Record, SystemClock, WallTime,
};

use self::address::Addresses;
use self::expect::{check, contains};
use self::follower::JournalFollower;
use self::local_server::LocalServer;
use self::virtual_clock::VirtualClock;
use self::worker_process::Worker;
use crate::error::{Error, Result};
use crate::file::{Act, Bound, Expectation, Restart, Scenario, Server, Step, Time};
use crate::protocol::{Command, Ready, Reply, Start, VirtualTime, WorkerMessage};
use crate::wait::pause;

pub use self::expect::Verdict;
pub use self::worker_process::WORKER_COMMAND;

/// How long the worker may take to start. It compiles modules, and a module with an interpreter in it
/// takes a busy machine a minute.
const START_MAX: Duration = Duration::from_secs(300);
/// How long the worker may take to reply.
const REPLY_MAX: Duration = Duration::from_secs(60);
/// How long virtual time may take to advance to the next event. A guest may compute until then.
const ADVANCE_MAX: Duration = Duration::from_secs(600);
/// How long the worker may take to end after an error, before it is killed. It is longer than the
/// grace that the worker gives its handlers.
const STOP_MAX: Duration = Duration::from_secs(10);
/// How often a metric or a session is checked again. Nothing notifies the director of a change.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// The same in virtual time, in which minutes pass while nothing happens.
const POLL_EVERY_VIRTUAL: Duration = Duration::from_secs(1);

/// How many expectations a scenario had, and how many failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All expectations.
    pub expectations: usize,
    /// Those that did not hold.
    pub failed: usize,
}

/// Sees what happens while a scenario is played.
pub trait Observer: fmt::Debug {
    /// A scenario begins.
    ///
    /// # Errors
    /// Errors if it cannot be shown, as all methods do; playing ends then.
    fn begin(&mut self, scenario: &Scenario, now: WallTime) -> io::Result<()>;

    /// The journal has this record from before the scenario.
    fn remember(&mut self, record: &Record);

    /// A record was appended.
    #[expect(clippy::missing_errors_doc, reason = "as `begin`")]
    fn record(&mut self, record: &Record) -> io::Result<()>;

    /// The director does something, or something befalls it.
    #[expect(clippy::missing_errors_doc, reason = "as `begin`")]
    fn step(
        &mut self,
        now: WallTime,
        entity: Option<&EntityRef>,
        what: &str,
        detail: &str,
    ) -> io::Result<()>;

    /// What the step in `line` of the scenario expects held or did not.
    #[expect(clippy::missing_errors_doc, reason = "as `begin`")]
    fn verdict(
        &mut self,
        now: WallTime,
        line: usize,
        expected: &str,
        verdict: &Verdict,
    ) -> io::Result<()>;
}

/// How a scenario is played.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'s> {
    /// The journal to append to, which may hold other plays; it is made if there is none.
    pub journal: &'s Path,
    /// What compiling one module may take.
    pub compiling: CompileLimits,
    /// Size from which modules begin with code of the baseline compiler, in bytes
    /// ([`sandglass_host::CompileHelper::baseline_from`]).
    pub baseline_from: u64,
    /// Where to serve metrics for Prometheus in real time.
    pub metrics: Option<SocketAddr>,
}

/// Resolves when playing is to end.
type Interruption<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Plays one scenario.
pub struct Director<'a> {
    scenario: &'a Scenario,
    timeline: &'a mut dyn Observer,
    /// The scenario's.
    clock: Arc<dyn Clock>,
    /// The same where time is virtual.
    virtual_clock: Option<Arc<VirtualClock>>,
    start: Start,
    addresses: Addresses,
    _servers: Vec<LocalServer>,
    /// None while the worker is down.
    worker: Option<Worker>,
    interrupted: Interruption<'a>,
    follower: JournalFollower,
    tally: Tally,
}

/// What a wait ended with.
enum Event {
    Reply(Reply),
    TimeOver,
}

impl fmt::Debug for Director<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Director").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl<'a> Director<'a> {
    /// Starts the servers and the runtime of `scenario`, on the journal at `journal`,
    /// which may hold other plays.
    ///
    /// # Errors
    /// Errors if the scenario needs something that is not there, and with [`Error::Interrupted`].
    pub async fn start(
        scenario: &'a Scenario,
        settings: Settings<'_>,
        timeline: &'a mut dyn Observer,
        interrupted: impl Future<Output = ()> + 'a,
    ) -> Result<Self> {
        let Settings { journal, compiling, baseline_from, metrics } = settings;
        let now = SystemClock::new().wall();
        let is_virtual = scenario.time == Time::Virtual;
        let virtual_clock = is_virtual.then(|| Arc::new(VirtualClock::starting_at(now)));
        let clock: Arc<dyn Clock> = match &virtual_clock {
            Some(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            None => Arc::new(SystemClock::new()),
        };
        timeline.begin(scenario, now)?;
        let Servers { running, simulated, addresses } =
            Servers::start(&scenario.servers, is_virtual).await?;
        let virtual_time = VirtualTime { elapsed_ms: 0, wall: now, servers: simulated };
        let start = Start {
            journal: journal.to_owned(),
            specs: addresses.resolve_specs(&scenario.specs)?,
            modules: scenario.modules.clone(),
            // In virtual time, a play is over before anyone can scrape it.
            metrics: metrics.filter(|_| !is_virtual),
            compiling,
            baseline_from: Some(baseline_from),
            virtual_time: is_virtual.then_some(virtual_time),
        };
        let Repaired { next, torn } = repair(journal).await?;
        for torn in &torn {
            timeline.step(clock.wall(), None, "recovered", torn)?;
        }
        let mut follower = JournalFollower::starting_at(journal, next);
        follower.read_earlier(|record| timeline.remember(record))?;
        follower.close();
        let mut interrupted: Interruption<'a> = Box::pin(interrupted);
        let (worker, ready) = start_worker(&start, &mut interrupted).await?;
        let mut director = Self {
            scenario,
            timeline,
            clock,
            virtual_clock,
            start,
            addresses,
            _servers: running,
            worker: Some(worker),
            interrupted,
            follower,
            tally: Tally::default(),
        };
        director.show_ready(&ready)?;
        Ok(director)
    }

    /// Performs the steps, and then stops the runtime, even if a step fails.
    ///
    /// # Errors
    /// Errors if the runtime fails or the observer does, and with [`Error::Interrupted`].
    pub async fn run(mut self) -> Result<Tally> {
        let ran = self.steps(self.scenario).await;
        self.follower.close();
        if let Some(worker) = self.worker.take() {
            worker.end_within(STOP_MAX).await?;
        }
        ran.map(|()| self.tally)
    }

    async fn steps(&mut self, scenario: &Scenario) -> Result<()> {
        for step in &scenario.steps {
            self.perform(step).await?;
        }
        self.stop().await
    }

    async fn perform(&mut self, step: &Step) -> Result<()> {
        match &step.act {
            Act::Command { label, command, expect_refused } => {
                let mut command = command.clone();
                if let Command::Send { params, .. } = &mut command {
                    *params = self.addresses.resolve_params(params)?;
                }
                self.show_step(command.entity(), label, "")?;
                let refusal = self.request(command).await?.err();
                self.judge_reply(step, label, refusal, expect_refused.as_deref())
            }
            Act::Wait { time } => {
                self.show_step(None, &format!("wait {}", format_duration(*time)), "")?;
                self.wait_until(self.clock.now().after(*time)).await
            }
            Act::Restart { how, down_for } => self.restart(*how, *down_for).await,
            Act::Expect { expectation, within } => self.expect(step, expectation, *within).await,
        }
    }

    /// Compares the reply to a command with what the scenario expects.
    fn judge_reply(
        &mut self,
        step: &Step,
        what: &str,
        refusal: Option<String>,
        expected: Option<&str>,
    ) -> Result<()> {
        let expectation = match (&refusal, expected) {
            (None, None) => return Ok(()),
            (Some(_), None) => format!("{what} to be taken"),
            (_, Some(text)) => format!("{what} to be refused with `{text}`"),
        };
        let holds = refusal.as_ref().zip(expected).is_some_and(|(why, text)| why.contains(text));
        let found =
            refusal.map_or_else(|| "it was taken".to_owned(), |why| format!("refused: {why}"));
        self.count(step, &expectation, &Verdict { holds, found })
    }

    async fn expect(
        &mut self,
        step: &Step,
        expectation: &Expectation,
        within: Duration,
    ) -> Result<()> {
        let until = self.clock.now().after(within);
        let verdict = match expectation {
            Expectation::Metric { name, labels, bound } => {
                self.check_metric(name, labels, *bound, until).await?
            }
            Expectation::Session { fields, entity } => {
                self.check_session(entity, fields, until).await?
            }
            _ => loop {
                self.show_appended()?;
                let verdict = check(expectation, &mut self.follower)?;
                let is_final = matches!(
                    expectation,
                    Expectation::NoTransition { .. }
                        | Expectation::NoRecord { .. }
                        | Expectation::Replay { .. }
                );
                if verdict.holds || is_final {
                    break verdict;
                }
                if let Event::TimeOver = self.next(until).await? {
                    break verdict;
                }
            },
        };
        self.count(step, &expectation.to_string(), &verdict)
    }

    async fn check_metric(
        &mut self,
        name: &str,
        labels: &BTreeMap<String, String>,
        bound: Bound,
        until: Monotonic,
    ) -> Result<Verdict> {
        loop {
            let text = self.request(Command::Metrics).await?.map_err(Error::Failed)?;
            let text = text.unwrap_or_default();
            let value = metric::sum(&text, name, labels);
            let holds = metric::holds(bound, value.unwrap_or(0.0));
            if holds || self.clock.now() >= until {
                let lines = metric::lines_about(&text, name);
                let found = match value {
                    Some(value) => format!("it is {value}"),
                    None if lines.is_empty() => "there is no sample of that name".to_owned(),
                    None => format!("there is no such sample; there are: {}", lines.join("; ")),
                };
                return Ok(Verdict { holds, found });
            }
            self.wait_to_poll(until).await?;
        }
    }

    async fn check_session(
        &mut self,
        entity: &EntityRef,
        fields: &Object,
        until: Monotonic,
    ) -> Result<Verdict> {
        loop {
            let found = match self.request(Command::Session { entity: entity.clone() }).await? {
                Ok(view) => view.unwrap_or_default(),
                Err(why) => return Ok(Verdict { holds: false, found: why }),
            };
            let view: Object = serde_json::from_str(&found)?;
            let holds = contains(&view, fields);
            if holds || self.clock.now() >= until {
                return Ok(Verdict { holds, found });
            }
            self.wait_to_poll(until).await?;
        }
    }

    /// Waits until another check may have another result.
    async fn wait_to_poll(&mut self, until: Monotonic) -> Result<()> {
        if self.virtual_clock.is_some() {
            // A record that is appended meanwhile may change what is checked, so it ends the wait.
            let soon = self.clock.now().after(POLL_EVERY_VIRTUAL).min(until);
            self.next(soon).await?;
            return Ok(());
        }
        let soon = self.clock.now().after(POLL_EVERY).min(until);
        self.wait_until(soon).await
    }

    /// Shows what is appended until `until`.
    async fn wait_until(&mut self, until: Monotonic) -> Result<()> {
        while let Event::Reply(_) = self.next(until).await? {}
        Ok(())
    }

    /// Counts an expectation of a step, and shows whether it holds.
    fn count(&mut self, step: &Step, expected: &str, verdict: &Verdict) -> Result<()> {
        self.tally.expectations += 1;
        self.tally.failed += usize::from(!verdict.holds);
        Ok(self.timeline.verdict(self.clock.wall(), step.line, expected, verdict)?)
    }

    async fn restart(&mut self, how: Restart, down_for: Duration) -> Result<()> {
        match how {
            Restart::Kill => {
                if let Some(worker) = self.worker.take() {
                    worker.kill().await?;
                }
                self.show_step(None, "kill", "the process that runs the runtime")?;
            }
            Restart::Stop => {
                self.show_step(None, "stop", "the process that runs the runtime")?;
                self.stop().await?;
            }
        }
        // The killed worker may have appended records without reporting them.
        self.show_appended()?;
        self.follower.close();
        self.wait_until(self.clock.now().after(down_for)).await?;
        self.show_step(None, "start", "on the same journal")?;
        if let (Some(clock), Some(time)) = (&self.virtual_clock, &mut self.start.virtual_time) {
            (time.elapsed_ms, time.wall) = (clock.elapsed_ms(), clock.wall());
        }
        let (worker, ready) = start_worker(&self.start, &mut self.interrupted).await?;
        self.worker = Some(worker);
        self.show_ready(&ready)
    }

    /// Stops the worker in order.
    async fn stop(&mut self) -> Result<()> {
        self.follower.close();
        let id = self.worker.as_mut().ok_or(Error::Stopped)?.send(Command::Stop).await?;
        let timeout = Timeout::after(REPLY_MAX);
        loop {
            match self.receive(timeout.remaining()).await? {
                Event::Reply(Reply::Done { id: of, .. }) if of == id => break,
                Event::Reply(_) => {}
                Event::TimeOver => {
                    return Err(took_too_long("the runtime did not stop", REPLY_MAX));
                }
            }
        }
        if let Some(mut worker) = self.worker.take() {
            let status = worker.wait_for_end().await?;
            if !status.success() {
                return Err(Error::Failed(format!("the worker process ended with {status}")));
            }
        }
        self.show_appended()
    }

    /// Sends a command to the worker. The inner error is the reason of a refusal.
    async fn request(&mut self, command: Command) -> Result<Result<Option<String>, String>> {
        let worker = self.worker.as_mut().ok_or(Error::Stopped)?;
        let id = worker.send(command).await?;
        let timeout = Timeout::after(REPLY_MAX);
        loop {
            match self.receive_and_show(timeout.remaining()).await? {
                Event::Reply(Reply::Done { id: of, text }) if of == id => {
                    self.show_appended()?;
                    return Ok(Ok(text));
                }
                Event::Reply(Reply::Refused { id: of, why }) if of == id => return Ok(Err(why)),
                Event::Reply(_) => {}
                Event::TimeOver => {
                    return Err(took_too_long("the runtime did not reply", REPLY_MAX));
                }
            }
        }
    }

    /// Lets the scenario's time pass until something is appended, which is then shown, or until
    /// `until`.
    async fn next(&mut self, until: Monotonic) -> Result<Event> {
        let Some(clock) = self.virtual_clock.clone() else {
            return self.receive_and_show(until.since(self.clock.now())).await;
        };
        let until_ms = VirtualClock::ms_until(until);
        let Some(worker) = &mut self.worker else {
            clock.set_ms(until_ms);
            return Ok(Event::TimeOver);
        };
        if clock.elapsed_ms() >= until_ms {
            return Ok(Event::TimeOver);
        }
        let id = worker.send(Command::Advance { until_ms }).await?;
        let (timeout, mut appended) = (Timeout::after(ADVANCE_MAX), None);
        loop {
            match self.receive_and_show(timeout.remaining()).await? {
                Event::Reply(Reply::Done { id: of, .. }) if of == id => {
                    return Ok(appended.map_or(Event::TimeOver, Event::Reply));
                }
                Event::Reply(reply) => appended = Some(reply),
                Event::TimeOver => {
                    let max = format_duration(ADVANCE_MAX);
                    return Err(Error::Failed(format!(
                        "virtual time did not advance within {max}: a guest still computes"
                    )));
                }
            }
        }
    }

    /// As [`Self::receive`], and shows what the reply says was appended.
    async fn receive_and_show(&mut self, left: Duration) -> Result<Event> {
        let event = self.receive(left).await?;
        if let Event::Reply(Reply::Appended { .. }) = event {
            self.show_appended()?;
        }
        Ok(event)
    }

    async fn receive(&mut self, left: Duration) -> Result<Event> {
        let reply = async {
            match &mut self.worker {
                Some(worker) => worker.next_message().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = &mut self.interrupted => Err(Error::Interrupted),
            reply = reply => match reply? {
                Some(WorkerMessage { elapsed_ms, reply }) => {
                    if let (Some(clock), Some(elapsed_ms)) = (&self.virtual_clock, elapsed_ms) {
                        clock.set_ms(elapsed_ms);
                    }
                    Ok(Event::Reply(reply))
                }
                None => Err(self.end_of_worker().await),
            },
            () = pause(left) => Ok(Event::TimeOver),
        }
    }

    async fn end_of_worker(&mut self) -> Error {
        let Some(mut worker) = self.worker.take() else { return Error::Stopped };
        match worker.wait_for_end().await {
            Ok(status) => Error::Failed(format!("the worker process ended by itself ({status})")),
            Err(error) => error,
        }
    }

    fn show_appended(&mut self) -> Result<()> {
        loop {
            let records = self.follower.read_appended()?;
            if records.is_empty() {
                return Ok(());
            }
            records.iter().try_for_each(|record| self.timeline.record(record))?;
        }
    }

    fn show_step(&mut self, entity: Option<&EntityRef>, what: &str, detail: &str) -> Result<()> {
        Ok(self.timeline.step(self.clock.wall(), entity, what, detail)?)
    }

    fn show_ready(&mut self, ready: &Ready) -> Result<()> {
        for torn in &ready.recovered {
            self.show_step(None, "recovered", torn)?;
        }
        if let Some(address) = ready.metrics {
            self.show_step(None, "metrics", &format!("http://{address}/metrics"))?;
        }
        self.show_appended()
    }
}

/// How long the director waits for a worker that may be stuck, in real time.
struct Timeout {
    clock: SystemClock,
    until: Monotonic,
}

impl Timeout {
    fn after(max: Duration) -> Self {
        let clock = SystemClock::new();
        let until = clock.now().after(max);
        Self { clock, until }
    }

    fn remaining(&self) -> Duration {
        self.until.since(self.clock.now())
    }
}

fn took_too_long(what: &str, max: Duration) -> Error {
    Error::Failed(format!("{what} within {}", format_duration(max)))
}

/// The servers of a scenario. There are no sockets in virtual time.
#[derive(Default)]
struct Servers {
    running: Vec<LocalServer>,
    /// By their ports.
    simulated: BTreeMap<u16, Server>,
    addresses: Addresses,
}

impl Servers {
    async fn start(servers: &[Server], is_virtual: bool) -> Result<Self> {
        let mut started = Self::default();
        for (server, port) in servers.iter().zip(1..) {
            let url = if is_virtual {
                started.simulated.insert(port, server.clone());
                format!("http://127.0.0.1:{port}")
            } else {
                let what = format!("cannot start the server `{}`", server.name);
                let running = LocalServer::start(server).await.map_err(Error::system(what))?;
                let url = running.url();
                started.running.push(running);
                url
            };
            started.addresses.0.insert(server.name.clone(), url);
        }
        Ok(started)
    }
}

async fn start_worker(
    start: &Start,
    interrupted: &mut Interruption<'_>,
) -> Result<(Worker, Ready)> {
    let mut worker = Worker::start(start).await?;
    let begun = async {
        loop {
            match worker.next_message().await?.map(|message| message.reply) {
                Some(Reply::Ready(ready)) => return Ok(ready),
                Some(Reply::Failed { why }) => return Err(Error::Failed(why)),
                // The director reads from the journal what recovery appends before it is ready.
                Some(_) => {}
                None => {
                    let why = "the worker process ended before it was ready";
                    return Err(Error::Failed(why.to_owned()));
                }
            }
        }
    };
    let ready = tokio::select! {
        biased;
        () = interrupted => Err(Error::Interrupted),
        ready = begun => ready,
        () = pause(START_MAX) => {
            Err(took_too_long("the runtime did not start", START_MAX))
        }
    }?;
    Ok((worker, ready))
}

/// A journal without torn records at its end.
struct Repaired {
    /// The position of the next record.
    next: Position,
    /// The records that were set aside, for people.
    torn: Vec<String>,
}

/// Sets aside torn records at the end of the journal. The worker would do that too, but the director
/// must know where the records of this play begin before the worker appends the first one, which it
/// does as it starts.
async fn repair(journal: &Path) -> Result<Repaired> {
    if !journal.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        return Ok(Repaired { next: Position(1), torn: Vec::new() });
    }
    let Opened { journal, recovered } =
        SqliteJournal::open(journal, sandglass_journal::Settings::default())?;
    let last = journal.last().await;
    journal.close().await;
    let torn = recovered.iter().map(|torn| format!("position {}: {}", torn.position, torn.what));
    Ok(Repaired { next: Position(last?.0.saturating_add(1)), torn: torn.collect() })
}
