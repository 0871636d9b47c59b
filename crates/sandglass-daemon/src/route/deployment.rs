//! Routes of what the hosts of a cluster run: activating a generation, and a newer format of records.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use sandglass_model::WallTime;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Daemon;
use crate::access::Permission;
use crate::cluster::{Deployment, Deployments, ExpectedActive};
use crate::error::{Code, Error};
use crate::extract::{Body, Caller, NoQuery};

/// A generation: specs, modules and grants that hosts can run.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GenerationView {
    generation: u64,
    state: GenerationState,
    /// The host that proposed it.
    proposed_by: String,
    /// The version of that host's program.
    version: String,
    /// When it was proposed, in milliseconds since 1970.
    #[schema(value_type = i64)]
    at: WallTime,
    /// When it was last activated, in milliseconds since 1970; null if it never was.
    #[schema(value_type = Option<i64>, required)]
    activated_at: Option<WallTime>,
}

/// The state of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum GenerationState {
    /// All hosts follow it.
    Active,
    /// It was never activated.
    Proposed,
    /// It was active before.
    Replaced,
}

impl GenerationView {
    /// Of a generation, if `active` is the active one.
    pub(super) fn new(deployment: &Deployment, active: Option<u64>) -> Self {
        let Deployment { generation, proposed_by, version, at, activated } = deployment.clone();
        let state = match activated {
            _ if active == Some(generation) => GenerationState::Active,
            None => GenerationState::Proposed,
            Some(_) => GenerationState::Replaced,
        };
        Self { generation, state, proposed_by, version, at, activated_at: activated }
    }
}

/// Which generation is activated.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Activate {
    /// Its number. Required.
    generation: Option<u64>,
    /// Change nothing unless this generation is active.
    replacing: Option<u64>,
}

/// A generation that is active now.
#[derive(Serialize, ToSchema)]
pub(crate) struct ActivatedView {
    generation: u64,
    /// The one that was active before; null if there was none.
    #[schema(required)]
    replaced: Option<u64>,
}

/// Activates a generation, which all hosts follow
///
/// The responding host checks first that it can run the generation, and runs it when it responds. The
/// others load it within seconds; `GET /v1/cluster` shows what each runs. An earlier generation can be
/// activated again. 404 `unknown_generation`; 409 `generation_replaced` if another one was activated
/// meanwhile; 422 `generation_refused` if the host cannot run it. Then nothing has changed.
#[utoipa::path(post, path = "/v1/cluster/activate", tag = "cluster", request_body = Activate,
    operation_id = "activate",
    responses((status = 200, body = ActivatedView, description = "It is active")))]
pub(crate) async fn activate(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Body(Activate { generation, replacing }): Body<Activate>,
) -> Result<Json<ActivatedView>, Error> {
    principal.require(Permission::Operate)?;
    principal.require_all_tenants()?;
    let deployments = require_deployments(&daemon)?;
    let generation = generation.ok_or_else(|| {
        Error::new(Code::BadBody, "`generation` is missing: the number of what is to be active")
    })?;
    let replacing = replacing.map_or(ExpectedActive::Present, ExpectedActive::Only);
    let replaced = deployments.activate(generation, replacing).await?;
    tracing::info!(generation, ?replaced, by = principal.owner, "a generation was activated");
    Ok(Json(ActivatedView { generation, replaced }))
}

/// The format of records that is written.
#[derive(Serialize, ToSchema)]
pub(crate) struct FormatView {
    writes_format: u32,
}

/// Has all hosts write the newest format of records that this host's program has
///
/// Programs that cannot read it are refused from then on. 409 `format_unreadable` if a host of the
/// cluster cannot read it; then nothing has changed.
#[utoipa::path(post, path = "/v1/cluster/upgrade-format", tag = "cluster",
    operation_id = "upgrade_format",
    responses((status = 200, body = FormatView, description = "It is written")))]
pub(crate) async fn upgrade_format(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
) -> Result<Json<FormatView>, Error> {
    principal.require(Permission::Operate)?;
    principal.require_all_tenants()?;
    let writes_format = require_deployments(&daemon)?.upgrade_format().await?;
    tracing::info!(writes_format, by = principal.owner, "the format of records was upgraded");
    Ok(Json(FormatView { writes_format }))
}

fn require_deployments(daemon: &Daemon) -> Result<&Arc<dyn Deployments>, Error> {
    daemon.require_cluster()?;
    daemon.deployments().ok_or_else(|| {
        Error::new(Code::NoCluster, "the hosts of this cluster follow no generations")
    })
}
