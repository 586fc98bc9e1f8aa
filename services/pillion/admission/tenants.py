"""What each tenant may use, has used and has set aside. Pure; the desk keeps it in Redis.

Limits are token buckets that hold a minute's worth. A request is let in with its prompt and the output that
its tenant's requests bring on average set aside, and settled with what it really used: what was too much
comes back, what was too little is owed. What is larger than a bucket passes a full one, and owes the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pillion.admission.fair import Shares
from pillion.admission.line import Waiting, entry_id
from pillion.config import TenantLimits
from pillion.contracts.entries import Rate, Request, Spent

GUESS = 128.0  # output tokens of a choice before any has ended
FADE = 0.1  # weight of the latest in a mean
GRACE = 60.0  # seconds after its deadline that a request whose end nobody told is given up
LONGEST = 3600.0  # seconds until then where a request has no deadline
SWEEP = 10.0  # seconds between two looks for those
KNOWN = 4096  # tenants that are remembered while nothing of theirs is here


Unreadable = tuple[str, str, Exception]
"""Kind, where it stands, and why."""


class Account(msgspec.Struct, array_like=True):
    """A tenant's, as it is kept. Levels may be below zero: owed."""

    requests: float  # that may be sent at once
    tokens: float  # that may be used at once
    at: float  # when the levels were so, seconds since the epoch
    served: float = 0.0  # the share's counter
    output: float = 0.0  # mean output tokens of a choice; 0: none has ended
    seconds: float = 0.0  # mean time of a request from admission to its end


class Reservation(msgspec.Struct, array_like=True):
    """What is set aside for a request, from its admission to its end."""

    tenant: str
    entry: str  # of `submit`; a word of its end is younger
    sequences: int
    prompt: int  # tokens to compute
    output: float  # tokens
    since: float  # seconds since the epoch
    until: float  # given up then
    predicted: float | None = None  # seconds to its first token
    gone_on: bool = False  # counted in its tenant's share


@dataclass(frozen=True, slots=True)
class Short:
    """Which limit a request is over. `limit`: the setting's name without `tenant_`."""

    limit: str
    most: int
    retry_after: float  # seconds until it would fit


