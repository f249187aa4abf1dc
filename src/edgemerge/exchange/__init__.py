"""How contributions travel: anything with `push` and `pull`."""
