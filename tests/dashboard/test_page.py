"""The page in a real browser, against a server that says what each test tells it to."""

from __future__ import annotations

import itertools
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.busy import a_busy_day, a_report, curves
from tests.dashboard.scripted import Scripted, a_job, a_segment, page_files, served, some_devices
from virtualflow.dashboard.page import MODULES, STATIC, standalone

TWO, ALL = ("cpu:0", "cpu:1"), ("cpu:0", "cpu:1", "cpu:2", "cpu:3")
EVIL = "<img src=x onerror=document.title='owned'>"


def test_what_the_manager_has_trouble_with_is_said(page: Any, scripted: Scripted) -> None:
    page.goto(scripted.address)
    page.get_by_text("vf submit train.py").wait_for()
    assert page.locator("#troubles").is_hidden()
    scripted.push([])
    scripted.state["cluster"]["troubles"] = [f"the policy las has failed: {EVIL}", "the disk is full"]
    page.get_by_text(f"the policy las has failed: {EVIL} the disk is full").wait_for()
    scripted.push([])
    page.locator("#troubles").wait_for(state="hidden")


def test_boxes_appear_as_the_cluster_changes(page: Any, scripted: Scripted) -> None:
    page.goto(scripted.address)
    page.get_by_text("vf submit train.py").wait_for()
    begin = time.time() - 100
    scripted.push([a_job("one", devices=ALL)], [a_segment("one", ALL, begin)])
    page.locator(".box[data-job=one]").wait_for()
    segments = [
        a_segment("one", ALL, begin, begin + 50),
        a_segment("one", TWO, begin + 50),
        a_segment("two", ALL[2:], begin + 50),
    ]
    scripted.push([a_job("one", devices=TWO), a_job("two", devices=ALL[2:])], segments)
    page.locator(".box[data-job=two]").wait_for()
    assert page.locator(".box[data-job=one]").count() == 2
    assert page.locator(".box").first.get_attribute("class") != page.locator(".box[data-job=two]").get_attribute(
        "class"
    )


def test_a_box_is_hatched_where_device_types_mix(page: Any, scripted: Scripted) -> None:
    scripted.state["devices"] = some_devices(V100=1, P100=1)
    devices = ("V100:0", "P100:0")
    begin = time.time() - 100
    scripted.push(
        [a_job("j", devices=devices)],
        [a_segment("j", devices[:1], begin, begin + 50), a_segment("j", devices, begin + 50)],
    )
    page.goto(scripted.address)
    page.locator(".box.mixed .hatch").wait_for()
    assert page.locator(".box").count() == 2
    page.get_by_role("button", name="By device").click()
    page.locator(".axis text", has_text="V100:0").wait_for()


def test_boxes_cover_what_was_allocated_and_nothing_twice(page: Any, scripted: Scripted) -> None:
    chance = random.Random(0)
    segments = []
    for job in range(12):
        moments = sorted(chance.sample(range(1000), 5))
        for begin, end in itertools.pairwise(moments):
            count = chance.randint(1, 4)
            types = {"a": count, "b": 1} if count > 2 else {"a": count}
            segments.append({"job": str(job), "types": types, "begin": begin, "end": end})
    page.goto(scripted.address)
    script = "async (segments) => (await import('./static/stacking.js')).stacked(segments, 0.01).boxes"
    boxes = page.evaluate(script, segments)
    allocated = sum((each["end"] - each["begin"]) * sum(each["types"].values()) for each in segments)
    assert sum((box["end"] - box["begin"]) * box["height"] for box in boxes) == allocated
    for one, other in itertools.combinations(boxes, 2):
        apart = one["end"] <= other["begin"] or other["end"] <= one["begin"]
        above = one["bottom"] >= other["bottom"] + other["height"] or other["bottom"] >= one["bottom"] + one["height"]
        assert apart or above


def test_rows_change_without_a_reload(page: Any, scripted: Scripted) -> None:
    scripted.push([a_job("one", "QUEUED", step=0)])
    page.goto(scripted.address)
    page.locator("#jobs-queue [data-job=one]").wait_for()
    page.evaluate("window.same = true")
    scripted.push([a_job("one", devices=ALL, step=250, loss=0.125)])
    row = page.locator("#jobs-running [data-job=one]")
    row.get_by_text("250 / 1,000").wait_for()
    assert row.locator(".at-loss").inner_text() == "0.1250"
    assert page.locator("#jobs-queue").is_hidden()
    assert page.evaluate("window.same")


