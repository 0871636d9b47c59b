//! The node that decides for an orchestrator.

use node_pack::{Outcome, Request, Value, json};

/// Answers what is done in the turn `iteration` (from 1). Until `maxTurns` turns were taken,
/// that is the next workers: all of `workers`, or with `roundRobin` one after the other. In the
/// turn `askAt` it is a question, unless `answers` has something in it. After the last turn the
/// goal is reached.
pub(crate) fn decide(request: &Request) -> Result<Outcome, String> {
    let iteration = wanted(request.count("iteration")?, "iteration")?;
    let max_turns = wanted(request.count("maxTurns")?, "maxTurns")?;
    let decision = if request.count("askAt")? == Some(iteration) && !is_answered(request) {
        json!({ "kind": "ask-user", "prompt": format!("What is next after turn {iteration}?") })
    } else if iteration <= max_turns {
        json!({ "kind": "next-worker", "nextWorkerIds": workers(request, iteration)? })
    } else {
        json!({ "kind": "terminate", "reason": "goal-reached" })
    };
    Ok(Outcome::Completed(decision))
}

fn workers(request: &Request, iteration: u64) -> Result<Vec<Value>, String> {
    let workers = match request.input("workers") {
        Some(Value::Array(workers))
            if !workers.is_empty() && workers.iter().all(Value::is_string) =>
        {
            workers
        }
        other => {
            let other = other.map_or("missing".to_owned(), Value::to_string);
            return Err(format!(
                "input `workers` is {other}, and should be an array of node ids, at least one"
            ));
        }
    };
    if request.flag("roundRobin")? != Some(true) {
        return Ok(workers.clone());
    }
    let turn = iteration.saturating_sub(1) % workers.len() as u64;
    Ok(workers.iter().skip(turn as usize).take(1).cloned().collect())
}

/// Answers come as a list or an object, or as what was answered last.
fn is_answered(request: &Request) -> bool {
    match request.input("answers") {
        None => false,
        Some(Value::Array(answers)) => !answers.is_empty(),
        Some(Value::Object(answers)) => !answers.is_empty(),
        Some(_) => true,
    }
}

fn wanted(value: Option<u64>, name: &str) -> Result<u64, String> {
    value.ok_or_else(|| format!("input `{name}` is missing; connect a whole number to it"))
}
