// Checks what sandglass.ts makes of JSON and of a signal, and aborts where something doesn't hold.
import {
  JsonObject, answer, asInteger, asString, at, completed, failed, failedTyped, isTrue, lastError, quoted, signal,
} from "../template/sandglass";

function findsValues(): void {
  const json = ' { "a" : {"b":[ 1 , [2,{"x":"}]"}], "three" ,true]}, "ab":"\\"{", "n":null,"":-7 } ';
  assert(asInteger(at(json, "a.b.0")) == 1);
  assert(asInteger(at(json, "a.b.1.0")) == 2);
  assert(asString(at(json, "a.b.1.1.x")) == "}]");
  assert(asString(at(json, "a.b.2")) == "three");
  assert(isTrue(at(json, "a.b.3")));
  assert(asString(at(json, "ab")) == '"{');
  assert(at(json, "n") == "null");
  assert(at(json, "a.b.4") == "");
  assert(at(json, "a.b.x") == "");
  assert(at(json, "a.b.99999999999999999999") == "");
  assert(at(json, "b") == "");
  assert(at(json, "ab.c") == "");
  assert(asString(at(json, "n")) === null);
  assert(asInteger(at(json, "ab"), 5) == 5);
  assert(asInteger("-9223372036854775808") == i64.MIN_VALUE);
  assert(asInteger("1.5", 5) == 5);
  assert(asInteger("-", 5) == 5);
}

function findsNoMoreThanIsThere(): void {
  const whole = '{"a":[{"b":"\\u00fc\\\\"},[[[1]]]],"c":{"d":12}}';
  for (let length = 0; length < whole.length; length++) {
    const cut = whole.substring(0, length);
    asString(at(cut, "a.0.b"));
    at(cut, "a.1.0.0.0");
    assert((asInteger(at(cut, "c.d")) == 12) == length >= whole.length - 2);
  }
  assert(at("", "a") == "");
  assert(at("}", "a") == "");
  assert(at("{,}", "a") == "");
}

function readsEscapes(): void {
  assert(asString('"\\n\\t\\r\\b\\f\\/\\\\\\""') == '\n\t\r\b\f/\\"');
  assert(asString('"gr\\u00fcezi \\u20ac \\uD83D\\ude00"') == "grüezi € 😀");
  assert(asString('"\\u12"') == "\u{fffd}12");
}

function writesObjects(): void {
  assert(new JsonObject().toString() == "{}");
  const inner = new JsonObject().string('k"', 'a"\\\n\x1f').string("empty", "").string("none", null);
  const object = new JsonObject()
    .json("inner", inner.toString())
    .integer("least", i64.MIN_VALUE)
    .bool("yes", true)
    .json("nothing", "");
  assert(object.toString() == '{"inner":{"k\\"":"a\\"\\\\\\u000a\\u001f","empty":"","none":null},'
    + '"least":-9223372036854775808,"yes":true,"nothing":null}');
  assert(asString(quoted("\u0001 é\"")) == "\u0001 é\"");
}

function writesAnswers(): void {
  assert(completed() == '{"success":true}');
  assert(completed(new JsonObject(), "Finish") == '{"success":true,"action":"Finish","params":{}}');
  assert(failed("no") == '{"success":false,"error":"no"}');
  assert(failedTyped("upstream", "busy", "retryable", new JsonObject())
    == '{"success":false,"typed_failure":{"version":1,"category":"upstream","code":"busy","retryability":"retryable","details":{}}}');
}

function sendsNoSignalWithoutAGrant(): void {
  const payload = new JsonObject().integer("cents", 5);
  const notice = new JsonObject().string("entity", "Payment/7").string("name", "paid");
  assert(!signal(notice.json("payload", payload.toString())));
  assert(lastError().startsWith("signal_not_allowed: "));
}

function checks(context: string): string {
  findsValues();
  findsNoMoreThanIsThere();
  readsEscapes();
  writesObjects();
  writesAnswers();
  sendsNoSignalWithoutAGrant();
  // What has to go wrong: the abort is told in the log.
  assert(!isTrue(at(context, "trigger_params.abort")), "asked to abort");
  return completed(new JsonObject().bool("all_hold", true));
}

export function run(_context: i32, _length: i32): i32 {
  return answer(checks);
}
