"""``vf port`` recognises what people's scripts do, and says what to write instead, in the script's own names."""

from __future__ import annotations

import email
import json
from pathlib import Path

import pytest
import torch

from virtualflow.errors import ConfigError
from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.rules import advise

ROOT = Path(__file__).parents[2]
IMPORTS = "import os, copy, random, itertools, torch\nimport torch.distributed as dist\nfrom torch import nn\n"
BEFORE = IMPORTS.count("\n")


def advice_on(code: str) -> list[Advice]:
    return advise((IMPORTS + code).encode(), "train.py")


CLAIMS = {  # the line that matters comes first; then what is said of it
    "process groups": ('dist.init_process_group("nccl")', "change", "`vf run --devices N`"),
    "the end of process groups": ("dist.destroy_process_group()", "change", "delete it"),
    "DDP": ("net = nn.parallel.DistributedDataParallel(net)", "change", "keep `net` unwrapped"),
    "DataParallel": ("net = nn.DataParallel(net)", "change", "keep `net` unwrapped"),
    "torchrun's variables": ('rank = int(os.environ["LOCAL_RANK"])', "change", "trainer.is_lead"),
    "variables with a default": ('size = int(os.getenv("WORLD_SIZE", 1))', "change", "trainer.is_lead"),
    "the local rank as an option": ('parser.add_argument("--local_rank", type=int)', "change", "delete it"),
    "ranks": ("rank = dist.get_rank()", "change", "delete it"),
    "set_device": ("torch.cuda.set_device(rank)", "change", "its own device"),
    "spawned processes": ("torch.multiprocessing.spawn(main, nprocs=4)", "change", "call the function itself"),
    "sums over processes": ("dist.all_reduce(loss)", "change", "trainer.step(batch)"),
    "barriers": ("dist.barrier()", "change", "delete it"),
    "rates that follow the devices": ("lr = 0.1 * world_size", "change", "batch of all of them"),
    "accumulation that follows them": ("accum //= ddp_world_size", "change", "batch of all of them"),
    "synchronised batch norm": ("net = nn.SyncBatchNorm.convert_sync_batchnorm(net)", "change", "one virtual node"),
    "FSDP": ("net = FullyShardedDataParallel(net)", "can't", "whole model"),
    "DeepSpeed": ("engine = deepspeed.initialize(model=net)", "can't", "whole model"),
    "distributed samplers": ("s = torch.utils.data.DistributedSampler(d)", "change", "shuffle=True"),
    "their epochs": ("sampler.set_epoch(epoch)", "change", "delete it"),
    "loaders": ("train = torch.utils.data.DataLoader(d, 32)", "check", "trainer.batches(train)"),
    "their batch size": ("train = torch.utils.data.DataLoader(d, batch_size=a.bs)", "check", "batch_size=a.bs"),
    "loaders of whole batches": ("t = torch.utils.data.DataLoader(d, batch_size=None)", "change", "steps(n, batch_fn)"),
    "their processes": ("t = torch.utils.data.DataLoader(d, 8, worker_init_fn=w)", "change", "worker_init_fn="),
    "iterable datasets": ("class Lines(torch.utils.data.IterableDataset): pass", "change", "vf.Stream(open_shard"),
    "streamed datasets": ('d = load_dataset("c4", streaming=True)', "change", "vf.Stream(open_shard"),
    "endless loaders": ("batches = itertools.cycle(train)", "change", "trainer.steps(n, train)"),
    "schedules": ("cosine = torch.optim.lr_scheduler.StepLR(opt, 3)", "change", "state=[cosine]"),
    "plateaus": ("p = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)", "change", "trainer.evaluate"),
    "rates by hand": ('opt.param_groups[0]["lr"] = 0.1', "check", "trainer.global_step"),
    "clipping": ("nn.utils.clip_grad_norm_(net.parameters(), a.clip)", "change", "clip_grad_norm=a.clip"),
    "clipping by value": ("nn.utils.clip_grad_value_(net.parameters(), 1.0)", "change", "on_gradients=clip"),
    "Fabric's clipping": ("fabric.clip_gradients(net, opt, max_norm=a.clip)", "change", "clip_grad_norm=a.clip"),
    "Fabric's clipping by value": ("fabric.clip_gradients(net, opt, clip_val=0.5)", "change", "parameters(), 0.5)"),
    "Fabric's loaders": ("train = fabric.setup_dataloaders(train)", "change", "the DataLoader itself"),
    "Fabric's processes": ("fabric.launch()", "change", "delete it"),
    "loss scaling": ("scaling = torch.amp.GradScaler()", "change", "grad_scaler=scaling"),
    "its update": ("scaler.update()", "change", "delete it"),
    "autocast": ('with torch.autocast("cuda"): pass', "check", "loss_fn"),
    "LBFGS": ("opt = torch.optim.LBFGS(net.parameters())", "can't", "first-order"),
    "closures": ("optimizer.step(closure)", "can't", "closure"),
    "updates": ("optimizer.step()", "change", "trainer.step(batch)"),
    "cleared gradients": ("optimizer.zero_grad()", "change", "trainer.step(batch)"),
    "prints on rank 0": ("if rank == 0: print(1)", "change", "`if trainer.is_lead:`"),
    "one of several conditions": ("if rank == 0 and verbose: print(1)", "change", "`if trainer.is_lead and verbose:`"),
    "ranks in a list": ("if args.local_rank in [-1, 0]: print(1)", "change", "`if trainer.is_lead:`"),
    "a flag": ("if master_process: print(1)", "change", "`if trainer.is_lead:`"),
    "a flag that is set": ("first = ddp_rank == 0", "change", "`trainer.is_lead`"),
    "saves on rank 0": ("if not rank: torch.save(x, 'a.pt')", "change", "take it out of this `if`"),
    "saves": ("torch.save(net.state_dict(), out / 'a.pt')", "change", "trainer.export(out / 'a.pt')"),
    "saved models": ("model.save_pretrained(out)", "change", "trainer.is_lead"),
    "checkpoints": ("torch.load(path)", "check", "trainer.load(path)"),
    "seeds": ("torch.manual_seed(a.seed)", "change", "`vf.seed(a.seed)`"),
    "seeds of Python": ("random.seed(7)", "change", "`vf.seed(7)`"),
    "moves to a device": ("x = x.to(device)", "check", "worker's device"),
    "moves to a numbered one": ("x = x.cuda(local_rank)", "change", "without a number"),
    "a numbered device": ('device = torch.device(f"cuda:{rank}")', "change", "without a number"),
    "a numbered device by name": ('device = f"cuda:{n}"', "change", "without a number"),
    "compilation": ("net = torch.compile(net)", "check", "works as it is"),
    "dynamic shapes": ("net = torch.compile(net, dynamic=True)", "change", "dynamic=False"),
    "threads": ("torch.set_num_threads(8)", "change", "threads_per_device"),
    "averages of the weights": ("ema = torch.optim.swa_utils.AveragedModel(net)", "change", "state=["),
    "copies of the model": ("teacher = copy.deepcopy(model)", "check", "state=[teacher]"),
    "W&B": ('import wandb; wandb.init(project="x")', "change", "trainer.is_lead"),
    "its records": ('import wandb; wandb.log({"loss": 1})', "change", "trainer.is_lead"),
    "TensorBoard": ("w = torch.utils.tensorboard.SummaryWriter()", "change", "vf tensorboard JOB"),
    "transformers": ("from transformers import Trainer", "change", "from virtualflow.transformers import Trainer"),
    "transformers by its full name": ("import transformers; transformers.Trainer(m)", "change", "virtualflow.trans"),
    "its sharding": ("args = TrainingArguments(out, deepspeed='a.json')", "can't", "deepspeed= is refused"),
    "its gradient scaler": ("args = TrainingArguments(out, fp16=True)", "can't", "fp16= is refused: its"),
    "its compilation": ("args = TrainingArguments(out, torch_compile=True)", "can't", "dynamic=False"),
    "its optimizer": ("args = TrainingArguments(out, optim='lomo')", "can't", "optim= is refused"),
    "a model over several devices": ("m = AutoModel.from_pretrained(p, device_map='auto')", "change", "device_map="),
    "TRL": ("from trl import SFTTrainer; t = SFTTrainer(m)", "change", "class SFT(Trainer, SFTTrainer)"),
    "TRL's other trainers": ("from trl import PPOTrainer; t = PPOTrainer(m)", "can't", "no counterpart"),
    "Lightning's CPUs": ("import lightning as L; t = L.Trainer(accelerator='cpu')", "change", "accelerator='cpu'"),
    "metric objects": ("import torchmetrics; acc = torchmetrics.Accuracy('binary')", "check", "share_validation=False"),
    "accelerate": ("from accelerate import Accelerator; a = Accelerator()", "change", "port-accelerate.md"),
    "Lightning": ("import lightning as L; t = L.Trainer(devices=4)", "change", "L.Trainer(..., strategy=Virtual"),
    "manual optimization": ("self.automatic_optimization = False", "can't", "phase for each optimizer"),
    "Fabric": ("import lightning as L; f = L.Fabric()", "change", "vf.Trainer(*fabric.setup(model, optimizer)"),
}  # fmt: skip


