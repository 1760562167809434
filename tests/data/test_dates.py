"""Dates: every string has one right answer, an independent reader finds it, and no date is in two splits."""
import calendar
import hashlib
import random
import re
import unicodedata
from collections import Counter
from datetime import date
from functools import cache

import numpy as np
import pytest

from numtrans.data import FORMATS, DateTask, write_date, write_dates
from numtrans.data.dates import FIRST_DATE, LAST_DATE, misspellings
from numtrans.errors import DataError

ALL_DAYS = [date.fromordinal(i) for i in range(FIRST_DATE.toordinal(), LAST_DATE.toordinal() + 1)]

# A reader of its own: it knows the stems of the months and the rules for numbers, and nothing of the library's
# tables, formats or order of fields.
STEMS = {
    1: "jan januar january janvier janv enero ene gennaio gen januari janeiro",
    2: "feb februar february fevrier fevr febrero febbraio februari fevereiro fev",
    3: "mar mars marz march marzo maart mrt marco",
    4: "apr april avril avr abril abr aprile",
    5: "may mai mayo maggio mag mei maio",
    6: "jun june juni juin junio giugno giu junho",
    7: "jul july juli juillet juil julio luglio lug julho",
    8: "aug august aout agosto ago augustus",
    9: "sep sept september septembre septiembre settembre set setembro",
    10: "oct october oktober okt octobre octubre ottobre ott outubro out",
    11: "nov november novembre noviembre novembro",
    12: "dec december dezember dez decembre diciembre dic dicembre dezembro",
}
MONTH_OF = {stem: month for month, stems in STEMS.items() for stem in stems.split()}
ROMAN_OF = {"i": 1, "ii": 2, "iii": 3, "iv": 4, "v": 5, "vi": 6, "vii": 7, "viii": 8, "ix": 9, "x": 10, "xi": 11,
            "xii": 12}


def one_slip_from(a):
    """All strings that become ``a`` when one of their letters is left out or two neighbors are swapped."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    added = {a[:i] + c + a[i:] for i in range(len(a) + 1) for c in letters}
    return added | {a[:i] + a[i + 1] + a[i] + a[i + 2:] for i in range(len(a) - 1)}


@cache
def month_of(word, fuzzy):
    if word in MONTH_OF:
        return MONTH_OF[word]
    if word in ROMAN_OF:
        return ROMAN_OF[word]
    if fuzzy and len(word) >= 3:
        found = {MONTH_OF[w] for w in one_slip_from(word) if w in MONTH_OF}
        if len(found) > 1:
            raise ValueError(f"{word!r} can be the months {found}")
        return found.pop() if found else None
    return None


def full_year(text):
    return int(text) if len(text) == 4 else 2000 + int(text) if int(text) < 50 else 1900 + int(text)


def read_date(text, fuzzy=False):
    """The one date a string means, by rules; ValueError if there is none or more than one."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(c))
    plain = plain.strip()
    if re.fullmatch(r"\d{8}", plain):
        return date(int(plain[:4]), int(plain[4:6]), int(plain[6:]))
    numbers = re.findall(r"\d+", plain)
    words = re.findall(r"[a-z]+", re.sub(r"(\d)(st|nd|rd|th|er|º)(?![a-z])", r"\1 ", plain))
    months = [m for w in words if (m := month_of(w, fuzzy)) is not None]
    # A weekday that happens to look like the misspelling of a month is not one: exact names come first.
    exact = [m for w in words if (m := month_of(w, False)) is not None]
    months = exact or months
    if len(months) > 1:
        raise ValueError(f"{text!r} names several months: {months}")
    if months:
        first, last = numbers
        year, day = (first, last) if len(first) == 4 else (last, first)
        return date(full_year(year), months[0], int(day))
    a, b, c = numbers
    if len(a) == 4:
        return date(int(a), int(b), int(c))
    if "/" in plain:
        return date(full_year(c), int(a), int(b))
    return date(full_year(c), int(b), int(a))


def test_the_reader_is_right_about_some_dates_written_by_hand():
    march = date(2021, 3, 3)
    for text in ("3rd of march 2021", "3. März 2021", "03/03/2021", "2021-03-03", "03.03.21", "mercoledì 3 marzo 2021",
                 "quarta-feira, 3 de março de 2021", "3.III.2021", "20210303", "3 mrt. '21"):
        assert read_date(text) == march
    assert read_date("1er février 1999") == date(1999, 2, 1)
    assert read_date("2/11/50") == date(1950, 2, 11)
    assert read_date("2.11.49") == date(2049, 11, 2)
    assert read_date("Setpember 3, 2021", fuzzy=True) == date(2021, 9, 3)
    with pytest.raises(ValueError):
        read_date("juio 3 2021", fuzzy=True)                            # junio or julio


