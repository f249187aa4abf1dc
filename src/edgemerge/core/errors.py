"""Every error of edgemerge: each says what was found, what was expected and what to do."""

from __future__ import annotations


class EdgemergeError(Exception):
    """The root of all errors of this package: `except EdgemergeError` catches every one."""


class SampleError(EdgemergeError, ValueError):
    """A sample that cannot be used: wrong length, not a number, infinite."""


class SettingError(EdgemergeError, ValueError):
    """A hyper-parameter outside its range."""


class MismatchError(EdgemergeError, ValueError):
    """Two things that were built on different projections."""


class CapacityError(EdgemergeError, OverflowError):
    """A sum that would grow past the bound below which it is exact."""


class SolveError(EdgemergeError, ArithmeticError):
    """Sums that do not determine a readout."""


class RejectedError(EdgemergeError, ValueError):
    """A contribution of a peer that does not hold water; the message names the peer."""


class StaleError(RejectedError):
    """A revision that is not newer than what is known; `newest` is the one that is known.

    A device that meets it, though it never reuses a revision, runs on an old copy of its state.
    """

    def __init__(self, message: str, newest: int) -> None:
        """Remember the newest revision beside the words."""
        super().__init__(message)
        self.newest = newest

    def __reduce__(self) -> tuple[type[StaleError], tuple[str, int]]:
        """Pickle both arguments: an error of a worker process reaches its parent."""
        return type(self), (str(self), self.newest)


class UnavailableError(EdgemergeError, ConnectionError):
    """The other side cannot be reached, or has no time now: try again after `retry_s`."""

    def __init__(self, message: str, retry_s: float | None = None) -> None:
        """Remember what the other side said about when to try again."""
        super().__init__(message)
        self.retry_s = retry_s


AwayError = UnavailableError  # its name in pickles written before 0.2


class DeniedError(EdgemergeError, PermissionError):
    """The other side does not let us: the token is missing, wrong or revoked."""


class FormatError(EdgemergeError, ValueError):
    """Bytes that are not in our format, or not in its one canonical form."""


class UnknownError(EdgemergeError, KeyError):
    """A device or pattern that nobody has heard of."""

    def __str__(self) -> str:
        """Give the message as it is, without the quotes that KeyError would add."""
        return str(self.args[0]) if self.args else ""


class KindError(EdgemergeError, TypeError):
    """A thing of another kind than the call takes."""


class RidgeWarning(UserWarning):
    """The asked ridge was too small for these sums and has been raised."""


def must_be(value: object, kind: type, advice: str) -> None:
    """Refuse a value of another kind, saying what to do instead."""
    if not isinstance(value, kind):
        raise KindError(f"found {type(value).__name__}, expected {kind.__name__}: {advice}")
