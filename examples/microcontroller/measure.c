/* Prints what a board needs for a projection: memory, stack, and instructions of each function.
 *
 * Instructions are counted by SysTick while QEMU runs with `-icount shift=0`, where each takes one
 * nanosecond: 40 of them are a tick of the 25 MHz clock. The stack is painted before a function is
 * called, and what has lost its paint afterwards was used. */
#include <stdio.h>

#include "edgemerge.h"
#include "pump.h"

#define NS_PER_TICK 40u
#define PAINTED 4096u /* bytes */

static uint64_t memory[EM_WORDS(PUMP_N, PUMP_HIDDEN)];
static em_device device;
static uint64_t state = 88172645463325252u;
static double x[PUMP_N];
static int32_t integers[PUMP_N];
static float score;
static em_result result;

static void next_sample(void) {
    double cause[3];
    for (unsigned i = 0; i < PUMP_N + 3; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        double drawn = (double)(int64_t)(state >> 12) / (double)((int64_t)1 << 52) - 0.5;
        if (i < 3) cause[i] = drawn;
        else x[i - 3] = cause[i % 3] + 0.5 * cause[(i / 3) % 3] + 0.1 * drawn;
    }
    for (unsigned i = 0; i < PUMP_N; i++) x[i] = integers[i] = (int32_t)(1000.0 * x[i]);
}

static int discard(void *context, const void *bytes, size_t size) {
    (void)context;
    (void)bytes;
    (void)size;
    return 0;
}

static uint8_t total[2048 + 8 * (EM_PACKED(PUMP_HIDDEN) + PUMP_HIDDEN * PUMP_N + 2 * PUMP_N)];
static size_t n_total;

static int keep(void *context, const void *bytes, size_t size) {
    (void)context;
    if (n_total + size > sizeof total) return 1;
    memcpy(total + n_total, bytes, size);
    n_total += size;
    return 0;
}

static void nothing(void) {}
static void learn(void) { (void)em_learn(&device, x); }
static void score_one(void) { (void)em_score(&device, x, &score); }
static void take(void) { (void)em_take(&device, x, &result); }
static void take_integers(void) { (void)em_take_integers(&device, integers, &result); }
static void to_grid(void) { (void)em_to_grid(&pump_projection, x, device.x); }
static void integers_to_grid(void) {
    em_integers_to_grid(&pump_projection, integers, device.x);
}
static void solve(void) { em_solve(&device); }
static void share(void) { (void)em_share(&device, "pump-3", "normal", discard, NULL); }
static void check(void) { (void)em_check_table(&pump_projection); }

static uint32_t ticks(void) { return *(volatile uint32_t *)0xE000E018; }

/* Not inlined: what it calls has its frames below its own. */
__attribute__((noinline)) static void measure(const char *name, void (*call)(void), int times) {
    static uint32_t empty;
    volatile uint8_t *here = (volatile uint8_t *)__builtin_frame_address(0);
    uint64_t passed = 0;
    unsigned used = PAINTED;
    for (unsigned i = 256; i < PAINTED; i++) here[-(int)i] = 0xA5;
    for (int i = 0; i < times; i++) {
        next_sample();
        device.steps = 0; /* em_solve is measured apart */
        uint32_t before = ticks();
        call();
        passed += (before - ticks()) & 0xFFFFFF;
    }
    while (used > 256 && here[-(int)(used - 1)] == 0xA5) used--;
    uint32_t found = (uint32_t)(passed * NS_PER_TICK / (uint32_t)times);
    if (call == nothing) empty = found;
    printf("%s,%lu,%u\n", name, (unsigned long)(found - empty), used);
}

int main(void) {
    *(volatile uint32_t *)0xE000E014 = 0xFFFFFF; /* SysTick, at the processor's clock */
    *(volatile uint32_t *)0xE000E010 = 5;
    if (em_init(&device, &pump_projection, memory, sizeof memory)) return 2;
    printf("ram,%lu,0\n", (unsigned long)(sizeof memory + sizeof device));
    printf("pattern,%lu,0\n",
           (unsigned long)(EM_PATTERN_BYTES(PUMP_N, PUMP_HIDDEN) + sizeof(em_pattern)));
#ifdef SIZES_ONLY
    return 0;
#endif
    device.commissioning = 0;
    for (int i = 0; i < 4 * PUMP_HIDDEN; i++) {
        next_sample();
        if (em_learn(&device, x)) return 3;
    }
    em_solve(&device);
    measure("nothing", nothing, 16);
    measure("readings to the grid", to_grid, 16);
    measure("integers to the grid", integers_to_grid, 16);
    measure("learn", learn, 16);
    measure("score", score_one, 16);
    measure("take", take, 16);
    measure("take integers", take_integers, 16);
    measure("solve", solve, 2);
    if (em_share_sums(&device, &device.own, "stats", NULL, NULL, keep, NULL)) return 4;
    if (em_adopt(&device, total, n_total)) return 5;
    em_solve(&device);
    measure("take integers with others", take_integers, 16);
    measure("solve with others", solve, 2);
    measure("share", share, 1);
    measure("check the fingerprint", check, 1);
    return 0;
}
