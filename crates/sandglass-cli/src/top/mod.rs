//! The live view of a daemon: follows what it tells, and shows it.
//!
//! ```text
//! daemon ── scenes ──▶ source ── news ──▶ show ── lines (drawing) ──▶ screen
//!             (comes again when it ends)   ▲
//!                 keys, resizes, the tick ─┘
//! ```

mod drawing;
mod scene;
mod screen;
mod source;

use std::time::Duration;

use anyhow::Context as _;
use sandglass_model::{Clock as _, Monotonic, SystemClock};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::play::every;
use crate::terminal::Output;

use drawing::View;
use scene::Scene;
use screen::Screen;
pub(crate) use source::Source;
use source::{News, follow};

/// How often figures go on by themselves.
const TICK: Duration = Duration::from_millis(250);
/// News that wait to be shown: the latest is enough.
const NEWS_MAX: usize = 1;
/// Columns and rows of what is printed where there is no terminal.
const PAPER: (u16, u16) = (120, u16::MAX);

/// Prints scenes as JSON, a line each: `most` of them, or all that come.
pub(crate) async fn print_json(source: Source, most: Option<usize>) -> anyhow::Result<Exit> {
    let mut interrupts = Interrupts::listen()?;
    let mut output = Output::new();
    let mut scenes = source.scenes().await?;
    let mut printed = 0;
    while most.is_none_or(|most| printed < most) {
        let scene = tokio::select! {
            scene = scenes.next() => scene?,
            _ = interrupts.next() => return Ok(Exit::Cancelled),
        };
        let Some(data) = scene else { break };
        output.line(serde_json::from_str::<serde_json::Value>(&data)?)?;
        printed += 1;
    }
    Ok(Exit::Ok)
}

/// Prints one moment, for whoever reads it later.
pub(crate) async fn print_once(source: Source, name: &str) -> anyhow::Result<Exit> {
    let scene = source.scenes().await?.next().await?;
    let scene = Scene::read(&scene.context("the daemon told nothing")?)?;
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
    // Before the screen is touched: a wrong address is an error among others.
    let scenes = source.scenes().await?;
    let (sender, mut news) = mpsc::channel(NEWS_MAX);
    tokio::spawn(follow(source, scenes, sender));
    let mut resized = signal(SignalKind::window_change()).context("can't listen for resizes")?;
    let mut screen = Screen::open().context("can't use the terminal")?;
    let mut keys = screen.keys();
    let mut tick = every(TICK);
    let mut shown = Shown::default();
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
#[derive(Default)]
struct Shown {
    clock: SystemClock,
    scene: Option<(Scene, Monotonic)>,
    away: Option<String>,
}

impl Shown {
    fn take(&mut self, heard: Option<News>) -> anyhow::Result<()> {
        match heard.context("the daemon is followed no more")? {
            News::Scene(scene) => {
                self.scene = Some((scene, self.clock.now()));
                self.away = None;
            }
            News::Away(why) => self.away = Some(why),
            News::Refused(why) => return Err(why),
        }
        Ok(())
    }

    fn lines(&self, name: &str, size: (u16, u16), paint: &drawing::Paint<'_>) -> Vec<String> {
        let Some((scene, heard_at)) = &self.scene else {
            return vec![format!("{name}: connected")];
        };
        let passed = self.clock.now().since(*heard_at);
        View { name, scene, passed, away: self.away.as_deref() }.lines(size, paint)
    }
}