def test_the_page_shows_which_virtual_node_runs_where(page: Any, scripted: Scripted) -> None:
    scripted.push([a_job("one", devices=TWO, nodes=4)])
    page.goto(scripted.address)
    tiles = page.locator(".device")
    tiles.nth(1).get_by_text("one").wait_for()
    assert tiles.nth(1).locator(".chips b").all_inner_texts() == ["2", "3"]
    assert tiles.nth(2).get_by_text("free").is_visible()


def test_a_device_shows_what_its_worker_uses(page: Any, scripted: Scripted) -> None:
    use = {
        "cpu:0": {"cpu_cores": 0.974, "memory_bytes": 412 << 20, "accelerator_bytes": None},
        "cpu:1": {"cpu_cores": 1.5, "memory_bytes": 3 << 29, "accelerator_bytes": 12 << 30},
    }
    scripted.push([a_job("one", devices=ALL[:3], use=use)])
    page.goto(scripted.address)
    tiles = page.locator(".device .use")
    tiles.nth(0).get_by_text("97% CPU · 412 MB", exact=True).wait_for()
    assert tiles.nth(1).inner_text() == "150% CPU · 1.5 GB · GPU 12 GB"
    assert tiles.nth(2).is_hidden()  # its worker has reported nothing yet
    assert tiles.nth(3).is_hidden()  # free


@pytest.mark.parametrize("view", ["Stacked", "By device"])
def test_paused_time_is_shown_as_paused(page: Any, scripted: Scripted, view: str) -> None:
    now = time.time()
    segments = [
        a_segment("back", ALL, now - 1000, now - 700),
        a_segment("held", ALL, now - 700, now - 400),
        a_segment("back", TWO, now - 400),
        a_segment("over", ALL[2:], now - 400, now - 200),
    ]
    jobs = [a_job("back", devices=TWO), a_job("held", "PAUSED"), a_job("over", "DONE", ended=now - 200)]
    scripted.push([*jobs, a_job("new", "QUEUED")], segments)
    page.goto(scripted.address)
    page.get_by_role("button", name=view).click()
    page.locator(".box.paused[data-job=held]").wait_for()  # until now
    assert page.locator(".box.paused").count() == 2
    band = page.locator(".box.paused[data-job=back]")
    assert band.locator("text").text_content() == "back paused"
    assert page.get_by_text("paused", exact=True).first.is_visible()  # in the legend
    band.hover()
    assert "paused: it has no device" in page.locator("#allocation-tooltip").inner_text()
    first, second = (
        page.locator(f".box[data-job={job}]:not(.paused)").first.bounding_box() for job in ("back", "held")
    )
    box = band.bounding_box()
    assert abs(box["x"] - (first["x"] + first["width"])) < 2
    assert box["y"] + box["height"] <= second["y"]  # above what runs, on nothing else


def test_the_curves_of_a_job_show_its_pause(page: Any, scripted: Scripted) -> None:
    now = time.time()
    scripted.series["one"] = {
        "time": [now - 100, now - 70, now - 69, now - 20, now],
        "step": [1, 2, 2, 3, 4],
        "loss": [1.0, 0.9, None, 0.8, 0.7],
        "examples_per_second": [8.0, 8.0, None, 8.0, 8.0],
        "devices": [2, 2, 0, 2, 2],
    }
    page.add_init_script(
        "window.words = []; const fill = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (words, ...rest) "
        "{ window.words.push(words); fill.call(this, words, ...rest); }"
    )
    scripted.push([a_job("one", devices=TWO, step=4)])
    page.goto(scripted.address)
    page.wait_for_function("() => window.words.filter((word) => word === 'paused').length >= 2")  # loss and throughput
    page.evaluate("window.words = []")
    page.get_by_role("group", name="Curves over").get_by_role("button", name="Step").click()
    page.wait_for_function("() => window.words.length > 0")
    assert "paused" not in page.evaluate("window.words")  # no step is made meanwhile


