"""edgemerge for microcontrollers: a C99 header, and constants of a projection for it."""
