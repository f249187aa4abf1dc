/* Runs commands from a file against a device in edgemerge.h, and writes what comes of them.
 *
 * A command is a letter, a 32-bit number, and data. Each writes a 32-bit error first.
 *   L k  learn and score k samples: float scores       T k  take k samples: score, level, 4 marks
 *   S k  score k samples: float scores                 G k  take k samples on the grid: alarms
 *   C    share: 32-bit length, bytes                   A k  adopt k bytes
 *   W k  save, of which k bytes reach the storage; all bits: it cannot even be erased
 *   R k  start anew and resume, with a pattern (1)
 *   Q k  the same, while reading fails after k bytes
 *   D    digest of the sums and the count              I k  take k samples of whole numbers
 *   K    keep a pattern from now on                    V k  dismiss (0) or approve (1) it
 *   F    share it as a fault: 32-bit length, bytes     X k  integers to the grid, k samples
 *   Y k  flip bit k of the slot that was written       E    what is saved besides sums
 *   M k  set the limit to k / 256                      B k  share, of which write k fails: its calls
 */
#include <stdio.h>
#include <stdlib.h>

#include "pump.h"

static uint64_t memory[EM_WORDS(PUMP_N, PUMP_HIDDEN)];
#ifndef SMALL /* 16 kB of RAM have no room for these */
static uint64_t pattern_memory[EM_PATTERN_WORDS(PUMP_N, PUMP_HIDDEN)];
static em_pattern pattern;
static uint8_t slots[2][EM_SAVED_PATTERN_BYTES(PUMP_N, PUMP_HIDDEN)];
static size_t at, left, readable = SIZE_MAX;
static int slot_of;
static uint8_t *adopted;

static int begin(void *context, int slot) {
    (void)context;
    if (left == UINT32_MAX) return 1;
    slot_of = slot;
    at = 0;
    if (left) memset(slots[slot], 0xff, sizeof slots[slot]);
    return 0;
}

static int append(void *context, const void *bytes, size_t size) {
    (void)context;
    size_t i = 0;
    for (; i < size && left; i++, left--) slots[slot_of][at++] = ((const uint8_t *)bytes)[i];
    return i < size;
}

static int fetch(void *context, int slot, size_t from, void *bytes, size_t size) {
    (void)context;
    if (from + size > sizeof slots[slot] || readable < size) return 1;
    readable -= readable == SIZE_MAX ? 0 : size;
    memcpy(bytes, slots[slot] + from, size);
    return 0;
}

#endif

static void put(const void *bytes, size_t size) {
    if (fwrite(bytes, 1, size, stdout) != size) exit(9);
}

static int count_bytes(void *context, const void *bytes, size_t size) {
    (void)bytes;
    *(uint32_t *)context += (uint32_t)size;
    return 0;
}

static int put_bytes(void *context, const void *bytes, size_t size) {
    (void)context;
    put(bytes, size);
    return 0;
}

static int fail_once(void *context, const void *bytes, size_t size) {
    uint32_t *calls = context; /* so far, and which of them fails */
    (void)bytes;
    (void)size;
    return calls[0]++ == calls[1];
}

static int share(em_device *d, int command, em_write write, void *context) {
    return command == 'C' ? em_share(d, "pump-3", "normal", write, context)
                          : em_share_fault(d, "pump-3", "bearing", write, context);
}

