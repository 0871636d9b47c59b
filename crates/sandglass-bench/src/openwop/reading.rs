//! Measures whether many readers of one run receive every event in order, and how soon, while other
//! clients create runs.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use sandglass_model::{Clock as _, SystemClock};
use serde_json::json;
use tokio::task::JoinSet;

use super::client::Client;
use super::events::{Events, Frame};
use super::holding::READERS;
use super::running::{Clients, EACH_US};
use super::server::Server;
use super::waiting::with_time_limit;
use super::workflows::{TICK_MS, TICKING, TICKS};
use crate::bench_host::one_thread;
use crate::figure::{Figure, Unit, rounded};
use crate::timing::Samples;
use crate::{Effort, Failure};

/// Time between two runs that are created meanwhile, in microseconds. It is slightly less than for
/// 500 runs a second, because the last run must end, too.
const PACE_US: u64 = 1_950;
/// Largest piece that is received at once, in bytes.
const PIECE_BYTES: usize = 2 << 10;

/// Measures the time from the decision of an event until a reader receives it.
pub(crate) fn readers(effort: Effort, program: Option<&Path>) -> Result<Figure, Failure> {
    let server = Server::start(program)?;
    let which = effort.of(0, 1) as usize;
    let (workflow, ticks) = (TICKING[which], TICKS[which]);
    // The start and the end of the run, and those of its nodes.
    let events = u64::from(ticks) * 2 + 2;
    one_thread()?.block_on(async {
        let clients = Clients(server.address);
        clients.run(effort.of(200, 1_000), None).await?;
        let body = json!({ "workflowId": workflow }).to_string();
        let run = Client::connect(server.address).await?.create(&body).await?;
        let delays = Arc::<Delays>::default();
        let mut readers = JoinSet::new();
        for _ in 0..READERS {
            let reader = Events::open(server.address, &run, None, None).await?.read_head().await?;
            readers.spawn(read(reader, events, Arc::clone(&delays)));
        }
        delays.start_measuring();
        let span = Duration::from_millis(TICK_MS) * (ticks - 1);
        let pace = Duration::from_micros(PACE_US);
        let count = u32::try_from(span.as_micros() / pace.as_micros())?;
        let ran = clients.run(count, Some(pace)).await?;
        let mut whole = 0_u32;
        with_time_limit("the readers' last event", async {
            while let Some(read) = readers.join_next().await {
                read??;
                whole += 1;
            }
            Ok(())
        })
        .await?;
        let each_us = ran.took_ns / 1e3 / f64::from(count);
        let figure = Figure::of(&delays.delays(), Unit::Milliseconds);
        Ok(figure
            .with("readers", READERS)
            .with("events", events)
            .with("runs_per_second", rounded(1e6 / each_us))
            .with("create_p99_us", rounded(ran.answers.quantiles().p99 / 1e3))
            .with_goal("readers without all events", 0.0, f64::from(READERS - whole))
            .with_goal("us for each run meanwhile", EACH_US, each_us))
    })
}

/// What the readers have received.
#[derive(Debug, Default)]
struct Delays(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    /// When each event was decided, in milliseconds since 1970, indexed by the event's number.
    decided_ms: Vec<i64>,
    /// Only events that were decided after this are measured, because not all readers were attached
    /// before.
    from_ms: Option<i64>,
    delays: Samples,
}

impl Delays {
    fn all(&self) -> std::sync::MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_measuring(&self) {
        self.all().from_ms = Some(SystemClock::new().wall().as_millis());
    }

    /// Records that a reader has received the event with this number.
    fn note(&self, id: u64, data: &str) -> Result<(), Failure> {
        let present_ms = SystemClock::new().wall().as_millis();
        let mut all = self.all();
        let at = usize::try_from(id)?;
        if all.decided_ms.len() <= at {
            let decided = timestamp_ms(data)?;
            all.decided_ms.resize(at + 1, decided);
        }
        let decided_ms = all.decided_ms[at];
        if all.from_ms.is_some_and(|from| decided_ms > from) {
            all.delays.push((present_ms - decided_ms) as f64 * 1e6);
        }
        Ok(())
    }

    fn delays(&self) -> Samples {
        self.all().delays.clone()
    }
}

/// Reads to the end. Errors if an event is not the next one, or if there are not `events` events.
async fn read(mut reader: Events, events: u64, delays: Arc<Delays>) -> Result<(), Failure> {
    let (mut next, mut wrong) = (0, None);
    let mut take = |frame: Frame<'_>| {
        let Frame::Event { id, data, .. } = frame else { return };
        if id != next {
            wrong.get_or_insert_with(|| format!("a reader had event {id}, not {next}"));
        }
        next = id + 1;
        if let Err(error) = delays.note(id, data) {
            wrong.get_or_insert_with(|| error.to_string());
        }
    };
    while reader.receive_frames(PIECE_BYTES, &mut take).await? {}
    match wrong {
        Some(wrong) => Err(wrong.into()),
        None if next == events => Ok(()),
        None => Err(format!("a reader had {next} events of {events}").into()),
    }
}

/// When an event was decided, from its JSON text. The keys of the text are sorted, so the last
/// `timestamp` is the event's own, and not one of its payload.
fn timestamp_ms(data: &str) -> Result<i64, Failure> {
    let (_, behind) = data.rsplit_once("\"timestamp\":\"").ok_or("an event without a time")?;
    let text = behind.split('"').next().unwrap_or_default();
    Ok(text.parse::<Timestamp>()?.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_event_is_its_own_and_not_its_payloads() {
        let data = r#"{"payload":{"timestamp":"x"},"timestamp":"1970-01-01T00:00:01.500Z"}"#;
        assert_eq!(timestamp_ms(data).expect("a time"), 1_500);
    }
}
