"""Which role each request needs, and whose jobs a submitter may change. What isn't named here is an administrator's."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

from virtualflow.errors import UnknownJobError
from virtualflow.manager.api.views import Source
from virtualflow.manager.token_book import Caller, Role

CALLER = "vf.caller"  # in a request's state: who asks, as the guard has found out
READ = ("GET", "HEAD")
READ_BY_ADMINISTRATORS = ("/api/tokens", "/api/audit")
OF_A_JOB = "/api/jobs/{job_id}/"
CHANGES = {
    "/api/jobs": Role.SUBMIT,
    "/api/login": Role.LOOK,  # with the role of the token that asks
    **{f"{OF_A_JOB}{verb}": Role.SUBMIT for verb in ("priority", "resize", "pause", "resume", "cancel")},
}


def needed(verb: str, route: str) -> Role:
    """The role for a request to this route, as the server has declared it."""
    if verb in READ:
        return Role.ADMINISTER if route in READ_BY_ADMINISTRATORS else Role.LOOK
    return CHANGES.get(route, Role.ADMINISTER)


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope["state"][CALLER]
    return caller


def check(request: Request, source: Source) -> None:
    """Refuse what the caller's role does not include, and changes of other users' jobs."""
    caller, route = caller_of(request), request.scope["route"].path
    role = needed(request.method, route)
    if not caller.role.includes(role):
        raise HTTPException(
            403,
            f"this needs a token with the role {role}, and yours, {caller.name}, has the role {caller.role}. An "
            f"administrator makes one: vf cluster token add NAME --role {role}",
        )
    if request.method not in READ and route.startswith(OF_A_JOB) and caller.role != Role.ADMINISTER:
        job_id = request.path_params["job_id"]
        try:
            owner = source.owner(job_id)
        except UnknownJobError:
            return  # which the answer will say
        if owner != caller.owner:
            raise HTTPException(
                403, f"job {job_id} is {_whose(owner)}: your token, {caller.name}, changes {caller.owner}'s jobs only"
            )


def owner_for(caller: Caller, owner: str) -> str:
    """Whose job a submission is, if it says *owner*."""
    if caller.role == Role.ADMINISTER or owner == caller.owner:
        return owner
    if owner:
        raise HTTPException(
            403, f"your token, {caller.name}, submits jobs of {caller.owner}, not of {owner}: leave out --owner {owner}"
        )
    return caller.owner


def _whose(owner: str) -> str:
    return f"{owner}'s" if owner else "nobody's"
