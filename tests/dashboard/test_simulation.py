"""A simulation as the page's data."""

from __future__ import annotations

from virtualflow.cluster.job import Job
from virtualflow.core.devices import Pool
from virtualflow.dashboard import simulation
from virtualflow.sim.compare import side_by_side
from virtualflow.sim.result import Accounts, JobResult, Run, Segment

RESULT = JobResult(Job("a", 0.0, 2, 100.0, min=2), 1.0, 51.0, 0, 50.0, (Segment(1.0, 51.0, ("V100:0", "P100:0")),))
ACCOUNTS = Accounts(2, 0.0, 51.0)


def test_a_job_is_shown_with_what_it_asked_for_and_what_it_had() -> None:
    comparison = side_by_side({"wfs": Run("wfs", (RESULT,), ACCOUNTS, 1)})
    shown = simulation.of(comparison, [Pool("V100", (1,)), Pool("P100", (1,))], "two devices")["policies"]["wfs"]
    (job,), (allocation,) = shown["state"]["jobs"], shown["history"]["segments"]
    assert (job["demand"], job["min"], job["state"]) == (2, 2, "DONE")
    assert (allocation["devices"], allocation["types"]) == (["V100:0", "P100:0"], {"V100": 1, "P100": 1})
    assert [device["machine"] for device in shown["state"]["devices"]] == [0, 1]
