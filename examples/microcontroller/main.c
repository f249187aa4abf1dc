/* Firmware of a small device that watches a pump.
 *
 * UART 1 is the sensor: the board sends 'r' and gets PUMP_N readings of 16 bits, little-endian.
 * UART 0 is the line to `edgemerge bridge`. Name and token are in flash at CONFIG_ADDRESS, where
 * whoever sets up the board writes them. */
#include "edgemerge_link.h"

#include "board.h"
#include "pump.h"

#define CONFIG_ADDRESS 0x00100000
#define CONFIG_MAGIC 0x636d6465u /* "edmc" */
#define SHARE_EVERY 128          /* samples */
#define REPORT_EVERY 32          /* samples; a change of the alarm is reported at once */
#define ANSWER_TICKS (10 * TICKS_PER_S)
#define HELLO_TICKS TICKS_PER_S
#define TOTAL_BYTES (2048 + 8 * (EM_PACKED(PUMP_HIDDEN) + PUMP_HIDDEN * PUMP_N + 2 * PUMP_N))

typedef struct {
    uint32_t magic, incarnation;
    char name[64], token[184]; /* each ends with a zero */
} board_config;

static uint64_t memory[EM_WORDS(PUMP_N, PUMP_HIDDEN)];
static uint64_t pattern_memory[EM_PATTERN_WORDS(PUMP_N, PUMP_HIDDEN)];
static uint8_t total[TOTAL_BYTES];
static em_device device;
static em_pattern pattern;
static em_link line;

static int send_bytes(void *context, const void *bytes, size_t size) {
    (void)context;
    uart_write(UART0, bytes, size);
    return 0;
}

static int next_byte(void *context, uint8_t *byte) {
    (void)context;
    return uart_read(UART0, byte, line.known ? ANSWER_TICKS : HELLO_TICKS);
}

static int read_sensor(int32_t *readings) {
    uint8_t bytes[2];
    uart_write(UART1, "r", 1);
    for (unsigned i = 0; i < PUMP_N; i++) {
        for (unsigned k = 0; k < 2; k++)
            if (uart_read(UART1, bytes + k, i + k ? TICKS_PER_S : UINT32_MAX)) return 1;
        readings[i] = (int16_t)(uint16_t)(bytes[0] | bytes[1] << 8);
    }
    return 0;
}

static void exchange(void) {
    for (int tries = 0; tries < 4; tries++) { /* the bridge may just have been restarted */
        int error = em_link_share(&line, &device, "normal");
        if (error != EM_LATER && error != EM_NO_ANSWER) break;
    }
    (void)em_link_pull(&line, &device, total, sizeof total);
}

int main(void) {
    const board_config *config = (const board_config *)CONFIG_ADDRESS;
    int32_t readings[PUMP_N];
    em_result result = {0};
    uint32_t samples = 0;
    int alarm = 0;
    board_start();
    if (config->magic != CONFIG_MAGIC) return 1;
    em_draw(&pump_projection);
    if (em_check_table(&pump_projection)) return 2;
    if (em_init(&device, &pump_projection, memory, sizeof memory)) return 3;
    if (em_keep_pattern(&device, &pattern, pattern_memory, sizeof pattern_memory)) return 4;
    device.incarnation = config->incarnation;
    line.write = send_bytes;
    line.read = next_byte;
    line.name = config->name;
    line.token = config->token;
    while (em_link_hello(&line) == EM_NO_ANSWER) {}
    for (;;) {
        if (read_sensor(readings)) continue;
        (void)em_take_integers(&device, readings, &result); /* EM_FULL: it goes on scoring */
        if (++samples % SHARE_EVERY == 0) exchange();
        if (result.alarm != alarm || samples % REPORT_EVERY == 0)
            (void)em_link_report(&line, &device, &result);
        alarm = result.alarm;
    }
}
