"""What uvicorn serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Annotated, Any

import uvicorn
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

import txpool
from tests.integration.web.served import ainsert, arm, configure, insert, wait
from txpool.web.fastapi import in_transaction

logging.basicConfig()
configure()
app = FastAPI()
within = in_transaction()


@app.get("/alive")
async def alive() -> str:
    return "yes"


@app.post("/transfer", dependencies=[within])
def transfer(request: Request) -> str:
    arm(request.url.query)
    insert("one", "two")
    return "done"


def get_connection() -> Iterator[Any]:
    with txpool.connect("one.properties") as connection:
        yield connection


Connection = Annotated[Any, Depends(get_connection)]
Begun = Annotated[txpool.Transaction, within]


@app.post("/dependent", dependencies=[within])
def dependent(begun: Begun, again: Annotated[txpool.Transaction, in_transaction()], connection: Connection) -> str:
    assert begun is again is txpool.current()
    connection.execute("insert into t values (1)")
    with txpool.transaction() as inner:
        insert("two")
    assert inner is begun
    return "done"


@app.post("/count", dependencies=[within])
def count() -> None:
    with txpool.connect("one.properties") as connection:
        connection.cursor().execute("update t set id = id + 1")


class Answer(BaseModel):
    number: int


def take() -> int:
    with txpool.connect("one.properties") as connection:
        return int(connection.cursor().execute("update t set id = id + 1 returning id").fetchone()[0])


@app.post("/counted", dependencies=[within])
def counted(number: Annotated[int, Depends(take)]) -> Answer:
    """In three threads, one after the other: the last is where FastAPI checks what is returned."""
    return Answer(number=number)


@app.post("/wait", dependencies=[within])
def waiting() -> str:
    insert("one", "two")
    wait()
    try:
        insert("one", "two")
    finally:
        with txpool.transaction():
            insert("one", "two")
    return "done"


# -- asynchronous endpoints -----------------------------------------------------------------------------------------


@app.post("/awaited", dependencies=[within])
async def awaited(request: Request, begun: Begun, tasks: BackgroundTasks) -> str:
    arm(request.url.query)
    assert begun is txpool.current()
    await ainsert("one", "two")
    if "background" in request.url.query:
        tasks.add_task(ainsert, "one")
    return "done"


def insert_one() -> None:
    insert("one")


@app.post("/threaded", dependencies=[within, Depends(insert_one)])
async def threaded() -> str:
    """A part of it is done in a thread."""
    await ainsert("two")
    return "done"


@app.post("/awaited/count", dependencies=[within])
async def awaited_count() -> None:
    async with await txpool.aconnect("one.properties") as connection:
        await connection.execute("update t set id = id + 1")


@app.post("/awaited/conflict", dependencies=[within])
async def awaited_conflict() -> None:
    await ainsert("one", "two")
    raise HTTPException(409)


@app.post("/awaited/invalid", dependencies=[within])
async def awaited_invalid() -> Answer:
    await ainsert("one", "two")
    return {"number": "no number"}  # type: ignore[return-value]


@app.post("/awaited/wait", dependencies=[within])
async def awaited_wait() -> None:
    await ainsert("one", "two")
    await asyncio.to_thread(wait)
    await ainsert("one", "two")


# -- what rolls back ------------------------------------------------------------------------------------------------


@app.post("/conflict", dependencies=[within])
def conflict() -> None:
    insert("one", "two")
    raise HTTPException(409)


@app.post("/failure", dependencies=[within])
def failure() -> None:
    insert("one", "two")
    raise ZeroDivisionError


@app.post("/invalid", dependencies=[within])
def invalid() -> Answer:
    insert("one", "two")
    return {"number": "no number"}  # type: ignore[return-value]


@app.post("/upload", dependencies=[within])
def upload(answer: Answer) -> None:
    insert("one", "two")


@app.post("/returned", dependencies=[within])
def returned() -> JSONResponse:
    insert("one", "two")
    return JSONResponse({}, status_code=409)


# -- what comes after the end ---------------------------------------------------------------------------------------


@app.post("/stream", dependencies=[within])
def stream(connection: Connection) -> StreamingResponse:
    mine = txpool.connect("one.properties")
    mine.execute("insert into t values (1)")

    def body() -> Iterator[str]:
        yield f"{txpool.current()}; "
        try:
            mine.execute("insert into t values (2)")
        except txpool.Error as error:
            yield f"{error}; "
        insert("two", number=3)
        raise ZeroDivisionError

    return StreamingResponse(body())


@app.post("/background", dependencies=[within])
def background(tasks: BackgroundTasks) -> str:
    insert("one")

    def task() -> None:
        assert txpool.current() is None
        insert("two")

    tasks.add_task(task)
    return "done"


# -- what is refused ------------------------------------------------------------------------------------------------


@app.post("/asynchronous", dependencies=[within])
async def asynchronous() -> None:
    insert("one", "two")


@app.post("/yielding", dependencies=[within])
def yielding() -> Iterator[int]:
    insert("one", "two")
    yield 1


class Called:
    async def __call__(self) -> str:
        await ainsert("one", "two")
        return "done"


app.post("/called", dependencies=[within])(Called())


@app.websocket("/socket")
async def socket(socket: WebSocket) -> None:
    """Each message is a transaction of its own."""
    await socket.accept()
    for _ in range(2):
        number = int(await socket.receive_text())
        assert txpool.current() is None
        try:
            async with txpool.transaction():
                for name in ("one", "two"):
                    async with await txpool.aconnect(f"{name}.properties") as connection:
                        await connection.execute("insert into t values (%s)", (number,))
                if number < 0:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            await socket.send_text("not done")
        else:
            await socket.send_text("done")
    await socket.close()


# -- what users write, and what FastAPI makes of it: the endpoint runs outside ----------------------------------------


def trap() -> Iterator[None]:
    with txpool.transaction():
        insert("one")
        yield


@app.post("/trap", dependencies=[Depends(trap)])
def trapped() -> str:
    insert("two")
    return "done"


@app.post("/strict", dependencies=[Depends(trap)])
def strict() -> str:
    insert("strict")
    return "done"


# -- a program that serves it, and can be told to go down ------------------------------------------------------------

if __name__ == "__main__":
    server = uvicorn.Server(uvicorn.Config(app, port=0, timeout_graceful_shutdown=1))

    @app.post("/stop")
    async def stop() -> None:
        server.should_exit = True

    server.run()
