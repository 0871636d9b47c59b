// Asks a server that takes its time, and answers what it said.
import { JsonObject, answer, asString, at, completed, failed, get, lastError, status } from "../template/sandglass";

function slowHttp(context: string): string {
  const url = asString(at(context, "trigger_params.url"));
  if (url === null) return failed("`url` is missing, or no string");

  status("waiting for the server");
  const response = get(url);
  if (!response.status) return failed(lastError());
  return completed(new JsonObject().integer("status", response.status).string("body", response.body));
}

export function run(_context: i32, _length: i32): i32 {
  return answer(slowHttp);
}
