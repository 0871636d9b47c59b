//! Runs the steps of one scenario, one after the other, while everything that the
//! worker appends goes to the timeline.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use sandglass_journal::{Journal, Opened, Settings, SqliteJournal};
use sandglass_model::{Clock, EntityRef, Monotonic, Object, Position, SystemClock, WallTime};
use serde_json::Value;

use super::expect::{Look, look};
use super::metric;
use super::process::Worker;
use super::protocol::{Ask, Reply, Start};
use super::server::Running;
use super::story::Story;
use super::timeline::Timeline;
use super::wait::pause;
use crate::duration;
use crate::interrupts::Interrupts;
use crate::scenario::{Act, Bound, Expectation, Restart, Scenario, SpecFile, Step, with_servers};

/// How long the worker may take to start: it compiles modules, of which one with an
/// interpreter inside takes a busy machine a minute.
const START_MAX: Duration = Duration::from_secs(300);
/// How long it may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How long the worker may take to end after something went wrong, before it is
/// killed: longer than the grace that it gives its handlers.
const STOP_MAX: Duration = Duration::from_secs(10);
/// How often a metric is looked at again: metrics tell nobody that they changed.
const METRIC_EVERY: Duration = Duration::from_millis(50);

/// How many expectations a scenario had, and how many failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) expectations: usize,
    pub(crate) failed: usize,
}

/// Plays one scenario.
#[derive(Debug)]
pub(crate) struct Director<'a> {
    timeline: &'a mut Timeline,
    clock: Arc<dyn Clock>,
    start: Start,
    servers: Vec<Running>,
    /// None while the worker is down.
    worker: Option<Worker>,
    interrupts: Interrupts,
    story: Story,
    tally: Tally,
}

/// What came to the director while it waited.
enum Came {
    Reply(Reply),
    Time,
}

impl<'a> Director<'a> {
    /// Starts the servers and the runtime of `scenario`, on the journal at `journal`,
    /// which may hold other plays.
    ///
    /// # Errors
    /// Something that the scenario needs isn't there.
    pub(crate) async fn start(
        scenario: &Scenario,
        journal: &Path,
        metrics: Option<SocketAddr>,
        timeline: &'a mut Timeline,
    ) -> anyhow::Result<Self> {
        let clock = Arc::new(SystemClock::new());
        timeline.begin(scenario, clock.wall())?;
        let mut servers = Vec::new();
        for server in &scenario.servers {
            let running = Running::start(server).await;
            servers.push(running.with_context(|| format!("can't start server `{}`", server.name))?);
        }
        let start = Start {
            journal: journal.to_owned(),
            specs: addressed(&scenario.specs, &servers)?,
            modules: scenario.modules.clone(),
            metrics,
        };
        let Whole { next, torn } = whole(journal).await?;
        for torn in &torn {
            timeline.step(clock.wall(), None, "recovered", torn)?;
        }
        let mut story = Story::from(journal, next);
        story.earlier(|record| timeline.remember(record))?;
        story.let_go();
        let mut interrupts = Interrupts::listen()?;
        let (worker, ready) = started(&start, &mut interrupts).await?;
        let worker = Some(worker);
        let tally = Tally::default();
        let mut director =
            Self { timeline, clock, start, servers, worker, interrupts, story, tally };
        director.tell_ready(&ready)?;
        Ok(director)
    }

    /// Runs the steps, and ends the runtime orderly, also where a step can't be run.
    ///
    /// # Errors
    /// The runtime failed, or somebody interrupts.
    pub(crate) async fn run(mut self, steps: &[Step]) -> anyhow::Result<Tally> {
        let ran = self.steps(steps).await;
        self.story.let_go();
        if let Some(worker) = self.worker.take() {
            worker.end_within(STOP_MAX).await?;
        }
        ran.map(|()| self.tally)
    }

    async fn steps(&mut self, steps: &[Step]) -> anyhow::Result<()> {
        for step in steps {
            self.act(step).await?;
        }
        self.stop().await
    }

    async fn act(&mut self, step: &Step) -> anyhow::Result<()> {
        match &step.act {
            Act::Send { action, entity, params, expect_refused } => {
                let params = self.addressed_params(params)?;
                let ask = Ask::Send { entity: entity.clone(), action: action.clone(), params };
                let what = format!("send {action}");
                self.told(Some(entity), &what, "")?;
                let refusal = self.answer(ask).await?.err();
                self.sent(step, &what, refusal, expect_refused.as_deref())
            }
            Act::Create { entity } => {
                self.plain(step, "create", Ask::Create { entity: entity.clone() }, entity).await
            }
            Act::Signal { name, entity, from, payload } => {
                let ask = Ask::Signal {
                    entity: entity.clone(),
                    name: name.clone(),
                    from: from.clone(),
                    payload: payload.clone(),
                };
                self.plain(step, &format!("signal {name}"), ask, entity).await
            }
            Act::Cancel { entity, reason } => {
                let ask = Ask::Cancel { entity: entity.clone(), reason: reason.clone() };
                self.plain(step, "cancel", ask, entity).await
            }
            Act::Wait { time } => {
                self.told(None, &format!("wait {}", duration::told(*time)), "")?;
                let until = self.clock.now().after(*time);
                while let Came::Reply(_) = self.next(until).await? {}
                Ok(())
            }
            Act::Restart { how, down_for } => self.restart(*how, *down_for).await,
            Act::Expect { expectation, within } => self.expect(step, expectation, *within).await,
        }
    }

