"""What an application does with redis-py's client for clusters."""

import sys
import time

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

port, step = int(sys.argv[1]), sys.argv[2]


def connect():
    retry = Retry(ConstantBackoff(0.2), 20)
    return redis.RedisCluster(host="127.0.0.1", port=port, decode_responses=True, retry=retry)


def counts():
    """Keys that a new client counts, and those that it finds by scanning.

    Both are sums over the nodes that the client takes for primaries. One that follows a MOVED takes the node it came
    from for a replica from then on, though that may lead other groups. Some versions count at one node alone unless told.
    """
    fresh = connect()
    return fresh.dbsize(target_nodes=fresh.PRIMARIES), len(set(fresh.scan_iter(match="key:*", count=50)))


client = connect()

if step == "write":
    assert len(client.get_primaries()) >= 1
    for key in range(200):
        assert client.set(f"key:{key}", key)
    pipe = client.pipeline()
    for key in range(200):
        pipe.incr(f"{{count:{key % 7}}}:{key}")
    assert pipe.execute() == [1] * 200
    assert client.mget_nonatomic(*[f"key:{key}" for key in range(200)]) == [str(key) for key in range(200)]
    assert client.mset({"{user}:name": "Ana", "{user}:city": "Lisbon"})
    try:
        client.mset({"one": 1, "two": 2})
        raise AssertionError("keys of several slots")
    except redis.exceptions.RedisClusterException:
        pass
    print("written")
else:
    for key in range(200):
        assert client.get(f"key:{key}") == str(key), key
    assert client.mget("{user}:name", "{user}:city") == ["Ana", "Lisbon"]
    deadline = time.monotonic() + 120
    while (counted := counts()) != (402, 200):
        assert time.monotonic() < deadline, counted
        time.sleep(0.5)
    print("read")
