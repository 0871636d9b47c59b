//! The records of a running daemon: its stream of events.

use anyhow::{Context as _, bail};
use percent_encoding::NON_ALPHANUMERIC;
use sandglass_journal::{Entry, Found};
use sandglass_model::{Partition, Position, Record};
use serde::Deserialize;
use serde_json::Value;

use super::{Arguments, View};
use crate::duration::format_duration;
use crate::exit::Exit;
use crate::fetch::{self, Feed, RECONNECT_FIRST, RECONNECT_MAX, Received, ServerEvent};
use crate::interrupts::Interrupts;
use crate::journal_reader::Located;
use crate::terminal::{Output, note};
use crate::wait::pause;

/// Largest event, in bytes: more than the largest record of a journal.
const EVENT_MAX_BYTES: usize = 20 << 20;
/// The type of the last event of a stream that does not follow.
const END: &str = "end";
/// The type of an event about an entry that is damaged.
const DAMAGED: &str = "damaged";

/// Prints the records of the daemon at `url`, all that it has and, with --follow, each new one until
/// Ctrl-C.
pub(super) async fn print(
    arguments: &Arguments,
    url: &str,
    interrupts: &mut Interrupts,
) -> anyhow::Result<Exit> {
    let client = fetch::Client::new(&arguments.access, url)?;
    let mut printing = Printing::new(arguments);
    tokio::select! {
        printed = printing.print_all(&client) => printed,
        _ = interrupts.next() => Ok(Exit::Cancelled),
    }
}

/// An entry that is damaged, as a daemon sends it.
#[derive(Deserialize)]
struct Damaged {
    position: Position,
    damaged: String,
}

/// The partition of an event, if the daemon's journal has partitions.
#[derive(Deserialize)]
struct Partitioned {
    partition: Option<Partition>,
}

struct Printing<'a> {
    arguments: &'a Arguments,
    view: View,
    output: Output,
    /// The id of the last event.
    last: String,
}

impl<'a> Printing<'a> {
    fn new(arguments: &'a Arguments) -> Self {
        Self { arguments, view: View::new(arguments), output: Output::new(), last: "0".to_owned() }
    }

    /// The stream from the last event on.
    fn path(&self) -> String {
        let shape = self.arguments.shape.map(|system| format!("&as={}", system.as_str()));
        let follow = if self.arguments.follow { "" } else { "&follow=false" };
        let after = percent_encoding::utf8_percent_encode(&self.last, NON_ALPHANUMERIC);
        format!("/v1/events?after={after}{}{follow}", shape.unwrap_or_default())
    }

    async fn print_all(&mut self, client: &fetch::Client) -> anyhow::Result<Exit> {
        let mut stream = client.events(feed(&self.path())).await?;
        let mut wait = RECONNECT_FIRST;
        loop {
            let mut why = loop {
                match stream.next().await {
                    Ok(Some(Received::Event(event))) if event.kind == END => {
                        return Ok(Exit::of_reading(self.view.records, self.view.gaps));
                    }
                    Ok(Some(Received::Event(event))) => {
                        wait = RECONNECT_FIRST;
                        self.print(&event)?;
                        if let Some(id) = event.id {
                            self.last = id;
                        }
                    }
                    Ok(Some(Received::KeepAlive)) => {}
                    Ok(None) => break "the connection ended".to_owned(),
                    Err(error) => break format!("{error:#}"),
                }
            };
            if !self.arguments.follow {
                bail!("the daemon's records could not be read to their end: {why}");
            }
            stream = loop {
                note(&format!("{why}; reconnecting in {}", format_duration(wait)));
                pause(wait).await;
                wait = (wait * 2).min(RECONNECT_MAX);
                match client.events_again(feed(&self.path())).await? {
                    Ok(stream) => break stream,
                    Err(again) => why = again,
                }
            };
        }
    }

    fn print(&mut self, event: &ServerEvent) -> anyhow::Result<()> {
        let unreadable =
            || format!("the daemon sent an event `{}` that cannot be read", event.kind);
        if event.kind == DAMAGED {
            let Damaged { position, damaged } =
                serde_json::from_str(&event.data).with_context(unreadable)?;
            let found = Found::Entry(Entry::Damaged { position, what: damaged });
            return self.view.print(&Located { partition: partition_of(event), found });
        }
        let entity = self.arguments.entity.as_ref();
        if self.arguments.shape.is_some() {
            let value: Value = serde_json::from_str(&event.data).with_context(unreadable)?;
            self.view.records += 1;
            let is_wanted = entity.is_none_or(|one| value["session_id"] == one.to_string());
            return if is_wanted { Ok(self.output.json(&value)?) } else { Ok(()) };
        }
        let record: Record = serde_json::from_str(&event.data).with_context(unreadable)?;
        if entity.is_none_or(|one| record.entity.as_ref() == Some(one)) {
            let found = Found::Entry(Entry::Record(record));
            self.view.print(&Located { partition: partition_of(event), found })?;
        }
        Ok(())
    }
}

fn partition_of(event: &ServerEvent) -> Option<Partition> {
    // What else is in the data was read before.
    serde_json::from_str(&event.data).ok().and_then(|Partitioned { partition }| partition)
}

const fn feed(path: &str) -> Feed<'_> {
    Feed { path, what: "a stream of events", event_max_bytes: EVENT_MAX_BYTES }
}
