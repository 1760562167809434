"""Dates as people write them, to be translated to ISO 8601: ``3rd of march 2021`` -> ``2021-03-03``.

A task that a small Transformer can learn in a minute and that still needs attention: the decoder has to find the
day, the month and the year at different places of the source, in different scripts, and to write them in order.
Every string has exactly one right answer; ``date_names.py`` says how.
"""
from datetime import date
from functools import cache

import numpy as np

from numtrans.data.date_names import FORMATS, MONTHS, ROMAN, SHORT_MONTHS, SHORT_WEEKDAYS, WEEKDAYS
from numtrans.data.tasks import Seq2SeqTask
from numtrans.data.vocabulary import Vocabulary
from numtrans.errors import DataError

FIRST_DATE, LAST_DATE = date(1930, 1, 1), date(2049, 12, 31)
# The formats for years that two digits cannot tell (1930 could be 2030).
FULL_YEAR_FORMATS = tuple(f for f in FORMATS if "{yyyy}" in f.template)

NOISE = ("space", "comma", "swap", "drop", "accents", "case")
_ACCENTS = str.maketrans("äáàâéèêíìóòúùûüçñÄÁÀÂÉÈÊÍÌÓÒÚÙÛÜÇÑ", "aaaaeeeiioouuuucnAAAAEEEIIOOUUUUCN")
_SPOKEN_FIRST = {"fr": "1er", "it": "1º", "pt": "1º"}


def write_date(day, date_format, month_name=None):
    """Write a date in one format, without noise.

    Parameters
    ----------
    day : datetime.date
    date_format : DateFormat
        One of ``FORMATS``.
    month_name : str or None, default None
        Written instead of the month's full name: how a misspelling gets in.

    Returns
    -------
    str

    Raises
    ------
    DataError
        If the format has a two-digit year and the date is outside 1950 to 2049.
    """
    language, template = date_format
    if "{yy}" in template and not 1950 <= day.year <= 2049:
        raise DataError(f"write_date: {day} cannot be written with two digits for the year, which mean 1950 to 2049")
    d, m, y, w = day.day, day.month, day.year, day.weekday()
    suffix = "th" if 11 <= d <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(d % 10, "th")
    return template.format(
        d=d, dd=f"{d:02}", day=_SPOKEN_FIRST.get(language, 1) if d == 1 else d, nth=f"{d}{suffix}",
        m=m, mm=f"{m:02}", roman=ROMAN[m - 1], month=month_name or MONTHS[language][m - 1],
        mon=SHORT_MONTHS[language][m - 1], yyyy=y, yy=f"{y % 100:02}",
        weekday=WEEKDAYS[language][w], wkd=SHORT_WEEKDAYS[language][w] if language in SHORT_WEEKDAYS else "")


def write_dates(days, rng, noise=0.12):
    """Write each date in a format drawn at random, with typing noise in some.

    Of all strings about one in four is in lower case and one in ten in upper case; beyond that, a share ``noise``
    has one slip: a doubled space, a comma left out, two letters swapped or one left out in the name of a month,
    accents left off, or capitals in odd places. A slip is made only where the date stays certain.

    Parameters
    ----------
    days : list of datetime.date
        From 1930 to 2049.
    rng : numpy.random.Generator
        The only source of chance: five numbers are drawn for each date.
    noise : float, default 0.12
        Share of strings with a slip.

    Returns
    -------
    list of str
    """
    draws = rng.random((len(days), 5)).tolist()
    return [_write(day, *row, noise) for day, row in zip(days, draws, strict=True)]


def _write(day, u_format, u_noise, u_kind, u_where, u_case, noise):
    """One string from five numbers in [0, 1)."""
    formats = FORMATS if 1950 <= day.year <= 2049 else FULL_YEAR_FORMATS
    date_format = _pick(formats, u_format)
    text = write_date(day, date_format)
    slip = None
    if u_noise < noise:
        wrong_names = {}
        if "{month}" in date_format.template:
            wrong_names = misspellings(MONTHS[date_format.language][day.month - 1], day.month)
        possible = [kind for kind in NOISE if _can_slip(kind, text, wrong_names)]
        slip = _pick(possible, u_kind)
    if slip in ("swap", "drop"):
        text = write_date(day, date_format, month_name=_pick(wrong_names[slip], u_where))
    elif slip == "accents":
        text = text.translate(_ACCENTS)
    elif slip == "comma":
        commas = [i for i, c in enumerate(text) if c == ","]
        i = _pick(commas, u_where)
        text = text[:i] + text[i + 1:]
    elif slip == "space":
        spaces = [i for i, c in enumerate(text) if c == " "] or [0, len(text)]
        i = _pick(spaces, u_where)
        text = text[:i] + " " + text[i:]
    elif slip == "case":
        bits = int(u_where * 2 ** 40)
        return "".join(c.upper() if bits >> (i % 40) & 1 else c.lower() for i, c in enumerate(text))
    return text.lower() if u_case < 0.25 else text.upper() if u_case < 0.35 else text


