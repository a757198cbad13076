//! The lines of `/live`, as far as they are shown. Fields that a later version adds are ignored.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::Error as _};
use tollgate_limiter::printable;

/// The first line: what was counted in the last five minutes, oldest first.
#[derive(Debug, Deserialize)]
pub(super) struct Past {
    pub points: Vec<Counted>,
}

/// What was counted since the start of the server until an instant. A sample has these fields too.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Counted {
    #[serde(deserialize_with = "instant")]
    pub at: Timestamp,
    pub requests: Answered,
    pub decisions: Decisions,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Answered {
    pub count: u64,
}

/// The figures of a server at one instant. Counts are since its start.
#[derive(Debug, Deserialize)]
pub(super) struct Sample {
    #[serde(deserialize_with = "instant")]
    pub at: Timestamp,
    pub requests: Requests,
    pub decisions: Decisions,
    pub store: Store,
    pub rules: Rules,
    /// `None` without rules.
    pub each_rule: Option<EachRule>,
    pub top: Top,
    pub certificates: Vec<Certificate>,
    /// `None` on a single replica.
    pub cluster: Option<Cluster>,
}

impl Sample {
    pub(super) fn counted(&self) -> Counted {
        let requests = Answered { count: self.requests.count };
        Counted { at: self.at, requests, decisions: self.decisions }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Requests {
    pub count: u64,
    /// Bounds in seconds, each with the number of requests that took at most so long.
    pub up_to: Vec<(f64, u64)>,
    pub no_rules: u64,
    pub joining: u64,
    pub overloaded: u64,
    pub invalid: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Decisions {
    pub ok: u64,
    pub over_limit: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Store {
    pub live: u64,
    pub bytes: u64,
    pub bytes_max: u64,
    pub refused_full: u64,
    pub shared: Option<Shared>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Shared {
    pub state: Text,
    pub replicas: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Rules {
    pub generation: u64,
    pub domains: u64,
    pub rules: u64,
    pub warnings: u64,
    pub problems: u64,
    pub overlay_problems: u64,
}

/// The rules that changed since the sample before, each by its index in the set of rules with this hash.
#[derive(Debug, Deserialize)]
pub(super) struct EachRule {
    pub hash: Text,
    pub changed: Vec<(usize, Totals)>,
    /// The paths of those with the most decisions since the sample before.
    #[serde(default)]
    pub busiest: Vec<(usize, Text)>,
}

/// Decisions of a rule.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(from = "[u64; 6]")]
pub(super) struct Totals {
    pub decided: u64,
    pub refused: u64,
}

impl From<[u64; 6]> for Totals {
    fn from([ok, over_limit, ..]: [u64; 6]) -> Self {
        Self { decided: ok.saturating_add(over_limit), refused: over_limit }
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Top {
    pub denied: Vec<Denied>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Denied {
    pub key: Text,
    pub count: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Certificate {
    pub listener: Text,
    #[serde(deserialize_with = "instant")]
    pub expires_at: Timestamp,
}

#[derive(Debug, Deserialize)]
pub(super) struct Cluster {
    pub state: Text,
    pub members: Vec<Member>,
    pub moving: u64,
    pub isolated: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Member {
    pub state: Text,
}

/// A text without hidden characters. Keys contain values of requests, which could control the terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let shown = |character: char| {
            if printable::is_hidden(character) { char::REPLACEMENT_CHARACTER } else { character }
        };
        Ok(Self(text.chars().map(shown).collect()))
    }
}

fn instant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_has_no_characters_that_control_a_terminal() {
        let text = |given: &str| serde_json::from_value::<Text>(json!(given)).unwrap().0;
        assert_eq!(text("edge user=\u{1b}]0;x\u{7}"), "edge user=\u{fffd}]0;x\u{fffd}");
        assert_eq!(text("a\u{202e}b\u{9b}c\n"), "a\u{fffd}b\u{fffd}c\u{fffd}");
        assert_eq!(text("größe=東京"), "größe=東京");
    }
}
