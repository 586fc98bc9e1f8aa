"""Runs a new request of either form and answers it."""

from dataclasses import replace
from functools import partial

from aiohttp import web

from pillion import clock, ids
from pillion.gateway import thinking
from pillion.gateway.call import Call, running
from pillion.gateway.heads import Once, StreamHead
from pillion.gateway.protocol.entry import Envelope, choices, cut, entry, single
from pillion.gateway.protocol.request import Generation, Messages, Texts
from pillion.gateway.reply import reply
from pillion.gateway.state import Sender, State
from pillion.gateway.turns import Who
from pillion.telemetry import names, tracing

MAX_ADDRESS = 64  # characters


async def generate(
    state: State, http: web.Request, sender: Sender, asked: Generation, once: Once | None = None
) -> web.StreamResponse:
    """Runs a validated request and answers it. Raises ApiError as long as nothing was sent."""
    arrival, start = clock.wall(), clock.monotonic()
    model = state.served(asked.model)
    facts = state.ready(model)
    if isinstance(asked.prompt, Messages) and asked.prompt.ignored_keys:
        state.accounts.metrics[names.IGNORED_KEYS].inc(asked.prompt.ignored_keys)
    choices(asked, state.limits(facts))
    bound = facts.max_model_len if asked.keep is None else None  # what is cut may be longer
    encoded = await state.texter(partial(model.encode, asked.prompt, bound))
    prompts = cut(asked, encoded, state.limits(facts))
    echoes = asked.prompt if prompts == encoded else Texts(ids=prompts)
    echoed = await state.texter(lambda: model.texts(echoes)) if asked.output.echo else ()
    bad_words = (
        await state.texter(lambda: model.words(asked.wishes.bad_words)) if asked.wishes.bad_words else ()
    )
    asked = model.shaped(asked, prompts)
    if (shape := asked.shape) is not None:
        who = who_asks(http, sender)
        await state.compiler.check(model, shape, who)
        if asked.output.thinking:
            asked = replace(asked, shape=shape.behind(thinking.CLOSE))
        else:
            await state.compiler.begins(model, shape, asked.wishes, single(bad_words), who)
    # Asked again: nothing waits from here to where the request counts as live, so no drain overlooks it.
    facts = state.ready(model)
    label = asked.label or sender.label
    named = state.named(label, sender.tenant)
    with named, state.accounts.span(asked.output.form, model.name, sender.span) as span:
        envelope = Envelope(
            id=sender.identity,
            gateway=state.id,
            model=model.name,
            arrival=arrival,
            deadline=arrival + state.config.gateway.request_timeout,
            seed=ids.seed(),
            tenant=sender.tenant,
            traceparent=tracing.traceparent(span),
        )
        request = entry(asked, prompts, state.limits(facts), model.defaults, envelope, bad_words)
        head = StreamHead(
            request=request,
            created=int(arrival),
            fingerprint=facts.fingerprint or None,
            output=asked.output,
            echoed=echoed,
            body=once.body if once else "",
            label=label,
        )
        answer = head.answer(model.tokenizer)
        account = state.accounts.open(request, answer, label, span, start)
        call = Call(request, head, answer, account, state.bus, once)
        with state.live(call):
            return await reply(http, call, running(call, account, call.submit), state.texter)


def who_asks(http: web.Request, sender: Sender) -> Who:
    """Whose constraint it is. Where nobody needs a key, the address tells; and of all who come through one
    proxy, the address that it added. Who writes that header without a proxy divides the own share.
    """
    told = http.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
    return Who(sender.tenant or http.remote or "", told[:MAX_ADDRESS])
