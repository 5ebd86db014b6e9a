"""Health paths: /healthz, /livez, /readyz, and their single checks.

A check is a name and a function that says what is wrong ("": nothing). `?verbose` lists all
checks, `?exclude=name` leaves one out, `/livez/NAME` asks one alone. kube-apiserver keeps the
reason to itself; here it is told, so it must be fit for everybody: no paths, no names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dray.server.requests import Request, Response, text_response

Check = Callable[[], str]  # what is wrong; "" when all is well
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
            problem = check()
            return (
                text_response(500, f"internal server error: {problem}\n")
                if problem
                else text_response(200, "ok")
            )
        excluded = set(request.all("exclude"))
        lines, failed = [], False
        for name, check in checks.items():
            if name in excluded:
                lines.append(f"[+]{name} excluded: ok")
                continue
            problem = check()
            failed = failed or bool(problem)
            lines.append(f"[-]{name} failed: {problem}" if problem else f"[+]{name} ok")
        if failed:
            return text_response(500, "\n".join([*lines, f"{endpoint} check failed\n"]))
        if request.has("verbose"):
            return text_response(200, "\n".join([*lines, f"{endpoint} check passed\n"]))
        return text_response(200, "ok")
