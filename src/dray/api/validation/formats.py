"""Text formats of the Kubernetes API: each function lists what is wrong with a value.

An empty list means that the value is well-formed. The sentences are part of
the wire convention (users search for them), so they are worded as the
reference words them. Sizes are counted in UTF-8 bytes, as everywhere in the API.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import cache

from dray.api.caching import cached_by_text

Format = Callable[[str], list[str]]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_WORD = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
_DNS_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_CONFIG_KEY = r"[-._a-zA-Z0-9]+"
_CONDITION_REASON = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"

_LABEL_RE = re.compile(_LABEL)
_SUBDOMAIN_RE = re.compile(_SUBDOMAIN)
_SUBDOMAIN_CASELESS_RE = re.compile(_SUBDOMAIN, re.IGNORECASE | re.ASCII)
_WORD_RE = re.compile(_WORD)
_IDENTIFIER_RE = re.compile(_IDENTIFIER)
_DNS_1035_RE = re.compile(_DNS_1035)
_CONFIG_KEY_RE = re.compile(_CONFIG_KEY)
_CONDITION_REASON_RE = re.compile(_CONDITION_REASON)
_PORT_NAME_RE = re.compile(r"[-a-z0-9]+")
_PERCENT_RE = re.compile(r"[0-9]+%")
_UUID_RE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NUMBER_PART = r"(0|[1-9]\d*)"
_PRE_RELEASE = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_BUILD = r"[0-9a-zA-Z-]+"
_SEMVER_RE = re.compile(
    rf"{_NUMBER_PART}\.{_NUMBER_PART}\.{_NUMBER_PART}"
    rf"(-{_PRE_RELEASE}(\.{_PRE_RELEASE})*)?(\+{_BUILD}(\.{_BUILD})*)?",
    re.ASCII,
)

_ALNUM_ENDS = "and must start and end with an alphanumeric character"
_LABEL_RULE = (
    f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', {_ALNUM_ENDS}"
)
_SUBDOMAIN_RULE = f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', {_ALNUM_ENDS}"
_CASELESS_RULE = f"an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', {_ALNUM_ENDS}"
_WORD_RULE = f"must consist of alphanumeric characters, '-', '_' or '.', {_ALNUM_ENDS}"
_LABEL_VALUE_RULE = f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', {_ALNUM_ENDS}"
_IDENTIFIER_RULE = (
    "a valid C identifier must start with alphabetic character or '_', "
    "followed by a string of alphanumeric characters or '_'"
)
_DNS_1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character"
)
_CONFIG_KEY_RULE = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
_CONDITION_REASON_RULE = (
    "a condition reason must start with alphabetic character, optionally followed by a string of "
    "alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'"
)

LABEL_MAX = 63
SUBDOMAIN_MAX = 253
_MOST_MATCHED = 64 * 1024  # characters


def size(text: str) -> int:
    """Return the length that limits are about: UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _fits(pattern: re.Pattern[str], text: str) -> bool:
    """Return whether a whole text matches; texts far beyond every limit are not looked at.

    All these forms are a few hundred characters at most, and a match cannot be interrupted.
    """
    return len(text) <= _MOST_MATCHED and pattern.fullmatch(text) is not None


@cache  # texts of errors are shared, there may be very many
def _with_pattern(rule: str, pattern: str, *examples: str) -> str:
    if not examples:
        return f"{rule} (regex used for validation is '{pattern}')"
    # The double space is on the wire: every example ends in ", " and "or" brings its own space.
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{rule} (e.g. {shown}regex used for validation is '{pattern}')"


def _longer_than(text: str, limit: int, unit: str) -> list[str]:
    return [f"must be no more than {limit} {unit}"] if size(text) > limit else []


def dns_label(text: str, unit: str = "characters") -> list[str]:
    """Check a DNS label: `gpu-0`."""
    problems = _longer_than(text, LABEL_MAX, unit)
    if not _fits(_LABEL_RE, text):
        if _fits(_SUBDOMAIN_RE, text):
            problems.append("must not contain dots")
        else:
            problems.append(_with_pattern(_LABEL_RULE, _LABEL, "my-name", "123-abc"))
    return problems


def short_name(text: str) -> list[str]:
    """Check a DNS label as declared rules do: they count bytes, and say so."""
    return dns_label(text, "bytes")


def dns_subdomain(text: str, unit: str = "characters") -> list[str]:
    """Check a DNS subdomain: `gpu.vendor.test`."""
    problems = _longer_than(text, SUBDOMAIN_MAX, unit)
    if not _fits(_SUBDOMAIN_RE, text):
        problems.append(_with_pattern(_SUBDOMAIN_RULE, _SUBDOMAIN, "example.com"))
    return problems


def long_name(text: str) -> list[str]:
    """Check a DNS subdomain as declared rules do."""
    return dns_subdomain(text, "bytes")


def long_name_caseless(text: str) -> list[str]:
    """Check a DNS subdomain in which upper case counts as lower case."""
    problems = _longer_than(text, SUBDOMAIN_MAX, "bytes")
    if not _fits(_SUBDOMAIN_CASELESS_RE, text):
        problems.append(_with_pattern(_CASELESS_RULE, _SUBDOMAIN, "Example.com"))
    return problems


def dns_1035_label(text: str) -> list[str]:
    """Check a DNS label that starts with a letter."""
    problems = _longer_than(text, LABEL_MAX, "characters")
    if not _fits(_DNS_1035_RE, text):
        problems.append(_with_pattern(_DNS_1035_RULE, _DNS_1035, "my-name", "abc-123"))
    return problems


def label_key(text: str) -> list[str]:
    """Check the key of a label, annotation, taint or condition: `[domain/]name`."""
    return list(_label_key_problems(text))


