"""A configuration that says no more than it must."""

HEAD = 'device = "pump-3"\nstate = "state/pump-3"\n'
SHARED = "[projection]\nn_inputs = 4\n"
