"""Settings for all tests."""

from hypothesis import settings

settings.register_profile("edgemerge", deadline=None, print_blob=True)  # a busy machine is no bug
settings.load_profile("edgemerge")
