"""Lua scripts: what must happen at once, and only for the holder of the epoch."""

import hashlib
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from pillion.bus.connection import Connection


class LeaseLost(Exception):
    """The caller's epoch is no longer the holder's. Its process must exit."""


class DataLost(Exception):
    """Redis does not know the caller's epoch: it lost data. What the caller holds is to be restored."""


class Script:
    """A Lua script that is sent whole only when the server does not know it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, connection: Connection, keys: list[str], args: list[Any]) -> Any:
        """Raises LeaseLost where the script found a later epoch, DataLost where it found none or an older."""
        try:
            try:
                return await connection.call("EVALSHA", self.sha, len(keys), *keys, *args)
            except NoScriptError:
                return await connection.call("EVAL", self.source, len(keys), *keys, *args)
        except ResponseError as error:
            if "LEASELOST" in str(error):
                raise LeaseLost(str(error)) from None
            if "DATALOST" in str(error):
                raise DataLost(str(error)) from None
            raise


# KEYS[1] holds the last epoch that was given out: a successor fences its predecessor off, not the clock, so a
# lease that ran out while Redis was away costs nothing. No epoch, or an older one: Redis lost data, and
# nothing may be written before the holder has restored what it holds.
_LATER = """
local last = redis.call('GET', KEYS[1])
if last and tonumber(last) > tonumber(ARGV[1]) then
  return redis.error_reply('LEASELOST epoch ' .. ARGV[1] .. ' was followed by ' .. last .. ' in ' .. KEYS[1])
end
"""
_FENCE = (
    _LATER
    + """
if last ~= ARGV[1] then
  return redis.error_reply('DATALOST epoch ' .. ARGV[1] .. ' is not known in ' .. KEYS[1])
end
"""
)

# KEYS lease, epoch; ARGV ttl ms, whether an epoch must be there. Answers the new epoch, nil while another
# holds the lease, 0 where the epoch is missing that must be there.
ACQUIRE = Script("""
if redis.call('EXISTS', KEYS[1]) == 1 then return nil end
local last = redis.call('GET', KEYS[2])
if not last and ARGV[2] == '1' then return '0' end
local now = redis.call('TIME')
local epoch = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
last = tonumber(last or '0')
if epoch <= last then epoch = last + 1 end
local text = string.format('%.0f', epoch)
redis.call('SET', KEYS[2], text)
redis.call('SET', KEYS[1], text, 'PX', ARGV[1])
return text
""")

# KEYS epoch, lease; ARGV epoch, ttl ms. PEXPIRE works also where Redis has no memory left.
RENEW = Script(
    _FENCE
    + """
if redis.call('GET', KEYS[2]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[2], ARGV[2]) end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 1
"""
)

# KEYS lease; ARGV epoch.
RELEASE = Script(
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)

# KEYS epoch, source, destination, holder; ARGV epoch, group, entry id, payload, replica, holder's ttl s.
# The entry goes on, once. Where a replica has the request already the entry just ends: it was submitted
# again.
HAND_OVER = Script(
    _FENCE
    + """
if redis.call('XACK', KEYS[2], ARGV[2], ARGV[3]) == 0 then return nil end
redis.call('XDEL', KEYS[2], ARGV[3])
if not redis.call('SET', KEYS[4], ARGV[5], 'NX', 'EX', ARGV[6]) then return nil end
return redis.call('XADD', KEYS[3], '*', 'e', ARGV[4])
"""
)

# KEYS epoch, run stream, submit, record, holder; ARGV epoch, group, entry id, payload, record or nothing,
# record's ttl s. An entry of a dead replica goes back to where it came from, once, with what it has brought.
# `epoch` is the replica's, by whose lease this is done.
TAKE_BACK = Script(
    _FENCE
    + """
redis.call('XACK', KEYS[2], ARGV[2], ARGV[3])
if redis.call('XDEL', KEYS[2], ARGV[3]) == 0 then return nil end
if ARGV[5] ~= '' then redis.call('SET', KEYS[4], ARGV[5], 'EX', ARGV[6]) end
redis.call('DEL', KEYS[5])
return redis.call('XADD', KEYS[3], '*', 'e', ARGV[4])
"""
)

# KEYS epoch, run stream, journal, replicas; ARGV epoch, replica. Nothing is left to tell of the replica.
CLEAR = Script(
    _FENCE
    + """
