//! The terminal of the screen, which is always restored.

use std::{
    io::{self, Stdout},
    mem::ManuallyDrop,
    panic,
    sync::Once,
};

use crossterm::{
    cursor::Show,
    execute,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{CompletedFrame, Frame, Terminal, backend::CrosstermBackend};

/// The terminal, on its other screen and without echo until this is dropped. A panic restores it before its message.
///
/// The inner terminal is not dropped: it would print an error if the terminal has gone, which panics if the standard
/// error is that terminal.
pub(super) struct Screen(ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>);

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        enable_raw_mode()?;
        let message = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            message(panic);
        }));
        let opened = execute!(io::stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        if opened.is_err() {
            restore();
        }
        opened.map(|terminal| Self(ManuallyDrop::new(terminal)))
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<CompletedFrame<'_>> {
        self.0.draw(draw)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, once: leaving the other screen a second time would move the cursor.
fn restore() {
    static RESTORED: Once = Once::new();
    RESTORED.call_once(|| {
        // A terminal that has gone cannot be restored.
        let _ = disable_raw_mode();
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    });
}
