"""The optimizer's state in blocks, of which this worker holds some.

Between steps the optimizers themselves hold no state. For an update, the blocks take the parameters' places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from virtualflow.core import blocks
from virtualflow.core.blocks import Block
from virtualflow.core.mapping import DeviceId
from virtualflow.core.membership import Group
from virtualflow.core.seeds import derive
from virtualflow.errors import ConfigError
from virtualflow.train import accelerators
from virtualflow.train.part_files import PartWriters
from virtualflow.train.peers import Peers
from virtualflow.train.sharded.block_layout import BlockLayout
from virtualflow.train.sharded.block_moves import BlockMoves, Held, check_nothing_lost
from virtualflow.train.sharded.cut_state import OptimizerState, assembled, cut_state, empty_on_host
from virtualflow.train.sharded.saved_blocks import SavedBlocks, part_of
from virtualflow.train.state import Optimizers

HomeDevices = tuple[DeviceId, ...]


class Shards:
    """The blocks of a model's parameters, who holds them, and the state of those that this worker holds."""

    def __init__(self, model: nn.Module, optimizers: Optimizers, copies: int, virtual_nodes: int, peers: Peers) -> None:
        self._optimizers = optimizers
        self._copies = copies
        self._virtual_nodes = virtual_nodes
        self._memories: dict[DeviceId, int] = {}  # of the devices of this generation, as they have told each other
        self._peers = peers
        self._membership = peers.membership
        self.layout = BlockLayout(model, optimizers)
        self.held: Held = {}
        self.gradients: dict[Block, Tensor | None] = {}  # of the step that is made, for the blocks held here
        self.holders: dict[Block, HomeDevices] = {}  # since they were placed last; the first one speaks for a block
        self._home: tuple[int, HomeDevices] | None = None  # the generation and the devices for which they were placed
        self._target: tuple[int, HomeDevices] = (-1, ())
        self.follow()
        if self._membership.joining:
            self.held.clear()  # the job's state comes from those who have it

    @property
    def home(self) -> HomeDevices:
        """The devices among which blocks are divided."""
        return self._home[1] if self._home is not None else ()

    @property
    def is_replicated(self) -> bool:
        """Whether everyone holds everything."""
        return all(len(holders) == len(self.home) for holders in self.holders.values())

    def follow(self) -> None:
        """The model and the parameter groups may have changed since the last step. Cheap if they have not."""
        if new := self.layout.follow():
            self._take_in(new, lambda block: True)
            self._home = None
        known = set(self.layout.blocks)
        if len(self.held) > len(known) or not self.held.keys() <= known:
            self.held = {block: state for block, state in self.held.items() if block in known}
            self._home = None
        self._refuse_foreign_state()

    def put(
        self, handed_over: list[tuple[str, int, int, OptimizerState]] | None, saved: SavedBlocks | None = None
    ) -> None:
        """Hold what a worker that is about to leave has *handed over*, or of a checkpoint what is this worker's.

        If that was not *saved* in blocks, the optimizers have been given its state.
        """
        new = self.layout.follow()
        self._home = None
        if handed_over is not None:
            self.held = {Block(name, start, stop): state for name, start, stop, state in handed_over}
            return
        placed = self._placed(self._membership.devices)
        self.held = {}
        mine = [block for block, devices in placed.items() if self._membership.device in devices]
        if saved is None:
            self._take_in([*dict.fromkeys((*new, *self.layout.cuts))], set(mine).__contains__)
            return
        for block in mine:
            parameter = self.layout.cuts[block.tensor].parameter
            self.held[block] = saved.block(block, parameter, counts_on_host=not self._counts_on_device(parameter))

    def _counts_on_device(self, parameter: nn.Parameter) -> bool:
        """Whether the parameter's optimizer wants even single numbers where the parameter is."""
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        mine = (group for group in groups if any(parameter is other for other in group["params"]))
        return any(group.get("fused") or group.get("capturable") for group in mine)

    def part_to_write(self) -> PartWriters:
        """This worker's part of a checkpoint. All workers ask at a time: holders share the work."""
        blocks, group = self.layout.blocks, self._peers.group
        if group is None:
            check_nothing_lost(blocks, [[()] * (block in self.held) for block in blocks])
            return part_of(self.held, blocks, 0, 1)
        writers = BlockMoves(blocks, self.held, group, self.device).shared_out()
        mine = [block for block, rank in zip(blocks, writers, strict=True) if rank == group.rank]
        return part_of(self.held, mine, group.rank, group.size)

    def hand_over(self) -> list[tuple[str, int, int, OptimizerState]]:
        """What this worker holds, for ``put`` on another one."""
        return [(block.tensor, block.start, block.stop, state) for block, state in self.held.items()]

    def settle(self, staying: Callable[[], HomeDevices] | None = None) -> None:
        """Have every block where it belongs: on the devices of this generation, or on those that are *staying*."""
        while self._home != (self._membership.generation, self._wanted(staying)):
            self._peers.agree(lambda: self._move(staying))
            self._home = self._target
            self.holders = self._placed(self._target[1])
            mine = self._membership.device
            self.held = {block: state for block, state in self.held.items() if mine in self.holders[block]}

    def _wanted(self, staying: Callable[[], HomeDevices] | None) -> HomeDevices:
        return self._membership.devices if staying is None else staying()

    def _move(self, staying: Callable[[], HomeDevices] | None) -> Tensor:
        generation, wanted = self._membership.generation, self._wanted(staying)
        layout = derive(0, repr(wanted), len(self.layout.blocks), *self.layout.cuts)
        self._peers.announce("move", 0, layout).check()
        self._target = generation, wanted
        group, ranks = self._peers.group, {device: rank for rank, device in enumerate(self._membership.devices)}
        if group is None:
            check_nothing_lost(self.layout.blocks, [[()] * (block in self.held) for block in self.layout.blocks])
        else:
            self._memories = dict(zip(ranks, self._everyones_memory(group), strict=True))
            placed = self._placed(wanted)
            moves = BlockMoves(self.layout.blocks, self.held, group, self.device)
            self.held |= moves.fetch({block: [ranks[device] for device in placed[block]] for block in placed})
            # Whoever completes this knows that everyone has what it is to hold: what is too much can be dropped.
            group.max(torch.zeros(1)).wait()
        return torch.zeros(0, dtype=torch.int64)

    def _everyones_memory(self, group: Group) -> list[int]:
        mine = torch.tensor([accelerators.memory_bytes(self.device)])
        everyone = [torch.empty_like(mine) for _ in range(group.size)]
        group.gather(mine, everyone).wait()
        return [int(theirs) for theirs in everyone]

    def _placed(self, devices: HomeDevices) -> dict[Block, HomeDevices]:
        """Who is to hold which block: a function of the blocks, the devices and the mapping alone."""
        sizes = [block.elements for block in self.layout.blocks]
        mapping = self._membership.mapping(self._virtual_nodes)
        shares = blocks.shares(devices, mapping, [self._memories.get(device, 0) for device in devices])
        places = blocks.place(sizes, len(devices), self._copies, shares)
        return {b: tuple(devices[p] for p in held) for b, held in zip(self.layout.blocks, places, strict=True)}

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((cut.parameter.device for cut in self.layout.cuts.values()), torch.device("cpu"))

    @property
    def rank(self) -> int:
        """This worker's."""
        return self._membership.devices.index(self._membership.device)

    def speakers(self) -> dict[Block, int]:
        """For each block the rank of its first holder that is still there."""
        ranks = {device: rank for rank, device in enumerate(self._membership.devices)}
        alive = [[ranks[device] for device in self.holders[b] if device in ranks] for b in self.layout.blocks]
        check_nothing_lost(self.layout.blocks, alive)
        return {block: held[0] for block, held in zip(self.layout.blocks, alive, strict=True)}

    def ranks_of(self, block: Block) -> list[int]:
        """The ranks of those who hold *block* and are still there."""
        devices = self._membership.devices
        return [devices.index(device) for device in self.holders[block] if device in devices]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The optimizers have the blocks that this worker holds as their parameters, with gradients and state."""
        lists = [(group, group["params"]) for optimizer in self._optimizers for group in optimizer.param_groups]
        names = {cut.parameter: cut for cut in self.layout.cuts.values()}
        parts: dict[Block, nn.Parameter] = {}
        if any(parameter not in names for _, parameters in lists for parameter in parameters):
            raise ConfigError(
                "the optimizer holds a parameter that is not in the model, so that nobody has its state. Make it part "
                "of the model, or give it to an optimizer of its own."
            )
        for group, parameters in lists:
            group["params"] = []
            for block in (block for parameter in parameters for block in names[parameter].blocks if block in self.held):
                part = self.layout.part(block)
                parts[block] = part if isinstance(part, nn.Parameter) else nn.Parameter(part)
                parts[block].grad = self.gradients.get(block)
                group["params"].append(parts[block])
        for optimizer in self._optimizers:
            mine = {id(part) for group in optimizer.param_groups for part in group["params"]}
            states = ((part, self.held[block]) for block, part in parts.items() if id(part) in mine)
            optimizer.state.update((part, state) for part, state in states if state)
        try:
            yield
        finally:
            for group, parameters in lists:
                group["params"] = parameters
            for block, part in parts.items():
                part.grad = None
                for optimizer in self._optimizers:
                    self.held[block] = optimizer.state.pop(part, self.held[block])
            self.gradients = {}

    def collected(self, names: Iterable[str]) -> Iterator[tuple[str, OptimizerState]]:
        """The state of each of the parameters *names*, on the lead; a collective call, within an agreement."""
        cuts = {name: self.layout.cuts[name] for name in names if name in self.layout.cuts}
        group = self._peers.group
        if group is None:
            check_nothing_lost(self.layout.blocks, [[()] * (block in self.held) for block in self.layout.blocks])
            for name, cut in cuts.items():
                yield name, assembled(cut.parameter, [(block, self.held[block]) for block in cut.blocks], empty_on_host)
            return
        moves = BlockMoves(self.layout.blocks, self.held, group, self.device)
        yield from zip(cuts, moves.collect(cuts.values()), strict=True)

    def _take_in(self, names: list[str], is_mine: Callable[[Block], bool]) -> None:
        """Hold what the optimizers have of *names*, in blocks."""
        for name in names:
            cut = self.layout.cuts[name]
            state: OptimizerState = {}
            for optimizer in self._optimizers:
                state = optimizer.state.pop(cut.parameter, None) or state
            self.held |= {b: cut_state(state, cut.parameter, b) for b in cut.blocks if is_mine(b)}

    def _refuse_foreign_state(self) -> None:
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                if state:
                    name = next((n for n, cut in self.layout.cuts.items() if cut.parameter is parameter), "a parameter")
                    raise ConfigError(
                        f"the script has given the optimizer a state for {name!r}, while the job's is spread over "
                        'devices. Do so before the Trainer is made, or use sharding="none".'
                    )
            optimizer.state.clear()
