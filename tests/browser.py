"""A real browser for tests: Debian's chromium, driven over its debugging protocol."""

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import tempfile
from pathlib import Path

import aiohttp
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--ignore-certificate-errors", "--remote-debugging-port=0",
    "--window-size=1400,1000", "--hide-scrollbars",
)  # fmt: skip


def need_browser():
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have chromium: .ci/run installs it")
        pytest.skip("chromium is not installed (apt-get install chromium)")


class Page:
    """One tab."""

    def __init__(self, socket):
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting = {}
        self.console = []  # errors and warnings that the page wrote, and refused loads
        self._reading = asyncio.create_task(self._read())

    async def _read(self):
        async for message in self._socket:
            data = message.json()
            if "id" in data:
                self._waiting.pop(data["id"]).set_result(data)
            elif data.get("method") == "Runtime.exceptionThrown":
                self.console.append(data["params"]["exceptionDetails"].get("text", "exception"))
            elif data.get("method") == "Log.entryAdded" and data["params"]["entry"]["level"] == "error":
                self.console.append(data["params"]["entry"]["text"])

    async def call(self, method, **params):
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        data = await asyncio.wait_for(answer, 60)
        if "error" in data:
            raise RuntimeError(f"{method}: {data['error']}")
        return data["result"]

    async def open(self, url):
        await self.call("Page.navigate", url=url)

    async def run(self, script):
        """Evaluate JavaScript and return its value."""
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(
                result["exceptionDetails"]["exception"].get("description", "JavaScript failed")
            )
        return result["result"].get("value")

    async def until(self, script, seconds=60):
        """Wait until a script is truthy; return its value."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            with contextlib.suppress(RuntimeError):
                value = await self.run(script)
                if value:
                    return value
            if asyncio.get_running_loop().time() > deadline:
                text = await self.run("document.body.innerText")
                raise AssertionError(
                    f"never true: {script}\npage says: {text[:600]}\nconsole: {self.console}"
                )
            await asyncio.sleep(0.1)

    async def key(self, key, text=None):
        codes = {"Escape": 27, "Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}
        code = codes.get(key, ord(key.upper()) if len(key) == 1 else 0)
        fields = {
            "key": key,
            "windowsVirtualKeyCode": code,
            "code": key if len(key) > 1 else f"Key{key.upper()}",
        }
        if text or len(key) == 1:
            fields["text"] = text or key
        await self.call("Input.dispatchKeyEvent", type="keyDown", **fields)
        fields.pop("text", None)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    async def picture(self, path):
        data = await self.call("Page.captureScreenshot", format="png")
        Path(path).write_bytes(base64.b64decode(data["data"]))


async def _tabs(session, port):
    """The port is there before the first tab is."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    found = [tab for tab in await answer.json() if tab["type"] == "page"]
                if found:
                    return found
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def browser_page():
    """Start chromium and open a tab."""
    need_browser()
    with tempfile.TemporaryDirectory(prefix="dray-chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port_file = Path(profile) / "DevToolsActivePort"
            for _ in range(600):
                if port_file.exists() and port_file.read_text().strip():
                    break
                await asyncio.sleep(0.1)
            port = port_file.read_text().split()[0]
            async with aiohttp.ClientSession() as session:
                tabs = await _tabs(session, port)
                async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await page.call(f"{domain}.enable")
                    yield page
                    page._reading.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()
