//! `/cluster`: the other replicas, as this one sees them.

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::warn;

use crate::{
    api::admin::{Desk, Peer, Refused},
    cluster::{Cluster, MemberId, View},
    telemetry::logs::UNLIMITED,
};

/// Which member: `?member=ID`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    member: String,
}

pub(super) async fn view(State(desk): State<Desk>) -> Result<Json<View>, Refused> {
    Ok(Json(shared(&desk)?.view()))
}

pub(super) async fn declare_dead(
    State(desk): State<Desk>,
    peer: Peer,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<Json<Value>, Refused> {
    let cluster = shared(&desk)?;
    let Query(which) = which.map_err(|error| Refused::bad(error.body_text()))?;
    let member: MemberId = which.member.parse().map_err(|()| {
        Refused::bad(format!("member: `{}` is not the 16 hexadecimal digits of an id", which.member))
    })?;
    if member == cluster.local_id() {
        return Err(Refused::bad(format!("{member} is this replica itself")));
    }
    if !cluster.declare_dead(member) {
        return Err(Refused::not_found(format!("{member} is not known here; /cluster tells who is")));
    }
    warn!(name: UNLIMITED, %peer, %member, "declared a replica dead");
    Ok(Json(json!({"member": member.to_string(), "declared": "dead"})))
}

fn shared(desk: &Desk) -> Result<&Cluster, Refused> {
    let alone = "cluster.listen is off: this replica counts by itself";
    desk.limiter.cluster().ok_or_else(|| Refused::not_found(alone))
}
