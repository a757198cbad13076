//! `tollgate top`: what a server does now, in a terminal.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use clap::{Arg, ArgAction, ArgMatches, Command};
use crossterm::{
    event::{Event as Input, EventStream, KeyCode, KeyEventKind, KeyModifiers},
    style::Colored,
};
use futures_util::StreamExt as _;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, interval},
};

use crate::cli::{
    admin_client::{self, AdminClient},
    help::examples,
    output::print,
    runtime::block_on,
    top::{
        figures::figures,
        history::History,
        screen::{Palette, View, draw, figure_text, instant},
        stream::{Event, Line, Stream, follow},
        table::{Kind, Order, table},
        terminal::Screen,
    },
};

mod figures;
mod history;
mod numbers;
mod sample;
#[cfg(test)]
mod samples;
mod screen;
mod stream;
mod table;
mod terminal;

/// The number of samples that wait to be shown.
const EVENTS_MAX: usize = 4;
/// The time after which the screen is drawn again if nothing happens: it shows ages in seconds.
const REDRAW: Duration = Duration::from_secs(1);
/// The number of keys, and of rules, that `--once` prints.
const LISTED_MAX: usize = 10;

pub(super) fn command() -> Command {
    let once = Arg::new("once")
        .long("once")
        .action(ArgAction::SetTrue)
        .help("Print the figures of one second as text, and exit");
    Command::new("top")
        .about("Show what a server does now, in the terminal: rates, latency, counters, rules, the most refused keys")
        .after_help(examples(&[
            "tollgate top",
            "tollgate top --to 10.0.0.7:6070 --token-file token --once",
        ]))
        .args(admin_client::args())
        .arg(once)
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let server = AdminClient::from_matches(matches);
    let shown = if matches.get_flag("once") {
        return match block_on(once(&server)) {
            Ok(text) => print(text.as_bytes()),
            Err(why) => failure(&why),
        };
    } else if io::stdout().is_terminal() {
        block_on(watch(server))
    } else {
        Err("the standard output is not a terminal; `tollgate top --once` prints the figures as text"
            .to_owned())
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => failure(&why),
    }
}

fn failure(why: &str) -> ExitCode {
    // A terminal that has gone takes no message.
    let _ = writeln!(io::stderr(), "{why}");
    ExitCode::FAILURE
}

/// The figures as text: those of the second between two samples.
async fn once(server: &AdminClient) -> Result<String, String> {
    let (mut stream, mut history) = (Stream::open(server).await?, History::default());
    let mut samples = 0;
    while samples < 2 {
        let line = stream.next().await.map_err(|why| server.no_answer(why))?;
        match line.ok_or_else(|| server.no_answer("the stream ended without a sample"))? {
            // Only charts show it.
            Line::Past(_) => {}
            Line::Sample(sample) => {
                history.add(*sample);
                samples += 1;
            }
        }
    }
    Ok(text(server.address(), &history))
}

/// The same lines as on the screen, without charts.
fn text(server: &str, history: &History) -> String {
    let at = history.latest().map(|sample| instant(sample.at)).unwrap_or_default();
    let mut lines = vec![format!("Tollgate {server}  {at}")];
    lines.extend(figures(history).iter().map(figure_text));
    for kind in [Kind::Keys, Kind::Rules] {
        let table = table(history, kind, Order::Rate, LISTED_MAX);
        lines.extend([String::new(), table.title.to_owned(), table.heading]);
        lines.extend(table.lines);
    }
    lines.join("\n") + "\n"
}

/// Shows the figures until a key or a signal ends it.
async fn watch(server: AdminClient) -> Result<(), String> {
    let address = server.address().to_owned();
    // An error before the first sample is a line, and the screen stays as it is.
    let stream = Stream::open(&server).await?;
    let mut signals = Signals::new().map_err(|error| format!("cannot wait for signals: {error}"))?;
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let mut follower = JoinSet::new();
    follower.spawn(follow(server, stream, sender));

    let unusable = |error: io::Error| format!("cannot use the terminal: {error}");
    let mut screen = Screen::open().map_err(unusable)?;
    let mut inputs = EventStream::new();
    let mut redraw = interval(REDRAW);
    let mut state = State::new();
    loop {
        screen.draw(|frame| draw(frame, &state.view(&address))).map_err(unusable)?;
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => state.take(event),
                None => return Err("the reader of samples has ended unexpectedly".to_owned()),
            },
            input = inputs.next() => match input {
                Some(Ok(input)) => if state.input(&input) == Next::Quit { return Ok(()) },
                Some(Err(error)) => return Err(unusable(error)),
                None => return Ok(()),
            },
            () = signals.recv() => return Ok(()),
            _ = redraw.tick() => {}
        }
    }
}

/// The signals that end the command. They are caught so that the terminal is restored.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> io::Result<Self> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [terminate, interrupt, hangup] = kinds.map(signal);
        Ok(Self([terminate?, interrupt?, hangup?]))
    }

    async fn recv(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Whether the command goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Quit,
}

/// What is shown, and how.
struct State {
    history: History,
    /// When the last sample arrived, or the command began.
    arrived: Instant,
    lost: Option<String>,
    kind: Kind,
    order: Order,
    palette: Palette,
}

impl State {
    fn new() -> Self {
        Self {
            history: History::default(),
            arrived: Instant::now(),
            lost: None,
            kind: Kind::Keys,
            order: Order::Rate,
            palette: if Colored::ansi_color_disabled_memoized() { Palette::Plain } else { Palette::Colours },
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Line(Line::Past(past)) => self.history.add_past(&past),
            Event::Line(Line::Sample(sample)) => {
                self.history.add(*sample);
                self.arrived = Instant::now();
                self.lost = None;
            }
            Event::Lost(why) => self.lost = Some(why),
        }
    }

    fn input(&mut self, input: &Input) -> Next {
        let Input::Key(key) = input else { return Next::Continue };
        if key.kind == KeyEventKind::Release {
            return Next::Continue;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Next::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Char('k') => self.kind = Kind::Keys,
            KeyCode::Char('r') => self.kind = Kind::Rules,
            KeyCode::Char('s') => {
                self.order = match self.order {
                    Order::Rate => Order::Total,
                    Order::Total => Order::Rate,
                }
            }
            _ => {}
        }
        Next::Continue
    }

    fn view<'a>(&'a self, server: &'a str) -> View<'a> {
        View {
            server,
            history: &self.history,
            age: self.arrived.elapsed(),
            lost: self.lost.as_deref(),
            kind: self.kind,
            order: self.order,
            palette: self.palette,
        }
    }
}
