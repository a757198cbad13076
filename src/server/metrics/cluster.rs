//! The metrics of a replica in a cluster.

use std::time::Duration;

use tollgate_cluster::{ClusterStats, MemberState, link::LinkFailure};
use tollgate_telemetry::metrics::metrics;

/// What the metrics are taken from.
pub(super) struct ClusterValues {
    pub(super) stats: ClusterStats,
    pub(super) backup_bytes: usize,
}

metrics! { METRICS: ClusterValues;
    Gauge "tollgate_cluster_state" ["state"]
        "1 for the current state of this replica: joining, serving or draining; 0 for the other states."
        => |all, family| {
            for (name, state) in [
                ("joining", MemberState::Joining),
                ("serving", MemberState::Serving),
                ("draining", MemberState::Draining),
            ] {
                family.sample(&[name], u8::from(all.stats.state == state));
            }
        };
    Gauge "tollgate_cluster_members" []
        "Members that are connected and serving, including this one."
        => |all, family| family.value(all.stats.members);
    Gauge "tollgate_cluster_members_of_other_rules" []
        "Members whose active rules differ from those of this replica."
        => |all, family| family.value(all.stats.members_with_other_rules);
    Counter "tollgate_cluster_members_lost_total" []
        "Members that died, left or were silent for too long."
        => |all, family| family.value(all.stats.node.members_lost);
    Counter "tollgate_cluster_silences_held_back_total" []
        "Changes of the placement of slots by silence that were held back because silence had changed it shortly before."
        => |all, family| family.value(all.stats.node.silences_held_back);
    Gauge "tollgate_cluster_isolated" []
        "1 while too few other members are connected for this replica to rely on its slots, otherwise 0."
        => |all, family| family.value(u8::from(all.stats.is_isolated));
    Gauge "tollgate_cluster_rejected" []
        "1 while there is no link, and this replica rejects processes that it dials, or they reject it; otherwise 0."
        => |all, family| family.value(u8::from(all.stats.rejected_by.is_some()));
    Counter "tollgate_cluster_isolations_total" []
        "Times that this replica became isolated."
        => |all, family| family.value(all.stats.node.isolations);
    Gauge "tollgate_cluster_slots" []
        "Slots owned by this replica."
        => |all, family| family.value(all.stats.slots_owned);
    Gauge "tollgate_cluster_slots_moving" []
        "Slots whose owner is unknown to this replica or is not the intended one."
        => |all, family| family.value(all.stats.slots_moving);
    Counter "tollgate_cluster_slots_taken_total" []
        "Slots of which this replica became the owner."
        => |all, family| family.value(all.stats.node.slots_acquired);
    Counter "tollgate_cluster_slots_claimed_total" []
        "Slots recovered by this replica from the newest backup after the loss of their owner."
        => |all, family| family.value(all.stats.node.slots_recovered);
    Counter "tollgate_cluster_counters_handed_off_total" []
        "Counters handed off to other replicas."
        => |all, family| family.value(all.stats.node.handed_off);
    Counter "tollgate_cluster_counters_received_total" []
        "Counters received in hand-offs from other replicas."
        => |all, family| family.value(all.stats.node.received);
    Counter "tollgate_cluster_hand_offs_total" []
        "Acknowledged hand-offs of slots."
        => |all, family| family.value(all.stats.node.hand_offs);
    Counter "tollgate_cluster_hand_off_seconds_total" []
        "Total time from hand-offs of slots to their acknowledgement."
        => |all, family| family.value(Duration::from_nanos(all.stats.node.hand_off_nanos).as_secs_f64());
    Counter "tollgate_cluster_begun_anew_total" []
        "Times that all counters were discarded in favour of a discovered cluster."
        => |all, family| family.value(all.stats.node.clusters_adopted);
    Counter "tollgate_cluster_forwarded_checks_total" []
        "Checks forwarded to the owner of the counter."
        => |all, family| family.value(all.stats.node.forwarded);
    Counter "tollgate_cluster_leased_checks_total" []
        "Checks of counters of others decided locally, by a lease or a recent answer of the owner."
        => |all, family| family.value(all.stats.node.leased);
    Counter "tollgate_cluster_degraded_checks_total" []
        "Checks decided without the owner of the counter."
        => |all, family| family.value(all.stats.degraded);
    Counter "tollgate_cluster_local_share_full_total" []
        "Charges without the owner that local shares had no memory for; store.on_full decided."
        => |all, family| family.value(all.stats.local_share_full);
    Counter "tollgate_cluster_late_answers_total" []
        "Answers of other replicas that came too late, and whose charge was refunded."
        => |all, family| family.value(all.stats.node.late_answers);
    Counter "tollgate_cluster_breaker_openings_total" []
        "Times that a replica's circuit breaker opened for a second after timeouts."
        => |all, family| family.value(all.stats.node.breaker_openings);
    Counter "tollgate_cluster_untold_total" []
        "Reports of hits admitted without the owner, dropped from a full queue."
        => |all, family| family.value(all.stats.node.reports_dropped);
    Counter "tollgate_cluster_slices_lent_total" []
        "Leases granted by this replica."
        => |all, family| family.value(all.stats.node.grants_lent);
    Counter "tollgate_cluster_slices_recalled_total" []
        "Leases recalled by this replica."
        => |all, family| family.value(all.stats.node.grants_recalled);
    Counter "tollgate_cluster_slices_lost_total" []
        "Leases whose borrower did not report in time; they count as used until it does."
        => |all, family| family.value(all.stats.node.grants_lost);
    Counter "tollgate_cluster_backed_up_counters_total" []
        "Counters sent as backups to their backup owner."
        => |all, family| family.value(all.stats.node.backed_up);
    Counter "tollgate_cluster_backups_arrived_total" []
        "Backups of slots acknowledged by their backup owner."
        => |all, family| family.value(all.stats.node.backups_arrived);
    Counter "tollgate_cluster_backups_refused_total" []
        "Copies of slots refused or dropped because memory is full."
        => |all, family| family.value(all.stats.node.backups_refused);
    Gauge "tollgate_cluster_backup_age_seconds" []
        "Time since the last acknowledged backup; it also grows while no counter changes."
        => |all, family| family.value(all.stats.backup_age.as_secs_f64());
    Gauge "tollgate_cluster_copies_bytes" []
        "Memory used by backups of other owners, as part of tollgate_counters_bytes."
        => |all, family| family.value(all.backup_bytes);
    Gauge "tollgate_cluster_links" []
        "Established links to other replicas."
        => |all, family| family.value(all.stats.links.links_up());
    Counter "tollgate_cluster_link_reconnects_total" []
        "Times that a link continued over a new connection."
        => |all, family| family.value(all.stats.links.reconnects.get());
    Counter "tollgate_cluster_links_refused_total" ["reason"]
        "Connections between replicas that failed before the link was established."
        => |all, family| {
            for reason in LinkFailure::ALL {
                family.sample(&[reason.name()], all.stats.links.failures(reason));
            }
        };
    Counter "tollgate_cluster_batches_total" ["direction"]
        "Batches of messages between replicas, in and out."
        => |all, family| {
            family.sample(&["in"], all.stats.links.batches_in.get());
            family.sample(&["out"], all.stats.links.batches_out.get());
        };
    Counter "tollgate_cluster_batch_bytes_total" ["direction"]
        "Bytes of these batches."
        => |all, family| {
            family.sample(&["in"], all.stats.links.bytes_in.get());
            family.sample(&["out"], all.stats.links.bytes_out.get());
        };
    Counter "tollgate_cluster_resent_pieces_total" []
        "Pieces of batches sent again over a new connection."
        => |all, family| family.value(all.stats.links.pieces_resent.get());
    Counter "tollgate_cluster_delayed_pieces_total" []
        "Pieces of batches that waited because incomplete batches took too much memory."
        => |all, family| family.value(all.stats.links.pieces_delayed.get());
    Counter "tollgate_cluster_link_commands_refused_total" []
        "Dials, redials and ends of sessions refused because too many were under way."
        => |all, family| family.value(all.stats.links.commands_refused.get());
}
