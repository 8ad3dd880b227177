"""Follows the changes of a cluster with redis-py alone, over all of its nodes, while they are killed.

    redis_py_changes.py ACCOUNTS SUM SEED PORT ...

Says "ready" and then reads from cursor to cursor, at whichever node, until the key `end` is set. Each event must come
once, in order, and leave the sum of the accounts as it was. What they make of an empty dictionary must be what the
cluster holds at last, and all that was read must be the same read again at each node.
"""

import hashlib
import random
import sys
import time

import redis

ACCOUNTS, SUM, SEED = (int(word) for word in sys.argv[1:4])
PORTS = [int(word) for word in sys.argv[4:]]


class Model:
    """What the changes amount to. A key with a deadline not after the moment of an event is gone at that event."""

    def __init__(self):
        self.values, self.deadlines = {}, {}

    def at(self, key, moment):
        if self.deadlines.get(key, moment + 1) <= moment:
            self.drop(key)
        return self.values.get(key)

    def drop(self, key):
        self.values.pop(key, None)
        self.deadlines.pop(key, None)

    def apply(self, moment, words):
        name, key, rest = words[0].upper(), words[1], words[2:]
        value = self.at(key, moment)
        if name == b"SET":
            self.values[key] = rest[0]
            self.deadlines.pop(key, None)
            if rest[1:]:
                assert rest[1].upper() == b"PXAT", words
                self.deadlines[key] = int(rest[2])
        elif name == b"MSET":
            for name, value in zip(words[1::2], words[2::2]):
                self.drop(name)
                self.values[name] = value
        elif name in (b"INCR", b"DECR"):
            self.values[key] = b"%d" % (int(value or 0) + (1 if name == b"INCR" else -1))
        elif name in (b"INCRBY", b"DECRBY"):
            step = int(rest[0])
            self.values[key] = b"%d" % (int(value or 0) + (step if name == b"INCRBY" else -step))
        elif name == b"PERSIST":
            self.deadlines.pop(key, None)
        elif name == b"PEXPIREAT":
            self.deadlines[key] = int(rest[0])
        elif name == b"RPUSH":
            self.values[key] = (value or []) + rest
        elif name == b"LPOP":
            assert len(rest) == 0, words
            self.values[key] = value[1:]
            if not self.values[key]:
                self.drop(key)
        elif name == b"HSET":
            self.values.setdefault(key, {}).update(zip(rest[::2], rest[1::2]))
        elif name in (b"DEL", b"UNLINK"):
            for name in words[1:]:
                self.drop(name)
        else:
            raise AssertionError("an effect that this test does not make: %r" % words)


class Consumer:
    def __init__(self, cursor):
        self.cursor, self.last = cursor, (-1, -1)
        self.model, self.digest, self.has_ended = Model(), hashlib.sha256(), False
        self.event_count, self.transaction_count, self.page_count = 0, 0, 0

    def read(self, connection, *words):
        cursor, events = connection.execute_command("CHANGES", "READ", self.cursor, *words)
        for name, kind, effects in events:
            moment, number = (int(part) for part in name.split(b"-"))
            assert (moment, number) > self.last, "%r after %r" % (name, self.last)
            assert kind == b"change", kind
            self.last = (moment, number)
            for database, keys, command in effects:
                assert database == 0 and keys and keys[0] == command[1], command
                self.model.apply(moment, command)
                self.has_ended |= command[1] == b"end"
            self.check(name, effects)
            self.digest.update(repr((name, effects)).encode())
            self.event_count += 1
            self.transaction_count += len(effects) > 1
        self.cursor = cursor
        self.page_count += 1

    def check(self, name, effects):
        accounts = [self.model.values.get(b"account:%d" % number) for number in range(ACCOUNTS)]
        if None not in accounts:
            assert sum(map(int, accounts)) == SUM, "torn by %r: %r" % (name, effects)


def connect(port):
    return redis.Redis(port=port, socket_timeout=10, socket_connect_timeout=1)


def follow(consumer, prng):
    """Reads to the end, at another node every few pages; the number of times that a node was no help."""
    failures, useless = 0, 0
    while not consumer.has_ended:
        connection = connect(prng.choice(PORTS))
        try:
            for _ in range(prng.randrange(1, 8)):
                if not consumer.has_ended:
                    consumer.read(connection, "COUNT", prng.randrange(1, 60), "BLOCK", prng.randrange(1, 300))
                    useless = 0
        except redis.RedisError as error:
            failures, useless = failures + 1, useless + 1
            assert useless < 3_000, "no node helps: %r" % error
            time.sleep(0.02)
        connection.close()
    return failures


def contents(port):
    """All that a node holds."""
    values, connection = {}, connect(port)
    for key in connection.scan_iter(count=1000):
        kind = connection.type(key)
        if kind == b"string":
            value = connection.get(key)
        elif kind == b"list":
            value = connection.lrange(key, 0, -1)
        else:
            value = connection.hgetall(key)
        if value is not None:
            values[key] = value
    return values


def main():
    prng = random.Random(SEED)
    # From where on all nodes can tell: some have joined later than others.
    told = [dict(zip(*[iter(connect(port).execute_command("CHANGES", "INFO"))] * 2)) for port in PORTS]
    first = max(told, key=lambda info: int(info[b"first-moment-ms"]))[b"first-cursor"]
    consumer = Consumer(first)
    print("ready", flush=True)
    failures = follow(consumer, prng)
    now = int(time.time() * 1000)
    model = {key: consumer.model.at(key, now) for key in list(consumer.model.values)}
    model = {key: value for key, value in model.items() if value is not None}
    held = contents(PORTS[0])
    wrong = {key: (model.get(key), held.get(key)) for key in model.keys() | held.keys() if model.get(key) != held.get(key)}
    assert not wrong, "changes amount to something else than the data: %r" % wrong
    again_count = 0
    for port in PORTS:
        again, connection = Consumer(first), connect(port)
        try:
            while not again.has_ended:
                again.read(connection, "COUNT", prng.randrange(50, 500), "BLOCK", 1000)
        except redis.ResponseError as error:
            # Its backlog has started over if it was given a checkpoint instead of the log.
            assert str(error).startswith("TOOOLD"), error
            continue
        again_count += 1
        assert again.digest.digest() == consumer.digest.digest(), "read again at %d it is something else" % port
    assert again_count > 1, "no two nodes can tell all of it"
    print(
        "all well: %d events, %d transactions, %d pages, %d failures, %d keys, read again at %d nodes"
        % (consumer.event_count, consumer.transaction_count, consumer.page_count, failures, len(held), again_count),
        flush=True,
    )


main()
