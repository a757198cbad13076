//! The additional metrics of a replica in a cluster.

use crate::telemetry::metrics::{Metric, MetricKind, catalog::metrics};

metrics! {
    STATE: Gauge "tollgate_cluster_state" ["state"]
        "1 for the current state of this replica: joining, serving or draining; 0 for the other states.";
    MEMBERS: Gauge "tollgate_cluster_members" []
        "Members that are connected and serving, including this one.";
    MEMBERS_OF_OTHER_RULES: Gauge "tollgate_cluster_members_of_other_rules" []
        "Members whose active rules differ from those of this replica.";
    MEMBERS_LOST: Counter "tollgate_cluster_members_lost_total" []
        "Members that died, left or were silent for too long.";
    ISOLATED: Gauge "tollgate_cluster_isolated" []
        "1 while too few other members are connected for this replica to rely on its slots, otherwise 0.";
    ISOLATIONS: Counter "tollgate_cluster_isolations_total" []
        "Times that this replica became isolated.";
    SLOTS: Gauge "tollgate_cluster_slots" []
        "Slots owned by this replica.";
    SLOTS_MOVING: Gauge "tollgate_cluster_slots_moving" []
        "Slots whose owner is unknown to this replica or is not the intended one.";
    SLOTS_TAKEN: Counter "tollgate_cluster_slots_taken_total" []
        "Slots of which this replica became the owner.";
    SLOTS_CLAIMED: Counter "tollgate_cluster_slots_claimed_total" []
        "Slots recovered by this replica from the newest backup after the loss of their owner.";
    COUNTERS_HANDED_OFF: Counter "tollgate_cluster_counters_handed_off_total" []
        "Counters handed off to other replicas.";
    COUNTERS_RECEIVED: Counter "tollgate_cluster_counters_received_total" []
        "Counters received in hand-offs from other replicas.";
    HAND_OFFS: Counter "tollgate_cluster_hand_offs_total" []
        "Acknowledged hand-offs of slots.";
    HAND_OFF_TIME: Counter "tollgate_cluster_hand_off_seconds_total" []
        "Total time from these hand-offs to their acknowledgement.";
    BEGUN_ANEW: Counter "tollgate_cluster_begun_anew_total" []
        "Times that all counters were discarded in favour of another cluster that was discovered.";
    FORWARDED: Counter "tollgate_cluster_forwarded_checks_total" []
        "Checks forwarded to the owner of the counter.";
    LEASED: Counter "tollgate_cluster_leased_checks_total" []
        "Checks of counters of other owners decided locally, under a lease or by a recent answer of the owner.";
    DEGRADED: Counter "tollgate_cluster_degraded_checks_total" []
        "Checks decided without the owner of the counter, because it could not be reached.";
    LATE: Counter "tollgate_cluster_late_answers_total" []
        "Answers of other replicas that arrived too late and whose charge was refunded.";
    BREAKER_OPENINGS: Counter "tollgate_cluster_breaker_openings_total" []
        "Times that the circuit breaker of a replica opened for a second after repeated timeouts.";
    UNTOLD: Counter "tollgate_cluster_untold_total" []
        "Reports of hits admitted without the owner that were dropped because their queue was full.";
    SLICES_LENT: Counter "tollgate_cluster_slices_lent_total" []
        "Leases granted by this replica.";
    SLICES_RECALLED: Counter "tollgate_cluster_slices_recalled_total" []
        "Leases recalled by this replica.";
    SLICES_LOST: Counter "tollgate_cluster_slices_lost_total" []
        "Leases whose borrower did not report in time; they count as used until it does.";
    BACKED_UP: Counter "tollgate_cluster_backed_up_counters_total" []
        "Counters sent as backups to their backup owner.";
    BACKUPS_ARRIVED: Counter "tollgate_cluster_backups_arrived_total" []
        "Backups of slots acknowledged by their backup owner.";
    BACKUPS_REFUSED: Counter "tollgate_cluster_backups_refused_total" []
        "Backups of other replicas refused because memory is full.";
    BACKUP_AGE: Gauge "tollgate_cluster_backup_age_seconds" []
        "Time since the last acknowledged backup; it also grows while no counter changes.";
    COPY_BYTES: Gauge "tollgate_cluster_copies_bytes" []
        "Memory used by backups of other owners, as part of tollgate_counters_bytes.";
    LINKS: Gauge "tollgate_cluster_links" []
        "Established links to other replicas.";
    RECONNECTS: Counter "tollgate_cluster_link_reconnects_total" []
        "Times that a link continued over a new connection.";
    LINKS_REFUSED: Counter "tollgate_cluster_links_refused_total" ["reason"]
        "Connections between replicas that failed before the link was established.";
    BATCHES: Counter "tollgate_cluster_batches_total" ["direction"]
        "Batches of messages between replicas, in and out.";
    BATCH_BYTES: Counter "tollgate_cluster_batch_bytes_total" ["direction"]
        "Bytes of these batches.";
    RESENT: Counter "tollgate_cluster_resent_pieces_total" []
        "Pieces of batches sent again over a new connection.";
}
