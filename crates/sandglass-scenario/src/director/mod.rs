//! Performs the steps of one scenario, and shows everything that the worker appends meanwhile.

mod address;
mod expect;
mod metric;
mod process;
mod server;
mod story;
mod virtual_clock;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use humantime::format_duration;
use sandglass_host::CompileLimits;
use sandglass_journal::{Journal, Opened, SqliteJournal};
use sandglass_model::{
    Clock, EntityRef, Monotonic, Object, Position, Record, SystemClock, WallTime,
};

use self::address::Addresses;
use self::expect::{check, holds_fields};
use self::process::Worker;
use self::server::Running;
use self::story::Story;
use self::virtual_clock::VirtualClock;
use crate::file::{Act, Bound, Expectation, Restart, Scenario, Server, Step, Time};
use crate::protocol::{Ask, Reply, Said, Start, VirtualTime};
use crate::wait::pause;

pub use self::expect::Verdict;
pub use self::process::WORKER_COMMAND;

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
    /// Where to serve metrics for Prometheus in real time.
    pub metrics: Option<SocketAddr>,
}

/// Playing was interrupted.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

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
    _servers: Vec<Running>,
    /// None while the worker is down.
    worker: Option<Worker>,
    interrupted: Interruption<'a>,
    story: Story,
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
    /// Errors if the scenario needs something that is not there, and with [`Interrupted`].
    pub async fn start(
        scenario: &'a Scenario,
        settings: Settings<'_>,
        timeline: &'a mut dyn Observer,
        interrupted: impl Future<Output = ()> + 'a,
    ) -> anyhow::Result<Self> {
        let Settings { journal, compiling, metrics } = settings;
        let now = SystemClock::new().wall();
        let is_virtual = scenario.time == Time::Virtual;
        let virtual_clock = is_virtual.then(|| Arc::new(VirtualClock::starting_at(now)));
        let clock: Arc<dyn Clock> = match &virtual_clock {
            Some(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            None => Arc::new(SystemClock::new()),
        };
        timeline.begin(scenario, now)?;
        let (mut servers, mut played) = (Vec::new(), BTreeMap::new());
        let mut addresses = Vec::new();
        for (server, port) in scenario.servers.iter().zip(1..) {
            let url = if is_virtual {
                played.insert(port, server.clone());
                format!("http://127.0.0.1:{port}")
            } else {
                let running = start_server(server).await?;
                let url = running.url();
                servers.push(running);
                url
            };
            addresses.push((server.name.clone(), url));
        }
        let addresses: Addresses = addresses.into_iter().collect();
        let start = Start {
            journal: journal.to_owned(),
            specs: addresses.resolve_specs(&scenario.specs)?,
            modules: scenario.modules.clone(),
            // In virtual time, a play is over before anyone can scrape it.
            metrics: metrics.filter(|_| !is_virtual),
            compiling: compiling.into(),
            virtual_time: is_virtual.then_some(VirtualTime {
                elapsed_ms: 0,
                wall: now,
                servers: played,
            }),
        };
        let Repaired { next, torn } = repair(journal).await?;
        for torn in &torn {
            timeline.step(clock.wall(), None, "recovered", torn)?;
        }
        let mut story = Story::from(journal, next);
        story.read_earlier(|record| timeline.remember(record))?;
        story.close();
        let mut interrupted: Interruption<'a> = Box::pin(interrupted);
        let (worker, ready) = start_worker(&start, &mut interrupted).await?;
        let mut director = Self {
            scenario,
            timeline,
            clock,
            virtual_clock,
            start,
            addresses,
            _servers: servers,
            worker: Some(worker),
            interrupted,
            story,
            tally: Tally::default(),
        };
        director.show_ready(&ready)?;
        Ok(director)
    }

    /// Performs the steps, and then stops the runtime, even if a step fails.
    ///
    /// # Errors
    /// Errors if the runtime fails or the observer does, and with [`Interrupted`].
    pub async fn run(mut self) -> anyhow::Result<Tally> {
        let ran = self.steps(self.scenario).await;
        self.story.close();
        if let Some(worker) = self.worker.take() {
            worker.end_within(STOP_MAX).await?;
        }
        ran.map(|()| self.tally)
    }

    async fn steps(&mut self, scenario: &Scenario) -> anyhow::Result<()> {
        for step in &scenario.steps {
            self.act(step).await?;
        }
        self.stop().await
    }

    async fn act(&mut self, step: &Step) -> anyhow::Result<()> {
        match &step.act {
            Act::Send { action, entity, params, expect_refused } => {
                let params = self.addresses.resolve_params(params)?;
                let ask = Ask::Send { entity: entity.clone(), action: action.clone(), params };
                let what = format!("send {action}");
                self.command(step, &what, ask, entity, expect_refused.as_deref()).await
            }
            Act::Create { entity, limits } => {
                let ask = Ask::Create { entity: entity.clone(), limits: limits.clone() };
                self.command_accepted(step, "create", ask, entity).await
            }
            Act::Signal { name, entity, from, payload } => {
                let ask = Ask::Signal {
                    entity: entity.clone(),
                    name: name.clone(),
                    from: from.clone(),
                    payload: payload.clone(),
                };
                self.command_accepted(step, &format!("signal {name}"), ask, entity).await
            }
            Act::Cancel { entity, by, reason, expect_refused } => {
                let (by, reason) = (by.clone(), reason.clone());
                let ask = Ask::Cancel { entity: entity.clone(), by, reason };
                self.command(step, "cancel", ask, entity, expect_refused.as_deref()).await
            }
            Act::Resume { entity, by, limits, expect_refused } => {
                let (by, limits) = (by.clone(), limits.clone());
                let ask = Ask::Resume { entity: entity.clone(), by, limits };
                self.command(step, "resume", ask, entity, expect_refused.as_deref()).await
            }
            Act::Journal { works } => {
                let what = if *works { "journal works" } else { "journal fails" };
                self.show_step(None, what, "")?;
                self.request(Ask::Journal { works: *works })
                    .await?
                    .map(drop)
                    .map_err(|why| anyhow!(why))
            }
            Act::Wait { time } => {
                self.show_step(None, &format!("wait {}", format_duration(*time)), "")?;
                let until = self.clock.now().after(*time);
                while let Event::Reply(_) = self.next(until).await? {}
                Ok(())
            }
            Act::Restart { how, down_for } => self.restart(*how, *down_for).await,
            Act::Expect { expectation, within } => self.expect(step, expectation, *within).await,
        }
    }

    /// Sends a command that must not be refused.
    async fn command_accepted(
        &mut self,
        step: &Step,
        what: &str,
        ask: Ask,
        entity: &EntityRef,
    ) -> anyhow::Result<()> {
        self.command(step, what, ask, entity, None).await
    }

    /// Sends a command that must be refused with the expected text, or else accepted.
    async fn command(
        &mut self,
        step: &Step,
        what: &str,
        ask: Ask,
        entity: &EntityRef,
        expect_refused: Option<&str>,
    ) -> anyhow::Result<()> {
        self.show_step(Some(entity), what, "")?;
        let refusal = self.request(ask).await?.err();
        self.judge_reply(step, what, refusal, expect_refused)
    }

    /// Compares the reply to a command with what the scenario expects.
    fn judge_reply(
        &mut self,
        step: &Step,
        what: &str,
        refusal: Option<String>,
        expected: Option<&str>,
    ) -> anyhow::Result<()> {
        let (held, expectation) = match (&refusal, expected) {
            (None, None) => return Ok(()),
            (Some(_), None) => (false, format!("{what} to be taken")),
            (None, Some(text)) => (false, format!("{what} to be refused with `{text}`")),
            (Some(why), Some(text)) => {
                (why.contains(text), format!("{what} to be refused with `{text}`"))
            }
        };
        let found =
            refusal.map_or_else(|| "it was taken".to_owned(), |why| format!("refused: {why}"));
        let look = Verdict { holds: held, found };
        self.count(held);
        Ok(self.timeline.verdict(self.clock.wall(), step.line, &expectation, &look)?)
    }

    async fn expect(
        &mut self,
        step: &Step,
        expectation: &Expectation,
        within: Duration,
    ) -> anyhow::Result<()> {
        let until = self.clock.now().after(within);
        let looked = match expectation {
            Expectation::Metric { name, labels, bound } => {
                let wanted = Wanted { name, labels, bound: *bound };
                self.metric(&wanted, until).await?
            }
            Expectation::Session { fields, entity } => self.session(entity, fields, until).await?,
            _ => loop {
                self.show_appended()?;
                let looked = check(expectation, &mut self.story)?;
                let final_look = matches!(
                    expectation,
                    Expectation::NoTransition { .. }
                        | Expectation::NoRecord { .. }
                        | Expectation::Replay { .. }
                );
                if looked.holds || final_look {
                    break looked;
                }
                if let Event::TimeOver = self.next(until).await? {
                    break looked;
                }
            },
        };
        self.count(looked.holds);
        let now = self.clock.wall();
        Ok(self.timeline.verdict(now, step.line, &expectation.to_string(), &looked)?)
    }

    async fn metric(&mut self, wanted: &Wanted<'_>, until: Monotonic) -> anyhow::Result<Verdict> {
        loop {
            let text = self.request(Ask::Metrics).await?.map_err(|why| anyhow!(why))?;
            let text = text.unwrap_or_default();
            let value = metric::sum(&text, wanted.name, wanted.labels);
            let holds = metric::holds(wanted.bound, value.unwrap_or(0.0));
            if holds || self.clock.now() >= until {
                let lines = metric::lines_about(&text, wanted.name);
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

    async fn session(
        &mut self,
        entity: &EntityRef,
        fields: &Object,
        until: Monotonic,
    ) -> anyhow::Result<Verdict> {
        loop {
            let found = match self.request(Ask::Session { entity: entity.clone() }).await? {
                Ok(view) => view.unwrap_or_default(),
                Err(why) => return Ok(Verdict { holds: false, found: why }),
            };
            let view: Object = serde_json::from_str(&found)?;
            let holds = holds_fields(&view, fields);
            if holds || self.clock.now() >= until {
                return Ok(Verdict { holds, found });
            }
            self.wait_to_poll(until).await?;
        }
    }

    /// Waits until another check may have another result.
    async fn wait_to_poll(&mut self, until: Monotonic) -> anyhow::Result<()> {
        if self.virtual_clock.is_some() {
            // A record that is appended meanwhile may change what is checked, so it ends the wait.
            let soon = self.clock.now().after(POLL_EVERY_VIRTUAL).min(until);
            self.next(soon).await?;
            return Ok(());
        }
        let soon = self.clock.now().after(POLL_EVERY).min(until);
        while let Event::Reply(_) = self.next(soon).await? {}
        Ok(())
    }

    fn count(&mut self, held: bool) {
        self.tally.expectations += 1;
        self.tally.failed += usize::from(!held);
    }

    async fn restart(&mut self, how: Restart, down_for: Duration) -> anyhow::Result<()> {
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
        self.story.close();
        let until = self.clock.now().after(down_for);
        while let Event::Reply(_) = self.next(until).await? {}
        self.show_step(None, "start", "on the same journal")?;
        if let (Some(clock), Some(time)) = (&self.virtual_clock, &mut self.start.virtual_time) {
            (time.elapsed_ms, time.wall) = (clock.elapsed_ms(), clock.wall());
        }
        let (worker, ready) = start_worker(&self.start, &mut self.interrupted).await?;
        self.worker = Some(worker);
        self.show_ready(&ready)
    }

    /// Stops the worker in order.
    async fn stop(&mut self) -> anyhow::Result<()> {
        self.story.close();
        let id = self.worker.as_mut().context("the runtime is stopped")?.ask(Ask::Stop).await?;
        let timeout = Timeout::after(REPLY_MAX);
        loop {
            match self.receive(timeout.remaining()).await? {
                Event::Reply(Reply::Done { id: of, .. }) if of == id => break,
                Event::Reply(_) => {}
                Event::TimeOver => {
                    bail!("the runtime did not stop within {}", format_duration(REPLY_MAX))
                }
            }
        }
        if let Some(mut worker) = self.worker.take() {
            let status = worker.ended().await?;
            if !status.success() {
                bail!("the worker process ended with {status}");
            }
        }
        self.show_appended()
    }

    /// Sends a command to the worker. The inner error is the reason of a refusal.
    async fn request(&mut self, ask: Ask) -> anyhow::Result<Result<Option<String>, String>> {
        let worker = self.worker.as_mut().context("the runtime is stopped")?;
        let id = worker.ask(ask).await?;
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
                    bail!("the runtime did not reply within {}", format_duration(REPLY_MAX))
                }
            }
        }
    }

    /// Lets the scenario's time pass until something is appended, which is then shown, or until
    /// `until`.
    async fn next(&mut self, until: Monotonic) -> anyhow::Result<Event> {
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
        let id = worker.ask(Ask::GoOn { until_ms }).await?;
        let (timeout, mut appended) = (Timeout::after(ADVANCE_MAX), None);
        loop {
            match self.receive_and_show(timeout.remaining()).await? {
                Event::Reply(Reply::Done { id: of, .. }) if of == id => {
                    return Ok(appended.map_or(Event::TimeOver, Event::Reply));
                }
                Event::Reply(reply) => appended = Some(reply),
                Event::TimeOver => {
                    let max = format_duration(ADVANCE_MAX);
                    bail!("virtual time did not advance within {max}: a guest still computes")
                }
            }
        }
    }

    /// As [`Self::receive`], and shows what the reply says was appended.
    async fn receive_and_show(&mut self, left: Duration) -> anyhow::Result<Event> {
        let event = self.receive(left).await?;
        if let Event::Reply(Reply::Appended { .. }) = event {
            self.show_appended()?;
        }
        Ok(event)
    }

    async fn receive(&mut self, left: Duration) -> anyhow::Result<Event> {
        let reply = async {
            match &mut self.worker {
                Some(worker) => worker.reply().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = &mut self.interrupted => Err(Interrupted.into()),
            reply = reply => match reply? {
                Some(Said { elapsed_ms, reply }) => {
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

    async fn end_of_worker(&mut self) -> anyhow::Error {
        let Some(mut worker) = self.worker.take() else { return anyhow!("the runtime is stopped") };
        match worker.ended().await {
            Ok(status) => anyhow!("the worker process ended by itself ({status})"),
            Err(error) => error,
        }
    }

    fn show_appended(&mut self) -> anyhow::Result<()> {
        loop {
            let records = self.story.read_appended()?;
            if records.is_empty() {
                return Ok(());
            }
            records.iter().try_for_each(|record| self.timeline.record(record))?;
        }
    }

    fn show_step(
        &mut self,
        entity: Option<&EntityRef>,
        what: &str,
        detail: &str,
    ) -> anyhow::Result<()> {
        Ok(self.timeline.step(self.now(), entity, what, detail)?)
    }

    fn now(&self) -> WallTime {
        self.clock.wall()
    }

    fn show_ready(&mut self, ready: &Ready) -> anyhow::Result<()> {
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

async fn start_server(server: &Server) -> anyhow::Result<Running> {
    let running = Running::start(server).await;
    running.with_context(|| format!("cannot start the server `{}`", server.name))
}

struct Wanted<'a> {
    name: &'a str,
    labels: &'a BTreeMap<String, String>,
    bound: Bound,
}

/// What a worker says once it has started.
struct Ready {
    metrics: Option<SocketAddr>,
    recovered: Vec<String>,
}

async fn start_worker(
    start: &Start,
    interrupted: &mut Interruption<'_>,
) -> anyhow::Result<(Worker, Ready)> {
    let mut worker = Worker::start(start).await?;
    let begun = async {
        loop {
            match worker.reply().await?.map(|said| said.reply) {
                Some(Reply::Ready { metrics, recovered }) => {
                    return Ok(Ready { metrics, recovered });
                }
                Some(Reply::Failed { why }) => bail!(why),
                // The director reads from the journal what recovery appends before it is ready.
                Some(_) => {}
                None => bail!("the worker process ended before it was ready"),
            }
        }
    };
    let ready = tokio::select! {
        biased;
        () = interrupted => Err(Interrupted.into()),
        ready = begun => ready,
        () = pause(START_MAX) => {
            Err(anyhow!("the runtime did not start within {}", format_duration(START_MAX)))
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
async fn repair(journal: &Path) -> anyhow::Result<Repaired> {
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