if redis.call('XLEN', KEYS[2]) == 0 then redis.call('DEL', KEYS[3]) end
return redis.call('HDEL', KEYS[4], ARGV[2])
"""
)

RESTORED_AT_ONCE = 64  # entries that one run of RESTORE is given

# Puts back what the holder of the epoch has in memory, and only then lets its other scripts run again.
# KEYS epoch, lease, stream, journal, then one record per finished request, then one holder per entry.
# ARGV epoch, ttl ms, group, consumer, replica, holder's ttl s, record's ttl s, number of records, records...,
#      then for each entry: its id, payload, journal payload or nothing.
# Answers the id of each entry: its own where it is still there, else its new one. All are pending again.
RESTORE = Script(
    _LATER
    + """
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
redis.pcall('XGROUP', 'CREATE', KEYS[3], ARGV[3], '0', 'MKSTREAM')
local records = tonumber(ARGV[8])
for i = 1, records do redis.call('SET', KEYS[4 + i], ARGV[8 + i], 'EX', ARGV[7]) end
local holder, ids = 4 + records, {}
for arg = 9 + records, #ARGV, 3 do
  local id, payload, items = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]
  local found = redis.call('XRANGE', KEYS[3], id, id)[1]
  if not found or found[2][2] ~= payload then id = redis.call('XADD', KEYS[3], '*', 'e', payload) end
  redis.call('XCLAIM', KEYS[3], ARGV[3], ARGV[4], 0, id, 'FORCE', 'JUSTID')
  if items ~= '' then redis.call('XADD', KEYS[4], '*', 'e', items) end
  holder = holder + 1
  if KEYS[holder] then redis.call('SET', KEYS[holder], ARGV[5], 'EX', ARGV[6]) end
  ids[#ids + 1] = id
end
return ids
"""
)

# KEYS epoch, source, destination, the request's head or none, its holder or none; ARGV epoch, group, entry
# id, payload, destination's maxlen, then for the head a field and its value. The entry ends here, with a word
# (a refusal, a final item) to whom it came from; the head says that this life of the request runs no more
# (`parked`), or that none will (`refused`).
SETTLE = Script(
    _FENCE
    + """
if redis.call('XACK', KEYS[2], ARGV[2], ARGV[3]) == 0 then return nil end
redis.call('XDEL', KEYS[2], ARGV[3])
if KEYS[4] and redis.call('EXISTS', KEYS[4]) == 1 then redis.call('HSET', KEYS[4], ARGV[6], ARGV[7]) end
if KEYS[5] then redis.call('DEL', KEYS[5]) end
return redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*', 'e', ARGV[4])
"""
)

# KEYS epoch, source, the request's head or none; ARGV epoch, group, entry id, life. The entry ends without a
# word: another one has the same, or the request is parked, as its head then says.
DISCARD = Script(
    _FENCE
    + """
if redis.call('XACK', KEYS[2], ARGV[2], ARGV[3]) == 0 then return 0 end
if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 1 then redis.call('HSET', KEYS[3], 'parked', ARGV[4]) end
return redis.call('XDEL', KEYS[2], ARGV[3])
"""
)

# KEYS epoch, source; ARGV epoch, group, consumer, deliveries. What the consumer holds was handed out so often
# and no more. Answers of how many entries that was not so.
PARDON = Script(
    _FENCE
    + """
local pending = redis.call('XPENDING', KEYS[2], ARGV[2], '-', '+', 100000, ARGV[3])
local pardoned = 0
for _, entry in ipairs(pending) do
  if entry[4] > tonumber(ARGV[4]) then
    redis.call('XCLAIM', KEYS[2], ARGV[2], ARGV[3], 0, entry[1], 'RETRYCOUNT', ARGV[4], 'JUSTID')
    pardoned = pardoned + 1
  end
end
return pardoned
"""
)

# KEYS epoch, then hashes. ARGV epoch, then for each hash: number of pairs, pairs of field and value; an empty
# value takes the field away.
WRITE = Script(
    _FENCE
    + """
local arg = 2
for i = 2, #KEYS do
  local pairs = tonumber(ARGV[arg])
  arg = arg + 1
  for _ = 1, pairs do
    if ARGV[arg + 1] == '' then
      redis.call('HDEL', KEYS[i], ARGV[arg])
    else
      redis.call('HSET', KEYS[i], ARGV[arg], ARGV[arg + 1])
    end
    arg = arg + 2
  end
end
return 1
"""
)

# KEYS stream; ARGV group, consumer. Every other consumer that holds nothing goes: each life of a process
# brings one. In one step, since a consumer that goes takes with it what it was handed.
DISMISS = Script("""
local gone = 0
for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local facts = {}
  for i = 1, #fields, 2 do facts[fields[i]] = fields[i + 1] end
  if facts['name'] ~= ARGV[2] and facts['pending'] == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], facts['name'])
    gone = gone + 1
  end
