//! The screen: figures, charts of the last five minutes, and a table.

use std::time::Duration;

use jiff::Timestamp;
use ratatui::{
    Frame,
    layout::Rect,
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Paragraph, Sparkline, SparklineBar},
};

use crate::cli::top::{
    figures::{Figure, Tone, figures},
    history::{History, KEPT, Point},
    numbers::{rate, time},
    table::{Kind, Order, Table, table},
};

/// The width of the names of figures, and that of their values.
const NAME_WIDTH: usize = 15;
const VALUE_WIDTH: usize = 14;
/// The height of a chart with its title.
const CHART_HEIGHT: u16 = 5;
/// The number of heights that a bar can have, whatever the height of the chart is.
const BAR_MAX: u64 = 1_000;
/// The age of the last sample from which on the screen says it.
const AGE_MAX: Duration = Duration::from_secs(5);

/// What the screen shows.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// The server, as it was given.
    pub server: &'a str,
    pub history: &'a History,
    /// The time since the last sample arrived.
    pub age: Duration,
    /// Why there is no stream now.
    pub lost: Option<&'a str>,
    pub kind: Kind,
    pub order: Order,
    pub palette: Palette,
}

/// The styles of tones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Palette {
    Colours,
    /// As `NO_COLOR` asks for.
    Plain,
}

impl Palette {
    fn style(self, tone: Tone) -> Style {
        let style = match tone {
            Tone::Neutral | Tone::Good => Style::new(),
            Tone::Warning | Tone::Bad => Style::new().add_modifier(Modifier::BOLD),
        };
        match (self, tone) {
            (Self::Plain, _) | (Self::Colours, Tone::Neutral) => style,
            (Self::Colours, Tone::Good) => style.fg(Color::Green),
            (Self::Colours, Tone::Warning) => style.fg(Color::Yellow),
            (Self::Colours, Tone::Bad) => style.fg(Color::Red),
        }
    }

    fn bars(self, colour: Color) -> Style {
        match self {
            Self::Colours => Style::new().fg(colour),
            Self::Plain => Style::new(),
        }
    }
}

/// Draws all that fits. On a small screen, the parts further down are left out first, and lines are cut at their end.
pub(super) fn draw(frame: &mut Frame, view: &View) {
    let mut rest = Rest(frame.area());
    let keys = if rest.0.height > 1 { rest.bottom() } else { Rect::ZERO };
    frame.render_widget(Paragraph::new(state(view)), rest.top(1));
    if let Some(why) = view.lost {
        frame.render_widget(Paragraph::new(why), rest.top(1));
    }
    for figure in figures(view.history) {
        frame.render_widget(Paragraph::new(figure_line(&figure, view.palette)), rest.top(1));
    }
    charts(frame, rest.top(CHART_HEIGHT), view);
    let area = rest.0;
    let Table { title, heading, lines } =
        table(view.history, view.kind, view.order, usize::from(area.height.saturating_sub(1)));
    let title = Span::styled(format!("{title:<NAME_WIDTH$}"), Modifier::BOLD);
    // The heading is above the columns, and the title above both.
    let head = [Line::from(title), Line::styled(heading, Modifier::DIM)];
    let lines = head.into_iter().chain(lines.into_iter().map(Line::from));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
    frame.render_widget(Paragraph::new(Line::styled(help(view), Modifier::DIM)), keys);
}

/// The part of the screen that is still free.
struct Rest(Rect);

impl Rest {
    fn top(&mut self, height: u16) -> Rect {
        let height = height.min(self.0.height);
        let area = Rect { height, ..self.0 };
        self.0.y += height;
        self.0.height -= height;
        area
    }

    fn bottom(&mut self) -> Rect {
        self.0.height -= 1;
        Rect { y: self.0.y + self.0.height, height: 1, ..self.0 }
    }
}

