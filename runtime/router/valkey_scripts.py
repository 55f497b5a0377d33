"""The store's operations as scripts of Valkey or Redis: each is done whole or not at all.

Keys, all below a prefix that names one life of one primary, all with a TTL:
    h:KEY    hash of one handle: v value, e engine, i id, a its aliases joined
    a:ALIAS  the handle that an edited history with this beginning may take
    e:ENGINE, i:ID  the handles of an engine or an id, by deadline in microseconds
    t:ENGINE what each handle holds in tokens; their sum in the field ''
    l:KEY    a handle that another history of its id has taken
    b:ID     an id that has several histories

The commands need Redis 5.0 (a script may write after TIME); the oldest that the project
supports is 6.2.
"""

import hashlib
from dataclasses import dataclass

_HEX_CHARACTERS = 32

_LIB = (
    """
local p = ARGV[1]
local time = redis.call('TIME')
local now_us, asked_us = time[1] * 1000000 + time[2], tonumber(ARGV[2])
local function forget(engine, key)
  local tokens = redis.call('HGET', p..'t:'..engine, key)
  if tokens then
    redis.call('HINCRBY', p..'t:'..engine, '', -tonumber(tokens))
    redis.call('HDEL', p..'t:'..engine, key)
  end
  redis.call('ZREM', p..'e:'..engine, key)
end
local function drop(key)
  local h = redis.call('HMGET', p..'h:'..key, 'v', 'e', 'i', 'a')
  if not h[1] then return nil end
  local left = redis.call('PTTL', p..'h:'..key)
  redis.call('DEL', p..'h:'..key)
  forget(h[2], key)
  if h[3] ~= '' then
    redis.call('ZREM', p..'i:'..h[3], key)
    for at = 1, #h[4], HEX do
      local alias = p..'a:'..string.sub(h[4], at, at + HEX - 1)
      if redis.call('GET', alias) == key then redis.call('DEL', alias) end
    end
  end
  return {h[1], left}
end
"""
).replace("HEX", str(_HEX_CHARACTERS))


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the digest under which a server knows it."""

    text: str
    sha: str


_UNLESS_LATE = """
if now_us > asked_us + tonumber(ARGV[3]) then
  return redis.error_reply('LATE nobody waits for this command any more')
end
"""


def _script(body: str, *, also_late: bool = False) -> Script:
    text = _LIB + ("" if also_late else _UNLESS_LATE) + body
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


# Answers {value, ms left, 1 if the history was edited}, or nil.
TAKE = _script("""
local id, memory_ms = ARGV[4], ARGV[5]
for n = 6, #ARGV do
  local got = drop(ARGV[n])
  if got then return {got[1], got[2], 0} end
end
if id == '' or redis.call('EXISTS', p..'b:'..id) == 1 then return nil end
for n = 6, #ARGV do
  if redis.call('EXISTS', p..'l:'..ARGV[n]) == 1 then
    redis.call('SET', p..'b:'..id, '1', 'PX', memory_ms)
    return nil
  end
end
for n = 6, #ARGV do
  local key = redis.call('GET', p..'a:'..ARGV[n])
  if key and redis.call('ZSCORE', p..'i:'..id, key) then
    local got = drop(key)
    if got then
      redis.call('SET', p..'l:'..key, '1', 'PX', memory_ms)
      return {got[1], got[2], 1}
    end
  end
end
return nil
""")

# Answers {1 if kept, values to give back}. A late one is done: it can still be found.
PUT = _script(
    """
local key, value, engine, tokens = ARGV[4], ARGV[5], ARGV[7], ARGV[8]
local budget, id, only_new, superseded = tonumber(ARGV[9]), ARGV[10], ARGV[11], tonumber(ARGV[12])
local given = {}
local deadline_us = asked_us + ARGV[6] * 1000
local ttl_ms = math.ceil((deadline_us - now_us) / 1000)
if ttl_ms <= 0 then return {0, given} end
if only_new == '1' then
  if redis.call('EXISTS', p..'h:'..key) == 1 then return {0, given} end
  redis.call('DEL', p..'l:'..key)
else
  local old = drop(key)
  if old then table.insert(given, old[1]) end
  for n = 13, 12 + superseded do
    old = drop(ARGV[n])
    if old then table.insert(given, old[1]) end
  end
end
if budget >= 0 and tonumber(tokens) > budget then return {0, given} end
local function keep_longer(name)
  if redis.call('PTTL', name) < ttl_ms then redis.call('PEXPIRE', name, ttl_ms) end
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', p..'e:'..engine, '-inf', now_us)) do
  forget(engine, gone)
end
redis.call('ZADD', p..'e:'..engine, deadline_us, key)
redis.call('HSET', p..'t:'..engine, key, tokens)
local sum = redis.call('HINCRBY', p..'t:'..engine, '', tokens)
keep_longer(p..'e:'..engine)
keep_longer(p..'t:'..engine)
local aliases = {}
if id ~= '' then
  redis.call('ZREMRANGEBYSCORE', p..'i:'..id, '-inf', now_us)
  redis.call('ZADD', p..'i:'..id, deadline_us, key)
  keep_longer(p..'i:'..id)
  for n = 13 + superseded, #ARGV do
    table.insert(aliases, ARGV[n])
    redis.call('SET', p..'a:'..ARGV[n], key, 'PX', ttl_ms)
  end
end
redis.call('HSET', p..'h:'..key, 'v', value, 'e', engine, 'i', id, 'a', table.concat(aliases))
redis.call('PEXPIRE', p..'h:'..key, ttl_ms)
while budget >= 0 and sum > budget do
  local oldest = redis.call('ZRANGE', p..'e:'..engine, 0, 0)[1]
  if not oldest then break end
  local old = drop(oldest)
  if old then table.insert(given, old[1]) end
  forget(engine, oldest)
  sum = tonumber(redis.call('HGET', p..'t:'..engine, '') or '0')
end
return {1, given}
""",
    also_late=True,
)

# Answers the values to give back.
END = _script("""
local given = {}
for _, key in ipairs(redis.call('ZRANGE', p..'i:'..ARGV[4], 0, -1)) do
  local old = drop(key)
  if old then table.insert(given, old[1]) end
end
redis.call('DEL', p..'i:'..ARGV[4])
return given
""")

# Answers how many.
DROP_ENGINE = _script("""
local dropped = 0
for _, key in ipairs(redis.call('ZRANGE', p..'e:'..ARGV[4], 0, -1)) do
  if drop(key) then dropped = dropped + 1 end
end
redis.call('DEL', p..'e:'..ARGV[4], p..'t:'..ARGV[4])
return dropped
""")

# Answers the tokens that the handles of some engines pin.
PINNED = _script("""
local sum = 0
for n = 4, #ARGV do
  sum = sum + tonumber(redis.call('HGET', p..'t:'..ARGV[n], '') or '0')
end
return sum
""")

# Whether scripts may run and write; answers OK.
PROBE = _script("""
return redis.call('SET', p..'probe', '', 'PX', 1000)
""")
