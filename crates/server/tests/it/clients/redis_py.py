"""A session with redis-py, as an application would hold it: PORT PROTOCOL."""

import sys

import redis

port, protocol = int(sys.argv[1]), int(sys.argv[2])
r = redis.Redis(port=port, protocol=protocol, decode_responses=True)

# Strings, counters, deadlines.
assert r.ping()
assert r.set("city", "Lisbon") is True
assert r.get("city") == "Lisbon"
assert r.set("city", "Porto", nx=True) is None
assert r.set("city", "Porto", xx=True, get=True) == "Lisbon"
assert r.mset({"a": "1", "b": "2", "c": "3"}) is True
assert r.mget("a", "b", "c", "nothing") == ["1", "2", "3", None]
assert r.incrby("visits", 41) == 41 and r.incr("visits") == 42
assert float(r.incrbyfloat("ratio", 0.5)) == 0.5
assert r.expire("city", 100) and 0 < r.ttl("city") <= 100
assert r.getdel("city") == "Porto" and r.exists("city") == 0
assert r.setbit("bits", 7, 1) == 0 and r.bitcount("bits") == 1
assert r.append("text", "Hello") == 5 and r.getrange("text", 1, 3) == "ell"

# Bytes are bytes.
raw = redis.Redis(port=port, protocol=protocol)
blob = bytes(range(256)) * 300
assert raw.set("blob", blob) and raw.get("blob") == blob and raw.strlen("blob") == len(blob)

# Pipelines, with and without a transaction.
with r.pipeline(transaction=False) as pipe:
    for number in range(1000):
        pipe.set(f"p:{number}", number)
    assert all(pipe.execute())
with r.pipeline() as pipe:
    pipe.incr("visits").get("p:999").set("text", "bye", get=True)
    assert pipe.execute() == [43, "999", "Hello"]

# A watched key that changed elsewhere: EXEC answers nil, which redis-py raises.
with r.pipeline() as pipe:
    pipe.watch("visits")
    before = int(pipe.get("visits"))
    redis.Redis(port=port).incr("visits")
    pipe.multi()
    pipe.set("visits", before)
    try:
        pipe.execute()
        raise SystemExit("a broken watch was not noticed")
    except redis.WatchError:
        pass
assert r.get("visits") == "44"

# Errors have their types.
try:
    r.incr("text")
    raise SystemExit("text is no number")
except redis.ResponseError as error:
    assert str(error) == "value is not an integer or out of range", error

# The keyspace.
assert {*r.scan_iter(match="p:*", count=50)} == {f"p:{number}" for number in range(1000)}
assert r.type("blob") == "string" and r.rename("a", "z") and r.get("z") == "1"
assert r.restore("copy", 0, raw.dump("blob")) and raw.get("copy") == blob
assert r.config_get("maxmemory")["maxmemory"] == "0" and r.config_set("timeout", 300)
assert r.info("server")["redis_version"] and r.dbsize() > 1000
assert r.client_setname("pytest") and r.client_getname() == "pytest"

# Databases.
other = redis.Redis(port=port, protocol=protocol, db=1)
assert other.dbsize() == 0 and other.set("only", "here") and r.get("only") is None
assert r.flushall() and r.dbsize() == 0 and other.dbsize() == 0
print("all well")
