"""Virtual time: what costs do, to the second, and that all time is accounted for."""

from __future__ import annotations

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import DevicesJoined, DevicesLost
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import NOTHING, Decision, Grant, Options, Policy
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.core.profile import Communication, Point, Profile, Workload
from virtualflow.errors import PolicyError
from virtualflow.sim import costs
from virtualflow.sim.costs import Costs
from virtualflow.sim.engine import simulate
from virtualflow.sim.result import Run

SLOW = Costs("slow", boot=10.0, resume=7.0, shrink=1.0, grow=20.0, grow_pause=2.0, restart=15.0)


class Timed(Policy):
    """Grants by the time at which it is asked."""

    name = "timed"

    def __init__(self, script: dict[float, dict[str, Grant]], *, restarts: bool = False) -> None:
        super().__init__()
        self.script, self.restarts = script, restarts

    def allocate(self, snapshot: Snapshot) -> Decision:
        later = [seconds for seconds in self.script if seconds > snapshot.now]
        known = {state.id for state in snapshot.jobs()}
        grants = {name: grant for name, grant in self.script.get(snapshot.now, {}).items() if name in known}
        return Decision(grants, min(later, default=None))


def run(jobs: list[Job], policy: Policy, price: Costs = SLOW, devices: str = "V100:4") -> Run:
    return simulate(jobs, parse_pools(devices), policy, Profiled(), price)


def end_of(run: Run, name: str) -> float:
    return next(job.end_seconds for job in run.jobs if job.job.id == name)


def test_a_job_boots_and_then_computes() -> None:
    result = run([Job("A", 5.0, 4, 100.0)], registry.make("fifo"))
    assert end_of(result, "A") == 115.0
    spent = result.accounts.spent
    assert (spent.restarting, spent.productive, spent.unused) == (40.0, 400.0, 0.0)


def test_shrinking_is_a_pause() -> None:
    result = run([Job("A", 0.0, 4, 100.0)], Timed({0.0: {"A": Grant.of(4)}, 60.0: {"A": Grant.of(2)}}))
    # 50 of 100 done by then; 1 s of pause; the rest at half the speed.
    assert end_of(result, "A") == 161.0


def test_growing_happens_in_the_background() -> None:
    result = run([Job("A", 0.0, 4, 100.0)], Timed({0.0: {"A": Grant.of(2)}, 30.0: {"A": Grant.of(4)}}))
    # 10 done by 30 s; the old devices do 10 more until the new ones are ready at 50 s; 2 s of pause; then full speed.
    assert end_of(result, "A") == 132.0
    assert result.accounts.spent.restarting == 2 * 10 + 2 * 20 + 4 * 2


def test_a_growth_that_is_taken_back_costs_nothing_but_its_devices() -> None:
    script = {0.0: {"A": Grant.of(2)}, 30.0: {"A": Grant.of(4)}, 40.0: {"A": Grant.of(2)}}
    assert end_of(run([Job("A", 0.0, 4, 100.0)], Timed(script)), "A") == 210.0


def test_policies_that_restart_pay_for_it_with_all_devices() -> None:
    script = {0.0: {"A": Grant.of(2)}, 30.0: {"A": Grant.of(4)}}
    result = run([Job("A", 0.0, 4, 100.0)], Timed(script, restarts=True))
    assert end_of(result, "A") == 30.0 + 15.0 + 90.0


def test_a_job_whose_devices_all_change_waits_for_the_new_ones_and_is_not_restarted() -> None:
    script = {0.0: {"A": Grant({"V100": 4})}, 60.0: {"A": Grant({"P100": 4})}}
    result = run([Job("A", 0.0, 4, 100.0)], Timed(script), devices="V100:4,P100:4")
    # 50 of 100 done by 60 s; the new devices are ready at 80 s; 2 s of pause; the rest.
    assert end_of(result, "A") == 132.0
    assert result.accounts.spent.restarting == 4 * 10 + 4 * 20 + 4 * 2


def test_a_job_left_with_devices_that_are_still_joining_waits_for_those() -> None:
    script = {0.0: {"A": Grant({"V100": 2})}, 30.0: {"A": Grant.of(4)}, 40.0: {"A": Grant({"P100": 2})}}
    result = run([Job("A", 0.0, 4, 100.0)], Timed(script), devices="V100:2,P100:2")
    # 15 done by 40 s at half the speed; the others are ready at 50 s, as before; 2 s of pause; the rest.
    assert end_of(result, "A") == 52.0 + 170.0