end
return gone
""")

# One step of one replica, whole: journal first, then each gateway's share, then what finished or is parked,
# then what admission's accounts need to know, where there is any of it.
# KEYS epoch, journal, run, usage, then one `out` per payload, then record, head and
# holder of each folded request.
# ARGV epoch, group, journal payload, usage payload or nothing, maxlen of out and usage, record ttl s,
#      number of outs, outs' payloads..., then for each folded: record, run entry id, life, and 1 where it is
#      parked.
# A head lives as long as its record. A late repetition never puts an old record over that of a later life.
# Answers the journal entry's id.
PUBLISH = Script(
    _FENCE
    + """
local id = redis.call('XADD', KEYS[2], '*', 'e', ARGV[3])
local outs = tonumber(ARGV[7])
for i = 1, outs do
  redis.call('XADD', KEYS[4 + i], 'MAXLEN', '~', ARGV[5], '*', 'e', ARGV[7 + i])
end
local arg = 8 + outs
for i = 5 + outs, #KEYS, 3 do
  redis.call('XACK', KEYS[3], ARGV[2], ARGV[arg + 1])
  if redis.call('XDEL', KEYS[3], ARGV[arg + 1]) == 1 then redis.call('DEL', KEYS[i + 2]) end
  local life = redis.call('HGET', KEYS[i + 1], 'life')
  if not life or life == ARGV[arg + 2] then
    redis.call('SET', KEYS[i], ARGV[arg], 'EX', ARGV[6])
    redis.call('EXPIRE', KEYS[i + 1], ARGV[6])
    if life and ARGV[arg + 3] == '1' then redis.call('HSET', KEYS[i + 1], 'parked', life) end
  end
  arg = arg + 4
end
if ARGV[4] ~= '' then
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[5], '*', 'e', ARGV[4])
end
return id
"""
)

# A new request with its head. KEYS submit, head, and `once` where the client gave a key for it;
# ARGV bound, payload, head, gateway, claim, ttl s, request id, former id, life.
# Answers the entry's id (empty where an answer got lost and this ran before), the other request that has the
# key, and whether there is room. With another, or without room, it does nothing.
SUBMIT = Script("""
local other = KEYS[3] and redis.call('GET', KEYS[3])
if other and other ~= ARGV[7] and other ~= ARGV[8] then return {'', other, 1} end
if redis.call('HGET', KEYS[2], 'claim') == ARGV[5] then return {'', '', 1} end
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[1]) then return {'', '', 0} end
redis.call(
  'HSET', KEYS[2], 'head', ARGV[3], 'owner', ARGV[4], 'claim', ARGV[5], 'life', ARGV[9], 'parked', -1
)
redis.call('EXPIRE', KEYS[2], ARGV[6])
if KEYS[3] then redis.call('SET', KEYS[3], ARGV[7], 'EX', ARGV[6]) end
return {redis.call('XADD', KEYS[1], '*', 'e', ARGV[2]), '', 1}
""")

# The next life of a parked request, for another owner. KEYS submit, head, the former owner's `out`, parking;
# ARGV bound, payload, gateway, claim, ttl s, former life, word to the former owner or nothing.
# Answers the entry's id (empty where this ran before), whether the request is the caller's (else another one
# took it), and whether there is room.
TAKE_UP = Script("""
if redis.call('HGET', KEYS[2], 'claim') == ARGV[4] then return {'', 1, 1} end
local now = redis.call('HMGET', KEYS[2], 'life', 'parked')
if now[1] ~= ARGV[6] or now[2] ~= ARGV[6] then return {'', 0, 1} end
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[1]) then return {'', 1, 0} end
redis.call('HSET', KEYS[2], 'owner', ARGV[3], 'claim', ARGV[4], 'life', ARGV[6] + 1)
redis.call('EXPIRE', KEYS[2], ARGV[5])
redis.call('DEL', KEYS[4])
if ARGV[7] ~= '' then redis.call('XADD', KEYS[3], 'NOMKSTREAM', '*', 'e', ARGV[7]) end
return {redis.call('XADD', KEYS[1], '*', 'e', ARGV[2]), 1, 1}
""")

# Nothing is left of a request that never ran.
# KEYS head, and `once` where the client gave a key; ARGV claim, request id.
FORGET = Script("""
if redis.call('HGET', KEYS[1], 'claim') == ARGV[1] then redis.call('DEL', KEYS[1]) end
if KEYS[2] and redis.call('GET', KEYS[2]) == ARGV[2] then redis.call('DEL', KEYS[2]) end
return 1
""")

# How a request's tokens came to its client. KEYS head; ARGV that. No head comes back by this.
TELL = Script("""
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return redis.call('HSET', KEYS[1], 'told', ARGV[1])
""")
