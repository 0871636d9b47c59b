//! The live view of a daemon: follows its snapshots, and shows or prints them.
//!
//! ```text
//! daemon ── scenes ──▶ source ── updates ──▶ show ── lines (view) ──▶ screen
//!          (reconnects when they end)         ▲
//!                keys and resizes, the tick ──┘
//! ```

mod scene;
mod screen;
mod source;
mod view;

use std::time::Duration;

use anyhow::Context as _;
use crossterm::event::{Event, EventStream, KeyCode, KeyModifiers};
use ratatui::text::Line;
use sandglass_model::{Clock as _, Monotonic, SystemClock};
use sandglass_source::printable;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;

use crate::duration::format_millis_exactly;
use crate::exit::Exit;
use crate::fetch::Received;
use crate::interrupts::Interrupts;
use crate::reader::Reader;
use crate::terminal::Output;
use crate::wait::{every, pause};

use scene::Scene;
use screen::Screen;
pub(crate) use source::Source;
use source::{Update, follow};
use view::View;

/// How often times advance without an update.
const TICK: Duration = Duration::from_millis(250);
/// Updates that wait to be shown: only the latest matters.
const UPDATES_MAX: usize = 1;
/// How long a connection may take before the terminal shows that it is pending.
const SOON: Duration = Duration::from_millis(500);
/// After how many halves of the keep-alive interval the view reports silence.
const DOUBTED_AFTER: u32 = 3;
/// Columns and rows if standard output is not a terminal.
const PAPER: (u16, u16) = (120, u16::MAX);

/// Prints each snapshot as a line of JSON.
pub(crate) async fn print_json(source: Source) -> anyhow::Result<Exit> {
    let mut interrupts = Interrupts::listen()?;
    let output = Output::new();
    let reader = Reader::of_stdout();
    let print = async {
        let mut scenes = source.connect().await?;
        while let Some(received) = scenes.next().await? {
            if let Received::Event(event) = received {
                output.json(&serde_json::from_str::<Value>(&event.data)?)?;
            }
        }
        Ok(Exit::Ok)
    };
    tokio::select! {
        printed = print => printed,
        () = reader.gone() => Ok(Exit::Ok),
        _ = interrupts.next() => Ok(Exit::Cancelled),
    }
}

/// Prints one snapshot as JSON.
pub(crate) async fn print_json_once(source: Source) -> anyhow::Result<Exit> {
    let scene = source.once().await?;
    Output::new().json(&serde_json::from_str::<Value>(&scene)?)?;
    Ok(Exit::Ok)
}

/// Prints one snapshot as text.
pub(crate) async fn print_once(source: Source, address: &str) -> anyhow::Result<Exit> {
    let scene = Scene::read(&source.once().await?)?;
    let output = Output::new();
    let view = View { address, scene: &scene, age: Duration::ZERO, problem: None };
    for line in view.lines(PAPER) {
        let line = output.styled(&line);
        output.line(line.trim_end())?;
    }
    Ok(Exit::Ok)
}

/// Shows each snapshot on the terminal, until a key or a signal ends it.
pub(crate) async fn show(source: Source, address: &str) -> anyhow::Result<Exit> {
    let mut interrupts = Interrupts::listen()?;
    let (sender, mut updates) = mpsc::channel(UPDATES_MAX);
    tokio::spawn(follow(source, sender));
    let mut latest = Latest::default();
    // Before the screen is entered, so that a wrong address is reported like other errors.
    tokio::select! {
        update = updates.recv() => latest.take(update)?,
        () = pause(SOON) => {}
        _ = interrupts.next() => return Ok(Exit::Cancelled),
    }
    let mut screen = Screen::open()?;
    let mut events = EventStream::new();
    let mut tick = every(TICK);
    let color = Output::new().color();
    loop {
        tokio::select! {
            update = updates.recv() => latest.take(update)?,
            Some(event) = events.next() => match event.context("can't read from the terminal")? {
                Event::Resize(..) => screen.resize()?,
                event => if let Some(exit) = exit_of(&event) { return Ok(exit) },
            },
            _ = tick.tick() => {}
            _ = interrupts.next() => return Ok(Exit::Cancelled),
        }
        screen.draw(|size| {
            let lines = latest.lines(address, size);
            if color {
                lines
            } else {
                lines.iter().map(|line| Line::raw(line.to_string())).collect()
            }
        })?;
    }
}

/// How the view ends if `event` is a key that ends it. In raw mode Ctrl-C is a key, not a signal.
fn exit_of(event: &Event) -> Option<Exit> {
    let key = event.as_key_press_event()?;
    match key.code {
        KeyCode::Char('q') => Some(Exit::Ok),
        KeyCode::Char('c') if key.modifiers == KeyModifiers::CONTROL => Some(Exit::Cancelled),
        _ => None,
    }
}

/// The latest snapshot, and the state of the connection.
struct Latest {
    clock: SystemClock,
    scene: Option<(Scene, Monotonic)>,
    /// When the daemon last sent anything, or when the view started.
    alive_at: Monotonic,
    /// The longest silence of a healthy connection; `None` before the first one.
    keep_alive: Option<Duration>,
    disconnected: Option<String>,
}

impl Default for Latest {
    fn default() -> Self {
        let clock = SystemClock::new();
        let alive_at = clock.now();
        Self { clock, scene: None, alive_at, keep_alive: None, disconnected: None }
    }
}

impl Latest {
    fn take(&mut self, update: Option<Update>) -> anyhow::Result<()> {
        match update.context("the connection's task has ended")? {
            Update::Connected(keep_alive) => self.keep_alive = Some(keep_alive),
            Update::Alive => self.mark_alive(),
            Update::Scene(scene) => {
                self.mark_alive();
                self.scene = Some((scene, self.alive_at));
            }
            Update::Disconnected(why) => self.disconnected = Some(why),
            Update::Refused(why) => return Err(why),
        }
        Ok(())
    }

    fn mark_alive(&mut self) {
        self.alive_at = self.clock.now();
        self.disconnected = None;
    }

    /// Why there are no updates, if there should be some.
    fn problem(&self, now: Monotonic) -> Option<String> {
        let silent = now.since(self.alive_at);
        let is_silent =
            self.keep_alive.is_some_and(|keep_alive| silent > keep_alive * DOUBTED_AFTER / 2);
        // In whole seconds, because the line would flicker otherwise.
        let silent = format_millis_exactly(silent.as_secs().saturating_mul(1000));
        match &self.disconnected {
            Some(why) => Some(format!("no updates for {silent}: {why}")),
            None => is_silent.then(|| format!("no updates for {silent}")),
        }
    }

    fn lines(&self, address: &str, size: (u16, u16)) -> Vec<Line<'static>> {
        let now = self.clock.now();
        let problem = self.problem(now);
        let Some((scene, received_at)) = &self.scene else {
            let state = if self.keep_alive.is_some() { "connected" } else { "connecting" };
            let state = problem.as_deref().unwrap_or(state);
            return vec![Line::raw(printable(&format!("{address}: {state}")).into_owned())];
        };
        let age = now.since(*received_at);
        View { address, scene, age, problem: problem.as_deref() }.lines(size)
    }
}
