"""The dashboard in a real browser: what it shows, that it is live, that names cannot inject, that it has no back door."""

import asyncio
import os
from pathlib import Path

import pytest
from browser import browser_page, need_browser

from dray.client import Client
from dray.client.resources import CLAIMS, NAMESPACES, NODES, PODS, SLICES
from dray.drivers.hardware import load_profile
from dray.local.demo_scenes import claim, pod, request
from dray.local.system import Plan, System

pytestmark = pytest.mark.browser


@pytest.fixture
async def system(tmp_path):
    need_browser()
    running = System(
        Plan(
            tmp_path / "data",
            port=0,
            simulated=[(load_profile("dgx-a100-mig"), 1), (load_profile("l40s-shared"), 1)],
        )
    )
    await running.start()
    yield running
    await running.stop()


async def run_pods(client):
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}})
    profile = "device.attributes['gpu.nvidia.com'].profile == '3g.20gb'"
    for name, wanted in (
        ("slice", request("g", "mig.nvidia.com", where=profile)),
        (
            "share",
            request(
                "g",
                "gpu.nvidia.com",
                where="device.allowMultipleAllocations",
                capacity={"requests": {"memory": "12Gi"}},
            ),
        ),
        (
            "never",
            request(
                "g", "gpu.nvidia.com", where="device.attributes['gpu.nvidia.com'].productName == 'H9000'"
            ),
        ),
    ):
        await client.create(CLAIMS, claim(name, [wanted]), "demo")
        await client.create(PODS, pod(name, [name]), "demo")


async def test_the_dashboard_shows_the_cluster_lives_and_keeps_to_itself(system, tmp_path):
    pictures = Path(os.environ.get("DRAY_PICTURES", tmp_path))
    async with Client.connect(system.plan.kubeconfig) as client, browser_page() as page:
        await page.open(system.dashboard_url)
        await page.until("document.querySelectorAll('.device').length >= 20")
        assert await page.run("location.hash") == "#/map"  # the token left the address bar

        # Live: pods that are made now appear without a reload.
        await run_pods(client)
        await page.until("document.querySelectorAll('.device.held').length >= 2")
        label = await page.until(
            "[...document.querySelectorAll('.device.held')].map(d => d.textContent).find(t => t.includes('3g.20gb'))"
        )
        assert label
        share = await page.until(
            "document.querySelector('.device.held[aria-label*=\"demo/share\"] rect').getAttribute('width')"
        )
        assert 20 < float(share) < 30  # 12 of 45 GiB, to scale
        await page.picture(pictures / "map.png")

        # Why a pod waits is on the page.
        await page.run("location.hash = '#/pods'")
        await page.until("document.body.innerText.includes('H9000')")
        await page.key("/")
        await page.run(
            "(() => { const f = document.getElementById('filter'); f.value = 'never'; f.dispatchEvent(new Event('input')); })()"
        )
        await page.until("document.querySelectorAll('tbody tr').length === 1")

        # Keyboard: a row opens with Enter, Escape closes and gives the focus back.
        await page.run("document.querySelector('tbody tr').focus()")
        await page.key("Enter", text="\r")
        await page.until(
            "!document.getElementById('detail').hidden && document.getElementById('detail').innerText.includes('Why it waits')"
        )
        await page.key("Escape")
        await page.until(
            "document.getElementById('detail').hidden && document.activeElement.tagName === 'TR'"
        )

        # An attribute that looks like markup stays text.
        evil = "<img src=x onerror=document.title='owned'>"
        spec = {
            "driver": "evil.example.com", "allNodes": True, "pool": {"name": "evil", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "evil-0", "attributes": {"productName": {"string": evil}}}],
        }  # fmt: skip
        slice_object = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "evil"},
            "spec": spec,
        }
        await client.create(SLICES, slice_object)
        await page.run(
            "(() => { const f = document.getElementById('filter'); f.value = ''; f.dispatchEvent(new Event('input')); location.hash = '#/map'; })()"
        )
        await page.until("[...document.querySelectorAll('.device')].some(d => d.title.includes('onerror'))")
        await page.run(
            "[...document.querySelectorAll('.device')].find(d => d.title.includes('onerror')).click()"
        )
        await page.until("document.getElementById('detail').innerText.includes('onerror')")
        assert await page.run("document.querySelectorAll('main img, aside img').length") == 0
        assert await page.run("document.title") == "dray"

        # Inline scripts are forbidden, and nothing came from elsewhere.
        await page.run(
            "(() => { const s = document.createElement('script'); s.textContent = \"document.title='owned'\"; document.body.append(s); })()"
        )
        await asyncio.sleep(0.2)
        assert await page.run("document.title") == "dray"
        outside = await page.run(
            "performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin))"
        )
        assert outside == []
        await page.run("document.documentElement.dataset.theme = 'dark'")
        await page.picture(pictures / "map-dark.png")


