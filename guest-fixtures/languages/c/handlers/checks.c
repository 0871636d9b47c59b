/* Checks what sandglass.h makes of JSON and of a signal, and fails where something doesn't hold. */
#include "sandglass.h"

#define CHECK(holds)                                                   \
    do {                                                               \
        if (!(holds)) return sg_failed(SG("doesn't hold: " #holds));   \
    } while (0)

static bool says(sg_text json, const char *path, const char *text) {
    const sg_text found = sg_string(sg_at(json, path));
    return found.at && sg_same(found, sg_from(text)) && found.at[found.length] == 0;
}

static bool is_nothing(sg_text text) { return text.at == NULL && text.length == 0; }

static sg_answer finds_values(void) {
    const sg_text json = SG(" { \"a\" : {\"b\":[ 1 , [2,{\"x\":\"}]\"}], \"three\" ,true]}, \"ab\":\"\\\"{\", \"n\":null,\"\":-7 } ");
    CHECK(sg_integer(sg_at(json, "a.b.0"), 0) == 1);
    CHECK(sg_integer(sg_at(json, "a.b.1.0"), 0) == 2);
    CHECK(says(json, "a.b.1.1.x", "}]"));
    CHECK(says(json, "a.b.2", "three"));
    CHECK(sg_is_true(sg_at(json, "a.b.3")));
    CHECK(says(json, "ab", "\"{"));
    CHECK(sg_same(sg_at(json, "n"), SG("null")));
    CHECK(is_nothing(sg_at(json, "a.b.4")));
    CHECK(is_nothing(sg_at(json, "a.b.x")));
    CHECK(is_nothing(sg_at(json, "a.b.99999999999999999999")));
    CHECK(is_nothing(sg_at(json, "b")));
    CHECK(is_nothing(sg_at(json, "ab.c")));
    CHECK(is_nothing(sg_string(sg_at(json, "n"))));
    CHECK(sg_integer(sg_at(json, "ab"), 5) == 5);
    CHECK(sg_integer(SG("-9223372036854775808"), 0) == INT64_MIN);
    CHECK(sg_integer(SG("1.5"), 5) == 5);
    CHECK(sg_number(SG("-1.5e1"), 0) == -15.0);
    CHECK(sg_number(SG("\"1\""), 2) == 2.0);
    return sg_completed(NULL);
}

static sg_answer finds_no_more_than_is_there(void) {
    const sg_text whole = SG("{\"a\":[{\"b\":\"\\u00fc\\\\\"},[[[1]]]],\"c\":{\"d\":12}}");
    for (size_t length = 0; length < whole.length; length++) {
        const sg_text cut = {whole.at, length};
        (void)sg_string(sg_at(cut, "a.0.b"));
        (void)sg_at(cut, "a.1.0.0.0");
        CHECK((sg_integer(sg_at(cut, "c.d"), 0) == 12) == (length >= whole.length - 2));
    }
    CHECK(is_nothing(sg_at((sg_text){NULL, 0}, "a")));
    CHECK(is_nothing(sg_at(SG(""), "a")));
    CHECK(is_nothing(sg_at(SG("}"), "a")));
    CHECK(is_nothing(sg_at(SG("{,}"), "a")));
    return sg_completed(NULL);
}

static sg_answer reads_escapes(void) {
    CHECK(says(SG("[\"\\n\\t\\r\\b\\f\\/\\\\\\\"\"]"), "0", "\n\t\r\b\f/\\\""));
    CHECK(says(SG("[\"gr\\u00fcezi \\u20ac \\ud83d\\ude00\"]"), "0", "gr\xc3\xbc" "ezi \xe2\x82\xac \xf0\x9f\x98\x80"));
    CHECK(says(SG("[\"\\ud83d!\"]"), "0", "\xef\xbf\xbd!"));
    CHECK(says(SG("[\"\\u12\"]"), "0", "\xef\xbf\xbd" "12"));
    return sg_completed(NULL);
}

static sg_answer writes_objects(void) {
    sg_object inner = {0}, object = {0};
    CHECK(sg_same(sg_json(&inner), SG("{}")));
    sg_put_string(&inner, "k\"", SG("a \"\\\n\x1f"));
    sg_put_string(&inner, "empty", SG(""));
    sg_put_string(&inner, "none", (sg_text){NULL, 0});
    sg_put(&object, "inner", sg_json(&inner));
    sg_put_integer(&object, "least", INT64_MIN);
    sg_put_integer(&object, "zero", 0);
    sg_put_bool(&object, "yes", true);
    CHECK(sg_same(sg_json(&object), SG(
        "{\"inner\":{\"k\\\"\":\"a \\\"\\\\\\u000a\\u001f\",\"empty\":\"\",\"none\":null},"
        "\"least\":-9223372036854775808,\"zero\":0,\"yes\":true}")));
    sg_put_bool(&object, "more", false);
    CHECK(sg_same(sg_at(sg_json(&object), "more"), SG("false")));
    return sg_completed(NULL);
}

static sg_answer writes_answers(void) {
    sg_object none = {0};
    CHECK(sg_same(sg_completed(NULL).json, SG("{\"success\":true,\"params\":{}}")));
    CHECK(sg_same(sg_completed_as("Finish", &none).json,
        SG("{\"success\":true,\"action\":\"Finish\",\"params\":{}}")));
    CHECK(sg_same(sg_failed(SG("no")).json, SG("{\"success\":false,\"error\":\"no\"}")));
    CHECK(sg_same(sg_failed_typed("upstream", "busy", "retryable", &none).json, SG(
        "{\"success\":false,\"typed_failure\":{\"version\":1,\"category\":\"upstream\","
        "\"code\":\"busy\",\"retryability\":\"retryable\",\"details\":{}}}")));
    return sg_completed(NULL);
}

static bool begins_with(sg_text text, const char *start) {
    return text.length >= strlen(start) && memcmp(text.at, start, strlen(start)) == 0;
}

static sg_answer sends_no_signal_without_a_grant(void) {
    sg_object payload = {0}, notice = {0};
    sg_put_integer(&payload, "cents", 5);
    sg_put_string(&notice, "entity", SG("Payment/7"));
    sg_put_string(&notice, "name", SG("paid"));
    sg_put(&notice, "payload", sg_json(&payload));
    CHECK(!sg_signal(&notice));
    CHECK(begins_with(sg_last_error(), "signal_not_allowed: "));
    return sg_completed(NULL);
}

static sg_answer checks(sg_text context) {
    CHECK(!is_nothing(sg_at(context, "trigger_action")));
    sg_answer (*const all[])(void) = {
        finds_values, finds_no_more_than_is_there, reads_escapes, writes_objects, writes_answers,
        sends_no_signal_without_a_grant,
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const sg_answer answer = all[i]();
        if (!sg_is_true(sg_at(answer.json, "success"))) return answer;
    }
    sg_object params = {0};
    sg_put_bool(&params, "all_hold", true);
    return sg_completed(&params);
}

SG_HANDLER(checks)
