/* Mutates totals for em_adopt, and frames for em_link_receive, as often as the argument says.
 * Standard input: a valid total. Writes how many were accepted. */
#include <stdio.h>
#include <stdlib.h>

#include "edgemerge_link.h"
#include "pump.h"

static uint64_t memory[EM_WORDS(PUMP_N, PUMP_HIDDEN)];
static uint64_t state = 88172645463325252u;
static uint8_t stream[1024];
static size_t n_stream, at_stream;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 11) % below;
}

static void mutate(uint8_t *bytes, size_t *size, size_t most) {
    for (uint32_t i = draw(4) + 1; i; i--) {
        size_t at = *size ? draw((uint32_t)*size) : 0;
        switch (draw(4)) {
        case 0: bytes[at] = (uint8_t)draw(256); break;
        case 1: bytes[at] = (uint8_t)(bytes[at] ^ 1u << draw(8)); break;
        case 2:
            if (*size < most) bytes[(*size)++] = (uint8_t)draw(256);
            break;
        default:
            if (draw(8) == 0) *size = at;
        }
    }
}

static int keep(void *context, const void *bytes, size_t size) {
    (void)context;
    if (n_stream + size > sizeof stream) return 1;
    memcpy(stream + n_stream, bytes, size);
    n_stream += size;
    return 0;
}

static int next_byte(void *context, uint8_t *byte) {
    (void)context;
    if (at_stream == n_stream) return 1;
    *byte = stream[at_stream++];
    return 0;
}

static void keep_longest(void) {
    /* a frame whose payload is one byte longer than any that may be sent */
    do {
        stream[0] = EM_PAYLOAD + 7;
        for (unsigned i = 1; i < EM_PAYLOAD + 3; i++) stream[i] = (uint8_t)(1 + draw(255));
        stream[1] = 'C';
        em_put32(stream + EM_PAYLOAD + 3, em_crc32(stream + 1, EM_PAYLOAD + 2));
        n_stream = EM_PAYLOAD + 8;
    } while (memchr(stream, 0, EM_PAYLOAD + 7));
    stream[n_stream - 1] = 0;
}

int main(int argc, char **argv) {
    static uint8_t total[1 << 16];
    static em_device d;
    static em_link link = {keep, next_byte, NULL, "pump-3", "secret", 0, {0}, 0, 0, 0};
    long count = argc > 1 ? atol(argv[1]) : 0, adopted = 0, framed = 0;
    size_t size = fread(total, 1, sizeof total, stdin);
    double x[PUMP_N] = {0};
    float before = 0, after = 0;
    if (em_init(&d, &pump_projection, memory, sizeof memory)) return 2;
    for (int i = 0; i < 40; i++) {
        x[i % PUMP_N] = 0.01 * i;
        if (em_learn(&d, x)) return 3;
    }
    if (em_adopt(&d, total, size) || em_score(&d, x, &before)) return 4;
    for (long i = 0; i < count; i++) {
        size_t cut = size;
        uint8_t *copy = malloc(size + 8); /* so that the sanitizer sees reads beyond its end */
        memcpy(copy, total, size);
        mutate(copy, &cut, size + 8);
        uint8_t *tight = malloc(cut ? cut : 1);
        memcpy(tight, copy, cut);
        const uint8_t *known = d.others;
        if (em_adopt(&d, tight, cut) == EM_OK) {
            adopted++;
            if (em_score(&d, x, &after) || !(after - after == 0)) return 10; /* not finite */
            if (em_adopt(&d, total, size)) return 5;
        } else if (d.others != known) return 6; /* refused, and changed */
        free(copy);
        free(tight);
        if (i % 1000 == 0) {
            d.steps = EM_SOLVE_EVERY;
            if (em_score(&d, x, &after) || after != before) return 7;
        }
        n_stream = at_stream = 0;
        link.size = (uint16_t)draw(EM_PAYLOAD + 1);
        for (unsigned k = 0; k < link.size; k++) em_payload(&link)[k] = (uint8_t)draw(draw(2) ? 256 : 2);
        if (em_link_send(&link, "NASCR"[draw(5)])) return 8;
        if (draw(8)) mutate(stream, &n_stream, sizeof stream);
        framed += em_link_receive(&link, "NASC"[draw(4)]) == EM_OK;
        if (link.size > EM_PAYLOAD) return 9;
        n_stream = at_stream = 0;
        keep_longest();
        if (em_link_receive(&link, 'C') != EM_NO_ANSWER) return 11;
    }
    printf("%ld %ld\n", adopted, framed);
    return 0;
}
