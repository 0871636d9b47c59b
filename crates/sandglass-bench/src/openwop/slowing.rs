//! Readers that take nothing, or a little at a time: what they cost the others, and how they
//! are let go.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::client::Client;
use super::events::{Events, Frame};
use super::running::Clients;
use super::server::Server;
use super::waiting::{patiently, pause};
use super::workflows::{LARGE, LARGE_NODES};
use crate::figure::{Figure, Unit};
use crate::ours::one_thread;
use crate::timing::{Samples, nanos_since, now};
use crate::{Effort, Failure};

/// What each event of the run says, in bytes: together more than the kernel keeps of a
/// connection.
const SAID_BYTES: usize = 400 << 10;
/// What the kernel keeps for such readers, in bytes.
const WINDOW_BYTES: u32 = 4 << 10;
/// What the second kind receives at once, in bytes, and how often: one event takes longer than
/// the host is patient.
const TRICKLE_BYTES: usize = 1 << 10;
const TRICKLE_EVERY: Duration = Duration::from_millis(100);
/// How many of each kind there are.
const EACH_KIND: u32 = 8;
/// When they have to be let go: the host's patience, and some.
const LET_GO: Duration = Duration::from_secs(45);
/// What is received at once by one who reads on, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Time for each run while such readers are attached, beside that without, by turns. In a full
/// measurement also whether they are let go, and go on where they were.
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
            silent.push(open().await?.begun().await?);
            trickling.push(tokio::spawn(trickle(open().await?.begun().await?, begun)));
        }
        let (mut each, mut baseline) = (Samples::default(), Samples::default());
        let count = effort.of(500, 2_000);
        for _ in 0..effort.of(3, 7) {
            each.push(crowd.run(count, None).await?.took_ns / f64::from(count));
            baseline.push(clients.run(count, None).await?.took_ns / f64::from(count));
        }
        let figure = Figure::of(&each, Unit::Microseconds).beside(&baseline);
        let figure = figure.with("readers", 2 * EACH_KIND).asks_ratio(1.1);
        if effort == Effort::Quick {
            trickling.iter().for_each(tokio::task::JoinHandle::abort);
            return Ok(figure);
        }
        while nanos_since(begun) < LET_GO.as_nanos() as f64 {
            pause(TRICKLE_EVERY).await;
        }
        let (mut told, mut resumed) = (0_u32, 0_u32);
        for reader in silent {
            let heard = rest(reader).await?;
            told += u32::from(heard.is_told);
            resumed += u32::from(goes_on(&crowded, &run, heard.last).await?);
        }
        for reader in trickling {
            let heard = reader.await??;
            told += u32::from(heard.is_told);
            resumed += u32::from(goes_on(&crowded, &run, heard.last).await?);
        }
        let dropped = Client::connect(crowded.address).await?.dropped().await?;
        let all = 2 * EACH_KIND;
        Ok(figure
            .with("told_why", told)
            .asks("slow readers that were kept", 0.0, f64::from(all) - dropped as f64)
            .asks("readers that could not resume", 0.0, f64::from(all - resumed)))
    })
}

/// A run with large events, which has ended.
async fn large_run(server: &Server) -> Result<String, Failure> {
    let mut client = Client::connect(server.address).await?;
    let body = json!({ "workflowId": LARGE, "inputs": { "said": "x".repeat(SAID_BYTES) } });
    let run = client.create(&body.to_string()).await?;
    let reader = Events::open(server.address, &run, None, None).await?.begun().await?;
    if !patiently("a large run", rest(reader)).await?.is_whole {
        return Err("the events of a large run end before it does".into());
    }
    Ok(run)
}

/// What a reader has heard when its stream has ended.
#[derive(Debug, Default)]
struct Heard {
    last: Option<u64>,
    is_whole: bool,
    /// Whether it was told why.
    is_told: bool,
}

impl Heard {
    fn note(&mut self, frame: &Frame<'_>) {
        match frame {
            Frame::Event { id, kind, .. } => {
                self.last = Some(*id);
                self.is_whole |= *kind == "run.completed";
            }
            Frame::Comment(text) => self.is_told |= text.starts_with("dropped"),
        }
    }
}

/// Reads what there is to be read, as fast as it comes.
async fn rest(mut reader: Events) -> Result<Heard, Failure> {
    let mut heard = Heard::default();
    // A connection that was cut off has no more.
    while let Ok(true) = reader.hear(PIECE_BYTES, &mut |frame| heard.note(&frame)).await {}
    Ok(heard)
}

/// Reads a little at a time until it has to be let go, and what is left then.
async fn trickle(mut reader: Events, begun: sandglass_model::Monotonic) -> Result<Heard, Failure> {
    let mut heard = Heard::default();
    while nanos_since(begun) < LET_GO.as_nanos() as f64 {
        let more = reader.hear(TRICKLE_BYTES, &mut |frame| heard.note(&frame)).await;
        if !matches!(more, Ok(true)) {
            return Ok(heard);
        }
        pause(TRICKLE_EVERY).await;
    }
    while let Ok(true) = reader.hear(PIECE_BYTES, &mut |frame| heard.note(&frame)).await {}
    Ok(heard)
}

/// Whether one who has heard all up to `last` gets the others.
async fn goes_on(server: &Server, run: &str, last: Option<u64>) -> Result<bool, Failure> {
    let mut next = last.map_or(0, |last| last + 1);
    let mut is_in_order = true;
    let mut is_whole = false;
    let mut reader = Events::open(server.address, run, last, None).await?.begun().await?;
    let mut take = |frame: Frame<'_>| {
        if let Frame::Event { id, kind, .. } = frame {
            is_in_order &= id == next;
            next = id + 1;
            is_whole |= kind == "run.completed";
        }
    };
    patiently("the rest of a run's events", async {
        while reader.hear(PIECE_BYTES, &mut take).await? {}
        Ok(())
    })
    .await?;
    Ok(is_in_order && is_whole && next == u64::from(LARGE_NODES) * 2 + 2)
}
