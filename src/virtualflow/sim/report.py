"""A folder that tells of a comparison: one page, its pictures, and the figures as JSON."""

from __future__ import annotations

import html
import json
from pathlib import Path

from virtualflow.sim import charts
from virtualflow.sim.compare import COLUMNS, Comparison, Setting

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse }} td, th {{ padding: .3em .8em; border-bottom: 1px solid #ddd; text-align: right }}
td:first-child, th:first-child {{ text-align: left }} img {{ max-width: 100% }} .note {{ color: #666 }}
</style>
<h1>{title}</h1>
<p>{facts}</p>
<table><tr>{head}</tr>
{rows}
</table>
<p class="note">Median: the upper one. 99th: the percentile. Utilisation: device-seconds assigned to jobs, of all;
productive: those in which devices computed. Fairness: Jain's index of slowdowns.
± is half a 95% confidence interval over seeds.</p>
<h2>Job completion time and queueing delay</h2>
<img src="jct.png" alt="Job completion times"><img src="queueing.png" alt="Queueing delays">
<h2>Who had which devices</h2>
<p class="note">A box is a job; hatched where its allocation mixes device types.</p>
{charts}
<h2>Where the device-seconds went</h2>
<table><tr><th>policy</th><th>productive</th><th>restarting</th><th>assigned but unused</th>
<th>free</th><th>lost</th><th>all</th></tr>
{accounts}
</table>
</html>
"""


def write(comparison: Comparison, setting: Setting, title: str, folder: Path) -> Path:
    """Write the folder and return its page."""
    charts.new_figure(1, 1)  # say at once if there will be no pictures
    folder.mkdir(parents=True, exist_ok=True)
    runs = {name: outcome.run for name, outcome in comparison.policies.items()}
    jcts = {name: [job.jct_seconds for job in run.jobs] for name, run in runs.items()}
    waits = {name: [job.queueing_seconds for job in run.jobs] for name, run in runs.items()}
    charts.cdf(jcts, "job completion time", folder / "jct.png")
    charts.cdf(waits, "queueing delay", folder / "queueing.png")
    pictures = []
    for name, run in runs.items():
        file = f"allocation-{name}.png"
        if charts.allocation(run, setting.pools, folder / file):
            pictures.append(f'<img src="{html.escape(file)}" alt="Allocations under {html.escape(name)}">')
        else:
            pictures.append(f"<p>{html.escape(name)}: too many boxes for a picture ({len(run.jobs):,} jobs).</p>")
    contents = {"policies": {name: outcome.as_json() for name, outcome in comparison.policies.items()}}
    (folder / "results.json").write_text(json.dumps(contents, indent=1) + "\n")
    page = folder / "index.html"
    page.write_text(
        PAGE.format(
            title=html.escape(title),
            facts=html.escape(f"{', '.join(map(str, setting.pools))[:200]}; costs: {setting.costs.name}"),
            head="".join(f"<th>{html.escape(each)}</th>" for each in ("policy", *(column for column, _ in COLUMNS))),
            rows="\n".join(_row(name, comparison) for name in runs),
            charts="\n".join(pictures),
            accounts="\n".join(_accounts(name, comparison) for name in runs),
        )
    )
    return page


def _row(name: str, comparison: Comparison) -> str:
    found = comparison.policies[name].intervals
    return _cells([name, *(show(found) for _, show in COLUMNS)])


def _accounts(name: str, comparison: Comparison) -> str:
    accounts = comparison.policies[name].run.accounts
    spent = accounts.spent
    parts = (spent.productive, spent.restarting, spent.unused, accounts.free, accounts.lost, accounts.total)
    return _cells([name, *(f"{part:,.0f}" for part in parts)])


def _cells(cells: list[str]) -> str:
    return f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
