//! Modules: which there are, and new versions of them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use sandglass_http::body::{self, Limits};

use crate::Daemon;
use crate::access::Permission;
use crate::error::{Code, Envelope, Error};
use crate::extract::{By, ModuleName, NoQuery};
use crate::modules::Put;
use crate::view::{ModuleList, ModuleView};

/// The media types of modules: their own, and what clients send by themselves.
const MEDIA_TYPES: [&str; 2] = ["application/wasm", "application/octet-stream"];

/// The modules that integrations name
#[utoipa::path(get, path = "/v1/modules", tag = "modules",
    responses(
        (status = 200, body = ModuleList, description = "All of them, by name"),
        (status = "4XX", body = Envelope, description = "Not for you"),
        (status = "5XX", body = Envelope, description = "Not to be had now"),
    ))]
pub(crate) async fn list(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
) -> Result<Json<ModuleList>, Error> {
    principal.require(Permission::Read)?;
    Ok(Json(ModuleList { modules: daemon.modules().list() }))
}

/// Puts a new version of a module that integrations name
///
/// It is compiled and checked before it is taken, with the grants that the module has.
/// New dispatches take it; those in flight finish on theirs. It is kept beside the
/// journal and used after a restart; without a journal file it is gone with the process
/// (`source` says which).
#[utoipa::path(put, path = "/v1/modules/{name}", tag = "modules",
    params(("name" = String, Path, min_length = 1, max_length = 128)),
    request_body(content((Vec<u8> = "application/wasm"), (Vec<u8> = "application/octet-stream")), description = "The module, in binary form"),
    responses(
        (status = 200, body = ModuleView, description = "Taken"),
        (status = "4XX", body = Envelope, description = "Not taken: the one before stays"),
        (status = "5XX", body = Envelope, description = "Not taken: the one before stays"),
    ))]
pub(crate) async fn put(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
    ModuleName(name): ModuleName,
    request: Request,
) -> Result<Json<ModuleView>, Error> {
    principal.require(Permission::Deploy)?;
    principal.require_all_tenants()?;
    let place = daemon.put(&principal)?;
    let settings = daemon.settings();
    let (parts, body) = request.into_parts();
    require_media_type(&parts.headers)?;
    body::require_plain(&parts.headers)?;
    daemon.modules().require(&name)?;
    let limits = Limits { max_bytes: settings.max_module_bytes, timeout: settings.body_timeout };
    // It has a slot already.
    let bytes = body::bytes(&parts.headers, body, limits, || Ok::<_, Error>(())).await?;
    let bytes = Arc::from(&*bytes);
    let at = daemon.clock().wall();
    let put = Put { name, bytes, by: principal.owner, at };
    // On a task of its own: a client that goes away leaves nothing half done. It has the
    // place, too: what is held and compiled counts until it is done.
    let putting = {
        let daemon = daemon.clone();
        tokio::spawn(async move {
            let _place = place;
            daemon.modules().put(daemon.handlers(), put).await
        })
    };
    let put = putting.await;
    put.unwrap_or_else(|_| Err(Error::new(Code::Internal, "putting the module failed"))).map(Json)
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
