"""Commands on a terminal: what is shown, typed and resized, and how they end."""

import asyncio
import os
import signal

from dray.node.runtime.terminal import start_on_terminal

ENV = {"PATH": os.environ["PATH"]}
OWNER = (os.geteuid(), os.getegid())


async def output_of(process):
    shown = b""
    while piece := await process.read():
        shown += piece
    return shown.replace(b"\r\n", b"\n").decode()


def run(script, *actions):
    """Return the exit code and what was shown; `actions` are called with the process when it says `ready`."""

    async def work():
        process = await start_on_terminal(["sh", "-c", script], env=ENV, cwd="/", owner=OWNER)
        shown = b""
        if actions:
            while b"ready" not in shown:
                shown += await process.read()
        for action in actions:
            result = action(process)
            if result is not None:
                await result
        reading = asyncio.create_task(output_of(process))
        code = await process.wait()
        try:
            return code, shown.decode() + await reading
        finally:
            process.close()

    return asyncio.run(asyncio.wait_for(work(), 60))


def test_the_command_has_a_terminal_that_controls_it():
    code, shown = run('tty; [ -t 0 ] && [ -t 2 ] && : </dev/tty && echo "$(pwd)"; exit 7')
    assert code == 7
    assert shown.startswith("/dev/pts/")
    assert shown.endswith("\n/\n")


def test_the_size_is_that_of_the_caller_and_nonsense_is_ignored():
    code, shown = run(
        "echo ready; read x; stty size",
        lambda process: process.resize(99, 33),
        lambda process: process.resize(-1, 10**9),
        lambda process: process.write(b"go\n"),
    )
    assert code == 0
    assert "33 99" in shown


def test_ctrl_c_interrupts_the_command():
    # Started in the background of a shell, a process ignores SIGINT, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code, shown = run(
        "trap 'echo INT; exit 3' INT; echo ready; while :; do sleep 0.05; done", lambda p: p.write(b"\x03")
    )
    assert code == 3
    assert "INT" in shown


def test_hanging_up_ends_the_command():
    code, _ = run("trap '' HUP; echo ready; sleep 60", lambda process: process.hang_up())
    assert code == -9


def test_a_command_that_is_not_there_is_an_exit_code():
    async def work():
        process = await start_on_terminal(["/no/such"], env=ENV, cwd="/", owner=OWNER)
        code = await process.wait()
        process.close()
        return code

    assert asyncio.run(work()) == 127


def test_output_that_nobody_reads_does_not_pile_up():
    async def work():
        process = await start_on_terminal(["sh", "-c", "yes"], env=ENV, cwd="/", owner=OWNER)
        assert await process.read()
        assert process.returncode is None
        process.hang_up()
        await process.wait()
        process.close()
        return await process.read()

    assert asyncio.run(asyncio.wait_for(work(), 60)) == b""