static void run(em_device *d, int command, uint32_t k) {
#ifndef SMALL
    static const em_storage storage = {begin, append, fetch, NULL};
#endif
    double x[PUMP_N];
    int32_t steps[PUMP_N];
    int32_t error = EM_OK;
    if (command == 'D') {
        uint32_t crc = 0;
        em_stream sum = {0};
        em_put(&sum, d->own.U, 8 * (EM_PACKED(PUMP_HIDDEN) + PUMP_HIDDEN * PUMP_N + 2 * PUMP_N));
        crc = sum.crc;
        put(&error, 4);
        put(&crc, 4);
        put(&d->own.count, 8);
#ifndef SMALL
    } else if (command == 'A') {
        uint8_t *bytes = k ? malloc(k) : NULL;
        if (k && fread(bytes, 1, k, stdin) != k) exit(8);
        error = em_adopt(d, bytes, k);
        if (error) free(bytes);
        else {
            free(adopted);
            adopted = bytes;
        }
        put(&error, 4);
    } else if (command == 'K') {
        uint8_t *between = (uint8_t *)pattern_memory + 4;
        if (em_keep_pattern(d, &pattern, pattern_memory, sizeof pattern_memory - 1) !=
                EM_TOO_SMALL ||
            em_keep_pattern(d, &pattern, between, sizeof pattern_memory) != EM_TOO_SMALL)
            exit(6);
        error = em_keep_pattern(d, &pattern, pattern_memory, sizeof pattern_memory);
        put(&error, 4);
    } else if (command == 'P') {
        uint32_t numbers[] = {pattern.blocks, pattern.left_out};
        put(numbers, sizeof numbers);
        put(&pattern.sums.largest, 8);
    } else if (command == 'V') {
        if (k) error = em_approve(d);
        else em_dismiss(d);
        put(&error, 4);
#endif
    } else if (command == 'C' || command == 'F') {
        uint32_t size = 0;
        error = share(d, command, count_bytes, &size);
        put(&error, 4);
        if (error) return;
        put(&size, 4);
        d->revision--;
        if (share(d, command, put_bytes, NULL)) exit(9);
    } else if (command == 'B') {
        uint32_t calls[] = {0, k};
        error = share(d, 'C', fail_once, calls);
        put(&error, 4);
        put(calls, 4);
        put(&d->revision, 4);
#ifndef SMALL
    } else if (command == 'Y') {
        slots[slot_of][k / 8] = (uint8_t)(slots[slot_of][k / 8] ^ 1u << k % 8);
    } else if (command == 'E') {
        uint32_t numbers[] = {d->saved, d->episodes, d->revision, d->incarnation, d->commissioning};
        put(numbers, sizeof numbers);
        put(&d->limit, 4);
    } else if (command == 'M') {
        d->limit = (float)k / 256.0f;
    } else if (command == 'W') {
        left = k;
        error = em_save(d, &storage);
        put(&error, 4);
    } else if (command == 'R' || command == 'Q') {
        if (em_init(d, &pump_projection, memory, sizeof memory)) exit(7);
        if (k && em_keep_pattern(d, &pattern, pattern_memory, sizeof pattern_memory)) exit(7);
        readable = command == 'Q' ? k : SIZE_MAX;
        error = em_resume(d, &storage);
        readable = SIZE_MAX;
        put(&error, 4);
#endif
    } else {
        for (uint32_t i = 0; i < k; i++) {
            float score = 0;
            em_result result = {0};
            int integers = command == 'G' || command == 'I' || command == 'X';
            if (integers ? fread(steps, sizeof steps, 1, stdin) != 1
                               : fread(x, sizeof x, 1, stdin) != 1)
                exit(8);
            if (command == 'L') error = em_learn_and_score(d, x, &score);
            if (command == 'S') error = em_score(d, x, &score);
            if (command == 'T') error = em_take(d, x, &result);
            if (command == 'G') error = em_take_grid(d, steps, &result);
            if (command == 'I') error = em_take_integers(d, steps, &result);
            if (command == 'X') {
                em_integers_to_grid(&pump_projection, steps, d->x);
                put(d->x, sizeof steps);
                continue;
            }
            put(&error, 4);
            if (command == 'L' || command == 'S') put(&score, 4);
            else {
                put(&result.score, 4);
                put(&result.level, 4);
                uint8_t marks[4] = {result.ready, result.alarm, result.learnt, 0};
                put(marks, 4);
            }
        }
    }
}

int main(void) {
    em_device device;
    char command;
    uint32_t k;
#ifdef DRAWN
    if (!em_check_table(&pump_projection)) return 6; /* there are no weights yet */
    em_draw(&pump_projection);
#endif
    if (em_check_table(&pump_projection)) return 2;
    uint8_t *between = (uint8_t *)memory + 4;
    if (em_init(&device, &pump_projection, memory, sizeof memory - 1) != EM_TOO_SMALL) return 3;
    if (em_init(&device, &pump_projection, between, sizeof memory) != EM_TOO_SMALL) return 3;
    if (em_init(&device, &pump_projection, memory, sizeof memory)) return 4;
    while (fread(&command, 1, 1, stdin) == 1) {
        if (fread(&k, 4, 1, stdin) != 1) return 5;
        run(&device, command, k);
    }
#ifndef SMALL
    free(adopted);
#endif
    return 0;
}
