"""Selector expressions about difficult texts: every function that reads a text, on each of them.

The random generator (random_expressions) draws most texts from a short list, so it seldom meets the corners of parsers:
numbers, times, zones, addresses, URLs, versions, patterns and formats that are nearly right. `tools/recorders/compare.py
texts` compares all of these expressions with cel-go.
"""

from __future__ import annotations

import random

# As they stand between the quotes of an expression.
TEXTS = (
    "", "a", "A b", "aXbX", "ab,ba,", "äÖ", "日本語", "\\U0001F431x", "\\u0000", "\\u00ad", "İß", "\\n\\t",
    "%s", "%d %x", "1.5", "-0", "+1", "1e3", "0x1F", "NaN", "Infinity", "-inf", "1_0", " 1", "1 ", "true",
    "T", "t", "FALSE", "tRue", "1h", "1.5h", "-1m30s", ".5s", "1d", "1us", "1µs", "9223372036854775808ns",
    "2562047h47m16.854775807s", "2562047h48m", "2024-02-30T00:00:00Z", "2024-02-29T23:59:60Z",
    "0000-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "10000-01-01T00:00:00Z",
    "2024-01-01T00:00:00+24:00", "2024-01-01t00:00:00z", "2024-01-01 00:00:00Z", "2024-1-1T0:0:0Z",
    "2024-01-01T00:00:00.1234567891Z", "2024-01-01T00:00:00,5Z", "1Ki", "1k", "1K", "1Mi1", "1e", "1E",
    "1E3", "1e-3", "-1", "0.0001", "1n", "1u", "0.1n", "1.1.1", "1Ei", "9Ei", "10Ei",
    "99999999999999999999", "1e30", "1.2.3", "v1.2.3", "1.2", "1.2.3-", "1.2.3+", "1.2.3-a.01", "1.2.3-0a",
    "1.2.3+b.01", "1.2.3.4", "-1.2.3", "1.-2.3", "18446744073709551616.0.0", "::", "::1", "1::",
    "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::ffff:1.2.3.4", "1.2.3.256", "01.2.3.4", "fe80::1%a",
    "10.0.0.0/8", "10.0.0.1/8", "::/0", "::1/129", "0.0.0.0/00", "1.2.3.4/+1", "http://h",
    "http://h:1/p?q=1&q=2&r#f", "HTTP://H/%41", "/a/b?c", "//h/p", "h", "?a", "#f", "http://h/ä b",
    "http://h/a%2fb", "mailto:x", "http://h?a=%zz&b=1;c=2", "http://h?=1&&a", "http://u:p@h:1/", "(", "a|b",
    "[a", "a{1001}", "a**", "(?i)a", "\\\\d+", "\\\\pL", "(?P<n>a)", "(?<n>a)", "\\\\C", "^", "$", "\\\\Z",
    "\\\\z", "(a)(b)", "[[:alpha:]]", "\\\\p{Greek}", "(?=a)", "\\\\1", "x{2,1}", "a{,2}", "[^]", "[]a]",
    "[z-a]", "\\\\Qa.b\\\\E", "(?s).", "\\\\x{1F431}", "UTC", "Local", "Europe/Berlin", "europe/berlin",
    "EST", "+01:00", "-1:30", "25:00", "01:60", "aW", "YWI=", "YWI", "Y W I=", "_-==", "%", "%z",
    "%.2f|%e|%5d", "%s%s", "%%", "%b %o %X %t",
)  # fmt: skip

