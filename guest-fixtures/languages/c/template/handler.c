#include "sandglass.h"

/* Runs once for each dispatch. What it returns goes to the action that the spec names
 * as `on_success`, or, failed, as `on_failure`. */
static sg_answer handle(sg_text context) {
    const sg_text name = sg_string(sg_at(context, "trigger_params.name"));
    if (!name.at) return sg_failed(SG("`name` is missing, or no string"));
    sg_object params = {0};
    sg_put_string(&params, "hello", name);

    const sg_text url = sg_string(sg_at(context, "trigger_params.url"));
    /* Near the deadline it is time to answer what there is. */
    if (url.at && !sg_should_stop()) {
        sg_log("info", SG("asking the server"));
        const sg_response response = sg_get(url); /* of a host that integration.toml grants */
        if (!response.status) return sg_failed(sg_last_error());
        sg_put_integer(&params, "status", response.status);
    }
    return sg_completed(&params);
}

SG_HANDLER(handle)
