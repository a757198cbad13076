//! `/cluster`: the view of this replica of the cluster.

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_cluster::{Cluster, MemberId};
use tollgate_telemetry::logs::UNLIMITED;
use tracing::warn;

use crate::api::{
    admin::state::AdminState,
    format::{self, AdminError, ClientAddress},
};

/// The query for a member: `?member=ID`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemberQuery {
    member: String,
}

pub(super) async fn view(State(state): State<AdminState>) -> Result<Json<Value>, AdminError> {
    Ok(Json(view_json(cluster_of(&state)?)))
}

/// The view of this replica, and what it has decided with and without the other ones.
pub(super) fn view_json(cluster: &Cluster) -> Value {
    let stats = cluster.stats();
    let mut body = json!(cluster.view());
    body["state"] = json!(stats.state);
    body["backup_age_ms"] = format::millis(stats.backup_age).into();
    body["checks"] = json!({
        "forwarded": stats.node.forwarded,
        "leased": stats.node.leased,
        "degraded": stats.degraded,
    });
    body
}

pub(super) async fn declare_dead(
    State(state): State<AdminState>,
    peer: ClientAddress,
    query: Result<Query<MemberQuery>, QueryRejection>,
) -> Result<Json<Value>, AdminError> {
    let cluster = cluster_of(&state)?;
    let Query(query) = query.map_err(|error| AdminError::bad_request(error.body_text()))?;
    let member: MemberId = query.member.parse().map_err(|()| {
        AdminError::bad_request(format!(
            "member: `{}` is not the 16 hexadecimal digits of an id",
            query.member
        ))
    })?;
    if member == cluster.local_id() {
        return Err(AdminError::bad_request(format!("{member} is this replica itself")));
    }
    if !cluster.declare_dead(member) {
        return Err(AdminError::not_found(format!("{member} is not a known member; /cluster lists them")));
    }
    warn!(name: UNLIMITED, %peer, %member, "declared a replica dead");
    Ok(Json(json!({"member": member.to_string(), "declared": "dead"})))
}

fn cluster_of(state: &AdminState) -> Result<&Cluster, AdminError> {
    let alone = "cluster.listen is off: this is a single replica";
    state.cluster.as_ref().ok_or_else(|| AdminError::not_found(alone))
}
