"""Functions that Kubernetes adds: quantities, versions, addresses, URLs, formats."""

import pytest
from cel_builders import error_of, value_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("quantity('1Gi') == quantity('1024Mi')", True),
        ("quantity('2Gi').isInteger()", True),
        ("quantity('1.5Gi').isInteger()", False),  # upstream keeps it as a decimal number
        ("quantity('100m').isInteger()", False),
        ("quantity('2k').asInteger()", 2000),
        ("quantity('1500m').asApproximateFloat()", 1.5),
        ("sign(quantity('-1')) + sign(quantity('0')) * 10 + sign(quantity('1')) * 100", 99),
        ("quantity('1Gi').isGreaterThan(quantity('1G'))", True),
        ("quantity('1Gi').isLessThan(quantity('1G'))", False),
        ("quantity('1').compareTo(quantity('1000m'))", 0),
        ("quantity('1').add(quantity('500m')) == quantity('1500m')", True),
        ("quantity('1').add(2).asInteger()", 3),
        ("quantity('1').sub(quantity('3')).asInteger()", -2),
        ("isQuantity('1.3Zi') && !isQuantity('1.3ZiB') && !isQuantity('')", False),  # there is no Zi
        ("isQuantity('1.3Ei')", True),
        ("semver('1.2.3').isLessThan(semver('1.10.0'))", True),
        ("semver('1.2.3-alpha.2').compareTo(semver('1.2.3-alpha.10'))", -1),
        ("semver('1.2.3').compareTo(semver('1.2.3-rc.1'))", 1),
        ("semver('1.2.3+b').compareTo(semver('1.2.3+a'))", 0),  # builds do not count
        ("semver('4.5.6').major() * 100 + semver('4.5.6').minor() * 10 + semver('4.5.6').patch()", 456),
        ("isSemver('1.2') || isSemver('v1.2.3') || isSemver('01.2.3')", False),
        ("isSemver('v1.2', true) && isSemver('01.02.03', true)", True),
        ("semver('v1.2', true).minor()", 2),
        ("ip('192.168.0.1').family() + ip('::1').family()", 10),
        ("ip('127.0.0.1').isLoopback() && ip('::1').isLoopback()", True),
        ("ip('0.0.0.0').isUnspecified() && ip('::').isUnspecified()", True),
        ("ip('224.0.0.1').isLinkLocalMulticast()", True),
        ("ip('224.0.1.1').isLinkLocalMulticast()", False),
        ("ip('ff02::1').isLinkLocalMulticast() && ip('ff12::1').isLinkLocalMulticast()", True),
        ("ip('ff05::1').isLinkLocalMulticast()", False),  # of the site
        ("cidr('10.0.0.0/8').containsCIDR('10.0.0.0/8')", True),
        ("ip('169.254.1.1').isLinkLocalUnicast() && ip('fe80::1').isLinkLocalUnicast()", True),
        ("ip('10.0.0.1').isGlobalUnicast()", True),  # private ones are
        ("ip('255.255.255.255').isGlobalUnicast()", False),
        ("ip.isCanonical('2001:db8::abcd') && !ip.isCanonical('2001:DB8::ABCD')", True),
        ("string(ip('2001:DB8:0:0:0:0:0:1'))", "2001:db8::1"),
        ("isIP('1.2.3.4') && !isIP('1.2.3.04') && !isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0')", True),
        ("cidr('192.168.0.0/24').containsIP('192.168.0.255')", True),
        ("cidr('192.168.0.0/24').containsIP(ip('192.168.1.0'))", False),
        ("cidr('192.168.0.0/24').containsIP('::1')", False),
        ("cidr('192.168.0.0/24').containsCIDR('192.168.0.128/25')", True),
        ("cidr('192.168.0.0/24').containsCIDR(cidr('192.168.0.0/23'))", False),
        ("cidr('192.168.0.7/24').masked() == cidr('192.168.0.0/24')", True),
        ("cidr('192.168.0.7/24').prefixLength()", 24),
        ("cidr('192.168.0.7/24').ip() == ip('192.168.0.7')", True),
        (
            "isCIDR('10.0.0.0/8') && !isCIDR('10.0.0.0/33') && !isCIDR('10.0.0.0') && !isCIDR('10.0.0.0/08')",
            True,
        ),
        ("url('https://user@Example.com:80/a%20b?x=1&x=2&y').getHost()", "Example.com:80"),
        ("url('https://user@Example.com:80/a%20b').getHostname()", "Example.com"),
        ("url('https://[::1]:80/').getHostname()", "::1"),
        ("url('https://[::1]:80/').getPort()", "80"),
        ("url('HTTPS://a/').getScheme()", "https"),
        ("url('https://a/b c').getEscapedPath()", "/b%20c"),
        ("url('https://a/?x=1&x=2&y').getQuery()", {"x": ["1", "2"], "y": [""]}),
        ("url('/only/a/path').getScheme()", ""),
        ("isURL('https://a.b/c') && isURL('/a') && !isURL('a/b') && !isURL('') && !isURL(':80')", True),
        ("format.dns1123Label().validate('my-name').hasValue()", False),
        ("format.dns1123Label().validate('My-name').hasValue()", True),
        ("format.named('dns1123Label').hasValue() && !format.named('nope').hasValue()", True),
    ],
)
def test_results(text, value):
    found = value_of(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quantity('1500m').asInteger()", "cannot convert value to integer"),
        ("['10.0.0.1%x'].map(t, ip(t))[0].family()", 'IP Address "10.0.0.1%x" parse error'),
        (
            "['::ffff:1.2.3.4'].map(t, ip(t))[0].family()",
            'IPv4-mapped IPv6 address "::ffff:1.2.3.4" is not allowed',
        ),
        ("['a/b'].map(t, url(t))[0].getHost()", 'URL parse error during conversion from string: parse "a/b"'),
        ("['1.2'].map(t, semver(t))[0].major()", "No Major.Minor.Patch elements found"),
        ("[0].map(n, cidr('1.2.3.0/24').containsIP('x' + string(n)))[0]", "no such overload"),
    ],
)
def test_failures(text, message):
    assert message in error_of(text)