fn state(view: &View) -> Line<'static> {
    let (text, tone) = match view.lost {
        Some(_) => (format!("disconnected for {}, trying again", age(view.age)), Tone::Bad),
        None if view.age > AGE_MAX => (format!("no sample for {}", age(view.age)), Tone::Warning),
        None if view.history.latest().is_none() => ("waiting for samples".to_owned(), Tone::Neutral),
        None => ("live".to_owned(), Tone::Good),
    };
    let at = view.history.latest().map(|sample| instant(sample.at)).unwrap_or_default();
    Line::from(vec![
        Span::styled(format!("Tollgate {}  ", view.server), Modifier::BOLD),
        Span::styled(text, view.palette.style(tone)),
        Span::raw(format!("  {at}")),
    ])
}

fn age(age: Duration) -> String {
    time(age.as_secs_f64().floor())
}

/// An instant, to the second.
pub(super) fn instant(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn figure_line(figure: &Figure, palette: Palette) -> Line<'static> {
    let Figure { name, value, note, tone } = figure;
    Line::from(vec![
        Span::styled(format!("{name:<NAME_WIDTH$} "), Modifier::DIM),
        Span::styled(format!("{value:<VALUE_WIDTH$}"), palette.style(*tone).add_modifier(Modifier::BOLD)),
        Span::raw(format!(" {note}")),
    ])
}

/// A figure as text without styles.
pub(super) fn figure_text(figure: &Figure) -> String {
    let spans = figure_line(figure, Palette::Plain).spans;
    spans.iter().map(|span| &*span.content).collect()
}

/// Passed and refused decisions each second, side by side.
fn charts(frame: &mut Frame, area: Rect, view: &View) {
    let width = area.width / 2;
    let left = Rect { width: width.saturating_sub(1), ..area };
    let right = Rect { x: area.x + width, width, ..area };
    chart(frame, left, view, "Passed", Color::Green, |point| point.passed);
    chart(frame, right, view, "Refused", Color::Red, |point| point.refused);
}

fn chart(
    frame: &mut Frame,
    area: Rect,
    view: &View,
    name: &str,
    colour: Color,
    figure: impl Fn(&Point) -> f64,
) {
    let mut rest = Rest(area);
    let bars = bars(view.history, area.width, figure);
    let top = ceiling(bars.iter().flatten().copied().fold(1.0, f64::max));
    let title = format!("{name}, 5 minutes, up to {} /s", rate(top));
    frame.render_widget(Paragraph::new(Line::styled(title, Modifier::DIM)), rest.top(1));
    let bars = bars.into_iter().map(|value| SparklineBar::from(value.map(|value| height(value / top))));
    let sparkline = Sparkline::default().data(bars).max(BAR_MAX).style(view.palette.bars(colour));
    frame.render_widget(sparkline, rest.0);
}

/// The largest value in the time of each column, the last of which ends now; `None` where nothing is known.
fn bars(history: &History, width: u16, figure: impl Fn(&Point) -> f64) -> Vec<Option<f64>> {
    let mut bars = vec![None; usize::from(width)];
    let Some(now) = history.latest().map(|sample| sample.at) else { return bars };
    let column = KEPT.as_secs_f64() / f64::from(width.max(1));
    // The number of columns from the right.
    let from_right = |at: Timestamp| (now.duration_since(at).as_secs_f64() / column).max(0.0);
    for point in history.points() {
        let (first, last) = (from_right(point.at).floor(), from_right(point.from).ceil());
        let value = figure(point);
        for (index, bar) in bars.iter_mut().rev().enumerate() {
            let index = index as f64;
            if index >= first && index < last {
                *bar = Some(bar.map_or(value, |other: f64| other.max(value)));
            }
        }
    }
    bars
}

/// The smallest of 1, 2, 5, 10, 20 ... that is not below `value`.
fn ceiling(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(1.0).log10().floor());
    let round = [1.0, 2.0, 5.0].map(|factor| factor * power).into_iter().find(|round| *round >= value);
    round.unwrap_or(10.0 * power)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a conversion from float saturates"
)]
fn height(part: f64) -> u64 {
    ((part * BAR_MAX as f64).ceil() as u64).min(BAR_MAX)
}

fn help(view: &View) -> String {
    let kind = match view.kind {
        Kind::Keys => "r rules",
        Kind::Rules => "k keys",
    };
    let order = match view.order {
        Order::Rate => "s sort by count",
        Order::Total => "s sort by rate",
    };
    format!("q quit   {kind}   {order}")
}
