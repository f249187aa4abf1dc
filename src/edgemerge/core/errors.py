"""The errors of edgemerge: each says what was found, what was expected and what to do."""


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
