//! The metrics of a replica with rules from a control plane.

use std::sync::Arc;

use tollgate_rules::{ActiveRules, Rules};
use tollgate_sources::xds;
use tollgate_telemetry::metrics::metrics;

/// What several metrics take from one reading.
pub(super) struct XdsValues {
    client: Arc<xds::XdsStats>,
    removals: u64,
    conflicts: usize,
    unknown_fields: usize,
    overlay_misfits: usize,
    is_overlay_stale: bool,
}

impl XdsValues {
    pub(super) fn new(client: Arc<xds::XdsStats>, active_rules: &ActiveRules) -> Self {
        let current = active_rules.current();
        let status = active_rules.status();
        let count = |of: fn(&Rules) -> usize| current.rules().map_or(0, of);
        Self {
            client,
            removals: status.removals,
            conflicts: count(|rules| rules.conflicts),
            unknown_fields: count(|rules| rules.unknown_fields),
            overlay_misfits: count(|rules| rules.overlay_misfits),
            is_overlay_stale: status.overlay_problems.is_some(),
        }
    }
}

metrics! { XdsValues;
    Gauge "tollgate_xds_connected" []
        "1 while the control plane is connected, otherwise 0."
        => |stats, family| family.value(u8::from(stats.client.is_connected()));
    Counter "tollgate_xds_connections_total" []
        "Connections to the control plane that were made."
        => |stats, family| family.value(stats.client.connections.get());
    Counter "tollgate_xds_responses_total" ["answer"]
        "Responses of the control plane, by answer: accepted, or refused while the active rules stay."
        => |stats, family| {
            family.sample(&["accepted"], stats.client.accepted.get());
            family.sample(&["refused"], stats.client.refused.get());
        };
    Counter "tollgate_xds_removals_total" []
        "Accepted responses of the control plane that lack a rule that was active."
        => |stats, family| family.value(stats.removals);
    Gauge "tollgate_xds_conflicts" []
        "Descriptors of the control plane that are left out, because one before each of them has a limit for the same key and value."
        => |stats, family| family.value(stats.conflicts);
    Gauge "tollgate_xds_unknown_fields" []
        "Descriptors of the control plane with a field that this version does not know, and ignores."
        => |stats, family| family.value(stats.unknown_fields);
    Gauge "tollgate_overlay_misfits" []
        "Rules that are without what the overlay has for them, because it does not fit."
        => |stats, family| family.value(stats.overlay_misfits);
    Gauge "tollgate_overlay_stale" []
        "1 while the current overlay file cannot be loaded, otherwise 0."
        => |stats, family| family.value(u8::from(stats.is_overlay_stale));
}
