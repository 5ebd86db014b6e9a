"""Accounts of this machine, as the system's databases (passwd, group, LDAP through NSS) know them."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Account:
    """One person or service with an account."""

    name: str
    uid: int
    gid: int
    groups: tuple[tuple[int, str], ...]  # (gid, name) of all groups, the primary one included; ordered by gid
    home: str
    shell: str

    @property
    def supplementary(self) -> list[int]:
        """Return the groups besides the primary one."""
        return [gid for gid, _ in self.groups if gid != self.gid]


def account_of_uid(uid: int) -> Account | None:
    """Return the account with a number; None when there is none."""
    try:
        return _account(pwd.getpwuid(uid))
    except (KeyError, OverflowError):
        return None


def account_of_name(name: str) -> Account | None:
    """Return the account with a name; None when there is none."""
    try:
        return _account(pwd.getpwnam(name))
    except (KeyError, ValueError):  # ValueError: a NUL in the name
        return None


def _account(entry: pwd.struct_passwd) -> Account:
    numbers = sorted({entry.pw_gid, *os.getgrouplist(entry.pw_name, entry.pw_gid)})
    groups = tuple((number, _group_name(number)) for number in numbers)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
