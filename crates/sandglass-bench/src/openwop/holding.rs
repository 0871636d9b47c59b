//! Measures how much of the host's memory an idle reader of events takes.

use std::path::Path;

use serde_json::json;

use super::client::Client;
use super::events::Events;
use super::server::Server;
use super::waiting::with_time_limit;
use super::workflows::WAITING;
use crate::bench_host::one_thread;
use crate::figure::{Figure, Unit};
use crate::timing::Samples;
use crate::{Effort, Failure};

/// Readers at once.
pub(super) const READERS: u32 = 2_000;
/// What each reader may take, in bytes.
const EACH_BYTES: f64 = (20 << 10) as f64;
/// The number of events: the start of the run and of its node.
const EVENTS: u64 = 2;
/// Largest piece that is received at once, in bytes.
const PIECE_BYTES: usize = 2 << 10;

/// Measures the host's resident bytes for each of [`READERS`] readers that have received all events
/// and wait. The same number of other readers attach before them: those also use up memory that the
/// host has already allocated and no longer needs.
pub(crate) fn memory(effort: Effort, program: Option<&Path>) -> Result<Figure, Failure> {
    let (mut samples, mut first) = (Samples::default(), Samples::default());
    for _ in 0..effort.of(1, 3) {
        let server = Server::start(program)?;
        let [before, each] = one_thread()?.block_on(each_bytes(&server))?;
        samples.push(each);
        first.push(before);
    }
    let figure = Figure { samples: u64::from(READERS), ..Figure::of(&samples, Unit::Bytes) };
    let p50 = figure.p50;
    let first = first.quantiles().p50;
    Ok(figure.with("first_readers_bytes", first).with_goal("p50", EACH_BYTES, p50))
}

/// What each of the first readers takes, and what each of the later readers takes.
async fn each_bytes(server: &Server) -> Result<[f64; 2], Failure> {
    let body = json!({ "workflowId": WAITING }).to_string();
    let run = Client::connect(server.address).await?.create(&body).await?;
    let mut readers = Vec::new();
    let mut each = [0.0; 2];
    for bytes in &mut each {
        let before = server.resident_bytes()?;
        for _ in 0..READERS {
            readers.push(attach_reader(server, &run).await?);
        }
        let added = server.resident_bytes()?.saturating_sub(before);
        *bytes = added as f64 / f64::from(READERS);
    }
    drop(readers);
    Ok(each)
}

/// Attaches a reader, which has received all events when this returns.
async fn attach_reader(server: &Server, run: &str) -> Result<Events, Failure> {
    with_time_limit("the events of a run", async {
        let mut events = Events::open(server.address, run, None, None).await?.read_head().await?;
        let mut received = 0;
        while received < EVENTS {
            if !events.receive_frames(PIECE_BYTES, &mut |_| received += 1).await? {
                return Err("the events of a run that waits have ended".into());
            }
        }
        Ok(events)
    })
    .await
}
