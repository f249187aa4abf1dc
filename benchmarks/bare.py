"""The bare route that `benchmarks.load` compares with: it writes what comes, and that is all."""

import sqlite3
import sys
from pathlib import Path
from threading import Lock

import uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

from edgemerge.files import write_atomically as write_file
from edgemerge.server.main import listen

app, lock = FastAPI(), Lock()
database = sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False)
for words in ("page_size = 16384", "journal_mode = wal", "synchronous = full"):
    database.execute(f"pragma {words}")
database.execute("create table bodies (name text primary key, data blob)")


def write(name: str, data: bytes) -> None:
    """Keep the newest bytes under a name, durably."""
    with lock:
        database.execute("insert or replace into bodies values (?, ?)", (name, data))


@app.put("/fleets/load/contributions/{name}/0/normal")
async def put(name: str, request: Request) -> dict[str, bool]:
    """Write what comes."""
    await run_in_threadpool(write, name, await request.body())
    return {"kept": True}


listening = listen("127.0.0.1", 0)
write_file(str(listening.getsockname()[1]).encode(), Path(sys.argv[2]))
tls = sys.argv[3] if sys.argv[3:] else None
config = uvicorn.Config(app, log_config=None, access_log=False, ssl_certfile=tls)
uvicorn.Server(config).run(sockets=[listening])
