"""How ``--help`` looks: names whole on 80 columns, no type where there is no value, many options in panels."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperOption

DEVICES, CHECKPOINTS = "Devices", "Checkpoints and failures"
PANELS = {  # of the verbs that take a script, for options that do not name theirs; all others are in "Options"
    DEVICES: ("devices", "device_type", "threads_per_device", "mapping"),
    "Mixed and emulated devices": ("plan", "profiles", "rebalance", "device_file", "emulate", "time_scale"),
    "Other machines": ("backend", "listen", "token_file", "tls_cert", "tls_key", "machines", "communication"),
    CHECKPOINTS: ("resume", "from_checkpoint", "replace", "patience"),
    "Output": ("detach", "progress", "all_output", "dashboard", "output", "wait", "as_json"),
    "Many jobs": ("sweep",),
}
PANEL_OF = {option: panel for panel, options in PANELS.items() for option in options}


class Command(TyperCommand):
    """A command whose flags are shown without a type, which would be ``<bool>``."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options, ``--help`` included."""
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if isinstance(parameter, TyperOption) and parameter.is_flag:
                parameter.metavar = ""
        return parameters


class ScriptCommand(Command):
    """A command that takes a script: its options are shown in panels."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options, each with its panel."""
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if isinstance(parameter, TyperOption):
                parameter.rich_help_panel = PANEL_OF.get(parameter.name or "", parameter.rich_help_panel)
        return parameters
