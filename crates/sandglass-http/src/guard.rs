//! What goes around the routes of an interface: what they don't serve, what they never
//! leave out, and what becomes of a panic.

use std::any::Any;
use std::future::{Ready, ready};

use axum::Router;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::middleware::map_response;
use axum::response::Response;
use tower_http::catch_panic::CatchPanicLayer;

/// Most characters of a path that are told back.
const PATH_TOLD_MAX: usize = 200;
/// Most characters of a method that are told back.
const METHOD_TOLD_MAX: usize = 40;

/// What no route serves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// There is no such path: 404.
    #[error("there is no `{path}`")]
    Path {
        /// It, as it was sent, up to 200 characters.
        path: String,
    },
    /// The path doesn't take the method: 405. `Allow` is set on the answer by the router.
    #[error("the path doesn't take {method}; `Allow` names what it takes")]
    Method {
        /// It, up to 40 characters.
        method: String,
    },
}

/// Has `router` answer what it doesn't serve with what `told` makes of it. Layers that are
/// added afterwards are around these answers, too.
pub fn with_fallbacks<S, T>(router: Router<S>, told: T) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    T: Fn(NoRoute) -> Response + Clone + Send + Sync + 'static,
{
    with_method_fallback(router.fallback(path_fallback(told.clone())), told)
}

/// Has the routes of `router` answer methods that they don't take with what `told` makes of it,
/// and leaves other paths to those that it is merged with.
pub fn with_method_fallback<S, T>(router: Router<S>, told: T) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    T: Fn(NoRoute) -> Response + Clone + Send + Sync + 'static,
{
    router.method_not_allowed_fallback(async move |method: Method| {
        let method = method.as_str().chars().take(METHOD_TOLD_MAX).collect();
        told(NoRoute::Method { method })
    })
}

/// A handler of paths that aren't there, which answers what `told` makes of them.
pub fn path_fallback<T>(told: T) -> impl Fn(Uri) -> Ready<Response> + Clone + Send + Sync + 'static
where
    T: Fn(NoRoute) -> Response + Clone + Send + Sync + 'static,
{
    move |uri: Uri| {
        let path = uri.path().chars().take(PATH_TOLD_MAX).collect();
        ready(told(NoRoute::Path { path }))
    }
}

/// Has `router` say of each answer that it is what it says it is and, where nothing else is
/// said, that it isn't kept by anybody; and has a request that panics answered with what
/// `panicked` says. To be added around all else.
pub fn with_guards<S>(router: Router<S>, panicked: fn() -> Response) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    let panicked = move |_: Box<dyn Any + Send>| {
        // The panic hook has told where.
        tracing::error!("a request failed in the server itself");
        panicked()
    };
    router.layer(map_response(plain)).layer(CatchPanicLayer::custom(panicked))
}

async fn plain(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
