//! Measures how many runs a second are created and completed, and what their records cost alone.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;

use super::appending::BatchAppender;
use super::client::Client;
use super::server::Server;
use super::waiting::{pause, until, with_time_limit};
use super::workflows::THREE_NODES;
use crate::bench_host::one_thread;
use crate::figure::{Figure, Unit, rounded};
use crate::timing::{Samples, nanos_since, now};
use crate::{Effort, Failure};

/// Connections that create runs; each creates one run after the other.
pub(super) const CONNECTIONS: u32 = 64;
/// Time for each run at 500 runs a second, in microseconds.
pub(super) const EACH_US: f64 = 2_000.0;
/// Events of a run of three nodes: its start and end, and those of each node.
const EVENTS: usize = 8;
/// How often the number of completed runs is polled.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Measures the time for each run of three nodes, from the first request until the last run has
/// ended according to the host's counter. The baseline is appending the same batches alone.
pub(crate) fn runs(effort: Effort, program: Option<&Path>) -> Result<Figure, Failure> {
    let server = Server::start(program)?;
    one_thread()?.block_on(async {
        let clients = Clients(server.address);
        // What is done for the first time does not count.
        let warm = effort.of(500, 1_000);
        clients.run(warm, None).await?;
        let run = clients.check_one().await?;
        let mut appender = BatchAppender::of(&server.journal(), &run)?;
        appender.append(warm, CONNECTIONS).await?;
        let (mut each, mut alone_each) = (Samples::default(), Samples::default());
        let mut answers = Samples::default();
        let count = effort.of(1_000, 2_000);
        for _ in 0..effort.of(3, 9) {
            let ran = clients.run(count, None).await?;
            each.push(ran.took_ns / f64::from(count));
            answers.append(ran.answers);
            let begun = now();
            appender.append(count, CONNECTIONS).await?;
            alone_each.push(nanos_since(begun) / f64::from(count));
        }
        let answers = answers.quantiles();
        let figure = Figure::of(&each, Unit::Microseconds).with_baseline(&alone_each);
        let p50 = figure.p50;
        Ok(figure
            .with("per_second", rounded(1e6 / p50))
            .with("create_p50_us", rounded(answers.p50 / 1e3))
            .with("create_p99_us", rounded(answers.p99 / 1e3))
            .with("batches_each", appender.batches())
            .with("records_each", appender.records())
            .with_goal("p50", EACH_US, p50))
    })
}

/// The measurements of many runs.
#[derive(Debug, Default)]
pub(super) struct RunTimes {
    /// The time from the first request until the last run had ended.
    pub(super) took_ns: f64,
    /// How long each request took.
    pub(super) answers: Samples,
}

/// Clients that create runs on a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clients(pub(super) SocketAddr);

impl Clients {
    /// Creates `count` runs, and waits until all of them have completed. Without a pace, each
    /// connection creates one run after the other; with a pace, each run is created at a fixed
    /// moment.
    pub(super) async fn run(self, count: u32, pace: Option<Duration>) -> Result<RunTimes, Failure> {
        let body: Arc<str> = json!({ "workflowId": THREE_NODES }).to_string().into();
        let before = Client::connect(self.0).await?.completed().await?;
        // New connections each time, because a host closes idle ones.
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Client::connect(self.0).await?);
        }
        let next = Arc::new(AtomicU32::new(0));
        let begun = now();
        let mut creating = JoinSet::new();
        for mut client in clients {
            let (next, body) = (Arc::clone(&next), Arc::clone(&body));
            creating.spawn(async move {
                let mut answers = Samples::default();
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= count {
                        return Ok::<_, Failure>(answers);
                    }
                    if let Some(pace) = pace {
                        until(begun.after(pace * nth)).await;
                    }
                    let asked = now();
                    client.create(&body).await?;
                    answers.push(nanos_since(asked));
                }
            });
        }
        let mut ran = RunTimes::default();
        while let Some(created) = creating.join_next().await {
            ran.answers.append(created??);
        }
        let all = before + u64::from(count);
        let mut asks = Client::connect(self.0).await?;
        with_time_limit("runs to complete", async {
            while asks.completed().await? < all {
                pause(POLL_EVERY).await;
            }
            Ok(())
        })
        .await?;
        ran.took_ns = nanos_since(begun);
        Ok(ran)
    }

    /// Creates one run, checks that its log is complete, and returns its id.
    async fn check_one(self) -> Result<String, Failure> {
        let mut asks = Client::connect(self.0).await?;
        let run = asks.create(&json!({ "workflowId": THREE_NODES }).to_string()).await?;
        with_time_limit("a run to complete", async {
            loop {
                let events = asks.events(&run).await?;
                if events.last().is_some_and(|last| last["type"] == "run.completed") {
                    return if events.len() == EVENTS {
                        Ok(())
                    } else {
                        Err(format!("a run has {} events, not {EVENTS}", events.len()).into())
                    };
                }
                pause(POLL_EVERY).await;
            }
        })
        .await?;
        Ok(run)
    }
}