    /// A request that must not be refused.
    async fn plain(
        &mut self,
        step: &Step,
        what: &str,
        ask: Ask,
        entity: &EntityRef,
    ) -> anyhow::Result<()> {
        self.told(Some(entity), what, "")?;
        let refusal = self.answer(ask).await?.err();
        self.sent(step, what, refusal, None)
    }

    /// Compares how a request was answered with what the scenario expects.
    fn sent(
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
        let look = Look { holds: held, found };
        self.count(held);
        Ok(self.timeline.verdict(self.clock.wall(), step, &expectation, &look)?)
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
            _ => loop {
                self.catch_up()?;
                let looked = look(expectation, &mut self.story)?;
                let final_look = matches!(
                    expectation,
                    Expectation::NoTransition { .. } | Expectation::Replay { .. }
                );
                if looked.holds || final_look {
                    break looked;
                }
                if let Came::Time = self.next(until).await? {
                    break looked;
                }
            },
        };
        self.count(looked.holds);
        let now = self.clock.wall();
        Ok(self.timeline.expectation(now, step, expectation, &looked)?)
    }

    async fn metric(&mut self, wanted: &Wanted<'_>, until: Monotonic) -> anyhow::Result<Look> {
        loop {
            let text = self.answer(Ask::Metrics).await?.map_err(|why| anyhow!(why))?;
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
                return Ok(Look { holds, found });
            }
            let soon = self.clock.now().after(METRIC_EVERY).min(until);
            while let Came::Reply(_) = self.next(soon).await? {}
        }
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
                self.told(None, "kill", "the process that runs the runtime")?;
            }
            Restart::Stop => {
                self.told(None, "stop", "the process that runs the runtime")?;
                self.stop().await?;
            }
        }
        // What it appended last, and had no time to tell.
        self.catch_up()?;
        self.story.let_go();
        let until = self.clock.now().after(down_for);
        while let Came::Reply(_) = self.next(until).await? {}
        self.told(None, "start", "on the same journal")?;
        let (worker, ready) = started(&self.start, &mut self.interrupts).await?;
        self.worker = Some(worker);
        self.tell_ready(&ready)
    }

    /// Ends the worker orderly.
    async fn stop(&mut self) -> anyhow::Result<()> {
        self.story.let_go();
        let id = self.worker.as_mut().context("the runtime is stopped")?.ask(Ask::Stop).await?;
        let until = self.clock.now().after(ANSWER_MAX);
        loop {
            match self.came(until).await? {
                Came::Reply(Reply::Done { id: of, .. }) if of == id => break,
                Came::Reply(_) => {}
                Came::Time => {
                    bail!("the runtime didn't stop within {}", duration::told(ANSWER_MAX))
                }
            }
        }
        if let Some(mut worker) = self.worker.take() {
            let status = worker.ended().await?;
            if !status.success() {
                bail!("the process that runs the runtime ended with {status}");
            }
        }
        self.catch_up()
    }

    /// The answer to a request: done, or why not.
    async fn answer(&mut self, ask: Ask) -> anyhow::Result<Result<Option<String>, String>> {
        let worker = self.worker.as_mut().context("the runtime is stopped")?;
        let id = worker.ask(ask).await?;
        let until = self.clock.now().after(ANSWER_MAX);
        loop {
            match self.next(until).await? {
                Came::Reply(Reply::Done { id: of, text }) if of == id => {
                    self.catch_up()?;
                    return Ok(Ok(text));
                }
                Came::Reply(Reply::Refused { id: of, why }) if of == id => return Ok(Err(why)),
                Came::Reply(_) => {}
                Came::Time => {
                    bail!("the runtime gave no answer within {}", duration::told(ANSWER_MAX))
                }
            }
        }
    }

    /// The next reply of the worker, or that the time has come. What was appended
    /// is on the timeline by then.
    async fn next(&mut self, until: Monotonic) -> anyhow::Result<Came> {
        let came = self.came(until).await?;
        if let Came::Reply(Reply::Appended { .. }) = came {
            self.catch_up()?;
        }
        Ok(came)
    }

    async fn came(&mut self, until: Monotonic) -> anyhow::Result<Came> {
        let left = until.since(self.clock.now());
        let reply = async {
            match &mut self.worker {
                Some(worker) => worker.reply().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            interrupted = self.interrupts.next() => Err(interrupted.into()),
            reply = reply => match reply? {
                Some(reply) => Ok(Came::Reply(reply)),
                None => Err(self.end_of_worker().await),
            },
            () = pause(left) => Ok(Came::Time),
        }
    }

    async fn end_of_worker(&mut self) -> anyhow::Error {
        let Some(mut worker) = self.worker.take() else { return anyhow!("the runtime is stopped") };
        match worker.ended().await {
            Ok(status) => anyhow!("the process that runs the runtime ended by itself ({status})"),
            Err(error) => error,
        }
    }

    fn catch_up(&mut self) -> anyhow::Result<()> {
        loop {
            let records = self.story.advance()?;
            if records.is_empty() {
                return Ok(());
            }
            records.iter().try_for_each(|record| self.timeline.record(record))?;
        }
    }

    fn told(&mut self, entity: Option<&EntityRef>, what: &str, detail: &str) -> anyhow::Result<()> {
        Ok(self.timeline.step(self.now(), entity, what, detail)?)
    }

    fn now(&self) -> WallTime {
        self.clock.wall()
    }

    fn tell_ready(&mut self, ready: &Ready) -> anyhow::Result<()> {
        for torn in &ready.recovered {
            self.told(None, "recovered", torn)?;
        }
        if let Some(address) = ready.metrics {
            self.told(None, "metrics", &format!("http://{address}/metrics"))?;
        }
        self.catch_up()
    }

    fn addressed_params(&self, params: &Object) -> anyhow::Result<Object> {
        let params = params.clone().into_iter();
        params.map(|(key, value)| Ok((key, addressed_value(value, &self.servers)?))).collect()
    }
}