def test_a_suspended_job_keeps_its_work() -> None:
    script = {0.0: {"A": Grant.of(4)}, 60.0: {"A": NOTHING}, 100.0: {"A": Grant.of(4)}}
    result = run([Job("A", 0.0, 4, 100.0)], Timed(script))
    assert end_of(result, "A") == 100.0 + 7.0 + 50.0
    assert result.jobs[0].start_seconds == 0.0


def test_jobs_on_shared_devices_slow_each_other_down() -> None:
    script = {0.0: {"A": Grant({"V100": 1})}, 1.0: {"B": Grant({"V100": 1}, beside="A")}}
    result = run([Job("A", 0.0, 1, 10.0), Job("B", 1.0, 1, 10.0)], Timed(script), costs.NONE, "V100:1")
    assert end_of(result, "A") == 19.0  # 1 s alone, 18 s at half speed
    assert end_of(result, "B") == 20.0  # 9 of 10 done by then, and the rest alone
    assert result.accounts.spent.productive == 20.0


def test_a_host_is_fast_again_when_its_co_located_job_has_gone() -> None:
    script = {0.0: {"A": Grant({"V100": 1})}, 1.0: {"B": Grant({"V100": 1}, beside="A")}}
    result = run([Job("A", 0.0, 1, 10.0), Job("B", 1.0, 1, 2.0)], Timed(script), costs.NONE, "V100:1")
    assert (end_of(result, "B"), end_of(result, "A")) == (5.0, 12.0)
    script[3.0] = {"B": NOTHING}
    script[20.0] = {"B": Grant({"V100": 1})}
    result = run([Job("A", 0.0, 1, 10.0), Job("B", 1.0, 1, 2.0)], Timed(script), costs.NONE, "V100:1")
    assert (end_of(result, "A"), end_of(result, "B")) == (11.0, 21.0)


def test_a_device_that_would_only_cost_time_is_assigned_but_unused() -> None:
    profiles = {"V100": Profile("V100", (Point(1, 1.0),))}
    workload = Workload("chatty", profiles, Communication(by_devices=((2, 100.0),)))
    job = Job("A", 0.0, 2, 10.0, workload="chatty", virtual_nodes=2)
    result = simulate([job], parse_pools("V100:2"), registry.make("fifo"), Profiled([workload]), costs.NONE)
    assert result.accounts.spent.unused == result.accounts.spent.productive == 20.0
    even = simulate([job], parse_pools("V100:2"), registry.make("fifo"), Profiled([workload], even=True), costs.NONE)
    assert end_of(even, "A") == 1010.0


def test_lost_devices_are_booked_as_lost_and_work_goes_on() -> None:
    events = iter([DevicesLost(50.0, ("V100:0", "V100:1")), DevicesJoined(90.0, ("V100:0",))])
    jobs = [Job("A", 0.0, 4, 100.0)]
    result = simulate(jobs, parse_pools("V100:4"), registry.make("wfs"), Profiled(), costs.NONE, failures=events)
    assert end_of(result, "A") == pytest.approx(90.0 + 30.0 / 0.75)
    assert result.accounts.lost == pytest.approx(2 * 40.0 + 1 * 40.0)


def test_a_policy_that_lets_jobs_wait_for_ever_is_named() -> None:
    with pytest.raises(PolicyError, match="timed stopped deciding: 1 job"):
        run([Job("A", 0.0, 1, 1.0)], Timed({}))


@pytest.mark.parametrize("round_seconds", [10.0, 80.0])
def test_rounds_in_which_jobs_only_restart_are_refused(round_seconds: float) -> None:
    """Five jobs take turns on two devices: each is moved before it is back from its checkpoint."""
    jobs = [Job(str(number), 0.0, 1 + number % 2, 10_000.0) for number in range(5)]
    las = registry.make("las", Options(round_seconds=round_seconds))
    with pytest.raises(PolicyError, match=r"las would never end: .* up to 86 s .*--round-seconds"):
        run(jobs, las, costs.PAPER, "V100:2")


def test_short_rounds_that_wait_for_a_long_start_are_not_refused() -> None:
    result = run([Job("A", 0.0, 1, 10.0)], registry.make("las", Options(round_seconds=0.05)), costs.PAPER, "V100:1")
    assert end_of(result, "A") == 96.0


def test_books_that_do_not_balance_are_noticed() -> None:
    result = run([Job("A", 0.0, 1, 10.0)], registry.make("fifo"))
    result.accounts.free += 1.0
    with pytest.raises(AssertionError, match="device-seconds"):
        result.accounts.close(result.accounts.spent)
