"""Impersonation: a request that acts for somebody else (`kubectl --as`).

The sender names a user (and groups, a uid, extra values) in `Impersonate-*`
headers. Kubernetes v1.37 knows two ways to be allowed that, and so does this
server. The constrained way needs two rights: to impersonate this kind of user
(`impersonate:<mode>`), and to do so for this very request
(`impersonate-on:<mode>:<verb>` on what is requested). The old way needs only the
verb `impersonate`, for everything at once.

The modes are tried from the narrowest to the widest; the first that allows the
request decides who acts. When none does, the refusal of the first one that
applied is told.

    associated-node   a service account acts for the node its pod runs on
    arbitrary-node    somebody acts for any node
    serviceaccount    somebody acts for a service account
    user-info         somebody acts for any other user, groups and all
    (old)             anybody, with the verb `impersonate`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from urllib.parse import unquote

from dray.api.kinds import AUTHENTICATION
from dray.api.well_known import NODE_NAME_EXTRA
from dray.server.auth.authentication import ANONYMOUS, AUTHENTICATED_GROUP, UNAUTHENTICATED_GROUP
from dray.server.auth.authorization import Attributes, Authorizer
from dray.server.auth.node_authorizer import NODE_USER_PREFIX, NODES_GROUP
from dray.server.auth.rbac import SERVICE_ACCOUNT_PREFIX
from dray.server.auth.service_account_tokens import service_account_user
from dray.server.requests import ApiError, Request, User, bad_request, split_path, verb_of

_EXTRA_PREFIX = "impersonate-extra-"


def impersonated(request: Request, sender: User, authorizer: Authorizer) -> User:
    """Return whom a request acts for: its sender, or whom it impersonates; raises 400 and 403 errors."""
    wanted = _wanted_user(request)
    if wanted is None:
        return sender
    asked = _attributes(request, sender)
    refusal: ApiError | None = None
    for mode in _MODES:
        if not mode.applies(wanted, sender):
            continue
        try:
            for question in mode.questions(wanted, asked):
                authorizer.check(question)
        except ApiError as problem:
            refusal = refusal or problem
            continue
        return _completed(wanted, mode.verb != "impersonate")
    assert refusal is not None, "the old mode applies to everybody"
    raise refusal


@dataclass(frozen=True, slots=True)
class _Mode:
    """One way to be allowed to act for somebody."""

    name: str  # empty: the old way
    applies: Callable[[User, User], bool]  # wanted, sender

    @property
    def verb(self) -> str:
        return f"impersonate:{self.name}" if self.name else "impersonate"

    def questions(self, wanted: User, asked: Attributes) -> Iterator[Attributes]:
        """Yield what must all be allowed."""
        if self.name:
            yield asked._replace(verb=f"impersonate-on:{self.name}:{asked.verb}")
        # The old verb is asked in the core group; that cannot be changed any more.
        group = AUTHENTICATION if self.name else ""
        sender = asked.user
        account = _service_account(wanted.name)
        if self.name and wanted.name.startswith(NODE_USER_PREFIX):
            node = "*" if self.name == "associated-node" else wanted.name.removeprefix(NODE_USER_PREFIX)
            yield Attributes(sender, self.verb, group, "nodes", name=node)
        elif account is not None:
            yield Attributes(
                sender, self.verb, group, "serviceaccounts", namespace=account[0], name=account[1]
            )
        else:
            yield Attributes(sender, self.verb, group, "users", name=wanted.name)
        if wanted.uid:
            yield Attributes(sender, self.verb, AUTHENTICATION, "uids", name=wanted.uid)
        for name in wanted.groups:
            yield Attributes(sender, self.verb, group, "groups", name=name)
        for key, values in wanted.extra.items():
            for value in values:
                yield Attributes(sender, self.verb, AUTHENTICATION, "userextras", key, name=value)


def _only_named(wanted: User) -> bool:
    return not (wanted.uid or wanted.groups or wanted.extra)


def _is_own_node(wanted: User, sender: User) -> bool:
    if not (_only_named(wanted) and sender.name.startswith(SERVICE_ACCOUNT_PREFIX)):
        return False
    nodes = sender.extra.get(NODE_NAME_EXTRA, ())
    return len(nodes) == 1 and wanted.name == NODE_USER_PREFIX + nodes[0]


def _is_node(wanted: User, sender: User) -> bool:
    return _only_named(wanted) and wanted.name.startswith(NODE_USER_PREFIX)


def _is_account(wanted: User, sender: User) -> bool:
    return _only_named(wanted) and _service_account(wanted.name) is not None


def _is_other(wanted: User, sender: User) -> bool:
    return not wanted.name.startswith(NODE_USER_PREFIX) and _service_account(wanted.name) is None


_MODES = (
    _Mode("associated-node", _is_own_node),
    _Mode("arbitrary-node", _is_node),
    _Mode("serviceaccount", _is_account),
    _Mode("user-info", _is_other),
    _Mode("", lambda wanted, sender: True),
)


def _wanted_user(request: Request) -> User | None:
    """Read the headers; None when nobody is to be impersonated."""
    if "impersonate-" not in " ".join(request.headers):
        return None
    name, uid = request.header("impersonate-user"), request.header("impersonate-uid")
    groups = _values(request, "impersonate-group")
    extra = {
        unquote(header.removeprefix(_EXTRA_PREFIX)): _values(request, header)
        for header in request.headers
        if header.startswith(_EXTRA_PREFIX)
    }
    if not name and (uid or groups or extra):
        listed = "[]string(nil)" if not groups else _go_strings(groups)
        more = "map[string][]string(nil)"
        if extra:
            inner = ", ".join(f'"{key}":{_go_strings(values)}' for key, values in sorted(extra.items()))
            more = f"map[string][]string{{{inner}}}"
        raise bad_request(
            f'requested &user.DefaultInfo{{Name:"", UID:"{uid}", Groups:{listed}, Extra:{more}}} '
            "without impersonating a user name"
        )
    return User(name, uid, groups, extra) if name else None


def _values(request: Request, header: str) -> tuple[str, ...]:
    """Return the values of a repeated header; the front joins them with commas."""
    return tuple(value.strip() for value in request.header(header).split(",") if value.strip())


def _go_strings(values: tuple[str, ...]) -> str:
    return "[]string{" + ", ".join(f'"{value}"' for value in values) + "}"


def _attributes(request: Request, sender: User) -> Attributes:
    path = split_path(request.path)
    if path is None or not path.resource:
        return Attributes(sender, request.method.lower(), path=request.path)
    return Attributes(
        sender,
        verb_of(request, path) or request.method.lower(),
        path.group,
        path.resource,
        path.subresource,
        path.namespace,
        path.name,
        version=path.version,
    )


def _service_account(name: str) -> tuple[str, str] | None:
    namespace, colon, account = name.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    if not name.startswith(SERVICE_ACCOUNT_PREFIX) or not (namespace and colon and account) or ":" in account:
        return None
    return namespace, account


def _completed(wanted: User, constrained: bool) -> User:
    """Return the user with the groups that its name implies."""
    groups = list(wanted.groups)
    account = _service_account(wanted.name)
    if account is not None and not groups:
        groups = list(service_account_user(*account).groups[:2])
    elif constrained and wanted.name.startswith(NODE_USER_PREFIX):
        groups = [NODES_GROUP]
    if wanted.name == ANONYMOUS.name:
        implied = UNAUTHENTICATED_GROUP
    else:
        implied = "" if UNAUTHENTICATED_GROUP in groups else AUTHENTICATED_GROUP
    if implied and implied not in groups:
        groups.append(implied)
    return replace(wanted, groups=tuple(groups))
