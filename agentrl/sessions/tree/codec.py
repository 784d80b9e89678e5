"""Sessions and nodes as bytes and back, exactly: what was stored is what is read, to the last bit.

Token ids are little-endian 32-bit integers and log-probabilities 64-bit floats, as the engine gave them; all
else is JSON, so the database can be read with any SQLite tool. The trainable mask is one number, since trainable tokens
always end their node (`tree.check`), but for those that its supports leave out. A node's row has its attachments' kinds
and digests.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import orjson

from agentrl import attachments
from agentrl.common.foreign_errors import words
from agentrl.common.untrusted import SHOWN, safe_json, safe_repr
from agentrl.errors import InvalidInput, StoreError
from agentrl.sessions.tree import trainability
from agentrl.types import (
    Arrival,
    Branch,
    FinishReason,
    Message,
    Node,
    RewardState,
    Sampling,
    Session,
    Status,
    Task,
    VersionSpan,
)

Row = tuple[Any, ...]

NODE_COLUMNS = (
    "id, parent, agent, reply_id, message, token_ids, logprobs, trained_from, reward, turn, tools, attachments"
)

HEAD = (
    *("sample", "attempt", "group_number", "group_attempt", "seed", "phase", "step", "environment"),
    *("rewards", "reward", "agent_rewards", "partner_rewards", "error", "started", "ended"),
    *("counters", "timings", "info", "nonce", "reward_state", "branches"),
)
"""A session's fields that are stored as JSON, in one value, beside `excluded` where there are any; its task is stored
apart, since it never changes."""


_SAMPLING = [field.name for field in fields(Sampling)]
IMAGE_PREFIX = "picture/"
"""The beginning of the names of a node's image files, beside its attachments' kinds."""
_MARK = ";attachment,"


def node_row(node: Node, data: Mapping[str, bytes] | None = None) -> Row:
    """A node as a row of `NODE_COLUMNS`; `data` are its `files`, where they are known."""
    count = len(node.token_ids)
    message, _ = take_out_images(node.message)
    named = {name: digest(each) for name, each in (files(node) if data is None else data).items()}
    return (
        node.id,
        node.parent,
        node.agent,
        node.reply_id,
        message.model_dump_json(exclude_none=True),
        pack_ids(node.token_ids),
        pack_floats(node.logprobs),
        node.trainable.index(True) if True in node.trainable else count,
        None if node.reward is None else node.reward + 0.0,  # a float, and not -0.0, which SQLite doesn't have
        _turn(node),
        dumps(node.tools) if node.tools else None,
        dumps(named) if named else None,
    )


def files(node: Node) -> dict[str, bytes]:
    """Return what is stored of a node in files of their own: its attachments, and its message's images."""
    return attachments.split(node.attachments) | take_out_images(node.message)[1]


def node_from(row: Row, blobs: Mapping[str, bytes]) -> Node:
    """The node of a row; `blobs` are the attachments' data by digest.

    Raises:
        StoreError: the row is not one that `node_row` writes.
    """
    id_, parent, agent, reply_id, message, token_ids, logprobs, trained_from, reward, turn, tools, attached = row
    try:
        ids = unpack_ids(token_ids)
        held = {name: blobs[key] for name, key in orjson.loads(attached).items()} if attached else {}
        node = Node(
            id=id_,
            parent=parent,
            message=put_back_images(Message.model_validate_json(message), held),
            token_ids=ids,
            trainable=[False] * trained_from + [True] * (len(ids) - trained_from),
            logprobs=_unpack_floats(logprobs) or [0.0] * len(ids),
            reward=reward,
            agent=agent,
            attachments=attachments.unite(
                {name: data for name, data in held.items() if not name.startswith(IMAGE_PREFIX)}
            ),
            tools=orjson.loads(tools) if tools else [],
            reply_id=reply_id,
        )
        data = orjson.loads(turn) if turn else {}
        node.timings = data.get("timings", {})
        if "copy_of" in data:
            node.copy_of, node.copied_tokens = data["copy_of"], data["copied_tokens"]
        elif "sampling" in data:
            node.sampling, node.policy = _sampling(data["sampling"]), data["policy"]
            node.versions = [VersionSpan(*span) for span in data["versions"]]
            node.finish_reason = FinishReason(data["finish_reason"])
            node.stopped_by = data["stopped_by"]
            node.engines = tuple(data.get("engines", ()))
            node.arrival = Arrival(*data["arrival"]) if data.get("arrival") else None
            if trained_from < len(ids) and not node.sampling.full_support:
                start = node.versions[0].start
                node.trainable = [False] * start + [reason is None for reason in trainability.of_node(node)]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"node {id_} can't be read from the store: {error}") from error
    return node


