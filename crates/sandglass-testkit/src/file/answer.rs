//! One scripted answer: the key that names the call, and what belongs to it.

use std::time::Duration;

use sandglass_source::{Diagnostics, Table};

use super::{any, text};
use crate::answer::{Answer, Call, Reply};

/// The calls that can be answered, and what belongs to each.
const CALLS: [(&str, &[&str]); 4] = [
    ("http", &["status", "headers", "body", "json"]),
    ("ask", &["state", "fields"]),
    ("function", &["value"]),
    ("secret", &["value"]),
];
/// What belongs to all of them.
const OF_ALL: [&str; 4] = ["delay", "never", "error", "times"];
/// Longest time that an answer takes: longer is `never`.
const DELAY_MAX: Duration = Duration::from_millis(sandglass_model::limit::MAX_BUDGET_MS);

pub(super) fn read(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Answer> {
    let named: Vec<_> = CALLS.iter().filter(|(key, _)| table.has(key)).collect();
    let [(call, keys)] = named[..] else {
        let message = match named[..] {
            [] => format!("{} doesn't say what it answers", table.label),
            _ => format!("{} answers more than one kind of call", table.label),
        };
        let help = "say one of `http = \"GET https://...\"`, `ask = \"TYPE.ACTION\"`, `function = \"INTERFACE.NAME\"` and `secret = \"NAME\"`";
        out.error_with_help(&table.span, message, help);
        return None;
    };
    let mut known = vec![*call];
    known.extend_from_slice(keys);
    known.extend_from_slice(&OF_ALL);
    table.only(&known, out);
    let to = to(call, table, out)?;
    let after = table.duration_within("delay", Duration::ZERO..=DELAY_MAX, out);
    let is_never = table.flag("never", out).unwrap_or(false);
    let error = text(table, "error", out);
    let says: Vec<&str> = keys.iter().copied().filter(|key| table.has(key)).collect();
    if usize::from(is_never) + usize::from(error.is_some()) + usize::from(!says.is_empty()) > 1
        || (is_never && after.is_some())
    {
        let message = format!("{} says more than one thing of how it ends", table.label);
        let help = "a value (with `delay` or without), an `error`, or `never`: not several";
        out.error_with_help(&table.span, message, help);
    }
    let reply = match (is_never, error) {
        (true, _) => Reply::Never,
        (false, Some(error)) => Reply::Error(error),
        (false, None) => reply(call, table, out),
    };
    let times = table.count("times", 0..=u64::from(u32::MAX), out);
    let times = match times {
        // As often as it is called. Secrets are looked at more than once: for their size, first.
        Some(0) => None,
        None if *call == "secret" => None,
        times => Some(times.and_then(|times| u32::try_from(times).ok()).unwrap_or(1)),
    };
    Some(Answer { to, after: after.unwrap_or_default(), reply, times })
}

fn to(call: &str, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Call> {
    let said = table.text(call, out)?;
    let any = |text: &str| (text != "*" && !text.is_empty()).then(|| text.to_owned());
    Some(match call {
        "http" => {
            let (method, url) = match said.split_once(' ') {
                Some((method, url)) => (any(method), any(url.trim())),
                None => (None, any(&said)),
            };
            if url
                .as_ref()
                .is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://"))
            {
                let help = "write `METHOD URL`, such as \"GET https://example.com/a\"; `*` at the end stands for any rest";
                out.error_with_help(said.span(), format!("`{said}` names no request"), help);
            }
            let begin = url.as_ref().map(|url| url.strip_suffix('*').unwrap_or(url));
            if begin.is_some_and(|begin| begin.contains(['*', '#'])) {
                let help = "`*` stands at the end, for any rest; a fragment is never sent";
                out.error_with_help(said.span(), format!("`{said}` matches no request"), help);
            }
            Call::Http { method, url: url.map(|url| with_path(&url)) }
        }
        "ask" => {
            let parts = if said.as_str() == "*" { Some(("*", "*")) } else { said.rsplit_once('.') };
            let Some((target, action)) = parts else {
                let help = "write `TYPE.ACTION`, or `TYPE/ID.ACTION`";
                out.error_with_help(said.span(), format!("`{said}` names no ask"), help);
                return None;
            };
            Call::Ask { target: any(target), action: any(action) }
        }
        "function" => Call::Function { name: said.to_string() },
        _ => Call::Secret { name: said.to_string() },
    })
}

/// The URL as requests have it: with a path.
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
                let message = format!("{} has a `body` and a `json`", table.label);
                out.error_with_help(&table.span_of("json"), message, "say one of them");
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
        "function" => Reply::Value(any(table, "value").unwrap_or_default()),
        _ => Reply::Secret(text(table, "value", out)),
    }
}