@pytest.mark.parametrize(("line", "severity", "words"), CLAIMS.values(), ids=CLAIMS.keys())
def test_a_line_is_recognised(line: str, severity: str, words: str) -> None:
    texts = [(advice.severity, advice.instead) for advice in advice_on(line + "\n") if advice.line == BEFORE + 1]
    assert any(kind == severity and words in text for kind, text in texts), texts


@pytest.mark.parametrize(
    "line",
    [
        "x = x.to(torch.float32)",
        "loss = trainer.step(batch)",
        "d.update(a=1)",
        "if step == 0: print(1)",
        "x = y / 2",
        "colours = itertools.cycle('rgb')",
        "if trainer.is_lead: m.save_pretrained(d)",
        "args = TrainingArguments(out, bf16=True, fp16=False, optim='adamw_torch')",
        "m = AutoModel.from_pretrained(p, device_map=None)",
    ],
)
def test_what_concerns_nobody_is_left_alone(line: str) -> None:
    assert advice_on(line + "\n") == []


LOOP = """
net = nn.Linear(8, 4)
adam = torch.optim.AdamW(net.parameters())
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 10)
train_loader = torch.utils.data.DataLoader(data, batch_size=args.batch, shuffle=True)
best_score = 0.0
for epoch in range(args.epochs):
    for i, (images, labels) in enumerate(train_loader):
        output = net(images)
        total = criterion(output, labels)
        total = total / accum
        total.backward()
        if (i + 1) % accum == 0:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            adam.step()
            adam.zero_grad()
    cosine.step()
    net.eval()
    with torch.no_grad():
        score = sum((net(x).argmax(1) == y).sum() for x, y in test_loader)
    if score > best_score:
        best_score = score
"""


