"""Errors travel between processes, and old pickles find them."""

import pickle

import pytest

from edgemerge.core import errors
from edgemerge.core.errors import EdgemergeError, StaleError, UnavailableError
from edgemerge.privacy import gate

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, EdgemergeError)
]
ERRORS = [
    StaleError("found revision 3 after 7", 7) if kind is StaleError else kind("what to do")
    for kind in KINDS
] + [UnavailableError("try again", retry_s=2.5)]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_survives_pickling(error):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_names_in_old_pickles_are_still_found():
    assert errors.AwayError is UnavailableError
    assert (gate.Seen, gate.Track) == (gate.PatternSamples, gate.ReleaseTrack)
