/* Works in small steps until it is told to stop, and says how far it came. */
#include <unistd.h>

#include "sandglass.h"

/* One step of the work, in microseconds. */
#define STEP_US 50000

static sg_answer budget_aware(sg_text context) {
    (void)context;
    int64_t steps = 0;
    while (!sg_should_stop()) {
        usleep(STEP_US);
        steps++;
    }

    sg_object params = {0};
    sg_put_string(&params, "stopped", SG("in time"));
    sg_put_integer(&params, "steps", steps);
    sg_put_bool(&params, "had_time_left", sg_deadline_remaining_ms() > 0);
    return sg_completed(&params);
}

SG_HANDLER(budget_aware)