def of(code: str, text: str) -> list[str]:
    """What is said of the line that contains *text*."""
    return [advice.instead for advice in advice_on(code) if text in advice.seen]


def test_a_loop_gets_a_loss_function_and_a_trainer_in_its_own_names() -> None:
    (text,) = (text for text in of(LOOP, "enumerate(train_loader)") if "def loss_fn" in text)
    assert "    images, labels = batch" in text
    assert f"lines {BEFORE + 9} to {BEFORE + 11}" in text
    assert (
        "trainer = vf.Trainer(net, adam, loss_fn, batch_size=args.batch * accum, virtual_nodes=accum, "
        "state=[cosine], clip_grad_norm=1.0)"
    ) in text
    assert "for batch in trainer.batches(train_loader):\n    total = trainer.step(batch)" in text
    assert of(LOOP, "range(args.epochs)") == ["`for epoch in trainer.epochs(args.epochs):`"]


def test_accumulation_becomes_virtual_nodes() -> None:
    assert any("virtual_nodes=accum" in text for text in of(LOOP, "% accum"))
    assert any("leave the division out" in text for text in of(LOOP, "/ accum"))


def test_a_score_that_the_loop_remembers_becomes_a_state() -> None:
    assert any("progress = vf.State(best_score=0.0)" in text for text in of(LOOP, "best_score = 0.0"))


