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

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend, buffer::Buffer};
    use serde_json::json;

    use super::*;
    use crate::cli::top::samples::{cluster, loaded, single};

    fn view(history: &History) -> View<'_> {
        View {
            server: "127.0.0.1:6070",
            history,
            age: Duration::ZERO,
            lost: None,
            kind: Kind::Keys,
            order: Order::Rate,
            palette: Palette::Colours,
        }
    }

    fn drawn(view: &View, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        terminal.backend().buffer().clone()
    }

    fn lines(view: &View, width: u16, height: u16) -> Vec<String> {
        let buffer = drawn(view, width, height);
        let cells = buffer.content.chunks(usize::from(width));
        cells.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect()).collect()
    }

    /// The lines of a screen of 80 columns and 24 lines.
    fn screen(view: &View) -> String {
        lines(view, 80, 24).join("\n")
    }

    #[test]
    fn usual_screen_shows_all_figures_charts_and_refused_keys() {
        let history = loaded();
        let text = screen(&view(&history));
        for shown in [
            "Tollgate 127.0.0.1:6070  live  2026-11-23 00:35:41 UTC",
            "404 /s         2,497 since the start",
            "96.0 /s        19.2 % of all; 500 since the start",
            "Time to decide  p99 ≤ 1 ms     p50 ≤ ",
            "generation 1: 3 rules in 1 domain",
            "none since the start",
            "the listeners have no TLS",
            "single replica",
            "Passed, 5 minutes, up to 500 /s",
            "Refused, 5 minutes, up to 100 /s",
            "█",
            "Most refused keys",
            "125  edge remote_address=10.0.0.0",
            "q quit",
        ] {
            assert!(text.contains(shown), "{shown} is not in\n{text}");
        }
    }

    #[test]
    fn rules_are_listed_with_rate_and_share_of_refusals() {
        let history = loaded();
        let text = screen(&View { kind: Kind::Rules, ..view(&history) });
        let [tenant, address] = ["edge.tenant", "edge.remote_address"].map(|name| text.find(name).unwrap());
        assert!(tenant < address, "{text}");
        assert!(text.contains("96.0 %  edge.remote_address"), "{text}");
    }

    #[test]
    fn keys_are_sorted_by_rate_or_by_count() {
        let mut history = History::default();
        for (second, [quiet, loud]) in [[900, 1], [901, 50]].into_iter().enumerate() {
            let denied = json!([{"key": "d quiet=1", "count": quiet}, {"key": "d loud=1", "count": loud}]);
            let mut sample = single(|sample| sample["top"]["denied"] = denied);
            sample.at += Duration::from_secs(second as u64);
            history.add(sample);
        }
        let is_loud_first = |order| {
            let text = screen(&View { order, ..view(&history) });
            text.find("loud=1").unwrap() < text.find("quiet=1").unwrap()
        };
        assert_eq!((is_loud_first(Order::Rate), is_loud_first(Order::Total)), (true, false));
    }

    #[test]
    fn lost_connection_and_silence_are_on_the_first_line() {
        let history = loaded();
        let age = Duration::from_millis(12_300);
        let lost = lines(&View { age, lost: Some("no answer: refused"), ..view(&history) }, 80, 24);
        assert!(lost[0].contains("disconnected for 12 s, trying again"), "{lost:?}");
        assert!(lost[1].contains("no answer: refused"), "{lost:?}");
        assert!(lines(&View { age, ..view(&history) }, 80, 24)[0].contains("no sample for 12 s"));
        let none = History::default();
        assert!(lines(&view(&none), 80, 24)[0].contains("waiting for samples"));
    }

    #[test]
    fn every_size_is_drawn() {
        let [none, loaded] = [History::default(), loaded()];
        let mut extreme = History::default();
        extreme.add(single(|sample| sample["decisions"] = json!({"ok": 0, "over_limit": 0})));
        extreme.add(cluster(|sample| {
            sample["decisions"] = json!({"ok": u64::MAX, "over_limit": u64::MAX});
            sample["requests"]["count"] = u64::MAX.into();
            sample["requests"]["invalid"] = u64::MAX.into();
            sample["requests"]["no_rules"] = u64::MAX.into();
            sample["store"]["bytes"] = u64::MAX.into();
            sample["rules"]["problems"] = u64::MAX.into();
            sample["rules"]["overlay_problems"] = u64::MAX.into();
            sample["certificates"][0]["expires_at"] = "9999-12-30T00:00:00Z".into();
            sample["top"]["denied"] = json!([{"key": "東京 東京", "count": u64::MAX}]);
        }));
        for history in [&none, &loaded, &extreme] {
            let lost = View { lost: Some("no answer from 東京"), kind: Kind::Rules, ..view(history) };
            for width in (0..20).chain([31, 32, 40, 79, 80, 81]) {
                for height in 0..27 {
                    drawn(&view(history), width, height);
                    drawn(&lost, width, height);
                }
            }
            drawn(&view(history), 1_000, 50);
        }
    }

    #[test]
    fn small_screen_shows_state_and_decisions_first() {
        let history = loaded();
        let lines = lines(&view(&history), 40, 5);
        assert!(lines[0].starts_with("Tollgate 127.0.0.1:6070  live"), "{lines:?}");
        assert!(lines[1].starts_with("Passed          404 /s"), "{lines:?}");
        assert!(lines[2].starts_with("Refused         96.0 /s"), "{lines:?}");
        assert!(lines[4].starts_with("q quit"), "{lines:?}");
    }

    #[test]
    fn plain_palette_has_no_colours() {
        let mut history = loaded();
        history.add(cluster(|sample| sample["requests"]["count"] = 1_000_000.into()));
        let has_colours = |palette| {
            let view = View { palette, lost: Some("no answer"), ..view(&history) };
            let cells = drawn(&view, 80, 24).content;
            cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert_eq!((has_colours(Palette::Colours), has_colours(Palette::Plain)), (true, false));
    }

    #[test]
    fn charts_cover_five_minutes_up_to_now() {
        let mut history = History::default();
        for second in 0..=300_u64 {
            let mut sample = single(|sample| {
                sample["decisions"]["ok"] = (second * second).into();
                sample["requests"]["count"] = second.into();
            });
            sample.at += Duration::from_secs(second);
            history.add(sample);
        }
        for width in [1, 10, 39, 300, 999] {
            let bars = bars(&history, width, |point| point.passed);
            assert!(bars.iter().all(Option::is_some), "{bars:?}");
            assert!(bars.is_sorted(), "{bars:?}");
            assert_eq!(bars.last().unwrap().unwrap().round(), 599.0);
        }
    }
}
