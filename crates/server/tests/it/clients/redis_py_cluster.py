"""What an application does with redis-py's client for clusters."""

import sys

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

port, step = int(sys.argv[1]), sys.argv[2]
client = redis.RedisCluster(
    host="127.0.0.1", port=port, decode_responses=True, retry=Retry(ConstantBackoff(0.2), 20)
)

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
    assert client.dbsize() == 402
    assert len(set(client.scan_iter(match="key:*", count=50))) == 200
    print("read")