def test_more_pauses_than_fit_are_told_and_the_selected_jobs_are_shown(page: Any, scripted: Scripted) -> None:
    now = time.time()
    jobs = [a_job(f"j{number}", "PAUSED", submitted=now - 100 + number) for number in range(9)]
    scripted.push(
        jobs, [a_segment(job["id"], TWO, now - 100 + place, now - 90 + place) for place, job in enumerate(jobs)]
    )
    page.goto(scripted.address)
    page.get_by_text("More jobs are paused than fit").wait_for()
    assert page.locator(".box.paused").count() == 4
    assert page.locator(".box.paused[data-job=j8]").count() == 0
    page.locator("#jobs [data-job=j8] .name").click()
    page.locator(".box.paused[data-job=j8]").wait_for()


def test_a_job_shows_its_curves_events_and_logs(page: Any, scripted: Scripted) -> None:
    now = time.time()
    scripted.series["one"] = curves(now - 100, now, [(now - 100, 2)], 50)
    pause = {"stop": 2.0, "group": 12.5}
    event = {"time": now - 50, "step": 40, "text": "grew to 4 devices", "pause_ms": pause, "total_pause_ms": 14.5}
    scripted.details["one"] = {"events": [event]}
    scripted.logs["one"] = "epoch 1\n\x1b[32mepoch 2\x1b[0m\n"
    scripted.push([a_job("one", devices=ALL, step=5)])
    page.goto(scripted.address)
    page.get_by_text("grew to 4 devices").wait_for()
    assert page.get_by_text("stop 2.0 group 12.5").is_visible()
    assert page.locator("#events td").last.inner_text() == "14.5"
    assert page.locator(".curve canvas").count() == 2
    page.get_by_role("button", name="Logs").click()
    page.get_by_text("epoch 2").wait_for()
    assert page.locator("#log").inner_text() == "epoch 1\nepoch 2\n"


def test_a_job_shows_what_steps_took_and_would_take_elsewhere(page: Any, scripted: Scripted) -> None:
    seen = {"devices": {"P100": 2}, "waves": {"P100": 4}, "steps": 40, "step_seconds": 0.5}
    other = {"devices": {"P100": 2, "K80": 1}, "step_seconds": 0.41, "deviation_seconds": 0.2}
    measured = [seen | {"predicted_step_seconds": 0.512}]
    speed = {"source": "its own steps", "unseen": ["K80"], "measured": measured, "predicted": [other]}
    scripted.details["one"] = {"speed": speed}
    scripted.push([a_job("one", devices=ALL, step=5)])
    page.goto(scripted.address)
    page.get_by_text("from its own steps; of K80 nothing is known").click()
    rows = page.locator("#speed-rows tr")
    assert rows.all_inner_texts() == ["2 P100, 40 steps\t0.500\t0.512", "2 P100 + 1 K80\t\t0.410 ± 0.200"]


def test_names_stay_text(page: Any, scripted: Scripted) -> None:
    scripted.details["j"] = {"events": [{"time": 0, "step": 0, "text": EVIL, "pause_ms": None, "total_pause_ms": None}]}
    job = a_job(EVIL, devices=ALL, id="j", reason=EVIL)
    scripted.push([job], [{**a_segment("j", ALL, time.time() - 50), "name": EVIL}])
    page.goto(scripted.address)
    page.locator("#events tr").wait_for()
    page.locator("#allocation-boxes .box").hover()
    page.locator("#do-cancel").click()
    assert page.locator("#detail-name").inner_text() == EVIL
    assert page.locator("img").count() == 0
    assert page.title() != "owned"


@pytest.mark.parametrize("size", [(390, 844), (820, 1180)], ids=["phone", "tablet"])
def test_nothing_is_wider_than_the_screen(page: Any, size: tuple[int, int]) -> None:
    with served(a_busy_day()) as scripted:
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.goto(scripted.address)
        page.locator("#events tr").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        page.locator("[data-job=j-8] .name").click()
        assert page.evaluate("document.querySelector('#detail').getBoundingClientRect().top < innerHeight / 2")


def test_dark_by_the_system_and_by_the_toggle(page: Any, scripted: Scripted) -> None:
    def dark() -> bool:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) < 200

    page.goto(scripted.address)
    assert not dark()
    page.emulate_media(color_scheme="dark")
    assert dark()
    page.get_by_role("button", name="Light or dark").click()
    assert not dark()
    page.reload()
    page.get_by_text("vf submit train.py").wait_for()
    assert not dark()


