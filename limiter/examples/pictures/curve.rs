//! The curves of docs/cluster.md: what an idle replica costs, and when all replicas agree, by the number of members.

use std::fmt::Write;

use crate::chart::{STYLE, rows};

const WIDTH: f64 = 280.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 236.0;
/// The numbers of members at the left and the right end; the axis is logarithmic.
const MEMBERS: (f64, f64) = (3.0, 200.0);
const COLOURS: [&str; 3] = ["#1668b8", "#d1480c", "#77766f"];

/// Curves with one axis.
struct Panel {
    left: f64,
    title: &'static str,
    /// The figure at the top, and how it is shown.
    most: f64,
    curves: Vec<Curve>,
}

struct Curve {
    name: &'static str,
    /// Members and figures.
    points: Vec<(f64, f64)>,
}

/// The points of a column; rows with another cell than a figure are left out.
fn points(page: &str, marker: &str, column: usize) -> Vec<(f64, f64)> {
    let point = |row: Vec<(&str, &str)>| {
        let members = row[0].1.split(' ').next()?.parse().ok()?;
        Some((members, row[column].1.parse().ok()?))
    };
    rows(page, marker).into_iter().filter_map(point).collect()
}

fn panels(page: &str) -> [Panel; 2] {
    let of = |name, marker, column| Curve { name, points: points(page, marker, column) };
    let (idle, changes) = ("<!-- members idle: begin -->", "<!-- members changes: begin -->");
    [
        Panel {
            left: 60.0,
            title: "CPU of an idle replica, % of a core",
            most: 2.0,
            curves: vec![of("processes", idle, 1)],
        },
        Panel {
            left: 420.0,
            title: "Until all replicas agree, ms",
            most: 100.0,
            curves: vec![of("join", changes, 3), of("death", changes, 6), of("ten joins", changes, 9)],
        },
    ]
}

impl Panel {
    fn x(&self, members: f64) -> f64 {
        self.left + WIDTH * (members / MEMBERS.0).ln() / (MEMBERS.1 / MEMBERS.0).ln()
    }

    fn draw(&self, svg: &mut String) {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        let most = points.map(|point| point.1).fold(self.most, f64::max);
        let y = |figure: f64| BOTTOM - (BOTTOM - TOP) * figure / most;
        let (left, right) = (self.left, self.left + WIDTH);
        writeln!(svg, "<text class=\"title\" x=\"{left:.0}\" y=\"28\">{}</text>", self.title).unwrap();
        for figure in [0.0, most / 2.0, most] {
            writeln!(
                svg,
                "<path stroke=\"#c9c9c4\" d=\"M{left:.0} {height:.1}H{right:.0}\"/>\
                 <text class=\"small\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{figure}</text>",
                left - 6.0,
                y(figure) + 4.0,
                height = y(figure),
            )
            .unwrap();
        }
        for members in [3.0, 8.0, 16.0, 32.0, 64.0, 100.0, 200.0] {
            let (at, below) = (self.x(members), BOTTOM + 18.0);
            writeln!(
                svg,
                "<text class=\"small\" x=\"{at:.0}\" y=\"{below:.0}\" text-anchor=\"middle\">{members}</text>"
            )
            .unwrap();
        }
        for (number, (curve, colour)) in self.curves.iter().zip(COLOURS).enumerate() {
            let line: Vec<_> = curve
                .points
                .iter()
                .map(|point| format!("{:.1} {:.1}", self.x(point.0), y(point.1)))
                .collect();
            writeln!(
                svg,
                "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" d=\"M{}\"/>\
                 <text style=\"fill:{colour}\" x=\"{:.0}\" y=\"52\">{}</text>",
                line.join("L"),
                left + 96.0 * number as f64,
                curve.name,
            )
            .unwrap();
        }
    }
}

/// The name of the picture, and the picture.
pub fn drawn(page: &str) -> (&'static str, String) {
    let mut panels_drawn = String::new();
    panels(page).iter().for_each(|panel| panel.draw(&mut panels_drawn));
    let svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 724 270\" role=\"img\">\n\
         <title>The CPU time of an idle replica, and the time until all replicas agree after a join, a death and ten \
         joins, by the number of members.</title>\n<style>{STYLE}</style>\n\
         <rect width=\"724\" height=\"270\" rx=\"6\" fill=\"#fbfbf8\"/>\n{panels_drawn}</svg>\n",
    );
    ("cluster_members", svg)
}
