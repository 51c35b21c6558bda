"""Stands in for every kind of process that a keeper keeps; what it does, and how it fails, stands in a plan.

What lives here: the program. ``KIND PLAN EVENTS CHANNEL INCARNATION DEED``; it imports nothing of ours: it starts quickly.
What must not: expectations. Whatever happens is sent to the test (EVENTS is the name of its socket).
"""

import array
import fcntl
import json
import os
import signal
import socket
import sys
import termios
from pathlib import Path

KIND, PLAN, EVENTS = sys.argv[1:4]
CHANNEL = socket.socket(fileno=int(sys.argv[4]))
INCARNATION = int(sys.argv[5])
DEED = json.loads(sys.argv[6])
SETTINGS = os.pread(DEED[0], 1000, 0).decode()
_told = json.loads(Path(PLAN).read_text())
MINE = _told.get(f"{KIND}{INCARNATION}", _told.get(f"{KIND} {SETTINGS}", _told.get(KIND, {})))
_events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
_events.connect("\0" + EVENTS)
_kept = []
_served = []


def note(event, **facts):
    """Tell the test."""
    facts |= {"event": event, "kind": KIND, "incarnation": INCARNATION, "pid": os.getpid(), "settings": SETTINGS}
    _events.send(json.dumps(facts).encode())


def say(message, fds=()):
    """Returns when the keeper has it: what the test is told after that is true of the keeper, too."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    CHANNEL.sendmsg([json.dumps(message).encode()], rights)
    while any(fcntl.ioctl(CHANNEL, termios.TIOCOUTQ, bytes(4))):
        os.sched_yield()


def hear():
    """The next message and its descriptors; ends with the keeper."""
    try:
        data, ancillary, _, _ = CHANNEL.recvmsg(1 << 16, 1000)
    except ConnectionResetError:  # it was killed before it had read all that we said; what it said comes still
        data, ancillary, _, _ = CHANNEL.recvmsg(1 << 16, 1000)
    if not data:
        note("orphaned")
        sys.exit(0)
    fds = array.array("i")
    for _, _, rights in ancillary:
        fds.frombytes(rights)
    message = json.loads(data)
    note(
        "told",
        **message,
        ends=[socket.socket(fileno=fd).recv(100, socket.MSG_PEEK).decode() for fd in fds if KIND == "shard"],
    )
    return message, fds


def reach(point):
    """Do what the plan says for this point: die, fail, hang."""
    match MINE.get(point):
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.exit(1)
        case "hang":
            note("hangs", at=point)
            signal.pause()
        case [str(why), int(code)]:
            say({"am": "failed", "why": why, "code": code})
            sys.exit(code)
        case "tell":
            note("reached", at=point)
        case "nonsense":
            CHANNEL.send(b"{")
            say({"am": "what?"})
            say(["no object"])
        case {"unlink": str(path)}:
            Path(path).unlink()
        case "deaf":
            CHANNEL.close()
            note("deaf")
            signal.pause()


def be_guarded():
    """An end that says, to whoever gets it, whose it is."""
    mine, keepers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.send(str(INCARNATION).encode())
    say({"am": "guarded"}, [keepers.fileno()])
    _kept.append(mine)


def leave_orphan():
    """A grandchild that outlives this process by a moment."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    os.close(reads)
    _kept.append(writes)
    note("orphan", orphan=pid)


def shard():
    reach("start")
    for _ in range(MINE.get("guardians", 1)):
        be_guarded()
    if MINE.get("orphan"):
        leave_orphan()
    say({"am": "warm"})
    note("warm")
    reach("warm")
    while True:
        match hear()[0]:
            case {"do": "serve", "slot": slot}:
                if MINE.get(f"foster {slot}") == "decline" and _served:
                    say({"am": "unable", "why": "no room"})
                    continue
                reach("adopt" if not _served else f"foster {slot}")
                _served.append(slot)
                say({"am": "serving", "slot": slot})
                note("serving")
                reach("serve")
            case {"do": "drain"}:
                reach("drain")
                sys.exit(0)
            case {"do": what}:
                reach(what)
                sys.exit(0)


def admin():
    signal.signal(signal.SIGUSR1, lambda *_: say({"ask": "reload"}))
    signal.signal(signal.SIGUSR2, lambda *_: say({"ask": "drain"}))
    note("ready")
    reach("start")
    while hear()[0].get("do") != "stop":
        pass


def engines():
    note("ready")
    reach("start")
    hear()


def reader():
    reach("start")
    fds = []
    for text in MINE.get("read", ["new"]):
        fds.append(os.memfd_create("fake"))
        os.pwrite(fds[-1], text.encode(), 0)
    say({"am": "read", "problem": "", "drain_s": 5.0, "hang_kill_s": 0} | MINE.get("message", {}), fds)


def keeper():
    hear()
    reach("try")
    say({"am": "able"})


if __name__ == "__main__":
    note("start")
    globals()[KIND]()
