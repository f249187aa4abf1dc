/* The board of the example that `edgemerge export` writes: readings come from standard input, and
 * for each alarm a letter is written. It has no line to a bridge. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "edgemerge.h"

#ifndef N_INPUTS
#define N_INPUTS 6
#endif

int board_read_sensors(int32_t *readings);
int board_send(void *context, const void *bytes, size_t size);
int board_next_byte(void *context, uint8_t *byte);
void board_alarm(const em_result *result);
int pump_run(const char *name, const char *token);

int board_read_sensors(int32_t *readings) {
    return fread(readings, sizeof *readings, N_INPUTS, stdin) != N_INPUTS;
}

int board_send(void *context, const void *bytes, size_t size) {
    (void)context;
    (void)bytes;
    (void)size;
    return 1;
}

int board_next_byte(void *context, uint8_t *byte) {
    (void)context;
    (void)byte;
    return 1;
}

void board_alarm(const em_result *result) { putchar(result->learnt ? 'l' : 'a'); }

int main(void) { return pump_run("pump-3", "token") ? 1 : 0; }