def test_there_are_many_formats_and_they_are_all_different():
    assert len(FORMATS) >= 30
    assert len(set(FORMATS)) == len(FORMATS)
    assert {f.language for f in FORMATS} >= {"en", "de", "fr", "es", "it", "nl", "pt"}
    templates = {f.template for f in FORMATS}
    assert templates >= {"{nth} of {month} {yyyy}", "{weekday}, {month} {d}, {yyyy}", "{d}. {month} {yyyy}"}


@pytest.mark.parametrize("date_format", FORMATS, ids=lambda f: f"{f.language}:{f.template}")
def test_the_reader_reads_every_format(date_format):
    first = 1950 if "{yy}" in date_format.template else 1930
    days = [day for day in ALL_DAYS[::37] if day.year >= first]
    days += [date(y, m, d) for y in (first, 1999, 2000, 2049) for m in range(1, 13) for d in (1, 2, 3, 11, 12, 13, 22)]
    for day in days:
        text = write_date(day, date_format)
        assert read_date(text) == read_date(text.upper()) == read_date(text.lower()) == day


def test_weekdays_are_those_of_the_date():
    names = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    french_names = ["lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche"]
    english = next(f for f in FORMATS if f.template == "{weekday} {d} {month} {yyyy}" and f.language == "en")
    french = next(f for f in FORMATS if f.template == "{weekday} {day} {month} {yyyy}" and f.language == "fr")
    for day in ALL_DAYS[::101]:
        right = calendar.weekday(day.year, day.month, day.day)
        assert write_date(day, english).split()[0] == names[right]
        assert write_date(day, french).split()[0] == french_names[right]