async def test_a_wrong_token_is_refused_with_words(system):
    async with browser_page() as page:
        await page.open(system.dashboard_url.partition("#")[0] + "#token=wrong")
        words = await page.until(
            "document.getElementById('login').open && document.getElementById('login-error').textContent"
        )
        assert "does not know this token" in words
        assert await page.run("document.querySelectorAll('.device').length") == 0


async def many_nodes(client, count):
    """Make nodes with eight devices each, which no agent stands behind."""
    for number in range(count):
        name = f"machine-{number:03}"
        labels = {"cloud.google.com/gke-nodepool": "large" if number % 3 else "little"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        devices = [{"name": f"gpu-{index}", "attributes": {"model": {"string": "M1"}}} for index in range(8)]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "many.example.com", "nodeName": name, "pool": pool, "devices": devices}
        await client.create(NODES, node)
        await client.create(
            SLICES,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": name},
                "spec": spec,
            },
        )


ELEMENTS = "document.querySelectorAll('*').length"


async def test_a_system_that_does_not_fit_is_shown_as_groups_that_open(system, tmp_path):
    pictures = Path(os.environ.get("DRAY_PICTURES", tmp_path))
    async with Client.connect(system.plan.kubeconfig) as client, browser_page() as page:
        await many_nodes(client, 180)
        await page.open(system.dashboard_url)
        row = "[...document.querySelectorAll('a.zoom')].find(a => a.textContent.includes('large'))"
        await page.until(
            f"{row}?.textContent.includes('120 nodes') && {row}.textContent.includes('960 free')"
        )
        assert await page.run(ELEMENTS) <= 2000
        assert await page.run("document.querySelectorAll('.device').length") == 0
        assert await page.run("document.querySelectorAll('.legend li').length") == 4
        await page.picture(pictures / "groups.png")

        # The keyboard opens a group, whose nodes come in pages; the address says where one is.
        await page.run(f"{row}.focus()")
        await page.key("Enter", text="\r")
        await page.until("document.activeElement.id === 'place'")
        await page.until("document.querySelectorAll('a.zoom').length === 100")
        assert "group=large" in await page.run("location.hash")
        assert await page.run(ELEMENTS) <= 2000
        await page.run("document.querySelector('.pages a:last-child').click()")
        await page.until("document.querySelectorAll('a.zoom').length === 20")
        await page.picture(pictures / "group.png")

        # A change comes in without taking the focus or the place away.
        last = "[...document.querySelectorAll('a.zoom')].find(a => a.textContent.includes('machine-179'))"
        await page.run(f"{last}.focus(); {last}.marked = true")
        found = await client.get(SLICES, "machine-179")
        taint = {"key": "example.com/broken", "value": "yes", "effect": "NoSchedule"}
        found["spec"]["devices"][0]["taints"] = [taint]
        await client.update(SLICES, "machine-179", found)
        await page.until(f"{last}.textContent.includes('1 tainted')")
        assert await page.run(f"{last}.marked && document.activeElement === {last}")

        # A node opens to its devices, also from its address alone; Escape leads back to its row.
        await page.run(f"{last}.click()")
        await page.until("document.querySelectorAll('.device').length === 8")
        await page.call("Page.reload")
        await page.until("document.querySelectorAll('.device.tainted').length === 1")
        assert "node=machine-179" in await page.run("location.hash")
        await page.key("Escape")
        await page.until(
            f"document.querySelectorAll('a.zoom').length === 20 && document.activeElement === {last}"
        )
        assert page.console == []
