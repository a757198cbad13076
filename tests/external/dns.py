"""A DNS server on a loopback address, and the command prefix of a process that resolves names with it."""

import itertools
import os
import socket
import struct
import threading

import network

A_RECORD = 1
INTERNET = 1
RESPONSE_FLAGS = 0x8580
QUESTION_AT = 12
PORT = 53


class NameServer:
    """Answers A queries from `addresses`, a table of names. Each answer begins with another address of the name."""

    numbers = itertools.count(1)

    def __init__(self, folder):
        # An address of its own, because resolv.conf cannot name a port.
        self.host = f"127.53.{os.getpid() % 250 + 1}.{next(self.numbers)}"
        self.addresses = {}
        self.queries = itertools.count()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((self.host, PORT))
        self.resolv_conf = folder / f"resolv-{self.host}.conf"
        self.resolv_conf.write_text(f"nameserver {self.host}\noptions ndots:0 timeout:1 attempts:1\n")
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def prefix(self):
        """Runs a command with this server as its resolver."""
        return network.with_mount(self.resolv_conf, "/etc/resolv.conf")

    def stop(self):
        # An empty datagram ends the server.
        self.socket.sendto(b"", (self.host, PORT))
        self.thread.join()
        self.socket.close()

    def _serve(self):
        while True:
            query, caller = self.socket.recvfrom(512)
            if not query:
                return
            self.socket.sendto(self._answer(query), caller)

    def _answer(self, query):
        name, at = [], QUESTION_AT
        while query[at]:
            name.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        [kind] = struct.unpack_from(">H", query, at + 1)
        question = query[QUESTION_AT : at + 5]
        known = self.addresses.get(".".join(name), []) if kind == A_RECORD else []
        first = next(self.queries) % len(known) if known else 0
        header = query[:2] + struct.pack(">5H", RESPONSE_FLAGS, 1, len(known), 0, 0)
        pointer = 0xC000 | QUESTION_AT
        records = [
            struct.pack(">HHHIH", pointer, A_RECORD, INTERNET, 0, 4) + socket.inet_aton(address)
            for address in known[first:] + known[:first]
        ]
        return header + question + b"".join(records)


class Resolver:
    """The environment of a process that resolves names with `server`, as `Replica` takes it."""

    def __init__(self, server, call):
        self.prefix, self.call = server.prefix, call