struct Wanted<'a> {
    name: &'a str,
    labels: &'a std::collections::BTreeMap<String, String>,
    bound: Bound,
}

/// What a worker says once it has started.
struct Ready {
    metrics: Option<SocketAddr>,
    recovered: Vec<String>,
}

async fn started(start: &Start, interrupts: &mut Interrupts) -> anyhow::Result<(Worker, Ready)> {
    let mut worker = Worker::start(start).await?;
    let begun = async {
        loop {
            match worker.reply().await? {
                Some(Reply::Ready { metrics, recovered }) => {
                    return Ok(Ready { metrics, recovered });
                }
                Some(Reply::Failed { why }) => bail!(why),
                // What recovery appends before it is ready is read from the journal.
                Some(_) => {}
                None => bail!("the process that runs the runtime ended before it was ready"),
            }
        }
    };
    let ready = tokio::select! {
        biased;
        interrupted = interrupts.next() => Err(interrupted.into()),
        ready = begun => ready,
        () = pause(START_MAX) => {
            Err(anyhow!("the runtime didn't start within {}", duration::told(START_MAX)))
        }
    }?;
    Ok((worker, ready))
}

/// A journal whose end is whole.
struct Whole {
    /// The position behind its last record.
    next: Position,
    /// What was set aside, for people.
    torn: Vec<String>,
}

/// Sets aside what is torn at the end of a journal, where there is one. The worker
/// would do it as well; but where its records begin must be known before it appends
/// the first, which it does as it starts.
async fn whole(journal: &Path) -> anyhow::Result<Whole> {
    if !journal.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        return Ok(Whole { next: Position(1), torn: Vec::new() });
    }
    let Opened { journal, recovered } = SqliteJournal::open(journal, Settings::default())?;
    let last = journal.last().await;
    journal.close().await;
    let torn = recovered.iter().map(|torn| format!("position {}: {}", torn.position, torn.what));
    Ok(Whole { next: Position(last?.0.saturating_add(1)), torn: torn.collect() })
}

fn addressed(specs: &[SpecFile], servers: &[Running]) -> anyhow::Result<Vec<SpecFile>> {
    let addressed = |spec: &SpecFile| {
        let path: PathBuf = spec.path.clone();
        Ok(SpecFile { path, source: addressed_text(&spec.source, servers)? })
    };
    specs.iter().map(addressed).collect()
}

fn addressed_value(value: Value, servers: &[Running]) -> anyhow::Result<Value> {
    Ok(match value {
        Value::String(text) => Value::String(addressed_text(&text, servers)?),
        Value::Array(items) => {
            let items = items.into_iter().map(|item| addressed_value(item, servers));
            Value::Array(items.collect::<anyhow::Result<_>>()?)
        }
        Value::Object(fields) => {
            let fields =
                fields.into_iter().map(|(key, field)| Ok((key, addressed_value(field, servers)?)));
            Value::Object(fields.collect::<anyhow::Result<_>>()?)
        }
        other => other,
    })
}

fn addressed_text(text: &str, servers: &[Running]) -> anyhow::Result<String> {
    let url = |name: &str| servers.iter().find(|server| server.name == name).map(Running::url);
    with_servers(text, url).map_err(|name| anyhow!("there is no server `{name}`"))
}
