"""Who uses a cluster: the user at this terminal, and the file with everybody's weights and caps."""

from __future__ import annotations

import getpass
import tomllib
from pathlib import Path

from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.users import Users, users_of
from virtualflow.errors import ConfigError
from virtualflow.manager.client import Client, folder


def user_here() -> str:
    """The name that this terminal's user has logged in with."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return ""


def owner_here(client: Client) -> str:
    """Whose jobs are submitted from here: the user that the token is for, or the one at this terminal."""
    return str(client.get("/api/caller")["owner"]) or user_here()


def users_in(file: Path | None, policy: Policy) -> Users | None:
    """What *file* says, or ``users.toml`` in the cluster's folder; None without either."""
    usual = folder() / "users.toml"
    if file is None and not usual.exists():
        return None
    file = file or usual
    try:
        users = users_of(tomllib.loads(file.read_text()), str(file))
    except OSError as error:
        raise ConfigError(f"cannot read the users' file {file}: {error.strerror}") from error
    except ValueError as error:  # of TOML, or of text at all
        raise ConfigError(f"the users' file {file} is not TOML: {error}") from error
    if users.have_weights and policy.sharing is None:
        raise ConfigError(
            f"{file} gives weights, which the policy {policy.name} knows nothing of: caps alone count under it. Use "
            "wfs, las, water-filling, las-mixed, priority or fifo, or leave the weights out."
        )
    return users
