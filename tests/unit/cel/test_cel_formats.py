"""Named formats: what each takes, what it refuses, and how the refusal reads."""

import pytest

from dray.cel.formats import pattern_size, validate

GOOD = {
    "dns1123Label": ["a", "my-name", "123-abc", "a" * 63],
    "dns1123LabelPrefix": ["my-", "a"],
    "dns1123Subdomain": ["example.com", "a", "a.b-c.d"],
    "dns1123SubdomainPrefix": ["example.com-"],
    "dns1035Label": ["my-name", "abc-123"],
    "dns1035LabelPrefix": ["abc-"],
    "qualifiedName": ["MyName", "example.com/my.name_1", "123-abc"],
    "labelValue": ["", "MyValue", "a_b.c-1", "x" * 63],
    "uri": ["https://example.com/a?b#c", "/a"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000"],
    "byte": ["aGVsbG8=", "aGVs\nbG8="],
    "date": ["2024-02-29", "1970-01-01"],
    "datetime": ["2024-02-29T12:00:00Z", "2024-02-29t12:00:00.123+01:00"],
}
BAD = {
    "dns1123Label": ["", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "é"],
    "dns1123LabelPrefix": ["-", "AB-"],
    "dns1123Subdomain": ["", "a..b", ".a", "a.", "A.b", "a" * 254],
    "dns1123SubdomainPrefix": [".a-"],
    "dns1035Label": ["", "1abc", "Abc"],
    "dns1035LabelPrefix": ["1b-"],
    "qualifiedName": ["", "/a", "a/b/c", "A.com/x", "-a", "x" * 64, "a/"],
    "labelValue": ["-a", "a b", "x" * 64],
    "uri": ["", "a/b", "https://a/%zz"],
    "uuid": ["", "123e4567-e89b-12d3-a456-42661417400", "g23e4567-e89b-12d3-a456-426614174000"],
    "byte": ["", "a", "!!!!"],
    "date": ["", "2023-02-29", "2024-2-9", "2024-01-01T00:00:00Z", "２０２４-01-01"],
    "datetime": ["2024-02-29", "2023-02-29T12:00:00Z", "2024-02-29T24:00:00Z", "2024-02-29T12:00:00"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in GOOD.items() for text in texts])
def test_what_a_format_takes(name, text):
    assert validate(name, text) == []


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BAD.items() for text in texts])
def test_what_a_format_refuses(name, text):
    assert validate(name, text) != []


def test_all_formats_are_here_and_have_a_cost():
    assert GOOD.keys() == BAD.keys()
    assert all(pattern_size(name) > 0 for name in GOOD)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "dns1123Label",
            "A",
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
            "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
            "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        ),
        ("dns1123Label", "a" * 64, "must be no more than 63 characters"),
        ("qualifiedName", "/a", "prefix part must be non-empty"),
        ("qualifiedName", "a/", "name part must be non-empty"),
        ("uuid", "x", "does not match the UUID format"),
        ("byte", "a", "invalid base64"),
    ],
)
def test_refusals_read_as_those_of_kubernetes(name, text, problem):
    assert validate(name, text)[0] == problem
