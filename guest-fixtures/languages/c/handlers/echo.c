/* Answers the text that it was given. */
#include "sandglass.h"

static sg_answer echo(sg_text context) {
    const sg_text text = sg_string(sg_at(context, "trigger_params.text"));
    if (!text.at) return sg_failed(SG("`text` is missing, or no string"));

    sg_object params = {0};
    sg_put_string(&params, "text", text);
    sg_put_integer(&params, "attempt", sg_integer(sg_at(context, "attempt"), 0));
    return sg_completed(&params);
}

SG_HANDLER(echo)
