"""The dashboard of a shared machine in a real browser: a person sees their own jobs, their output, and who holds what."""

import json

import pytest
from browser import browser_page
from shared_system import Machine, gpu_job, pods_of
from unix_users import root_only, unix_users

pytestmark = [pytest.mark.root, pytest.mark.browser, root_only]


@pytest.fixture(scope="module")
def people():
    with unix_users("ann", "bob") as users:
        yield users


@pytest.fixture(scope="module")
def machine(tmp_path_factory, people):
    made = Machine(tmp_path_factory.mktemp("dashboard"))
    yield made
    made.stop()


async def go(page, address):
    await page.run(f"location.hash = {json.dumps(address)}")


async def test_a_person_sees_their_own_jobs_and_who_holds_what(machine, people):
    ann, bob = people
    gpu_job(machine, ann, "train", "while :; do echo step; sleep 0.5; done", 2)
    gpu_job(machine, bob, "secret-plan", "echo hidden; sleep 600", 4)
    for person, name in ((ann, "train"), (bob, "secret-plan")):
        machine.eventually(
            lambda person=person, name=name: machine.phase(person, name) == "Running", 120, name
        )
    gpu_job(machine, ann, "waits", count=3)
    status, link = machine.ask(ann, "POST", "/dray/v1/dashboard")
    assert status == 201, link
    async with browser_page() as page:
        await page.open(link["url"])
        # Six devices are held: two by ann's own claim, four by bob, whose claims cannot be seen.
        await page.until("document.querySelectorAll('.device.held').length === 6")
        assert await page.run("location.hash") == "#/map"  # the code left the address
        assert await page.run("document.getElementById('me').textContent") == ann.pw_name
        labels = await page.run("[...document.querySelectorAll('.device.held')].map(d => d.ariaLabel)")
        assert sum(label.endswith(f"held by gpu-{label[4]}: user-{bob.pw_name}") for label in labels) == 4
        legend = await page.run("document.querySelector('.legend').innerText")
        assert f"user-{bob.pw_name} (4)" in legend
        assert f"user-{ann.pw_name}/train (2)" in legend

        # A deep link opens the details, with the output of one's own job while it is written.
        await go(page, f"#/pods?show=pod:user-{ann.pw_name}/train")
        await page.until("document.querySelector('.log')?.textContent.includes('step')")
        before = await page.run("document.querySelector('.log').textContent.length")
        await page.until(f"document.querySelector('.log').textContent.length > {before}")
        rows = await page.run("[...document.querySelectorAll('tbody tr')].map(row => row.dataset.key)")
        assert sorted(rows) == [f"user-{ann.pw_name}/train", f"user-{ann.pw_name}/waits"]
        await page.key("Escape")
        await page.until("document.getElementById('detail').hidden && !location.hash.includes('show')")
        await go(page, f"#/pods?show=pod:user-{ann.pw_name}/waits")
        await page.until("document.getElementById('detail').innerText.includes('1 of 1')")
        await go(page, f"#/pods?show=pod:user-{bob.pw_name}/secret-plan")
        await page.until("document.getElementById('detail').innerText.includes('gone')")

        # Who uses how much, and who held what.
        await go(page, "#/users")
        held = (
            "[...document.querySelectorAll('tbody tr')].map(row => [row.dataset.key, row.cells[1].innerText])"
        )
        await page.until(
            "document.querySelector('h2')?.textContent === 'Users' && document.querySelectorAll('tbody tr').length === 2"
        )
        assert dict(await page.run(held)) == {f"user-{ann.pw_name}": "2", f"user-{bob.pw_name}": "4"}
        await go(page, "#/history?range=hour")
        await page.until("document.querySelectorAll('.history li').length === 6", 90)
        await go(page, f"#/history?range=hour&user=user-{bob.pw_name}")
        await page.until("document.querySelectorAll('.history li').length === 4")

        # Nothing of the others, and no wider than a phone.
        assert "secret-plan" not in await page.run("document.documentElement.outerHTML")
        await page.call(
            "Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True
        )
        for view in ("map", "users", "history"):
            await go(page, f"#/{view}")
            await page.until(f"document.querySelector('nav a[aria-current]').dataset.view === '{view}'")
            assert await page.run("document.documentElement.scrollWidth") <= 390, view

        # The link was good once; the session goes on with a reload.
        await page.run("location.reload()")
        await page.until("document.querySelectorAll('.history li, .device').length > 0")
    async with browser_page() as page:
        await page.open(link["url"])
        await page.until("document.getElementById('login-error').textContent.includes('used before')")
    assert machine.ask(ann, "DELETE", f"{pods_of(ann)}/waits?gracePeriodSeconds=0")[0] == 200
