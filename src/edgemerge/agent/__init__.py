"""The program on the device: reads, scores, learns, tells, and now and then exchanges."""
