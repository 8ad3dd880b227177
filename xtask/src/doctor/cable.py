"""A cable between two network namespaces: carries packets from one to the other, later, not all, or not so many.

usage: cable.py NAMESPACE NAMESPACE ADDRESS ADDRESS DELAY_MS LOSS_PERCENT BYTES_PER_SECOND READY_FILE
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN = 1
IFF_NO_PI = 0x1000
CLONE_NEWNET = 0x40000000
QUEUE_SECONDS = 0.2


def plug(namespace, address):
    """An interface in a namespace; what it sends is read here."""
    handle = os.open("/var/run/netns/" + namespace, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(handle)
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", b"cable", IFF_TUN | IFF_NO_PI))
    for words in (["addr", "add", address, "dev", "cable"], ["link", "set", "cable", "up"], ["link", "set", "lo", "up"]):
        subprocess.run(["ip"] + words, check=True)
    return end


def main():
    delay, loss, rate = int(sys.argv[5]) / 1000, int(sys.argv[6]) / 100, int(sys.argv[7])
    ends = [plug(sys.argv[1], sys.argv[3]), plug(sys.argv[2], sys.argv[4])]
    open(sys.argv[8], "w").close()
    on_the_way, count, free = [], 0, [0.0, 0.0]
    while True:
        now = time.monotonic()
        while on_the_way and on_the_way[0][0] <= now:
            _, _, end, packet = heapq.heappop(on_the_way)
            try:
                os.write(end, packet)
            except OSError:
                pass
        timeout = max(0.0, on_the_way[0][0] - now) if on_the_way else None
        for end in select.select(ends, [], [], timeout)[0]:
            side = ends.index(end)
            try:
                packet = os.read(end, 65536)
            except BlockingIOError:
                continue
            if random.random() < loss:
                continue
            now = time.monotonic()
            leaves = now
            if rate:
                leaves = max(now, free[side]) + len(packet) / rate
                if leaves - now > QUEUE_SECONDS:
                    continue
                free[side] = leaves
            count += 1
            heapq.heappush(on_the_way, (leaves + delay, count, ends[1 - side], packet))


main()