def test_cancelling_asks_first(page: Any, scripted: Scripted) -> None:
    scripted.push([a_job("one", devices=ALL)])
    page.goto(scripted.address)
    page.get_by_role("button", name="Cancel…").click()
    page.keyboard.press("Escape")
    assert scripted.posted == []
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_text("one is being cancelled").wait_for()
    assert scripted.posted == [("jobs/one/cancel", {})]


def test_what_the_buttons_ask_for(page: Any, scripted: Scripted) -> None:
    scripted.push([a_job("one", devices=ALL), a_job("two", "PAUSED")])
    page.goto(scripted.address)
    page.get_by_role("button", name="Submit job…").click()
    page.get_by_label("Script").fill("train.py")
    page.get_by_label("Arguments").fill("""--note "two words" --lr=0.1 'a b'""")
    page.get_by_label("Devices wanted").fill("3")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_text("Submitted as new").wait_for()
    page.get_by_role("button", name="Priority…").click()
    page.locator("#priority-dialog").get_by_label("Priority").fill("7")
    page.keyboard.press("Enter")
    page.get_by_text("Priority of one: 7").wait_for()
    page.get_by_role("button", name="Resize…").click()
    page.get_by_label("Auto").check()
    page.get_by_role("button", name="Resize", exact=True).click()
    page.get_by_text("the policy decides again").wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("one pauses").wait_for()
    page.locator("[data-job=two] .name").click()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("two is in the queue").wait_for()
    page.get_by_role("button", name="Drain device cpu:3").click()
    page.get_by_role("button", name="Drain", exact=True).last.click()
    page.get_by_text("cpu:3 is being drained").wait_for()
    submitted = {
        "script": "train.py",
        "arguments": ["--note", "two words", "--lr=0.1", "a b"],
        "priority": 1,
        "demand": 3,
        "min": 1,
    }
    assert scripted.posted == [
        ("jobs", submitted),
        ("jobs/one/priority", {"priority": 7}),
        ("jobs/one/resize", {"devices": "auto"}),
        ("jobs/one/pause", {}),
        ("jobs/two/resume", {}),
        ("devices/cpu:3/drain", {}),
    ]


def test_the_servers_refusal_is_shown(page: Any, scripted: Scripted) -> None:
    scripted.refuse = "job one has ended"
    scripted.push([a_job("one", devices=ALL)])
    page.goto(scripted.address)
    page.get_by_role("button", name="Pause").click()
    page.locator(".toast.error", has_text="job one has ended").wait_for()


@pytest.mark.parametrize(
    ("caller", "shown", "other"),
    [
        ({"name": "wall", "role": "look", "owner": ""}, (False, [], False), []),
        (
            {"name": "ann", "role": "submit", "owner": "ann"},
            (True, ["Resize…", "Priority…", "Pause", "Cancel…"], False),
            [],
        ),
        (
            {"name": "ada", "role": "administer", "owner": ""},
            (True, ["Resize…", "Priority…", "Pause", "Cancel…"], True),
            ["Resize…", "Priority…", "Pause", "Cancel…"],
        ),
    ],
)
def test_a_page_shows_no_button_that_its_token_may_not_use(
    page: Any, scripted: Scripted, caller: dict[str, str], shown: tuple[bool, list[str], bool], other: list[str]
) -> None:
    scripted.caller = caller
    scripted.push([a_job("hers", devices=TWO, owner="ann"), a_job("his", devices=("cpu:2",), owner="bob")])
    page.goto(scripted.address)
    page.locator("#jobs [data-job=hers] button.name").click()
    if caller["role"] != "administer":
        page.get_by_text(f"{caller['name']} may {caller['role']}").wait_for()
    else:
        page.locator("#submit").wait_for()
    buttons = page.locator(".actions button:visible")
    drains = page.locator(".device button.small")
    assert (page.locator("#submit").is_visible(), buttons.all_inner_texts(), drains.first.is_visible()) == shown
    page.locator("#jobs [data-job=his] button.name").click()
    page.locator("#detail-name", has_text="his").wait_for()
    assert buttons.all_inner_texts() == other


