"""Names of months and days in seven languages, and the ways of writing a date that use them."""
from typing import NamedTuple

MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "nl": "januari februari maart april mei juni juli augustus september oktober november december",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
}
SHORT_MONTHS = {
    "en": "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec",
    "en-US": "Jan. Feb. March April May June July Aug. Sept. Oct. Nov. Dec.",        # as American newspapers do
    "de": "Jan. Feb. März Apr. Mai Juni Juli Aug. Sept. Okt. Nov. Dez.",
    "fr": "janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc.",
    "es": "ene feb mar abr may jun jul ago sep oct nov dic",
    "it": "gen feb mar apr mag giu lug ago set ott nov dic",
    "nl": "jan feb mrt apr mei jun jul aug sep okt nov dec",
    "pt": "jan. fev. mar. abr. mai. jun. jul. ago. set. out. nov. dez.",
}
WEEKDAYS = {                                                    # Monday first, as datetime.date.weekday counts
    "en": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "de": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    "fr": "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "es": "lunes martes miércoles jueves viernes sábado domingo",
    "it": "lunedì martedì mercoledì giovedì venerdì sabato domenica",
    "nl": "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
    "pt": "segunda-feira terça-feira quarta-feira quinta-feira sexta-feira sábado domingo",
}
# Only where they cannot be taken for a month: Spanish "mar" is Tuesday and March.
SHORT_WEEKDAYS = {
    "en": "Mon Tue Wed Thu Fri Sat Sun",
    "de": "Mo. Di. Mi. Do. Fr. Sa. So.",
    "nl": "ma di wo do vr za zo",
}
for _table in (MONTHS, SHORT_MONTHS, WEEKDAYS, SHORT_WEEKDAYS):
    _table.update({language: tuple(names.split()) for language, names in _table.items()})
for _table in (MONTHS, WEEKDAYS, SHORT_WEEKDAYS):
    _table["en-US"] = _table["en"]

ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")


class DateFormat(NamedTuple):
    """One way of writing a date.

    ``template`` has these fields: ``d`` the day (3) and ``dd`` with two digits (03); ``day`` the day as the language
    speaks it (French 1er, Italian 1º); ``nth`` the English ordinal (3rd); ``m``, ``mm`` the month's number; ``roman``
    the same in Roman numerals; ``month``, ``mon`` its name and short name; ``yyyy``, ``yy`` the year; ``weekday``,
    ``wkd`` the name and short name of the day of the week. ``language`` says whose names they are.
    """

    language: str
    template: str


# What an all-numeric date means is fixed by its separator and by where the four-digit year stands:
#   year first, whatever the separator   year, month, day
#   eight digits                         year, month, day
#   dots, dashes or spaces, year last    day, month, year
#   slashes, year last                   month, day, year
# A year of two digits always comes last and means 1950 to 2049 (as in X.509 certificates, RFC 5280).
_TEMPLATES = {
    "en": """
        {yyyy}-{mm}-{dd} | {yyyy}-{m}-{d} | {yyyy}/{mm}/{dd} | {yyyy}.{mm}.{dd} | {yyyy} {mm} {dd} | {yyyy}{mm}{dd}
        {dd}.{mm}.{yyyy} | {d}.{m}.{yyyy} | {d}. {m}. {yyyy} | {dd}.{mm}.{yy} | {d}.{m}.{yy}
        {dd}-{mm}-{yyyy} | {dd} {mm} {yyyy} | {d}.{roman}.{yyyy} | {d} {roman} {yyyy}
        {d} {month} {yyyy} | {dd} {month} {yyyy} | {yyyy}, {month} {d}
        {d} {mon} {yyyy} | {dd}-{mon}-{yyyy} | {dd}{mon}{yyyy} | {d}-{mon}-{yy} | {d} {mon} '{yy}
        {yyyy} {mon} {dd} | {yyyy}-{mon}-{dd} | {wkd}, {dd} {mon} {yyyy} | {wkd} {yyyy}-{mm}-{dd}
        {nth} {month} {yyyy} | {nth} of {month} {yyyy} | {nth} of {month}, '{yy} | the {nth} of {month} {yyyy}
        {weekday} {d} {month} {yyyy} | {weekday} {nth} {month} {yyyy} | {weekday}, the {nth} of {month} {yyyy}
    """,
    "en-US": """
        {mm}/{dd}/{yyyy} | {m}/{d}/{yyyy} | {m}/{d}/{yy} | {wkd}, {m}/{d}/{yyyy}
        {month} {d}, {yyyy} | {month} {d}, '{yy} | {mon} {d}, {yyyy} | {mon} {d}, '{yy}
        {month} {nth}, {yyyy} | {month} {nth} '{yy} | {month} the {nth}, {yyyy}
        {weekday}, {month} {d}, {yyyy} | {weekday}, {mon} {d}, {yyyy} | {wkd} {mon} {dd} {yyyy}
    """,
    "de": """
        {d}. {month} {yyyy} | {dd}. {month} {yyyy} | {d}. {mon} {yyyy} | {d}. {month} '{yy} | den {d}. {month} {yyyy}
        {wkd}, {d}. {mon} {yyyy} | {wkd}, {dd}.{mm}.{yyyy} | {weekday}, {d}. {month} {yyyy}
        {weekday}, den {d}. {month} {yyyy}
    """,
    "fr": """
        {day} {month} {yyyy} | le {day} {month} {yyyy} | {day} {mon} {yyyy} | {day} {month} '{yy}
        {weekday} {day} {month} {yyyy} | le {weekday} {day} {month} {yyyy}
    """,
    "es": """
        {d} de {month} de {yyyy} | {d} de {month} del {yyyy} | {d} {mon} {yyyy} | {d}/{mon}/{yyyy}
        {d} de {month} de '{yy} | {weekday}, {d} de {month} de {yyyy}
    """,
    "it": """
        {day} {month} {yyyy} | il {day} {month} {yyyy} | {d} {mon} {yyyy} | {d} {month} '{yy}
        {weekday} {day} {month} {yyyy}
    """,
    "nl": """
        {d} {month} {yyyy} | {d} {mon} {yyyy} | {d} {month} '{yy} | {wkd} {d} {mon} {yyyy}
        {weekday} {d} {month} {yyyy}
    """,
    "pt": """
        {day} de {month} de {yyyy} | {d} de {mon} de {yyyy} | {d} {mon} {yyyy} | {day} de {month} de '{yy}
        {weekday}, {day} de {month} de {yyyy}
    """,
}
FORMATS = tuple(DateFormat(language, template.strip())
                for language, table in _TEMPLATES.items()
                for line in table.strip().splitlines()
                for template in line.split("|"))
