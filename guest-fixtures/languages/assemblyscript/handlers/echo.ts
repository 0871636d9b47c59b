// Answers the text that it was given.
import { JsonObject, answer, asInteger, asString, at, completed, failed } from "../template/sandglass";

function echo(context: string): string {
  const text = asString(at(context, "trigger_params.text"));
  if (text === null) return failed("`text` is missing, or no string");
  const attempt = asInteger(at(context, "attempt"));
  return completed(new JsonObject().string("text", text).integer("attempt", attempt));
}

export function run(_context: i32, _length: i32): i32 {
  return answer(echo);
}
