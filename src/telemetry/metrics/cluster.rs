//! Every metric that a replica has besides when it shares keys with others.

use crate::telemetry::metrics::{Metric, MetricKind, catalog::metrics};

metrics! {
    STATE: Gauge "tollgate_cluster_state" ["state"]
        "1 for what this replica does: joining, serving or draining; 0 for the others.";
    MEMBERS: Gauge "tollgate_cluster_members" []
        "Members that are heard and serve, this one included.";
    MEMBERS_OF_OTHER_RULES: Gauge "tollgate_cluster_members_of_other_rules" []
        "Members that decide by other rule files than this replica.";
    MEMBERS_LOST: Counter "tollgate_cluster_members_lost_total" []
        "Members that died, left or were silent for too long.";
    ISOLATED: Gauge "tollgate_cluster_isolated" []
        "1 while too few others are heard for this replica to trust what it holds, otherwise 0.";
    ISOLATIONS: Counter "tollgate_cluster_isolations_total" []
        "Times that too few others were heard.";
    SLOTS: Gauge "tollgate_cluster_slots" []
        "Slots that are held here.";
    SLOTS_MOVING: Gauge "tollgate_cluster_slots_moving" []
        "Slots whose holder is unknown here, or not the one that should hold them.";
    SLOTS_TAKEN: Counter "tollgate_cluster_slots_taken_total" []
        "Slots that this replica began to hold.";
    SLOTS_CLAIMED: Counter "tollgate_cluster_slots_claimed_total" []
        "Slots that this replica claimed, with the newest copy there was, after their holder was lost.";
    COUNTERS_HANDED_OFF: Counter "tollgate_cluster_counters_handed_off_total" []
        "Counters handed to other replicas.";
    COUNTERS_RECEIVED: Counter "tollgate_cluster_counters_received_total" []
        "Counters that other replicas handed to this one.";
    HAND_OFFS: Counter "tollgate_cluster_hand_offs_total" []
        "Slots handed off, and acknowledged.";
    HAND_OFF_TIME: Counter "tollgate_cluster_hand_off_seconds_total" []
        "Time that these took, from the hand-off to its acknowledgement.";
    BEGUN_ANEW: Counter "tollgate_cluster_begun_anew_total" []
        "Times that all counters were given up for those of another cluster that was met.";
    FORWARDED: Counter "tollgate_cluster_forwarded_checks_total" []
        "Checks sent to the replica that holds the counter.";
    LEASED: Counter "tollgate_cluster_leased_checks_total" []
        "Checks of another replica's counter that were decided here, by what it had lent or told.";
    DEGRADED: Counter "tollgate_cluster_degraded_checks_total" []
        "Checks decided without the replica that holds the counter, for it could not be reached.";
    LATE: Counter "tollgate_cluster_late_answers_total" []
        "Answers of other replicas that came too late, and whose charge was taken back.";
    BREAKER_OPENINGS: Counter "tollgate_cluster_breaker_openings_total" []
        "Times that a replica was asked nothing for a second, for it had answered late again and again.";
    UNTOLD: Counter "tollgate_cluster_untold_total" []
        "Reports of what was admitted elsewhere that were dropped for want of room.";
    SLICES_LENT: Counter "tollgate_cluster_slices_lent_total" []
        "Parts of limits that this replica lent to others.";
    SLICES_RECALLED: Counter "tollgate_cluster_slices_recalled_total" []
        "Times that it called them back.";
    SLICES_LOST: Counter "tollgate_cluster_slices_lost_total" []
        "Parts whose borrower was not heard in time; they count as used until it is heard.";
    BACKED_UP: Counter "tollgate_cluster_backed_up_counters_total" []
        "Counters sent as backups to the replica that would hold them next.";
    BACKUPS_ARRIVED: Counter "tollgate_cluster_backups_arrived_total" []
        "Backups of slots that have arrived there.";
    BACKUPS_REFUSED: Counter "tollgate_cluster_backups_refused_total" []
        "Backups of others that were not kept here, for want of memory.";
    BACKUP_AGE: Gauge "tollgate_cluster_backup_age_seconds" []
        "Time since a backup last arrived; it grows, too, while no counter changes.";
    COPY_BYTES: Gauge "tollgate_cluster_copies_bytes" []
        "Memory that copies of other replicas' counters take, as a part of tollgate_counters_bytes.";
    LINKS: Gauge "tollgate_cluster_links" []
        "Links to other replicas that are up.";
    RECONNECTS: Counter "tollgate_cluster_link_reconnects_total" []
        "Times that a link went on over another connection.";
    LINKS_REFUSED: Counter "tollgate_cluster_links_refused_total" ["reason"]
        "Connections between replicas that came to nothing.";
    BATCHES: Counter "tollgate_cluster_batches_total" ["direction"]
        "Batches of messages between replicas, in and out.";
    BATCH_BYTES: Counter "tollgate_cluster_batch_bytes_total" ["direction"]
        "Bytes of these batches.";
    RESENT: Counter "tollgate_cluster_resent_pieces_total" []
        "Pieces of batches that were written once more, to another connection.";
}
