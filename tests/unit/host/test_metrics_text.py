import doctest

from dray.host import metrics_text
from dray.host.metrics_text import family


def test_the_example_holds():
    assert doctest.testmod(metrics_text).failed == 0


def test_label_values_are_escaped():
    assert r'x{name="a\"b\\c\nd"} 1' in "".join(family("x", "gauge", "X.", [({"name": 'a"b\\c\nd'}, 1)]))


def test_a_single_value_has_no_labels():
    assert "".join(family("x", "counter", "X.", 2.5)) == "# HELP x X.\n# TYPE x counter\nx 2.5\n"
