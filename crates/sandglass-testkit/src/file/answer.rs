//! Reads one `[[answer]]`: the key that names the call, and the keys of its reply.

use std::time::Duration;

use sandglass_source::{Diagnostics, Table};

use super::{any, text};
use crate::answer::{Answer, Call, Reply};

/// The keys that name a call, each with the keys of its reply.
const CALLS: [(&str, &[&str]); 5] = [
    ("http", &["status", "headers", "body", "json"]),
    ("ask", &["state", "fields"]),
    ("signal", &[]),
    ("function", &["value"]),
    ("secret", &["value"]),
];
/// The keys that all answers have.
const COMMON_KEYS: [&str; 4] = ["delay", "never", "error", "times"];
/// Longest delay: the longest deadline, after which `never` is the right key.
const DELAY_MAX: Duration = Duration::from_millis(sandglass_model::limit::MAX_BUDGET_MS);

pub(super) fn read(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Answer> {
    let named: Vec<_> = CALLS.iter().filter(|(key, _)| table.has(key)).collect();
    let [(call, keys)] = named[..] else {
        let message = match named[..] {
            [] => format!("{} names no call", table.label),
            _ => format!("{} names more than one kind of call", table.label),
        };
        let help = "write one of `http = \"GET https://...\"`, `ask = \"TYPE.ACTION\"`, `signal = \"TYPE.NAME\"`, `function = \"INTERFACE.NAME\"` and `secret = \"NAME\"`";
        out.error_with_help(&table.span, message, help);
        return None;
    };
    let mut known = vec![*call];
    known.extend_from_slice(keys);
    known.extend_from_slice(&COMMON_KEYS);
    table.only(&known, out);
    let to = to(call, table, out)?;
    let after = table.duration_within("delay", Duration::ZERO..=DELAY_MAX, out);
    let is_never = table.flag("never", out).unwrap_or(false);
    let error = text(table, "error", out);
    let reply_keys: Vec<&str> = keys.iter().copied().filter(|key| table.has(key)).collect();
    if usize::from(is_never) + usize::from(error.is_some()) + usize::from(!reply_keys.is_empty())
        > 1
        || (is_never && after.is_some())
    {
        let message = format!("{} has more than one kind of reply", table.label);
        let help = "write a value (with or without `delay`), an `error`, or `never`";
        out.error_with_help(&table.span, message, help);
    }
    let reply = match (is_never, error) {
        (true, _) => Reply::Never,
        (false, Some(error)) => Reply::Error(error),
        (false, None) => reply(call, table, out),
    };
    let times = table.count("times", 0..=u64::from(u32::MAX), out);
    let times = match times {
        // Any number of times. A guest reads a secret more than once: first for its size.
        Some(0) => None,
        None if *call == "secret" => None,
        times => Some(times.and_then(|times| u32::try_from(times).ok()).unwrap_or(1)),
    };
    Some(Answer { to, after: after.unwrap_or_default(), reply, times })
}

fn to(call: &str, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Call> {
    let text = table.text(call, out)?;
    let any = |text: &str| (text != "*" && !text.is_empty()).then(|| text.to_owned());
    Some(match call {
        "http" => {
            let (method, url) = match text.split_once(' ') {
                Some((method, url)) => (any(method), any(url.trim())),
                None => (None, any(&text)),
            };
            if url
                .as_ref()
                .is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://"))
            {
                let help = "write `METHOD URL`, such as \"GET https://example.com/a\"; `*` at the end matches any rest";
                out.error_with_help(text.span(), format!("`{text}` is not a request"), help);
            }
            let prefix = url.as_ref().map(|url| url.strip_suffix('*').unwrap_or(url));
            if prefix.is_some_and(|prefix| prefix.contains(['*', '#'])) {
                let help = "`*` is allowed at the end only, and a fragment is never sent";
                out.error_with_help(text.span(), format!("`{text}` matches no request"), help);
            }
            Call::Http { method, url: url.map(|url| with_path(&url)) }
        }
        "ask" | "signal" => {
            let parts = if text.as_str() == "*" { Some(("*", "*")) } else { text.rsplit_once('.') };
            let Some((target, name)) = parts else {
                let (what, help) = match call {
                    "ask" => ("an ask", "write `TYPE.ACTION`, or `TYPE/ID.ACTION`"),
                    _ => ("a signal", "write `TYPE.NAME`, or `TYPE/ID.NAME`"),
                };
                out.error_with_help(text.span(), format!("`{text}` is not {what}"), help);
                return None;
            };
            let (target, name) = (any(target), any(name));
            match call {
                "ask" => Call::Ask { target, action: name },
                _ => Call::Signal { target, name },
            }
        }
        "function" => Call::Function { name: text.to_string() },
        _ => Call::Secret { name: text.to_string() },
    })
}

/// Adds the path `/` to a URL without a path, as clients do.
fn with_path(url: &str) -> String {
    let after = url.split_once("://").map_or(url, |(_, rest)| rest);
    if after.contains(['/', '*', '?']) { url.to_owned() } else { format!("{url}/") }
}

fn reply(call: &str, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Reply {
    match call {
        "http" => {
            let status = table.count("status", 100..=599, out).unwrap_or(200);
            let mut headers: Vec<(String, String)> =
                table.texts_by_name("headers", out).into_iter().collect();
            if table.has("body") && table.has("json") {
                let message = format!("{} has both `body` and `json`", table.label);
                out.error_with_help(&table.span_of("json"), message, "write one of them");
            }
            let body = match any(table, "json") {
                Some(json) => {
                    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
                        headers.push(("content-type".to_owned(), "application/json".to_owned()));
                    }
                    json.to_string()
                }
                None => text(table, "body", out).unwrap_or_default(),
            };
            let status = u16::try_from(status).unwrap_or(200);
            Reply::Response { status, headers, body: body.into_bytes() }
        }
        "ask" => Reply::Asked {
            state: text(table, "state", out).unwrap_or_default(),
            fields: table.object("fields", out),
        },
        "signal" => Reply::Recorded,
        "function" => Reply::Value(any(table, "value").unwrap_or_default()),
        _ => Reply::Secret(text(table, "value", out)),
    }
}
