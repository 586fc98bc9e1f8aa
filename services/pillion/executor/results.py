"""What a plan brings, gathered by sequence over its steps."""

from typing import Any

from pillion.contracts import executor_pb2
from pillion.contracts.entries import TokenLogprob
from pillion.executor.slots import Sequence


class Results:
    """One row a sequence, in the order of their first word."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Sequence, list[int], list[TokenLogprob]]] = {}  # by slot
        self._errors: dict[int, str] = {}
        self._prompts: dict[int, bytes] = {}

    def add(self, slot: int, sequence: Sequence, token: int, logprob: TokenLogprob | None) -> None:
        """A token that the sequence got."""
        _, tokens, logprobs = self._row(slot, sequence)
        tokens.append(token)
        if logprob is not None:
            logprobs.append(logprob)

    def prompt(self, slot: int, sequence: Sequence, logprobs: bytes) -> None:
        """What a chunk tells of the prompt's tokens."""
        self._row(slot, sequence)
        self._prompts[slot] = logprobs

    def fail(self, slot: int, sequence: Sequence, message: str) -> None:
        """The sequence ends before its time."""
        self._row(slot, sequence)
        self._errors[slot] = message

    def message(self, plan: int, steps: int) -> executor_pb2.StepResult:
        """With each sequence's finish as it is by now; times are left to others."""
        result = executor_pb2.StepResult(
            step=plan, steps=steps, errors=self._errors, prompt_logprobs=self._prompts
        )
        for slot, (sequence, tokens, logprobs) in self._rows.items():
            finish: Any = sequence.finish
            result.slot.append(slot)
            result.incarnation.append(sequence.incarnation)
            result.token_count.append(len(tokens))
            result.tokens.extend(tokens)
            result.finish.append(finish)
            result.logprob_count.append(len(logprobs))
            result.logprobs.extend(map(_logprob, logprobs))
        return result

    def _row(self, slot: int, sequence: Sequence) -> tuple[Sequence, list[int], list[TokenLogprob]]:
        return self._rows.setdefault(slot, (sequence, [], []))


def _logprob(logprob: TokenLogprob) -> executor_pb2.Logprob:
    return executor_pb2.Logprob(
        logprob=logprob.logprob,
        rank=logprob.rank,
        top_tokens=[token for token, _ in logprob.top],
        top_logprobs=[value for _, value in logprob.top],
    )