def test_a_lost_stream_is_told_and_found_again(page: Any, scripted: Scripted) -> None:
    page.goto(scripted.address)
    page.get_by_text("live", exact=True).wait_for()
    scripted.broken = True
    page.get_by_text("The stream is lost.").wait_for()
    scripted.broken = False
    scripted.push([a_job("late", devices=ALL)])
    page.evaluate("document.getElementById('reconnect').click()")  # it may have reconnected by itself already
    page.locator("#jobs [data-job=late]").wait_for()
    assert page.locator("#banner").is_hidden()


def test_a_single_job_offers_what_a_single_job_can(page: Any, scripted: Scripted) -> None:
    scripted.push([a_job("one", devices=ALL)], mode="job")
    page.goto(scripted.address)
    page.get_by_role("button", name="Stop…").wait_for()
    visible = page.locator(".actions button:visible").all_inner_texts()
    assert visible == ["Resize…", "Stop…"]
    for elsewhere in ("#jobs", "#submit", ".device button.small"):
        assert page.locator(elsewhere).first.is_hidden()


def test_a_report_opens_from_a_file(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "dashboard.html"
    file.write_text(standalone(a_report(6, "V100:4", ["wfs", "priority"])))
    page.goto(file.as_uri())
    page.locator(".box").first.wait_for()
    assert page.locator("#jobs-ended tr[data-job]").count() == 6
    title = page.title()
    page.locator("#policies-body").get_by_role("button", name="priority").click()
    assert page.title() != title
    assert page.locator("#submit, .actions button, #reconnect").first.is_hidden()
    page.locator("#jobs-ended tr[data-job] .name").nth(2).click()
    assert page.locator("#events tr").count() >= 1


def test_embedded_data_cannot_end_its_script() -> None:
    page = standalone({"state": "</script><script>alert(1)</script>"})
    assert "alert(1)</script>" not in page
    assert page.count("</script>") == 3


def test_a_copy_needs_no_other_file() -> None:
    page = standalone({})
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "import {" not in page


def test_every_file_of_the_page_is_known() -> None:
    files = page_files()
    assert files[""].name == "index.html"
    assert {path.name for path in files.values() if path.suffix == ".js" and path.parent == STATIC} == set(MODULES)
    assert (STATIC / "vendor" / "uPlot.LICENSE").exists()


def shown_jobs(page: Any) -> list[str]:
    return [str(row.get_attribute("data-job")) for row in page.locator("#jobs-table tr[data-job]").all()]


def test_jobs_are_found_filtered_and_sorted(page: Any, scripted: Scripted) -> None:
    jobs = [
        a_job("bert", devices=TWO, loss=0.5),
        a_job("resnet", devices=TWO, loss=0.25),
        a_job("gpt", "QUEUED"),
        a_job("old-bert", "DONE", ended=time.time()),
    ]
    scripted.push(jobs)
    page.goto(scripted.address)
    page.locator("[data-job=gpt]").wait_for()
    page.get_by_label("Search jobs").fill("bert")
    assert shown_jobs(page) == ["bert", "old-bert"]
    page.get_by_label("Which jobs to show").select_option("ended")
    assert shown_jobs(page) == ["old-bert"]
    page.get_by_label("Search jobs").fill("nothing like it")
    assert page.get_by_text("No job matches.").is_visible()
    page.get_by_label("Search jobs").fill("")
    page.get_by_label("Which jobs to show").select_option("running")
    loss = page.locator("#jobs-head .at-loss")
    orders = []
    for _ in range(3):
        loss.get_by_role("button").click()
        orders.append((loss.get_attribute("aria-sort"), shown_jobs(page)))
    assert orders[:2] == [("descending", ["bert", "resnet"]), ("ascending", ["resnet", "bert"])]
    assert orders[2][0] is None


def test_a_refused_submit_keeps_its_input(page: Any, scripted: Scripted) -> None:
    scripted.refuse = "there is no script trian.py"
    page.goto(scripted.address)
    page.get_by_role("button", name="Submit job…").click()
    page.get_by_label("Script").fill("trian.py")
    page.get_by_label("Devices wanted").fill("3")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.locator(".toast.error", has_text="there is no script trian.py").wait_for()
    scripted.refuse = None
    assert page.get_by_label("Devices wanted").input_value() == "3"
    page.get_by_label("Script").fill("train.py")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_text("Submitted as new").wait_for()
    assert [body["script"] for _, body in scripted.posted] == ["trian.py", "train.py"]


def test_the_grid_of_a_job_in_stages_is_drawn_and_follows_every_change(page: Any, scripted: Scripted) -> None:
    def drawn() -> list[list[tuple[str, str, str]]]:
        rows = page.locator("#cells tr").all()
        facts = ("el => [el.dataset.device, el.getAttribute('colspan'), getComputedStyle(el).backgroundColor]",)
        return [[tuple(cell.evaluate(*facts)) for cell in row.locator("td[data-device]").all()] for row in rows]

    def show(cells: list[list[str]], shadows: list[list[str]], step: int) -> None:
        nodes = {
            device: [v for v in range(4) if any(row[v] == device for row in cells)] for row in cells for device in row
        }
        scripted.details["j"] = {"cells": cells, "shadows": shadows}
        scripted.push([a_job("j", devices=tuple(nodes), nodes=4, mapping=nodes, stages=len(cells), step=step)])

    show([["0"] * 4, ["1", "1", "2", "2"]], [["2"], []], 1)
    page.goto(scripted.address)
    page.locator("#cells-view").get_by_text("2 stages, 4 virtual nodes").wait_for()
    [[(first, across, colour)], [(second, half, other), (third, _, last)]] = drawn()
    assert [first, across, second, half, third] == ["0", "4", "1", "2", "2"]
    assert len({colour, other, last}) == 3
    assert page.locator("#cells tr").first.inner_text().split() == ["0", "0", "also", "on", "2"]
    assert "rgba(0, 0, 0, 0)" not in (colour, other, last)

    show([["1"] * 4, ["1", "1", EVIL, EVIL]], [[], []], 1)  # no step in between
    page.locator("#cells").get_by_text(EVIL).wait_for()
    [[(_, _, kept)], [_, (_, _, new)]] = drawn()
    assert kept == other  # a device keeps its colour
    assert new not in (colour, other, last)
    scripted.push([a_job("whole", devices=TWO)])
    page.locator("#cells-view").wait_for(state="hidden")


def test_two_runs_are_compared_over_steps_and_the_loss_has_a_log_scale(page: Any, scripted: Scripted) -> None:
    now = time.time()
    scripted.series["one"] = curves(now - 100, now, [(now - 100, 2)], 50)
    scripted.series["one"]["metrics"] = {"accuracy": {"time": [now - 50, now], "step": [10, 20], "value": [0.5, 0.75]}}
    scripted.series["two"] = curves(now - 500, now - 400, [(now - 500, 2)], 50)
    scripted.push([a_job("one", devices=TWO, step=50), a_job("two", "DONE", step=50, ended=now)])
    page.goto(scripted.address)
    page.locator("#metrics [data-metric=accuracy] canvas").wait_for()
    assert page.locator("#metrics header").inner_text().split() == ["accuracy", "0.7500"]
    page.get_by_label("Compare with another job").select_option("two")
    over = page.get_by_role("group", name="Curves over").get_by_role("button", name="Step")
    page.wait_for_function("() => document.querySelector('#curves-by [data-value=step]').ariaPressed === 'true'")
    assert over.get_attribute("aria-pressed") == "true"
    before = page.evaluate("document.querySelector('#loss-chart canvas').toDataURL()")
    page.get_by_role("button", name="Log", exact=True).click()
    assert page.evaluate("document.querySelector('#loss-chart canvas').toDataURL()") != before
    page.get_by_label("Compare with another job").select_option("")
    assert page.locator(".toast.error").count() == 0


def test_the_log_can_be_downloaded_whole(page: Any, scripted: Scripted) -> None:
    scripted.logs["one"] = "epoch 1\nepoch 2\n"
    scripted.push([a_job("one", devices=TWO, step=5)])
    page.goto(scripted.address)
    page.get_by_role("button", name="Logs").click()
    page.get_by_text("epoch 2").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "one.log"
    assert Path(download.value.path()).read_text() == "epoch 1\nepoch 2\n"
