/* A device whose line to the bridge is standard input and output.
 *
 * Arguments: name, token, a file of readings (double), and what to do, one letter each:
 *   l learn 50 readings   t take 50   k keep a pattern   s share   f share a fault   p pull
 *   o report   d damage the next frame that is sent
 *   x lose the next frame that is sent
 * Writes the error of each to standard error, and what it has learnt at the end.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "edgemerge_link.h"
#include "pump.h"

static uint64_t memory[EM_WORDS(PUMP_N, PUMP_HIDDEN)];
static uint64_t pattern_memory[EM_PATTERN_WORDS(PUMP_N, PUMP_HIDDEN)];
static uint8_t total[1 << 16];
static int damage, lose;

static int send_bytes(void *context, const void *bytes, size_t size) {
    uint8_t copy[512];
    (void)context;
    memcpy(copy, bytes, size);
    if (lose) {
        lose = 0;
        return 0;
    }
    if (damage) copy[size / 2] ^= 0x55;
    damage = 0;
    return write(1, copy, size) != (ssize_t)size;
}

static int next_byte(void *context, uint8_t *byte) {
    struct pollfd line = {0, POLLIN, 0};
    (void)context;
    if (poll(&line, 1, 1000) != 1) return 1;
    return read(0, byte, 1) != 1;
}

int main(int argc, char **argv) {
    static em_device device;
    static em_pattern pattern;
    static em_link link = {send_bytes, next_byte, NULL, NULL, NULL, 0, {0}, 0, 0, 0};
    double x[PUMP_N];
    em_result result = {0};
    if (argc != 5) return 2;
    FILE *readings = fopen(argv[3], "rb");
    if (!readings || em_init(&device, &pump_projection, memory, sizeof memory)) return 3;
    link.name = argv[1];
    link.token = argv[2];
    for (const char *each = argv[4]; *each; each++) {
        int error = 0;
        for (int i = 0; i < 50 && (*each == 'l' || *each == 't') && !error; i++) {
            if (fread(x, sizeof x, 1, readings) != 1) return 4;
            error = *each == 'l' ? em_learn(&device, x) : em_take(&device, x, &result);
        }
        if (*each == 'k')
            error = em_keep_pattern(&device, &pattern, pattern_memory, sizeof pattern_memory);
        if (*each == 's') error = em_link_share(&link, &device, "normal");
        if (*each == 'f') error = em_link_share_fault(&link, &device, "bearing");
        if (*each == 'p') error = em_link_pull(&link, &device, total, sizeof total);
        if (*each == 'o') error = em_link_report(&link, &device, &result);
        if (*each == 'd') damage = 1;
        if (*each == 'x') lose = 1;
        fprintf(stderr, "%c %d\n", *each, error);
    }
    fprintf(stderr, "samples %ld of others %ld\n", (long)device.own.count,
            (long)(device.others_count >> (2 * pump_projection.grid_bits)));
    fclose(readings);
    return 0;
}
