//! The world's own imports, but for HTTP.

use sandglass_guest::bindings::sandglass::integration::types::TypedFailure;
use sandglass_guest::bindings::sandglass::integration::{
    ask, clock, context, fail, log, metrics, progress, scratch, secrets, signal, spans,
};
use serde_json::{Value, json};

use crate::Answer;

pub fn call(does: &str) -> Option<Answer> {
    Some(match does {
        "tell" => tell(),
        "read_context" => read_context(),
        "read_clocks" => read_clocks(),
        "read_secret" => read_secret(),
        "trace" => trace(),
        "measure" => measure(),
        "scratch" => keep(),
        "ask" => ask_another(),
        "signal" => signal_another(),
        "raise" => {
            fail::raise(&rate_limited());
            Err("it went on after raising a failure".to_owned())
        }
        _ => return None,
    })
}

pub fn rate_limited() -> TypedFailure {
    TypedFailure {
        category: "upstream".to_owned(),
        code: "rate_limited".to_owned(),
        retryability: Some("retryable".to_owned()),
        outcome: Some("not_started".to_owned()),
        details: Some(r#"{"after_s":30}"#.to_owned()),
        diagnostic: None,
    }
}

fn tell() -> Answer {
    log::write(log::Level::Info, "hello");
    log::write_fields(log::Level::Warn, "slow", r#"{"ms":12}"#)?;
    log::wide_event(r#"{"tool":"grep","hits":3}"#)?;
    progress::emit(r#"{"done":1}"#)?;
    progress::heartbeat();
    progress::set_status("counting");
    let refused = [
        progress::emit("{").is_err(),
        progress::emit(&format!("\"{}\"", "x".repeat(20_000))).is_err(),
        log::wide_event("[]").is_err(),
        log::write_fields(log::Level::Info, "x", "7").is_err(),
    ];
    Ok(json!({ "refused": refused }))
}

fn read_context() -> Answer {
    let whole: Value = serde_json::from_str(&context::whole()).map_err(|e| e.to_string())?;
    Ok(json!({
        "whole": whole["trigger_action"],
        "missing": context::read_field("nothing of that name").is_none(),
    }))
}

fn read_clocks() -> Answer {
    Ok(json!({
        "after_2020": clock::now_ms() > 1_577_836_800_000,
        "has_time": clock::deadline_remaining_ms() > 0,
        "should_stop": clock::should_stop(),
    }))
}

fn read_secret() -> Answer {
    Ok(json!({
        "secret": secrets::get("token")?,
        "denied": secrets::get("of somebody else").is_err(),
    }))
}

fn trace() -> Answer {
    let outer = spans::start("outer", None, "")?;
    let inner = spans::start("inner", Some(&outer), r#"{"n":1}"#)?;
    inner.add_event("halfway", "{}")?;
    inner.set_attributes(r#"{"m":2}"#)?;
    let refused = inner.set_attributes("7").is_err();
    spans::Span::end(inner, Some("it failed"));
    drop(outer);
    Ok(json!({ "refused": refused }))
}

fn measure() -> Answer {
    let labels = [("tool".to_owned(), "grep".to_owned())];
    metrics::emit("tool_calls_total", metrics::Kind::Counter, 1.0, &labels)?;
    metrics::emit("queue_length", metrics::Kind::Gauge, 3.0, &labels)?;
    metrics::emit("tool_seconds", metrics::Kind::Histogram, 0.25, &labels)?;
    let refused = metrics::emit("x", metrics::Kind::Gauge, f64::NAN, &[]).is_err();
    Ok(json!({ "refused": refused }))
}

fn keep() -> Answer {
    let error = |error: scratch::Error| format!("{error:?}");
    scratch::set("a", b"1").map_err(error)?;
    scratch::set("b", b"2").map_err(error)?;
    Ok(json!({
        "a": scratch::get("a").map_err(error)?,
        "none": scratch::get("c").map_err(error)?.is_none(),
        "deleted": scratch::delete("b").map_err(error)?,
        "keys": scratch::keys().map_err(error)?,
        "full": matches!(scratch::set("c", &[0; 4096]), Err(scratch::Error::Full(_))),
    }))
}

fn ask_another() -> Answer {
    let answer = ask::ask(&ask::Request {
        entity_type: "Tool".to_owned(),
        entity_id: "1".to_owned(),
        action: "Use".to_owned(),
        params: r#"{"n":1}"#.to_owned(),
        until: ask::Until::Settled,
    });
    Ok(match answer {
        Ok(answer) => json!({ "state": answer.state, "sequence": answer.sequence }),
        Err(error) => json!({ "error": format!("{:?}", error.kind) }),
    })
}

fn signal_another() -> Answer {
    let send = |payload: &str| {
        let sent = signal::send(&signal::Notice {
            entity_type: "Tool".to_owned(),
            entity_id: "1".to_owned(),
            name: "used".to_owned(),
            payload: payload.to_owned(),
        });
        match sent {
            Ok(()) => "sent".to_owned(),
            Err(error) => format!("{:?}", error.kind),
        }
    };
    Ok(json!({ "ungranted": send(""), "invalid": send("{") }))
}
