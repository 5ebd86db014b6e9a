"""Named text formats: `format.dns1123Label().validate(text)` and friends."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import date

from dray.cel.urls import UrlError, parse_url

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
# As upstream has it: any character may stand before the fraction.
_TIME = re.compile(r"(\d{2}):(\d{2}):(\d{2})(.\d+)?(z|[+-]\d{2}:\d{2})\Z", re.ASCII)
_DATE_TIME_PATTERN_SIZE = 71
_UUID = re.compile(
    r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\Z", re.IGNORECASE | re.ASCII
)

# The size of the pattern behind each format decides the cost of validating.
_PATTERN_SIZES = {
    "dns1123Label": 30,
    "dns1123LabelPrefix": 30,
    "dns1123Subdomain": 60,
    "dns1123SubdomainPrefix": 60,
    "dns1035Label": 30,
    "dns1035LabelPrefix": 30,
    "qualifiedName": 60,
    "labelValue": 40,
    "uri": 1103,
    "uuid": 70,
    "byte": 84,
    "date": _DATE_TIME_PATTERN_SIZE,
    "datetime": _DATE_TIME_PATTERN_SIZE,
}


def pattern_size(name: str) -> int:
    """Return the size of the pattern of a format."""
    return _PATTERN_SIZES[name]


def validate(name: str, text: str) -> list[str]:
    """Return what is wrong with a text; empty if nothing is."""
    return _VALIDATORS[name](text)


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def _too_long(limit: int, kind: str = "") -> str:
    return f"{kind}must be no more than {limit} characters"


def _regex_problem(problem: str, pattern: str, *examples: str) -> str:
    shown = ",  or ".join(f"'{example}'" for example in examples)
    shown = f"e.g. {shown}, " if examples else ""
    return f"{problem} ({shown}regex used for validation is '{pattern}')"


_LABEL_PROBLEM = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character"
)
_SUBDOMAIN_PROBLEM = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_LABEL_1035_PROBLEM = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character"
)
_QUALIFIED_PROBLEM = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
_LABEL_VALUE_PROBLEM = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character"
)


def _dns(limit: int, pattern: str, problem: str, *examples: str) -> Callable[[str], list[str]]:
    def validator(text: str) -> list[str]:
        problems = [_too_long(limit)] if len(text.encode()) > limit else []
        if not _matches(pattern, text):
            problems.append(_regex_problem(problem, pattern.replace(r"\.", "\\."), *examples))
        return problems

    return validator


def _prefix(validator: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    def validate_prefix(text: str) -> list[str]:
        # A generated name continues after the prefix, so a trailing dash is fine.
        return validator(text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text)

    return validate_prefix


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:
        problem = _regex_problem(
            "a qualified name " + _QUALIFIED_PROBLEM, _QUALIFIED, "MyName", "my.name", "123-abc"
        )
        return [f"{problem} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
    problems: list[str] = []
    if len(parts) == 2:
        if not parts[0]:
            problems.append("prefix part must be non-empty")
        else:
            problems += ["prefix part " + problem for problem in _subdomain(parts[0])]
    name = parts[-1]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append(_too_long(63, "name part "))
    if not _matches(_QUALIFIED, name):
        problems.append(
            "name part " + _regex_problem(_QUALIFIED_PROBLEM, _QUALIFIED, "MyName", "my.name", "123-abc")
        )
    return problems


def _label_value(text: str) -> list[str]:
    problems = [_too_long(63)] if len(text) > 63 else []
    if not _matches(_LABEL_VALUE, text):
        problems.append(_regex_problem(_LABEL_VALUE_PROBLEM, _LABEL_VALUE, "MyValue", "my_value", "12345"))
    return problems


def _uri(text: str) -> list[str]:
    try:
        parse_url(text)
    except UrlError as error:
        return [str(error)]
    return []


def _byte(text: str) -> list[str]:
    try:
        base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        return ["invalid base64"]
    return [] if text else ["invalid base64"]


def _is_date(text: str) -> bool:
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return text.startswith("0000") and _is_date("0004" + text[4:])
    return True


def _is_date_time(text: str) -> bool:
    """Return whether a text is a date, a T and a time; upstream ignores what follows a second T."""
    day, t, rest = text.lower().partition("t")
    found = _TIME.match(rest.partition("t")[0])
    if not t or found is None or not _is_date(day):
        return False
    hour, minute, second = (int(found.group(index)) for index in (1, 2, 3))
    return hour <= 23 and minute <= 59 and second <= 59


_label = _dns(63, _LABEL, _LABEL_PROBLEM, "my-name", "123-abc")
_subdomain = _dns(253, _SUBDOMAIN, _SUBDOMAIN_PROBLEM, "example.com")
_label_1035 = _dns(63, _LABEL_1035, _LABEL_1035_PROBLEM, "my-name", "abc-123")

_VALIDATORS: dict[str, Callable[[str], list[str]]] = {
    "dns1123Label": _label,
    "dns1123LabelPrefix": _prefix(_label),
    "dns1123Subdomain": _subdomain,
    "dns1123SubdomainPrefix": _prefix(_subdomain),
    "dns1035Label": _label_1035,
    "dns1035LabelPrefix": _prefix(_label_1035),
    "qualifiedName": _qualified_name,
    "labelValue": _label_value,
    "uri": _uri,
    "uuid": lambda text: [] if _UUID.match(text) else ["does not match the UUID format"],
    "byte": _byte,
    "date": lambda text: [] if _is_date(text) else ["invalid date"],
    "datetime": lambda text: [] if _is_date_time(text) else ["invalid datetime"],
}
