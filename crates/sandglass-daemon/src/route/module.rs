//! Routes of modules: listing them, and uploading a new version of one.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use sandglass_http::body::{self, Limits};

use crate::Daemon;
use crate::access::Permission;
use crate::cluster::UploadedModule;
use crate::error::{Code, Error};
use crate::extract::{Caller, ModuleName, NoQuery};
use crate::modules::Upload;
use crate::view::{ModuleList, ModuleView};

/// The media types of modules: their own, and the one that clients send by default.
const MEDIA_TYPES: [&str; 2] = ["application/wasm", "application/octet-stream"];

/// The modules that integrations name
#[utoipa::path(get, path = "/v1/modules", tag = "modules",
    responses((status = 200, body = ModuleList, description = "All modules, by name")))]
pub(crate) async fn list(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
) -> Result<Json<ModuleList>, Error> {
    principal.require(Permission::Read)?;
    Ok(Json(ModuleList { modules: daemon.parts().modules.list() }))
}

/// Uploads a new version of a module that integrations name
///
/// It is compiled and checked first, with the grants of the module; if that fails, the previous
/// version stays. New dispatches use it; those in flight finish with theirs. It is stored beside the
/// journal and used after a restart; without a journal file it ends with the process (see `source`).
/// The hosts of a cluster activate a generation with it, which this host uses when it responds.
#[utoipa::path(put, path = "/v1/modules/{name}", tag = "modules",
    params(("name" = String, Path, min_length = 1, max_length = 128)),
    request_body(content((Vec<u8> = "application/wasm"), (Vec<u8> = "application/octet-stream")),
        description = "The module, in binary form"),
    responses((status = 200, body = ModuleView, description = "The new version is used")))]
pub(crate) async fn put(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    ModuleName(name): ModuleName,
    request: Request,
) -> Result<Json<ModuleView>, Error> {
    principal.require(Permission::Deploy)?;
    principal.require_all_tenants()?;
    let slot = daemon.upload(&principal)?;
    let settings = daemon.settings();
    let (parts, body) = request.into_parts();
    require_media_type(&parts.headers)?;
    body::require_plain(&parts.headers)?;
    daemon.parts().modules.require(&name)?;
    let limits = Limits { max_bytes: settings.max_module_bytes, timeout: settings.body_timeout };
    // It already has a slot for an upload, so it needs none for a large body.
    let bytes = body::bytes(&parts.headers, body, limits, || Ok::<_, Error>(())).await?;
    let at = daemon.parts().clock.wall();
    let upload = Upload { name, bytes: Arc::from(&*bytes), by: principal.owner, at };
    // On a task of its own, so that a client that disconnects leaves nothing half done. The task
    // holds the slot, because memory and compiler are in use until it ends.
    let uploading = tokio::spawn(async move {
        let _slot = slot;
        let parts = daemon.parts();
        let Some(deployments) = daemon.deployments() else {
            return parts.modules.upload(&parts.handlers, upload).await;
        };
        parts.modules.check_upload(&parts.handlers, &upload).await?;
        let Upload { name, bytes, by, at } = upload;
        let uploaded = UploadedModule { name: name.clone(), bytes, by, at };
        deployments.upload(uploaded).await?;
        parts.modules.view(&name)
    });
    let failed = |_| Err(Error::new(Code::Internal, "uploading the module failed"));
    uploading.await.unwrap_or_else(failed).map(Json)
}

fn require_media_type(headers: &HeaderMap) -> Result<(), Error> {
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = sent.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if MEDIA_TYPES.iter().any(|known| known.eq_ignore_ascii_case(essence)) {
        return Ok(());
    }
    let message = "send the module as `Content-Type: application/wasm`";
    Err(Error::new(Code::UnsupportedMediaType, message))
}