def test_written_by_hand():
    texts = {write_date(date(2021, 3, 1), f) for f in FORMATS}
    assert texts >= {"2021-03-01", "01.03.21", "3/1/2021", "1st of March 2021", "1. März 2021", "1er mars 2021",
                     "1 de marzo de 2021", "1º marzo 2021", "Montag, den 1. März 2021", "1 maart '21", "1.III.2021",
                     "1º de março de 2021", "March 1st, 2021", "Mon, 01 Mar 2021", "lunes, 1 de marzo de 2021"}
    endings = {write_date(date(2021, 3, d), ("en", "{nth}")) for d in range(1, 32)}
    assert endings >= {"1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "31st"}
    assert len(endings) == 31


def test_two_digits_of_the_year_are_refused_where_they_are_ambiguous():
    with pytest.raises(DataError, match=r"1930-05-06 cannot be written with two digits .* 1950 to 2049"):
        write_date(date(1930, 5, 6), ("en", "{d}.{m}.{yy}"))
    early = [day for day in ALL_DAYS if day.year < 1950]
    texts = write_dates(early, np.random.default_rng(0))
    assert all(re.search(r"19[34]\d", text) for text in texts)


def test_no_string_has_two_answers():
    """200,000 strings over all dates, two thirds of them with slips; the reader, who allows slips, reads each one."""
    answer = {}
    rng = np.random.default_rng(1)
    days = [ALL_DAYS[i] for i in rng.integers(len(ALL_DAYS), size=200_000)]
    for share, part in ((0.0, days[:60_000]), (1.0, days[60_000:])):
        for day, text in zip(part, write_dates(part, rng, noise=share), strict=True):
            assert answer.setdefault(text, day) == day, text
            assert read_date(text, fuzzy=share > 0) == day, text
    assert len(answer) > 150_000


def test_every_misspelling_names_one_month():
    seen = {}
    for month, stems in STEMS.items():
        for stem in stems.split():
            for wrong in [w for group in misspellings(stem, month).values() for w in group]:
                assert month_of(wrong, fuzzy=True) == month
                assert seen.setdefault(wrong, month) == month
                assert wrong[0] == stem[0]
    assert len(seen) > 200
    assert "maro" not in seen
    assert "juio" not in seen


def test_noise_is_as_frequent_as_asked_and_has_every_kind():
    day = date(2021, 8, 5)
    clean = {write_date(day, f) for f in FORMATS}
    clean |= {t.lower() for t in clean} | {t.upper() for t in clean}
    texts = write_dates([day] * 20_000, np.random.default_rng(3))
    noisy = [text for text in texts if text not in clean]
    assert 0.09 < len(noisy) / len(texts) < 0.13                        # a slip can give another clean form
    assert all(text in clean for text in write_dates([day] * 2_000, np.random.default_rng(3), noise=0))
    lowered = [text.lower() for text in noisy]
    assert any("  " in t for t in lowered)
    assert any(t != t.strip() for t in lowered)
    assert any("auguts" in t for t in lowered)
    assert any("augst" in t for t in lowered)
    assert any("aout" in t for t in lowered)
    assert "Thursday August 5, 2021" in noisy
    assert any(re.search("[a-z][A-Z]", t) for t in noisy)


def test_a_task_has_the_numbers_asked_for_and_no_date_twice():
    task = DateTask(seed=4, n_train=20_000, n_valid=300, n_test=700)
    assert (len(task.train), len(task.valid), len(task.test)) == (20_000, 300, 700)
    train, valid, test = ({target for _, target in split} for split in (task.train, task.valid, task.test))
    assert not train & valid
    assert not train & test
    assert not valid & test
    assert len(valid) == 300
    assert len(test) == 700
    for source, target in task.train[:3000] + task.valid + task.test:
        assert read_date(source, fuzzy=True) == date.fromisoformat(target)
    years = Counter(target[:3] for target in (t for _, t in task.train))
    assert set(years) == {f"{decade}" for decade in range(193, 205)}


def test_the_vocabulary_knows_every_string_of_every_seed():
    task = DateTask(seed=5, n_train=5_000)
    assert task.source_vocab == DateTask(seed=6, n_train=1, n_valid=0, n_test=0).source_vocab
    for source, target in task.train + task.valid + task.test:
        source_ids, target_ids = task.encode_pair(source, target)
        assert min(source_ids) > 3
        assert task.source_vocab.decode(source_ids) == source
        assert min(target_ids) > 3
        assert task.target_vocab.decode(target_ids) == target
    assert task.encode_pairs(task.valid[:2]) == [task.encode_pair(*pair) for pair in task.valid[:2]]
    known = set(task.source_vocab.symbols)
    for date_format in FORMATS:
        for month in range(1, 13):
            for d in (1, 2, 3, 4, 5, 6, 7):
                text = write_date(date(2021, month, d), date_format)
                assert set(text) | set(text.lower()) | set(text.upper()) <= known
    assert set(task.target_vocab.symbols) == set("0123456789-")


def test_the_task_is_short_enough_to_learn():
    lengths = np.array([len(source) for source, _ in DateTask(n_train=5_000).train])
    assert lengths.mean() < 20
    assert (lengths <= 32).mean() > 0.95
    assert lengths.max() <= 45


def test_the_seed_decides_everything():
    a, b, c = (DateTask(seed=s, n_train=500, n_valid=50, n_test=50) for s in (7, 7, 8))
    assert (a.train, a.valid, a.test) == (b.train, b.valid, b.test)
    assert a.train != c.train
    assert a.test != c.test
    before = repr(np.random.get_state()), random.getstate()                     # noqa: NPY002
    DateTask(seed=7, n_train=10, n_valid=1, n_test=1)
    assert (repr(np.random.get_state()), random.getstate()) == before           # noqa: NPY002


def test_the_pairs_are_the_same_on_every_machine():
    """Recorded once. If it fails on some Python or NumPy, results in the documentation no longer hold there."""
    task = DateTask(seed=0, n_train=1000, n_valid=100, n_test=100)
    text = "\n".join("\t".join(pair) for pair in task.train + task.valid + task.test)
    assert task.train[0] == ("13 juil.  1953", "1953-07-13")
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "e8fb5c782b3de55c"


@pytest.mark.parametrize(("arguments", "message"), [
    (dict(n_train=-1), "must not be negative, got -1, 500 and 1000"),
    (dict(n_valid=20_000, n_test=2_000), "at most 21915 .* got 22000"),
    (dict(noise=1.5), "noise must be from 0 to 1, got 1.5"),
])
def test_mistakes_are_named(arguments, message):
    with pytest.raises(DataError, match="DateTask: .*" + message):
        DateTask(**arguments)