def digest(data: bytes) -> str:
    """The address of an attachment's data: its SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def head_json(session: Session) -> str:
    """Everything of a session but its task and nodes; untrusted text and numbers in it are made storable.

    Raises:
        InvalidInput: something in it is not JSON (for example an object in `info`).
    """
    excluded = {"excluded": session.excluded} if session.excluded else {}
    return _json(session, {name: getattr(session, name) for name in HEAD} | excluded)


def task_json(session: Session) -> str:
    """The session's task; whole numbers in it have any size, so that it is read as it was.

    Raises:
        InvalidInput: something in it is not JSON.
    """
    return _json(session, {"id": session.task.id, "data": session.task.data}, write=whole_json)


def whole_json(value: Any) -> str:
    """A task's data as JSON that is read as it was, its whole numbers of any size included.

    Raises:
        TypeError: it holds an object that is no JSON, and that nothing stands for.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:
        try:
            return json.dumps(safe_json(value, integers=True), ensure_ascii=False)
        except ValueError as error:  # a whole number of thousands of digits
            raise TypeError(str(error)) from None


def same_task(one: Task, other: Task) -> bool:
    """Return whether two tasks are stored alike: one may have been read from where the other is yet to be written."""
    first, second = (
        json.dumps(safe_json([task.id, task.data], whole=True, integers=True), sort_keys=True) for task in (one, other)
    )
    return first == second


def _json(session: Session, value: Any, write: Callable[[Any], str] | None = None) -> str:
    try:
        return (write or dumps)(value)
    except TypeError as error:
        where = odd_place(value) or str(error)
        raise InvalidInput(f"session {session.id!r} holds what JSON can't express: {where}") from None


def odd_place(value: Any, path: str = "") -> str:
    """Return the path in a value of what JSON can't express, and what is there; '' where all of it can be stored."""
    try:
        dumps(value)
    except Exception as error:  # whatever its own methods raise
        items: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Mapping):
            items = ((f"{path}[{safe_repr(key)}]" if path else str(key), item) for key, item in value.items())
        elif isinstance(value, list | tuple):
            items = ((f"{path}[{place}]", item) for place, item in enumerate(value))
        found = next((odd for place, item in items if (odd := odd_place(item, place))), "")
        return found or f"{path or 'it'} = {safe_repr(value)[:SHOWN]} ({words(error)})"
    return ""


def make_storable(session: Session) -> str | None:
    """Replace, in a session that can't be stored, what JSON can't express by its text.

    Returns:
        What was wrong; None where the session can be stored as it is.
    """
    try:
        head_json(session)
        task_json(session)
    except InvalidInput as error:
        for name in HEAD:
            if name == "branches":  # ours: numbers, and text that is safe already
                continue
            setattr(session, name, safe_json(getattr(session, name), whole=True))
        session.task = Task(id=session.task.id, data=safe_json(session.task.data, whole=True))
        return str(error)
    return None


def dumps(value: Any) -> str:
    """A value as JSON; text and numbers in it that JSON can't express are replaced.

    Raises:
        TypeError: it holds something else that is no JSON.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:
        return orjson.dumps(safe_json(value), option=orjson.OPT_SERIALIZE_NUMPY).decode()


def session_from(id_: str, group: str, status: str, task: str, head: str, nodes: list[Node]) -> Session:
    """The session of stored values and nodes; StoreError where they are not what `task_json` and `head_json` write."""
    try:
        made = Task.model_validate_json(task)
        data = orjson.loads(head)
        data["reward_state"] = RewardState(data["reward_state"])
        data["branches"] = [Branch(**{**each, "status": Status(each["status"])}) for each in data.get("branches", ())]
        return Session(id=id_, task=made, group=group, status=Status(status), nodes=nodes, **data)
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"session {id_!r} can't be read from the store: {error}") from error


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit integers."""
    return pack_numbers("i", ids)


