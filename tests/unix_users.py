"""Real Unix users for tests that run as root."""

import os
import pwd
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make Unix users and to become them")


@contextmanager
def unix_users(*names: str) -> Iterator[list[pwd.struct_passwd]]:
    """Make users with a home, named as asked plus a random end; remove them, their homes and processes afterwards."""
    end = secrets.token_hex(3)
    made = [f"{name}-{end}x" for name in names]  # the last letter: an end like a digest is special
    try:
        for name in made:
            subprocess.run(
                ["useradd", "--create-home", "--user-group", name], check=True, capture_output=True
            )
        yield [pwd.getpwnam(name) for name in made]
    finally:
        for name in made:
            subprocess.run(["userdel", "--force", "--remove", name], check=False, capture_output=True)
