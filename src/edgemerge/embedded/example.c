/* How a device uses edgemerge.h: give it readings, send and fetch through `edgemerge bridge`.
 *
 * Fill in the three functions of your board; everything else can stay. Readings are whole numbers,
 * as a converter gives them; for numbers in other units use em_take.
 */
#include "edgemerge_link.h"
#include "pump.h"

/* The board: */
int board_read_sensors(int32_t *readings);             /* PUMP_N of them; not 0 if there are none */
int board_send(void *context, const void *bytes, size_t size); /* to the bridge */
int board_next_byte(void *context, uint8_t *byte);     /* from it; not 0 if none comes in time */
void board_alarm(const em_result *result);

#define SHARE_EVERY 3600 /* samples */
#define TOTAL_BYTES (2048 + 8 * (EM_PACKED(PUMP_HIDDEN) + PUMP_HIDDEN * PUMP_N + 2 * PUMP_N))

static uint64_t memory[EM_WORDS(PUMP_N, PUMP_HIDDEN)];
static uint64_t pattern_memory[EM_PATTERN_WORDS(PUMP_N, PUMP_HIDDEN)]; /* can be left out */
static uint8_t total[TOTAL_BYTES];
static em_device device;
static em_pattern pattern;

int pump_run(const char *name, const char *token) {
    static em_link link;
    int32_t readings[PUMP_N];
    em_result result = {0};
    uint32_t samples = 0;
    int error;
    link.write = board_send;
    link.read = board_next_byte;
    link.name = name;
    link.token = token;
    em_draw(&pump_projection); /* does nothing if the weights are a table */
    if ((error = em_check_table(&pump_projection))) return error;
    if ((error = em_init(&device, &pump_projection, memory, sizeof memory))) return error;
    if ((error = em_keep_pattern(&device, &pattern, pattern_memory, sizeof pattern_memory)))
        return error;
    while (!board_read_sensors(readings)) {
        /* EM_FULL, after some 5e8 samples: it learns no more, and goes on scoring */
        (void)em_take_integers(&device, readings, &result);
        if (result.alarm) board_alarm(&result);
        if (++samples % SHARE_EVERY == 0) {
            /* what goes wrong here is tried again an hour later: detection never waits for it */
            (void)em_link_share(&link, &device, "normal");
            (void)em_link_pull(&link, &device, total, sizeof total);
            (void)em_link_report(&link, &device, &result);
        }
    }
    return EM_OK;
}