def unpack_ids(data: bytes) -> list[int]:
    """The token ids of `pack_ids`."""
    return unpack_numbers("i", data).tolist()


def pack_floats(values: Sequence[float]) -> bytes | None:
    """Numbers as little-endian 64-bit floats; None where all are 0."""
    return pack_numbers("d", values) if any(values) else None


def _unpack_floats(data: bytes | None) -> list[float]:
    return unpack_numbers("d", data).tolist() if data else []


def pack_numbers(code: str, values: Sequence[Any]) -> bytes:
    """Numbers of a kind that `array` knows, little-endian."""
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_numbers(code: str, data: bytes) -> array[Any]:
    """The numbers of `pack_numbers`."""
    values: array[Any] = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _turn(node: Node) -> str | None:
    """The turn's sampling, or the turn that it copies, and its timings, as JSON; None for none of these."""
    data: dict[str, Any] = {}
    if node.sampling is not None:
        data = {
            "sampling": _encode_sampling(node.sampling),
            "policy": node.policy,
            "versions": [span.packed for span in node.versions],
            "finish_reason": node.finish_reason,
            "stopped_by": node.stopped_by,
            **({"arrival": node.arrival.packed} if node.arrival else {}),
            **({"engines": node.engines} if node.engines else {}),
        }
    elif node.copy_of is not None:
        data = {"copy_of": node.copy_of, "copied_tokens": node.copied_tokens}
    if node.timings:
        data["timings"] = node.timings
    return orjson.dumps(data).decode() if data else None


def _encode_sampling(sampling: Sampling) -> Any:
    """A turn's sampling, without what came later and has its default."""
    found = {name: getattr(sampling, name) for name in _SAMPLING}
    for name, default in (("repetition_penalty", 1), ("regex", None), ("lark", None)):
        if found[name] == default:
            del found[name]
    return found


def _sampling(data: dict[str, Any]) -> Sampling:
    for name in ("stop", "stop_token_ids"):
        data[name] = tuple(data[name])
    data["logit_bias"] = tuple((int(token), float(bias)) for token, bias in data["logit_bias"])
    data["record"] = tuple((str(kind), int(start)) for kind, start in data["record"])
    return Sampling(**data)


def take_out_images(message: Message) -> tuple[Message, dict[str, bytes]]:
    """A message whose images are named, and their files by name.

    The files are the store's attachments, so one image is stored once, however many messages show it. In memory a
    message keeps its data URLs, which is the form that models' APIs, exports and the viewer know.
    """
    if not isinstance(message.content, list) or not message.images:
        return message, {}
    files: dict[str, bytes] = {}
    parts = []
    for part in message.content:
        head, base, body = (part.image or "").partition(";base64,")
        data = _decode_image(body) if base else None
        if data is not None and part.image_url is not None:
            name = f"{IMAGE_PREFIX}{len(files)}"
            files[name] = data
            part = part.model_copy(update={"image_url": part.image_url | {"url": f"{head}{_MARK}{name}"}})
        parts.append(part)
    return message.model_copy(update={"content": parts}), files


def put_back_images(message: Message, files: Mapping[str, bytes]) -> Message:
    """The message that `take_out_images` was given."""
    if not files or not isinstance(message.content, list):
        return message
    for part in message.content:
        head, mark, name = (part.image or "").partition(_MARK)
        if mark and name in files and part.image_url is not None:
            part.image_url["url"] = f"{head};base64,{base64.b64encode(files[name]).decode()}"
    return message


def _decode_image(body: str) -> bytes | None:
    """The bytes of base64; None where they would not give the same text again."""
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data).decode() == body else None
