"""A ledger that ranks share: each rank holds the rows of one block of ids.

# M = data set, k = number of ranks
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from selective_backprop.distributed.ranks import Ranks
from selective_backprop.ledger import Column, Ledger, LedgerRows, occurrences

AnyLedger: TypeAlias = "Ledger | ShardedLedger"


def make_ledger(num_examples: int, ranks: Ranks, columns: Mapping[str, Column]) -> AnyLedger:
    """Make a ledger for these ranks: a plain one for a single rank, one that is shared for several."""
    return Ledger(num_examples, columns) if ranks.size == 1 else ShardedLedger(num_examples, ranks, columns)


_KINDS = {
    **{"record_scores": 1, "record_losses": 1, "record_probabilities": 1},
    **{"count_offered": 0, "count_selected": 0},
}
"""The methods of a ledger that write to it, and how many values they take for each id."""
_WITHOUT_EPOCH = ("record_probabilities", "count_offered", "count_selected")


class Write(NamedTuple):
    """One write to the ledger, which is applied later."""

    kind: str
    """One of `_KINDS`."""
    ids: Tensor
    values: Tensor
    """One value per id; empty for the kinds that only count ids."""
    epoch: int | Tensor

    def apply(self, ledger: Ledger) -> None:
        values = [self.values] if _KINDS[self.kind] else []
        epoch = [] if self.kind in _WITHOUT_EPOCH else [self.epoch]
        getattr(ledger, self.kind)(self.ids, *values, *epoch)


class ShardedLedger:
    """A `Ledger` that all ranks write to and read from. The more ranks there are, the less memory each needs.

    Rank r owns the r-th of k blocks of ceil(M / k) ids, as `torch.chunk` makes them. Writes wait until `deliver` sends
    them to the owners. An owner applies them rank by rank, in the order of writing. Where a docstring says so, all
    ranks must call the method, in the same order; any rank can call the others at any time.

    Args:
        num_examples: M.
        ranks: the ranks that share the ledger.
        columns: further columns by name, as scorers declare them.
    """

    def __init__(self, num_examples: int, ranks: Ranks, columns: Mapping[str, Column] | None = None) -> None:
        self._num_examples = num_examples
        self._ranks = ranks
        self._block_size = max(1, -(-num_examples // ranks.size))
        self._first = min(ranks.rank * self._block_size, num_examples)
        num_rows = min(self._block_size, num_examples - self._first)
        self.block = Ledger(num_rows, columns)
        """The rows that this rank owns, without writes that are not delivered yet."""
        self._writes: list[Write] = []

    def __len__(self) -> int:
        return self._num_examples

    @property
    def columns(self) -> dict[str, Column]:
        """The declared columns."""
        return self.block.columns

    # ---- writing

    def record_scores(self, ids: Tensor, scores: Tensor, epoch: int) -> None:
        """Store scores of a selection pass."""
        self._write("record_scores", ids, scores, epoch)

    def record_losses(self, ids: Tensor, losses: Tensor, epoch: int) -> None:
        """Store losses of a training step."""
        self._write("record_losses", ids, losses, epoch)

    def record_probabilities(self, ids: Tensor, probabilities: Tensor) -> None:
        """Store each candidate's selection probability."""
        self._write("record_probabilities", ids, probabilities)

    def count_offered(self, ids: Tensor) -> None:
        self._write("count_offered", ids)

    def count_selected(self, ids: Tensor) -> None:
        self._write("count_selected", ids)

    def _write(self, kind: str, ids: Tensor, values: Tensor | None = None, epoch: int = 0) -> None:
        if not len(ids):
            return
        smallest, largest = ids.aminmax()
        # Checked here and not at the delivery, where the other ranks would wait forever for a rank that raised.
        if int(smallest) < 0 or int(largest) >= len(self):
            raise IndexError(
                f"the ids reach from {int(smallest)} to {int(largest)}, but the ledger has {len(self)} examples: ids "
                f"must be from 0 to {len(self) - 1}"
            )
        values = torch.empty(0) if values is None else values.to(torch.float32, copy=True)
        self._writes.append(Write(kind, ids.clone(), values, epoch))

    def deliver(self) -> None:
        """Send the writes to the owners of the rows, which apply them. All ranks must call this."""
        self._deliver_to(self.block)
        self._writes = []

    def _deliver_to(self, block: Ledger) -> None:
        codes: list[list[Tensor]] = [[] for _ in range(self._ranks.size)]
        values: list[list[Tensor]] = [[torch.empty(0)] for _ in range(self._ranks.size)]
        for kind in _KINDS:
            for owner, (part, numbers) in enumerate(self._by_owner(kind)):
                codes[owner].append(part)
                values[owner].append(numbers)
        # Two messages for all kinds: one of whole numbers, which begins with the lengths, and one of values.
        lengths = [torch.tensor([len(part) for part in parts]) for parts in codes]
        codes_in = self._ranks.exchange([torch.cat([n, *parts]) for n, parts in zip(lengths, codes, strict=True)])
        values_in = self._ranks.exchange([torch.cat(parts) for parts in values])
        for kind, *parts in zip(_KINDS, *map(_split, codes_in, values_in), strict=True):
            self._apply(block, kind, torch.cat([code for code, _ in parts]), torch.cat([value for _, value in parts]))

    def _by_owner(self, kind: str) -> list[tuple[Tensor, Tensor]]:
        """Sort the writes of one kind by owner. Each owner gets codes, which are epoch * M + id, and the values."""
        writes = [write for write in self._writes if write.kind == kind]
        if not writes:
            nothing = torch.empty(0, dtype=torch.int64), torch.empty(0)
            return [nothing] * self._ranks.size
        ids, values = torch.cat([write.ids for write in writes]), torch.cat([write.values for write in writes])
        sizes = torch.tensor([len(write.ids) for write in writes])
        codes = ids + len(self) * torch.tensor([write.epoch for write in writes]).repeat_interleave(sizes)
        if _KINDS[kind]:
            # If an id occurs twice in one write, only the last value counts. Dropping the earlier values here means
            # that the owner need not know where a write ends.
            rows = _last_of_each(ids + len(self) * torch.arange(len(writes)).repeat_interleave(sizes))
            ids, codes, values = ids[rows], codes[rows], values[rows]
        order, counts = self._routes(ids)
        parts = torch.split(codes[order], counts)
        if not _KINDS[kind]:
            return [(part, values) for part in parts]
        return list(zip(parts, [part.flatten() for part in torch.split(values[order], counts)], strict=True))

    def _apply(self, block: Ledger, kind: str, codes: Tensor, values: Tensor) -> None:
        ids = codes % max(1, len(self)) - self._first
        if not _KINDS[kind]:
            return Write(kind, ids, values, 0).apply(block)
        epochs = (codes // max(1, len(self))).to(torch.int32)
        # There are many writes, so all ids are applied at once; ids that were written twice are applied again.
        occurrence, values = occurrences(ids), values.view(-1, _KINDS[kind]).squeeze(1)
        for number in range(int(occurrence.max()) + 1 if len(ids) else 0):
            rows = (occurrence == number).nonzero().flatten()
            Write(kind, ids[rows], values[rows], epochs[rows]).apply(block)

    # ---- reading

    def rows(self, ids: Tensor) -> LedgerRows:
        """Look up these ids. The result includes every write made before its first column is read.

        All ranks must call this, and read the same columns in the same order. Each may ask for any ids, or none.
        """
        routes: list[tuple[Tensor, list[Tensor]]] = []

        def fetch(name: str) -> Tensor:
            if not routes:
                self.deliver()
                order, counts = self._routes(ids)
                routes.append((order, self._ranks.exchange(list(torch.split(ids[order], counts)))))
            order, asked = routes[0]
            column: Tensor = getattr(self.block, name)
            answers = [column.index_select(0, part - self._first).flatten() for part in asked]
            found = torch.cat(self._ranks.exchange(answers)).view(len(ids), *column.shape[1:])
            return torch.empty_like(found).index_copy_(0, order, found)

        return LedgerRows(self.block.names, fetch)

    def _routes(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """Return the order that puts ids of the same owner together, and the number of ids of each owner."""
        owners = ids // self._block_size
        return owners.argsort(stable=True), owners.bincount(minlength=self._ranks.size).tolist()

    def has_losses(self) -> bool:
        """Whether the training loss of any example is known, delivered or not. All ranks must call this."""
        own = self.block.has_losses() or any(write.kind == "record_losses" for write in self._writes)
        return bool(torch.cat(self._ranks.gather(torch.tensor([own]), [1] * self._ranks.size)).any())

    def whole(self) -> Ledger:
        """Return all rows as a plain ledger, for reports. All ranks must call this; each needs memory for all rows."""
        # Writes go to a copy: a report must not change the order in which writes are applied, and with it the run.
        block = copy.deepcopy(self.block)
        self._deliver_to(block)
        result = Ledger(len(self), self.columns)
        for name in result.names:
            column: Tensor = getattr(block, name)
            parts = self._ranks.gather(column.flatten())
            setattr(result, name, torch.cat(parts).view(len(self), *column.shape[1:]))
        return result

    # ---- saving

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Return the state of this rank alone: its block, and its writes that are not delivered yet.

        copy: whether the block stays as it is when the ledger is written to.
        """
        return {
            "num_examples": len(self),
            "block": self.block.state_dict(copy=copy),
            "writes": [list(write) for write in self._writes],
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if a saved state does not fit this ledger."""
        if "block" not in state:
            raise ValueError(
                f"the saved ledger is of one process, this run has {self._ranks.size} ranks: save and load with "
                "save_checkpoint and load_checkpoint, which deal it out again"
            )
        if state["num_examples"] != len(self):
            raise ValueError(
                f"saved ledger has {state['num_examples']} examples but the data set has {len(self)}: "
                "was it saved for another data set, or has this one changed?"
            )
        self.block.check_state_dict(state["block"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that the same rank saved, in a run with the same number of ranks."""
        self.check_state_dict(state)
        self.block.load_state_dict(state["block"])
        self._writes = [Write(*write) for write in state["writes"]]


def _split(codes: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Split what a rank sent by the kinds of writes."""
    lengths, codes = codes[: len(_KINDS)].tolist(), codes[len(_KINDS) :]
    of_values = [width * length for width, length in zip(_KINDS.values(), lengths, strict=True)]
    return list(zip(torch.split(codes, lengths), torch.split(values, of_values), strict=True))


def _last_of_each(keys: Tensor) -> Tensor:
    """Find the last place of each key, in the order of rising keys.

    >>> _last_of_each(torch.tensor([7, 3, 7, 3, 5])).tolist()
    [3, 4, 2]
    """
    keys, order = keys.sort(stable=True)
    return order[torch.cat([keys[1:] != keys[:-1], torch.ones(1, dtype=torch.bool)])]