class Tenants:
    """All tenants that are known, and all requests that were let in and have not ended."""

    def __init__(self, default: TenantLimits, own: Mapping[str, TenantLimits]) -> None:
        self.shares = Shares(lambda tenant: self.limits(tenant).weight)
        self.output = 0.0  # mean output tokens of a choice, over all tenants; 0: none has ended
        self._default = default
        self._own = own
        self._accounts: dict[str, Account] = {}
        self._reserved: dict[str, Reservation] = {}
        self._of: dict[str, set[str]] = {}  # reserved requests by tenant
        self._changed: tuple[set[str], set[str]] = (
            set(),
            set(),
        )  # tenants, requests; since they were last kept
        self._swept = 0.0

    def __contains__(self, request: str) -> bool:
        """Whether it was let in and has not ended."""
        return request in self._reserved

    def __len__(self) -> int:
        return len(self._reserved)

    def limits(self, tenant: str) -> TenantLimits:
        return self._own.get(tenant, self._default)

    def expected(self, request: Request) -> float:
        """Output tokens over all its choices."""
        account = self._accounts.get(request.tenant)
        mean = (account.output if account else 0.0) or self.output or GUESS
        each = mean if request.max_tokens is None else min(mean, request.max_tokens)
        return each * request.n * len(request.prompts)

    # --- limits ------------------------------------------------------------------------------------

    def short(self, waiting: Waiting, now: float) -> Short | None:
        """The limit of its tenant that the request is over; None lets it in."""
        tenant = waiting.request.tenant
        limits, account = self.limits(tenant), self._filled(tenant, now)
        if limits.rpm is not None and account.requests < 1:
            return Short("rpm", limits.rpm, (1 - account.requests) * 60 / limits.rpm)
        if limits.tpm is not None:
            wanted = min(waiting.share, limits.tpm)
            if account.tokens < wanted:
                return Short("tpm", limits.tpm, (wanted - account.tokens) * 60 / limits.tpm)
        held = self._of.get(tenant)
        if limits.concurrency is not None and held:
            mine = [self._reserved[request] for request in held]
            if sum(one.sequences for one in mine) + waiting.choices > limits.concurrency:
                oldest = min(one.since for one in mine)
                return Short("concurrency", limits.concurrency, max(oldest + account.seconds - now, 1.0))
        return None

    def rates(self, tenant: str, now: float) -> tuple[Rate, ...]:
        """How the tenant stands with those of its limits that fill with time."""
        limits, account = self.limits(tenant), self._filled(tenant, now)
        levels = (("requests", limits.rpm, account.requests), ("tokens", limits.tpm, account.tokens))
        return tuple(
            Rate(kind, limit, max(0, int(level)), (limit - level) * 60 / limit)
            for kind, limit, level in levels
            if limit is not None
        )

    def reserve(self, waiting: Waiting, now: float, predicted: float | None) -> None:
        request = waiting.request
        account = self._filled(request.tenant, now)
        account.requests -= 1
        account.tokens -= waiting.share
        end = request.deadline if request.deadline is not None else now + LONGEST
        one = Reservation(
            tenant=request.tenant,
            entry=waiting.entry,
            sequences=waiting.choices,
            prompt=waiting.suffix,
            output=waiting.output,
            since=now,
            until=end + GRACE,
            predicted=predicted,
        )
        self._keep(request.id, one)

    def release(self, request: str, now: float) -> None:
        """It does not run after all: everything comes back. Nothing is done where nothing is set aside."""
        one = self._forget(request)
        if one is not None:
            account = self._filled(one.tenant, now)
            account.requests += 1
            self._settle(one, account, 0.0)

    # --- life of a request -------------------------------------------------------------------------

    def go(self, request: str) -> None:
        """It goes on to a replica: its tenant's share counts it. Once, however often it goes on."""
        one = self._reserved.get(request)
        if one is not None and not one.gone_on:
            one.gone_on = True
            self.shares.go(one.tenant, one.prompt + one.output)
            self._change(one.tenant, request)

    def first(self, request: str) -> float | None:
        """It has its first token; answers when that was predicted, in seconds from its arrival. Once."""
        one = self._reserved.get(request)
        if one is None or one.predicted is None:
            return None
        predicted, one.predicted = one.predicted, None
        self._change(one.tenant, request)
        return predicted

    def ended(self, spent: Spent, entry: str, now: float) -> None:
        """`entry`: of the word of its end. One of an earlier life of the request is passed over."""
        known = self._reserved.get(spent.request)
        if known is None or entry_id(entry) <= entry_id(known.entry):
            return
        self._forget(spent.request)
        account = self._filled(known.tenant, now)
        if spent.output:
            each = spent.output / known.sequences
            account.output = _mean(account.output, each)
            self.output = _mean(self.output, each)
            account.seconds = _mean(account.seconds, max(now - known.since, 0.0))
        self._settle(known, account, spent.prompt + spent.output)

    def expire(self, now: float) -> int:
        """Gives up those whose end nobody told, and forgets tenants that are long away. Answers how many."""
        if now - self._swept < SWEEP:
            return 0
        self._swept = now
        over = [request for request, one in self._reserved.items() if one.until < now]
        for request in over:
            self._forget(request)
        idle = [tenant for tenant in self._accounts if tenant not in self._of]
        idle.sort(key=lambda tenant: self._accounts[tenant].at)
        for tenant in idle[: max(len(self._accounts) - KNOWN, 0)]:
            del self._accounts[tenant]
            self.shares.counters.pop(tenant, None)
            self._changed[0].add(tenant)
        return len(over)

    # --- what is kept ------------------------------------------------------------------------------

    def changes(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Accounts and reservations that changed since they were last asked for; empty: gone."""
        tenants, requests = self._changed
        self._changed = set(), set()
        for tenant in tenants:
            if tenant in self._accounts:
                account, limits = self._accounts[tenant], self.limits(tenant)
                account.served = self.shares[tenant]
                account.requests = _level(account.requests, 0, limits.rpm)
                account.tokens = _level(account.tokens, 0, limits.tpm)
        encode = msgspec.msgpack.encode
        return (
            {t: encode(self._accounts[t]) if t in self._accounts else b"" for t in tenants},
            {r: encode(self._reserved[r]) if r in self._reserved else b"" for r in requests},
        )

    def keep_all(self) -> None:
        """All counts as changed: what was kept is lost."""
        self._changed[0].update(self._accounts)
        self._changed[1].update(self._reserved)

    def restore(self, accounts: Mapping[str, bytes], reserved: Mapping[str, bytes]) -> list[Unreadable]:
        """Takes over what a predecessor kept. What cannot be read begins anew, and is told."""
        aside: list[Unreadable] = []
        for tenant, payload in accounts.items():
            try:
                self._accounts[tenant] = msgspec.msgpack.decode(payload, type=Account)
            except msgspec.DecodeError as error:
                aside.append(("Account", f"of tenant {tenant}", error))
        for request, payload in reserved.items():
            try:
                self._keep(request, msgspec.msgpack.decode(payload, type=Reservation))
            except msgspec.DecodeError as error:
                aside.append(("Reservation", f"of request {request}", error))
        self._changed = set(), set()
        self.shares.restore((tenant, account.served) for tenant, account in self._accounts.items())
        told = [account.output for account in self._accounts.values() if account.output]
        self.output = sum(told) / len(told) if told else 0.0
        return aside

    def oldest(self) -> str | None:
        """The oldest entry that something is set aside for: words of ends before it are none of ours."""
        return min((one.entry for one in self._reserved.values()), key=entry_id, default=None)

    # --- inside ------------------------------------------------------------------------------------

    def _filled(self, tenant: str, now: float) -> Account:
        """The tenant's account with its levels as of now, never above a minute's worth."""
        limits = self.limits(tenant)
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(limits.rpm or 0, limits.tpm or 0, now)
        minutes = max(now - account.at, 0.0) / 60
        account.requests = _level(account.requests, minutes, limits.rpm)
        account.tokens = _level(account.tokens, minutes, limits.tpm)
        account.at = max(now, account.at)
        self._changed[0].add(tenant)
        return account

    def _settle(self, one: Reservation, account: Account, used: float) -> None:
        set_aside = one.prompt + one.output
        account.tokens += set_aside - used
        if one.gone_on:
            self.shares.correct(one.tenant, used - set_aside)

    def _keep(self, request: str, one: Reservation) -> None:
        self._reserved[request] = one
        self._of.setdefault(one.tenant, set()).add(request)
        self._change(one.tenant, request)

    def _forget(self, request: str) -> Reservation | None:
        one = self._reserved.pop(request, None)
        if one is not None:
            self._of[one.tenant].discard(request)
            if not self._of[one.tenant]:
                del self._of[one.tenant]
            self._change(one.tenant, request)
        return one

    def _change(self, tenant: str, request: str) -> None:
        self._changed[0].add(tenant)
        self._changed[1].add(request)


def _level(level: float, minutes: float, limit: int | None) -> float:
    return 0.0 if limit is None else min(level + minutes * limit, limit)


def _mean(before: float, latest: float) -> float:
    return latest if not before else (1 - FADE) * before + FADE * latest