# {0} is a quoted text; what they are compared with only makes a bool of them.
ABOUT_ONE = (
    *(f"string({name}({{0}})) == ''" for name in ("int", "uint", "double", "bool", "duration", "timestamp", "bytes", "ip", "cidr")),
    *(f"{name}(dyn({{0}})) == {name}(1)" for name in ("int", "uint", "double", "bool")),
    *(f"{name}({{0}})" for name in ("isIP", "isCIDR", "isURL", "isQuantity", "isSemver", "ip.isCanonical")),
    *(f"{name}({{0}}) == {name}({{0}})" for name in ("quantity", "semver", "url", "size", "type")),
    "base64.encode(bytes({0})) == ''", "base64.decode({0}) == b'a'", "isSemver({0}, true)", "semver({0}, true) == semver('1.2.3')",
    "{0}.lowerAscii() == {0}.upperAscii()", "{0}.reverse() == {0}", "strings.quote({0}) == ''", "{0}.trim() == ''", "{0}.charAt(1) == ''",
    "{0}.substring(1) == ''", "{0}.substring(0, 2) == ''", "{0}.split('') == []", "{0}.split('', 2) == []", "[{0}, {0}].join({0}) == ''",
    "{0}.format([1]) == ''", "{0}.format([1, 'a']) == ''", "{0}.format([1.5]) == ''", "{0}.format(['x', b'y']) == ''", "{0}.format([[1, {'a': 1.0}], true]) == ''",
    "timestamp('2024-03-31T01:30:00Z').getHours({0}) == 1", "timestamp('2024-03-31T01:30:00.123Z').getDayOfWeek({0}) == 1",
    "timestamp('9999-12-31T23:30:00Z').getFullYear({0}) == 1", "timestamp('0001-01-01T00:30:00Z').getDayOfYear({0}) == 1",
    "quantity({0}).isInteger()", "quantity({0}).asApproximateFloat() == 1.0", "quantity({0}).asInteger() == 1", "quantity({0}).sign() == 1",
    "quantity({0}).compareTo(quantity('1')) == 1", "quantity({0}).add(quantity('1Gi')) == quantity('1')", "quantity({0}).sub(1) == quantity('1')",
    "url({0}).getHost() == ''", "url({0}).getHostname() == ''", "url({0}).getPort() == ''", "url({0}).getScheme() == ''", "url({0}).getEscapedPath() == ''",
    "url({0}).getQuery() == {}", "cidr({0}).containsIP('10.0.0.1')", "cidr({0}).containsCIDR('10.0.0.0/24')", "cidr({0}).ip().family() == 4",
    "cidr({0}).prefixLength() == 8", "cidr({0}).masked() == cidr({0})", "ip({0}).family() == 4", "ip({0}).isGlobalUnicast() || ip({0}).isLoopback()",
    "ip({0}).isUnspecified() || ip({0}).isLinkLocalMulticast() || ip({0}).isLinkLocalUnicast()", "duration({0}).getMilliseconds() == 1",
    "duration({0}).getHours() == 1", "duration({0}) + duration('1h') > duration('0s')", "timestamp({0}) + duration('1h') > timestamp(0)",
    "timestamp({0}) - timestamp(0) > duration('1s')", "int(timestamp({0})) == 1", "timestamp({0}).getFullYear() == 1", "{0}.matches('a')",
    "'aab ab'.matches({0})", "'aab äb'.matches(dyn({0}))", "'aab äb'.find({0}) == ''", "'aab äb'.findAll({0}) == []", "'aab äb'.findAll({0}, 1) == []",
    "'aab äb'.findAll(string({0})).size() == 2", "{0} < 'b'", "{0} in {'a': 1}", "b{0}.size() == 2", "string(b{0}) == 'a'", "b{0} < b'b'",
    *(f"format.{name}().validate({{0}}).orValue(['']) == ['']" for name in ("dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName",
      "dns1123LabelPrefix", "uri", "uuid", "byte", "date", "datetime", "labelValue")),
)  # fmt: skip
ABOUT_TWO = (
    "{0}.indexOf({1}) == 1", "{0}.lastIndexOf({1}) == 1", "{0}.replace({1}, 'x') == ''", "{0}.replace({1}, 'xx', 1) == ''", "{0}.split({1}) == []",
    "{0}.split({1}, 2) == []", "{0}.startsWith({1}) || {0}.endsWith({1})", "{0}.contains({1})", "{0}.indexOf({1}, 1) == 1", "{0}.lastIndexOf({1}, 1) == 1",
    "{0}.findAll({1}) == []", "{0}.matches({1})", "{0} < {1}", "{0} + {1} == ''", "[{0}, {1}].sort() == []", "[{0}, {1}].max() == ''",
)  # fmt: skip
N_PAIRS = 1_500


def text_expressions() -> list[str]:
    """Return all of them, in an order that is always the same."""
    made = [_filled(template, text, "") for text in TEXTS for template in ABOUT_ONE]
    chance = random.Random(0)
    for _ in range(N_PAIRS):
        one, other = chance.choice(TEXTS), chance.choice(TEXTS)
        made += [_filled(template, one, other) for template in chance.sample(ABOUT_TWO, 5)]
    return made


def _filled(template: str, one: str, other: str) -> str:
    return template.replace("{0}", f'"{one}"').replace("{1}", f'"{other}"')
