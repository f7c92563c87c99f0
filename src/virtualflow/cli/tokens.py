"""``vf cluster token``: who else may use the manager, and for what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from virtualflow.cli.files import check_file
from virtualflow.cli.help import Command
from virtualflow.cli.screen import print_line, screen
from virtualflow.errors import ConfigError
from virtualflow.job import tokens
from virtualflow.manager.client import Client
from virtualflow.manager.token_book import Role

token = typer.Typer(no_args_is_help=True, help="Tokens for others, with a role each. They count at once.")
TokenName = Annotated[str, typer.Argument(help="The token's name.", metavar="NAME")]


@token.command(cls=Command)
def add(
    name: TokenName,
    role: Annotated[
        str,
        typer.Option(
            help="look: see all. submit: also submit jobs, and change those of its owner. administer: everything.",
            metavar="look|submit|administer",
        ),
    ],
    owner: Annotated[
        str | None,
        typer.Option(help="submit: whose jobs it submits and may change; NAME by default.", metavar="USER"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The token file; NAME.token by default.", metavar="FILE")
    ] = None,
) -> None:
    """Make a token, and write the file that its holder gives to VF_TOKEN_FILE. The manager keeps only a hash of it."""
    if role not in list(Role):
        raise ConfigError(f"--role {role}: expected {', '.join(list(Role)[:-1])} or {list(Role)[-1]}")
    file = output or Path(f"{name}.token")
    check_file(file)
    if file.exists():
        raise ConfigError(f"there is a file {file} already: remove it, or name another one with -o")
    client = Client.find()
    secret = client.post("/api/tokens", name=name, role=role, owner=owner or "")["token"]
    try:
        tokens.write_token(file, client.fingerprint, secret)
    except OSError as error:
        client.post(f"/api/tokens/{name}/remove")
        raise ConfigError(
            f"the token was not made: cannot write {file}: {error.strerror}. Name another file with -o."
        ) from error
    print_line(f"token {name} may {role}: {file}. Hand it over where nobody else can read it; its holder sets")
    print_line(f"  VF_CLUSTER={client.address} VF_TOKEN_FILE={file}")


@token.command("list", cls=Command)
def show(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the tokens beside the manager's own, with their roles."""
    listed = Client.find().get("/api/tokens")
    if as_json:
        print(json.dumps(listed, indent=2))
        return
    table = Table("token", "role", "owner", box=box.SIMPLE, pad_edge=False)
    for each in listed:
        table.add_row(each["name"], each["role"], each["owner"])
    screen().print(table if listed else "no tokens but the manager's own: `vf cluster token add` makes some")


@token.command(cls=Command)
def remove(name: TokenName) -> None:
    """Remove a token: from now on it lets nobody in, and pages that it has opened end."""
    Client.find().post(f"/api/tokens/{name}/remove")
    print_line(f"token {name} is no longer good")
