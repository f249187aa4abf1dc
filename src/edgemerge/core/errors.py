"""The errors of edgemerge. Each message says what was found, what was expected and what to do."""

from __future__ import annotations


class EdgemergeError(Exception):
    """Base class of all errors of this package."""


class SampleError(EdgemergeError, ValueError):
    """A sample cannot be used: wrong length, not a number, or infinite."""


class SettingError(EdgemergeError, ValueError):
    """A setting is outside its range."""


class MismatchError(EdgemergeError, ValueError):
    """Two values are built on different projections."""


class CapacityError(EdgemergeError, OverflowError):
    """A sum would exceed the bound up to which it is exact."""


class SolveError(EdgemergeError, ArithmeticError):
    """The sums do not determine a readout."""


class RejectedError(EdgemergeError, ValueError):
    """A contribution failed validation; the message names its device."""


class StaleError(RejectedError):
    """A revision is not newer than the known one, which is in `newest`.

    If a device gets this error for a new revision, it runs on an old copy of its state.

    Args:
        message: What was found, what was expected, and what to do.
        newest: The revision that is known; a new one must be above it.
    """

    def __init__(self, message: str, newest: int) -> None:
        """Keep the newest revision with the message."""
        super().__init__(message)
        self.newest = newest

    def __reduce__(self) -> tuple[type[StaleError], tuple[str, int]]:
        """Pickle both arguments, so that a worker process can raise it in its parent."""
        return type(self), (str(self), self.newest)


class UnavailableError(EdgemergeError, ConnectionError):
    """The server or peer is unreachable or busy; retry after `retry_s` seconds.

    Args:
        message: What was found, what was expected, and what to do.
        retry_s: The delay that the server asked for, in seconds; None (the default): it named none.
    """

    def __init__(self, message: str, retry_s: float | None = None) -> None:
        """Keep the delay that the server asked for, if it did."""
        super().__init__(message)
        self.retry_s = retry_s


AwayError = UnavailableError  # its former name, in old pickles


class DeniedError(EdgemergeError, PermissionError):
    """Access was denied: the token is missing, wrong or revoked."""


class FormatError(EdgemergeError, ValueError):
    """The bytes are not in the format of edgemerge, or not canonical."""


class UnknownError(EdgemergeError, KeyError):
    """The device or pattern is unknown."""

    def __str__(self) -> str:
        """Return the message without the quotes that KeyError adds."""
        return str(self.args[0]) if self.args else ""


class KindError(EdgemergeError, TypeError):
    """An argument has the wrong type."""


class BudgetError(EdgemergeError, RuntimeError):
    """The privacy budget of these samples is spent: nothing more may be released of them."""


class RidgeWarning(UserWarning):
    """The given ridge was too small for these sums and has been raised."""


def must_be(value: object, kind: type | tuple[type, ...], advice: str) -> None:
    """Raise KindError unless the value is of this type; `advice` says what to do instead."""
    if not isinstance(value, kind):
        kinds = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise KindError(f"found {type(value).__name__}, expected {kinds}: {advice}")


def install_command(extra: str) -> str:
    """Return how to install an extra; edgemerge is in no package index, so a checkout is needed."""
    return f"pip install '.[{extra}]' in a checkout of edgemerge"
