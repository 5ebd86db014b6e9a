"""Health paths: /healthz, /livez, /readyz, and their single checks.

A check is a name and a function that says whether it is well. `?verbose` lists all
checks, `?exclude=name` leaves one out, `/livez/NAME` asks one alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dray.server.requests import Request, Response, text_response

Check = Callable[[], bool]
_PATHS = ("healthz", "livez", "readyz")


@dataclass(slots=True)
class Health:
    """Answers the health paths."""

    checks: Mapping[str, Check]
    only_ready: Mapping[str, Check]  # checks that only /readyz has

    def respond(self, request: Request) -> Response | None:
        """Answer a health request; None for other paths."""
        _, endpoint, *rest = request.path.split("/")
        if endpoint not in _PATHS:
            return None
        checks = {**self.checks, **(self.only_ready if endpoint == "readyz" else {})}
        if rest:
            check = checks.get(rest[0]) if len(rest) == 1 else None
            if check is None:
                return text_response(404, "404 page not found\n")
            return text_response(200, "ok") if check() else text_response(500, f"{rest[0]} check failed\n")
        excluded = set(request.all("exclude"))
        lines, failed = [], False
        for name, check in checks.items():
            if name in excluded:
                lines.append(f"[+]{name} excluded: ok")
                continue
            well = check()
            failed = failed or not well
            lines.append(f"[+]{name} ok" if well else f"[-]{name} failed: reason withheld")
        if failed:
            return text_response(500, "\n".join([*lines, f"{endpoint} check failed\n"]))
        if request.has("verbose"):
            return text_response(200, "\n".join([*lines, f"{endpoint} check passed\n"]))
        return text_response(200, "ok")
