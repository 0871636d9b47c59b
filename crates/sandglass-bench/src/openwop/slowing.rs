//! Measures what readers cost the others if they receive nothing or only a little at a time, and
//! checks how the host drops them.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::client::Client;
use super::events::{Events, Frame};
use super::running::Clients;
use super::server::Server;
use super::waiting::{pause, with_time_limit};
use super::workflows::{LARGE, LARGE_NODES};
use crate::bench_host::one_thread;
use crate::figure::{Figure, Unit};
use crate::timing::{Samples, nanos_since, now};
use crate::{Effort, Failure};

/// The payload of each event of the run, in bytes. Together, the events exceed what the kernel
/// buffers for a connection.
const SAID_BYTES: usize = 400 << 10;
/// The kernel's receive buffer for such readers, in bytes.
const WINDOW_BYTES: u32 = 4 << 10;
/// How much a trickling reader receives at once, in bytes, and how often: one event takes longer
/// than the host waits.
const TRICKLE_BYTES: usize = 1 << 10;
const TRICKLE_EVERY: Duration = Duration::from_millis(100);
/// The number of readers of each kind.
const EACH_KIND: u32 = 8;
/// When the host must have dropped them: the host's limit, and some slack.
const LET_GO: Duration = Duration::from_secs(45);
/// Largest piece that is received at once when a reader catches up, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Measures the time for each run while such readers are attached, beside that without them, by
/// turns. A full measurement also checks that the host drops the readers, and that they can resume
/// where they were.
pub(crate) fn slow_readers(effort: Effort, program: Option<&Path>) -> Result<Figure, Failure> {
    let (alone, crowded) = (Server::start(program)?, Server::start(program)?);
    one_thread()?.block_on(async {
        let (clients, crowd) = (Clients(alone.address), Clients(crowded.address));
        let warm = effort.of(500, 1_000);
        clients.run(warm, None).await?;
        crowd.run(warm, None).await?;
        let run = large_run(&crowded).await?;
        let begun = now();
        let mut silent = Vec::new();
        let mut trickling = Vec::new();
        for _ in 0..EACH_KIND {
            let open = || Events::open(crowded.address, &run, None, Some(WINDOW_BYTES));
            silent.push(open().await?.read_head().await?);
            trickling.push(tokio::spawn(trickle(open().await?.read_head().await?, begun)));
        }
        let (mut each, mut baseline) = (Samples::default(), Samples::default());
        let count = effort.of(500, 2_000);
        for _ in 0..effort.of(3, 7) {
            each.push(crowd.run(count, None).await?.took_ns / f64::from(count));
            baseline.push(clients.run(count, None).await?.took_ns / f64::from(count));
        }
        let figure = Figure::of(&each, Unit::Microseconds).with_baseline(&baseline);
        let figure = figure.with("readers", 2 * EACH_KIND).with_ratio_goal(1.1);
        if effort == Effort::Quick {
            trickling.iter().for_each(tokio::task::JoinHandle::abort);
            return Ok(figure);
        }
        while nanos_since(begun) < LET_GO.as_nanos() as f64 {
            pause(TRICKLE_EVERY).await;
        }
        let (mut explained, mut resumed) = (0_u32, 0_u32);
        let mut all_received = Vec::new();
        for reader in silent {
            all_received.push(read_rest(reader).await?);
        }
        for reader in trickling {
            all_received.push(reader.await??);
        }
        for received in all_received {
            explained += u32::from(received.has_reason);
            resumed += u32::from(can_resume(&crowded, &run, received.last).await?);
        }
        let dropped = Client::connect(crowded.address).await?.dropped().await?;
        let all = 2 * EACH_KIND;
        Ok(figure
            .with("told_why", explained)
            .with_goal("slow readers that were kept", 0.0, f64::from(all) - dropped as f64)
            .with_goal("readers that could not resume", 0.0, f64::from(all - resumed)))
    })
}

/// Creates a run with large events, and waits until it has ended.
async fn large_run(server: &Server) -> Result<String, Failure> {
    let mut client = Client::connect(server.address).await?;
    let body = json!({ "workflowId": LARGE, "inputs": { "said": "x".repeat(SAID_BYTES) } });
    let run = client.create(&body.to_string()).await?;
    let reader = Events::open(server.address, &run, None, None).await?.read_head().await?;
    if !with_time_limit("a large run", read_rest(reader)).await?.is_whole {
        return Err("the events of a large run end before it does".into());
    }
    Ok(run)
}

/// What a reader has received when its stream has ended.
#[derive(Debug, Default)]
struct Received {
    last: Option<u64>,
    is_whole: bool,
    /// Whether the host stated why it dropped the reader.
    has_reason: bool,
}

impl Received {
    fn note(&mut self, frame: &Frame<'_>) {
        match frame {
            Frame::Event { id, kind, .. } => {
                self.last = Some(*id);
                self.is_whole |= *kind == "run.completed";
            }
            Frame::Comment(text) => self.has_reason |= text.starts_with("dropped"),
        }
    }
}

/// Reads the remaining events, as fast as they come.
async fn read_rest(mut reader: Events) -> Result<Received, Failure> {
    let mut received = Received::default();
    // A connection that was cut off has no more events, so an error ends the stream, too.
    while let Ok(true) =
        reader.receive_frames(PIECE_BYTES, &mut |frame| received.note(&frame)).await
    {}
    Ok(received)
}

/// Reads a little at a time until the host must have dropped the reader, and then what remains.
async fn trickle(
    mut reader: Events,
    begun: sandglass_model::Monotonic,
) -> Result<Received, Failure> {
    let mut received = Received::default();
    while nanos_since(begun) < LET_GO.as_nanos() as f64 {
        let has_more =
            reader.receive_frames(TRICKLE_BYTES, &mut |frame| received.note(&frame)).await;
        if !matches!(has_more, Ok(true)) {
            return Ok(received);
        }
        pause(TRICKLE_EVERY).await;
    }
    while let Ok(true) =
        reader.receive_frames(PIECE_BYTES, &mut |frame| received.note(&frame)).await
    {}
    Ok(received)
}

/// Whether a reader that has received everything up to `last` can resume and receives the rest.
async fn can_resume(server: &Server, run: &str, last: Option<u64>) -> Result<bool, Failure> {
    let mut next = last.map_or(0, |last| last + 1);
    let mut is_in_order = true;
    let mut is_whole = false;
    let mut reader = Events::open(server.address, run, last, None).await?.read_head().await?;
    let mut take = |frame: Frame<'_>| {
        if let Frame::Event { id, kind, .. } = frame {
            is_in_order &= id == next;
            next = id + 1;
            is_whole |= kind == "run.completed";
        }
    };
    with_time_limit("the rest of a run's events", async {
        while reader.receive_frames(PIECE_BYTES, &mut take).await? {}
        Ok(())
    })
    .await?;
    Ok(is_in_order && is_whole && next == u64::from(LARGE_NODES) * 2 + 2)
}
