/* Sleeps forever, whatever its sleep says. */
#include <unistd.h>

#include "sandglass.h"

static sg_answer hang(sg_text context) {
    (void)context;
    for (;;) (void)sleep(3600);
}

SG_HANDLER(hang)
