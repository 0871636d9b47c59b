/* Asks a server that takes its time, and answers what it said. */
#include "sandglass.h"

static sg_answer slow_http(sg_text context) {
    const sg_text url = sg_string(sg_at(context, "trigger_params.url"));
    if (!url.at) return sg_failed(SG("`url` is missing, or no string"));

    sg_status(SG("waiting for the server"));
    const sg_response response = sg_get(url);
    if (!response.status) return sg_failed(sg_last_error());

    sg_object params = {0};
    sg_put_integer(&params, "status", response.status);
    sg_put_string(&params, "body", response.body);
    return sg_completed(&params);
}

SG_HANDLER(slow_http)
