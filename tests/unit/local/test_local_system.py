"""What `dray up` prepares before its processes start."""

import stat

from dray.local.system import Plan, System


def test_the_token_of_the_dashboards_link_is_short_private_and_new_with_every_start(tmp_path):
    first, second = (System(Plan(tmp_path)) for _ in range(2))
    texts = []
    for system in (first, second):
        path = system._write_dashboard_token()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        texts.append(path.read_text())
    token, user = texts[0].split(",")[:2]
    assert len(token) == 22
    assert user == "dray:dashboard-link"
    assert texts[0] != texts[1]
