//! The most refused keys and the busiest rules.

use crate::cli::top::{
    history::{Activity, History},
    numbers::{rate, share, whole},
};

/// What the table lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Keys,
    Rules,
}

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Rate,
    Total,
}

/// The lines of a table. Names come last, because they may be cut.
#[derive(Debug)]
pub(super) struct Table {
    pub title: &'static str,
    pub heading: String,
    pub lines: Vec<String>,
}

/// The first `max` keys or rules.
pub(super) fn table(history: &History, kind: Kind, order: Order, max: usize) -> Table {
    let mut listed = match kind {
        Kind::Keys => history.keys(),
        Kind::Rules => history.rules(),
    };
    listed.sort_by(|one, other| {
        let by_total = || other.total.cmp(&one.total);
        let by_figure = match order {
            Order::Rate => other.rate.total_cmp(&one.rate).then_with(by_total),
            Order::Total => by_total(),
        };
        by_figure.then_with(|| one.name.cmp(&other.name))
    });
    listed.truncate(max);
    match kind {
        Kind::Keys => Table {
            title: "Most refused keys",
            heading: columns("refused", "since start", "domain and descriptor"),
            lines: listed.iter().map(key).collect(),
        },
        Kind::Rules => Table {
            title: "Busiest rules",
            heading: columns("decided", "since start", &with_share("refused", "rule")),
            lines: listed.iter().map(rule).collect(),
        },
    }
}

fn key(key: &Activity) -> String {
    columns(&format!("{} /s", rate(key.rate)), &whole(key.total), &key.name)
}

fn rule(rule: &Activity) -> String {
    let name = with_share(&share(rule.refused, rule.rate), &rule.name);
    columns(&format!("{} /s", rate(rule.rate)), &whole(rule.total), &name)
}

fn columns(rate: &str, total: &str, name: &str) -> String {
    format!("{rate:>13} {total:>13}  {name}")
}

fn with_share(share: &str, name: &str) -> String {
    format!("{share:>7}  {name}")
}
