import { JsonObject, answer, asString, at, completed, failed, get, lastError, log, shouldStop } from "./sandglass";

// What it returns goes to the action that the spec names as `on_success`, or, failed,
// as `on_failure`.
function handle(context: string): string {
  const name = asString(at(context, "trigger_params.name"));
  if (name === null) return failed("`name` is missing, or no string");
  const params = new JsonObject().string("hello", name);

  const url = asString(at(context, "trigger_params.url"));
  // Near the deadline it is time to answer what there is.
  if (url !== null && !shouldStop()) {
    log("info", "asking " + url);
    const response = get(url); // of a host that integration.toml grants
    if (!response.status) return failed(lastError());
    params.integer("status", response.status);
  }
  return completed(params);
}

// Called by the host, once for each dispatch.
export function run(_context: i32, _length: i32): i32 {
  return answer(handle);
}
