//! Whether a replica is ready although every link to another process is rejected.

use std::time::Duration;

use tollgate_counter::time::Timestamp;

use crate::link::addresses::Strangers;

/// A replica that has never served stays unready for this long next to processes of another authority. It is longer
/// than the 10 minutes after which Kubernetes reports that a rollout makes no progress.
const LONE_START_MAX: Duration = Duration::from_secs(15 * 60);

/// A replica without links has served once it has been ready for this long.
pub(super) const SERVED_MIN: Duration = Duration::from_secs(5);

/// What the processes at dialled addresses mean for the readiness of this replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkTrust {
    /// A link is up, or no process rejects one.
    Trusted,
    /// The named processes reject every link. This replica has served and goes on without them.
    GoesOn(String),
    /// The named processes reject every link. This replica must not be asked.
    Unready(String),
}

/// What this replica sees of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// Whether this replica has a link to another one.
    pub(super) is_linked: bool,
    /// Whether this replica knows the owners of the slots.
    pub(super) is_serving: bool,
    /// Whether this replica owns every slot.
    pub(super) owns_all: bool,
    /// Whether this replica has tried every seed.
    pub(super) has_tried_seeds: bool,
}

/// What is known of this replica and of strangers.
#[derive(Debug, Default)]
pub(super) struct StrangerHistory {
    has_served: bool,
    trusted_since: Option<Timestamp>,
    rejected_since: Option<Timestamp>,
    /// Whether this replica goes on without strangers, by the last judgement.
    pub(super) goes_on: bool,
}

impl StrangerHistory {
    /// What `strangers` mean at `now`.
    pub(super) fn judge(
        &mut self,
        strangers: Option<Strangers>,
        situation: Situation,
        now: Timestamp,
    ) -> LinkTrust {
        let Situation { is_linked, is_serving, owns_all, has_tried_seeds } = situation;
        let Some(Strangers { named, has_other_version, has_former_peer }) = strangers else {
            (self.rejected_since, self.goes_on) = (None, false);
            // Before the seeds are tried, there may be strangers that are not known yet.
            let since = has_tried_seeds.then(|| *self.trusted_since.get_or_insert(now));
            let has_been_alone = since.is_some_and(|since| now.since(since) >= SERVED_MIN);
            self.has_served |= is_serving && (is_linked || has_been_alone);
            return LinkTrust::Trusted;
        };
        self.trusted_since = None;
        let since = *self.rejected_since.get_or_insert(now);
        let has_waited = !has_other_version && now.since(since) >= LONE_START_MAX;
        // A peer of this replica that is silent or dead, and not the strangers, is why there is no link.
        self.goes_on = self.has_served && (owns_all || !has_former_peer) || owns_all && has_waited;
        if self.goes_on { LinkTrust::GoesOn(named) } else { LinkTrust::Unready(named) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000);
    const JOINING: Situation =
        Situation { is_linked: false, is_serving: false, owns_all: false, has_tried_seeds: true };
    const ALONE: Situation = Situation { is_serving: true, owns_all: true, ..JOINING };
    const OF_PAIR: Situation = Situation { is_linked: true, is_serving: true, ..JOINING };

    fn strangers(has_other_version: bool) -> Strangers {
        Strangers { named: "a (untrusted)".to_owned(), has_other_version, has_former_peer: false }
    }

    fn goes_on() -> LinkTrust {
        LinkTrust::GoesOn("a (untrusted)".to_owned())
    }

    fn unready() -> LinkTrust {
        LinkTrust::Unready("a (untrusted)".to_owned())
    }

    #[test]
    fn served_replica_stays_ready_unless_a_former_peer_rejects_it() {
        for other_version in [false, true] {
            for (before, since) in [(OF_PAIR, NOW), (ALONE, NOW.after(SERVED_MIN))] {
                let mut history = StrangerHistory::default();
                let strangers = strangers(other_version);
                assert_eq!(history.judge(None, JOINING, NOW), LinkTrust::Trusted);
                assert_eq!(history.judge(None, before, since), LinkTrust::Trusted);
                let not_all = Situation { owns_all: false, ..ALONE };
                for situation in [not_all, ALONE] {
                    assert_eq!(history.judge(Some(strangers.clone()), situation, since), goes_on());
                }
                let peers = Strangers { has_former_peer: true, ..strangers };
                assert_eq!(history.judge(Some(peers.clone()), not_all, since), unready());
                assert_eq!(history.judge(Some(peers.clone()), ALONE, since), goes_on());
            }
        }
    }

    #[test]
    fn replica_has_not_served_before_all_seeds_are_tried() {
        let untried = Situation { has_tried_seeds: false, ..ALONE };
        let mut history = StrangerHistory::default();
        let strangers = strangers(false);
        let tried_at = NOW.after(SERVED_MIN);
        history.judge(None, untried, NOW);
        for (situation, at) in
            [(untried, tried_at), (ALONE, tried_at), (ALONE, tried_at.after(SERVED_MIN).minus(1))]
        {
            assert_eq!(history.judge(None, situation, at), LinkTrust::Trusted);
        }
        assert_eq!(history.judge(Some(strangers.clone()), ALONE, tried_at.after(SERVED_MIN)), unready());
    }

    #[test]
    fn lone_first_start_waits_except_beside_another_version() {
        for (other_version, then) in [(false, goes_on()), (true, unready())] {
            let mut history = StrangerHistory::default();
            let strangers = strangers(other_version);
            assert_eq!(history.judge(None, ALONE, NOW), LinkTrust::Trusted, "between two attempts");
            assert_eq!(history.judge(Some(strangers.clone()), ALONE, NOW), unready());
            let before = NOW.after(LONE_START_MAX).minus(1);
            assert_eq!(history.judge(Some(strangers.clone()), ALONE, before), unready());
            assert_eq!(history.judge(Some(strangers.clone()), ALONE, NOW.after(LONE_START_MAX)), then);
        }
    }
}
