//! The live view of a daemon: follows what it tells, and shows it.
//!
//! ```text
//! daemon ── scenes ──▶ source ── news ──▶ show ── lines (drawing) ──▶ screen
//!             (comes again when it ends)   ▲
//!                 keys, resizes, the tick ─┘
//! ```

mod drawing;
mod reader;
mod scene;
mod screen;
mod source;

use std::time::Duration;

use anyhow::Context as _;
use sandglass_model::{Clock as _, Monotonic, SystemClock};
use sandglass_source::printable;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::duration::exact_millis;
use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::play::{every, pause};
use crate::terminal::Output;

use drawing::View;
use reader::Reader;
use scene::Scene;
use screen::Screen;
pub(crate) use source::Source;
use source::{News, follow};

/// How often figures go on by themselves.
const TICK: Duration = Duration::from_millis(250);
/// News that wait to be shown: the latest is enough.
const NEWS_MAX: usize = 1;
/// How long a connection may take before the terminal shows that it is waited for.
const SOON: Duration = Duration::from_millis(500);
/// After how many halves of the longest silence of a daemon that lives it is doubted.
const DOUBTED_AFTER: u32 = 3;
/// Columns and rows of what is printed where there is no terminal.
const PAPER: (u16, u16) = (120, u16::MAX);

/// Prints scenes as JSON, a line each, as they come.
pub(crate) async fn print_json(source: Source) -> anyhow::Result<Exit> {
    let mut interrupts = Interrupts::listen()?;
    let mut output = Output::new();
    let reader = Reader::of_output();
    let mut scenes = tokio::select! {
        scenes = source.scenes() => scenes?,
        () = reader.gone() => return Ok(Exit::Ok),
        _ = interrupts.next() => return Ok(Exit::Cancelled),
    };
    loop {
        let scene = tokio::select! {
            scene = scenes.next() => scene?,
            () = reader.gone() => return Ok(Exit::Ok),
            _ = interrupts.next() => return Ok(Exit::Cancelled),
        };
        let Some(data) = scene else { break };
        output.json(&serde_json::from_str::<serde_json::Value>(&data)?)?;
    }
    Ok(Exit::Ok)
}

/// Prints one moment as JSON.
pub(crate) async fn print_json_once(source: Source) -> anyhow::Result<Exit> {
    let scene = source.once().await?;
    Output::new().json(&serde_json::from_str::<serde_json::Value>(&scene)?)?;
    Ok(Exit::Ok)
}

/// Prints one moment, for whoever reads it later.
pub(crate) async fn print_once(source: Source, name: &str) -> anyhow::Result<Exit> {
    let scene = Scene::read(&source.once().await?)?;
    let mut output = Output::new();
    let view = View { name, scene: &scene, passed: Duration::ZERO, away: None };
    for line in view.lines(PAPER, &|tone, text| output.paint(tone, text).into_owned()) {
        output.line(line)?;
    }
    Ok(Exit::Ok)
}

/// What ends the view, beside Ctrl-C.
const QUIT: u8 = b'q';

/// Shows every change, until somebody has seen enough.
pub(crate) async fn show(source: Source, name: &str) -> anyhow::Result<Exit> {
    let mut interrupts = Interrupts::listen()?;
    let (sender, mut news) = mpsc::channel(NEWS_MAX);
    tokio::spawn(follow(source, sender));
    let mut shown = Shown::default();
    // Before the screen is touched: a wrong address is an error among others.
    tokio::select! {
        heard = news.recv() => shown.take(heard)?,
        () = pause(SOON) => {}
        _ = interrupts.next() => return Ok(Exit::Cancelled),
    }
    let mut resized = signal(SignalKind::window_change()).context("can't listen for resizes")?;
    let mut screen = Screen::open().context("can't use the terminal")?;
    let mut keys = screen.keys();
    let mut tick = every(TICK);
    let output = Output::new();
    let paint = |tone, text: &str| output.paint(tone, text).into_owned();
    loop {
        tokio::select! {
            heard = news.recv() => shown.take(heard)?,
            Some(key) = keys.recv() => if key == QUIT { return Ok(Exit::Ok) },
            Some(()) = resized.recv() => screen.measure(),
            _ = tick.tick() => {}
            _ = interrupts.next() => return Ok(Exit::Cancelled),
        }
        screen.draw(|size| shown.lines(name, size, &paint))?;
    }
}

/// The last that was heard.
struct Shown {
    clock: SystemClock,
    scene: Option<(Scene, Monotonic)>,
    /// When there was a sign of life, or when it began.
    alive_at: Monotonic,
    /// The longest silence of a daemon that lives, once there is a connection.
    keep_alive: Option<Duration>,
    away: Option<String>,
}

impl Default for Shown {
    fn default() -> Self {
        let clock = SystemClock::new();
        let alive_at = clock.now();
        Self { clock, scene: None, alive_at, keep_alive: None, away: None }
    }
}

impl Shown {
    fn take(&mut self, heard: Option<News>) -> anyhow::Result<()> {
        match heard.context("the daemon is followed no more")? {
            News::Connected(keep_alive) => self.keep_alive = Some(keep_alive),
            News::Alive => self.lives(),
            News::Scene(scene) => {
                self.lives();
                self.scene = Some((scene, self.alive_at));
            }
            News::Away(why) => self.away = Some(why),
            News::Refused(why) => return Err(why),
        }
        Ok(())
    }

    fn lives(&mut self) {
        self.alive_at = self.clock.now();
        self.away = None;
    }

    /// Why there is no news, where there should be some.
    fn away(&self, now: Monotonic) -> Option<String> {
        let silent = now.since(self.alive_at);
        let is_doubted =
            self.keep_alive.is_some_and(|keep_alive| silent > keep_alive * DOUBTED_AFTER / 2);
        // Nobody counts in fractions how long they wait.
        let silent = exact_millis(silent.as_secs().saturating_mul(1000));
        match &self.away {
            Some(why) => Some(format!("no news for {silent}: {why}")),
            None => is_doubted.then(|| format!("no news for {silent}")),
        }
    }

    fn lines(&self, name: &str, size: (u16, u16), paint: &drawing::Paint<'_>) -> Vec<String> {
        let now = self.clock.now();
        let away = self.away(now);
        let Some((scene, heard_at)) = &self.scene else {
            let begun = if self.keep_alive.is_some() { "connected" } else { "connecting" };
            let how = away.as_deref().unwrap_or(begun);
            return vec![printable(&format!("{name}: {how}")).into_owned()];
        };
        let passed = now.since(*heard_at);
        View { name, scene, passed, away: away.as_deref() }.lines(size, paint)
    }
}
