/* Starts a Cortex-M without an operating system: vectors, memory, floating point, then main. */
#include <stdint.h>

extern uint32_t stack_top, data_in_flash, data_begin, data_end, bss_begin, bss_end;
#ifdef SEMIHOSTED
void _start(void); /* of newlib: it clears memory by itself, opens standard input, calls main */
#else
int main(void);
#endif

static void stop(void) {
    for (;;) __asm__ volatile("wfi");
}

void reset(void) {
    uint32_t *from = &data_in_flash;
#if defined(__ARM_FP)
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: the FPU may be used */
    __asm__ volatile("dsb\n isb");
#endif
    for (uint32_t *to = &data_begin; to < &data_end;) *to++ = *from++;
    for (uint32_t *to = &bss_begin; to < &bss_end;) *to++ = 0;
#ifdef SEMIHOSTED
    _start();
#else
    (void)main();
#endif
    stop();
}

__attribute__((section(".vectors"), used)) static void (*const vectors[])(void) = {
    (void (*)(void)) & stack_top, reset, stop, stop, stop, stop, stop, 0, 0, 0, 0, stop, stop, 0,
    stop, stop,
};
