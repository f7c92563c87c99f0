"""Jobs have owners, who share a manager's devices by a file, and see their own jobs."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.manager.worlds import Starts, World, answering, job, launched, starts, vf, world
from virtualflow.cli.main import app
from virtualflow.cli.users import users_in
from virtualflow.cluster.policies import registry
from virtualflow.cluster.users import Party, Users
from virtualflow.errors import ConfigError, ManagerError
from virtualflow.manager.api.views import ClusterSource
from virtualflow.manager.client import folder

__all__ = ["starts", "world"]
USERS = Users({"ann": Party(devices=2)})


def test_owners_share_first_and_the_next_manager_knows_them(world: World, starts: Starts) -> None:
    manager = world.manager("8", users=USERS)
    ids = [manager.submit(job(demand=8, owner=owner)) for owner in ("ann", "bob", "bob", "bob")]
    for each in (manager, world.manager("8", users=USERS)):
        each.tick()
        assert [len(each.records[job_id].devices) for job_id in ids] == [2, 2, 2, 2]
        assert [ClusterSource(each).job(job_id)["owner"] for job_id in ids] == ["ann", "bob", "bob", "bob"]


def test_who_waits_for_his_own_jobs_sees_that(world: World, starts: Starts) -> None:
    manager = world.manager("8", users=USERS)
    ids = [manager.submit(job(demand=1, owner="ann")) for _ in range(3)]
    manager.tick()
    assert ClusterSource(manager).job(ids[2])["reason"] == (
        "ann's jobs may have 2 devices together, and others of them come first"
    )
    manager.cancel(ids[0])
    assert len(manager.records[ids[2]].devices) == 1


def test_a_job_that_could_use_more_says_whether_its_owner_or_the_policy_is_why(world: World, starts: Starts) -> None:
    manager = world.manager("4", users=Users({"ann": Party(devices=2), "bob": Party(weight=0.001)}))
    first, second = (manager.submit(job(demand=4, owner=owner)) for owner in ("ann", "zoe"))
    starved = manager.submit(job(demand=1, owner="bob"))
    with launched(manager, starts):
        manager.tick()
        reasons = [ClusterSource(manager).job(job_id)["reason"] for job_id in (first, second, starved)]
    assert reasons == [
        "it could use 2 more devices, but ann's jobs may have 2 devices together",
        "it could use 2 more devices, but the fair share of zoe's jobs is 2 devices now",
        "the fair share of bob's jobs is 0 devices now",
    ]


def test_what_can_never_run_is_refused(world: World, starts: Starts) -> None:
    manager = world.manager("8", users=USERS)
    with pytest.raises(ManagerError, match=r"ann's jobs may have 2 .* together here, and this one needs at least 3"):
        manager.submit(job(demand=4, min=3, owner="ann"))
    with pytest.raises(ManagerError, match="is not the name of a user"):
        manager.submit(job(owner="../ann"))


def test_mine_are_the_jobs_of_the_user_who_asks(world: World, starts: Starts, tmp_path: Path) -> None:
    manager = world.manager("4")
    theirs = manager.submit(job(owner="somebody-else"))
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")

    with answering(manager):
        mine = json.loads(vf("submit", "--json", str(script)))["id"]
        given = json.loads(vf("submit", "--json", "--owner", "carl", str(script)))["id"]
        assert [job["id"] for job in json.loads(vf("queue", "--mine", "--json"))] == [mine]
        assert theirs not in vf("queue", "--mine")
        assert theirs in vf("queue")
        assert getpass.getuser() in vf("queue", "--wide")
        assert json.loads(vf("describe", given, "--json"))["owner"] == "carl"
        assert "carl" in vf("describe", given)


def test_the_users_file_lies_in_the_clusters_folder_or_is_given(tmp_path: Path) -> None:
    wfs = registry.make("wfs")
    assert users_in(None, wfs) is None
    folder().mkdir(parents=True)
    (folder() / "users.toml").write_text("[user.ann]\nweight = 2\n")
    assert users_in(None, wfs) == Users({"ann": Party(2.0)})
    other = tmp_path / "other.toml"
    other.write_text("[user.ann]\ndevices = 3\n")
    assert users_in(other, registry.make("srtf")) == Users({"ann": Party(devices=3)})
    with pytest.raises(ConfigError, match="gives weights, which the policy srtf knows nothing of"):
        users_in(None, registry.make("srtf"))
    other.write_text("[user.ann\n")
    with pytest.raises(ConfigError, match="is not TOML"):
        users_in(other, wfs)
    refused = CliRunner().invoke(app, ["cluster", "up", "--users", str(other)])
    assert "is not TOML" in str(refused.exception)  # before anything is started
