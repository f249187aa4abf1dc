/* The parts of QEMU's MPS2 boards (an385, an386, an500) that the firmware uses: UARTs and time.
 *
 * Interrupts stay disabled (PRIMASK): a pending one ends WFI all the same, so that the processor
 * sleeps while it waits, and there is no handler. */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    volatile uint32_t data, state, control, interrupts, divider;
} uart;

#define UART0 ((uart *)0x40004000)
#define UART1 ((uart *)0x40005000)
#define REGISTER(address) (*(volatile uint32_t *)(address))
#define TICKS_PER_S 100u
#define CLOCK_HZ 25000000u

static inline void board_start(void) {
    __asm__ volatile("cpsid i");
    for (uart *each = UART0; each <= UART1; each = (uart *)((uintptr_t)each + 0x1000)) {
        each->divider = 16;
        each->control = 1 | 2 | 8; /* send, receive, interrupt when a byte has come */
    }
    REGISTER(0xE000E014) = CLOCK_HZ / TICKS_PER_S - 1; /* SysTick: reload */
    REGISTER(0xE000E018) = 0;
    REGISTER(0xE000E010) = 7;      /* on, with interrupt, processor clock */
    REGISTER(0xE000E100) = 0xFF;   /* NVIC: those of the UARTs */
}

static inline void uart_write(uart *to, const void *bytes, size_t size) {
    const uint8_t *each = (const uint8_t *)bytes;
    for (size_t i = 0; i < size; i++) {
        while (to->state & 1) {} /* full */
        to->data = each[i];
    }
}

/* The next byte; not 0 if none comes within so many ticks of 10 ms. */
static inline int uart_read(uart *from, uint8_t *byte, uint32_t ticks) {
    while (!(from->state & 2)) {
        if (REGISTER(0xE000E010) & 1u << 16) { /* SysTick has passed 0 */
            REGISTER(0xE000ED04) = 1u << 25;   /* it is not pending any more */
            if (!ticks--) return 1;
        }
        __asm__ volatile("wfi");
        UART0->interrupts = UART1->interrupts = 15;
        REGISTER(0xE000E280) = 0xFF; /* none of the UARTs' is pending any more */
    }
    *byte = (uint8_t)from->data;
    return 0;
}

#endif
