"""A server for the tests of the host programs: answers every request with its method and path.

server.py PORT [NAME=VALUE]...; other arguments are ignored.
  delay=S          listens after S seconds        never=1       never listens
  ignore=1         ignores SIGTERM                exit=S:CODE   exits by itself S seconds after it listens
  orphans=1        leaves a child in a session of its own
  strangers=1      leaves a child with an empty environment
  quit=CODE        exits at once                  fill=1        writes its log until the disk is full
"""
import os
import signal
import socket
import subprocess
import sys
import threading
import time

options = dict(a.split("=", 1) for a in sys.argv[2:] if "=" in a and "\n" not in a)


def answer(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        body += connection.recv(65536)
    method, path, _ = head.split(b"\r\n")[0].split(b" ")
    text = method + b" " + path + b" " + body + b"\n"
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
    connection.close()


if "quit" in options:
    sys.exit(int(options["quit"]))
if "ignore" in options:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "never" in options:
    time.sleep(300)
time.sleep(float(options.get("delay", 0)))
listening = socket.socket()
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind(("127.0.0.1", int(sys.argv[1])))
listening.listen(64)
if "orphans" in options:
    subprocess.Popen(["sleep", "300"], start_new_session=True)
if "strangers" in options:
    subprocess.Popen(["sleep", "301"], env={})
print("ready to roll", flush=True)
if "exit" in options:
    after, code = options["exit"].split(":")
    threading.Timer(float(after), os._exit, [int(code)]).start()
while "fill" in options:
    try:
        os.write(1, b"x" * 65536)
    except OSError:
        break
while True:
    threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()
