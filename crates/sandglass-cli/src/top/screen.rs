//! The terminal while the live view occupies it: the alternate screen, without echo and without a
//! cursor. Dropping [`Screen`] restores the terminal, however the view ends.

use std::io::{self, IsTerminal as _, Stdout};

use anyhow::{Context as _, ensure};
use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::text::{Line, Text};
use ratatui::{Terminal, TerminalOptions, Viewport};

/// The size if the terminal does not report one: that of a VT100.
const SIZE_UNKNOWN: (u16, u16) = (80, 24);

/// The terminal, until it is dropped.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    size: (u16, u16),
}

impl Screen {
    /// # Errors
    /// Errors if standard input is not a terminal, or the terminal cannot be set up.
    pub(super) fn open() -> anyhow::Result<Self> {
        ensure!(io::stdin().is_terminal(), "standard input is not a terminal; use --once");
        let size = size();
        // The viewport is fixed because ratatui would otherwise ask the terminal for its size at
        // each frame, and draw nothing on one that reports 0 columns.
        let options = TerminalOptions { viewport: Viewport::Fixed(area(size)) };
        let terminal = Terminal::with_options(CrosstermBackend::new(io::stdout()), options)?;
        // Created before the terminal is changed, so that an error below restores it.
        let screen = Self { terminal, size };
        enable_raw_mode().context("can't use the terminal")?;
        execute!(io::stdout(), EnterAlternateScreen, Hide).context("can't use the terminal")?;
        Ok(screen)
    }

    /// Reads the terminal's size again, after a resize.
    ///
    /// # Errors
    /// Errors if the terminal is gone.
    pub(super) fn resize(&mut self) -> anyhow::Result<()> {
        self.size = size();
        self.terminal.resize(area(self.size)).context("can't write to the terminal")
    }

    /// Draws the lines that `lines` returns for the size in columns and rows.
    ///
    /// # Errors
    /// Errors if the terminal is gone.
    pub(super) fn draw(
        &mut self,
        lines: impl FnOnce((u16, u16)) -> Vec<Line<'static>>,
    ) -> anyhow::Result<()> {
        let text = Text::from(lines(self.size));
        let drawn = self.terminal.draw(|frame| frame.render_widget(text, frame.area()));
        drawn.map(drop).context("can't write to the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs neither.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Columns and rows of the terminal.
fn size() -> (u16, u16) {
    let size = crossterm::terminal::size().ok();
    size.filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or(SIZE_UNKNOWN)
}

const fn area((columns, rows): (u16, u16)) -> Rect {
    Rect::new(0, 0, columns, rows)
}
