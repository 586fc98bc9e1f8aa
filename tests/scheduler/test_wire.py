"""Results as the executor's contract has them."""

from pillion.contracts import executor_pb2 as pb
from pillion.contracts.entries import TokenLogprob
from pillion.scheduler.messages import RowResult, StepDone
from pillion.scheduler.wire import facts, step_done


def test_an_executor_that_names_no_stages_is_one():
    assert [facts(pb.Facts(pp=stages)).pp for stages in (0, 1, 4)] == [1, 1, 4]


def test_a_result_of_several_steps_is_taken_apart():
    def logprob(value):
        return pb.Logprob(logprob=value, rank=1, top_tokens=[7], top_logprobs=[value])

    message = pb.StepResult(
        step=9, slot=[3, 0, 2, 1], incarnation=[5, 6, 7, 8], token_count=[3, 0, 2, 0],
        tokens=[10, 11, 12, 20, 21],
        finish=[pb.RUNNING, pb.ERROR, pb.STOP, pb.IMPOSSIBLE], logprob_count=[0, 0, 2, 0],
        logprobs=[logprob(-0.5), logprob(-0.25)], errors={0: "no number"}, seconds=0.03, gap_seconds=0.25,
        steps=3, prompt_logprobs={2: b"packed"},
    )  # fmt: skip
    told = tuple(TokenLogprob(value, 1, ((7, value),)) for value in (-0.5, -0.25))
    rows = (
        RowResult(3, 5, (10, 11, 12)),
        RowResult(0, 6, (), "error", error="no number"),
        RowResult(2, 7, (20, 21), "stop", told, prompt_logprobs=b"packed"),
        RowResult(1, 8, (), "impossible"),
    )
    assert step_done(message) == StepDone(9, rows, 0.03, 0.25, 3)
