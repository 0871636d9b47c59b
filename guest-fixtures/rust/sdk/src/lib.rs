//! Uses each part of the SDK, one at a time, as its input says. It is built for each target and each
//! world that the SDK is for, and must do the same in each.

// What the SDK's macros make is no unsafe code of their author's.
#![forbid(unsafe_code)]

mod outside;
mod telling;

use sandglass_guest::{
    Completion, Context, Failure, Value, clock, deadline, handler, json, scratch, secrets,
};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Input {
    does: Does,
    #[serde(default)]
    url: String,
    #[serde(default)]
    items: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Does {
    AnswerNoObject,
    Ask,
    Batch,
    CallAndStop,
    Get,
    GetTogether,
    KeepInScratch,
    Panic,
    Post,
    ReadBody,
    ReadClocks,
    ReadContext,
    ReadSecret,
    Signal,
    Skip,
    Spin,
    Sum,
    Tell,
    WorkUntilStopped,
}

#[derive(Deserialize)]
struct Item {
    cents: u32,
}

#[derive(Serialize)]
struct Sum {
    cents: u32,
}

#[handler(action = "Finish")]
async fn handle(input: Input, context: &Context) -> Result<Completion, Failure> {
    let url = &*input.url;
    let params = match input.does {
        Does::AnswerNoObject => return Ok(Completion::on_success().with([1, 2])),
        Does::Ask => outside::ask().await?,
        Does::Batch => outside::batch(url)?,
        Does::CallAndStop => outside::call_and_stop(url)?,
        Does::Get => outside::get(url).await?,
        Does::GetTogether => outside::get_together(url).await?,
        Does::KeepInScratch => keep_in_scratch()?,
        Does::Panic => panic!("no item of {} cents", input.items.len()),
        Does::Post => outside::post(url)?,
        Does::ReadBody => outside::read_body(url)?,
        Does::ReadClocks => read_clocks(),
        Does::ReadContext => read_context(context)?,
        Does::ReadSecret => read_secret().await?,
        Does::Signal => outside::signal().await?,
        Does::Skip => return Ok(Completion::action("Skip").with(json!({ "why": "asked to" }))),
        Does::Spin => spin(),
        Does::Sum => return Ok(Completion::on_success().with(sum(&input.items)?)),
        Does::Tell => telling::tell()?,
        Does::WorkUntilStopped => return Err(work_until_stopped()),
    };
    Ok(Completion::on_success().with(params))
}

fn sum(items: &[Item]) -> Result<Sum, Failure> {
    let cents = items.iter().try_fold(0_u32, |sum, item| sum.checked_add(item.cents));
    let cents = cents.ok_or_else(|| Failure::typed("sum", "too_large").permanent())?;
    Ok(Sum { cents })
}

fn spin() -> Value {
    let mut n = 0_u64;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

fn work_until_stopped() -> Failure {
    let mut steps = 0_u64;
    while !deadline::should_stop() {
        steps += 1;
    }
    let in_time = !deadline::remaining().is_zero();
    Failure::typed("budget", "stopped_in_time")
        .retryable()
        .outcome("partial")
        .details(json!({ "worked": steps > 0, "in_time": in_time }))
        .because("the soft deadline passed")
}

fn read_clocks() -> Value {
    json!({
        "after_2020": clock::now_ms() > 1_577_836_800_000,
        "has_time": !deadline::remaining().is_zero(),
        "should_stop": deadline::should_stop(),
    })
}

fn read_context(context: &Context) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    struct State {
        fields: Fields,
    }
    #[derive(Deserialize)]
    struct Fields {
        count: u8,
    }
    let wrong = context.field::<bool>("count").expect_err("it is a number");
    Ok(json!({
        "entity": format!("{}/{}", context.entity_type(), context.entity_id()),
        "tenant": context.tenant(),
        "action": context.action(),
        "attempt": context.attempt(),
        "ids": [context.dispatch_id().len(), context.trace_id().len()],
        "greeting": context.config("greeting"),
        "missing_config": context.required_config("nothing of that name").is_err(),
        "count": context.state::<State>()?.fields.count,
        "same_count": context.field::<u8>("count")?,
        "missing_field": context.field::<u8>("nothing of that name")?,
        "wrong_type": wrong.to_string(),
    }))
}

async fn read_secret() -> Result<Value, Failure> {
    Ok(json!({
        "secret": secrets::get("token")?,
        "denied": secrets::fetch("of somebody else").await.is_err(),
    }))
}

fn keep_in_scratch() -> Result<Value, Failure> {
    let long = [7; 3000];
    scratch::set("a", "1")?;
    scratch::set("b", long)?;
    scratch::set("c", "")?;
    Ok(json!({
        "a": scratch::get("a")?,
        "b_is_whole": scratch::get("b")?.as_deref() == Some(&long[..]),
        "c": scratch::get("c")?,
        "none": scratch::get("d")?,
        "deleted": [scratch::delete("b")?, scratch::delete("b")?],
        "full": scratch::set("d", [0; 4096]).is_err(),
        "no_key": scratch::get("").is_err(),
    }))
}
