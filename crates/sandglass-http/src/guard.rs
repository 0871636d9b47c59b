//! Layers around the routes of an interface: responses to unknown paths and methods, headers of every
//! response, and panics.

use std::any::Any;
use std::future::{Ready, ready};

use axum::Router;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::middleware::map_response;
use axum::response::Response;
use tower_http::catch_panic::CatchPanicLayer;

/// Most characters of a path in an error.
const PATH_MAX_CHARS: usize = 200;
/// Most characters of a method in an error.
const METHOD_MAX_CHARS: usize = 40;

/// A request that no route serves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// There is no such path: 404.
    #[error("there is no `{path}`")]
    Path {
        /// The path as it was sent, up to 200 characters.
        path: String,
    },
    /// The path does not support the method: 405. The router sets `Allow` on the response.
    #[error("the path does not support {method}; `Allow` lists the supported methods")]
    Method {
        /// The method, up to 40 characters.
        method: String,
    },
}

/// Answers requests that no route of `router` serves with the response of `render`. Layers that are
/// added later also apply to these responses.
pub fn with_fallbacks<S, T>(router: Router<S>, render: T) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    T: Fn(NoRoute) -> Response + Clone + Send + Sync + 'static,
{
    with_method_fallback(router.fallback(path_fallback(render.clone())), render)
}

/// Answers unsupported methods of the paths of `router` with the response of `render`. Other paths are
/// left to the routers that it is merged with.
pub fn with_method_fallback<S, T>(router: Router<S>, render: T) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    T: Fn(NoRoute) -> Response + Clone + Send + Sync + 'static,
{
    router.method_not_allowed_fallback(async move |method: Method| {
        let method = method.as_str().chars().take(METHOD_MAX_CHARS).collect();
        render(NoRoute::Method { method })
    })
}

/// A handler of unknown paths, which returns the response of `render`.
pub fn path_fallback<T>(
    render: T,
) -> impl Fn(Uri) -> Ready<Response> + Clone + Send + Sync + 'static
where
    T: Fn(NoRoute) -> Response + Clone + Send + Sync + 'static,
{
    move |uri: Uri| {
        let path = uri.path().chars().take(PATH_MAX_CHARS).collect();
        ready(render(NoRoute::Path { path }))
    }
}

/// Adds the outermost layers to `router`: every response forbids browsers to guess its media type, and
/// forbids caching unless it states otherwise; a request that panics gets the response of `panicked`.
pub fn with_guards<S>(router: Router<S>, panicked: fn() -> Response) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    let panicked = move |_: Box<dyn Any + Send>| {
        // The panic hook has logged the location.
        tracing::error!("a request failed in the server itself");
        panicked()
    };
    router.layer(map_response(add_headers)).layer(CatchPanicLayer::custom(panicked))
}

async fn add_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