def _pick(options, u):
    return options[int(u * len(options))]


def _can_slip(kind, text, wrong_names):
    if kind == "comma":
        return "," in text
    if kind in ("swap", "drop"):
        return bool(wrong_names.get(kind))
    if kind == "accents":
        return text.translate(_ACCENTS) != text
    if kind == "case":
        return text.lower() != text.upper()
    return True                                                 # a space too many is possible anywhere


@cache
def misspellings(name, month):
    """The slips of the finger in the name of a month that leave no doubt which month is meant.

    Two neighboring letters swapped, or one letter left out, never the first one. A slip counts only if no name of
    another month, in any language, is as near as two slips (swapped, missing, additional or wrong letters): "maro"
    for "marzo" is out, for it could be "maio" as well.

    Parameters
    ----------
    name : str
        Names of less than five letters have no safe slips.
    month : int
        From 1 to 12.

    Returns
    -------
    dict
        ``{"swap": (...), "drop": (...)}``, tuples of strings.
    """
    others = [other for table in (MONTHS, SHORT_MONTHS) for names in table.values()
              for number, other in enumerate(names, start=1) if number != month]
    others = {_plain(other) for other in others}

    def is_safe(wrong):
        wrong = _plain(wrong)
        return wrong != _plain(name) and all(abs(len(wrong) - len(other)) > 2 or _slips_between(wrong, other) > 2
                                             for other in others)

    inner = range(1, len(name)) if len(name) >= 5 else ()
    swaps = [name[:i] + name[i + 1] + name[i] + name[i + 2:] for i in inner if i + 1 < len(name)]
    drops = [name[:i] + name[i + 1:] for i in inner]
    return {kind: tuple(wrong for wrong in dict.fromkeys(found) if is_safe(wrong))
            for kind, found in (("swap", swaps), ("drop", drops))}


def _plain(name):
    return name.translate(_ACCENTS).lower().rstrip(".")


def _slips_between(a, b):
    """The fewest swaps of neighbors, insertions, deletions and replacements that turn a into b."""
    before, last = None, list(range(len(b) + 1))
    for i in range(1, len(a) + 1):
        row = [i]
        for j in range(1, len(b) + 1):
            best = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]))
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before, last = last, row
    return last[-1]


def date_characters():
    """All characters that a written date can have, sorted, whatever the seed."""
    names = [name for table in (MONTHS, SHORT_MONTHS, WEEKDAYS, SHORT_WEEKDAYS)
             for group in table.values() for name in group]
    outside = "".join(f.template for f in FORMATS).replace("{", " ").replace("}", " ")
    text = "".join(names) + "".join(ROMAN) + "".join(_SPOKEN_FIRST.values()) + "st nd rd th 0123456789" + outside
    text += text.translate(_ACCENTS)
    return "".join(sorted(set(text) | set(text.lower()) | set(text.upper())))


class DateTask(Seq2SeqTask):
    """Pairs of a written date and its ISO form, from 1930 to 2049.

    No calendar date is in two splits: the model has never seen a test date in any form. Each validation and each
    test pair has a date of its own; the training pairs are drawn from all the other dates, which come up several
    times, in different forms.

    Parameters
    ----------
    seed : int, default 0
        The same seed gives the same pairs on every machine.
    n_train, n_valid, n_test : int, defaults 40000, 500 and 1000
        Number of pairs.
    noise : float, default 0.12
        Share of strings with a typing slip, see :func:`write_dates`.

    Raises
    ------
    DataError
        If a number is negative, validation and test need more than half of all dates, or noise is not in [0, 1].
    """

    def __init__(self, seed=0, n_train=40_000, n_valid=500, n_test=1_000, noise=0.12):
        first, last = FIRST_DATE.toordinal(), LAST_DATE.toordinal()
        num_dates = last - first + 1
        if min(n_train, n_valid, n_test) < 0:
            raise DataError("DateTask: n_train, n_valid and n_test must not be negative, "
                            f"got {n_train}, {n_valid} and {n_test}")
        if n_valid + n_test > num_dates // 2:
            raise DataError(f"DateTask: n_valid + n_test must be at most {num_dates // 2} (half of the dates from "
                            f"{FIRST_DATE} to {LAST_DATE}), got {n_valid + n_test}")
        if not 0 <= noise <= 1:
            raise DataError(f"DateTask: noise must be from 0 to 1, got {noise}")
        rng = np.random.default_rng(seed)
        shuffled = (first + rng.permutation(num_dates)).tolist()
        valid, test, rest = shuffled[:n_valid], shuffled[n_valid:n_valid + n_test], shuffled[n_valid + n_test:]
        train = [rest[i] for i in rng.integers(len(rest), size=n_train)]

        def pairs(ordinals):
            days = [date.fromordinal(i) for i in ordinals]
            return [(text, day.isoformat()) for text, day in zip(write_dates(days, rng, noise), days, strict=True)]

        super().__init__(pairs(train), pairs(valid), pairs(test),
                         Vocabulary.from_characters([date_characters()]), Vocabulary.from_characters(["0123456789-"]))
