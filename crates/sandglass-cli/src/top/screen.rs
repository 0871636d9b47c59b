//! The terminal while the live view has it: on its other screen, without echo, and given back
//! as it was, however the view ends. `stty` sets it, which every Unix has: the system's own
//! interface takes `unsafe`, and a library for it brings an event loop of its own.

use std::io::{self, Read as _, Stdout, Write as _};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, ensure};
use tokio::sync::mpsc;

/// Keys that wait to be heard: more than anybody presses between two frames.
const KEYS_MAX: usize = 16;
/// What is taken for the size of a terminal that doesn't say it: what it was for long.
const SIZE_UNKNOWN: (u16, u16) = (80, 24);

/// Onto the other screen, without a cursor, and cutting lines at the edge; and back.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
const LEAVE: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
/// To the first place; clear to the end of the line; clear all below.
const HOME: &str = "\u{1b}[H";
const CLEAR_LINE: &str = "\u{1b}[K";
const CLEAR_BELOW: &str = "\u{1b}[J";

/// The terminal, until it is dropped.
#[derive(Debug)]
pub(super) struct Screen {
    out: Stdout,
    /// How it was set before, as `stty` says it.
    before: String,
    /// Columns and rows.
    size: (u16, u16),
}

impl Screen {
    /// # Errors
    /// Standard input is no terminal, or there is no `stty`.
    pub(super) fn open() -> anyhow::Result<Self> {
        let before = stty(&["-g"])?.trim().to_owned();
        // From here on it is given back. Ctrl-C stays a signal; who stops the process with
        // Ctrl-Z would find the terminal as it is here, so that does nothing.
        let mut screen = Self { out: io::stdout(), before, size: SIZE_UNKNOWN };
        stty(&["-icanon", "-echo", "min", "1", "susp", "undef"])?;
        screen.put(ENTER)?;
        screen.measure();
        Ok(screen)
    }

    /// Asks the terminal how large it is, after it may have changed.
    pub(super) fn measure(&mut self) {
        let said = stty(&["size"]).ok();
        let size = said.as_deref().and_then(size_of);
        self.size = size.unwrap_or(SIZE_UNKNOWN);
    }

    /// What is typed. The thread that reads it ends with the process: nothing takes it out of
    /// its wait.
    pub(super) fn keys(&self) -> mpsc::Receiver<u8> {
        let (sender, keys) = mpsc::channel(KEYS_MAX);
        let listen = move || {
            for byte in io::stdin().lock().bytes().map_while(Result::ok) {
                if sender.blocking_send(byte).is_err() {
                    return;
                }
            }
        };
        // Without it `q` isn't heard, but Ctrl-C is.
        drop(thread::Builder::new().name("sandglass-keys".to_owned()).spawn(listen));
        keys
    }

    /// Draws the lines that fit the terminal. None has a control character but those of
    /// colours.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn draw(
        &mut self,
        lines: impl FnOnce((u16, u16)) -> Vec<String>,
    ) -> anyhow::Result<()> {
        let lines = lines(self.size);
        let end = format!("{CLEAR_LINE}\r\n");
        self.put(&format!("{HOME}{}{CLEAR_LINE}{CLEAR_BELOW}", lines.join(&end)))
    }

    fn put(&mut self, text: &str) -> anyhow::Result<()> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.context("can't write to the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs neither.
        let _ = self.put(LEAVE);
        let _ = stty(&[&self.before]);
    }
}

/// What `stty` says of the terminal at standard input.
fn stty(arguments: &[&str]) -> anyhow::Result<String> {
    let mut stty = Command::new("stty");
    stty.args(arguments).stdin(Stdio::inherit()).stderr(Stdio::null());
    let said = stty.output().context("can't run `stty`")?;
    ensure!(said.status.success(), "standard input is no terminal; --once needs none");
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

/// The columns and rows that `stty size` says; none where the terminal doesn't know them.
fn size_of(said: &str) -> Option<(u16, u16)> {
    let (rows, columns) = said.trim().split_once(' ')?;
    let size = (columns.parse().ok()?, rows.parse().ok()?);
    (size.0 > 0 && size.1 > 0).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_read_and_one_that_is_not_known_is_none() {
        assert_eq!(size_of("24 80\n"), Some((80, 24)));
        for unknown in ["0 0\n", "", "24", "x y", "70000 70000"] {
            assert_eq!(size_of(unknown), None, "{unknown:?}");
        }
    }
}
