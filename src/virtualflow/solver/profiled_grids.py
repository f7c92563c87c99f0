"""The grid that a running job gets by its stage profile, on whatever number of devices it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from virtualflow.core import stage_profile
from virtualflow.core.cells import Cells, pipelines, with_copies
from virtualflow.core.devices import Pool, names_of, type_of
from virtualflow.core.job_description import JobDescription
from virtualflow.core.mapping import DeviceId
from virtualflow.core.profiled_grid import GridWanted
from virtualflow.core.stage_profile import StagedWorkload
from virtualflow.errors import ProfileError
from virtualflow.solver.grid_costs import costs_at
from virtualflow.solver.grid_search import GridSearch, worth
from virtualflow.solver.grid_walk import improved

MOST_RUNS = 10_000  # of cells on the clock: all workers wait for it when the devices change


class ProfiledGrids:
    """Chooses as ``vf solve`` does, with less time, and among grids in which every device runs something.

    A pure function: each worker of a job computes it by itself.
    """

    def __init__(self, workload: StagedWorkload) -> None:
        self._workload = workload
        self.best = cache(self._best)

    def why_not(self, wanted: GridWanted, devices: Sequence[DeviceId]) -> str | None:
        """Why the profile tells nothing of that model on *devices*; None if it does."""
        for name in dict.fromkeys(map(type_of, devices)):
            try:
                profile = self._workload.profile(name)
                profile.at(wanted.node_size)
            except ProfileError as error:
                return str(error)
            stages, parameters = len(profile.stages), profile.facts.get("parameters", wanted.parameters)
            if (stages, parameters) != (wanted.stages, wanted.parameters):
                return (
                    f"it was made for {stages} stages of {parameters} parameters, and this model has {wanted.stages} "
                    f"of {wanted.parameters}. Make it again with `vf profile`."
                )
        return None

    def _best(self, wanted: GridWanted, devices: tuple[DeviceId, ...]) -> Cells:
        counts = Counter(map(type_of, devices))
        costs = costs_at(self._workload, counts, wanted.node_size)
        if wanted.device_bytes is not None:
            costs = costs.with_memory(dict.fromkeys(counts, wanted.device_bytes))
        pools = [Pool(name, (count,)) for name, count in counts.items()]
        search = GridSearch(costs, pools, wanted.virtual_nodes, wanted.schedule, wanted.copies)
        names = names_of(pools)
        usual = pipelines(costs.stages, wanted.virtual_nodes, names)
        known = [search.planned(with_copies(usual, wanted.copies)), *search.candidates]
        best = min((plan for plan in known if _all_run(plan.cells, devices)), key=worth)
        walked = search.planned(improved(search.question, best.cells, MOST_RUNS))
        chosen = min((plan for plan in (best, walked) if _all_run(plan.cells, devices)), key=worth)
        by_type = sorted(devices, key=lambda device: list(counts).index(type_of(device)))  # as *names* are
        return _named(chosen.cells, dict(zip(names, by_type, strict=True)))


def _all_run(cells: Cells, devices: Sequence[DeviceId]) -> bool:
    return len({owner for route in cells.routes for owner in route}) == len(devices)


def _named(cells: Cells, names: Mapping[DeviceId, DeviceId]) -> Cells:
    return Cells(
        *(tuple(tuple(names[device] for device in row) for row in rows) for rows in (cells.routes, cells.shadows))
    )


def profiled_grids(description: JobDescription) -> ProfiledGrids | None:
    """Those of a job that has a stage profile."""
    if description.stage_profile is None:
        return None
    return ProfiledGrids(stage_profile.from_json(description.stage_profile, "the job's stage profile"))
