"""The core's messages to and from the executor's contract."""

import struct

from pillion.contracts import executor_pb2 as pb
from pillion.contracts.entries import SCHEMA, Constraint, Facts, Sampling, TokenLogprob
from pillion.scheduler.messages import Compile, Plan, RowResult, StepDone, Take

_FINISH = {
    pb.RUNNING: None,
    pb.STOP: "stop",
    pb.LENGTH: "length",
    pb.ERROR: "error",
    pb.IMPOSSIBLE: "impossible",
}


def open_message(epoch: int, replica: str) -> pb.ToExecutor:
    return pb.ToExecutor(open=pb.Open(schema=SCHEMA, epoch=epoch, replica=replica))


def plan_message(plan: Plan, ending: bool = False) -> pb.ToExecutor:
    return pb.ToExecutor(
        plan=pb.Plan(
            step=plan.step,
            release=plan.release,
            take=[_take(take) for take in plan.take],
            slot=plan.slots,
            start=plan.starts,
            count=plan.counts,
            sample=plan.samples,
            block_count=plan.block_counts,
            blocks=plan.blocks,
            ending=ending,
        )
    )


def compile_message(compile: Compile) -> pb.ToExecutor:
    return pb.ToExecutor(compile=pb.Compile(place=compile.place, constraint=_constraint(compile.constraint)))


def facts(message: pb.Facts) -> Facts:
    return Facts(
        model=message.model,
        fingerprint=message.fingerprint,
        max_model_len=message.max_model_len,
        vocab_size=message.vocab_size,
        end_tokens=tuple(message.end_tokens),
        block_size=message.block_size,
        num_blocks=message.num_blocks,
        max_num_seqs=message.max_num_seqs,
        max_step_tokens=message.max_step_tokens,
        tile=message.tile,
        dtype=message.dtype,
        backend=message.backend,
        tp=message.tp,
        pp=max(message.pp, 1),  # an executor that does not say is one stage
        backend_reason=message.backend_reason,
        grammars=message.grammars,
    )


def step_done(message: pb.StepResult) -> StepDone:
    rows: list[RowResult] = []
    token, logprob = 0, 0
    tokens = list(message.tokens)
    errors = dict(message.errors)
    prompts = dict(message.prompt_logprobs)
    counts = message.logprob_count or [0] * len(message.slot)
    for slot, incarnation, count, finish, logprobs in zip(
        message.slot, message.incarnation, message.token_count, message.finish, counts, strict=True
    ):
        rows.append(
            RowResult(
                slot=slot,
                incarnation=incarnation,
                tokens=tuple(tokens[token : token + count]),
                finish=_FINISH[finish],
                logprobs=tuple(map(_logprob, message.logprobs[logprob : logprob + logprobs]))
                if logprobs
                else None,
                error=errors.get(slot),
                prompt_logprobs=prompts.get(slot, b""),
            )
        )
        token += count
        logprob += logprobs
    return StepDone(message.step, tuple(rows), message.seconds, message.gap_seconds, message.steps)


def _take(take: Take) -> pb.Take:
    return pb.Take(
        slot=take.slot,
        incarnation=take.incarnation,
        tokens=struct.pack(f"<{len(take.tokens)}i", *take.tokens),
        prompt_length=take.prompt_length,
        blocks=take.blocks,
        max_tokens=take.max_tokens,
        choice=take.choice,
        sampling=_sampling(take.request.sampling),
        traceparent=take.request.traceparent,
        request=take.request.id,
    )


def _sampling(sampling: Sampling) -> pb.Sampling:
    message = pb.Sampling(
        seed=sampling.seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=sampling.stop_token_ids,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=[pb.Word(tokens=word) for word in sampling.bad_words],
    )
    if sampling.logprobs is not None:
        message.logprobs = sampling.logprobs
    if sampling.prompt_logprobs is not None:
        message.prompt_logprobs = sampling.prompt_logprobs
    if sampling.constraint is not None:
        message.constraint.CopyFrom(_constraint(sampling.constraint))
    return message


def _constraint(constraint: Constraint) -> pb.Constraint:
    return pb.Constraint(kind=constraint.kind, text=constraint.text, after=constraint.after)


def _logprob(message: pb.Logprob) -> TokenLogprob:
    return TokenLogprob(
        message.logprob, message.rank, tuple(zip(message.top_tokens, message.top_logprobs, strict=True))
    )
