"""Writes through the leader that Sentinels name, and goes on when it is gone. Its words are the Sentinels' ports."""

import sys
import time

from redis.exceptions import RedisError
from redis.sentinel import Sentinel

PATIENCE_S = 60

sentinel = Sentinel([("127.0.0.1", int(port)) for port in sys.argv[1:]], socket_timeout=1)
master = sentinel.master_for("mymaster", socket_timeout=1)
first = sentinel.discover_master("mymaster")
assert len(sentinel.discover_slaves("mymaster")) == 2
assert master.set("written", "before")
print(f"ready {first[1]}", flush=True)

begun = time.monotonic()
errors = 0
while time.monotonic() - begun < PATIENCE_S:
    try:
        # The library tries again by itself, and may do so until there is another leader: then there is no error.
        master.set("written", "after")
        if sentinel.discover_master("mymaster") != first:
            print(f"found the next leader after {time.monotonic() - begun:.2f} s, {errors} errors")
            sys.exit(0)
    except RedisError:
        errors += 1
    time.sleep(0.01)
sys.exit("no other leader was named")
