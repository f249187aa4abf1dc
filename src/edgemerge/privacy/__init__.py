"""Who may see what: how much must have been seen before anything is released."""
