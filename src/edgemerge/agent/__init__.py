"""The program on the device: reads, scores, learns, reports, and exchanges at intervals."""
