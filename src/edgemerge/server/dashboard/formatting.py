"""Numbers, names and factors as pages show them: few digits, a unit, or a dash."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log10
from time import gmtime

NOTHING = "–"
UNIT_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
MIN_PLAIN = 1e-3  # below it, and above LONGEST, powers of ten are shorter
MAX_PLAIN = 1e21


def digits(value: float, keep: int = 3) -> str:
    """Return so many leading digits, without zeros that say nothing.

    >>> digits(1.0234), digits(12.34), digits(4.0), digits(1234.5), digits(3e300)
    ('1.02', '12.3', '4', '1234', '3e300')
    """
    if value == 0:
        return "0"
    size = abs(value)
    if not MIN_PLAIN <= size < MAX_PLAIN:
        return f"{value:.{keep - 1}g}".replace("e+", "e").replace("e-0", "e-")
    places = max(0, keep - 1 - floor(log10(size)))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float | None) -> str:
    """Return a number of things; thousands and more by their letter.

    >>> count(0), count(950), count(12_345), count(2_500_000), count(1e300), count(None)
    ('0', '950', '12.3 k', '2.5 M', '1e300', '–')
    """
    if value is None:
        return NOTHING
    if abs(value) >= MAX_PLAIN:
        return digits(value)
    step, scaled = 0, float(value)
    while abs(scaled) >= 999.5 and step < len(UNIT_PREFIXES) - 1:
        step, scaled = step + 1, scaled / 1000.0
    return f"{digits(scaled)} {UNIT_PREFIXES[step]}".rstrip().replace("-", "−", 1)


def size(value: float | None) -> str:
    """Return a number of bytes.

    >>> size(0), size(999), size(4_200_000), size(-1_500)
    ('0 B', '999 B', '4.2 MB', '−1.5 kB')
    """
    if value is None:
        return NOTHING
    text = count(value)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def score(value: float | None) -> str:
    """Return a score or a limit; 1 is as usual.

    >>> score(1.0), score(0.98765), score(None)
    ('1', '0.988', '–')
    """
    return NOTHING if value is None else digits(value)


def reading(value: float | None) -> str:
    """Return a value of a sensor.

    >>> reading(2.5), reading(-1234.56789), reading(0.00001234), reading(None)
    ('2.5', '−1234.57', '1.234e-5', '–')
    """
    return NOTHING if value is None else digits(value, 6).replace("-", "−", value < 0)


def times(value: float | None) -> str:
    """Return a factor, as commands do.

    >>> times(3.14159), times(120), times(1390.4), times(1e300), times(None)
    ('×3.14', '×120', '×1,390', '×1e300', '–')
    """
    if value is None:
        return NOTHING
    return f"×{value:,.0f}" if 999.5 <= value < MAX_PLAIN else f"×{digits(value)}"


def times_usual(value: float) -> str:
    """Return how far above the usual something is, in words.

    >>> times_usual(33.14), times_usual(2.04), times_usual(1234.5)
    ('33.1 times the usual', '2.04 times the usual', '1,234 times the usual')
    """
    return f"{times(value)[1:]} times the usual"


def share(part: float, whole: float) -> str:
    """Return a part of a whole in percent.

    >>> share(1, 8), share(1, 1000), share(0, 0)
    ('12 %', '< 1 %', '–')
    """
    if whole <= 0:
        return NOTHING
    percent = 100.0 * part / whole
    return "< 1 %" if 0 < percent < 1 else f"{percent:.0f} %"


def moment(at: float) -> str:
    """Return a moment as machines read it.

    >>> moment(1_763_270_400.5)
    '2025-11-16T05:20:00Z'
    """
    year, month, day, hour, minute, second, *_ = gmtime(min(at, 2e11))
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"


MAX_NAMES_SHOWN = 6  # devices that a sentence names before it only counts


def join_names(names: Sequence[str]) -> str:
    """Name devices in a sentence; of many, the first.

    >>> join_names(["a"]), join_names(["a", "b", "c"]), join_names([str(k) for k in range(9)])
    ('a', 'a, b and c', '0, 1, 2, 3, 4, 5 and 3 more')
    """
    first, more = list(names[:MAX_NAMES_SHOWN]), len(names) - MAX_NAMES_SHOWN
    last = [f"{more} more"] if more > 0 else first[-1:]
    before = first if more > 0 else first[:-1]
    return " and ".join(filter(None, (", ".join(before), *last)))


def counted(count: int, word: str) -> str:
    """Return how many there are.

    >>> counted(1, "device"), counted(1200, "device")
    ('1 device', '1,200 devices')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def level(value: float) -> str:
    """Write a level.

    >>> level(0.0012345), level(12.0), level(float("nan"))
    ('0.00123', '12', '–')
    """
    return f"{value:.3g}" if isfinite(value) else "–"


def factor(value: float) -> str:
    """Write a factor.

    >>> factor(1.041), factor(23.4), factor(float("nan"))
    ('×1.04', '×23', '–')
    """
    if not isfinite(value):
        return "–"
    return f"×{value:.2f}" if value < 9.995 else f"×{value:,.0f}"


def amount(value: float) -> str:
    """Write a number of samples, which forgetting may have made a fraction.

    >>> amount(1234567.0), amount(12.5)
    ('1,234,567', '12.5')
    """
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def duration(began: float, ended: float) -> str:
    """Write how long something lasted.

    >>> duration(0.0, 42.4), duration(0.0, 600.0), duration(0.0, 9000.0), duration(5.0, 4.0)
    ('42 s', '10 min', '2.5 h', '0 s')
    """
    seconds = max(0.0, ended - began)
    for unit, unit_s in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * unit_s:
            return f"{digits(seconds / unit_s, 2)} {unit}"
    return f"{seconds:.0f} s"
