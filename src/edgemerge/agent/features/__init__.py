"""How readings become samples."""
