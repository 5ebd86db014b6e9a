"""The dashboard's files: served to all, with a strict policy, and nothing else."""

import pytest

from dray.server import dashboard


@pytest.mark.parametrize(
    "name",
    [
        "",
        "index.html",
        "app.js",
        "api.js",
        "details.js",
        "dom.js",
        "model.js",
        "page.js",
        "people.js",
        "session.js",
        "style.css",
        "icon.svg",
    ],
)
def test_every_file_of_the_page_is_served_with_the_policy(name):
    response = dashboard.respond("GET", f"/dashboard/{name}")
    headers = dict(response.headers)
    assert response.status == 200
    assert response.body
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/dashboard/../server.py", "/dashboard/__init__.py", "/dashboard/a/b.js", "/dashboard/none.js"]
)
def test_nothing_else_is_served(path):
    assert dashboard.respond("GET", path).status == 404


def test_other_paths_are_not_the_dashboards():
    assert dashboard.respond("GET", "/api/v1/pods") is None
    assert dashboard.respond("GET", "/dashboards") is None


def test_only_reading_is_possible():
    assert dashboard.respond("POST", "/dashboard/").status == 405


def test_an_unchanged_file_is_not_sent_again():
    tag = dict(dashboard.respond("GET", "/dashboard/app.js").headers)["etag"]
    assert dashboard.respond("GET", "/dashboard/app.js", tag).status == 304


def test_no_page_sets_markup_or_loads_from_elsewhere():
    for name in (
        "app.js",
        "api.js",
        "details.js",
        "dom.js",
        "model.js",
        "page.js",
        "people.js",
        "session.js",
        "index.html",
        "style.css",
    ):
        content = dashboard.respond("GET", f"/dashboard/{name}").body.decode()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "http://",
            "https://",
        ):
            assert forbidden not in content.replace("http://www.w3.org/2000/svg", ""), (
                f"{forbidden} in {name}"
            )