def test_a_loop_without_gradients_becomes_an_evaluation() -> None:
    assert any("trainer.evaluate(test_loader, metric_fn)" in text for text in of(LOOP, "no_grad"))


def test_a_counter_of_batches_is_named() -> None:
    assert any("batch.step" in text for text in of(LOOP, "enumerate"))


IN_FUNCTIONS = """
def train(args, model, loader, optimizer, epoch):
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step()
def main():
    for epoch in range(1, args.epochs + 1):
        train(args, model, loader, optimizer, epoch)
"""


def test_epochs_are_found_where_a_function_trains_one() -> None:
    assert of(IN_FUNCTIONS, "range(1, args.epochs + 1)") == [
        "`for epoch in trainer.epochs(args.epochs):`; epoch counts from 0 there"
    ]


@pytest.mark.parametrize(
    ("head", "count"),
    [
        ("for step in range(max_steps):", "max_steps"),
        ("while step < max_steps:", "max_steps"),
        ("while True:\n    if step > max_iters: break", "max_iters"),
    ],
)
def test_loops_by_step_become_steps(head: str, count: str) -> None:
    body = "    x, y = get_batch('train')\n    model(x, y).backward()\n    optimizer.step()\n"
    code = f"step, batch_size = 0, 8\n{head}\n{body}"
    (text,) = of(code, head.splitlines()[0])
    assert f"for batch in trainer.steps({count}, batch_fn):" in text
    assert "what get_batch draws" in text
    assert "loss_fn, batch_size=batch_size, virtual_nodes=8)" in text


def test_a_loop_over_an_iterator_becomes_steps_over_its_data() -> None:
    text = of("for step in range(9):\n    model(next(batches)).backward()\n    opt.step()\n", "range(9)")
    assert "for batch in trainer.steps(9, train_set):" in text[0]


def test_micro_batches_in_a_loop_of_their_own_are_one_step() -> None:
    code = "while True:\n    for micro_step in range(accum):\n        model(x).backward()\n    optimizer.step()\n"
    assert any("virtual_nodes=accum" in text for text in of(code, "micro_step"))
    assert any("trainer.steps(" in text for text in of(code, "while True"))


def test_two_optimizers_become_phases() -> None:
    code = """
optimizerD = torch.optim.Adam(netD.parameters())
optimizerG = torch.optim.Adam(netG.parameters())
for real in loader:
    errD.backward()
    optimizerD.step()
    errG.backward()
    optimizerG.step()
"""
    (text,) = of(code, "for real in loader")
    assert 'vf.Trainer([netD, netG], {"d": (optimizerD, d_loss), "g": (optimizerG, g_loss)}' in text
    assert '`trainer.step(batch, "d")`, `trainer.step(batch, "g")`' in text


def test_two_optimizers_after_one_backward_pass_are_a_list() -> None:
    code = "for x in loader:\n    loss.backward()\n    muon_opt.step()\n    adam_opt.step()\n"
    (text,) = of(code, "for x in loader")
    assert "vf.Trainer(model, [muon_opt, adam_opt], loss_fn" in text


def test_two_loops_have_an_optimizer_each() -> None:
    one, two = (
        "for x in a:\n    loss.backward()\n    opt1.step()\n",
        "for x in b:\n    loss.backward()\n    opt2.step()\n",
    )
    assert ["vf.Trainer(model, opt1, loss_fn" in text for text in of(one + two, "for x in a")] == [True]
    assert ["vf.Trainer(model, opt2, loss_fn" in text for text in of(one + two, "for x in b")] == [True]


