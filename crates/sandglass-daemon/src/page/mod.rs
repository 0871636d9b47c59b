//! The page of the live view: one document that contains its style and scripts, and loads nothing from
//! elsewhere.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(
    include_str!("client.js"),
    include_str!("elements.js"),
    include_str!("explanation.js"),
    include_str!("page.js")
);
const FRAME: &str = include_str!("page.html");

/// The page, and the policy that permits a browser only what the page needs.
struct Page {
    text: Bytes,
    policy: HeaderValue,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let text = FRAME.replace("{style}", STYLE).replace("{script}", SCRIPT);
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source_of(SCRIPT),
        source_of(STYLE)
    );
    let policy = HeaderValue::try_from(policy).expect("printable ASCII");
    Page { text: text.into(), policy }
});

/// The source expression of an inline text in a policy (CSP 3, 2.3.1).
fn source_of(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

/// The response with the page.
pub(crate) fn response() -> Response {
    let fixed = |name: HeaderName, value| (name, HeaderValue::from_static(value));
    let headers = [
        fixed(header::CONTENT_TYPE, "text/html; charset=utf-8"),
        fixed(header::X_FRAME_OPTIONS, "DENY"),
        fixed(header::REFERRER_POLICY, "no-referrer"),
        fixed(HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        fixed(HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CONTENT_SECURITY_POLICY, PAGE.policy.clone()),
    ];
    (headers, PAGE.text.clone()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_nothing_and_makes_no_markup_of_text() {
        let text = str::from_utf8(&PAGE.text).expect("text");
        for never in ["http://", "https://", "innerHTML", "outerHTML", "document.write", "eval("] {
            assert!(!text.contains(never), "{never}");
        }
        assert!(!text.contains("{style}") && !text.contains("{script}"));
        assert_eq!(text.matches("<script>").count(), 1);
        assert_eq!(text.matches("</script>").count(), 1, "the script cannot end early");
    }
}