@cache  # one text for all: a body may have 250,000 bad keys
def _bad_name_part() -> str:
    return f"name part {_with_pattern(_WORD_RULE, _WORD, 'MyName', 'my.name', '123-abc')}"


@cached_by_text(maxsize=4096, longest=320)  # there are far fewer keys than objects that carry them
def _label_key_problems(text: str) -> tuple[str, ...]:
    parts = text.split("/")
    if len(parts) > 2:
        rule = _with_pattern(_WORD_RULE, _WORD, "MyName", "my.name", "123-abc")
        return (
            f"a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
        )
    problems = []
    if len(parts) == 2:
        if not parts[0]:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {problem}" for problem in long_name(parts[0])]
    name = parts[-1]
    if not name:
        problems.append("name part must be non-empty")
    elif size(name) > LABEL_MAX:
        problems.append(f"name part must be no more than {LABEL_MAX} bytes")
    if not _fits(_WORD_RE, name):
        problems.append(_bad_name_part())
    return tuple(problems)


def label_value(text: str) -> list[str]:
    """Check the value of a label or taint; empty is fine."""
    problems = _longer_than(text, LABEL_MAX, "bytes")
    if text and not _fits(_WORD_RE, text):
        problems.append(_with_pattern(_LABEL_VALUE_RULE, f"({_WORD})?", "MyValue", "my_value", "12345"))
    return problems


def c_identifier(text: str) -> list[str]:
    """Check the part of an attribute name that follows the domain."""
    if _fits(_IDENTIFIER_RE, text):
        return []
    return [_with_pattern(_IDENTIFIER_RULE, _IDENTIFIER, "my_name", "MY_NAME", "MyName")]


def config_key(text: str) -> list[str]:
    """Check a key of ConfigMap or Secret data."""
    problems = _longer_than(text, SUBDOMAIN_MAX, "characters")
    if not _fits(_CONFIG_KEY_RE, text):
        problems.append(_with_pattern(_CONFIG_KEY_RULE, _CONFIG_KEY, "key.name", "KEY_NAME", "key-name"))
    if text in (".", ".."):
        problems.append(f"must not be '{text}'")
    elif text.startswith(".."):
        problems.append("must not start with '..'")
    return problems


def env_name(text: str) -> list[str]:
    """Check the name of an environment variable."""
    if not text:
        return ["environment variable name must be non-empty"]
    if all(" " <= letter <= "~" and letter != "=" for letter in text):
        return []
    return [
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
    ]


def condition_reason(text: str) -> list[str]:
    """Check the reason of a condition."""
    if _fits(_CONDITION_REASON_RE, text):
        return []
    examples = ("my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB")
    return [_with_pattern(_CONDITION_REASON_RULE, _CONDITION_REASON, *examples)]


def port_name(text: str) -> list[str]:
    """Check the name of a container port."""
    problems = _longer_than(text, 15, "characters")
    if not _fits(_PORT_NAME_RE, text):
        problems.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not any("a" <= letter <= "z" for letter in text):
        problems.append("must contain at least one letter (a-z)")
    if "--" in text:
        problems.append("must not contain consecutive hyphens")
    if text.startswith("-") or text.endswith("-"):
        problems.append("must not begin or end with a hyphen")
    return problems


def port_number(port: int) -> list[str]:
    """Check a TCP or UDP port."""
    return [] if 1 <= port <= 65535 else ["must be between 1 and 65535, inclusive"]


def percent(text: str) -> list[str]:
    """Check a percentage such as `25%`."""
    if _fits(_PERCENT_RE, text):
        return []
    rule = "a valid percent string must be a numeric string followed by an ending '%'"
    return [_with_pattern(rule, "[0-9]+%", "1%", "93%")]


def path_segment(text: str) -> list[str]:
    """Check a name that must survive as one segment of a URL."""
    if text in (".", ".."):
        return [f"may not be '{text}'"]
    return [f"may not contain '{letter}'" for letter in "/%" if letter in text]


def semantic_version(text: str) -> list[str]:
    """Check a version as semver.org 2.0.0 defines it."""
    if _fits(_SEMVER_RE, text):
        return []
    return ["must be a string compatible with semver.org spec 2.0.0"]


def uuid(text: str) -> list[str]:
    """Check a lower-case UUID."""
    return [] if _fits(_UUID_RE, text) else ["must be a lowercase UUID in 8-4-4-4-12 format"]


def interface_address(text: str) -> list[str]:
    """Check an address with its prefix length, in canonical form: `10.0.0.1/24`."""
    canonical = _canonical_interface(text)
    if canonical is None:
        return ["must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"]
    return [] if canonical == text else [f'must be in canonical form ("{canonical}")']


def _canonical_interface(text: str) -> str | None:
    address, slash, prefix = text.partition("/")
    if not slash or not prefix.isascii() or not prefix.isdigit():
        return None
    # Leading zeros are readable, though not canonical.
    if "." in address and ":" not in address:
        parts = address.split(".")
        if not all(part.isascii() and part.isdigit() for part in parts):
            return None
        address = ".".join(str(int(part)) for part in parts)
    try:
        interface = ipaddress.ip_interface(f"{address}/{int(prefix)}")
    except ValueError:
        return None
    mapped = interface.ip.ipv4_mapped if isinstance(interface.ip, ipaddress.IPv6Address) else None
    if mapped is not None:
        return f"{mapped}/{int(prefix) - 96}" if int(prefix) >= 96 else None
    return f"{interface.ip}/{int(prefix)}"


def ip_address(text: str) -> list[str]:
    """Check an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return ["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]
    return []


def with_trailing_dash_masked(text: str) -> str:
    """Return a name prefix as name checks shall see it: something will follow the dash."""
    return text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text