def test_a_scaled_loss_is_the_loss() -> None:
    code = "for batch in loader:\n    scaler.scale(error).backward()\n    scaler.step(adam)\n    scaler.update()\n"
    (text,) = of(code, "for batch in loader")
    assert "vf.Trainer(model, adam, loss_fn" in text
    assert "error = trainer.step(batch)" in text


def test_a_framework_that_owns_the_loop_is_not_told_to_write_one() -> None:
    code = "from transformers import Trainer\nvirtualflow.seed(0)\nloader = DataLoader(d, 8)\nTrainer(m).train()\n"
    assert len(advice_on(code)) == 1


@pytest.mark.parametrize(
    "script", ["digits_resnet.py", "language_model.py", "ports/mnist_vf.py", "ports/gpt_vf.py", "ports/glue_vf.py"]
)
def test_a_script_that_is_ported_has_nothing_to_change(script: str) -> None:
    result = advise((ROOT / "examples" / script).read_bytes(), script)
    assert [advice for advice in result if advice.severity is not Severity.CHECK] == []


@pytest.mark.parametrize("package", [json, email, torch.utils.data], ids=lambda package: package.__name__)
def test_any_file_can_be_read(package: object) -> None:
    files = sorted(Path(package.__file__).parent.rglob("*.py"))  # type: ignore[attr-defined]
    assert files
    for file in files:
        for advice in advise(file.read_bytes(), file.name):
            assert advice.line >= 1
            assert advice.instead


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (b"def f(:\n", "train.py, line 1, can't be read as Python: invalid syntax"),
        (b"x = 1\x00\n", "can't be read as Python"),
        (b"\xff\xfe\x00", "can't be read as Python"),
        (b"(" * 100_000, "can't be read as Python"),
    ],
)
def test_what_is_no_python_is_refused_by_name(code: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        advise(code, "train.py")


@pytest.mark.parametrize(
    "code", ["x = " + "1+" * 600 + "world_size\n", "x" + ".y" * 600 + ".backward()\n", "", "# nothing"]
)
def test_odd_scripts_end_in_no_traceback(code: str) -> None:
    advice_on(code)


REMEMBERING = """torch.manual_seed(0)
best, wait = 0.0, 0
ema = {name: value.clone() for name, value in net.state_dict().items()}
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        opt.step()
        right += (out.argmax(1) == y).sum()
        best, wait = max(best, loss.item()), wait + 1
        with torch.no_grad():
            for name, value in net.state_dict().items():
                ema[name].mul_(0.9).add_(value, alpha=0.1)
    print(loss.item())
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (2, "vf.State(best=0.0)"),
        (2, "vf.State(wait=0)"),
        (3, "state=[ema]"),
        (10, "`out`, `y`: in loss_fn only"),
        (11, "returns is a float"),
        (15, "returns is a float"),
    ],
)
def test_what_a_loop_does_after_its_update_is_told(line: int, words: str) -> None:
    assert any(words in advice.instead for advice in advice_on(REMEMBERING) if advice.line == BEFORE + line)


def test_an_average_of_the_weights_is_no_test() -> None:
    assert not any(
        "trainer.evaluate" in advice.instead for advice in advice_on(REMEMBERING) if advice.line > BEFORE + 4
    )


def test_a_script_that_is_seeded_nowhere_is_told_to_be() -> None:
    assert any("vf.seed(0)" in advice.instead for advice in advice_on(REMEMBERING.partition("\n")[2]))
    assert not any("every run draws" in advice.instead for advice in advice_on(REMEMBERING))


def test_arguments_that_lightnings_strategy_refuses_are_told() -> None:
    code = "import pytorch_lightning as pl\npl.Trainer(accumulate_grad_batches={}, precision={}, sync_batchnorm={})\n"
    refused = [a for a in advice_on(code.format(4, "'16-mixed'", True)) if a.severity == Severity.CANNOT]
    assert len(refused) == 3
    texts = advice_on(code.format(1, "'bf16-mixed'", False))
    assert not any(advice.severity == Severity.CANNOT for advice in texts)
    assert any("`lightning`" in advice.instead for advice in texts)
